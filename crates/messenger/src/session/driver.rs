//! Drives a connection on whichever of its workers runs it: dialling, handshake, frames,
//! keep-alive, reconnecting, closing.
//!
//! Contract: what a session is lies in `session`, what bytes mean in `frame` and `handshake`; this
//! module carries between them and the socket and keeps the time. A fault of TCP or of a frame ends
//! the TCP connection, and only what no resend could mend ends the session. The worker and other
//! connections are never affected. A driver is in one `shared connection`, which lets in one worker
//! at a time; what belongs to that worker comes as a [`Cx`].

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};

use crate::executor::runtime::Handle;
use crate::executor::worker::Worker;
use crate::io::reactor::{Causes, Next};
use crate::io::stream::Stream;
use crate::mapping::shared_connection::{Cx, SharedConnection};
use crate::serve::listener::{self, Listening};
use crate::serve::service::{CloseReason, ConnState, ConnectConfig, PeerInfo, Service, StateEvent};
use crate::session::Arrival;
use crate::session::connection::{Connection, USER_FLAGS};
use crate::shm::{Offer, ShmSender};
use crate::telemetry::operation::Operation;
use crate::wire::frame::{CodecError, Frame, FrameCodec, FrameError, RESERVED_KINDS};
use crate::wire::frame_socket::{
    KIND_ACK, KIND_BYE, KIND_IDLE, KIND_PING, KIND_PONG, KIND_REST, KIND_STAY, Wire, WireShm,
};
use crate::wire::handshake::{
    self, AUTH_NONE, Answer, FEATURE_LENDING, FEATURES, Hello, Refusal, Resume, Welcome,
};

/// Messages dispatched from one connection before others have their turn.
const MESSAGES_PER_TURN: usize = 64;
/// Bytes read from one connection before others have their turn.
const BYTES_PER_TURN: usize = 1 << 20;
/// How long a closing connection goes on sending what is queued.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// How often a connection that lends looks what was given back, besides when it sends: what a burst
/// has lent is back before the pools free what nobody needs.
const LOANS_INTERVAL: Duration = Duration::from_secs(1);

/// What ends a TCP connection, or more.
#[derive(Debug)]
enum Fault {
    /// TCP is lost.
    Lost(String),
    /// A frame was refused.
    Frame(FrameError),
    /// A handler panicked.
    Panic,
    /// The peer refused the handshake.
    Refused(Refusal),
    /// The session is over.
    Close(CloseReason),
    /// The session is over until something is to be sent.
    Rest,
}

impl Fault {
    fn timed_out() -> Fault {
        Fault::Lost("the handshake timed out".into())
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Fault {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Fault::Lost("the peer closed the connection".into())
            }
            _ => Fault::Lost(error.to_string()),
        }
    }
}

impl From<CodecError> for Fault {
    fn from(error: CodecError) -> Fault {
        match error {
            CodecError::Frame(error) => Fault::Frame(error),
            CodecError::Io(error) => error.into(),
        }
    }
}

struct Connector {
    config: ConnectConfig,
    cookie: u128,
    /// The session that the peer knows, once it was up.
    incarnation: Option<u64>,
    attempts: u32,
    told_down: bool,
    /// Agreed that the session ends, and has sent nothing since; the peer has ended it, or answers.
    agreed: bool,
    /// The session has ended by agreement, and the next one has not begun.
    rested: bool,
    /// Shm could not be agreed on: the next attempt goes without it.
    no_lending: bool,
}

struct Acceptance {
    listening: Arc<Listening>,
    cookie: u128,
    incarnation: u64,
    /// When the last message came or went, or the client was asked whether the session may end.
    idle_since: Instant,
    /// The client was asked since the last message.
    asked: bool,
}

enum Role {
    Connecting(Box<Connector>),
    Accepting(Acceptance),
}

enum Link {
    /// No TCP: until the next attempt, or until the session is forgotten.
    Waiting { until: Instant },
    /// Connecting side: no TCP and no session until something is to be sent.
    Resting,
    /// TCP is being made.
    Dialing { stream: Stream, until: Instant },
    /// The handshake is under way.
    Greeting(Box<Greeting>),
    /// Frames flow.
    Up(Box<Wire>),
}

/// The connecting side's handshake.
struct Greeting {
    stream: Stream,
    until: Instant,
    /// What of the hello is not out.
    out: Bytes,
    /// Goes with it.
    offer: Option<Offer>,
    /// Lends what the offer is about, if the peer agrees.
    sender: Option<ShmSender>,
    buf: BytesMut,
    /// What came with the answer.
    fds: Vec<OwnedFd>,
}

