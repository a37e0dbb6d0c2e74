//! Where a connection is kept, and the attachments of the workers that serve it: the one connection
//! code of all mappings.
//!
//! A shared connection holds the driver of a connection under a lock, from read to dispatch, so
//! that messages are handed over in order whichever worker reads. A worker serves a connection by a
//! *attachment*: a slot among its sources, the socket in its epoll set, and counters of its own. A
//! connection with one attachment never meets anyone at the lock.
//!
//! Contract:
//! * Whoever holds the lock carries out what others ordered: attachments that came, attachments
//!   that go, a socket that takes over. Nobody else touches the socket's registrations, so none is
//!   made or undone for a socket that has been closed.
//! * An attachment goes only once another one is there, and the last one never does. Whoever ran on
//!   it may have known of bytes to read, to send, or of a time to keep; so another attachment runs
//!   for every reason after it.
//! * In `handoff` the `lock queue` stands before the lock, so that the lock is free for whoever
//!   comes through.
//! * Order of locks: a listener's sessions, the driver, the orders; and under the orders only the
//!   connection's queue.

use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;

use crate::executor::runtime::Handle;
use crate::executor::worker::Worker;
use crate::io::reactor::{Causes, Next, Source, token};
use crate::io::stream::Stream;
use crate::serve::listener::{self, Listening};
use crate::serve::service::{CloseReason, Service};
use crate::session::connection::Connection;
use crate::session::driver::{Accepted, Driver};
use crate::sync::lock_queue::LockQueue;
use crate::sync::{ContentionGuard, ContentionMutex};
use crate::telemetry::connections::{AttachmentStats, ConnectionStats};
use crate::telemetry::counters::Counter;

/// How often a holder goes on for the marks of others before it turns to its other work.
const PASSES_MAX: usize = 4;

/// What one worker did on one connection. Written by that worker alone.
#[derive(Debug, Default)]
pub(crate) struct AttachmentCounters {
    pub(crate) acquisitions: Counter,
    pub(crate) contended: Counter,
    pub(crate) wait_ns: Counter,
    pub(crate) marks: Counter,
    pub(crate) messages: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
}

/// What the worker that runs a connection brings along.
pub(crate) struct Cx<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) service: &'a dyn Service,
    pub(crate) shared_connection: &'a Arc<SharedConnection>,
    pub(crate) counters: &'a AttachmentCounters,
}

/// An attachment as its shared connection knows it.
struct Place {
    worker: usize,
    slot: usize,
    /// The worker's epoll set has the current socket.
    watching: bool,
    /// Set when the attachment goes.
    gone: Arc<AtomicBool>,
}

struct PendingChanges {
    /// The workers that are to serve the connection, in the order in which they were placed; never
    /// empty.
    target: Vec<usize>,
    places: Vec<Place>,
    /// By worker; they outlive the attachments.
    counters: Vec<(usize, Arc<AttachmentCounters>)>,
    /// A socket with which the session goes on.
    incoming: Option<Accepted>,
    /// The connection has ended.
    over: bool,
}

impl PendingChanges {
    fn counters_of(&mut self, worker: usize) -> Arc<AttachmentCounters> {
        if let Some((_, counters)) = self.counters.iter().find(|(other, _)| *other == worker) {
            return Arc::clone(counters);
        }
        let counters = Arc::<AttachmentCounters>::default();
        self.counters.push((worker, Arc::clone(&counters)));
        counters
    }

    fn has_seat(&self, worker: usize) -> bool {
        self.places.iter().any(|place| place.worker == worker)
    }
}

/// Who the peer of an accepted connection said it was.
pub(crate) struct PeerIdentity {
    pub(crate) listening: Arc<Listening>,
    pub(crate) name: String,
    pub(crate) lane: u16,
}

/// A connection with its driver and its attachments.
pub(crate) struct SharedConnection {
    pub(crate) connection: Connection,
    /// Absent on the connecting side.
    pub(crate) peer_identity: Option<PeerIdentity>,
    driver: ContentionMutex<Driver>,
    lock_queue: LockQueue,
    /// No worker waits for another here.
    handoff: AtomicBool,
    /// There are orders that nobody has carried out.
    ordered: AtomicBool,
    changes: ContentionMutex<PendingChanges>,
    /// Total lock time in nanoseconds and bytes at the last placement; written by the placement
    /// task alone.
    placed_at: (AtomicU64, AtomicU64),
}

