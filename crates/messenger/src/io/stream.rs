//! The socket of a connection: TCP, or a Unix socket where both ends are on one host.
//!
//! A listener that takes local peers has, beside its TCP port, an abstract Unix socket named after
//! its address; whoever dials an address of his own host tries that name first. A message then
//! costs no segments, checksums and acknowledgements of TCP, nor the interrupts in which the
//! loopback device delivers them. Nothing else differs: frames, handshake, sessions, time limits.
//! The name lives in the network namespace of the listener, as its port does, and goes with the
//! socket.
//!
//! Contract: who dials a local name believes it only where the address is this host's own, and the
//! listener runs as root or as the same user: a TCP port of another host cannot be taken by a
//! program on this one, and neither can its name. (Where the system lets sockets be bound to
//! addresses of other hosts, `ip_nonlocal_bind`, every address counts as its own.)
//!
//! A Unix socket tells `epoll` that it is writable whenever its peer has read anything, so it is
//! asked about that only while something waits to be written ([`Stream::set_blocked`]).

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::time::Duration;

use mio::net::{TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token, event};
use rustix::cmsg_space;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use socket2::{SockRef, TcpKeepalive};

use crate::shm::{OFFER_FDS, Offer};

/// Bytes that a local socket takes before its writer waits, where the system allows so many
/// (`net.core.wmem_max`): two fragments of a large write.
const LOCAL_BUFFER_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Local {
        socket: UnixStream,
        /// The peer runs as root, or as the same user.
        is_trusted: bool,
        /// Something waits to be written.
        blocked: bool,
    },
}

/// The name of the Unix socket that belongs to a TCP address.
fn local_name(addr: SocketAddr) -> io::Result<unix::SocketAddr> {
    unix::SocketAddr::from_abstract_name(format!("trefoil/{addr}"))
}

/// Is this an address of this host (of this network namespace)?
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// A listener for peers on this host that dial `addr`.
///
/// # Errors
/// `AddrInUse`, and what the kernel says.
pub(crate) fn listen_local(addr: SocketAddr) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&local_name(addr)?)
}

impl Stream {
    /// Begins to connect: to the Unix socket of a listener on this host if there is one, else with
    /// TCP.
    ///
    /// # Errors
    /// What the kernel says at once.
    pub(crate) fn connect(addr: SocketAddr) -> io::Result<Stream> {
        Stream::connect_local(addr).map_or_else(|| TcpStream::connect(addr).map(Stream::tcp), Ok)
    }

    fn connect_local(addr: SocketAddr) -> Option<Stream> {
        if !is_own(addr.ip()) {
            return None;
        }
        let socket = UnixStream::connect_addr(&local_name(addr).ok()?).ok()?;
        let stream = Stream::local(socket);
        stream.may_lend().then_some(stream)
    }

    /// May data be lent to the peer, and borrowed from it? It is on this host, and as trusted as
    /// this process.
    pub(crate) fn may_lend(&self) -> bool {
        matches!(self, Stream::Local { is_trusted: true, .. })
    }

    /// Reads as [`Read::read`] does, and takes descriptors that come along from a peer to which
    /// data may be lent.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn read_with(
        &mut self,
        buf: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let Stream::Local { socket, is_trusted: true, .. } = self else { return self.read(buf) };
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(OFFER_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let came =
            recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                fds.extend(some.take(OFFER_FDS.saturating_sub(fds.len())));
            }
        }
        Ok(came.bytes)
    }

    /// For the first bytes that are written, with which the offer goes.
    pub(crate) fn with<'a>(&'a self, offer: &'a Offer) -> impl Write + 'a {
        WithOffer { stream: self, offer }
    }

    /// A TCP socket.
    pub(crate) fn tcp(socket: TcpStream) -> Stream {
        if let Err(error) = tune_tcp(&socket) {
            tracing::debug!(%error, "cannot set socket options");
        }
        Stream::Tcp(socket)
    }

    /// A socket of a peer on this host.
    pub(crate) fn local(socket: UnixStream) -> Stream {
        if let Err(error) = SockRef::from(&socket).set_send_buffer_size(LOCAL_BUFFER_BYTES) {
            tracing::debug!(%error, "cannot set socket options");
        }
        let is_trusted = is_trusted(&socket);
        Stream::Local { socket, is_trusted, blocked: false }
    }

    /// Has connecting ended well?
    ///
    /// # Errors
    /// Why it failed.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let Stream::Tcp(socket) = self else { return Ok(true) };
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        match socket.peer_addr() {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
            Ok(_) => Ok(true),
        }
    }

    /// Nothing more is sent.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Stream::Local { socket, .. } => socket.shutdown(Shutdown::Write),
        }
    }

    /// What an epoll set is to tell of it.
    pub(crate) fn interest(&self) -> Interest {
        match self {
            Stream::Local { blocked: false, .. } => Interest::READABLE,
            _ => Interest::READABLE | Interest::WRITABLE,
        }
    }

    /// Something waits to be written, or nothing does any more. True: [`Stream::interest`] has
    /// changed.
    pub(crate) fn set_blocked(&mut self, is_blocked: bool) -> bool {
        match self {
            Stream::Tcp(_) => false,
            Stream::Local { blocked, .. } => std::mem::replace(blocked, is_blocked) != is_blocked,
        }
    }
}

/// Does the peer run as root, or as the same user?
fn is_trusted(socket: &UnixStream) -> bool {
    socket_peercred(socket)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// See [`Stream::with`].
struct WithOffer<'a> {
    stream: &'a Stream,
    offer: &'a Offer,
}

impl Write for WithOffer<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let fds = self.offer.fds();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(OFFER_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(
            control.push(SendAncillaryMessage::ScmRights(&fds)),
            "there is space for the descriptors of an offer"
        );
        Ok(sendmsg(self.stream, bufs, &mut control, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// No delay for small frames, the kernel notices peers that vanish while nothing is sent, and while
/// little is on its way a lost packet is sent again after the same time each time, not after twice
/// the last: where packets are lost, somebody waits for each.
fn tune_tcp(socket: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_thin_linear_timeouts(true)
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(socket) => socket.read(buf),
            Stream::Local { socket, .. } => socket.read(buf),
        }
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(socket) => socket.read_vectored(bufs),
            Stream::Local { socket, .. } => socket.read_vectored(bufs),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(socket) => socket.write(buf),
            Stream::Local { socket, .. } => socket.write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(socket) => socket.write_vectored(bufs),
            Stream::Local { socket, .. } => socket.write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(socket) => socket.as_fd(),
            Stream::Local { socket, .. } => socket.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl event::Source for Stream {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.register(registry, token, interests),
            Stream::Local { socket, .. } => socket.register(registry, token, interests),
        }
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.reregister(registry, token, interests),
            Stream::Local { socket, .. } => socket.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.deregister(registry),
            Stream::Local { socket, .. } => socket.deregister(registry),
        }
    }
}
