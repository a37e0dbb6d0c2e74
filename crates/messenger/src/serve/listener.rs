//! Accepting: a listener, the handshake of accepted sockets, and their way to the worker that will
//! serve them.
//!
//! Contract: which workers serve a connection is `placement`'s decision, asked for once the
//! handshake has told the lane. A session that comes back goes to the shared connection that has
//! it. Sockets that say nothing are dropped after `handshake_max`, and at most
//! [`ListenConfig::greetings_max`] are in their handshake at once: one more takes the place of the
//! oldest, which has said the least in the longest time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, event};
use placement::threads::{Mapping, MappingError, NewConnection, PlacementConfig, first_workers};
use rustix::process::{Resource, getrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::executor::runtime::Handle;
use crate::executor::worker::Worker;
use crate::io::reactor::{Causes, Next, Source, token};
use crate::io::stream::{self, Stream};
use crate::mapping::rebalance;
use crate::mapping::shared_connection::SharedConnection;
use crate::serve::service::{ListenConfig, ListenError, Service};
use crate::session::driver::Accepted;
use crate::sync::contention_mutex::ContentionMutex;
use crate::telemetry::connections::{ConnectionStats, ListenerStats};
use crate::wire::handshake::{self, HandshakeError, Hello, Refusal};

/// Sockets in their handshake at once, per listener, by default: many turns' worth of newcomers, so
/// that the hello of a peer that means it is there before it is the oldest.
pub const GREETINGS_MAX: usize = 1024;
/// Connections the kernel keeps for us until we accept them.
const BACKLOG: i32 = 1024;
/// Sockets accepted before others have their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// First pause after the kernel refused a socket, for want of file descriptors or memory; doubles
/// each time.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest such pause: so long a new client waits at most once there are descriptors again.
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a listener's parts on all workers share.
pub(crate) struct Listening {
    pub(crate) id: u64,
    /// The address it listens on, with the port that was taken.
    addr: SocketAddr,
    pub(crate) config: ListenConfig,
    /// Sessions by cookie.
    sessions: ContentionMutex<HashMap<u128, Arc<SharedConnection>>>,
    placement: ContentionMutex<PlacementConfig>,
    /// Counts the placements that were set, and the end of the listener; a placement task serves
    /// one of them.
    pub(crate) generation: AtomicU64,
    /// Held while attachments are assigned, so that what an earlier placement decided is not
    /// assigned after a later one.
    pub(crate) placing: ContentionMutex<()>,
    assigned: AtomicU64,
}

impl Listening {
    /// How connections are placed now.
    pub(crate) fn placement(&self) -> PlacementConfig {
        *self.placement.lock()
    }

    /// Has it no room for whoever says this? A session that is there comes back, or is replaced by
    /// its next incarnation.
    fn is_full_for(&self, hello: &Hello) -> bool {
        let sessions = self.sessions.lock();
        sessions.len() >= self.config.connections_max as usize
            && !sessions.contains_key(&hello.cookie)
    }

    /// All sessions, in the order in which they began.
    pub(crate) fn shared_connections(&self) -> Vec<Arc<SharedConnection>> {
        let mut shared_connections: Vec<_> = self.sessions.lock().values().cloned().collect();
        shared_connections.sort_by_key(|shared_connection| shared_connection.connection.id());
        shared_connections
    }

    fn connections(&self) -> Vec<ConnectionStats> {
        self.shared_connections()
            .iter()
            .map(|shared_connection| shared_connection.stats())
            .collect()
    }

    pub(crate) fn stats(&self) -> ListenerStats {
        ListenerStats::new(self.id, self.addr, self.placement(), self.connections())
    }

    /// A session has ended.
    pub(crate) fn forget(&self, cookie: u128, shared_connection: &Arc<SharedConnection>) {
        let mut sessions = self.sessions.lock();
        let gone =
            if sessions.get(&cookie).is_some_and(|known| Arc::ptr_eq(known, shared_connection)) {
                sessions.remove(&cookie)
            } else {
                None
            };
        drop(sessions);
        drop(gone);
    }
}

/// A listener. Dropping it stops it, as [`Listener::stop`] does.
#[must_use = "dropping the listener stops it"]
pub struct Listener {
    handle: Handle,
    listening: Arc<Listening>,
    slots: Arc<ContentionMutex<Vec<usize>>>,
}

impl Listener {
    /// The address it listens on, with the port that was taken.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.addr
    }

    /// Number of sessions it has, those without TCP included.
    pub fn sessions(&self) -> usize {
        self.listening.sessions.lock().len()
    }

    /// How its connections are mapped to workers.
    pub fn placement(&self) -> PlacementConfig {
        self.listening.placement()
    }

    /// Maps its connections to workers in another way, at once, the ones that it has included. No
    /// message is lost, and none overtakes another. Seats move a moment later, without anyone
    /// waiting.
    ///
    /// # Errors
    /// [`MappingError`] if a setting is out of range; nothing changes then.
    pub fn set_placement(&self, config: PlacementConfig) -> Result<(), MappingError> {
        config.check()?;
        let _placing = self.listening.placing.lock();
        *self.listening.placement.lock() = config;
        let generation = self.listening.generation.fetch_add(1, AcqRel) + 1;
        rebalance::switch(&self.listening, &self.handle, &config);
        self.start_placing(generation);
        Ok(())
    }

    /// Its connections, in the order in which they began, and what each worker does on them.
    pub fn connections(&self) -> Vec<ConnectionStats> {
        self.listening.connections()
    }

    fn start_placing(&self, generation: u64) {
        let listening = Arc::clone(&self.listening);
        self.handle.post_run(self.listening.config.worker, move |worker| {
            rebalance::start(worker, listening, generation)
        });
    }

    /// Stops accepting and closes the socket. Sessions go on, but cannot resume once they lose TCP.
    pub fn stop(self) {}
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listening.generation.fetch_add(1, AcqRel);
        let slots = Arc::clone(&self.slots);
        self.handle.post_run(self.listening.config.worker, move |worker| {
            for slot in std::mem::take(&mut *slots.lock()) {
                drop(worker.sources().remove(slot));
            }
        });
        let id = self.listening.id;
        for index in 0..self.handle.workers() {
            self.handle.post_run(index, move |worker| {
                let service = worker.sources().services.borrow_mut().remove(&id);
                drop(service);
            });
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("addr", &self.listening.addr).finish_non_exhaustive()
    }
}

