//! `trefoil volume`: disks of virtual machines: made, listed, resized, copied, removed, limited.

use crate::error::OperatorError;
use crate::transfer::{Source, Target, progress};
use crate::{Cluster, confirm, output, table};
use clap::{Args, Subcommand};
use client::ClientConfig;
use std::path::PathBuf;
use std::time::Duration;
use volume::{Limits, Rate, VolumeInfo, VolumeName, Volumes, copy};

/// What to do with volumes.
#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Makes one that reads as zeros; it takes space as it is written
    Create {
        /// Its name
        name: VolumeName,
        /// Its size: a number of bytes, or with KiB, MiB, GiB, TiB
        #[arg(long, value_parser = parse_bytes)]
        size: u64,
        /// The pool for its data; the first one if it is not given
        #[arg(long)]
        pool: Option<String>,
    },
    /// Lists them, with their sizes
    Ls,
    /// Size, pool, space, limits, and who has it open
    Info {
        /// Which
        name: VolumeName,
    },
    /// Gives one that nobody has open another size
    Resize {
        /// Which
        name: VolumeName,
        /// The new size
        #[arg(long, value_parser = parse_bytes)]
        size: u64,
        /// Cut off without a question what lies beyond a smaller size
        #[arg(short, long)]
        yes: bool,
    },
    /// Removes one that nobody has open
    Rm {
        /// Which
        name: VolumeName,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Makes one of a file, or of standard input; zeros take no space
    Import {
        /// The file, raw; `-` for standard input
        file: PathBuf,
        /// The volume's name
        name: VolumeName,
        /// The pool for its data; the first one if it is not given
        #[arg(long)]
        pool: Option<String>,
    },
    /// Writes one that nobody has open for writing to a file, with holes, or to standard output
    Export {
        /// Which
        name: VolumeName,
        /// The file; `-` for standard output
        file: PathBuf,
    },
    /// Sets limits, in a second; those that are not given stay
    Set {
        /// Which
        name: VolumeName,
        #[command(flatten)]
        limits: LimitArgs,
    },
}

/// Limits as they are given: a number, or `none`.
#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct LimitArgs {
    /// Bytes read
    #[arg(long, value_name = "BYTES", value_parser = parse_limit)]
    read_bps: Option<u64>,
    /// Bytes written
    #[arg(long, value_name = "BYTES", value_parser = parse_limit)]
    write_bps: Option<u64>,
    /// Bytes read and written
    #[arg(long, value_name = "BYTES", value_parser = parse_limit)]
    total_bps: Option<u64>,
    /// Reads
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    read_iops: Option<u64>,
    /// Writes
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    write_iops: Option<u64>,
    /// Reads and writes
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    total_iops: Option<u64>,
}

impl LimitArgs {
    fn change(&self, limits: Limits) -> Limits {
        let given = [
            (Rate::ReadBytes, self.read_bps),
            (Rate::WriteBytes, self.write_bps),
            (Rate::TotalBytes, self.total_bps),
            (Rate::ReadOps, self.read_iops),
            (Rate::WriteOps, self.write_iops),
            (Rate::TotalOps, self.total_iops),
        ];
        let given = given.into_iter().filter_map(|(rate, limit)| Some((rate, limit?)));
        given.fold(limits, |limits, (rate, limit)| limits.with(rate, limit))
    }
}

/// A number of bytes, or with a unit of 1024: "10GiB", "512 MiB", "1T".
fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "a size is a number, as 10GiB".to_owned())?;
    let shift = match unit.trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        "P" | "PiB" => 50,
        other => return Err(format!("{other:?} is no unit here: B, KiB, MiB, GiB, TiB, PiB")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "more than there can be".to_owned())
}

/// A limit; 0 is none.
fn parse_limit(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        "0" => Err("a limit of 0 lets nothing through: say none for no limit".to_owned()),
        other => parse_bytes(other),
    }
}

/// A session of its own name; `timeout` is how long operations wait for the cluster, zero for ever.
pub fn connect(cluster: &Cluster, what: &str, timeout: Duration) -> Result<Volumes, OperatorError> {
    // A cluster that is not there is said at once.
    cluster.status()?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = format!("{what} {}:{}", host.trim_end(), std::process::id());
    Ok(Volumes::connect(ClientConfig { timeout, ..ClientConfig::new(&cluster.monitor, name) })?)
}