impl SharedConnection {
    fn new(
        connection: Connection,
        peer_identity: Option<PeerIdentity>,
        driver: Driver,
        target: Vec<usize>,
    ) -> Arc<SharedConnection> {
        assert!(!target.is_empty(), "a connection has a worker");
        let handle = connection.handle().clone();
        handle.connection_came();
        let changes = PendingChanges {
            target,
            places: Vec::new(),
            counters: Vec::new(),
            incoming: None,
            over: false,
        };
        Arc::new(SharedConnection {
            connection,
            peer_identity,
            driver: ContentionMutex::new(handle.locks(), "connection driver", driver),
            lock_queue: LockQueue::default(),
            handoff: AtomicBool::new(false),
            ordered: AtomicBool::new(false),
            changes: ContentionMutex::new(handle.locks(), "connection orders", changes),
            placed_at: Default::default(),
        })
    }

    /// The shared connection of a connection that this side makes: one worker, for ever.
    pub(crate) fn connecting(connection: Connection, driver: Driver) -> Arc<SharedConnection> {
        let target = vec![connection.worker()];
        SharedConnection::new(connection, None, driver, target)
    }

    /// The shared connection of a session that begins on the accepting side.
    pub(crate) fn accepting(
        handle: &Handle,
        accepted: &Accepted,
        target: Vec<usize>,
        handoff: bool,
    ) -> Arc<SharedConnection> {
        let listening = Arc::clone(&accepted.listening);
        let connection =
            Connection::new(handle.clone(), target[0], accepted.peer, listening.config.session);
        let driver =
            Driver::accepting(connection.clone(), Arc::clone(&listening), accepted.hello.cookie);
        let peer_identity = PeerIdentity {
            listening,
            name: accepted.hello.name.clone(),
            lane: accepted.hello.lane,
        };
        let shared_connection =
            SharedConnection::new(connection, Some(peer_identity), driver, target);
        shared_connection.handoff.store(handoff, Release);
        shared_connection
    }

    fn handle(&self) -> &Handle {
        self.connection.handle()
    }

    /// The first attachment, on its worker: an accepted socket gets its answer there before any
    /// other worker comes.
    pub(crate) fn begin(
        self: Arc<SharedConnection>,
        worker: &Worker,
        service: Rc<dyn Service>,
        first: Option<Accepted>,
    ) {
        let slot = self.take_place(worker, service);
        worker.sources().with(worker, slot, |source, worker| {
            let Source::Connection(attachment) = source else { return Next::Remove };
            if let Some(accepted) = first {
                attachment.lock().open(&attachment.cx(worker), accepted);
            }
            attachment.run(worker, Causes::ALL)
        });
        let target = self.changes.lock().target.clone();
        target
            .into_iter()
            .filter(|other| *other != worker.index())
            .for_each(|other| self.call_in(other));
    }

    /// Asks a worker to take an attachment.
    fn call_in(self: &Arc<SharedConnection>, worker: usize) {
        let shared_connection = Arc::clone(self);
        self.handle().post_run(worker, move |worker| shared_connection.sit(worker));
    }

    fn sit(self: Arc<SharedConnection>, worker: &Worker) {
        let changes = self.changes.lock();
        let wanted = !changes.over
            && changes.target.contains(&worker.index())
            && !changes.has_seat(worker.index());
        drop(changes);
        let service = self
            .peer_identity
            .as_ref()
            .and_then(|peer_identity| worker.sources().service(peer_identity.listening.id));
        let Some(service) = service.filter(|_| wanted && !worker.is_shutting_down()) else {
            return;
        };
        let slot = self.take_place(worker, service);
        worker.sources().run(worker, slot, Causes::ALL);
    }

