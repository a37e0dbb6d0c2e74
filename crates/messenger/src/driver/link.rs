//! The life of a connection's TCP connections: dialling, handshakes of both sides, loss, and the end.

use super::*;

/// A socket whose handshake told whom it belongs to.
pub(crate) struct Accepted {
    pub(crate) listening: Arc<Listening>,
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) hello: Hello,
    /// Bytes that came after the hello.
    pub(crate) rest: BytesMut,
}

impl Handle {
    /// Makes a connection that lives on `worker`, and keeps it: it dials, and dials again whenever TCP is lost, until it
    /// is closed. Returns at once; what is sent before the connection is up waits. `factory` makes, on the worker, the
    /// service for what the peer sends of its own and for events.
    ///
    /// A frame that no resend could mend, and a panic of the service, begin a new incarnation ([`StateEvent::Reset`]).
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn connect<F>(&self, worker: usize, config: ConnectConfig, factory: F) -> Connection
    where
        F: FnOnce(&Worker) -> Rc<dyn Service> + Send + 'static,
    {
        let shared = Arc::clone(self.worker_shared(worker));
        let connection = Connection::new(self.next_id(), config.addr, shared, config.session);
        let order = Order { connection: connection.clone(), taken: false };
        self.post_run(worker, move |worker| order.carry_out(worker, config, factory));
        connection
    }
}

/// A connection on its way to its worker. If it never gets there, because the runtime has stopped or the service could
/// not be made, the connection is closed, so that nobody waits for it.
struct Order {
    connection: Connection,
    taken: bool,
}

impl Order {
    fn carry_out<F>(mut self, worker: &Worker, config: ConnectConfig, factory: F)
    where
        F: FnOnce(&Worker) -> Rc<dyn Service>,
    {
        let service = factory(worker);
        self.taken = true;
        let connector =
            Connector { config, cookie: fastrand::u128(..), incarnation: None, attempts: 0, told_down: false };
        let slot = worker.sources().insert(|slot| {
            let role = Role::Connecting(Box::new(connector));
            let driver = Driver::new(slot, self.connection.clone(), service, role, Instant::now());
            Source::Connection(Box::new(driver))
        });
        self.connection.adopt(slot);
        worker.sources().flush(worker, slot);
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        if !self.taken {
            self.connection.finish();
        }
    }
}

/// Takes a socket over on the worker that serves it: its session goes on, or a new one begins.
pub(crate) fn accept(worker: &Worker, accepted: Accepted) {
    let key = (accepted.listening.id, accepted.hello.cookie);
    let known = worker.sources().sessions.borrow().get(&key).copied();
    let mut accepted = Some(accepted);
    if let Some(slot) = known {
        worker.sources().with(worker, slot, |source, worker| match source {
            Source::Connection(driver) => driver.take_over(worker, &mut accepted),
            _ => Next::Keep(None),
        });
    }
    if let Some(accepted) = accepted {
        begin(worker, accepted);
    }
}

/// Begins a new session.
fn begin(worker: &Worker, accepted: Accepted) {
    let listening = Arc::clone(&accepted.listening);
    let cookie = accepted.hello.cookie;
    let service = worker.sources().services.borrow().get(&listening.id).cloned();
    let Some(service) = service else {
        tracing::warn!(peer = %accepted.peer, "connection dropped, its listener has no service");
        listening.sessions.lock().remove(&cookie);
        return;
    };
    let peer = PeerInfo {
        addr: accepted.peer,
        name: accepted.hello.name.clone(),
        lane: accepted.hello.lane,
        cluster: accepted.hello.cluster,
        features: accepted.hello.features & FEATURES,
    };
    let handle = worker.handle();
    let connection =
        Connection::new(handle.next_id(), peer.addr, Arc::clone(worker.shared()), listening.config.session);
    let incarnation = fastrand::u64(1..);
    let slot = worker.sources().insert(|slot| {
        let role = Role::Accepting(Acceptance { listening: Arc::clone(&listening), cookie, incarnation });
        let driver = Driver::new(slot, connection.clone(), Rc::clone(&service), role, Instant::now());
        Source::Connection(Box::new(driver))
    });
    connection.adopt(slot);
    worker.sources().sessions.borrow_mut().insert((listening.id, cookie), slot);
    listening.sessions.lock().insert(cookie, worker.index());
    worker.counters().connections_opened.add(1);
    tracing::debug!(peer = %peer.addr, name = peer.name, lane = peer.lane, worker = worker.index(), "session begins");
    worker.sources().with(worker, slot, |source, worker| match source {
        Source::Connection(driver) => driver.opened(worker, accepted, &peer),
        _ => Next::Remove,
    });
}