/// A connection, apart from the workers that serve it.
pub(crate) struct Driver {
    connection: Connection,
    role: Role,
    link: Link,
    last_rx: Instant,
    /// The turn in which bytes were read last.
    read_at: Instant,
    /// Since when the peer owes something.
    owed_since: Option<Instant>,
    pinged: bool,
    /// Since when a frame has begun and not ended.
    frame_since: Option<Instant>,
    /// When it is looked what has been given back of what was lent, if anything was.
    loans_due: Option<Instant>,
    close_until: Option<Instant>,
    finished: bool,
}

impl Driver {
    fn new(connection: Connection, role: Role, now: Instant) -> Driver {
        // The connecting side dials at once; the accepting side gets its socket before that time is
        // over.
        let until = match &role {
            Role::Connecting(_) => now,
            Role::Accepting(acceptance) => now + acceptance.listening.config.session.forget_after,
        };
        Driver {
            connection,
            role,
            link: Link::Waiting { until },
            last_rx: now,
            read_at: now,
            owed_since: None,
            pinged: false,
            frame_since: None,
            loans_due: None,
            close_until: None,
            finished: false,
        }
    }

    /// Runs the connection, and says when it wants to be run again.
    pub(crate) fn run(&mut self, cx: &Cx<'_>, causes: Causes) -> Next {
        let now = Instant::now();
        self.connection.clear_dirty();
        if matches!(&self.link, Link::Up(wire) if self.is_paused(wire)) {
            // silence that this side has caused is no sign of death
            self.last_rx = now;
            self.frame_since = self.frame_since.map(|_| now);
        }
        if let Err(fault) = self.advance(cx, causes, now) {
            self.fail(cx, fault, now);
        }
        if self.finished {
            return Next::Remove;
        }
        let at = self.next_timer(now);
        match &self.link {
            Link::Up(wire) if (wire.readable || wire.backlog) && !self.is_paused(wire) => {
                Next::Again(at)
            }
            _ => Next::Keep(at),
        }
    }

    /// Takes notice of readiness, without acting on it.
    pub(crate) fn note(&mut self, causes: Causes) {
        if let Link::Up(wire) = &mut self.link {
            wire.readable |= causes.has(Causes::READABLE | Causes::CLOSED);
            wire.writable |= causes.has(Causes::WRITABLE);
            wire.ending |= causes.has(Causes::CLOSED);
        }
    }

    fn advance(&mut self, cx: &Cx<'_>, causes: Causes, now: Instant) -> Result<(), Fault> {
        self.expire_calls(cx, now);
        self.check_close(now)?;
        match &mut self.link {
            Link::Waiting { until } if *until > now => Ok(()),
            Link::Waiting { .. } => self.waited(cx, now),
            Link::Resting if self.connection.core().session.has_unsent() => self.waited(cx, now),
            Link::Resting => Ok(()),
            Link::Dialing { until, .. } if *until <= now => Err(Fault::timed_out()),
            Link::Greeting(greeting) if greeting.until <= now => Err(Fault::timed_out()),
            Link::Dialing { .. } if causes.has(Causes::WRITABLE | Causes::CLOSED) => {
                self.dialed(cx, now)
            }
            Link::Dialing { .. } => Ok(()),
            Link::Greeting(_) => self.greet(cx, now),
            Link::Up(_) => {
                self.note(causes);
                self.carry(cx, causes, now)
            }
        }
    }

    /// Frames in, frames out.
    fn carry(&mut self, cx: &Cx<'_>, causes: Causes, now: Instant) -> Result<(), Fault> {
        if causes.has(Causes::READABLE | Causes::WRITABLE | Causes::CLOSED | Causes::REQUEUED) {
            self.receive(cx, now)?;
            let core = self.connection.core();
            let due = core.session.ack_due().is_some_and(|at| at <= now) || core.has_held();
            drop(core);
            let waiting =
                matches!(&self.link, Link::Up(wire) if wire.writable && !wire.tx.is_empty());
            if due || waiting {
                // At the end of the turn, together with the replies that this turn produces.
                self.connection.mark_dirty(0);
            }
        }
        if causes.has(Causes::TIMER) {
            self.keep_alive(cx, now)?;
            self.ask_to_rest(cx, now);
            self.take_back_leases(now);
        }
        if causes.has(Causes::TIMER | Causes::FLUSH) { self.send(cx, now) } else { Ok(()) }
    }

