//! `trefoil trash enable | disable | ls | restore | empty`: removed files that are kept for a time.
//!
//! Paths are those inside the file system: they begin with `/`, whatever a mount shows it as. Who
//! is not root is shown and may restore files of his own, to directories that their owner, group
//! and mode let him write.

use crate::error::OperatorError;
use crate::{Cluster, confirm, output, table};
use clap::Subcommand;
use client::{Client, ClientConfig, ClientError, fs};
use protocol::Gfid;
use protocol::namespace::{
    Attr, Caller, DirEntry, FileKind, NamespaceOp, RenameMode, Reply, VOLUMES,
};
use protocol::trash::{
    TRASH, TRASH_KEEP, TRASH_KEEP_SECONDS_MAX, TRASH_ORIGIN, TrashEntry, TrashOrigin,
};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Entries of a directory asked for at once.
const LIST_PAGE: u32 = 4096;
/// Directories above each other that a path has, at most: in 4096 bytes are no more.
const DEPTH_MAX: usize = 2048;
/// Digits of a file's number by which it can be named.
const ID_DIGITS: usize = 16;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

/// What to do with the trash.
#[derive(Subcommand)]
pub enum TrashCommand {
    /// Keeps what is removed below a directory from now on
    Enable {
        /// The directory, from the root of the file system: /home
        path: PathBuf,
        /// For how long: 90s, 30m, 12h, 7d; 0 for what is below to be removed at once
        #[arg(long, default_value = "7d", value_parser = parse_keep)]
        keep: u64,
    },
    /// Keeps it no longer; what is in the trash stays there for its time
    Disable {
        /// The directory
        path: PathBuf,
    },
    /// Lists what is in the trash
    Ls {
        /// Only what was this, or below it
        path: Option<PathBuf>,
    },
    /// Gives a file its name again, or all files that were below a directory
    Restore {
        /// Where it was, or its id as `ls` shows it; of several at one place the last removed
        what: PathBuf,
        /// A path that it gets instead
        #[arg(long)]
        to: Option<PathBuf>,
    },
    /// Removes for good what is in the trash
    Empty {
        /// Only what was this, or below it
        path: Option<PathBuf>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

/// A time to keep files, in seconds.
fn parse_keep(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "a time is a number, as 7d".to_owned())?;
    let seconds = match unit {
        "" if number == 0 => 1,
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("a time has a unit: s, m, h or d".to_owned()),
    };
    let keep = number.checked_mul(seconds).filter(|keep| *keep <= TRASH_KEEP_SECONDS_MAX);
    keep.ok_or_else(|| "at most 3650d".to_owned())
}

/// Does it.
///
/// # Errors
/// No such directory or file, a name that is taken, no right to, the cluster.
pub fn run(cluster: &Cluster, command: TrashCommand) -> Result<(), OperatorError> {
    // A cluster that is not there is said at once.
    cluster.status()?;
    let name = format!("trash command {}", std::process::id());
    let config =
        ClientConfig { timeout: cluster.timeout, ..ClientConfig::new(&cluster.monitor, name) };
    let client = Client::connect(config).map_err(|error| of_client(error, ""))?;
    let session = Session { client, user: User::this() };
    let done = match command {
        TrashCommand::Enable { path, keep } => session.enable(&path, keep),
        TrashCommand::Disable { path } => session.disable(&path),
        TrashCommand::Ls { path } => session.ls(path.as_deref()),
        TrashCommand::Restore { what, to } => session.restore(&what, to.as_deref()),
        TrashCommand::Empty { path, yes } => session.empty(path.as_deref(), yes),
    };
    done.and(session.client.close().map_err(|error| of_client(error, "")))
}

fn of_client(error: ClientError, what: &str) -> OperatorError {
    match error {
        ClientError::Posix(ENOENT) => {
            OperatorError::Refused(format!("{what}: there is no such file or directory"))
        }
        ClientError::Posix(EEXIST) => {
            OperatorError::Refused(format!("{what}: there is such a file already; see --to"))
        }
        other => OperatorError::of_client(other, what),
    }
}

fn refused(path: &Path, why: &str) -> OperatorError {
    OperatorError::Refused(format!("{}: {why}", path.display()))
}

/// Who runs the command.
struct User {
    uid: u32,
    groups: Vec<u32>,
}

impl User {
    fn this() -> Self {
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()).collect();
        groups.push(rustix::process::getegid().as_raw());
        Self { uid: rustix::process::geteuid().as_raw(), groups }
    }

    fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// May he see and restore what somebody owns?
    fn may_have(&self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }

    /// May he give names in a directory?
    fn may_write(&self, directory: &Attr) -> bool {
        const WRITE_AND_SEARCH: u32 = 3;
        let shift = match () {
            () if self.uid == directory.uid => 6,
            () if self.groups.contains(&directory.gid) => 3,
            () => 0,
        };
        self.is_root() || directory.mode >> shift & WRITE_AND_SEARCH == WRITE_AND_SEARCH
    }

    fn must_be_root(&self) -> Result<(), OperatorError> {
        if self.is_root() {
            return Ok(());
        }
        Err(OperatorError::Refused("only root may do this".to_owned()))
    }
}

/// A file in the trash.
struct Removed {
    /// Of its entry.
    name: Vec<u8>,
    entry: TrashEntry,
    attr: Attr,
    removed: i64,
    /// Where it was; not from the root on if a directory above it is not known any more.
    path: PathBuf,
}

impl Removed {
    fn id(&self) -> String {
        let digits = format!("{:032x}", self.entry.gfid.get());
        digits[digits.len() - ID_DIGITS..].to_owned()
    }

    fn row(&self, now: i64) -> [String; 6] {
        let left = u64::try_from(self.entry.until.saturating_sub(now)).unwrap_or(0);
        // Without the nanoseconds, which are none.
        let removed = table::time(self.removed, 0).replacen(".000000000", "", 1);
        let size = table::bytes(self.attr.size);
        let (owner, path) = (self.attr.uid.to_string(), self.path.display().to_string());
        [self.id(), removed, table::period(left), owner, size, path]
    }
}

/// A session with the metadata service.
struct Session {
    client: Client,
    user: User,
}

impl Session {
    fn ask(&self, op: NamespaceOp) -> Result<Reply, ClientError> {
        let caller = Caller { uid: 0, gid: 0, now: fs::now() };
        self.client.block_on(self.client.namespace(op, caller))
    }

    fn attr(&self, op: NamespaceOp) -> Result<Attr, ClientError> {
        match self.ask(op)? {
            Reply::Attr(attr) => Ok(attr),
            other => Err(ClientError::Protocol(format!("{other:?} where attributes were asked"))),
        }
    }

    fn origin(&self, op: NamespaceOp) -> Result<TrashOrigin, ClientError> {
        match self.ask(op)? {
            Reply::Bytes(bytes) => protocol::decode("origin", &bytes)
                .map_err(|error| ClientError::Protocol(error.to_string())),
            other => Err(ClientError::Protocol(format!("{other:?} where bytes were asked"))),
        }
    }

    /// Before names or attributes change: mounts that may have cached them give way.
    fn will_change(&self) -> Result<(), OperatorError> {
        let caller = Caller { uid: 0, gid: 0, now: fs::now() };
        self.client.block_on(self.client.mount(caller)).map_err(|error| of_client(error, ""))
    }

    fn entries(&self, gfid: Gfid) -> Result<Vec<DirEntry>, ClientError> {
        let (mut all, mut after) = (Vec::new(), Vec::new());
        loop {
            let op = NamespaceOp::ReadDir { gfid, after, limit: LIST_PAGE };
            let Reply::Entries { entries, end } = self.ask(op)? else {
                return Err(ClientError::Protocol("no entries of a directory".to_owned()));
            };
            all.extend(entries);
            match all.last() {
                Some(last) if !end => after = last.name.clone(),
                _ => return Ok(all),
            }
        }
    }

    /// The file or directory of a path, if all above it is there; symbolic links are not followed.
    fn find(&self, path: &Path) -> Result<Attr, OperatorError> {
        let failed = |error| of_client(error, &path.display().to_string());
        let mut found = self.attr(NamespaceOp::GetAttr { gfid: Gfid::ROOT }).map_err(failed)?;
        for name in names(path)? {
            let lookup = NamespaceOp::Lookup { parent: found.gfid, name };
            found = self.attr(lookup).map_err(failed)?;
        }
        Ok(found)
    }

    fn enable(&self, path: &Path, keep: u64) -> Result<(), OperatorError> {
        self.user.must_be_root()?;
        let attr = self.find(path)?;
        if attr.kind != FileKind::Directory {
            return Err(refused(path, "not a directory"));
        }
        self.will_change()?;
        let (name, value) = (TRASH_KEEP.to_vec(), keep.to_string().into_bytes());
        let (gfid, create) = (attr.gfid, None);
        let op = NamespaceOp::SetXattr { gfid, name, value, create, kill_sgid: false };
        let shown = path.display();
        self.ask(op).map_err(|error| of_client(error, &shown.to_string()))?;
        output::line(&match keep {
            0 => format!("what is removed below {shown} is gone at once"),
            _ => format!("what is removed below {shown} is kept for {}", table::period(keep)),
        })
    }