/// Does it.
///
/// # Errors
/// No such volume, one that is open elsewhere, local files, the cluster.
pub fn run(cluster: &Cluster, command: VolumeCommand) -> Result<(), OperatorError> {
    // Before the session: a file that cannot be read needs no cluster.
    let source = match &command {
        VolumeCommand::Import { file, .. } => Some(Source::open(Some(file))?),
        _ => None,
    };
    let volumes = connect(cluster, "command", cluster.timeout)?;
    let done = carry_out(&volumes, command, source);
    done.and(volumes.close().map_err(OperatorError::from))
}

fn carry_out(
    volumes: &Volumes,
    command: VolumeCommand,
    source: Option<Source>,
) -> Result<(), OperatorError> {
    match command {
        VolumeCommand::Create { name, size, pool } => {
            Ok(volumes.create(&name, size, pool.as_deref())?)
        }
        VolumeCommand::Ls => {
            let row = |(name, size): (VolumeName, u64)| [name.to_string(), table::bytes(size)];
            output::text(&table::columns(["volume", "size"], volumes.list()?.into_iter().map(row)))
        }
        VolumeCommand::Info { name } => output::text(&described(&volumes.info(&name)?)),
        VolumeCommand::Resize { name, size, yes } => {
            let now = volumes.info(&name)?.size;
            if size < now && !yes {
                let (now, then) = (table::bytes(now), table::bytes(size));
                confirm::ask(&format!(
                    "volume `{name}` has {now}; what lies beyond {then} will be lost"
                ))?;
            }
            Ok(volumes.resize(&name, size)?)
        }
        VolumeCommand::Rm { name, yes } => {
            let info = volumes.info(&name)?;
            if !yes {
                let (size, used) = (table::bytes(info.size), table::bytes(info.used));
                confirm::ask(&format!(
                    "volume `{name}` of {size}, with {used} of data, will be removed"
                ))?;
            }
            Ok(volumes.remove(&name)?)
        }
        VolumeCommand::Import { name, pool, .. } => {
            let source = source.expect("opened before for every import");
            import(volumes, &name, pool.as_deref(), source)
        }
        VolumeCommand::Export { name, file } => export(volumes, &name, Target::open(Some(&file))?),
        VolumeCommand::Set { name, limits } => {
            Ok(volumes.set_limits(&name, limits.change(volumes.limits(&name)?))?)
        }
    }
}

fn import(
    volumes: &Volumes,
    name: &VolumeName,
    pool: Option<&str>,
    mut source: Source,
) -> Result<(), OperatorError> {
    let (bar, length) = (progress(source.length), source.length);
    let made = copy::import(volumes, name, pool, &mut source, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    match (made, source.failed) {
        (Ok(size), _) if length.is_some_and(|length| length < size) => output::line(&format!(
            "volume `{name}` has {size} bytes: the last sector was filled up with zeros"
        )),
        (Ok(_), _) => Ok(()),
        (Err(_), Some(error)) => Err(OperatorError::File { path: source.path, source: error }),
        (Err(error), None) => Err(error.into()),
    }
}

fn export(volumes: &Volumes, name: &VolumeName, mut target: Target) -> Result<(), OperatorError> {
    let bar = progress(Some(0));
    let done = copy::export(volumes, name, &mut target, &mut |done, size| {
        bar.set_length(size);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    match (done, target.failed.take()) {
        (Ok(_), _) => target.finish(),
        (Err(_), Some(error)) => Err(target.error(error)),
        (Err(error), None) => Err(error.into()),
    }
}

fn described(info: &VolumeInfo) -> String {
    let mut rows = vec![
        ("name", info.name.to_string()),
        ("size", format!("{} bytes ({})", info.size, table::bytes(info.size))),
        ("pool", info.pool.clone()),
        ("used", format!("{} bytes ({}), without parity", info.used, table::bytes(info.used))),
    ];
    for (name, rate) in Rate::ALL.iter().filter(|(_, rate)| info.limits.get(*rate) > 0) {
        rows.push((name, format!("{} in a second", info.limits.get(*rate))));
    }
    rows.push((
        "open",
        info.holder.as_ref().map_or_else(|| "by nobody".to_owned(), |by| format!("by {by}")),
    ));
    rows.iter().map(|(name, value)| format!("{name:11} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in
            [("512", 512), ("10GiB", 10 << 30), ("1 MiB", 1 << 20), ("2K", 2048), ("1T", 1 << 40)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GiB", "-1", "1.5GiB", "10GB", "99999999999P", "1 2"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_limit("none"), Ok(0));
        assert!(parse_limit("0").is_err());
    }
}
