//! The load of the cells on names: one call after the other on many names of one directory, each
//! timed, in a process of its own so that its CPU is known and it can be killed.

use super::cells::NameCall;
use super::sample::Metrics;
use crate::error::{Context, Outcome, ensure};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The hidden command.
#[derive(clap::Args)]
pub struct LoadArgs {
    /// What to call
    #[arg(value_enum)]
    call: NameCall,
    /// The directory, which `create` makes and `unlink` leaves empty
    dir: PathBuf,
    /// On so many names
    #[arg(long)]
    names: u64,
}

/// Its arguments.
pub fn arguments(call: NameCall, dir: &Path, names: u64) -> Vec<String> {
    let call = match call {
        NameCall::Create => "create",
        NameCall::Stat => "stat",
        NameCall::Readdir => "readdir",
        NameCall::Rename => "rename",
        NameCall::Unlink => "unlink",
    };
    vec!["load".into(), call.into(), dir.display().to_string(), "--names".into(), names.to_string()]
}

/// Runs it, and prints what it measured as JSON.
///
/// # Errors
/// When a call fails, or the directory does not list what it has to.
pub fn load(args: &LoadArgs) -> Outcome {
    let metrics = measure(args)?;
    println!("{}", serde_json::to_string(&metrics).doing(|| "cannot encode numbers")?);
    Ok(())
}

/// What [`load`] printed.
///
/// # Errors
/// When it is not that.
pub fn parse(output: &str) -> Outcome<Metrics> {
    serde_json::from_str(output.trim()).doing(|| "the load did not print its numbers")
}

fn measure(args: &LoadArgs) -> Outcome<Metrics> {
    let first = |n: u64| args.dir.join(format!("f{n}"));
    let second = |n: u64| args.dir.join(format!("g{n}"));
    let each = |call: &dyn Fn(u64) -> std::io::Result<()>| timed(args.names, &args.dir, call);
    match args.call {
        NameCall::Create => {
            fs::create_dir(&args.dir).doing(|| format!("cannot make {}", args.dir.display()))?;
            each(&|n| OpenOptions::new().write(true).create_new(true).open(first(n)).map(drop))
        }
        NameCall::Stat => each(&|n| fs::symlink_metadata(first(n)).map(drop)),
        NameCall::Rename => each(&|n| fs::rename(first(n), second(n))),
        NameCall::Unlink => each(&|n| fs::remove_file(second(n))),
        NameCall::Readdir => list(&args.dir, args.names),
    }
}

/// One call after the other.
fn timed(names: u64, dir: &Path, call: &dyn Fn(u64) -> std::io::Result<()>) -> Outcome<Metrics> {
    let mut micros = Vec::with_capacity(names as usize);
    let begin = Instant::now();
    for n in 0..names {
        let start = Instant::now();
        call(n).doing(|| format!("name {n} in {}", dir.display()))?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let seconds = begin.elapsed().as_secs_f64();
    micros.sort_by(f64::total_cmp);
    let at = |share: f64| {
        micros.get(((names as f64 - 1.0) * share).round() as usize).copied().unwrap_or(0.0)
    };
    Ok(Metrics::from([
        ("ops_per_s".to_owned(), names as f64 / seconds),
        ("mean_us".to_owned(), seconds * 1e6 / names.max(1) as f64),
        ("p50_us".to_owned(), at(0.5)),
        ("p99_us".to_owned(), at(0.99)),
    ]))
}

fn list(dir: &Path, names: u64) -> Outcome<Metrics> {
    let begin = Instant::now();
    let mut found = 0;
    for entry in fs::read_dir(dir).doing(|| format!("cannot list {}", dir.display()))? {
        entry.doing(|| format!("cannot list {}", dir.display()))?;
        found += 1;
    }
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(found == names, "{} lists {found} names instead of {names}", dir.display());
    Ok(Metrics::from([("ops_per_s".to_owned(), names as f64 / seconds)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_finds_what_the_last_one_left() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("names");
        let calls = [
            NameCall::Create,
            NameCall::Stat,
            NameCall::Readdir,
            NameCall::Rename,
            NameCall::Unlink,
        ];
        for call in calls {
            let metrics = measure(&LoadArgs { call, dir: dir.clone(), names: 20 }).unwrap();
            assert!(metrics["ops_per_s"] > 0.0, "{call:?}");
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert!(measure(&LoadArgs { call: NameCall::Stat, dir, names: 1 }).is_err());
    }
}
