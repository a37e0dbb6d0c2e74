//! A worker's connection to one core of one OSD, shared by all PGs of the worker that live there.
//!
//! Contract: messages of one PG leave in the order of the calls. What comes back is handed to the
//! worker's [`Local`].

use super::local::{self, Local};
use super::window::Window;
use bytes::Bytes;
use messenger::{
    Call, CloseReason, ConnState, Connection, Message, Service, StateEvent, TrafficClass, Worker,
};
use protocol::shard::AckMessage;
use protocol::{CoreId, Kind, OsdId};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Which connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OsdKey {
    /// The daemon.
    pub osd: OsdId,
    /// Its core: the connection's lane.
    pub core: CoreId,
}

/// When a message leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hurry {
    /// In this turn of the worker.
    Now,
    /// With the next message of the connection, or with [`Local::send_delayed`].
    Delayed,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct OsdLink {
    pub key: OsdKey,
    pub addr: SocketAddr,
    connection: Connection,
    up: Cell<bool>,
    /// There may be delayed messages.
    has_delayed: Cell<bool>,
    /// Expected time to an answer, in microseconds: a moving average; and when it was last
    /// measured.
    latency: Cell<(u32, Option<Instant>)>,
    /// What is on its way there, over this connection and those before it.
    pub window: Rc<Window>,
}

/// Smoothing of the expected latency: an eighth of each new measurement, as TCP does.
const LATENCY_SHIFT: u32 = 3;
/// The expected latency of an OSD that is not asked halves in this time, so that one that was slow
/// is tried again: 100 times as slow as the others, after 7 s.
const LATENCY_HALF_LIFE: Duration = Duration::from_secs(1);

/// The expected latency after a time without a measurement.
fn faded(latency: u32, idle: Duration) -> u32 {
    let halvings =
        u32::try_from(idle.as_millis() / LATENCY_HALF_LIFE.as_millis()).unwrap_or(u32::MAX);
    latency.checked_shr(halvings).unwrap_or(0).max(latency.min(1))
}

impl OsdLink {
    /// Takes over a connection just begun.
    pub fn new(key: OsdKey, addr: SocketAddr, connection: Connection, window: Rc<Window>) -> Self {
        Self {
            key,
            addr,
            connection,
            up: Cell::new(false),
            has_delayed: Cell::new(false),
            latency: Cell::new((0, None)),
            window,
        }
    }

    /// Do frames flow, or would they as soon as there are any?
    pub fn is_up(&self) -> bool {
        self.up.get()
    }

    /// Is there no TCP connection because neither side had anything to say?
    pub fn is_resting(&self) -> bool {
        self.connection.state() == ConnState::Resting
    }

    /// The connection came up or went down.
    pub fn set_up(&self, up: bool) {
        self.up.set(up);
        if !up {
            self.window.hold(false);
        }
    }

    /// Sends a one-way message; `data_crc`: its data's CRC32C, if that is known.
    pub fn send<T: IntoBytes + Immutable>(
        &self,
        kind: Kind,
        front: &T,
        data: Bytes,
        data_crc: Option<u32>,
        hurry: Hurry,
    ) {
        let message = Message { data_crc, ..message(kind, front, data) };
        match hurry {
            Hurry::Now => self.connection.send(message),
            Hurry::Delayed => {
                self.has_delayed.set(true);
                self.connection.send_later(message);
            }
        }
    }

    /// Sends what was delayed.
    pub fn send_delayed(&self) {
        if self.has_delayed.take() {
            self.connection.flush();
        }
    }

    /// Sends a request.
    pub fn call<T: IntoBytes + Immutable>(
        &self,
        kind: Kind,
        front: &T,
        deadline: Duration,
    ) -> Call {
        self.connection.call(message(kind, front, Bytes::new()), deadline)
    }

    /// Expected microseconds to an answer; 0: not known.
    pub fn latency(&self, now: Instant) -> u32 {
        let (latency, measured) = self.latency.get();
        measured.map_or(latency, |at| faded(latency, now.saturating_duration_since(at)))
    }

    /// An answer took so long.
    pub fn measured(&self, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX / 2).min(u32::MAX / 2);
        let (old, _) = self.latency.get();
        let new = if old == 0 {
            took.max(1)
        } else {
            old - (old >> LATENCY_SHIFT) + (took >> LATENCY_SHIFT)
        };
        self.latency.set((new, Some(Instant::now())));
    }

    /// An answer was waited for so long, and is waited for no longer: it would have taken more.
    pub fn overdue(&self, waited: Duration) {
        let (latency, _) = self.latency.get();
        if waited.as_micros() > u128::from(latency) {
            self.measured(waited);
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.window.hold(false);
        self.connection.close();
    }
}

fn message<T: IntoBytes + Immutable>(kind: Kind, front: &T, data: Bytes) -> Message {
    Message::new(
        TrafficClass::Client,
        kind.to_u16(),
        Bytes::copy_from_slice(front.as_bytes()),
        data,
    )
}

/// Hands what an OSD sends to the worker's state.
pub(crate) struct OsdService {
    key: OsdKey,
}

impl OsdService {
    pub fn new(key: OsdKey) -> Self {
        Self { key }
    }
}

impl Service for OsdService {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        if message.kind != Kind::Ack.to_u16() {
            tracing::debug!(osd = %self.key.osd, kind = message.kind, "message dropped: not for a client");
            return;
        }
        let Ok((ack, _)) = AckMessage::read_from_prefix(&message.front) else {
            tracing::warn!(osd = %self.key.osd, "acknowledgement too short");
            return;
        };
        local::with(worker, |local| local.on_ack(self.key, connection.id(), &ack));
    }

    fn on_state(&self, worker: &Worker, connection: &Connection, event: &StateEvent) {
        local::with(worker, |local| local.on_osd_state(self.key, connection.id(), event));
    }

    fn on_close(&self, worker: &Worker, connection: &Connection, reason: &CloseReason) {
        local::with(worker, |local| local.on_osd_close(self.key, connection.id(), reason));
    }

    fn on_idle(&self, worker: &Worker, connection: &Connection) -> bool {
        worker.local::<Local>().is_none_or(|local| local.is_at_rest(self.key, connection.id()))
    }
}

impl OsdLink {
    /// Is it this connection?
    pub fn is_connection(&self, id: u64) -> bool {
        self.connection.id() == id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_an_osd_that_is_not_asked_fades() {
        assert_eq!(faded(20_000, Duration::from_millis(999)), 20_000);
        assert_eq!(faded(20_000, Duration::from_secs(2)), 5_000);
        assert_eq!(faded(20_000, Duration::from_secs(3600)), 1, "but it never counts as not known");
        assert_eq!(faded(0, Duration::from_secs(3600)), 0);
    }
}
