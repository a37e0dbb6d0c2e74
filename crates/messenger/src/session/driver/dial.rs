//! The life of a connection's TCP connections: dialling, handshakes of both sides, loss, and the
//! end.

use super::*;

/// A socket whose handshake told whom it belongs to.
pub(crate) struct Accepted {
    pub(crate) listening: Arc<Listening>,
    pub(crate) stream: Stream,
    pub(crate) peer: SocketAddr,
    pub(crate) hello: Hello,
    /// Bytes that came after the hello.
    pub(crate) rest: BytesMut,
    /// Descriptors that came with it.
    pub(crate) fds: Vec<OwnedFd>,
}

impl Accepted {
    pub(crate) fn peer_info(&self) -> PeerInfo {
        PeerInfo {
            addr: self.peer,
            name: self.hello.name.clone(),
            lane: self.hello.lane,
            cluster: self.hello.cluster,
            features: self.hello.features & FEATURES,
        }
    }

    /// What it takes to lend and to borrow, if the peer wants to and it can be.
    fn agree_to_lend(&mut self, worker: &Worker) -> Option<WireShm> {
        let fds = std::mem::take(&mut self.fds);
        if self.hello.features & FEATURE_LENDING == 0 || !self.stream.may_lend() {
            return None;
        }
        let (sender, offer) = offer(worker)?;
        let receiver = worker.handle().lending().accept(fds).inspect_err(not_lent).ok()?;
        Some(WireShm { sender, receiver, offer: Some(offer) })
    }
}

/// What a peer is offered; none without memory that could be lent.
fn offer(worker: &Worker) -> Option<(ShmSender, Offer)> {
    let lending = worker.handle().lending();
    lending.arena()?;
    lending.offer().inspect_err(not_lent).ok()
}

fn not_lent(error: &std::io::Error) {
    tracing::info!(%error, "data of a peer on this host goes through its socket, not through shared memory");
}

impl Handle {
    /// Makes a connection that lives on `worker`, and keeps it: it dials, and dials again whenever
    /// TCP is lost, until it is closed. Returns at once; what is sent before the connection is up
    /// waits. `factory` makes, on the worker, the service for what the peer sends of its own and
    /// for events.
    ///
    /// A frame that no resend could mend, and a panic of the service, begin a new incarnation
    /// ([`StateEvent::Reset`]).
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn connect<F>(&self, worker: usize, config: ConnectConfig, factory: F) -> Connection
    where
        F: FnOnce(&Worker) -> Rc<dyn Service> + Send + 'static,
    {
        let connection = Connection::new(self.clone(), worker, config.addr, config.session);
        let order = Order { connection: connection.clone(), taken: false };
        self.post_run(worker, move |worker| order.carry_out(worker, config, factory));
        connection
    }
}

/// A connection on its way to its worker. If it never gets there, because the runtime has stopped
/// or the service could not be made, the connection is closed, so that nobody waits for it.
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
        let connector = Connector {
            config,
            cookie: fastrand::u128(..),
            incarnation: None,
            attempts: 0,
            told_down: false,
            agreed: false,
            rested: false,
            no_lending: false,
        };
        let role = Role::Connecting(Box::new(connector));
        let driver = Driver::new(self.connection.clone(), role, Instant::now());
        SharedConnection::connecting(self.connection.clone(), driver).begin(worker, service, None);
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        if !self.taken {
            self.connection.finish();
        }
    }
}

impl Driver {
    /// The driver of a session that begins on the accepting side.
    pub(crate) fn accepting(
        connection: Connection,
        listening: Arc<Listening>,
        cookie: u128,
    ) -> Driver {
        let (incarnation, now) = (fastrand::u64(1..), Instant::now());
        let role = Role::Accepting(Acceptance {
            listening,
            cookie,
            incarnation,
            idle_since: now,
            asked: false,
        });
        Driver::new(connection, role, now)
    }

