//! The handle of a connection, and the state that it shares with its worker.
//!
//! Contract: a [`Connection`] may be used from any thread. What it sends is queued under the
//! connection's own lock, held for a few instructions, and a worker is told once per loop turn:
//! from the thread of one that serves it, a push to a local list, from others a lock-free queue
//! and, if the worker sleeps, an eventfd. Order of sending is the order in which
//! [`Connection::send`] and [`Connection::call`] are called, whether or not the sender has to wait.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use slab::Slab;

use crate::executor::runtime::Handle;
use crate::executor::worker::Worker;
use crate::io::reactor::Causes;
use crate::mapping::attachment_map::AttachmentMap;
use crate::serve::service::{CallError, CloseReason, ConnState, SessionConfig};
use crate::session::{Session, cost};
use crate::sync::wake_once::WakeOnce;
use crate::sync::{ContentionGuard, ContentionMutex, LockStats};
use crate::wire::frame::{FLAG_REPLY, Message, RESERVED_KINDS, ReplyTo, check_lengths};

/// Bits of the flags that callers may use.
pub(crate) const USER_FLAGS: u32 = 0xffff;

#[derive(Debug)]
enum Outcome {
    Waiting(Option<Waker>),
    Done(Result<Message, CallError>),
}

#[derive(Debug)]
struct Pending {
    generation: u32,
    began: Instant,
    deadline: Instant,
    outcome: Outcome,
}

/// What the connection's lock protects.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) session: Session,
    config: SessionConfig,
    pending: Slab<Pending>,
    /// Calls not answered yet; the rest of `pending` waits to be picked up.
    unanswered: usize,
    generation: u32,
    /// A lower bound of all deadlines.
    earliest: Option<Instant>,
    /// Messages behind the bound, in order.
    held: VecDeque<Message>,
    /// Bytes of one-way messages and replies among them.
    held_bytes: usize,
    /// Requests of the peer that are not answered, and their bytes.
    taken: usize,
    taken_bytes: usize,
    /// Set to end the connection once what is queued has been sent.
    pub(crate) close_wanted: Option<CloseReason>,
    closed: bool,
}

impl Core {
    /// Queues a message, or holds it back if too much is in flight; returns the bytes that can be
    /// sent now.
    fn submit(&mut self, message: Message) -> usize {
        if self.held.is_empty() && self.has_room(&message) {
            return self.session.enqueue(message);
        }
        if !message.is_request() {
            self.held_bytes += cost(&message);
            if self.held_bytes > self.config.held_bytes_max && self.close_wanted.is_none() {
                self.close_wanted = Some(CloseReason::Overflow(self.config.held_bytes_max));
            }
        }
        self.held.push_back(message);
        0
    }

    /// One message always fits, however large, or it would wait for ever.
    fn has_room(&self, message: &Message) -> bool {
        let in_flight = self.session.in_flight_bytes();
        in_flight == 0 || in_flight + cost(message) <= self.config.send_bytes_max
    }

    /// Queues what was held back and now fits.
    pub(crate) fn release_held(&mut self) {
        while let Some(message) = self.held.pop_front() {
            let given_up = message.is_request()
                && self
                    .pending_mut(message.id)
                    .is_none_or(|pending| matches!(pending.outcome, Outcome::Done(_)));
            if given_up {
                continue;
            }
            if !self.has_room(&message) {
                self.held.push_front(message);
                return;
            }
            if !message.is_request() {
                self.held_bytes -= cost(&message);
            }
            self.session.enqueue(message);
        }
    }

    /// A request of the peer is answered.
    fn answered(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_sub(1);
        self.taken_bytes = self.taken_bytes.saturating_sub(bytes);
    }

    /// Has the peer as many requests here as it may?
    fn has_taken_enough(&self) -> bool {
        self.taken >= self.config.requests_max || self.taken_bytes >= self.config.request_bytes_max
    }

    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// True while the peer owes a reply or an acknowledgement.
    pub(crate) fn is_owed(&self) -> bool {
        self.unanswered > 0 || self.session.has_unacknowledged()
    }

