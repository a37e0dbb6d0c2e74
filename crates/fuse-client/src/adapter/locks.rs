//! Requests about locks: byte ranges (fcntl), and whole files (flock).
//!
//! Both are byte-range locks of the metadata service. flock and fcntl do not see each other, so a
//! lock of flock is one of [`FLOCK_RANGE`], where no offset lies. Whoever waits is looked at a few
//! times a second: a signal that it will act on ends the wait with EINTR.

use super::Adapter;
use super::callers::{self, pending, signals};
use super::times::RequestKind;
use crate::convert::{caller, errno};
use fuser::{Errno, LockOwner, ReplyEmpty, ReplyLock, Request};
use protocol::Gfid;
use protocol::lock::{self, ByteRange, RangeLock};
use protocol::namespace::LeaseMode;

/// The end of a range without an end, in the kernel's requests: the largest `off_t`.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// What a lock of flock(2) covers: bytes beyond any `off_t`.
const FLOCK_RANGE: ByteRange = ByteRange { start: OFFSET_MAX + 1, last: u64::MAX };
/// Signals that stop and continue a process: a wait goes on over them.
const JOB_SIGNALS: [i32; 5] =
    [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT];

/// A lock as it comes from the kernel.
pub struct KernelLock {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub last: u64,
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub kind: i32,
    /// Who asks.
    pub pid: u32,
    /// It is one of flock(2).
    pub is_flock: bool,
}

impl KernelLock {
    fn range(&self) -> ByteRange {
        if self.is_flock {
            return FLOCK_RANGE;
        }
        ByteRange { start: self.start.min(OFFSET_MAX), last: self.last.min(OFFSET_MAX) }
    }

    /// `None` for an unlock.
    fn lock(&self) -> Option<RangeLock> {
        let mode = match self.kind {
            libc::F_WRLCK => LeaseMode::Write,
            libc::F_RDLCK => LeaseMode::Read,
            _ => return None,
        };
        Some(RangeLock { range: self.range(), mode, pid: self.pid })
    }
}

/// Does a signal wait for the thread that it will act on?
fn acts_on_signal(status: &str) -> bool {
    let job = JOB_SIGNALS.iter().fold(0u64, |mask, signal| mask | 1 << (signal - 1));
    let passed_over = signals(status, "SigBlk:") | signals(status, "SigIgn:") | job;
    pending(status) & !passed_over != 0
}

/// Is the thread gone, or called away by a signal?
fn is_called_away(thread: u32) -> bool {
    callers::is_so(thread, acts_on_signal)
}

impl Adapter {
    pub(super) fn do_getlk(
        &self,
        req: &Request,
        file: Gfid,
        owner: LockOwner,
        wanted: &KernelLock,
        reply: ReplyLock,
    ) {
        let Some(lock) = wanted.lock() else { return reply.error(Errno::EINVAL) };
        let caller = caller(req);
        self.run(
            req,
            RequestKind::GetLock,
            (file, 0),
            reply,
            move |fs| async move { fs.test_lock(file, lock::LockOwner(owner.0), lock, caller).await },
            move |reply, held| match held {
                None => reply.locked(lock.range.start, lock.range.last.min(OFFSET_MAX), libc::F_UNLCK, 0),
                Some(held) => {
                    let kind = if held.mode == LeaseMode::Write { libc::F_WRLCK } else { libc::F_RDLCK };
                    reply.locked(held.range.start, held.range.last.min(OFFSET_MAX), kind, held.pid);
                }
            },
        );
    }

    pub(super) fn do_setlk(
        &self,
        req: &Request,
        file: Gfid,
        owner: LockOwner,
        wanted: &KernelLock,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let (caller, thread, owner) = (caller(req), req.pid(), lock::LockOwner(owner.0));
        let (lock, range) = (wanted.lock(), wanted.range());
        let Some(lock) = lock else {
            return self.run_empty(req, RequestKind::Unlock, file, reply, move |fs| async move {
                fs.unlock(file, owner, range, caller).await
            });
        };
        if !waits {
            return self.run_empty(req, RequestKind::SetLock, file, reply, move |fs| async move {
                fs.set_lock(file, owner, lock, caller).await
            });
        }
        tracing::trace!(%file, "setlkw");
        self.fs.spawn_waiting(file, move |fs| async move {
            match fs.wait_lock(file, owner, lock, || is_called_away(thread), caller).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_that_will_be_acted_on_end_a_wait() {
        let status = |pending: &str, shared: &str, blocked: &str, ignored: &str| {
            format!(
                "Name:\tsh\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n"
            )
        };
        let none = "0000000000000000";
        assert!(!acts_on_signal(&status(none, none, none, none)));
        assert!(acts_on_signal(&status("0000000000000100", none, none, none)), "SIGKILL");
        assert!(acts_on_signal(&status(none, "0000000000004000", none, none)), "SIGTERM");
        assert!(
            !acts_on_signal(&status(none, "0000000000004000", "0000000000004000", none)),
            "blocked"
        );
        assert!(
            !acts_on_signal(&status(none, "0000000000004000", none, "0000000000004000")),
            "ignored"
        );
        assert!(
            !acts_on_signal(&status(none, "0000000000060000", none, none)),
            "stopped and continued"
        );
    }

    #[test]
    fn a_range_without_an_end_has_none_that_an_offset_can_reach() {
        let lock =
            KernelLock { start: 5, last: OFFSET_MAX, kind: libc::F_WRLCK, pid: 1, is_flock: false };
        assert_eq!(
            lock.lock().map(|lock| lock.range),
            Some(ByteRange { start: 5, last: OFFSET_MAX })
        );
        let whole = KernelLock { is_flock: true, ..lock };
        assert!(
            !whole.range().overlaps(ByteRange { start: 0, last: OFFSET_MAX }),
            "flock and fcntl do not meet"
        );
        assert!(KernelLock { kind: libc::F_UNLCK, ..whole }.lock().is_none());
    }
}
