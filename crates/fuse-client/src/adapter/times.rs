//! The kinds of requests, and how long each takes.

use messenger::{Layer, Operation, OperationTable};

/// Declares the kinds with their names.
macro_rules! kinds {
    ($($kind:ident = $name:literal,)*) => {
        /// A kind of request.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum RequestKind { $($kind,)* }

        impl RequestKind {
            const NAMES: &[&str] = &[$($name,)*];

            /// As `fuse(4)` calls it.
            pub fn name(self) -> &'static str {
                match self { $(RequestKind::$kind => $name,)* }
            }

            /// May it be given up when its caller is killed? Not what closes or makes files: nobody
            /// else would finish it.
            pub fn may_be_given_up(self) -> bool {
                !matches!(
                    self,
                    RequestKind::Create
                        | RequestKind::TmpFile
                        | RequestKind::Flush
                        | RequestKind::Release
                        | RequestKind::Unlock
                )
            }
        }
    };
}

kinds! {
    Copy = "copy_file_range",
    Create = "create",
    Fallocate = "fallocate",
    Flush = "flush",
    Fsync = "fsync",
    FsyncDir = "fsyncdir",
    GetAttr = "getattr",
    GetLock = "getlk",
    GetXattr = "getxattr",
    Ioctl = "ioctl",
    Link = "link",
    ListXattr = "listxattr",
    Lookup = "lookup",
    Lseek = "lseek",
    MkDir = "mkdir",
    MkNod = "mknod",
    Open = "open",
    OpenDir = "opendir",
    Read = "read",
    ReadDir = "readdir",
    ReadDirPlus = "readdirplus",
    ReadLink = "readlink",
    Release = "release",
    ReleaseDir = "releasedir",
    RemoveXattr = "removexattr",
    Rename = "rename",
    RmDir = "rmdir",
    SetAttr = "setattr",
    SetLock = "setlk",
    SetXattr = "setxattr",
    StatFs = "statfs",
    Symlink = "symlink",
    TmpFile = "tmpfile",
    Unlink = "unlink",
    Unlock = "unlock",
    Write = "write",
}

/// How long requests take, by kind. A wait for a lock (`F_SETLKW`) is none of these: it takes as
/// long as another program likes.
#[derive(Debug)]
pub struct RequestTimes(Vec<Operation>);

impl RequestTimes {
    /// Listed in this table.
    pub fn new(table: &OperationTable) -> Self {
        Self(RequestKind::NAMES.iter().map(|name| table.operation(Layer::Fuse, name)).collect())
    }

    /// Those of a kind.
    pub fn of(&self, kind: RequestKind) -> &Operation {
        &self.0[kind as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_timed_under_its_name() {
        let table = OperationTable::default();
        let times = RequestTimes::new(&table);
        for kind in [RequestKind::Copy, RequestKind::Read, RequestKind::Write] {
            drop(times.of(kind).stopwatch());
            let stats = table.stats();
            let row = stats.iter().find(|row| row.name == kind.name());
            assert_eq!(
                row.map(|row| (row.layer, row.times.calls())),
                Some((Layer::Fuse, 1)),
                "{kind:?}"
            );
        }
    }
}