    /// The socket that it has now.
    pub(crate) fn stream(&self) -> Option<&Stream> {
        match &self.link {
            Link::Waiting { .. } | Link::Resting => None,
            Link::Dialing { stream, .. } => Some(stream),
            Link::Greeting(greeting) => Some(&greeting.stream),
            Link::Up(wire) => Some(&wire.stream),
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    fn codec(&self, cx: &Cx<'_>) -> FrameCodec {
        let config = self.connection.config();
        FrameCodec::new(config.limits, Arc::clone(cx.worker.pool()))
            .with_block_crcs(config.block_crcs)
    }

    /// Accepting side: the first socket of a new session.
    pub(crate) fn open(&mut self, cx: &Cx<'_>, accepted: Accepted) {
        let peer = accepted.peer_info();
        self.welcome(cx, accepted, None);
        let opened = || cx.service.on_open(cx.worker, &self.connection, &peer);
        if cx.worker.guard("a service's on_open", opened).is_none() {
            self.fail(cx, Fault::Panic, Instant::now());
        }
    }

    /// Accepting side: another socket for this session. Ends the session and gives the socket back
    /// if it cannot go on.
    pub(crate) fn take_over(&mut self, cx: &Cx<'_>, accepted: Accepted) -> Option<Accepted> {
        let Role::Accepting(acceptance) = &self.role else { return None };
        let incarnation = acceptance.incarnation;
        let resume = accepted.hello.resume.filter(|resume| resume.incarnation == incarnation);
        let resumed = resume
            .is_some_and(|resume| self.connection.core().session.resume(resume.received).is_ok());
        if !resumed {
            self.finish(cx, &CloseReason::Replaced);
            return Some(accepted);
        }
        let received = self.connection.core().session.received();
        cx.worker.counters().reconnects.add(1);
        tracing::debug!(peer = %accepted.peer, received, "session resumes");
        self.welcome(cx, accepted, Some(received));
        None
    }

    fn welcome(&mut self, cx: &Cx<'_>, mut accepted: Accepted, resumed: Option<u64>) {
        let lending = accepted.agree_to_lend(cx.worker);
        let Role::Accepting(acceptance) = &self.role else { return };
        let config = &acceptance.listening.config;
        let welcome = Answer::Welcome(Welcome {
            features: if lending.is_some() { FEATURE_LENDING } else { 0 },
            cluster: config.cluster.get(),
            incarnation: acceptance.incarnation,
            resumed,
            name: handshake::cut_name(&config.name),
        });
        let stream = accepted.stream;
        if let Err(error) = cx.shared_connection.watch(&stream) {
            return self.fail(cx, error.into(), Instant::now());
        }
        let wire = Wire::new(stream, self.codec(cx), accepted.rest, handshake::encode(&welcome));
        self.went_up(wire.with_lending(lending));
    }

    fn went_up(&mut self, wire: Wire) {
        self.link = Link::Up(Box::new(wire));
        self.last_rx = Instant::now();
        self.owed_since = None;
        self.pinged = false;
        self.frame_since = None;
        self.loans_due = None;
        self.role.carried(self.last_rx);
        self.connection.set_state(ConnState::Up);
        self.connection.mark_dirty(0);
    }

    /// The time without TCP is over: another attempt, or the end.
    pub(super) fn waited(&mut self, cx: &Cx<'_>, now: Instant) -> Result<(), Fault> {
        let config = self.connection.config();
        let Role::Connecting(_) = &self.role else {
            return Err(Fault::Close(CloseReason::Expired(config.forget_after)));
        };
        let stream = Stream::connect(self.connection.peer())?;
        cx.shared_connection.watch(&stream)?;
        self.link = Link::Dialing { stream, until: now + config.handshake_max };
        // One to this host is connected already.
        self.dialed(cx, now)
    }

    pub(super) fn dialed(&mut self, cx: &Cx<'_>, now: Instant) -> Result<(), Fault> {
        let Link::Dialing { stream, until } = &self.link else { return Ok(()) };
        if !stream.is_connected()? {
            return Ok(());
        }
        let Role::Connecting(connector) = &self.role else { return Ok(()) };
        let received = self.connection.core().session.received();
        let is_wanted = !connector.no_lending && stream.may_lend();
        let (sender, offer) = is_wanted.then(|| offer(cx.worker)).flatten().unzip();
        let hello = Hello {
            features: if offer.is_some() { FEATURE_LENDING } else { 0 },
            cluster: connector.config.cluster.get(),
            auth_method: AUTH_NONE,
            cookie: connector.cookie,
            resume: connector.incarnation.map(|incarnation| Resume { incarnation, received }),
            lane: connector.config.lane,
            name: handshake::cut_name(&connector.config.name),
        };
        let until = *until;
        let waiting = Link::Waiting { until: now };
        if let Link::Dialing { stream, .. } = std::mem::replace(&mut self.link, waiting) {
            let (out, buf, fds) = (handshake::encode(&hello), BytesMut::new(), Vec::new());
            self.link =
                Link::Greeting(Box::new(Greeting { stream, until, out, offer, sender, buf, fds }));
        }
        self.greet(cx, now)
    }

    /// Connecting side: the handshake goes on.
    pub(super) fn greet(&mut self, cx: &Cx<'_>, now: Instant) -> Result<(), Fault> {
        let Link::Greeting(greeting) = &mut self.link else { return Ok(()) };
        let Greeting { stream, out, offer, buf, fds, .. } = &mut **greeting;
        while !out.is_empty() {
            let written = match offer {
                Some(offer) => stream.with(offer).write(out),
                None => stream.write(out),
            };
            match written {
                Ok(count) => {
                    out.advance(count);
                    *offer = None;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    if let (Some(_), Role::Connecting(connector)) = (offer, &mut self.role) {
                        connector.no_lending = true;
                    }
                    return Err(error.into());
                }
            }
        }
        let mut chunk = [0; 1024];
        let answer = loop {
            match handshake::decode::<Answer>(buf) {
                Ok(Some(answer)) => break answer,
                Ok(None) => {}
                Err(handshake::HandshakeError::Version(refusal)) => {
                    cx.worker.counters().handshake_errors.add(1);
                    return Err(Fault::Refused(refusal));
                }
                Err(error) => {
                    cx.worker.counters().handshake_errors.add(1);
                    return Err(Fault::Lost(error.to_string()));
                }
            }
            match stream.read_with(&mut chunk, fds) {
                Ok(0) => {
                    return Err(Fault::Lost(
                        "the peer closed the connection in the handshake".into(),
                    ));
                }
                Ok(count) => buf.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        match answer {
            Answer::Refused(refusal) => {
                cx.worker.counters().handshake_errors.add(1);
                Err(Fault::Refused(refusal))
            }
            Answer::Welcome(welcome) => self.welcomed(cx, &welcome, now),
        }
    }

    /// Connecting side: the peer let us in.
    fn welcomed(&mut self, cx: &Cx<'_>, welcome: &Welcome, now: Instant) -> Result<(), Fault> {
        let Role::Connecting(connector) = &mut self.role else { return Ok(()) };
        if connector.config.cluster.is_known() {
            connector.config.cluster.check(welcome.cluster).map_err(Fault::Refused)?;
        }
        let receiver = match &mut self.link {
            Link::Greeting(greeting) if welcome.features & FEATURE_LENDING != 0 => {
                let accepted =
                    cx.worker.handle().lending().accept(std::mem::take(&mut greeting.fds));
                connector.no_lending = true;
                Some(accepted.inspect_err(not_lent)?)
            }
            _ => None,
        };
        connector.no_lending = false;
        let before = connector.incarnation.replace(welcome.incarnation);
        connector.told_down = false;
        let agreed = std::mem::take(&mut connector.agreed);
        connector.rested = false;
        match welcome.resumed {
            Some(received) => {
                // An error is returned after the lock is released: it resets the session.
                let resumed = self.connection.core().session.resume(received);
                resumed.map_err(Fault::Frame)?;
                cx.worker.counters().reconnects.add(1);
            }
            None => {
                cx.worker.counters().connections_opened.add(1);
                if agreed {
                    self.connection.core().session.restart();
                } else if before.is_some() {
                    self.reset(cx);
                }
            }
        }
        let codec = self.codec(cx);
        if let Link::Greeting(greeting) =
            std::mem::replace(&mut self.link, Link::Waiting { until: now })
        {
            let Greeting { stream, sender, buf, .. } = *greeting;
            let lending = sender.zip(receiver).map(|(sender, receiver)| WireShm {
                sender,
                receiver,
                offer: None,
            });
            self.went_up(Wire::new(stream, codec, buf, Bytes::new()).with_lending(lending));
        }
        let event = StateEvent::Up { resumed: welcome.resumed.is_some(), cluster: welcome.cluster };
        tracing::debug!(peer = %self.connection.peer(), name = welcome.name, ?event, "connection is up");
        self.tell(cx, &event);
        Ok(())
    }

    fn tell(&self, cx: &Cx<'_>, event: &StateEvent) {
        cx.worker.guard("a service's on_state", || {
            cx.service.on_state(cx.worker, &self.connection, event)
        });
    }

    fn reset(&mut self, cx: &Cx<'_>) {
        cx.worker.counters().resets.add(1);
        let wakers = self.connection.core().reset();
        wakers.into_iter().for_each(Waker::wake);
        tracing::info!(peer = %self.connection.peer(), "session lost by the peer, a new one begins");
        self.tell(cx, &StateEvent::Reset);
    }

    /// Deals with what ended the TCP connection.
    pub(super) fn fail(&mut self, cx: &Cx<'_>, fault: Fault, now: Instant) {
        let peer = self.connection.peer();
        match fault {
            Fault::Close(reason) => self.finish(cx, &reason),
            Fault::Lost(reason) => {
                tracing::debug!(%peer, reason, "connection lost");
                self.lose(cx, reason, now);
            }
            Fault::Frame(error) => {
                cx.worker.counters().frame_errors[error.index()].add(1);
                tracing::warn!(%peer, %error, "connection closed, a frame was refused");
                if error.is_fatal() {
                    self.give_up(cx, CloseReason::Frame(error), now);
                } else {
                    self.lose(cx, error.to_string(), now);
                }
            }
            Fault::Panic => self.give_up(cx, CloseReason::Panic, now),
            Fault::Rest => self.rest(now),
            Fault::Refused(refusal @ (Refusal::Busy | Refusal::Full(_))) => {
                self.lose(cx, refusal.to_string(), now)
            }
            Fault::Refused(refusal) => {
                tracing::warn!(%peer, %refusal, "connection refused");
                self.tell(cx, &StateEvent::Refused(refusal.clone()));
                self.finish(cx, &CloseReason::Refused(refusal));
            }
        }
    }

    /// The session cannot go on: the accepting side forgets it, the connecting side begins anew.
    fn give_up(&mut self, cx: &Cx<'_>, reason: CloseReason, now: Instant) {
        match &mut self.role {
            Role::Accepting(_) => self.finish(cx, &reason),
            Role::Connecting(connector) => {
                (connector.incarnation, connector.agreed) = (None, false);
                self.reset(cx);
                self.lose(cx, reason.to_string(), now);
            }
        }
    }

    /// The peer has ended the session by agreement: it begins anew with what is queued by now, or
    /// when something is.
    fn rest(&mut self, now: Instant) {
        let Role::Connecting(connector) = &mut self.role else { return };
        (connector.incarnation, connector.agreed, connector.rested) = (None, false, true);
        self.owed_since = None;
        let mut core = self.connection.core();
        core.session.restart();
        let is_wanted = core.session.has_unsent();
        drop(core);
        tracing::debug!(peer = %self.connection.peer(), is_wanted, "an idle connection rests");
        self.connection.set_state(ConnState::Resting);
        self.link = if is_wanted { Link::Waiting { until: now } } else { Link::Resting };
    }

    fn lose(&mut self, cx: &Cx<'_>, reason: String, now: Instant) {
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
                    self.tell(cx, &StateEvent::Down { reason });
                }
            }
        }
        if cx.worker.is_shutting_down() {
            self.finish(cx, &CloseReason::Shutdown);
        }
    }

    /// Ends the connection for good. The caller removes it from its slot.
    pub(crate) fn finish(&mut self, cx: &Cx<'_>, reason: &CloseReason) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        self.link = Link::Waiting { until: Instant::now() };
        self.connection.finish();
        let waiting = cx.shared_connection.dissolve();
        if let Role::Accepting(acceptance) = &self.role {
            acceptance.listening.forget(acceptance.cookie, cx.shared_connection);
        }
        cx.worker.counters().connections_closed.add(1);
        tracing::debug!(peer = %self.connection.peer(), %reason, "connection closed");
        cx.worker.guard("a service's on_close", || {
            cx.service.on_close(cx.worker, &self.connection, reason)
        });
        if let Some(accepted) = waiting {
            listener::admit(cx.worker, accepted);
        }
    }

    /// The runtime stops: the connecting side says goodbye, the accepting side only sends what is
    /// queued.
    pub(crate) fn begin_shutdown(&mut self, cx: &Cx<'_>) {
        match (&self.role, &self.link) {
            (Role::Accepting(_), _) => {}
            (Role::Connecting(_), Link::Up(_)) => self.connection.close_with(CloseReason::Shutdown),
            (Role::Connecting(_), _) => self.finish(cx, &CloseReason::Shutdown),
        }
    }

    /// True once nothing more has to be sent.
    pub(crate) fn is_drained(&self) -> bool {
        let Link::Up(wire) = &self.link else { return true };
        let core = self.connection.core();
        wire.tx.is_empty() && !core.session.has_unsent() && core.close_wanted.is_none()
    }
}

/// Exponential, with jitter over the upper half, so that many clients of a restarted daemon do not
/// come at once.
pub(super) fn backoff(attempts: u32, min: Duration, max: Duration) -> Duration {
    let full = min.saturating_mul(1 << attempts.min(16)).min(max);
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}