    fn receive(&mut self, cx: &Cx<'_>, now: Instant) -> Result<(), Fault> {
        let (mut messages, mut bytes) = (0, 0);
        loop {
            if let Link::Up(wire) = &self.link
                && self.is_paused(wire)
            {
                return Ok(());
            }
            let Link::Up(wire) = &mut self.link else { return Ok(()) };
            while messages < MESSAGES_PER_TURN && bytes < BYTES_PER_TURN {
                match wire.decode()? {
                    Some((frame, lent_bytes)) => {
                        messages += 1;
                        bytes += lent_bytes;
                        count_in(cx, lent_bytes);
                        cx.worker.counters().lent_bytes_in.add(lent_bytes as u64);
                        self.frame_since = None;
                        let at = Moment { now, read: self.read_at };
                        if frame.message.kind < RESERVED_KINDS {
                            self.role.carried(now);
                            dispatch(cx, &self.connection, frame, at)?;
                        } else {
                            control(cx, &self.connection, &mut self.role, wire, &frame)?;
                        }
                        if let Role::Connecting(connector) = &mut self.role {
                            connector.attempts = 0;
                        }
                    }
                    None => {
                        wire.backlog = false;
                        self.frame_since =
                            wire.is_mid_frame().then(|| self.frame_since.unwrap_or(now));
                        break;
                    }
                }
            }
            if messages >= MESSAGES_PER_TURN || bytes >= BYTES_PER_TURN {
                wire.backlog = true;
                return Ok(());
            }
            if !wire.readable {
                return Ok(());
            }
            let count = wire.read(&mut cx.worker.sources().scratch.borrow_mut())?;
            if count > 0 {
                bytes += count;
                count_in(cx, count);
                (self.last_rx, self.read_at) = (now, now);
                self.pinged = false;
            }
        }
    }

    fn send(&mut self, cx: &Cx<'_>, now: Instant) -> Result<(), Fault> {
        let Link::Up(wire) = &mut self.link else { return Ok(()) };
        loop {
            let mut core = self.connection.core();
            if !self.role.has_agreed() && wire.fill(&mut core, cx.worker.counters()) {
                self.role.carried(now);
            }
            if core.session.ack_due().is_some_and(|at| at <= now) {
                wire.push_control(KIND_ACK, &mut core, cx.worker.counters());
            }
            let more = core.session.has_unsent();
            let closing = core.close_wanted.clone();
            if closing.is_some() && !more && !core.has_held() && !wire.farewell {
                wire.farewell = true;
                wire.push_control(KIND_BYE, &mut core, cx.worker.counters());
            }
            drop(core);
            let (waiting, lent) = (wire.tx.bytes(), wire.tx.take_lent_bytes());
            let written = wire.write(cx.worker.counters());
            cx.counters.bytes_out.add((waiting - wire.tx.bytes() + lent) as u64);
            cx.worker.counters().bytes_out.add(lent as u64);
            cx.worker.counters().lent_bytes_out.add(lent as u64);
            written?;
            if wire.stream.set_blocked(!wire.writable) {
                cx.shared_connection.watch_again(&wire.stream)?;
            }
            if wire.tx.is_empty() && wire.farewell {
                return Err(Fault::Close(closing.unwrap_or(CloseReason::Local)));
            }
            if !wire.tx.is_empty() || !more || self.role.has_agreed() {
                return Ok(());
            }
        }
    }

    /// Accepting side: replies that do not get out stop more requests from coming in, and so do
    /// requests that wait for their replies. The connecting side always reads, so that two ends
    /// never wait for each other; and while all replies are out, acknowledgements must be read.
    fn is_paused(&self, wire: &Wire) -> bool {
        if matches!(self.role, Role::Connecting(_)) {
            return false;
        }
        if self.connection.is_full() || wire.tx.is_empty() {
            return self.connection.is_full();
        }
        let core = self.connection.core();
        let waiting = core.session.unsent_bytes() + wire.tx.bytes();
        waiting > self.connection.config().pause_bytes || core.has_held()
    }