    /// True while neither side waits for anything of the other.
    pub(crate) fn is_at_rest(&self) -> bool {
        let waits =
            self.is_owed() || self.has_held() || self.taken > 0 || self.session.ack_due().is_some();
        !waits && self.close_wanted.is_none()
    }

    /// A deadline that no call precedes.
    pub(crate) fn earliest_deadline(&self) -> Option<Instant> {
        self.earliest
    }

    fn pending_mut(&mut self, id: u64) -> Option<&mut Pending> {
        let (key, generation) = ((id & u64::from(u32::MAX)) as usize, (id >> 32) as u32);
        self.pending.get_mut(key).filter(|pending| pending.generation == generation)
    }

    fn settle(&mut self, id: u64, result: Result<Message, CallError>) -> Option<Waker> {
        let pending = self.pending_mut(id)?;
        if matches!(pending.outcome, Outcome::Done(_)) {
            return None;
        }
        let before = std::mem::replace(&mut pending.outcome, Outcome::Done(result));
        self.unanswered -= 1;
        match before {
            Outcome::Waiting(waker) => waker,
            Outcome::Done(_) => None,
        }
    }

    /// Gives a reply to its call; the waker is to be woken outside the lock. Also says when the
    /// call began; a late reply is dropped.
    pub(crate) fn complete(&mut self, reply: Message) -> (Option<Waker>, Option<Instant>) {
        let waiting = self
            .pending_mut(reply.id)
            .filter(|pending| matches!(pending.outcome, Outcome::Waiting(_)));
        let began = waiting.map(|pending| pending.began);
        (self.settle(reply.id, Ok(reply)), began)
    }

    fn ids(&self) -> Vec<u64> {
        self.pending.iter().map(|(key, pending)| call_id(key, pending.generation)).collect()
    }

    /// Fails the calls whose deadline has passed; returns wakers and the number of calls.
    pub(crate) fn expire(&mut self, now: Instant) -> (Vec<Waker>, usize) {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return (Vec::new(), 0);
        }
        let mut wakers = Vec::new();
        let mut expired = 0;
        self.earliest = None;
        for (_, pending) in &mut self.pending {
            let Outcome::Waiting(waker) = &mut pending.outcome else { continue };
            if pending.deadline > now {
                self.earliest =
                    Some(self.earliest.map_or(pending.deadline, |at| at.min(pending.deadline)));
                continue;
            }
            wakers.extend(waker.take());
            pending.outcome = Outcome::Done(Err(CallError::Deadline));
            self.unanswered -= 1;
            expired += 1;
        }
        (wakers, expired)
    }

    fn fail_all(&mut self, error: CallError) -> Vec<Waker> {
        self.held.clear();
        self.held_bytes = 0;
        self.earliest = None;
        self.ids().into_iter().filter_map(|id| self.settle(id, Err(error))).collect()
    }

    /// Begins a new incarnation: calls fail, unsent messages are dropped, numbering restarts.
    pub(crate) fn reset(&mut self) -> Vec<Waker> {
        self.session = Session::default();
        (self.taken, self.taken_bytes) = (0, 0);
        self.fail_all(CallError::Reset)
    }
}

fn call_id(key: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | key as u64
}

pub(crate) struct Shared {
    id: u64,
    peer: SocketAddr,
    handle: Handle,
    attachment_map: AttachmentMap,
    /// A worker knows already that there is something to send.
    dirty: WakeOnce,
    /// Messages on their way to other workers, see [`Connection::hand_over`].
    handed: AtomicUsize,
    /// As [`Core::has_taken_enough`]; written under the core's lock.
    is_full: AtomicBool,
    state: AtomicU8,
    config: SessionConfig,
    core: ContentionMutex<Core>,
}

/// A message on its way to another worker.
struct Handed(Arc<Shared>);

impl Drop for Handed {
    fn drop(&mut self) {
        self.0.handed.fetch_sub(1, AcqRel);
    }
}

