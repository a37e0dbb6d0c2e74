//! Tasks of one worker: futures that never leave their thread, and wakers that may.
//!
//! Contract: a slot's waker lives as long as the runtime and is reused with the slot, so a wake-up
//! that comes late polls a stranger once too often, which futures must bear anyway. No unsafe code
//! is needed for that.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Wake, Waker};

use slab::Slab;

use crate::executor::worker::{Worker, WorkerShared};
use crate::sync::wake_once::WakeOnce;

/// A future local to its worker.
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

struct TaskWaker {
    shared: Arc<WorkerShared>,
    slot: usize,
    /// In the run queue already: a second wake-up adds nothing.
    queued: WakeOnce,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.give() {
            self.shared.wake_task(self.slot);
        }
    }
}

struct Task {
    generation: u64,
    /// Absent while it is being polled.
    future: Option<LocalFuture>,
    aborted: bool,
}

struct SlotWaker {
    state: Arc<TaskWaker>,
    waker: Waker,
}

/// The tasks of one worker.
#[derive(Default)]
pub(crate) struct Tasks {
    slots: Slab<Task>,
    wakers: Vec<SlotWaker>,
    generation: u64,
}

impl Tasks {
    /// Stores a future and returns its slot and generation; the caller queues the slot by
    /// [`Tasks::wake`].
    pub(crate) fn insert(
        &mut self,
        shared: &Arc<WorkerShared>,
        future: LocalFuture,
    ) -> (usize, u64) {
        self.generation += 1;
        let slot = self.slots.insert(Task {
            generation: self.generation,
            future: Some(future),
            aborted: false,
        });
        if slot == self.wakers.len() {
            let state = Arc::new(TaskWaker {
                shared: Arc::clone(shared),
                slot,
                queued: WakeOnce::default(),
            });
            let waker = Waker::from(Arc::clone(&state));
            self.wakers.push(SlotWaker { state, waker });
        }
        (slot, self.generation)
    }

    /// The waker of a slot.
    pub(crate) fn waker(&self, slot: usize) -> Waker {
        self.wakers[slot].waker.clone()
    }

    /// Takes a task out to be polled; it may be woken again from now on.
    pub(crate) fn begin(&mut self, slot: usize) -> Option<(LocalFuture, Waker)> {
        let entry = self.wakers.get(slot)?;
        // Before the poll, so that a wake-up during it queues the task again.
        entry.state.queued.take();
        let future = self.slots.get_mut(slot)?.future.take()?;
        Some((future, entry.waker.clone()))
    }

    /// Puts a pending task back; returns the future if it was aborted meanwhile, to be dropped
    /// outside the borrow.
    pub(crate) fn pend(&mut self, slot: usize, future: LocalFuture) -> Option<LocalFuture> {
        match self.slots.get_mut(slot) {
            Some(task) if !task.aborted => {
                task.future = Some(future);
                None
            }
            _ => {
                self.slots.try_remove(slot);
                Some(future)
            }
        }
    }

    /// Forgets a task that is done.
    pub(crate) fn finish(&mut self, slot: usize) {
        self.slots.try_remove(slot);
    }

    /// Takes all futures out, to be dropped by the caller.
    pub(crate) fn drain(&mut self) -> Vec<LocalFuture> {
        self.slots.drain().filter_map(|task| task.future).collect()
    }

    fn abort(&mut self, slot: usize, generation: u64) -> Option<LocalFuture> {
        let task = self.slots.get_mut(slot).filter(|task| task.generation == generation)?;
        match task.future.take() {
            Some(future) => {
                self.slots.remove(slot);
                Some(future)
            }
            None => {
                task.aborted = true;
                None
            }
        }
    }

    fn contains(&self, slot: usize, generation: u64) -> bool {
        self.slots.get(slot).is_some_and(|task| task.generation == generation && !task.aborted)
    }
}

/// A task started by [`Worker::spawn`]. Dropping the handle lets it run on.
#[derive(Clone)]
pub struct TaskHandle {
    worker: Worker,
    slot: usize,
    generation: u64,
}

impl TaskHandle {
    pub(crate) fn new(worker: Worker, slot: usize, generation: u64) -> TaskHandle {
        TaskHandle { worker, slot, generation }
    }

    /// Drops the task's future now, or, if it calls this itself, when it next waits. No effect on a
    /// finished task.
    pub fn abort(&self) {
        let future = self.worker.tasks().borrow_mut().abort(self.slot, self.generation);
        drop(future);
    }

    /// True once the task has returned, panicked or was aborted.
    pub fn is_finished(&self) -> bool {
        !self.worker.tasks().borrow().contains(self.slot, self.generation)
    }
}

impl std::fmt::Debug for TaskHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskHandle").field("slot", &self.slot).finish_non_exhaustive()
    }
}