impl Handle {
    /// Listens for connections. `factory` makes one service on each worker, before any connection
    /// reaches it.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen<F>(&self, config: ListenConfig, factory: F) -> Result<Listener, ListenError>
    where
        F: Fn(&Worker) -> Rc<dyn Service> + Send + Sync + 'static,
    {
        config.placement.check()?;
        if config.worker >= self.workers() {
            return Err(ListenError::NoWorker(config.worker));
        }
        let socket = bind(config.addr).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::AddrInUse(config.addr),
            io::ErrorKind::AddrNotAvailable => ListenError::AddrNotAvailable(config.addr),
            _ => ListenError::Io { addr: config.addr, source },
        })?;
        let addr =
            socket.local_addr().map_err(|source| ListenError::Io { addr: config.addr, source })?;
        let local = if config.local_sockets { listen_local(addr) } else { None };
        let accepting = config.worker;
        let listening = Arc::new(Listening {
            id: self.next_id(),
            addr,
            placement: ContentionMutex::new(self.locks(), "listener placement", config.placement),
            config,
            sessions: ContentionMutex::new(self.locks(), "listener sessions", HashMap::new()),
            generation: AtomicU64::new(0),
            placing: ContentionMutex::new(self.locks(), "listener placing", ()),
            assigned: AtomicU64::new(0),
        });
        self.list(&listening);
        let factory = Arc::new(factory);
        for index in 0..self.workers() {
            let (factory, id) = (Arc::clone(&factory), listening.id);
            let posted = self.post_run(index, move |worker| {
                let service = factory(worker);
                worker.sources().services.borrow_mut().insert(id, service);
            });
            if !posted {
                return Err(ListenError::Stopped);
            }
        }
        let slots = Arc::new(ContentionMutex::new(self.locks(), "listener slots", Vec::new()));
        let listener = Listener { handle: self.clone(), listening: Arc::clone(&listening), slots };
        let places = Arc::clone(&listener.slots);
        let posted = self.post_run(accepting, move |worker| {
            let tcp = Door::Tcp(TcpListener::from_std(socket));
            let (accepted, greetings) = (Rc::default(), Greetings::default());
            for door in [Some(tcp), local.map(Door::Local)].into_iter().flatten() {
                let acceptor = Acceptor {
                    listening: Arc::clone(&listening),
                    door,
                    pause: Duration::ZERO,
                    accepted: Rc::clone(&accepted),
                    greetings: Rc::clone(&greetings),
                };
                let slot = worker.sources().insert(|_| Source::Listener(acceptor));
                places.lock().push(slot);
                worker.sources().with(worker, slot, |source, worker| match source {
                    Source::Listener(acceptor) => acceptor.register(worker, slot),
                    _ => Next::Remove,
                });
            }
        });
        listener.start_placing(0);
        if posted { Ok(listener) } else { Err(ListenError::Stopped) }
    }
}

