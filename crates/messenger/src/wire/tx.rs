//! Bytes on their way to a socket: many frames per system call, large data not copied.
//!
//! Contract: segments are written in the order in which frames were pushed. Headers, fronts and
//! small data are gathered in one buffer; data from [`COPY_BYTES_MAX`] up stays where it is and is
//! written from there, or is lent to a peer that can read it there.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::shm::{LEASE_BYTES, ShmSender};
use crate::wire::frame::{Message, OVERHEAD_BYTES, put_header_and_front, put_trailer};

/// Data up to here is copied next to its header: cheaper than two more entries in the kernel's
/// vector.
const COPY_BYTES_MAX: usize = 4096;
/// Size of the gathering buffer.
const GATHER_BYTES: usize = 32 << 10;
/// Segments per system call.
const SLICES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    segments: VecDeque<Bytes>,
    tail: BytesMut,
    bytes: usize,
    /// Of the frames pushed since this was taken.
    lent_bytes: usize,
}

impl TxQueue {
    /// Appends bytes that are no frame.
    pub(crate) fn push_raw(&mut self, bytes: Bytes) {
        self.seal();
        self.bytes += bytes.len();
        self.segments.push_back(bytes);
    }

    /// Appends a frame. The data's checksum is kept in the message, for another sending.
    pub(crate) fn push_frame(
        &mut self,
        seq: u64,
        ack: u64,
        message: &mut Message,
        sender: Option<&mut ShmSender>,
    ) {
        let data_crc = message.data_crc.unwrap_or_else(|| crc32c::crc32c(&message.data));
        message.data_crc = Some(data_crc);
        if self.tail.capacity() - self.tail.len() < message.front.len() + 256 {
            self.seal();
            self.tail.reserve(GATHER_BYTES);
        }
        let lease = sender.and_then(|sender| sender.lend(&message.data));
        put_header_and_front(seq, ack, message, lease.is_some(), &mut self.tail);
        self.bytes += OVERHEAD_BYTES + message.front.len();
        if let Some(lease) = lease {
            lease.put(&mut self.tail);
            self.bytes += LEASE_BYTES;
            self.lent_bytes += message.data.len();
        } else {
            self.push_data(&message.data);
        }
        put_trailer(message, &mut self.tail);
    }

    fn push_data(&mut self, data: &Bytes) {
        self.bytes += data.len();
        if data.len() < COPY_BYTES_MAX {
            self.tail.put_slice(data);
        } else {
            self.seal();
            self.segments.push_back(data.clone());
        }
    }

    /// Bytes of data that was lent in frames pushed since the last call.
    pub(crate) fn take_lent_bytes(&mut self) -> usize {
        std::mem::take(&mut self.lent_bytes)
    }

    /// Bytes not written yet.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Writes as much as one system call takes; returns the bytes.
    ///
    /// # Errors
    /// What the socket says, `WouldBlock` included.
    pub(crate) fn write_to(&mut self, socket: &mut impl Write) -> io::Result<usize> {
        self.seal();
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, segment) in slices.iter_mut().zip(&self.segments) {
            *slice = IoSlice::new(segment);
            count += 1;
        }
        let written = match count {
            1 => socket.write(&self.segments[0])?,
            _ => socket.write_vectored(&slices[..count])?,
        };
        self.advance(written);
        Ok(written)
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.segments.push_back(self.tail.split().freeze());
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while written > 0 {
            let front = self.segments.front_mut().expect("no more is written than was queued");
            if written < front.len() {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.segments.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buffer::Pool;
    use crate::sync::contention_mutex::LockTable;
    use crate::wire::frame::{FrameCodec, FrameLimits, TrafficClass};
    use std::sync::Arc;
    use tokio_util::codec::Decoder;

    /// Takes a few bytes at a time.
    struct Narrow(Vec<u8>);

    impl Write for Narrow {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            let count = buf.len().min(1000);
            self.0.extend_from_slice(&buf[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn frames_survive_partial_writes() {
        let mut tx = TxQueue::default();
        let sent: Vec<Message> = [0usize, 1, 4095, 4096, 100_000, 3]
            .into_iter()
            .map(|len| {
                let data = Bytes::from((0..len).map(|i| i as u8).collect::<Vec<_>>());
                Message::new(TrafficClass::Client, 7, Bytes::from(vec![1; len / 50]), data)
            })
            .collect();
        for (seq, message) in sent.iter().enumerate() {
            tx.push_frame(seq as u64 + 1, 0, &mut message.clone(), None);
        }
        let mut socket = Narrow(Vec::new());
        let total = tx.bytes();
        while !tx.is_empty() {
            tx.write_to(&mut socket).expect("takes bytes");
        }
        assert_eq!(socket.0.len(), total);
        let mut codec = FrameCodec::new(
            FrameLimits::default(),
            Arc::new(Pool::new(1 << 20, &LockTable::default())),
        );
        let mut src = BytesMut::from(&socket.0[..]);
        for message in sent {
            let frame = codec.decode(&mut src).expect("valid").expect("whole");
            assert_eq!((frame.message.front, frame.message.data), (message.front, message.data));
        }
    }
}