/// One end of a session with a peer. Clones are the same connection. Dropping all of them does not
/// close it.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
}

impl Connection {
    pub(crate) fn new(
        handle: Handle,
        home: usize,
        peer: SocketAddr,
        config: SessionConfig,
    ) -> Connection {
        let core = Core {
            session: Session::default(),
            config,
            pending: Slab::new(),
            unanswered: 0,
            // Random, so that a reply to a call of an earlier incarnation is not taken for one of
            // this.
            generation: fastrand::u32(..),
            earliest: None,
            held: VecDeque::new(),
            held_bytes: 0,
            taken: 0,
            taken_bytes: 0,
            close_wanted: None,
            closed: false,
        };
        let core = ContentionMutex::new(handle.locks(), "connection", core);
        let shared = Shared {
            id: handle.next_id(),
            peer,
            attachment_map: AttachmentMap::new(home, handle.workers()),
            handle,
            dirty: WakeOnce::default(),
            handed: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            state: AtomicU8::new(ConnState::Connecting as u8),
            config,
            core,
        };
        Connection { shared: Arc::new(shared) }
    }

    /// Address of the peer; on the accepting side, the one the session began from.
    pub fn peer(&self) -> SocketAddr {
        self.shared.peer
    }

    /// Number of the connection, unique in its runtime.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Index of the worker it lives on; of those that serve it, the one that was placed first.
    pub fn worker(&self) -> usize {
        self.shared.attachment_map.home()
    }

    /// Sends `f` to the worker `to`, which runs it in the order of the messages of this connection:
    /// for a message handler whose work belongs to one worker, whichever worker reads the messages.
    /// To be called by [`crate::Service::on_message`] of this connection, which is what gives the
    /// order. `f` is dropped if the runtime has stopped.
    pub fn hand_over(&self, worker: &Worker, to: usize, f: impl FnOnce(&Worker) + Send + 'static) {
        self.shared.handed.fetch_add(1, AcqRel);
        let handed = Handed(Arc::clone(&self.shared));
        worker.handle().post_run(to, move |worker| {
            let _handed = handed;
            f(worker);
        });
    }

    /// Its state now.
    pub fn state(&self) -> ConnState {
        match self.shared.state.load(Acquire) {
            0 => ConnState::Connecting,
            1 => ConnState::Up,
            2 => ConnState::Down,
            4 => ConnState::Resting,
            _ => ConnState::Closed,
        }
    }

    /// True while frames flow.
    pub fn is_up(&self) -> bool {
        self.state() == ConnState::Up
    }

    /// Sends a message that wants no reply. Never waits: what cannot be sent now is kept up to
    /// [`SessionConfig::held_bytes_max`], beyond which the connection is closed. On a closed
    /// connection it is dropped.
    ///
    /// # Panics
    /// If the kind is in the messenger's range.
    pub fn send(&self, message: Message) {
        let bytes =
            self.post(Message { id: 0, flags: message.flags & USER_FLAGS, ..message }, None);
        self.mark_dirty(bytes);
    }

    /// As [`Connection::send`], for what is in no hurry: it leaves with whatever is sent next, in
    /// order with it, or with [`Connection::flush`], which whoever sends so has to call in the end.
    pub fn send_later(&self, message: Message) {
        self.post(Message { id: 0, flags: message.flags & USER_FLAGS, ..message }, None);
    }

    /// Sends what [`Connection::send_later`] left.
    pub fn flush(&self) {
        self.mark_dirty(0);
    }

