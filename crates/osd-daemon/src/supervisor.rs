//! Starts a role again whose store has failed, such as for want of space: what it had answered is
//! on disk, and a start finds out what else is.
//!
//! Contract: one thread per role looks whether it still runs. A role that has stopped by itself is
//! stopped for good first, and then started, as often as it takes; a pause lies between attempts,
//! and only the first failure and the success are told. [`Supervisor::stop`] ends both.

use messenger::sync::{ContentionMutex, LockTable};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a role is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Pause between two attempts to start it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A running role.
pub trait Role: Send + 'static {
    /// False once it has stopped by itself.
    fn is_running(&self) -> bool;
    /// Stops it, and waits until its directory and its address are free.
    fn stop(self);
}

/// See the module.
pub struct Supervisor<R: Role> {
    addr: SocketAddr,
    current: Arc<ContentionMutex<Option<R>>>,
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl<R: Role> Supervisor<R> {
    /// Watches a role that runs and is reached at `addr`; `again` starts it anew, at the same
    /// address.
    ///
    /// # Errors
    /// When the thread cannot be made; the role is stopped then.
    pub fn start(
        name: &'static str,
        addr: SocketAddr,
        first: R,
        locks: &LockTable,
        mut again: impl FnMut() -> Result<R, String> + Send + 'static,
    ) -> std::io::Result<Supervisor<R>> {
        let current = Arc::new(ContentionMutex::new(locks, "supervised role", Some(first)));
        let watched = Arc::clone(&current);
        let (stop, stopped) = channel::<()>();
        let watch = move || {
            let is_stopped = |pause| stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
            while !is_stopped(LOOK_EVERY) {
                if watched.lock().as_ref().is_none_or(Role::is_running) {
                    continue;
                }
                let failed = watched.lock().take();
                failed.into_iter().for_each(Role::stop);
                let mut failures = 0u32;
                let started = loop {
                    match again() {
                        Ok(role) => break role,
                        Err(error) if failures == 0 => {
                            tracing::error!(
                                role = name,
                                error,
                                "cannot be started again yet; tried every second"
                            );
                        }
                        Err(error) => {
                            tracing::debug!(role = name, error, failures, "still cannot be started")
                        }
                    }
                    failures += 1;
                    if is_stopped(RETRY_AFTER) {
                        return;
                    }
                };
                tracing::warn!(role = name, failures, "started again");
                *watched.lock() = Some(started);
            }
        };
        let thread = std::thread::Builder::new().name(format!("{name}-watch")).spawn(watch);
        match thread {
            Ok(thread) => Ok(Supervisor { addr, current, stop, thread: Some(thread) }),
            Err(error) => {
                let first = current.lock().take();
                first.into_iter().for_each(Role::stop);
                Err(error)
            }
        }
    }

    /// Where the role listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops the role, and watching it.
    pub fn stop(mut self) {
        // The thread may have ended by itself.
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let last = self.current.lock().take();
        last.into_iter().for_each(Role::stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

    struct Fake(Arc<AtomicBool>, Arc<AtomicU32>);

    impl Role for Fake {
        fn is_running(&self) -> bool {
            self.0.load(SeqCst)
        }

        fn stop(self) {
            self.1.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn a_role_that_stops_by_itself_is_started_until_it_runs() {
        let (running, stops, starts) =
            (Arc::new(AtomicBool::new(true)), Arc::default(), Arc::new(AtomicU32::new(0)));
        let fake = Fake(Arc::clone(&running), Arc::clone(&stops));
        let (again, stopped, begun) =
            (Arc::clone(&running), Arc::clone(&stops), Arc::clone(&starts));
        let any = SocketAddr::from(([127, 0, 0, 1], 1));
        let supervisor = Supervisor::start("fake", any, fake, &LockTable::default(), move || {
            if begun.fetch_add(1, SeqCst) == 0 {
                return Err("no space".into());
            }
            again.store(true, SeqCst);
            Ok(Fake(Arc::clone(&again), Arc::clone(&stopped)))
        })
        .expect("a thread");
        running.store(false, SeqCst);
        while !running.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        supervisor.stop();
        assert_eq!(
            (starts.load(SeqCst), stops.load(SeqCst)),
            (2, 2),
            "each that was begun was stopped"
        );
    }
}
