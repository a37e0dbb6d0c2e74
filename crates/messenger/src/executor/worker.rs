//! A worker: one thread with a reactor, a run queue, timers and the connections that live on it.
//!
//! Contract: everything behind [`Worker`] is touched by its own thread only. Other threads reach a
//! worker through [`WorkerShared`]: a lock-free queue, and an eventfd that is written only if the
//! worker sleeps. A loop turn is: commands from outside, readiness events, tasks, then one flush of
//! all connections that have something to send.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use mio::{Events, Poll as Reactor, Registry, Token};

use crate::executor::blocking::JobFailed;
use crate::executor::mailbox::Mailbox;
use crate::executor::runtime::Handle;
use crate::executor::task::{TaskHandle, Tasks};
use crate::executor::timer::{Elapsed, Sleep, Timers};
use crate::executor::worker_local::WorkerLocals;
use crate::io::buffer::Pool;
use crate::io::busy_poll::BusyPoll;
use crate::io::reactor::{Causes, Sources};
use crate::telemetry::counters::{WorkerCounters, WorkerStats};
use crate::telemetry::operation::{Layer, Operation, OperationTable};
use crate::telemetry::worker_time::{Meter, WorkerTime};
use crate::wire::frame::TrafficClass;

/// Token of the eventfd; sources count from 1.
pub(crate) const WAKE_TOKEN: Token = Token(0);
/// Tasks polled before the loop looks at sockets again.
const TASKS_PER_TURN: usize = 256;
/// Bytes queued on connections that cause a flush before the turn ends: a socket buffer's worth.
pub(crate) const FLUSH_BYTES: usize = 256 << 10;

/// What other threads ask of a worker.
pub(crate) enum Command {
    /// Runs a closure on the worker.
    Run(Box<dyn FnOnce(&Worker) + Send>),
    /// Polls a task.
    Wake(usize),
    /// Runs a source.
    Source(usize, Causes),
    /// Flushes, then ends the loop at the time given at the latest.
    Shutdown(Instant),
}

/// How long a poll of the reactor may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Until a timer is due.
    Timer(Instant),
    /// Until something happens.
    Woken,
}

/// The part of a worker that other threads may touch.
pub(crate) struct WorkerShared {
    pub(crate) index: usize,
    pub(crate) counters: WorkerCounters,
    time: WorkerTime,
    /// In front of the eventfd: the worker sleeps only while it is in, or about to enter, a poll
    /// that may wait.
    mailbox: Mailbox<Command>,
    waker: mio::Waker,
    wakeups: AtomicU64,
    /// The worker's epoll set, for sockets that more than one worker serves.
    registry: Registry,
}

/// Queues of the worker that runs on this thread, so that its own wake-ups and sends touch no
/// shared memory.
struct Local {
    owner: Cell<usize>,
    index: Cell<usize>,
    ready: RefCell<VecDeque<usize>>,
    dirty: RefCell<Vec<usize>>,
    dirty_bytes: Cell<usize>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            owner: Cell::new(0),
            index: Cell::new(0),
            ready: RefCell::new(VecDeque::new()),
            dirty: RefCell::new(Vec::new()),
            dirty_bytes: Cell::new(0),
        }
    };
}

impl WorkerShared {
    pub(crate) fn new(index: usize, registry: Registry) -> std::io::Result<WorkerShared> {
        Ok(WorkerShared {
            index,
            counters: WorkerCounters::default(),
            time: WorkerTime::new(Instant::now()),
            mailbox: Mailbox::default(),
            waker: mio::Waker::new(&registry, WAKE_TOKEN)?,
            wakeups: AtomicU64::new(0),
            registry,
        })
    }

    /// Runs `f` with this thread's queues if this thread is the worker.
    fn with_local<R>(&self, f: impl FnOnce(&Local) -> R) -> Option<R> {
        LOCAL
            .try_with(|local| {
                (local.owner.get() == std::ptr::from_ref(self).addr()).then(|| f(local))
            })
            .ok()
            .flatten()
    }