    fn expire_calls(&mut self, cx: &Cx<'_>, now: Instant) {
        let (wakers, expired) = self.connection.core().expire(now);
        cx.worker.counters().deadlines.add(expired as u64);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn check_close(&mut self, now: Instant) -> Result<(), Fault> {
        let Some(reason) = self.connection.core().close_wanted.clone() else { return Ok(()) };
        let until = *self.close_until.get_or_insert(now + CLOSE_MAX);
        let is_wanted = self.role.rests() && self.connection.core().session.has_unsent();
        let can_flush = (is_wanted || matches!(self.link, Link::Up(_)))
            && !matches!(reason, CloseReason::Overflow(_));
        if can_flush && now < until { Ok(()) } else { Err(Fault::Close(reason)) }
    }

    fn keep_alive(&mut self, cx: &Cx<'_>, now: Instant) -> Result<(), Fault> {
        let config = self.connection.config();
        if self.frame_since.is_some_and(|since| now >= since + config.frame_max) {
            return Err(Fault::Lost(format!("a frame did not end within {:?}", config.frame_max)));
        }
        let Some((ping_at, dead_at)) = self.silence() else { return Ok(()) };
        let Link::Up(wire) = &mut self.link else { return Ok(()) };
        if now >= dead_at {
            return Err(Fault::Lost("the peer was silent for too long".into()));
        }
        if now >= ping_at && !self.pinged {
            self.pinged = true;
            wire.push_control(KIND_PING, &mut self.connection.core(), cx.worker.counters());
        }
        Ok(())
    }

    /// Asks the client whether the session may end, once it has carried nothing for long.
    fn ask_to_rest(&mut self, cx: &Cx<'_>, now: Instant) {
        let (Some(due), Link::Up(wire), Role::Accepting(acceptance)) =
            (self.idle_at(), &mut self.link, &mut self.role)
        else {
            return;
        };
        if now < due {
            return;
        }
        acceptance.idle_since = now;
        let mut core = self.connection.core();
        if core.is_at_rest() {
            acceptance.asked = true;
            wire.push_control(KIND_IDLE, &mut core, cx.worker.counters());
        }
    }

    /// What was lent to a peer that is sent nothing more comes back all the same.
    fn take_back_leases(&mut self, now: Instant) {
        let Link::Up(wire) = &mut self.link else { return };
        if self.loans_due.is_some_and(|due| due <= now) {
            wire.take_back_leases();
            self.loans_due = None;
        }
    }

    /// Accepting side: when the session has carried nothing for long.
    fn idle_at(&self) -> Option<Instant> {
        let Role::Accepting(acceptance) = &self.role else { return None };
        Some(acceptance.idle_since + self.connection.config().idle_timeout?)
    }

    /// When the peer's silence makes this side ping it, and when it counts as dead; `None` while
    /// nothing is read on purpose.
    fn silence(&self) -> Option<(Instant, Instant)> {
        let Link::Up(wire) = &self.link else { return None };
        let config = self.connection.config();
        let (since, ping_after) = match self.owed_since {
            Some(owed) => (owed.max(self.last_rx), config.ping_after),
            None => (self.last_rx, config.idle_after),
        };
        let ping_at = since + ping_after;
        let dead_at = ping_at + config.dead_after.saturating_sub(config.ping_after);
        (!self.is_paused(wire)).then_some((ping_at, dead_at))
    }

    fn next_timer(&mut self, now: Instant) -> Option<Instant> {
        let core = self.connection.core();
        let owed = core.is_owed();
        let calls = core.earliest_deadline();
        // One that is due already goes out with the flush at the end of this turn.
        let ack = core.session.ack_due().filter(|at| *at > now);
        drop(core);
        self.owed_since = if owed { Some(self.owed_since.unwrap_or(now)) } else { None };
        let has_lent = matches!(&self.link, Link::Up(wire) if wire.has_lent());
        let config = self.connection.config();
        let link = match &self.link {
            Link::Waiting { until } | Link::Dialing { until, .. } => Some(*until),
            Link::Greeting(greeting) => Some(greeting.until),
            Link::Up(_) => {
                let silence = self
                    .silence()
                    .map(|(ping_at, dead_at)| if self.pinged { dead_at } else { ping_at });
                let frame = self.frame_since.map(|since| since + config.frame_max);
                let leases = has_lent.then(|| *self.loans_due.get_or_insert(now + LOANS_INTERVAL));
                [ack, silence, frame, self.idle_at(), leases].into_iter().flatten().min()
            }
            Link::Resting => None,
        };
        [calls, link, self.close_until].into_iter().flatten().min()
    }
}

impl Role {
    /// A message came or went.
    fn carried(&mut self, now: Instant) {
        if let Role::Accepting(acceptance) = self {
            (acceptance.idle_since, acceptance.asked) = (now, false);
        }
    }

    /// Connecting side: has the session ended by agreement, without another since?
    fn rests(&self) -> bool {
        matches!(self, Role::Connecting(connector) if connector.rested)
    }