    fn disable(&self, path: &Path) -> Result<(), OperatorError> {
        self.user.must_be_root()?;
        let gfid = self.find(path)?.gfid;
        self.will_change()?;
        let op = NamespaceOp::RemoveXattr { gfid, name: TRASH_KEEP.to_vec() };
        match self.ask(op) {
            Ok(_) => Ok(()),
            Err(ClientError::Posix(_)) => Err(refused(path, "the trash is not on here")),
            Err(error) => Err(of_client(error, "")),
        }
    }

    /// The hidden directory, and what is in it of this user, at this path or below.
    fn removed(&self, below: Option<&Path>) -> Result<(Gfid, Vec<Removed>), OperatorError> {
        let failed = |error| of_client(error, "");
        let root = self.attr(NamespaceOp::BlobRoot { pool: TRASH }).map_err(failed)?.gfid;
        let entries = self.entries(root).map_err(failed)?;
        let mut paths = Paths { session: self, gone: HashMap::new(), known: HashMap::new() };
        for entry in entries.iter().filter(|entry| entry.attr.kind == FileKind::Symlink) {
            if let Some(of) = TrashEntry::of_name(&entry.name) {
                let gfid = entry.attr.gfid;
                let origin = self.origin(NamespaceOp::ReadLink { gfid }).map_err(failed)?;
                paths.gone.insert(of.gfid, origin);
            }
        }
        let mut all = Vec::new();
        for DirEntry { name, attr, .. } in entries {
            let Some(entry) = TrashEntry::of_name(&name) else { continue };
            if attr.kind != FileKind::Regular || !self.user.may_have(&attr) {
                continue;
            }
            let op = NamespaceOp::GetXattr { gfid: attr.gfid, name: TRASH_ORIGIN.to_vec() };
            let origin = self.origin(op).map_err(failed)?;
            let directory = paths.path(origin.parent).map_err(failed)?;
            let path = directory.join(OsString::from_vec(origin.name));
            if below.is_none_or(|below| path.starts_with(below)) {
                all.push(Removed { name, entry, attr, removed: origin.removed, path });
            }
        }
        Ok((root, all))
    }

    fn ls(&self, below: Option<&Path>) -> Result<(), OperatorError> {
        let (_, all) = self.removed(below)?;
        let now = fs::now().secs;
        let head = ["id", "removed", "goes in", "owner", "size", "path"];
        output::text(&table::columns(head, all.iter().map(|removed| removed.row(now))))?;
        let bytes = all.iter().fold(0u64, |sum, removed| sum.saturating_add(removed.attr.size));
        output::line(&format!("{} files, {}", all.len(), table::bytes(bytes)))
    }

    fn restore(&self, what: &Path, to: Option<&Path>) -> Result<(), OperatorError> {
        let (root, all) = self.removed(None)?;
        let is_it = |removed: &&Removed| {
            removed.path == what || what.as_os_str().as_bytes() == removed.id().as_bytes()
        };
        let exact = all.iter().filter(is_it).max_by_key(|removed| removed.removed);
        let wanted = match exact {
            Some(one) => vec![(one, to.unwrap_or(&one.path).to_owned())],
            None => below(&all, what, to),
        };
        if wanted.is_empty() {
            return Err(refused(what, "nothing in the trash was there"));
        }
        self.will_change()?;
        for (removed, path) in wanted {
            self.restore_one(root, removed, &path)?;
            output::line(&format!("restored {}", path.display()))?;
        }
        Ok(())
    }

    fn restore_one(&self, root: Gfid, removed: &Removed, to: &Path) -> Result<(), OperatorError> {
        let shown = to.display().to_string();
        let mut components = names(to)?;
        let Some(new_name) = components.pop() else { return Err(refused(to, "not a file's")) };
        let failed = |error| of_client(error, &shown);
        let mut directory = self.attr(NamespaceOp::GetAttr { gfid: Gfid::ROOT }).map_err(failed)?;
        for name in components {
            directory = self.directory(&directory, name, to)?;
        }
        if !self.user.may_write(&directory) {
            return Err(refused(to, "you may not write its directory"));
        }
        let op = NamespaceOp::Rename {
            parent: root,
            name: removed.name.clone(),
            new_parent: directory.gfid,
            new_name,
            mode: RenameMode::NoReplace,
        };
        self.ask(op).map(drop).map_err(failed)
    }

