//! Bytes on their way to a socket: many frames per system call, large data not copied.
//!
//! Contract: segments are written in the order in which frames were pushed. Headers, fronts and small data are
//! gathered in one buffer; data from [`COPY_BYTES_MAX`] up stays where it is and is written from there.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::frame::{Message, put_header_and_front, put_trailer};

/// Data up to here is copied next to its header: cheaper than two more entries in the kernel's vector.
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
}

impl TxQueue {
    /// Appends bytes that are no frame.
    pub(crate) fn push_raw(&mut self, bytes: Bytes) {
        self.seal();
        self.bytes += bytes.len();
        self.segments.push_back(bytes);
    }

    /// Appends a frame. The data's checksum is kept in the message, for another sending.
    pub(crate) fn push_frame(&mut self, seq: u64, ack: u64, message: &mut Message) {
        let data_crc = message.data_crc.unwrap_or_else(|| crc32c::crc32c(&message.data));
        message.data_crc = Some(data_crc);
        if self.tail.capacity() - self.tail.len() < message.front.len() + 256 {
            self.seal();
            self.tail.reserve(GATHER_BYTES);
        }
        put_header_and_front(seq, ack, message, &mut self.tail);
        if message.data.len() < COPY_BYTES_MAX {
            self.tail.put_slice(&message.data);
        } else {
            self.seal();
            self.segments.push_back(message.data.clone());
        }
        put_trailer(message, &mut self.tail);
        self.bytes += message.wire_bytes();
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
    use crate::buffer::Pool;
    use crate::frame::{FrameCodec, FrameLimits, TrafficClass};
    use crate::lock::LockTable;
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
            tx.push_frame(seq as u64 + 1, 0, &mut message.clone());
        }
        let mut socket = Narrow(Vec::new());
        let total = tx.bytes();
        while !tx.is_empty() {
            tx.write_to(&mut socket).expect("takes bytes");
        }
        assert_eq!(socket.0.len(), total);
        let mut codec = FrameCodec::new(FrameLimits::default(), Arc::new(Pool::new(1 << 20, &LockTable::default())));
        let mut src = BytesMut::from(&socket.0[..]);
        for message in sent {
            let frame = codec.decode(&mut src).expect("valid").expect("whole");
            assert_eq!((frame.message.front, frame.message.data), (message.front, message.data));
        }
    }
}