    /// Queues a command; false if the worker has ended, and may not run it.
    pub(crate) fn post(&self, command: Command) -> bool {
        self.mailbox.post(command, || {
            self.wakeups.fetch_add(1, Relaxed);
            if let Err(error) = self.waker.wake() {
                tracing::error!(worker = self.index, %error, "cannot wake a worker");
            }
        })
    }

    pub(crate) fn wake_task(&self, slot: usize) {
        if self.with_local(|local| local.ready.borrow_mut().push_back(slot)).is_none() {
            self.post(Command::Wake(slot));
        }
    }

    /// Says, on the worker itself, that the connection in `slot` has `bytes` more to send.
    pub(crate) fn mark_dirty(&self, slot: usize, bytes: usize) {
        self.with_local(|local| {
            local.dirty.borrow_mut().push(slot);
            local.dirty_bytes.set(local.dirty_bytes.get() + bytes);
        });
    }

    /// Which worker of its runtime this thread may be, if it is any; to be compared with the one of
    /// that number.
    pub(crate) fn index_of_this_thread() -> Option<usize> {
        LOCAL.try_with(|local| (local.owner.get() != 0).then(|| local.index.get())).ok().flatten()
    }

    /// True if this thread is the worker.
    pub(crate) fn is_this_thread(&self) -> bool {
        self.with_local(|_| ()).is_some()
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts bytes queued on a connection that is marked already.
    pub(crate) fn add_dirty_bytes(&self, bytes: usize) {
        self.with_local(|local| local.dirty_bytes.set(local.dirty_bytes.get() + bytes));
    }

    /// All counters, as of `now`.
    pub(crate) fn stats(&self, now: Instant) -> WorkerStats {
        let counted =
            WorkerStats { wakeups: self.wakeups.load(Relaxed), ..self.counters.snapshot() };
        counted.with_time(self.time.read(now))
    }
}

/// The context of one worker, passed to everything that runs on it. Clones are the same worker; it
/// cannot leave its thread.
#[derive(Clone)]
pub struct Worker {
    inner: Rc<Inner>,
}

/// What a worker times of its messages.
pub(crate) struct MessageTimes {
    /// From the turn in which a message was read off its socket to its handler.
    pub(crate) queue: Operation,
    /// From a call to its reply.
    pub(crate) call: Operation,
}

impl MessageTimes {
    fn new(table: &OperationTable) -> MessageTimes {
        let operation = |name| table.operation(Layer::Messenger, name);
        MessageTimes { queue: operation("queue"), call: operation("call") }
    }
}

struct Inner {
    shared: Arc<WorkerShared>,
    handle: Handle,
    tasks: RefCell<Tasks>,
    timers: RefCell<Timers>,
    sources: Sources,
    locals: WorkerLocals,
    meter: Meter,
    busy_poll: RefCell<BusyPoll>,
    message_times: MessageTimes,
    /// Tasks that wait for the next turn.
    yielded: RefCell<Vec<std::task::Waker>>,
    shutdown_at: Cell<Option<Instant>>,
}

impl Worker {
    /// Its number, `0..handle().workers()`.
    pub fn index(&self) -> usize {
        self.inner.shared.index
    }

    /// The runtime it belongs to.
    pub fn handle(&self) -> &Handle {
        &self.inner.handle
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// The buffer pool this worker takes from.
    pub fn pool(&self) -> &Arc<Pool> {
        self.inner.handle.pools().pool(self.index())
    }

    /// Starts a task on this worker. It is polled first in the current or next loop turn, not
    /// inside this call.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> TaskHandle {
        let (slot, generation, waker) = {
            let mut tasks = self.inner.tasks.borrow_mut();
            let (slot, generation) = tasks.insert(&self.inner.shared, Box::pin(future));
            (slot, generation, tasks.waker(slot))
        };
        waker.wake();
        TaskHandle::new(self.clone(), slot, generation)
    }

    /// Waits. Precision is one millisecond, never early.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(Instant::now() + duration)
    }