    /// Sends a request. It is queued at once, in order with everything else; the future is for the
    /// reply. If more than [`SessionConfig::send_bytes_max`] is in flight it waits its turn.
    /// Requests that wait have no bound here: whoever calls bounds the calls that it has under way,
    /// and their bytes, or a peer that stands still fills this side's memory until their deadlines.
    /// Dropping the future gives the reply up, and the request too if it has not been queued for
    /// the socket yet. `deadline` counts from now; running into it is noticed a few milliseconds
    /// late.
    ///
    /// # Panics
    /// If the kind is in the messenger's range.
    pub fn call(&self, message: Message, deadline: Duration) -> Call {
        assert!(
            message.kind < RESERVED_KINDS,
            "kind {:#06x} belongs to the messenger",
            message.kind
        );
        if let Err(error) = check_lengths(&message, &self.shared.config.limits) {
            return Call::failed(self, CallError::TooLong(error));
        }
        let began = Instant::now();
        let deadline = began + deadline;
        let mut core = self.core();
        if core.closed {
            return Call::failed(self, CallError::Closed);
        }
        core.generation = core.generation.wrapping_add(1).max(1);
        let generation = core.generation;
        let key = core.pending.insert(Pending {
            generation,
            began,
            deadline,
            outcome: Outcome::Waiting(None),
        });
        let id = call_id(key, generation);
        core.unanswered += 1;
        core.earliest = Some(core.earliest.map_or(deadline, |at| at.min(deadline)));
        let bytes = core.submit(Message { id, flags: message.flags & USER_FLAGS, ..message });
        drop(core);
        self.mark_dirty(bytes);
        Call { connection: self.clone(), id, failed: None }
    }

    /// True if nothing is on its way that [`Connection::hand_over`] sent: a handler on the right
    /// worker may then do its work at once without overtaking an earlier message.
    pub fn is_caught_up(&self) -> bool {
        self.shared.handed.load(Acquire) == 0
    }

    /// Answers a request. Does nothing for a one-way message, or if the connection is closed.
    pub fn reply(&self, to: &Message, kind: u16, front: Bytes, data: Bytes) {
        self.reply_to(to.reply_to(), Message::new(to.class, kind, front, data));
    }

    /// As [`Connection::reply`], for a request that has been taken apart, with flags and a checksum
    /// known already.
    pub fn reply_to(&self, to: ReplyTo, message: Message) {
        if to.id == 0 {
            tracing::debug!(kind = message.kind, "no reply is wanted by a one-way message");
            return;
        }
        let flags = message.flags & USER_FLAGS | FLAG_REPLY;
        let bytes =
            self.post(Message { id: to.id, class: to.class, flags, ..message }, Some(to.bytes));
        self.mark_dirty(bytes);
    }

    /// Closes the session: calls fail with [`CallError::Closed`], what is queued is sent for at
    /// most a second, the peer is told.
    pub fn close(&self) {
        self.close_with(CloseReason::Local);
    }

    /// Counters of the connection's lock.
    pub fn lock_stats(&self) -> LockStats {
        self.shared.core.stats()
    }

    pub(crate) fn close_with(&self, reason: CloseReason) {
        let mut core = self.core();
        if core.closed || core.close_wanted.is_some() {
            return;
        }
        core.close_wanted = Some(reason);
        drop(core);
        self.mark_dirty(0);
    }

    /// Queues a message, and returns the bytes that can be sent now. `answers`: the bytes of the
    /// request to which it is the reply.
    fn post(&self, message: Message, answers: Option<usize>) -> usize {
        assert!(
            message.kind < RESERVED_KINDS,
            "kind {:#06x} belongs to the messenger",
            message.kind
        );
        let lengths = check_lengths(&message, &self.shared.config.limits);
        let mut core = self.core();
        if core.closed || core.close_wanted.is_some() {
            return 0;
        }
        if let Some(bytes) = answers {
            core.answered(bytes);
            self.shared.is_full.store(core.has_taken_enough(), Release);
        }
        match lengths {
            Ok(()) => core.submit(message),
            Err(error) => {
                tracing::error!(peer = %self.peer(), kind = message.kind, %error, "message not sent");
                0
            }
        }
    }

