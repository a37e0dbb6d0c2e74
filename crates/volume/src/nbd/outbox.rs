//! Replies on their way to a client.
//!
//! Contract: replies go out whole and in any order. Whoever has one sends it at once, as far as the
//! socket takes it without waiting; what is left, and whatever comes meanwhile, is sent by the
//! connection's writer, in a thread that may wait. A client that takes nothing for
//! [`STALL_MAX`] is cut off. How much waits is bounded by the budgets whose permits replies hold.

use super::budget::Permit;
use bytes::Bytes;
use crossbeam::channel::{Receiver, Sender, unbounded};
use messenger::sync::{ContentionMutex, LockTable};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a client may take nothing of what is sent to it, or leave a request unfinished.
pub const STALL_MAX: Duration = Duration::from_secs(60);

/// A client's socket.
#[derive(Debug)]
pub enum Socket {
    /// Of this machine.
    Unix(UnixStream),
    /// Of any.
    Tcp(TcpStream),
}

impl Socket {
    /// Another handle of the same.
    ///
    /// # Errors
    /// When there are too many files.
    pub fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Unix(socket) => socket.try_clone().map(Socket::Unix),
            Socket::Tcp(socket) => socket.try_clone().map(Socket::Tcp),
        }
    }

    /// Neither side says more.
    pub fn shutdown(&self) {
        // It may be closed already.
        let _ = match self {
            Socket::Unix(socket) => socket.shutdown(Shutdown::Both),
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Both),
        };
    }

    /// The peer's requests end here; replies still go to it.
    pub fn stop_reading(&self) {
        // It may be closed already.
        let _ = match self {
            Socket::Unix(socket) => socket.shutdown(Shutdown::Read),
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Read),
        };
    }

    /// Waits for the peer for at most so long, in both directions; replies are not held back.
    ///
    /// # Errors
    /// The system's.
    pub fn prepare(&self, patience: Duration) -> io::Result<()> {
        match self {
            Socket::Unix(socket) => {
                socket.set_read_timeout(Some(patience))?;
                socket.set_write_timeout(Some(patience))
            }
            Socket::Tcp(socket) => {
                socket.set_nodelay(true)?;
                rustix::net::sockopt::set_socket_keepalive(socket, true)?;
                socket.set_read_timeout(Some(patience))?;
                socket.set_write_timeout(Some(patience))
            }
        }
    }

    /// Has the peer closed its side, or is it gone?
    pub fn is_hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::new(self, PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(gone)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl io::Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&*socket).read(buffer),
            Socket::Tcp(socket) => (&*socket).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&*socket).write(buffer),
            Socket::Tcp(socket) => (&*socket).write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reply, with what it takes of the budgets until it is sent or cannot be.
#[derive(Debug)]
pub struct Reply {
    /// Its first bytes.
    pub head: Vec<u8>,
    /// What follows.
    pub data: Bytes,
    /// See the type.
    pub permits: [Permit; 2],
}

/// What is left of a reply.
struct Rest {
    reply: Reply,
    sent: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Replies that the writer has, or will get.
    waiting: usize,
    broken: bool,
}

/// See the module.
pub struct Outbox {
    socket: Socket,
    state: ContentionMutex<State>,
    /// `None`: the connection is over.
    sender: Sender<Option<Rest>>,
    receiver: Receiver<Option<Rest>>,
}

impl Outbox {
    /// For a client's socket.
    pub fn new(socket: Socket, locks: &LockTable) -> Outbox {
        let (sender, receiver) = unbounded();
        Outbox {
            socket,
            state: ContentionMutex::new(locks, "nbd outbox", State::default()),
            sender,
            receiver,
        }
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends a reply, now or later. Never blocks.
    pub fn push(&self, reply: Reply) {
        let mut state = self.state.lock();
        if state.broken {
            return;
        }
        let sent = if state.waiting > 0 { Ok(0) } else { send_now(&self.socket, &reply) };
        match sent {
            Ok(sent) if sent == reply.head.len() + reply.data.len() => {}
            Ok(sent) => {
                state.waiting += 1;
                // Under the lock: nothing may come between two parts of a reply. It never blocks,
                // nor fails, as this has the receiver, too.
                let _ = self.sender.send(Some(Rest { reply, sent }));
            }
            Err(_) => {
                drop(state);
                self.break_off();
            }
        }
    }

    /// Is the connection over?
    pub fn is_broken(&self) -> bool {
        self.state.lock().broken
    }

    /// The connection is over: nothing more is sent, and the writer ends.
    pub fn break_off(&self) {
        self.state.lock().broken = true;
        self.socket.shutdown();
        // It never blocks, nor fails, as this has the receiver, too.
        let _ = self.sender.send(None);
    }

    /// Sends what is left, until the connection is over. Blocks.
    pub fn write(&self) {
        while let Ok(Some(Rest { reply, sent })) = self.receiver.recv() {
            if self.is_broken() {
                break;
            }
            let head = &reply.head[sent.min(reply.head.len())..];
            let data = &reply.data[sent.saturating_sub(reply.head.len())..];
            let written =
                (&self.socket).write_all(head).and_then(|()| (&self.socket).write_all(data));
            match written {
                Ok(()) => self.state.lock().waiting -= 1,
                Err(error) => {
                    tracing::info!(%error, "a client takes no replies: it is cut off");
                    self.break_off();
                }
            }
        }
        // Replies that wait hold parts of the budgets.
        while self.receiver.try_recv().is_ok() {}
    }
}

/// Sends as much as goes without waiting.
fn send_now(socket: &Socket, reply: &Reply) -> io::Result<usize> {
    let parts = [IoSlice::new(&reply.head), IoSlice::new(&reply.data)];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags)
        .map_err(io::Error::from)
    {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(0)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::Budget;
    use super::*;
    use std::io::Read;
    use std::sync::Arc;

    fn reply(budget: &Arc<Budget>, byte: u8, len: usize) -> Reply {
        let permits = [budget.acquire(0), budget.acquire(len)];
        Reply { head: vec![byte; 16], data: vec![byte; len].into(), permits }
    }

    #[test]
    fn replies_arrive_whole_also_where_the_socket_is_full() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let outbox = Arc::new(Outbox::new(Socket::Unix(ours), &LockTable::default()));
        let budget = Budget::new(100, 100 << 20);
        for byte in 1..=5 {
            outbox.push(reply(&budget, byte, 3 << 20));
        }
        let writer = Arc::clone(&outbox);
        let writing = std::thread::spawn(move || writer.write());
        for byte in 1..=5 {
            let mut bytes = vec![0; 16 + (3 << 20)];
            theirs.read_exact(&mut bytes).expect("a reply");
            assert!(
                bytes.iter().all(|found| *found == byte),
                "replies keep their order here, and are whole"
            );
        }
        assert!(budget.wait_idle(Duration::from_secs(10)), "all were sent");
        outbox.break_off();
        writing.join().expect("ends");
    }

    #[test]
    fn replies_to_one_who_is_gone_hold_nothing() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let outbox = Arc::new(Outbox::new(Socket::Unix(ours), &LockTable::default()));
        let budget = Budget::new(100, 100 << 20);
        outbox.push(reply(&budget, 1, 8 << 20));
        drop(theirs);
        assert!(outbox.socket().is_hung_up());
        outbox.push(reply(&budget, 2, 1));
        outbox.write();
        outbox.push(reply(&budget, 3, 1));
        assert!(budget.wait_idle(Duration::from_secs(10)));
    }
}