fn bind(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The socket for peers on this host. Without one they come with TCP.
fn listen_local(addr: SocketAddr) -> Option<UnixListener> {
    stream::listen_local(addr)
        .inspect_err(|error| tracing::warn!(%addr, %error, "no socket for peers on this host: they come with TCP"))
        .ok()
}

/// What a listener accepts from.
enum Door {
    Tcp(TcpListener),
    /// Peers on this host.
    Local(UnixListener),
}

impl Door {
    fn source(&mut self) -> &mut dyn event::Source {
        match self {
            Door::Tcp(socket) => socket,
            Door::Local(socket) => socket,
        }
    }

    /// The next peer. One on this host has no address but the listener's.
    fn accept(&self, listener: SocketAddr) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Door::Tcp(socket) => socket.accept().map(|(socket, peer)| (Stream::tcp(socket), peer)),
            Door::Local(socket) => {
                let (socket, _) = socket.accept()?;
                Ok((Stream::local(socket), SocketAddr::new(listener.ip(), 0)))
            }
        }
    }
}

/// Slots of the sockets in their handshake, by the order in which they came.
type Greetings = Rc<RefCell<BTreeMap<u64, usize>>>;

/// A listening socket on its worker.
pub(crate) struct Acceptor {
    listening: Arc<Listening>,
    door: Door,
    /// How long it waits since the kernel refused a socket.
    pause: Duration,
    /// Sockets that the listener has accepted so far.
    accepted: Rc<Cell<u64>>,
    greetings: Greetings,
}

impl Acceptor {
    fn register(&mut self, worker: &Worker, slot: usize) -> Next {
        match worker.registry().register(self.door.source(), token(slot), Interest::READABLE) {
            Ok(()) => Next::Again(None),
            Err(error) => {
                tracing::error!(%error, "cannot watch a listener");
                Next::Remove
            }
        }
    }