    pub(crate) fn core(&self) -> ContentionGuard<'_, Core> {
        self.shared.core.lock()
    }

    /// A request of the peer goes to the service.
    pub(crate) fn take(&self, core: &mut Core, request: &Message) {
        core.taken += 1;
        core.taken_bytes += request.wire_bytes();
        self.shared.is_full.store(core.has_taken_enough(), Release);
    }

    /// Has the peer as many requests here as it may?
    pub(crate) fn is_full(&self) -> bool {
        self.shared.is_full.load(Acquire)
    }

    pub(crate) fn config(&self) -> &SessionConfig {
        &self.shared.config
    }

    pub(crate) fn set_state(&self, state: ConnState) {
        self.shared.state.store(state as u8, Release);
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    /// Says which workers have attachments, in which slots, the first one's to be told by default,
    /// and which have none any more. Whoever marked an attachment that went is heard by a run of
    /// another one after this.
    pub(crate) fn set_slots(
        &self,
        slots: impl Iterator<Item = (usize, usize)>,
        gone: impl Iterator<Item = usize>,
    ) {
        self.shared.attachment_map.set(slots, gone);
    }

    /// Asks the home worker to run the connection.
    pub(crate) fn poke(&self, causes: Causes) {
        let home = self.worker();
        if let Some(slot) = self.shared.attachment_map.slot(home) {
            self.shared.handle.post_source(home, slot, causes);
        }
    }

    /// To be called before a flush looks at the queue, so that what comes later marks it again.
    pub(crate) fn clear_dirty(&self) {
        self.shared.dirty.take();
    }

    /// Tells a worker that there is something to do, unless one knows: this one if it has an
    /// attachment, else the home.
    pub(crate) fn mark_dirty(&self, bytes: usize) {
        let here = self.shared.handle.this_worker();
        if !self.shared.dirty.give() {
            if let Some(worker) = here {
                worker.add_dirty_bytes(bytes);
            }
            return;
        }
        if let Some(worker) = here
            && let Some(slot) = self.shared.attachment_map.slot(worker.index)
        {
            return worker.mark_dirty(slot, bytes);
        }
        self.poke(Causes::FLUSH);
    }

    /// Ends the connection: nothing is queued any more, and all calls fail.
    pub(crate) fn finish(&self) {
        let mut core = self.core();
        core.closed = true;
        core.session = Session::default();
        let wakers = core.fail_all(CallError::Closed);
        drop(core);
        self.set_state(ConnState::Closed);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id())
            .field("peer", &self.peer())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Future of a reply, from [`Connection::call`]. May be polled on any thread.
#[derive(Debug)]
#[must_use = "dropping it gives the reply up"]
pub struct Call {
    connection: Connection,
    /// 0 once there is nothing to clean up.
    id: u64,
    failed: Option<CallError>,
}

impl Call {
    fn failed(connection: &Connection, error: CallError) -> Call {
        Call { connection: connection.clone(), id: 0, failed: Some(error) }
    }
}

impl Future for Call {
    type Output = Result<Message, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.id == 0 {
            return Poll::Ready(Err(self.failed.unwrap_or(CallError::Closed)));
        }
        let mut core = self.connection.core();
        let key = (self.id & u64::from(u32::MAX)) as usize;
        let Some(pending) = core.pending_mut(self.id) else {
            return Poll::Ready(Err(CallError::Closed));
        };
        match &mut pending.outcome {
            Outcome::Done(_) => {}
            Outcome::Waiting(Some(waker)) if waker.will_wake(cx.waker()) => return Poll::Pending,
            Outcome::Waiting(waker) => {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        let done = core.pending.remove(key);
        drop(core);
        self.id = 0;
        match done.outcome {
            Outcome::Done(result) => Poll::Ready(result),
            Outcome::Waiting(_) => Poll::Pending,
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.id == 0 {
            return;
        }
        let mut core = self.connection.core();
        if core.pending_mut(self.id).is_some() {
            let dropped = core.pending.remove((self.id & u64::from(u32::MAX)) as usize);
            core.unanswered -= usize::from(matches!(dropped.outcome, Outcome::Waiting(_)));
            drop(core);
            drop(dropped); // a reply nobody took may return its buffer to a pool: not under the lock
        }
    }
}
