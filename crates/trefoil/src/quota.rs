//! `trefoil quota set | get | ls | rm`: limits of directories, in bytes and in files.
//!
//! Paths are those inside the file system: they begin with `/`, whatever a mount shows it as.

use crate::error::OperatorError;
use crate::{Cluster, output, table, volume};
use clap::{Args, Subcommand};
use client::{Client, ClientConfig, ClientError, fs};
use protocol::Gfid;
use protocol::namespace::{Attr, Caller, FileKind, NamespaceOp, Quota, QuotaChange, Reply};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Entries of a directory asked for at once.
const LIST_PAGE: u32 = 4096;
/// Directories above each other that a path has, at most: in 4096 bytes are no more.
const DEPTH_MAX: usize = 2048;

/// What to do with quotas.
#[derive(Subcommand)]
pub enum QuotaCommand {
    /// Limits what a directory may hold; a limit that is not given stays
    Set {
        /// The directory, from the root of the file system: /home/anna
        path: PathBuf,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Shows the quotas that a file or directory counts for, the innermost first
    Get {
        /// The file or directory, from the root of the file system
        path: PathBuf,
    },
    /// Lists all directories with quotas
    Ls,
    /// Takes a directory's quota away
    Rm {
        /// The directory, from the root of the file system
        path: PathBuf,
    },
}

/// Limits as they are given: a number, or `none`.
#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct LimitArgs {
    /// The lengths of all files together: a number of bytes, or with KiB, MiB, GiB, TiB; none
    #[arg(long, value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// Files and directories, with the directory itself; none
    #[arg(long, value_parser = parse_files)]
    files: Option<u64>,
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_limit(text, volume::parse_bytes)
}

fn parse_files(text: &str) -> Result<u64, String> {
    parse_limit(text, |text| text.parse().map_err(|_| "a limit is a number".to_owned()))
}

/// A limit; 0 is none.
fn parse_limit(text: &str, parse: fn(&str) -> Result<u64, String>) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => match parse(text)? {
            0 => Err("a limit of 0 lets nothing in: say none for no limit".to_owned()),
            limit => Ok(limit),
        },
    }
}

/// Does it.
///
/// # Errors
/// No such directory, no quota, the cluster.
pub fn run(cluster: &Cluster, command: QuotaCommand) -> Result<(), OperatorError> {
    // A cluster that is not there is said at once.
    cluster.status()?;
    let name = format!("quota command {}", std::process::id());
    let config =
        ClientConfig { timeout: cluster.timeout, ..ClientConfig::new(&cluster.monitor, name) };
    let session = Session(Client::connect(config).map_err(|error| of_client(error, ""))?);
    let done = match command {
        QuotaCommand::Set { path, limits } => {
            let change = QuotaChange { max_bytes: limits.bytes, max_files: limits.files };
            session.set(&path, change)
        }
        QuotaCommand::Get { path } => session.get(&path),
        QuotaCommand::Ls => session.ls(),
        QuotaCommand::Rm { path } => {
            session.set(&path, QuotaChange { max_bytes: Some(0), max_files: Some(0) })
        }
    };
    done.and(session.0.close().map_err(|error| of_client(error, "")))
}

fn of_client(error: ClientError, path: &str) -> OperatorError {
    let why = match error {
        ClientError::Posix(libc_errno::ENOENT) => "there is no such file or directory",
        ClientError::Posix(libc_errno::ENOTDIR) => "not a directory",
        ClientError::Posix(libc_errno::ENODATA) => "the directory has no quota",
        ClientError::Posix(libc_errno::ELOOP) => "there are 16 quotas around each other already",
        ClientError::Posix(libc_errno::ENOSPC) => {
            "there are 65,536 quotas already, or the metadata service's disk is full"
        }
        other => return OperatorError::of_client(other, path),
    };
    OperatorError::Refused(format!("{path}: {why}"))
}

/// The errors that are told in words of their own.
mod libc_errno {
    pub const ENOENT: i32 = 2;
    pub const ENOTDIR: i32 = 20;
    pub const ENOSPC: i32 = 28;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
}

/// A session with the metadata service.
struct Session(Client);

impl Session {
    fn ask(&self, op: NamespaceOp) -> Result<Reply, ClientError> {
        let caller = Caller { uid: 0, gid: 0, now: fs::now() };
        self.0.block_on(self.0.namespace(op, caller))
    }

    fn attr(&self, op: NamespaceOp) -> Result<Attr, ClientError> {
        match self.ask(op)? {
            Reply::Attr(attr) => Ok(attr),
            other => Err(ClientError::Protocol(format!("{other:?} where attributes were asked"))),
        }
    }

    /// The file or directory of a path; symbolic links are not followed.
    fn find(&self, path: &Path) -> Result<Attr, OperatorError> {
        let shown = path.display().to_string();
        let mut components = path.components();
        if components.next() != Some(Component::RootDir) {
            return Err(OperatorError::Refused(format!(
                "{shown}: a path begins at the root of the file system, with /"
            )));
        }
        let failed = |error| of_client(error, &shown);
        let mut found = self.attr(NamespaceOp::GetAttr { gfid: Gfid::ROOT }).map_err(failed)?;
        for component in components {
            let Component::Normal(name) = component else {
                return Err(OperatorError::Refused(format!("{shown}: a path without `..`")));
            };
            let name = name.as_bytes().to_vec();
            let lookup = NamespaceOp::Lookup { parent: found.gfid, name };
            found = self.attr(lookup).map_err(failed)?;
        }
        Ok(found)
    }