    /// Only ever called on the worker itself, which therefore cannot have got an attachment since
    /// it looked.
    fn take_place(
        self: &Arc<SharedConnection>,
        worker: &Worker,
        service: Rc<dyn Service>,
    ) -> usize {
        let mut changes = self.changes.lock();
        let counters = changes.counters_of(worker.index());
        let gone = Arc::<AtomicBool>::default();
        let (shared_connection, is_gone) = (Arc::clone(self), Arc::clone(&gone));
        let slot = worker.sources().insert(|_| {
            Source::Connection(Box::new(Attachment {
                shared_connection,
                service,
                counters,
                gone: is_gone,
            }))
        });
        changes.places.push(Place { worker: worker.index(), slot, watching: false, gone });
        self.ordered.store(true, Release);
        slot
    }

    /// Puts the socket into the epoll sets of all attachments. For the holder of the driver's lock.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn watch(&self, stream: &Stream) -> std::io::Result<()> {
        let mut changes = self.changes.lock();
        changes.places.iter_mut().try_for_each(|place| {
            self.register(place, stream)?;
            place.watching = true;
            Ok(())
        })
    }

    fn register(&self, place: &Place, stream: &Stream) -> std::io::Result<()> {
        let registry = self.handle().worker_shared(place.worker).registry();
        registry.register(&mut SourceFd(&stream.as_raw_fd()), token(place.slot), stream.interest())
    }

    /// Tells the epoll sets of all attachments that [`Stream::interest`] has changed. For the
    /// holder of the driver's lock.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn watch_again(&self, stream: &Stream) -> std::io::Result<()> {
        let changes = self.changes.lock();
        changes.places.iter().filter(|place| place.watching).try_for_each(|place| {
            let registry = self.handle().worker_shared(place.worker).registry();
            registry.reregister(
                &mut SourceFd(&stream.as_raw_fd()),
                token(place.slot),
                stream.interest(),
            )
        })
    }

    /// Says which workers are to serve the connection, and whether they wait for each other.
    pub(crate) fn assign(self: &Arc<SharedConnection>, target: Vec<usize>, handoff: bool) {
        assert!(!target.is_empty(), "a connection has a worker");
        let mut changes = self.changes.lock();
        if changes.over {
            return;
        }
        self.handoff.store(handoff, Release);
        let missing: Vec<usize> =
            target.iter().copied().filter(|worker| !changes.has_seat(*worker)).collect();
        changes.target = target;
        self.ordered.store(true, Release);
        drop(changes);
        missing.into_iter().for_each(|worker| self.call_in(worker));
        self.connection.poke(Causes::ALL);
    }

    /// The workers that are to serve it.
    pub(crate) fn target(&self) -> Vec<usize> {
        self.changes.lock().target.clone()
    }

    /// Gives the session another socket, which the next worker that runs the connection takes.
    ///
    /// # Errors
    /// The socket, if the session is over.
    #[expect(
        clippy::result_large_err,
        reason = "the socket comes back whole; it is rare, and never passed up"
    )]
    pub(crate) fn offer(&self, accepted: Accepted) -> Result<(), Accepted> {
        let mut changes = self.changes.lock();
        if changes.over {
            return Err(accepted);
        }
        changes.incoming = Some(accepted);
        self.ordered.store(true, Release);
        drop(changes);
        self.connection.poke(Causes::ALL);
        Ok(())
    }

    /// The connection has ended: all attachments go. Returns a socket that came too late for it.
    pub(crate) fn dissolve(&self) -> Option<Accepted> {
        let mut changes = self.changes.lock();
        changes.over = true;
        let places = std::mem::take(&mut changes.places);
        let incoming = changes.incoming.take();
        self.connection.set_slots([].into_iter(), places.iter().map(|place| place.worker));
        drop(changes);
        places.into_iter().for_each(|place| self.vacate(place));
        incoming
    }

    /// Takes an attachment away from its worker; one that runs meanwhile finds that it is gone.
    fn vacate(&self, place: Place) {
        place.gone.store(true, Release);
        let Place { worker, slot, gone, .. } = place;
        self.handle().post_run(worker, move |worker| worker.sources().remove_seat(slot, &gone));
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        let changes = self.changes.lock();
        let stats = |(worker, counters): &(usize, Arc<AttachmentCounters>)| AttachmentStats {
            worker: *worker,
            seated: changes.has_seat(*worker),
            acquisitions: counters.acquisitions.get(),
            contended: counters.contended.get(),
            lock_wait_ns: counters.wait_ns.get(),
            marks: counters.marks.get(),
            messages: counters.messages.get(),
            bytes_in: counters.bytes_in.get(),
            bytes_out: counters.bytes_out.get(),
        };
        ConnectionStats {
            id: self.connection.id(),
            peer: self.connection.peer(),
            name: self
                .peer_identity
                .as_ref()
                .map(|peer_identity| peer_identity.name.clone())
                .unwrap_or_default(),
            lane: self
                .peer_identity
                .as_ref()
                .map(|peer_identity| peer_identity.lane)
                .unwrap_or_default(),
            state: self.connection.state(),
            workers: changes.target.clone(),
            attachments: changes.counters.iter().map(stats).collect(),
            lock: self.driver.stats(),
        }
    }

    /// Lock time and bytes, of all workers, since the last call. For the placement task only.
    pub(crate) fn load_since_placement(&self) -> (Duration, u64) {
        let stats = self.stats();
        let since = |last: &AtomicU64, now: u64| now.saturating_sub(last.swap(now, Relaxed));
        let lock_ns = since(&self.placed_at.0, stats.lock_wait_ns());
        (Duration::from_nanos(lock_ns), since(&self.placed_at.1, stats.bytes()))
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.handle().connection_went();
    }
}