    fn has_agreed(&self) -> bool {
        matches!(self, Role::Connecting(connector) if connector.agreed)
    }
}

/// The time for the frames of one turn.
#[derive(Clone, Copy)]
struct Moment {
    /// When the turn began.
    now: Instant,
    /// When the turn began that read the frame's last bytes.
    read: Instant,
}

/// Counts what came in.
fn count_in(cx: &Cx<'_>, bytes: usize) {
    cx.worker.counters().bytes_in.add(bytes as u64);
    cx.counters.bytes_in.add(bytes as u64);
}

/// Takes a frame of the messenger's own.
fn control(
    cx: &Cx<'_>,
    connection: &Connection,
    role: &mut Role,
    wire: &mut Wire,
    frame: &Frame,
) -> Result<(), Fault> {
    let mut core = connection.core();
    core.session.acknowledge(frame.ack).map_err(Fault::Frame)?;
    match (frame.message.kind, role) {
        (KIND_ACK | KIND_PONG, _) => {}
        (KIND_PING, _) => wire.push_control(KIND_PONG, &mut core, cx.worker.counters()),
        (KIND_BYE, _) => return Err(Fault::Close(CloseReason::Peer)),
        (KIND_IDLE, Role::Connecting(connector)) if connector.agreed => {} // its answer is on its way
        (KIND_IDLE, Role::Connecting(connector)) => {
            drop(core);
            let agrees = cx
                .worker
                .guard("a service's on_idle", || cx.service.on_idle(cx.worker, connection));
            let mut core = connection.core();
            connector.agreed = agrees.ok_or(Fault::Panic)? && core.is_at_rest();
            if connector.agreed {
                wire.push_control(KIND_REST, &mut core, cx.worker.counters());
            }
        }
        (KIND_REST, Role::Connecting(connector)) if connector.agreed => return Err(Fault::Rest),
        (KIND_STAY, Role::Connecting(connector)) => {
            connector.agreed = false;
            drop(core);
            connection.mark_dirty(0);
        }
        (KIND_REST, Role::Accepting(acceptance)) => {
            let ends = acceptance.asked && core.is_at_rest() && connection.is_caught_up();
            wire.push_control(
                if ends { KIND_REST } else { KIND_STAY },
                &mut core,
                cx.worker.counters(),
            );
            if ends {
                // Nothing more is queued; and the client may come again before another turn.
                let reason =
                    CloseReason::Idle(connection.config().idle_timeout.unwrap_or_default());
                core.close_wanted = Some(reason.clone());
                drop(core);
                // A client that is not told finds out when it resumes.
                let told = wire.write(cx.worker.counters());
                tracing::trace!(?told, "an idle session ends");
                return Err(Fault::Close(reason));
            }
        }
        (other, _) => return Err(Fault::Frame(FrameError::UnknownKind(other))),
    }
    Ok(())
}

/// Hands one message on.
fn dispatch(cx: &Cx<'_>, connection: &Connection, frame: Frame, at: Moment) -> Result<(), Fault> {
    let Frame { seq, ack, mut message } = frame;
    let counters = cx.worker.counters();
    let mut core = connection.core();
    if seq == 0 {
        let expected = core.session.received() + 1;
        return Err(Fault::Frame(FrameError::Sequence { expected, got: 0 }));
    }
    let arrival = core
        .session
        .arrive(seq, ack, message.wire_bytes(), at.now, connection.config())
        .map_err(Fault::Frame)?;
    if arrival == Arrival::Duplicate {
        counters.duplicates.add(1);
        return Ok(());
    }
    counters.messages_in.add(1);
    cx.counters.messages.add(1);
    if message.is_reply() {
        message.flags &= USER_FLAGS;
        let (waker, began) = core.complete(message);
        drop(core);
        time(&cx.worker.message_times().call, began);
        if let Some(waker) = waker {
            waker.wake();
        }
        return Ok(());
    }
    if core.close_wanted.is_some() {
        return Ok(());
    }
    if message.is_request() {
        connection.take(&mut core, &message);
    }
    drop(core);
    time(&cx.worker.message_times().queue, Some(at.read));
    cx.worker
        .guard("a message handler", || cx.service.on_message(cx.worker, connection, message))
        .ok_or(Fault::Panic)
}

/// Counts what began then and ends now; no clock is read if nobody wants to know.
fn time(operation: &Operation, began: Option<Instant>) {
    if let Some(began) = began.filter(|_| operation.is_timed()) {
        operation.record(began, Instant::now());
    }
}

mod dial;

pub(crate) use dial::Accepted;
