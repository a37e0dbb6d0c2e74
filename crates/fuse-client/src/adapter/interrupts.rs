//! Requests whose caller is killed: they are given up, so that he can go.
//!
//! Contract: a process that waits for an answer stays until it has one, SIGKILL or not; all that
//! the kernel says is that it has a signal (FUSE_INTERRUPT, once, for any signal). Only a caller
//! that is about to end is let go: EINTR for others would break programs that take signals and do
//! not expect it of files. A request is given up as at its deadline: a write that was sent may
//! still happen. What answers before it has to wait costs nothing here.

use super::callers;
use messenger::Handle;
use messenger::sync::ContentionMutex;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// How often the caller of an interrupted request is looked at: a signal that does not end him is
/// followed by one that does.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Interrupts kept that came before their request waited, or after it was answered.
const EARLY_MAX: usize = 256;
/// Threads that are told of at once, at most.
const THREADS_TOLD_MAX: usize = 64;
/// SIGKILL in a field of `/proc/<thread>/status`. The kernel gives it to every thread of a process
/// that a signal ends.
const KILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// The requests of a mount that wait.
pub struct Interrupts {
    handle: Handle,
    table: ContentionMutex<Table>,
}

#[derive(Default)]
struct Table {
    waiting: HashMap<u64, Waiting>,
    early: VecDeque<u64>,
}

struct Waiting {
    /// The caller, as the kernel numbers threads for this process; 0 if it is in another PID
    /// namespace.
    thread: u32,
    is_given_up: bool,
    waker: Waker,
}

/// A request that waits; no longer once this is dropped.
struct Registered<'a>(&'a Interrupts, u64);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.0.table.lock().waiting.remove(&self.1);
    }
}

impl Interrupts {
    /// None yet.
    pub fn new(handle: &Handle) -> Arc<Interrupts> {
        let table = ContentionMutex::new(handle.locks(), "fuse interrupts", Table::default());
        Arc::new(Interrupts { handle: handle.clone(), table })
    }

    /// The threads whose requests wait, in order, [`THREADS_TOLD_MAX`] at most.
    pub fn threads(&self) -> BTreeSet<u32> {
        let mut threads: BTreeSet<u32> =
            self.table.lock().waiting.values().map(|waiting| waiting.thread).collect();
        while threads.len() > THREADS_TOLD_MAX {
            threads.pop_last();
        }
        threads
    }

    /// The caller of a request has a signal.
    pub fn interrupt(self: &Arc<Self>, unique: u64) {
        let mut table = self.table.lock();
        if table.waiting.contains_key(&unique) {
            drop(table);
            return self.watch(unique);
        }
        if table.early.len() >= EARLY_MAX {
            table.early.pop_front();
        }
        table.early.push_back(unique);
    }

    /// Carries a request out; `None` if it was given up because its caller is about to end.
    pub async fn unless_killed<T>(
        self: &Arc<Self>,
        unique: u64,
        thread: u32,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        let mut request = pin!(request);
        let mut registered = None;
        poll_fn(|cx| {
            if let Poll::Ready(answer) = request.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            if registered.is_none() {
                registered = Some(self.register(unique, thread, cx.waker().clone()));
            } else if self.is_given_up(unique, cx.waker()) {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    fn register(self: &Arc<Self>, unique: u64, thread: u32, waker: Waker) -> Registered<'_> {
        let mut table = self.table.lock();
        table.waiting.insert(unique, Waiting { thread, is_given_up: false, waker });
        let place = table.early.iter().position(|early| *early == unique);
        let is_early = place.and_then(|place| table.early.remove(place)).is_some();
        drop(table);
        if is_early {
            self.watch(unique);
        }
        Registered(self, unique)
    }

    fn is_given_up(&self, unique: u64, waker: &Waker) -> bool {
        let mut table = self.table.lock();
        let Some(waiting) = table.waiting.get_mut(&unique) else { return false };
        waiting.waker.clone_from(waker);
        waiting.is_given_up
    }

    /// Gives the request up once its caller is about to end; looks until it is answered.
    fn watch(self: &Arc<Self>, unique: u64) {
        let interrupts = Arc::clone(self);
        self.handle.spawn_on(0, move |worker| async move {
            while interrupts.still_waits(unique) {
                worker.sleep(LOOK_EVERY).await;
            }
        });
    }

    fn still_waits(&self, unique: u64) -> bool {
        let Some(thread) = self.table.lock().waiting.get(&unique).map(|waiting| waiting.thread)
        else {
            return false;
        };
        if !is_ending(thread) {
            return true;
        }
        let waker = self.table.lock().waiting.get_mut(&unique).map(|waiting| {
            waiting.is_given_up = true;
            waiting.waker.clone()
        });
        waker.into_iter().for_each(Waker::wake);
        false
    }
}

/// Is a thread about to end?
fn is_ending(thread: u32) -> bool {
    callers::is_so(thread, |status| callers::pending(status) & KILL_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use messenger::{Runtime, RuntimeConfig};

    #[test]
    fn only_sigkill_ends_a_caller() {
        let status =
            |signals: &str| format!("Name:\tcat\nSigPnd:\t{signals}\nShdPnd:\t0000000000000000\n");
        assert_ne!(callers::pending(&status("0000000000000100")) & KILL_BIT, 0);
        assert_eq!(callers::pending(&status("0000000000004002")) & KILL_BIT, 0);
        assert!(!is_ending(std::process::id()) && is_ending(u32::MAX));
    }

    #[test]
    fn a_request_is_given_up_when_its_caller_is_gone_whenever_the_interrupt_came() {
        let runtime = Runtime::start(RuntimeConfig::new("test", 1)).expect("starts");
        let interrupts = Interrupts::new(&runtime.handle());
        let gone = u32::MAX;
        // Before it waits.
        interrupts.interrupt(7);
        let given_up = interrupts.unless_killed(7, gone, std::future::pending::<()>());
        assert_eq!(messenger::sync::block_on(given_up), None);
        // While it waits, of somebody who stays: it is answered.
        let (answer, answered) = messenger::sync::oneshot();
        let waits = Arc::clone(&interrupts);
        let stays = std::thread::spawn(move || {
            let own = std::process::id();
            messenger::sync::block_on(
                waits.unless_killed(8, own, async { answered.await.unwrap_or(0) }),
            )
        });
        while !interrupts.table.lock().waiting.contains_key(&8) {
            std::thread::yield_now();
        }
        interrupts.interrupt(8);
        assert!(answer.send(5).is_ok());
        assert_eq!(stays.join().expect("no panic"), Some(5));
        assert!(interrupts.table.lock().waiting.is_empty());
        // What is answered at once is never registered.
        assert_eq!(
            messenger::sync::block_on(interrupts.unless_killed(9, gone, async { 3 })),
            Some(3)
        );
        runtime.shutdown();
    }
}