    pub(crate) fn run(&mut self, worker: &Worker) -> Next {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.door.accept(self.listening.addr) {
                Ok((stream, peer)) => {
                    self.pause = Duration::ZERO;
                    self.greet(worker, stream, peer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Keep(None),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return self.wait(worker, &error),
            }
        }
        Next::Again(None)
    }

    /// No socket for now. Connections wait in the kernel's queue; those that this process has are
    /// served on.
    fn wait(&mut self, worker: &Worker, error: &io::Error) -> Next {
        worker.counters().accept_errors.add(1);
        if self.pause.is_zero() {
            let limit = getrlimit(Resource::Nofile)
                .current
                .map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
            let (sessions, allowed) = (self.listening.sessions.lock().len(), limit);
            tracing::error!(%error, sessions, open_files_max = allowed, "cannot accept connections; if there are more \
                clients than open files allowed, raise the limit (`ulimit -n`, LimitNOFILE=)");
        }
        self.pause = (self.pause * 2).clamp(ACCEPT_PAUSE_MIN, ACCEPT_PAUSE_MAX);
        Next::Keep(Some(Instant::now() + self.pause))
    }

    fn greet(&self, worker: &Worker, stream: Stream, peer: SocketAddr) {
        self.make_room(worker);
        let until = Instant::now() + self.listening.config.session.handshake_max;
        let (number, greetings) = (self.accepted.get(), Rc::clone(&self.greetings));
        self.accepted.set(number + 1);
        let listening = Arc::clone(&self.listening);
        let slot = worker.sources().insert(|slot| {
            greetings.borrow_mut().insert(number, slot);
            let (stream, buf, fds) = (Some(stream), BytesMut::new(), Vec::new());
            Source::Greeting(Greeting {
                listening,
                stream,
                peer,
                slot,
                buf,
                fds,
                until,
                number,
                greetings,
            })
        });
        worker.sources().with(worker, slot, |source, worker| match source {
            Source::Greeting(greeting) => greeting.begin(worker),
            _ => Next::Remove,
        });
    }

    /// Drops the sockets that have been in their handshake for longest, if there are too many for
    /// another.
    fn make_room(&self, worker: &Worker) {
        while self.greetings.borrow().len() >= self.listening.config.greetings_max.max(1) {
            let Some((_, slot)) = self.greetings.borrow_mut().pop_first() else { return };
            if let Some(Source::Greeting(mut oldest)) = worker.sources().remove(slot) {
                oldest.drop_it(worker, "too many others came in its handshake");
            }
        }
    }
}

/// An accepted socket that has not said who it is.
pub(crate) struct Greeting {
    listening: Arc<Listening>,
    stream: Option<Stream>,
    peer: SocketAddr,
    slot: usize,
    buf: BytesMut,
    /// Descriptors that came along.
    fds: Vec<OwnedFd>,
    until: Instant,
    /// Its place among the others.
    number: u64,
    greetings: Greetings,
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.greetings.borrow_mut().remove(&self.number);
    }
}

impl Greeting {
    fn begin(&mut self, worker: &Worker) -> Next {
        let Some(stream) = &mut self.stream else { return Next::Remove };
        match worker.registry().register(stream, token(self.slot), Interest::READABLE) {
            Ok(()) => Next::Again(Some(self.until)),
            Err(error) => {
                tracing::error!(%error, "cannot watch a socket");
                Next::Remove
            }
        }
    }

    pub(crate) fn run(&mut self, worker: &Worker, causes: Causes) -> Next {
        if causes.has(Causes::TIMER) && Instant::now() >= self.until {
            return self.drop_it(worker, "it said nothing in time");
        }
        let Some(stream) = &mut self.stream else { return Next::Remove };
        let mut chunk = [0; 1024];
        loop {
            match handshake::decode::<Hello>(&mut self.buf) {
                Ok(Some(hello)) => return self.welcome(worker, hello),
                Ok(None) => {}
                Err(HandshakeError::Version(refusal)) => return self.refuse(worker, refusal),
                Err(error) => return self.drop_it(worker, &error.to_string()),
            }
            match stream.read_with(&mut chunk, &mut self.fds) {
                // Somebody looks whether anybody listens: a mount does, and so do monitoring tools.
                Ok(0) if self.buf.is_empty() => {
                    worker.counters().handshake_errors.add(1);
                    tracing::debug!(peer = %self.peer, "closed without a word");
                    return Next::Remove;
                }
                Ok(0) => return self.drop_it(worker, "it was closed in its handshake"),
                Ok(count) => self.buf.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Next::Keep(Some(self.until));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.drop_it(worker, &error.to_string()),
            }
        }
    }