impl Driver {
    fn codec(&self, worker: &Worker) -> FrameCodec {
        FrameCodec::new(self.connection.config().limits, Arc::clone(worker.pool()))
    }

    /// Accepting side: the first socket of a new session.
    fn opened(&mut self, worker: &Worker, accepted: Accepted, peer: &PeerInfo) -> Next {
        self.welcome(worker, accepted, None);
        let (service, connection) = (Rc::clone(&self.service), self.connection.clone());
        if worker.guard("a service's on_open", || service.on_open(worker, &connection, peer)).is_none() {
            self.fail(worker, Fault::Panic, Instant::now());
        }
        if self.finished { Next::Remove } else { self.run(worker, Cause::Requeued) }
    }

    /// Accepting side: another socket for this session. Leaves it where it is if the session cannot go on.
    fn take_over(&mut self, worker: &Worker, accepted: &mut Option<Accepted>) -> Next {
        let Role::Accepting(acceptance) = &self.role else { return Next::Keep(None) };
        let Some(candidate) = accepted.as_ref() else { return Next::Keep(None) };
        let incarnation = acceptance.incarnation;
        let resume = candidate.hello.resume.filter(|resume| resume.incarnation == incarnation);
        let resumed = resume.is_some_and(|resume| self.connection.core().session.resume(resume.received).is_ok());
        if !resumed {
            self.finish(worker, &CloseReason::Replaced);
            return Next::Remove;
        }
        let received = self.connection.core().session.received();
        worker.counters().reconnects.add(1);
        if let Some(accepted) = accepted.take() {
            tracing::debug!(peer = %accepted.peer, received, "session resumes");
            self.welcome(worker, accepted, Some(received));
        }
        if self.finished { Next::Remove } else { self.run(worker, Cause::Requeued) }
    }

    fn welcome(&mut self, worker: &Worker, accepted: Accepted, resumed: Option<u64>) {
        let Role::Accepting(acceptance) = &self.role else { return };
        let config = &acceptance.listening.config;
        let welcome = Answer::Welcome(Welcome {
            features: accepted.hello.features & FEATURES,
            cluster: config.cluster,
            incarnation: acceptance.incarnation,
            resumed,
            name: handshake::cut_name(&config.name),
        });
        let mut stream = accepted.stream;
        if let Err(error) = self.watch(worker, &mut stream) {
            return self.fail(worker, error.into(), Instant::now());
        }
        let wire = Wire::new(stream, self.codec(worker), accepted.rest, handshake::encode(&welcome));
        self.went_up(wire);
    }

    fn watch(&self, worker: &Worker, stream: &mut TcpStream) -> std::io::Result<()> {
        worker.registry().register(stream, token(self.slot), Interest::READABLE | Interest::WRITABLE)
    }

    fn went_up(&mut self, wire: Wire) {
        self.link = Link::Up(Box::new(wire));
        self.last_rx = Instant::now();
        self.owed_since = None;
        self.pinged = false;
        self.connection.set_state(ConnState::Up);
        self.connection.mark_dirty(0);
    }

    /// The time without TCP is over: another attempt, or the end.
    pub(super) fn waited(&mut self, worker: &Worker, now: Instant) -> Result<(), Fault> {
        let config = self.connection.config();
        let Role::Connecting(_) = &self.role else {
            return Err(Fault::Close(CloseReason::Expired(config.forget_after)));
        };
        let mut stream = TcpStream::connect(self.connection.peer())?;
        tune(&stream);
        self.watch(worker, &mut stream)?;
        self.link = Link::Dialing { stream, until: now + config.handshake_max };
        Ok(())
    }