/// A worker's part in a connection, among the worker's sources.
pub(crate) struct Attachment {
    shared_connection: Arc<SharedConnection>,
    service: Rc<dyn Service>,
    counters: Arc<AttachmentCounters>,
    gone: Arc<AtomicBool>,
}

impl Attachment {
    fn cx<'a>(&'a self, worker: &'a Worker) -> Cx<'a> {
        Cx {
            worker,
            service: &*self.service,
            shared_connection: &self.shared_connection,
            counters: &self.counters,
        }
    }

    /// True for the attachment whose place has this mark.
    pub(crate) fn is(&self, gone: &Arc<AtomicBool>) -> bool {
        Arc::ptr_eq(&self.gone, gone)
    }

    /// Takes the connection's lock, and times a wait.
    fn lock(&self) -> ContentionGuard<'_, Driver> {
        self.counters.acquisitions.add(1);
        if let Some(driver) = self.shared_connection.driver.try_lock() {
            return driver;
        }
        let began = Instant::now();
        let driver = self.shared_connection.driver.lock();
        self.counters.contended.add(1);
        self.counters.wait_ns.add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        driver
    }

    pub(crate) fn run(&self, worker: &Worker, causes: Causes) -> Next {
        if self.shared_connection.handoff.load(Acquire) {
            return self.run_or_mark(worker, causes);
        }
        let mut driver = self.lock();
        self.turn(worker, &mut driver, causes)
    }

    /// Runs the connection unless another worker does, which then does this one's work too.
    fn run_or_mark(&self, worker: &Worker, causes: Causes) -> Next {
        let lock_queue = &self.shared_connection.lock_queue;
        let Some(mut reasons) = lock_queue.enter(causes.bits()) else {
            self.counters.marks.add(1);
            return Next::Keep(None);
        };
        for _ in 0..PASSES_MAX {
            let next = self.turn(worker, &mut self.lock(), Causes::from_bits(reasons));
            match (lock_queue.leave(), next) {
                (None, _) => return next,
                (Some(marks), Next::Remove) => {
                    // What others left here is for those that stay.
                    self.leave_gate();
                    self.shared_connection.connection.poke(Causes::ALL | Causes::from_bits(marks));
                    return next;
                }
                (Some(marks), _) => reasons = marks,
            }
        }
        self.lock().note(Causes::from_bits(reasons));
        let more = reasons | self.leave_gate();
        if Causes::from_bits(more).has(Causes::FLUSH | Causes::TIMER) {
            self.shared_connection.connection.clear_dirty();
            self.shared_connection.connection.mark_dirty(0);
        }
        Next::Again(None)
    }

    /// Goes out of the lock queue for good; marks that come meanwhile are noted, and returned.
    fn leave_gate(&self) -> u32 {
        let mut all = 0;
        while let Some(marks) = self.shared_connection.lock_queue.leave() {
            self.lock().note(Causes::from_bits(marks));
            all |= marks;
        }
        all
    }

    /// One turn with the lock.
    fn turn(&self, worker: &Worker, driver: &mut Driver, causes: Causes) -> Next {
        if driver.is_finished() {
            return Next::Remove;
        }
        let cx = self.cx(worker);
        let more = if self.shared_connection.ordered.load(Acquire) {
            self.settle(driver, &cx)
        } else {
            Causes::NONE
        };
        if driver.is_finished() {
            return Next::Remove;
        }
        if self.gone.load(Relaxed) {
            self.shared_connection.connection.poke(Causes::ALL | causes);
            return Next::Remove;
        }
        driver.run(&cx, causes | more)
    }

    /// Carries out what was ordered; returns for what else the connection has to run.
    fn settle(&self, driver: &mut Driver, cx: &Cx<'_>) -> Causes {
        let shared_connection = &self.shared_connection;
        let mut changes = shared_connection.changes.lock();
        shared_connection.ordered.store(false, Relaxed);
        if let Some(stream) = driver.stream() {
            for place in changes.places.iter_mut().filter(|place| !place.watching) {
                match shared_connection.register(place, stream) {
                    Ok(()) => place.watching = true,
                    Err(error) => {
                        tracing::error!(worker = place.worker, %error, "cannot watch a connection");
                        shared_connection.ordered.store(true, Relaxed); // the next turn tries again
                    }
                }
            }
        }
        let (places, target) = (std::mem::take(&mut changes.places), changes.target.clone());
        let came = |place: &Place| target.contains(&place.worker);
        let (mut stay, mut leave) = (places, Vec::new());
        if stay.iter().any(|place| came(place) && (place.watching || driver.stream().is_none())) {
            (stay, leave) = stay.into_iter().partition(came);
        }
        stay.sort_by_key(|place| target.iter().position(|worker| *worker == place.worker));
        let slots = stay.iter().map(|place| (place.worker, place.slot));
        shared_connection.connection.set_slots(slots, leave.iter().map(|place| place.worker));
        changes.places = stay;
        let incoming = changes.incoming.take();
        drop(changes);
        let left = !leave.is_empty();
        for place in leave {
            if let Some(stream) = driver.stream().filter(|_| place.watching) {
                let registry = shared_connection.handle().worker_shared(place.worker).registry();
                if let Err(error) = registry.deregister(&mut SourceFd(&stream.as_raw_fd())) {
                    tracing::error!(worker = place.worker, %error, "cannot stop watching a connection");
                }
            }
            shared_connection.vacate(place);
        }
        let too_late = incoming.and_then(|accepted| driver.take_over(cx, accepted));
        if let Some(accepted) = too_late {
            listener::admit(cx.worker, accepted);
        }
        if left { Causes::ALL } else { Causes::NONE }
    }

    pub(crate) fn begin_shutdown(&self, worker: &Worker) -> Next {
        if self.shared_connection.peer_identity.is_some() {
            return Next::Keep(None);
        }
        let mut driver = self.lock();
        driver.begin_shutdown(&self.cx(worker));
        if driver.is_finished() { Next::Remove } else { Next::Keep(None) }
    }

    /// True once nothing more has to be sent; not while another worker is at it.
    pub(crate) fn is_drained(&self) -> bool {
        self.shared_connection.driver.try_lock().is_some_and(|driver| driver.is_drained())
    }

    /// The worker ends. Its attachment goes; with the last one the connection does.
    pub(crate) fn close(&self, worker: &Worker) {
        let mut driver = self.lock();
        let mut changes = self.shared_connection.changes.lock();
        let mine = changes.places.iter().position(|place| Arc::ptr_eq(&place.gone, &self.gone));
        let others = mine.is_some() && changes.places.len() > 1;
        if others {
            changes.places.retain(|place| !Arc::ptr_eq(&place.gone, &self.gone));
            let slots: Vec<_> =
                changes.places.iter().map(|place| (place.worker, place.slot)).collect();
            self.shared_connection
                .connection
                .set_slots(slots.into_iter(), [worker.index()].into_iter());
        }
        drop(changes);
        if others {
            self.shared_connection.connection.poke(Causes::ALL);
        } else if mine.is_some() {
            driver.finish(&self.cx(worker), &CloseReason::Shutdown);
        }
    }
}
