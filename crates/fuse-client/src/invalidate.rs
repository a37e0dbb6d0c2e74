//! Dropping, and clearing, what the kernel has cached of a file.
//!
//! Contract: threads of its own do it, never a worker: the kernel waits for pages that are locked
//! by requests, and requests are answered by workers. There are some, so that a file with such a
//! page does not keep the others' pages.

use client::fs::{ATTRIBUTES, Dropping, KernelCache};
use crossbeam::channel;
use fuser::{INodeNo, Notifier};
use messenger::sync::{Sender, oneshot};
use protocol::Gfid;
use std::io;
use std::ops::Range;

/// Threads: more than files of which a page stays locked at one time, mostly; an idle one costs
/// nothing.
const THREADS: usize = 8;

/// A part of a file, what is to be done with it, and who waits for that.
struct Job {
    gfid: Gfid,
    part: Range<u64>,
    work: Work,
    done: Sender<()>,
}

/// What is done with cached pages.
#[derive(Clone, Copy)]
enum Work {
    /// They are dropped, once what was stored to them is written back.
    Drop,
    /// They are filled with zeros.
    Clear,
}

/// Most bytes cleared at once: those of a page.
const CLEAR_BYTES_MAX: usize = 64 << 10;
static ZEROS: [u8; CLEAR_BYTES_MAX] = [0; CLEAR_BYTES_MAX];

/// The kernel's cache of this mount.
pub struct KernelPages {
    jobs: channel::Sender<Job>,
}

/// What waits to be dropped; to be started once the session exists.
pub struct Jobs(channel::Receiver<Job>);

/// The cache, and its jobs.
pub fn kernel_pages() -> (KernelPages, Jobs) {
    let (jobs, waiting) = channel::unbounded();
    (KernelPages { jobs }, Jobs(waiting))
}

impl KernelCache for KernelPages {
    fn invalidate(&self, gfid: Gfid, part: Range<u64>) -> Dropping {
        self.begin(gfid, part, Work::Drop)
    }

    fn clear(&self, gfid: Gfid, part: Range<u64>) -> Dropping {
        self.begin(gfid, part, Work::Clear)
    }
}

impl KernelPages {
    fn begin(&self, gfid: Gfid, part: Range<u64>, work: Work) -> Dropping {
        let (done, receiver) = oneshot();
        // Without the threads there is no mount, and nothing is cached.
        drop(self.jobs.send(Job { gfid, part, work, done }));
        Box::pin(async move { receiver.await.unwrap_or(()) })
    }
}

impl Jobs {
    /// Starts the threads; they end with the last sender.
    ///
    /// # Errors
    /// That a thread cannot be started.
    pub fn start(self, notifier: &Notifier) -> io::Result<()> {
        for number in 0..THREADS {
            let (jobs, notifier) = (self.0.clone(), notifier.clone());
            let run = move || jobs.iter().for_each(|job| carry_out(&notifier, job));
            std::thread::Builder::new().name(format!("fuse-inval-{number}")).spawn(run)?;
        }
        Ok(())
    }
}

fn carry_out(notifier: &Notifier, Job { gfid, part, work, done }: Job) {
    let file = INodeNo(gfid.unique());
    let result = match work {
        Work::Drop => {
            let (offset, len) = for_kernel(&part);
            notifier.inval_inode(file, offset, len)
        }
        Work::Clear => {
            let len =
                usize::try_from(part.end - part.start).unwrap_or(usize::MAX).min(CLEAR_BYTES_MAX);
            notifier.store(file, part.start, &ZEROS[..len])
        }
    };
    if let Err(error) = result {
        tracing::debug!(%gfid, %error, "cannot change cached pages");
    }
    if done.send(()).is_err() {
        tracing::trace!(%gfid, "who asked has given up waiting");
    }
}

/// Offset and length as the kernel takes them: no length means up to the end, and an offset below
/// zero attributes only.
fn for_kernel(part: &Range<u64>) -> (i64, i64) {
    if *part == ATTRIBUTES {
        return (-1, 0);
    }
    let end = i64::try_from(part.end).unwrap_or(0);
    let offset = i64::try_from(part.start).unwrap_or(i64::MAX);
    (offset, (end - offset).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::fs::WHOLE_FILE;

    #[test]
    fn parts_are_told_as_the_kernel_takes_them() {
        assert_eq!(for_kernel(&WHOLE_FILE), (0, 0));
        assert_eq!(for_kernel(&ATTRIBUTES), (-1, 0));
        assert_eq!(for_kernel(&(4096..u64::MAX)), (4096, 0));
        assert_eq!(for_kernel(&(4096..12288)), (4096, 8192));
    }
}