    /// A directory by its name in another one; it is made if it is missing.
    fn directory(&self, above: &Attr, name: Vec<u8>, to: &Path) -> Result<Attr, OperatorError> {
        let failed = |error| of_client(error, &to.display().to_string());
        match self.attr(NamespaceOp::Lookup { parent: above.gfid, name: name.clone() }) {
            Err(ClientError::Posix(ENOENT)) => {}
            found => return found.map_err(failed),
        }
        if !self.user.may_write(above) {
            return Err(refused(to, "you may not make its directory"));
        }
        let gid = self.user.groups.last().copied().unwrap_or(0);
        let caller = Caller { uid: self.user.uid, gid, now: fs::now() };
        let op = NamespaceOp::Create {
            parent: above.gfid,
            name,
            kind: FileKind::Directory,
            mode: 0o755,
            umask: 0,
            rdev: 0,
            target: Vec::new(),
            // A directory has no data.
            pool: VOLUMES,
            open: None,
        };
        match self.client.block_on(self.client.namespace(op, caller)).map_err(failed)? {
            Reply::Attr(attr) => Ok(attr),
            other => Err(failed(ClientError::Protocol(format!("{other:?} to a mkdir")))),
        }
    }

    fn empty(&self, below: Option<&Path>, yes: bool) -> Result<(), OperatorError> {
        self.user.must_be_root()?;
        let (root, all) = self.removed(below)?;
        if !yes {
            confirm::ask(&format!("{} files go for good.", all.len()))?;
        }
        let mut doomed: Vec<Vec<u8>> = all.into_iter().map(|removed| removed.name).collect();
        if below.is_none() {
            // Directories that are remembered, too.
            let entries = self.entries(root).map_err(|error| of_client(error, ""))?;
            doomed = entries.into_iter().map(|entry| entry.name).collect();
        }
        for name in doomed {
            match self.ask(NamespaceOp::Unlink { parent: root, name, gives: None }) {
                // Its time was over.
                Ok(_) | Err(ClientError::Posix(ENOENT)) => {}
                Err(error) => return Err(of_client(error, "")),
            }
        }
        Ok(())
    }
}

/// What was below a directory, with the paths that it gets; of several at one place the last
/// removed.
fn below<'a>(
    all: &'a [Removed],
    directory: &Path,
    to: Option<&Path>,
) -> Vec<(&'a Removed, PathBuf)> {
    let mut last: HashMap<&Path, &Removed> = HashMap::new();
    for removed in all {
        let earlier = last.get(removed.path.as_path()).map(|earlier| earlier.removed);
        if removed.path.starts_with(directory) && earlier.is_none_or(|time| time <= removed.removed)
        {
            last.insert(&removed.path, removed);
        }
    }
    let mut wanted: Vec<_> = last
        .into_iter()
        .filter_map(|(path, removed)| {
            let rest = path.strip_prefix(directory).ok()?;
            Some((removed, to.unwrap_or(directory).join(rest)))
        })
        .collect();
    wanted.sort_by(|a, b| a.1.cmp(&b.1));
    wanted
}

/// The names in a path from the root of the file system on.
fn names(path: &Path) -> Result<Vec<Vec<u8>>, OperatorError> {
    let mut components = path.components();
    if components.next() != Some(Component::RootDir) {
        return Err(refused(path, "a path begins at the root of the file system, with /"));
    }
    let name = |component| match component {
        Component::Normal(name) => Ok(name.as_bytes().to_vec()),
        _ => Err(refused(path, "a path without `..`")),
    };
    components.map(name).collect()
}

/// Paths of directories, also of removed ones. Each directory above is listed once.
struct Paths<'a> {
    session: &'a Session,
    /// Those that were removed, and where they were.
    gone: HashMap<Gfid, TrashOrigin>,
    known: HashMap<Gfid, HashMap<Gfid, Vec<u8>>>,
}

impl Paths<'_> {
    fn path(&mut self, directory: Gfid) -> Result<PathBuf, ClientError> {
        let (mut names, mut at) = (Vec::new(), directory);
        let mut top = OsString::from("/");
        while at != Gfid::ROOT && names.len() < DEPTH_MAX {
            let (name, parent) = match self.gone.get(&at) {
                Some(origin) => (Some(origin.name.clone()), origin.parent),
                None => match self.session.attr(NamespaceOp::Parent { gfid: at }) {
                    Ok(parent) => (self.name_of(parent.gfid, at)?, parent.gfid),
                    Err(ClientError::Posix(_)) => (None, Gfid::ROOT),
                    Err(error) => return Err(error),
                },
            };
            let Some(name) = name else {
                top = OsString::from("(removed)");
                break;
            };
            names.push(OsString::from_vec(name));
            at = parent;
        }
        Ok(std::iter::once(top).chain(names.into_iter().rev()).collect())
    }

    fn name_of(&mut self, parent: Gfid, child: Gfid) -> Result<Option<Vec<u8>>, ClientError> {
        if !self.known.contains_key(&parent) {
            let entries = self.session.entries(parent)?;
            let directories = entries.into_iter().filter(|e| e.attr.kind == FileKind::Directory);
            let names = directories.map(|entry| (entry.attr.gfid, entry.name)).collect();
            self.known.insert(parent, names);
        }
        Ok(self.known[&parent].get(&child).cloned())
    }
}

#[cfg(test)]
mod tests;