    pub(super) fn dialed(&mut self, worker: &Worker, now: Instant) -> Result<(), Fault> {
        let Link::Dialing { stream, until } = &self.link else { return Ok(()) };
        if let Some(error) = stream.take_error()? {
            return Err(error.into());
        }
        match stream.peer_addr() {
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let Role::Connecting(connector) = &self.role else { return Ok(()) };
        let received = self.connection.core().session.received();
        let hello = Hello {
            features: FEATURES,
            cluster: connector.config.cluster,
            auth_method: AUTH_NONE,
            cookie: connector.cookie,
            resume: connector.incarnation.map(|incarnation| Resume { incarnation, received }),
            lane: connector.config.lane,
            name: handshake::cut_name(&connector.config.name),
        };
        let until = *until;
        let waiting = Link::Waiting { until: now };
        if let Link::Dialing { stream, .. } = std::mem::replace(&mut self.link, waiting) {
            self.link = Link::Greeting { stream, until, out: handshake::encode(&hello), buf: BytesMut::new() };
        }
        self.greet(worker, now)
    }

    /// Connecting side: the handshake goes on.
    pub(super) fn greet(&mut self, worker: &Worker, now: Instant) -> Result<(), Fault> {
        let Link::Greeting { stream, out, buf, .. } = &mut self.link else { return Ok(()) };
        while !out.is_empty() {
            match stream.write(out) {
                Ok(count) => out.advance(count),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        let mut chunk = [0; 1024];
        let answer = loop {
            match handshake::decode::<Answer>(buf) {
                Ok(Some(answer)) => break answer,
                Ok(None) => {}
                Err(handshake::HandshakeError::Version(refusal)) => {
                    worker.counters().handshake_errors.add(1);
                    return Err(Fault::Refused(refusal));
                }
                Err(error) => {
                    worker.counters().handshake_errors.add(1);
                    return Err(Fault::Lost(error.to_string()));
                }
            }
            match stream.read(&mut chunk) {
                Ok(0) => return Err(Fault::Lost("the peer closed the connection in the handshake".into())),
                Ok(count) => buf.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        match answer {
            Answer::Refused(refusal) => {
                worker.counters().handshake_errors.add(1);
                Err(Fault::Refused(refusal))
            }
            Answer::Welcome(welcome) => self.welcomed(worker, &welcome, now),
        }
    }

    /// Connecting side: the peer let us in.
    fn welcomed(&mut self, worker: &Worker, welcome: &Welcome, now: Instant) -> Result<(), Fault> {
        let Role::Connecting(connector) = &mut self.role else { return Ok(()) };
        let (ours, zero) = (connector.config.cluster, ClusterId::default());
        if welcome.cluster != ours && welcome.cluster != zero && ours != zero {
            return Err(Fault::Refused(Refusal::Cluster { theirs: welcome.cluster, ours }));
        }
        let before = connector.incarnation.replace(welcome.incarnation);
        connector.told_down = false;
        match welcome.resumed {
            Some(received) => {
                // An error is returned after the lock is released: it resets the session.
                let resumed = self.connection.core().session.resume(received);
                resumed.map_err(Fault::Frame)?;
                worker.counters().reconnects.add(1);
            }
            None => {
                worker.counters().connections_opened.add(1);
                if before.is_some() {
                    self.reset(worker);
                }
            }
        }
        let codec = self.codec(worker);
        if let Link::Greeting { stream, buf, .. } = std::mem::replace(&mut self.link, Link::Waiting { until: now }) {
            self.went_up(Wire::new(stream, codec, buf, Bytes::new()));
        }
        let event = StateEvent::Up { resumed: welcome.resumed.is_some(), cluster: welcome.cluster };
        tracing::debug!(peer = %self.connection.peer(), name = welcome.name, ?event, "connection is up");
        self.tell(worker, &event);
        Ok(())
    }

    fn tell(&self, worker: &Worker, event: &StateEvent) {
        worker.guard("a service's on_state", || self.service.on_state(worker, &self.connection, event));
    }

    fn reset(&mut self, worker: &Worker) {
        worker.counters().resets.add(1);
        let wakers = self.connection.core().reset();
        wakers.into_iter().for_each(Waker::wake);
        tracing::info!(peer = %self.connection.peer(), "session lost by the peer, a new one begins");
        self.tell(worker, &StateEvent::Reset);
    }

    /// Deals with what ended the TCP connection.
    pub(super) fn fail(&mut self, worker: &Worker, fault: Fault, now: Instant) {
        let peer = self.connection.peer();
        match fault {
            Fault::Close(reason) => self.finish(worker, &reason),
            Fault::Lost(reason) => {
                tracing::debug!(%peer, reason, "connection lost");
                self.lose(worker, reason, now);
            }
            Fault::Frame(error) => {
                worker.counters().frame_errors[error.index()].add(1);
                tracing::warn!(%peer, %error, "connection closed, a frame was refused");
                if error.is_fatal() {
                    self.give_up(worker, CloseReason::Frame(error), now);
                } else {
                    self.lose(worker, error.to_string(), now);
                }
            }
            Fault::Panic => self.give_up(worker, CloseReason::Panic, now),
            Fault::Refused(Refusal::Busy) => self.lose(worker, Refusal::Busy.to_string(), now),
            Fault::Refused(refusal) => {
                tracing::warn!(%peer, %refusal, "connection refused");
                self.tell(worker, &StateEvent::Refused(refusal.clone()));
                self.finish(worker, &CloseReason::Refused(refusal));
            }
        }
    }

    /// The session cannot go on: the accepting side forgets it, the connecting side begins anew.
    fn give_up(&mut self, worker: &Worker, reason: CloseReason, now: Instant) {
        match &mut self.role {
            Role::Accepting(_) => self.finish(worker, &reason),
            Role::Connecting(connector) => {
                connector.incarnation = None;
                self.reset(worker);
                self.lose(worker, reason.to_string(), now);
            }
        }
    }

    fn lose(&mut self, worker: &Worker, reason: String, now: Instant) {
        self.connection.core().session.lost();
        self.connection.set_state(ConnState::Down);
        self.owed_since = None;
        let config = *self.connection.config();
        match &mut self.role {
            Role::Accepting(_) => self.link = Link::Waiting { until: now + config.forget_after },
            Role::Connecting(connector) => {
                let pause = backoff(connector.attempts, config.backoff_min, config.backoff_max);
                connector.attempts = connector.attempts.saturating_add(1);
                self.link = Link::Waiting { until: now + pause };
                if !std::mem::replace(&mut connector.told_down, true) {
                    self.tell(worker, &StateEvent::Down { reason });
                }
            }
        }
        if worker.is_shutting_down() {
            self.finish(worker, &CloseReason::Shutdown);
        }
    }

    /// Ends the connection for good. The caller removes it from its slot.
    pub(crate) fn finish(&mut self, worker: &Worker, reason: &CloseReason) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        self.link = Link::Waiting { until: Instant::now() };
        self.connection.finish();
        if let Role::Accepting(acceptance) = &self.role {
            let key = (acceptance.listening.id, acceptance.cookie);
            worker.sources().sessions.borrow_mut().remove(&key);
            acceptance.listening.sessions.lock().remove(&acceptance.cookie);
        }
        worker.counters().connections_closed.add(1);
        tracing::debug!(peer = %self.connection.peer(), %reason, "connection closed");
        worker.guard("a service's on_close", || self.service.on_close(worker, &self.connection, reason));
    }

    /// The runtime stops: the connecting side says goodbye, the accepting side only sends what is queued.
    pub(crate) fn begin_shutdown(&mut self, worker: &Worker) -> Next {
        match (&self.role, &self.link) {
            (Role::Accepting(_), _) => Next::Keep(None),
            (Role::Connecting(_), Link::Up(_)) => {
                self.connection.close_with(CloseReason::Shutdown);
                Next::Keep(None)
            }
            (Role::Connecting(_), _) => {
                self.finish(worker, &CloseReason::Shutdown);
                Next::Remove
            }
        }
    }

    /// True once nothing more has to be sent.
    pub(crate) fn is_drained(&self) -> bool {
        let Link::Up(wire) = &self.link else { return true };
        let core = self.connection.core();
        wire.tx.is_empty() && !core.session.has_unsent() && core.close_wanted.is_none()
    }
}

/// Exponential, with jitter over the upper half, so that many clients of a restarted daemon do not come at once.
pub(super) fn backoff(attempts: u32, min: Duration, max: Duration) -> Duration {
    let full = min.saturating_mul(1 << attempts.min(16)).min(max);
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}
