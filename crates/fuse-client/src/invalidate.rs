//! Dropping what the kernel has cached of a file.
//!
//! Contract: one thread does it, never a worker: the kernel waits for pages that are locked by requests, and requests
//! are answered by workers.

use client::fs::KernelCache;
use fuser::{INodeNo, Notifier};
use messenger::sync::{Sender, oneshot};
use protocol::Gfid;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::mpsc;

/// A file, and who waits for it.
type Job = (Gfid, Sender<()>);

/// The kernel's cache of this mount.
pub struct KernelPages {
    jobs: mpsc::Sender<Job>,
}

/// What waits to be dropped; to be started once the session exists.
pub struct Jobs(mpsc::Receiver<Job>);

/// The cache, and its jobs.
pub fn kernel_pages() -> (KernelPages, Jobs) {
    let (jobs, waiting) = mpsc::channel();
    (KernelPages { jobs }, Jobs(waiting))
}

impl KernelCache for KernelPages {
    fn invalidate(&self, gfid: Gfid) -> Pin<Box<dyn Future<Output = ()>>> {
        let (sender, receiver) = oneshot();
        // Without the thread there is no mount, and nothing is cached.
        drop(self.jobs.send((gfid, sender)));
        Box::pin(async move { receiver.await.unwrap_or(()) })
    }
}

impl Jobs {
    /// Starts the thread; it ends with the last sender.
    ///
    /// # Errors
    /// That a thread cannot be started.
    pub fn start(self, notifier: Notifier) -> io::Result<()> {
        let run = move || {
            for (gfid, done) in self.0 {
                if let Err(error) = notifier.inval_inode(INodeNo(gfid.unique()), 0, 0) {
                    tracing::debug!(%gfid, %error, "cannot drop cached pages");
                }
                if done.send(()).is_err() {
                    tracing::trace!(%gfid, "who asked has given up waiting");
                }
            }
        };
        std::thread::Builder::new().name("fuse-inval".into()).spawn(run).map(drop)
    }
}
