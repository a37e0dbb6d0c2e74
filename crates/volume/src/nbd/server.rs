//! Sockets, clients, and the end of serving.
//!
//! Contract: a server gives one volume to any number of clients, up to [`CONNECTIONS_MAX`]. A
//! client that connects is served once nothing is under way of those that have gone: a request that
//! it sends again is never followed by the same one of its connection before.

use super::budget::{self, Budget};
use super::connection::Connection;
use super::handshake::Export;
use super::outbox::{STALL_MAX, Socket};
use crate::limits::{Kind, Limiter};
use crate::{Access, Volume, VolumeError, Volumes};
use messenger::sync::{ContentionMutex, LockTable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Clients at a time; each takes two threads. Further ones are turned away.
pub const CONNECTIONS_MAX: usize = 64;
/// How long [`Server::stop`] waits for requests under way.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// How often a thread that waits for clients looks whether the server is to stop.
const ACCEPT_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// How often the volume is asked whether it is still this server's, and for its limits.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// Least preferred block: a page.
const PREFERRED_BYTES_MIN: u64 = 4096;
/// Greatest one.
const PREFERRED_BYTES_MAX: u64 = 1 << 20;

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket; it goes when this is dropped.
    Unix(UnixListener, PathBuf),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    /// A Unix socket at a path. One that a server left behind that is no more is replaced.
    ///
    /// # Errors
    /// The system's; `AddrInUse` where somebody listens, or something else lies there.
    pub fn unix(path: &Path) -> Result<Listener, VolumeError> {
        let bind = || {
            let is_socket =
                path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
            if is_socket
                && UnixStream::connect(path)
                    .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
            {
                std::fs::remove_file(path)?;
            }
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            Ok(Listener::Unix(listener, path.to_path_buf()))
        };
        bind().map_err(VolumeError::local(format!("cannot listen at {}", path.display())))
    }

    /// A TCP port.
    ///
    /// # Errors
    /// The system's.
    pub fn tcp(addr: SocketAddr) -> Result<Listener, VolumeError> {
        let bind = || {
            let listener = TcpListener::bind(addr)?;
            listener.set_nonblocking(true)?;
            Ok(Listener::Tcp(listener))
        };
        bind().map_err(VolumeError::local(format!("cannot listen at {addr}")))
    }

    /// How a client names it: an NBD URI.
    ///
    /// # Errors
    /// The system's.
    pub fn uri(&self, export: &str) -> Result<String, VolumeError> {
        match self {
            Listener::Unix(_, path) => {
                Ok(format!("nbd+unix:///{}?socket={}", escaped(export), path.display()))
            }
            Listener::Tcp(listener) => {
                let addr =
                    listener.local_addr().map_err(VolumeError::local("cannot tell the port"))?;
                Ok(format!("nbd://{addr}/{}", escaped(export)))
            }
        }
    }

    fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Unix(listener, _) => {
                listener.accept().map(|(socket, _)| Socket::Unix(socket))
            }
            Listener::Tcp(listener) => listener.accept().map(|(socket, _)| Socket::Tcp(socket)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener, _) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // Somebody else may have done so.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A name in a URI.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// Why serving ended by itself.
#[derive(Debug)]
pub enum Ended {
    /// The volume is not this process's any more.
    Taken(VolumeError),
}

#[derive(Default)]
struct State {
    connections: Vec<Arc<Connection>>,
    stopping: bool,
}

/// What the threads of a server share.
pub struct Shared {
    volume: Volume,
    export: Export,
    budget: Arc<Budget>,
    limiter: ContentionMutex<Limiter>,
    begun: Instant,
    state: ContentionMutex<State>,
    locks: LockTable,
}

impl Shared {
    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// As clients see it.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// What all clients may have under way.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Where locks are listed.
    pub fn locks(&self) -> &LockTable {
        &self.locks
    }

    /// How long an operation that comes now has to wait for the volume's limits, and which these
    /// are.
    pub fn admit(&self, kind: Kind, bytes: u64) -> (Duration, u64) {
        let mut limiter = self.limiter.lock();
        (limiter.admit(self.begun.elapsed(), kind, bytes), limiter.generation())
    }

    /// Are the limits other ones by now?
    pub fn limits_changed(&self, generation: u64) -> bool {
        self.limiter.lock().generation() != generation
    }

    /// Waits until nothing is under way of clients that have gone. False if something still is
    /// after [`STALL_MAX`].
    pub fn settle_others(&self, but: &Arc<Connection>) -> bool {
        let others = self.state.lock().connections.clone();
        let end = Instant::now() + STALL_MAX;
        let is_settled = |other: Arc<Connection>| {
            other.end_if_hung_up();
            !other.is_over() || other.wait_idle(end.saturating_duration_since(Instant::now()))
        };
        others.into_iter().filter(|other| !Arc::ptr_eq(other, but)).all(is_settled)
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Takes a client, if there is room.
    fn admit_client(self: &Arc<Self>, socket: Socket) {
        let connection = Connection::new(socket, self);
        let mut state = self.state.lock();
        if state.stopping || state.connections.len() >= CONNECTIONS_MAX {
            tracing::warn!(CONNECTIONS_MAX, "a client is turned away: there are too many");
            return;
        }
        state.connections.push(Arc::clone(&connection));
        drop(state);
        let (shared, serving) = (Arc::clone(self), Arc::clone(&connection));
        let spawned = thread::Builder::new().name("nbd-client".into()).spawn(move || {
            serving.serve(&shared);
            shared.forget(&serving);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "a client is turned away: no thread for it");
            self.forget(&connection);
        }
    }

    fn forget(&self, connection: &Arc<Connection>) {
        self.state.lock().connections.retain(|known| !Arc::ptr_eq(known, connection));
    }

    fn accept(self: &Arc<Self>, listener: &Listener) {
        while !self.is_stopping() {
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            if poll(&mut fds, Some(&ACCEPT_LOOK)).is_ok_and(|ready| ready == 0) {
                continue;
            }
            match listener.accept() {
                Ok(socket) => self.admit_client(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Of the connection, or of this process, as with too many files.
                    tracing::warn!(%error, "cannot take a client");
                    thread::sleep(WATCH_PAUSE / 10);
                }
            }
        }
    }

    /// Looks after the volume until the server stops. Returns why, if it is not its own any more.
    fn watch(&self) -> Option<Ended> {
        while !self.is_stopping() {
            match self.volume.check() {
                Err(error @ VolumeError::Taken(_)) => return Some(Ended::Taken(error)),
                Err(error) => {
                    tracing::debug!(%error, "cannot ask whether the volume is still ours")
                }
                Ok(()) => match Volumes::limits_of_open(&self.volume) {
                    Ok(limits) => self.limiter.lock().set(limits, self.begun.elapsed()),
                    Err(error) => tracing::warn!(%error, "the volume's limits stay as they were"),
                },
            }
            thread::sleep(WATCH_PAUSE);
        }
        None
    }
}

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    accepting: Vec<thread::JoinHandle<()>>,
}

impl Server {
    /// Serves a volume at these places, under its name. `on_end` is called if that ends by itself,
    /// from a thread of the server.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] for limits that are not known; no threads.
    pub fn start(
        volume: Volume,
        listeners: Vec<Listener>,
        on_end: impl FnOnce(Ended) + Send + 'static,
    ) -> Result<Server, VolumeError> {
        let locks = volume.file_system().client().handle().locks().clone();
        let mut limiter = Limiter::default();
        limiter.set(Volumes::limits_of_open(&volume)?, Duration::ZERO);
        let stripe = volume.stripe_bytes().max(1).next_power_of_two();
        let preferred = stripe.clamp(PREFERRED_BYTES_MIN, PREFERRED_BYTES_MAX);
        let export = Export {
            name: volume.name().to_string(),
            size: volume.size(),
            is_read_only: volume.access() == Access::Read,
            preferred_bytes: u32::try_from(preferred).expect("clamped"),
        };
        let shared = Arc::new(Shared {
            export,
            volume,
            budget: Budget::new(budget::REQUESTS_MAX, budget::BYTES_MAX),
            limiter: ContentionMutex::new(&locks, "nbd limiter", limiter),
            begun: Instant::now(),
            state: ContentionMutex::new(&locks, "nbd clients", State::default()),
            locks,
        });
        let mut server = Server { shared: Arc::clone(&shared), accepting: Vec::new() };
        let failed = VolumeError::local("cannot start a thread");
        let watching = move || {
            if let Some(ended) = shared.watch() {
                on_end(ended);
            }
        };
        thread::Builder::new().name("nbd-watch".into()).spawn(watching).map_err(failed)?;
        for listener in listeners {
            let (shared, failed) =
                (Arc::clone(&server.shared), VolumeError::local("cannot start a thread"));
            let accepting = move || shared.accept(&listener);
            server.accepting.push(
                thread::Builder::new()
                    .name("nbd-accept".into())
                    .spawn(accepting)
                    .map_err(failed)?,
            );
        }
        Ok(server)
    }

    /// Takes no more requests, answers those under way, makes everything durable, and gives the
    /// volume back. Blocks.
    ///
    /// # Errors
    /// What could not be made durable.
    pub fn stop(self) -> Result<(), VolumeError> {
        let connections = {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            state.connections.clone()
        };
        for accepting in self.accepting {
            // It does not panic, and has nothing to tell.
            let _ = accepting.join();
        }
        connections.iter().for_each(|connection| connection.finish());
        let end = Instant::now() + STOP_WAIT;
        for connection in &connections {
            if !connection.wait_idle(end.saturating_duration_since(Instant::now())) {
                tracing::warn!("a client's requests are still under way: it gets no answers");
            }
            // What it has sent and nobody has begun must not be done under the next opener.
            connection.cut_off();
        }
        self.shared.volume.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_uris() {
        assert_eq!(escaped("vm-1.x"), "vm-1.x");
        assert_eq!(escaped("a b?ü"), "a%20b%3F%C3%BC");
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_a_live_one_or_a_file_is_not() {
        let dir = std::env::temp_dir().join(format!("trefoil-volume-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("socket");
        drop(UnixListener::bind(&path).expect("a socket"));
        let listener = Listener::unix(&path).expect("nobody listens");
        assert!(Listener::unix(&path).is_err(), "somebody does");
        assert!(listener.uri("vm 1").expect("a URI").starts_with("nbd+unix:///vm%201?socket=/"));
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "a file").expect("written");
        assert!(Listener::unix(&path).is_err());
        assert_eq!(std::fs::read(&path).expect("still there"), b"a file");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