    /// Waits until a point in time.
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep::new(self.clone(), at)
    }

    /// Runs `future` for at most `duration`, then drops it.
    ///
    /// # Errors
    /// [`Elapsed`] if it did not complete in time.
    pub async fn timeout<F: Future>(
        &self,
        duration: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep(duration));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(value));
            }
            sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Lets other tasks and the sockets have their turn: goes on in the next one, when what was
    /// queued to be sent has left.
    pub fn yield_now(&self) -> impl Future<Output = ()> + use<> {
        let worker = self.clone();
        let mut yielded = false;
        std::future::poll_fn(move |cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            worker.inner.yielded.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
    }

    /// Runs `job` on the runtime's I/O threads, in class II. It starts at once, whether or not the
    /// future is polled.
    ///
    /// # Errors
    /// [`JobFailed`] if it panicked or the runtime is shutting down.
    pub fn blocking<T, F>(&self, job: F) -> impl Future<Output = Result<T, JobFailed>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.blocking_as(TrafficClass::Client, 0, job)
    }

    /// As [`Worker::blocking`], in another class: which of the jobs that wait for a thread is next
    /// follows from [`RuntimeConfig::class_order`](crate::RuntimeConfig::class_order). `bytes`:
    /// what the job moves, as far as known; 0 if not.
    ///
    /// # Errors
    /// As [`Worker::blocking`].
    pub fn blocking_as<T, F>(
        &self,
        class: TrafficClass,
        bytes: usize,
        job: F,
    ) -> impl Future<Output = Result<T, JobFailed>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let receiver = self.inner.handle.blocking_pool().run(class, bytes, job);
        async move { receiver.await.map_err(|_| JobFailed) }
    }

    /// Keeps a value on this worker, instead of an earlier one of the same type: for what services
    /// here share without locks, and what functions sent here must find.
    pub fn set_local<T: 'static>(&self, value: Rc<T>) {
        self.inner.locals.set(value);
    }

    /// The worker's value of this type, if there is one.
    pub fn local<T: 'static>(&self) -> Option<Rc<T>> {
        self.inner.locals.get()
    }

    /// Takes the worker's value of this type away.
    pub fn take_local<T: 'static>(&self) -> Option<Rc<T>> {
        self.inner.locals.take()
    }

    pub(crate) fn counters(&self) -> &WorkerCounters {
        &self.inner.shared.counters
    }

    pub(crate) fn message_times(&self) -> &MessageTimes {
        &self.inner.message_times
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.inner.shared.registry()
    }

    pub(crate) fn tasks(&self) -> &RefCell<Tasks> {
        &self.inner.tasks
    }

    pub(crate) fn timers(&self) -> &RefCell<Timers> {
        &self.inner.timers
    }

    pub(crate) fn sources(&self) -> &Sources {
        &self.inner.sources
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.inner.shutdown_at.get().is_some()
    }

    /// Runs code on behalf of a task that is to outlive its panic; one is counted, logged and
    /// reported as `None`.
    pub fn catch<R>(&self, what: &'static str, f: impl FnOnce() -> R) -> Option<R> {
        self.guard(what, f)
    }

    /// Runs code of the crate's users; a panic is counted, logged and reported as `None`.
    pub(crate) fn guard<R>(&self, what: &'static str, f: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(value) => Some(value),
            Err(panic) => {
                self.counters().panics.add(1);
                tracing::error!(
                    worker = self.index(),
                    reason = panic_text(&*panic),
                    "panic in {what}"
                );
                // The payload's own drop may panic as well; it is a string nearly always, so
                // leaking is cheap.
                std::mem::forget(panic);
                None
            }
        }
    }

    /// Sends early once much is queued, so that memory and latency stay low while a long turn runs.
    pub(crate) fn flush_if_much(&self) {
        let much = self.inner.shared.with_local(|local| local.dirty_bytes.get() >= FLUSH_BYTES);
        if much == Some(true) {
            self.flush_dirty();
        }
    }

    fn flush_dirty(&self) {
        loop {
            let Some(mut dirty) = self.inner.shared.with_local(|local| {
                local.dirty_bytes.set(0);
                std::mem::take(&mut *local.dirty.borrow_mut())
            }) else {
                return;
            };
            if dirty.is_empty() {
                return;
            }
            for slot in dirty.drain(..) {
                self.inner.sources.flush(self, slot);
            }
            // Give the allocation back; what was marked meanwhile stays.
            self.inner.shared.with_local(|local| {
                let mut now = local.dirty.borrow_mut();
                if now.is_empty() {
                    *now = dirty;
                }
            });
        }
    }

    fn run_commands(&self) {
        // Only what is there now: commands that cause commands must not keep the sockets waiting.
        for _ in 0..self.inner.shared.mailbox.len() {
            let Some(command) = self.inner.shared.mailbox.pop() else { break };
            match command {
                Command::Run(f) => {
                    self.guard("a function sent to a worker", || f(self));
                }
                Command::Wake(slot) => self.inner.shared.wake_task(slot),
                Command::Source(slot, causes) => self.inner.sources.run(self, slot, causes),
                Command::Shutdown(at) => {
                    self.inner.shutdown_at.set(Some(at));
                    self.inner.sources.begin_shutdown(self);
                }
            }
        }
    }

    fn run_tasks(&self) {
        for _ in 0..TASKS_PER_TURN {
            let next = self
                .inner
                .shared
                .with_local(|local| local.ready.borrow_mut().pop_front())
                .flatten();
            let Some(slot) = next else { break };
            let Some((mut future, waker)) = self.inner.tasks.borrow_mut().begin(slot) else {
                continue;
            };
            self.counters().task_polls.add(1);
            let polled =
                self.guard("a task", || future.as_mut().poll(&mut Context::from_waker(&waker)));
            match polled {
                Some(Poll::Pending) => {
                    let aborted = self.inner.tasks.borrow_mut().pend(slot, future);
                    self.guard("dropping a task", || drop(aborted));
                }
                Some(Poll::Ready(())) | None => {
                    self.inner.tasks.borrow_mut().finish(slot);
                    self.guard("dropping a task", || drop(future));
                }
            }
            self.flush_if_much();
        }
    }

    fn fire_timers(&self, woken: &mut Vec<std::task::Waker>) {
        let due = |at: Option<Instant>, now: Instant| at.is_some_and(|at| at <= now);
        let next = self.inner.timers.borrow().next();
        if next.is_none() && self.inner.sources.next_timer().is_none() {
            return;
        }
        let now = Instant::now();
        if due(next, now) {
            self.inner.timers.borrow_mut().fire(now, woken);
            woken.drain(..).for_each(std::task::Waker::wake);
        }
        if due(self.inner.sources.next_timer(), now) {
            self.inner.sources.fire_timers(self, now);
        }
    }

    /// Until when the reactor may wait; `None` while there is work.
    fn wait_until(&self) -> Option<Until> {
        let busy = self.inner.shared.with_local(|local| {
            !local.ready.borrow().is_empty() || !local.dirty.borrow().is_empty()
        }) == Some(true);
        let more = self.inner.sources.has_requeued() || !self.inner.yielded.borrow().is_empty();
        if busy || more || !self.inner.shared.mailbox.is_empty() {
            return None;
        }
        let timers = [
            self.inner.timers.borrow().next(),
            self.inner.sources.next_timer(),
            self.inner.shutdown_at.get(),
        ];
        Some(timers.into_iter().flatten().min().map_or(Until::Woken, Until::Timer))
    }

    fn poll_reactor(&self, reactor: &mut Reactor, events: &mut Events) {
        match self.wait_until() {
            None => {
                self.inner.meter.no_wait(&self.inner.shared.time);
                self.look(reactor, events, Some(Duration::ZERO));
            }
            Some(until) => self.wait(reactor, events, until),
        }
        self.counters()
            .polled(events.iter().filter(|event| event.token() != WAKE_TOKEN).count() as u64);
    }

    /// Waits until there is something to do: awake for a moment if that is worth it, then asleep.
    fn wait(&self, reactor: &mut Reactor, events: &mut Events, until: Until) {
        let (time, busy_poll) = (&self.inner.shared.time, &self.inner.busy_poll);
        let begin = Instant::now();
        let waiting = self.inner.meter.begin_wait(time, begin);
        let stays_awake = busy_poll.borrow().is_worth_it();
        if !stays_awake || !self.look_for_a_while(reactor, events, until, begin) {
            self.sleep_flag(reactor, events, until);
        }
        let end = Instant::now();
        busy_poll.borrow_mut().waited(end - begin, !stays_awake);
        if let Some(waiting) = waiting {
            waiting.end(time, end);
        }
    }

    /// Looks again and again, and lets other threads run in between. True: there is something to
    /// do.
    fn look_for_a_while(
        &self,
        reactor: &mut Reactor,
        events: &mut Events,
        until: Until,
        begin: Instant,
    ) -> bool {
        let end = begin + self.inner.busy_poll.borrow().limit();
        loop {
            self.look(reactor, events, Some(Duration::ZERO));
            if !events.is_empty() || !self.inner.shared.mailbox.is_empty() {
                return true;
            }
            let now = Instant::now();
            if matches!(until, Until::Timer(at) if at <= now) {
                return true;
            }
            if now >= end {
                return false;
            }
            std::thread::yield_now();
        }
    }

    fn sleep_flag(&self, reactor: &mut Reactor, events: &mut Events, until: Until) {
        let mailbox = &self.inner.shared.mailbox;
        let timeout = match until {
            _ if !mailbox.prepare_to_sleep() => Some(Duration::ZERO),
            Until::Timer(at) => Some(at.saturating_duration_since(Instant::now())),
            Until::Woken => None,
        };
        self.look(reactor, events, timeout);
        mailbox.stay_awake();
    }

    fn look(&self, reactor: &mut Reactor, events: &mut Events, timeout: Option<Duration>) {
        if let Err(error) = reactor.poll(events, timeout)
            && error.kind() != std::io::ErrorKind::Interrupted
        {
            tracing::error!(worker = self.index(), %error, "poll failed");
        }
    }

    fn run(&self, reactor: &mut Reactor) {
        let mut events = Events::with_capacity(self.inner.handle.events_max());
        let mut woken = Vec::new();
        loop {
            self.run_commands();
            for event in events.iter().filter(|event| event.token() != WAKE_TOKEN) {
                self.inner.sources.ready(self, event);
                self.flush_if_much();
            }
            self.inner.sources.run_requeued(self);
            self.inner.yielded.borrow_mut().drain(..).for_each(std::task::Waker::wake);
            self.fire_timers(&mut woken);
            self.run_tasks();
            self.flush_dirty();
            if let Some(at) = self.inner.shutdown_at.get()
                && (Instant::now() >= at || self.inner.sources.is_drained())
            {
                return;
            }
            let events_max = self.inner.handle.events_max();
            if events.capacity() != events_max {
                events = Events::with_capacity(events_max);
            }
            self.poll_reactor(reactor, &mut events);
        }
    }

    /// Ends the worker: nothing is accepted any more, and whoever waits for it is told.
    fn close(&self) {
        self.inner.shared.mailbox.close();
        self.inner.sources.close_all(self);
        for future in self.inner.tasks.borrow_mut().drain() {
            self.guard("dropping a task", || drop(future));
        }
        while let Some(command) = self.inner.shared.mailbox.pop() {
            self.guard("dropping a command", || drop(command));
        }
        self.inner.sources.clear();
        for value in self.inner.locals.drain() {
            self.guard("dropping a worker's value", || drop(value));
        }
        LOCAL.with(|local| {
            local.owner.set(0);
            local.ready.borrow_mut().clear();
            local.dirty.borrow_mut().clear();
        });
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index()).finish_non_exhaustive()
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("not a string")
}

/// The body of a worker's thread.
pub(crate) fn thread_main(shared: Arc<WorkerShared>, handle: Handle, mut reactor: Reactor) {
    LOCAL.with(|local| {
        local.owner.set(Arc::as_ptr(&shared).addr());
        local.index.set(shared.index);
    });
    let meter = Meter::new(handle.config().telemetry, &shared.time, Instant::now());
    let busy_poll = RefCell::new(BusyPoll::new(handle.config().busy_poll));
    let message_times = MessageTimes::new(handle.operations());
    let inner = Inner {
        shared,
        handle,
        tasks: RefCell::default(),
        timers: RefCell::default(),
        sources: Sources::default(),
        locals: WorkerLocals::default(),
        meter,
        busy_poll,
        message_times,
        yielded: RefCell::default(),
        shutdown_at: Cell::new(None),
    };
    let worker = Worker { inner: Rc::new(inner) };
    worker.run(&mut reactor);
    worker.close();
}
