//! One socket that carries frames: bytes in, bytes out, nothing decided.
//!
//! Contract: `readable` and `writable` are true until the socket says otherwise, because readiness
//! is edge-triggered.

use std::io::{self, IoSliceMut, Read};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio_util::codec::Decoder;

use crate::io::stream::Stream;
use crate::session::connection::Core;
use crate::shm::{Offer, ShmReceiver, ShmSender};
use crate::telemetry::counters::WorkerCounters;
use crate::wire::frame::{CodecError, Frame, FrameCodec, Message, TrafficClass};
use crate::wire::tx::TxQueue;

/// An acknowledgement by itself.
pub(crate) const KIND_ACK: u16 = 0xff01;
/// Asks for a sign of life.
pub(crate) const KIND_PING: u16 = 0xff02;
/// The sign of life.
pub(crate) const KIND_PONG: u16 = 0xff03;
/// The sender has closed the session.
pub(crate) const KIND_BYE: u16 = 0xff04;
/// Accepting side: nothing was carried for long; may the session end until there is something to
/// say?
pub(crate) const KIND_IDLE: u16 = 0xff05;
/// Connecting side: yes, and nothing is sent before the answer. Accepting side: the session has
/// ended.
pub(crate) const KIND_REST: u16 = 0xff06;
/// Accepting side: no, something is under way after all; the session goes on.
pub(crate) const KIND_STAY: u16 = 0xff07;
/// Bytes gathered for the socket before more frames are taken from the session: several socket
/// buffers.
const TX_BYTES_MAX: usize = 512 << 10;
/// Data segments from here up come with others of their size as a rule, which are not read ahead:
/// what of one goes through the scratch buffer is copied twice more, and that costs more than
/// another system call.
const LARGE_BYTES: usize = 16 << 10;
/// Read ahead where large segments come: the end of a frame, and header and front of the next.
const AHEAD_BYTES: usize = 1 << 10;

/// What a wire lends and borrows by.
pub(crate) struct WireShm {
    pub(crate) sender: ShmSender,
    pub(crate) receiver: Arc<ShmReceiver>,
    /// What the peer has not got yet.
    pub(crate) offer: Option<Offer>,
}

pub(crate) struct Wire {
    pub(crate) stream: Stream,
    codec: FrameCodec,
    rbuf: BytesMut,
    pub(crate) tx: TxQueue,
    sender: Option<ShmSender>,
    /// Goes with the first bytes.
    offer: Option<Offer>,
    /// The last frame's data was large.
    was_large: bool,
    /// The socket may have bytes.
    pub(crate) readable: bool,
    /// The read buffer may have whole frames.
    pub(crate) backlog: bool,
    pub(crate) writable: bool,
    /// The peer has ended its direction: a short read does not mean that the socket is empty.
    pub(crate) ending: bool,
    pub(crate) farewell: bool,
}

impl Wire {
    /// A wire whose first bytes have been read already, and whose first bytes to send are given.
    pub(crate) fn new(stream: Stream, codec: FrameCodec, rest: BytesMut, first: Bytes) -> Wire {
        let mut tx = TxQueue::default();
        if !first.is_empty() {
            tx.push_raw(first);
        }
        Wire {
            stream,
            codec,
            rbuf: rest,
            tx,
            sender: None,
            offer: None,
            was_large: false,
            readable: true,
            backlog: true,
            writable: true,
            ending: false,
            farewell: false,
        }
    }

    /// The same, both ends of which lend. The peer has the offer already, or is to get it with the
    /// first bytes.
    pub(crate) fn with_lending(self, lending: Option<WireShm>) -> Wire {
        let Some(WireShm { sender, receiver, offer }) = lending else { return self };
        Wire {
            sender: Some(sender),
            offer,
            codec: self.codec.with_borrower(Some(receiver)),
            ..self
        }
    }