    fn drop_it(&mut self, worker: &Worker, why: &str) -> Next {
        worker.counters().handshake_errors.add(1);
        tracing::warn!(peer = %self.peer, why, "connection dropped");
        Next::Remove
    }

    fn refuse(&mut self, worker: &Worker, refusal: Refusal) -> Next {
        tracing::warn!(peer = %self.peer, %refusal, "connection refused");
        worker.counters().handshake_errors.add(1);
        if let Some(stream) = &mut self.stream {
            // The socket buffer of a new connection takes these few bytes, or the peer is gone.
            let sent = stream.write(&handshake::refusal_bytes(refusal));
            if let Err(error) = sent.and_then(|_| stream.shutdown_write()) {
                tracing::debug!(peer = %self.peer, %error, "the peer could not be told");
            }
        }
        Next::Remove
    }

    /// The handshake is complete: the socket moves to the workers that serve it.
    fn welcome(&mut self, worker: &Worker, hello: Hello) -> Next {
        if let Err(refusal) = handshake::check_hello(&hello, &self.listening.config.cluster) {
            return self.refuse(worker, refusal);
        }
        if worker.is_shutting_down() {
            return self.refuse(worker, Refusal::Busy);
        }
        if self.listening.is_full_for(&hello) {
            return self.refuse(worker, Refusal::Full(self.listening.config.connections_max));
        }
        let Some(mut stream) = self.stream.take() else { return Next::Remove };
        if let Err(error) = worker.registry().deregister(&mut stream) {
            return self.drop_it(worker, &error.to_string());
        }
        let accepted = Accepted {
            listening: Arc::clone(&self.listening),
            stream,
            peer: self.peer,
            hello,
            rest: std::mem::take(&mut self.buf),
            fds: std::mem::take(&mut self.fds),
        };
        admit(worker, accepted);
        Next::Remove
    }
}

/// Brings a socket to its session: the one it belongs to, if that can go on, or a new one on the
/// workers that `placement` says.
pub(crate) fn admit(worker: &Worker, accepted: Accepted) {
    let (handle, listening) = (worker.handle(), Arc::clone(&accepted.listening));
    let mut sessions = listening.sessions.lock();
    let known = sessions.get(&accepted.hello.cookie).cloned();
    let accepted = match known {
        None => accepted,
        Some(shared_connection) => match shared_connection.offer(accepted) {
            Ok(()) => return,
            Err(accepted) => accepted,
        },
    };
    let mapping = listening.placement().mapping;
    let before = listening.assigned.fetch_add(1, Relaxed);
    let connection = NewConnection { lane: accepted.hello.lane, before };
    let target: Vec<usize> = match first_workers(mapping, handle.workers(), connection) {
        Ok(workers) => workers.into_iter().map(|worker| worker.0).collect(),
        Err(error) => return tracing::error!(peer = %accepted.peer, %error, "connection dropped"),
    };
    let home = target[0];
    let shared_connection =
        SharedConnection::accepting(handle, &accepted, target, mapping == Mapping::Handoff);
    sessions.insert(accepted.hello.cookie, Arc::clone(&shared_connection));
    drop(sessions);
    handle.post_run(home, move |worker| begin(worker, shared_connection, accepted));
}

/// A session begins, on its first worker.
fn begin(worker: &Worker, shared_connection: Arc<SharedConnection>, accepted: Accepted) {
    let Some(service) = worker.sources().service(accepted.listening.id) else {
        tracing::warn!(peer = %accepted.peer, "connection dropped, its listener has no service");
        accepted.listening.forget(accepted.hello.cookie, &shared_connection);
        return;
    };
    worker.counters().connections_opened.add(1);
    let (name, lane) = (&accepted.hello.name, accepted.hello.lane);
    tracing::debug!(peer = %accepted.peer, name, lane, worker = worker.index(), "session begins");
    shared_connection.begin(worker, service, Some(accepted));
}
