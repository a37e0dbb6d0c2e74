//! The lossless session over a sequence of TCP connections, apart from any socket.
//!
//! Every frame that carries a message has a number, from 1, and is kept until the peer acknowledges
//! it. When TCP is lost, both ends tell each other the last number they received, and the rest is
//! sent again; what arrives twice is dropped. Time comes in as a parameter. Contract: messages are
//! handed over exactly once and in order, whatever happens to the TCP connections in between; a
//! peer that breaks the numbering is an error, not a gap.
//!
//! [`connection`] is what a program holds and any thread may use; [`driver`] keeps it up over
//! sockets.

pub(crate) mod connection;
pub(crate) mod driver;

use std::collections::VecDeque;
use std::time::Instant;

use crate::serve::service::SessionConfig;
use crate::wire::frame::{FrameError, Message};

/// What is counted for a frame besides its bytes: the queue entry, and reference counts of its
/// segments.
const ENTRY_BYTES: usize = 128;

/// Bytes that a message counts for in all bounds.
pub(crate) fn cost(message: &Message) -> usize {
    message.wire_bytes() + ENTRY_BYTES
}

#[derive(Debug)]
struct Outgoing {
    seq: u64,
    message: Message,
}

/// What to do with a frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Hand it over.
    New,
    /// It came before the reconnect already.
    Duplicate,
}

/// State of one end of a session.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Frames not acknowledged; the first `sent` of them went to the current TCP connection.
    out: VecDeque<Outgoing>,
    sent: usize,
    /// Number of the last frame queued.
    last_seq: u64,
    /// The peer has everything up to here.
    acked: u64,
    in_flight_bytes: usize,
    unsent_bytes: usize,
    /// Number of the last frame received.
    received: u64,
    /// What the peer was told about `received`.
    told: u64,
    untold_frames: u32,
    untold_bytes: usize,
    ack_due: Option<Instant>,
}

impl Session {
    /// Queues a message and returns what it counts for, in bytes.
    pub(crate) fn enqueue(&mut self, message: Message) -> usize {
        let bytes = cost(&message);
        self.last_seq += 1;
        self.in_flight_bytes += bytes;
        self.unsent_bytes += bytes;
        self.out.push_back(Outgoing { seq: self.last_seq, message });
        bytes
    }

    /// The next frame for the current TCP connection: its number and its message.
    pub(crate) fn next_to_send(&mut self) -> Option<(u64, &mut Message)> {
        let next = self.out.get_mut(self.sent)?;
        self.sent += 1;
        self.unsent_bytes -= cost(&next.message);
        Some((next.seq, &mut next.message))
    }

    /// The acknowledgement to put into a frame that is about to be sent; the peer counts as told.
    pub(crate) fn take_ack(&mut self) -> u64 {
        self.told = self.received;
        self.untold_frames = 0;
        self.untold_bytes = 0;
        self.ack_due = None;
        self.received
    }

    /// Takes in the numbers of a frame of `bytes` bytes.
    ///
    /// # Errors
    /// [`FrameError::Sequence`] if a frame is missing or the acknowledgement is of a frame that was
    /// never sent.
    pub(crate) fn arrive(
        &mut self,
        seq: u64,
        ack: u64,
        bytes: usize,
        now: Instant,
        config: &SessionConfig,
    ) -> Result<Arrival, FrameError> {
        self.acknowledge(ack)?;
        if seq <= self.received {
            self.ack_due = Some(now); // the peer does not know, or it would not have sent it again
            return Ok(Arrival::Duplicate);
        }
        if seq != self.received + 1 {
            return Err(FrameError::Sequence { expected: self.received + 1, got: seq });
        }
        self.received = seq;
        self.untold_frames += 1;
        self.untold_bytes += bytes;
        if self.untold_frames >= config.ack_frames || self.untold_bytes >= config.ack_bytes {
            self.ack_due = Some(now);
        } else if self.ack_due.is_none() {
            self.ack_due = Some(now + config.ack_after);
        }
        Ok(Arrival::New)
    }

    /// Forgets what the peer has received.
    ///
    /// # Errors
    /// [`FrameError::Sequence`] if it was never sent.
    pub(crate) fn acknowledge(&mut self, ack: u64) -> Result<(), FrameError> {
        let sent_seq = self.acked + self.sent as u64;
        if ack > sent_seq {
            return Err(FrameError::Sequence { expected: sent_seq, got: ack });
        }
        while self.acked < ack {
            let Some(front) = self.out.pop_front() else { break };
            debug_assert_eq!(front.seq, self.acked + 1);
            self.acked = front.seq;
            self.sent -= 1;
            self.in_flight_bytes -= cost(&front.message);
        }
        Ok(())
    }

    /// The TCP connection is gone: everything not acknowledged is to be sent again.
    pub(crate) fn lost(&mut self) {
        self.sent = 0;
        self.unsent_bytes = self.in_flight_bytes;
        self.ack_due = None;
    }

    /// A new TCP connection to the same session, whose peer has received everything up to
    /// `peer_received`.
    ///
    /// # Errors
    /// [`FrameError::Sequence`] if that is not possible; the session cannot go on.
    pub(crate) fn resume(&mut self, peer_received: u64) -> Result<(), FrameError> {
        self.lost();
        if peer_received < self.acked || peer_received > self.last_seq {
            return Err(FrameError::Sequence { expected: self.acked, got: peer_received });
        }
        while self.acked < peer_received {
            let Some(front) = self.out.pop_front() else { break };
            self.acked = front.seq;
            self.in_flight_bytes -= cost(&front.message);
        }
        self.unsent_bytes = self.in_flight_bytes;
        self.told = self.received;
        self.untold_frames = 0;
        self.untold_bytes = 0;
        self.check_invariants();
        Ok(())
    }

    /// The next session takes over what this one has queued; nothing of it was sent on any TCP
    /// connection.
    pub(crate) fn restart(&mut self) {
        let before = std::mem::take(self);
        for Outgoing { message, .. } in before.out {
            self.enqueue(message);
        }
        self.check_invariants();
    }

    /// Number of the last frame received.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Bytes sent and not acknowledged, or waiting to be sent.
    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// Bytes waiting to be sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// True if frames wait for the TCP connection.
    pub(crate) fn has_unsent(&self) -> bool {
        self.sent < self.out.len()
    }

    /// True if the peer owes an acknowledgement.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        !self.out.is_empty()
    }

    /// When an acknowledgement has to go out by itself, if one is owed.
    pub(crate) fn ack_due(&self) -> Option<Instant> {
        self.ack_due
    }

    fn check_invariants(&self) {
        assert!(self.sent <= self.out.len());
        assert_eq!(self.last_seq, self.acked + self.out.len() as u64);
        assert!(self.unsent_bytes <= self.in_flight_bytes);
        assert!(self.told <= self.received);
    }
}

#[cfg(test)]
mod tests;
