//! Quotas of directories, as the file system has to do with them: room for files that grow, and
//! what quotas say to programs, as extended attributes and in statfs.
//!
//! Contract: a file below a directory with a quota grows only as far as the service has promised
//! room for ([`super::inode::InodeState::lacks_room`]), before anything of it is taken. The
//! attributes are in no list of names, as those of other file systems' quotas.

use super::errno::{EINVAL, ENODATA, EPERM, posix};
use super::inode::Need;
use super::lease::unexpected;
use super::table::Op;
use super::{Backend, FsSize, LocalFs, Result};
use crate::error::ClientError;
use protocol::namespace::{Caller, NamespaceOp, Quota, QuotaChange, Reply};
use protocol::{Epoch, Gfid};

/// Begins the names of attributes that are here only.
const PREFIX: &[u8] = b"trefoil.";
/// Limit of bytes, in digits.
const MAX_BYTES: &[u8] = b"trefoil.quota.max_bytes";
/// Limit of files and directories.
const MAX_FILES: &[u8] = b"trefoil.quota.max_files";
/// Bytes of all files below a directory with a quota.
const BYTES: &[u8] = b"trefoil.dir.rbytes";
/// Files and directories below it, and itself.
const FILES: &[u8] = b"trefoil.dir.rfiles";

/// Is the attribute about quotas, or one that nobody may give a file? Who may set it is for whoever
/// knows the caller to decide: it is set as user 0.
pub fn is_quota_xattr(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// A limit as an attribute has it; 0: none.
fn parse_limit(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl FsSize {
    /// What of it a quota leaves.
    pub(super) fn within(self, quota: &Quota) -> FsSize {
        let mut size = self;
        if quota.max_bytes > 0 {
            let used = u64::try_from(quota.bytes).unwrap_or(u64::MAX);
            size.free_bytes = size.free_bytes.min(quota.max_bytes.saturating_sub(used));
            size.total_bytes = size.total_bytes.min(quota.max_bytes);
        }
        if quota.max_files > 0 {
            let left = quota.max_files.saturating_sub(quota.files);
            size.files = size.files.min(quota.files);
            size.free_files = Some(size.free_files.map_or(left, |free| free.min(left)));
        }
        size
    }
}

impl<B: Backend> LocalFs<B> {
    /// The quotas that a file or directory counts for, the innermost first.
    ///
    /// # Errors
    /// ESTALE.
    pub async fn quotas(&self, gfid: Gfid, caller: Caller) -> Result<Vec<Quota>> {
        match self.ask(NamespaceOp::GetQuota { gfid }, caller).await? {
            Reply::Quotas(quotas) => Ok(quotas),
            other => Err(unexpected("the question for quotas", &other)),
        }
    }

    /// Changes the quota of a directory.
    ///
    /// # Errors
    /// EPERM for all but user 0, ENOTDIR, ENODATA if there is none and none is set.
    pub async fn set_quota(&self, gfid: Gfid, change: QuotaChange, caller: Caller) -> Result<()> {
        self.ask(NamespaceOp::SetQuota { gfid, change }, caller).await.map(drop)
    }

    pub(super) async fn quota_xattr(
        &self,
        gfid: Gfid,
        name: &[u8],
        caller: Caller,
    ) -> Result<Vec<u8>> {
        let quotas = self.quotas(gfid, caller).await?;
        let Some(own) = quotas.first().filter(|quota| quota.root == gfid) else {
            return posix(ENODATA);
        };
        let limit = |limit: u64| if limit == 0 { posix(ENODATA) } else { Ok(u128::from(limit)) };
        let value = match name {
            MAX_BYTES => limit(own.max_bytes)?,
            MAX_FILES => limit(own.max_files)?,
            BYTES => own.bytes,
            FILES => own.files.into(),
            _ => return posix(ENODATA),
        };
        Ok(value.to_string().into_bytes())
    }

    /// Sets a limit, or takes it away.
    pub(super) async fn set_quota_xattr(
        &self,
        gfid: Gfid,
        name: &[u8],
        value: Option<&[u8]>,
        caller: Caller,
    ) -> Result<()> {
        let limit = match value {
            None => 0,
            Some(value) => parse_limit(value).ok_or(ClientError::Posix(EINVAL))?,
        };
        let change = match name {
            MAX_BYTES => QuotaChange { max_bytes: Some(limit), max_files: None },
            MAX_FILES => QuotaChange { max_bytes: None, max_files: Some(limit) },
            _ => return posix(EPERM),
        };
        self.set_quota(gfid, change, caller).await
    }

    /// Enters a file alone, with room to make it so long.
    pub(super) async fn enter_with_room(
        &self,
        gfid: Gfid,
        size: u64,
        caller: Caller,
    ) -> Result<Op> {
        loop {
            let op = self.enter(gfid, Need::exclusive(), caller).await?;
            match op.inode().with(|state| state.lacks_room(size)) {
                None => return Ok(op),
                Some(size) => self.ask_room(op, size, caller).await?,
            }
        }
    }

    /// Leaves a file and asks for room to make it so long. If the lease is another one by the time
    /// of the answer, that is for nothing.
    ///
    /// # Errors
    /// EDQUOT.
    pub(super) async fn ask_room(&self, op: Op, size: u64, caller: Caller) -> Result<()> {
        let inode = std::sync::Arc::clone(op.inode());
        let token = inode.with(|state| state.token());
        // Others may be asked for their leases meanwhile, and this one with them.
        drop(op);
        match self.ask_once(NamespaceOp::GetRoom { gfid: inode.gfid(), size }, caller).await {
            Ok(Reply::Room(promised)) => {
                inode.change(|state| state.room_promised(token, promised));
                Ok(())
            }
            Ok(other) => Err(unexpected("the question for room", &other)),
            Err(ClientError::Fenced(_)) => self.backend.usable(Epoch::default()).await,
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_digits() {
        assert_eq!(parse_limit(b"10"), Some(10));
        assert_eq!(parse_limit(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"-1", b"+1", b" 1", b"1k", b"18446744073709551616", b"\xff"] {
            assert_eq!(parse_limit(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_least_of_all_quotas_is_shown() {
        let quota = Quota {
            number: 1,
            root: Gfid::ROOT,
            max_bytes: 100,
            max_files: 0,
            bytes: 130,
            files: 7,
            promised: 0,
            counting: false,
        };
        let all = FsSize { total_bytes: 5000, free_bytes: 60, files: 9, free_files: None };
        let over = all.within(&quota);
        assert_eq!((over.total_bytes, over.free_bytes, over.free_files), (100, 0, None));
        let few = Quota { max_bytes: 0, max_files: 10, ..quota };
        let both = over.within(&few).within(&Quota { max_files: 8, ..few });
        assert_eq!((both.total_bytes, both.files, both.free_files), (100, 7, Some(1)));
    }
}