    fn set(&self, path: &Path, change: QuotaChange) -> Result<(), OperatorError> {
        let gfid = self.find(path)?.gfid;
        let set = self.ask(NamespaceOp::SetQuota { gfid, change });
        set.map(drop).map_err(|error| of_client(error, &path.display().to_string()))
    }

    fn quotas(&self, op: NamespaceOp) -> Result<Vec<Quota>, ClientError> {
        match self.ask(op)? {
            Reply::Quotas(quotas) => Ok(quotas),
            other => Err(ClientError::Protocol(format!("{other:?} where quotas were asked"))),
        }
    }

    fn get(&self, path: &Path) -> Result<(), OperatorError> {
        let shown = path.display().to_string();
        let gfid = self.find(path)?.gfid;
        let quotas = self.quotas(NamespaceOp::GetQuota { gfid });
        let quotas = quotas.map_err(|error| of_client(error, &shown))?;
        if quotas.is_empty() {
            return Err(OperatorError::Refused(format!("{shown}: counts for no quota")));
        }
        self.show(&quotas)
    }

    fn ls(&self) -> Result<(), OperatorError> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let some = self.quotas(NamespaceOp::ListQuotas { after });
            let some = some.map_err(|error| of_client(error, ""))?;
            let Some(last) = some.last() else { break };
            after = last.number;
            all.extend(some);
        }
        self.show(&all)
    }

    fn show(&self, quotas: &[Quota]) -> Result<(), OperatorError> {
        let mut names = Names { session: self, known: HashMap::new() };
        let mut rows = Vec::with_capacity(quotas.len());
        for quota in quotas {
            let path = names.path(quota.root).map_err(|error| of_client(error, ""))?;
            rows.push(row(path.display().to_string(), quota));
        }
        let head = ["directory", "bytes", "limit", "files", "limit", ""];
        output::text(&table::columns(head, rows.into_iter()))
    }
}

fn row(path: String, quota: &Quota) -> [String; 6] {
    let bytes = table::bytes(u64::try_from(quota.bytes).unwrap_or(u64::MAX));
    let none = || "none".to_owned();
    let max_bytes = if quota.max_bytes == 0 { none() } else { table::bytes(quota.max_bytes) };
    let max_files = if quota.max_files == 0 { none() } else { quota.max_files.to_string() };
    let is_over = quota.max_bytes > 0 && quota.bytes > quota.max_bytes.into()
        || quota.max_files > 0 && quota.files > quota.max_files;
    let state = match (quota.counting, is_over) {
        (true, _) => "being counted",
        (false, true) => "over",
        (false, false) => "",
    };
    [path, bytes, max_bytes, quota.files.to_string(), max_files, state.to_owned()]
}

/// Names of directories, for paths. Each directory above is listed once.
struct Names<'a> {
    session: &'a Session,
    known: HashMap<Gfid, HashMap<Gfid, Vec<u8>>>,
}

impl Names<'_> {
    fn path(&mut self, directory: Gfid) -> Result<PathBuf, ClientError> {
        let (mut names, mut at) = (Vec::new(), directory);
        while at != Gfid::ROOT && names.len() < DEPTH_MAX {
            let parent = match self.session.attr(NamespaceOp::Parent { gfid: at }) {
                Ok(parent) => parent.gfid,
                // Removed meanwhile, or of no tree that a mount shows.
                Err(ClientError::Posix(_)) => return Ok(PathBuf::from("(removed)")),
                Err(error) => return Err(error),
            };
            let Some(name) = self.name_of(parent, at)? else {
                return Ok(PathBuf::from("(moved)"));
            };
            names.push(OsString::from_vec(name));
            at = parent;
        }
        Ok(std::iter::once(OsString::from("/")).chain(names.into_iter().rev()).collect())
    }

    fn name_of(&mut self, parent: Gfid, child: Gfid) -> Result<Option<Vec<u8>>, ClientError> {
        if !self.known.contains_key(&parent) {
            let names = self.directories_in(parent)?;
            self.known.insert(parent, names);
        }
        Ok(self.known[&parent].get(&child).cloned())
    }

    fn directories_in(&self, parent: Gfid) -> Result<HashMap<Gfid, Vec<u8>>, ClientError> {
        let (mut names, mut after) = (HashMap::new(), Vec::new());
        loop {
            let op = NamespaceOp::ReadDir { gfid: parent, after, limit: LIST_PAGE };
            let Reply::Entries { entries, end } = self.session.ask(op)? else {
                return Err(ClientError::Protocol("no entries of a directory".to_owned()));
            };
            let Some(last) = entries.last() else { return Ok(names) };
            after = last.name.clone();
            let directories =
                entries.into_iter().filter(|entry| entry.attr.kind == FileKind::Directory);
            names.extend(directories.map(|entry| (entry.attr.gfid, entry.name)));
            if end {
                return Ok(names);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(parse_bytes("10GiB"), Ok(10 << 30));
        assert_eq!(parse_files("9223372036854775808"), Ok(1 << 63));
        assert_eq!((parse_bytes("none"), parse_files("none")), (Ok(0), Ok(0)));
        for bad in ["0", "-1", "", "1.5"] {
            assert!(parse_bytes(bad).is_err() && parse_files(bad).is_err(), "{bad}");
        }
        assert!(parse_files("1K").is_err());
    }

    #[test]
    fn what_is_over_is_said() {
        let quota = Quota {
            number: 1,
            root: Gfid::ROOT,
            max_bytes: 1024,
            max_files: 0,
            bytes: 1025,
            files: 3,
            promised: 0,
            counting: false,
        };
        let [path, _, _, files, max_files, state] = row("/a".to_owned(), &quota);
        assert_eq!(
            (path, files, max_files, state),
            ("/a".into(), "3".into(), "none".into(), "over".into())
        );
    }
}