    /// The next whole frame among the bytes read so far, and how many bytes of its data were lent.
    pub(crate) fn decode(&mut self) -> Result<Option<(Frame, usize)>, CodecError> {
        let Some(frame) = self.codec.decode(&mut self.rbuf)? else { return Ok(None) };
        let lent_bytes = self.codec.take_lent_bytes();
        self.was_large = frame.message.data.len() - lent_bytes >= LARGE_BYTES;
        Ok(Some((frame, lent_bytes)))
    }

    /// Looks what the peer has given back of what it was lent.
    pub(crate) fn take_back_leases(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.take_back();
        }
    }

    pub(crate) fn has_lent(&self) -> bool {
        self.sender.as_ref().is_some_and(ShmSender::has_lent)
    }

    /// Has a frame begun that has not ended? To be asked when [`Wire::decode`] gave none.
    pub(crate) fn is_mid_frame(&self) -> bool {
        !self.rbuf.is_empty() || self.codec.is_inside()
    }

    /// Reads once; 0 if the socket is empty for now. A data segment is read straight into its
    /// buffer, with what follows it going to `scratch` in the same system call.
    ///
    /// # Errors
    /// What the socket says; `UnexpectedEof` if the peer has closed it.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        let wanted = self.codec.data_wanted().filter(|_| self.rbuf.is_empty());
        let is_large =
            self.was_large || wanted.as_ref().is_some_and(|wanted| wanted.len() >= LARGE_BYTES);
        // More than that of a frame without its data: it has a long front.
        let is_short = self.rbuf.len() < AHEAD_BYTES;
        let ahead =
            if is_large && is_short { scratch.len().min(AHEAD_BYTES) } else { scratch.len() };
        let scratch = &mut scratch[..ahead];
        let (direct, asked, result) = match wanted {
            Some(wanted) => {
                let (direct, asked) = (wanted.len(), wanted.len() + scratch.len());
                let mut slices = [IoSliceMut::new(wanted), IoSliceMut::new(scratch)];
                (direct, asked, self.stream.read_vectored(&mut slices))
            }
            None => (0, scratch.len(), self.stream.read(scratch)),
        };
        let count = match result {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(0);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(error) => return Err(error),
        };
        if direct > 0 {
            self.codec.filled(count.min(direct));
        }
        self.rbuf.extend_from_slice(&scratch[..count.saturating_sub(direct)]);
        // On Linux a short read means that a stream socket is empty, and saves the call that would
        // say so.
        if count < asked && !self.ending {
            self.readable = false;
        }
        Ok(count)
    }

    /// Takes frames from the session while there is room; true if there were any.
    pub(crate) fn fill(&mut self, core: &mut Core, counters: &WorkerCounters) -> bool {
        core.release_held();
        let mut frames = 0;
        while self.tx.bytes() < TX_BYTES_MAX {
            let ack = core.session.received();
            let Some((seq, message)) = core.session.next_to_send() else { break };
            self.tx.push_frame(seq, ack, message, self.sender.as_mut());
            frames += 1;
        }
        if frames > 0 {
            core.session.take_ack();
            counters.frames_out.add(frames);
        }
        frames > 0
    }

    /// Queues a frame of the messenger's own, outside the numbering.
    pub(crate) fn push_control(&mut self, kind: u16, core: &mut Core, counters: &WorkerCounters) {
        let mut message = Message::new(TrafficClass::Control, kind, Bytes::new(), Bytes::new());
        self.tx.push_frame(0, core.session.take_ack(), &mut message, None);
        counters.frames_out.add(1);
    }

    /// Writes until everything is out or the socket is full.
    ///
    /// # Errors
    /// What the socket says, `WouldBlock` excluded.
    pub(crate) fn write(&mut self, counters: &WorkerCounters) -> io::Result<()> {
        while self.writable && !self.tx.is_empty() {
            let written = match &self.offer {
                Some(offer) => self.tx.write_to(&mut self.stream.with(offer)),
                None => self.tx.write_to(&mut self.stream),
            };
            match written {
                Ok(count) => {
                    self.offer = None;
                    counters.writes.add(1);
                    counters.bytes_out.add(count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
