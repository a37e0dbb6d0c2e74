//! Calls to the metadata service, each carried out exactly once.
//!
//! Contract: a call keeps its number until it is answered, however often it is sent; `answered`
//! never passes a call that is under way. A call given up counts as answered: the service takes no
//! number at or below that mark.

use super::ClientEvent;
use super::shared::{RETRY_PAUSE, Shared};
use crate::error::ClientError;
use bytes::Bytes;
use messenger::sync::{ContentionMutex, LockTable};
use messenger::{
    CallError, CloseReason, ConnState, ConnectConfig, Connection, Message, Service, StateEvent,
    TrafficClass, Worker,
};
use protocol::namespace::{
    Answer, Attr, Caller, Commit, NamesRecall, NamespaceOp, Recall, Reply, Request,
};
use protocol::{Epoch, Kind, SessionId};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// First pause after `TryAgain`; doubles up to [`AGAIN_PAUSE_MAX`].
const AGAIN_PAUSE_MIN: Duration = Duration::from_millis(5);
/// Longest pause after `TryAgain`: the service is in its grace period, or waits for another client.
const AGAIN_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Longest wait for one answer before the call is sent again under its number.
const ATTEMPT_MAX: Duration = Duration::from_secs(60);

/// Numbers of calls.
#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    under_way: BTreeSet<u64>,
}

impl Numbers {
    fn begin(&mut self) -> u64 {
        self.last += 1;
        self.under_way.insert(self.last);
        self.last
    }

    /// All calls up to here are answered or given up.
    fn answered(&self) -> u64 {
        self.under_way.first().map_or(self.last, |first| first - 1)
    }
}

#[derive(Debug)]
struct Link {
    addr: SocketAddr,
    connection: Connection,
}

/// The connection to the metadata service and the numbers of its calls.
#[derive(Debug)]
pub(crate) struct Mds {
    numbers: ContentionMutex<Numbers>,
    link: ContentionMutex<Option<Link>>,
    /// A connection was up before: the next new one means that the service, or its memory of us, is
    /// new.
    known: ContentionMutex<bool>,
    /// The client is a mount, and the session that said so last.
    mount: AtomicBool,
    mounted: AtomicU64,
}

/// The metadata service's answer.
#[derive(Clone, Debug)]
pub struct Answered {
    /// To what was asked.
    pub reply: Reply,
    /// See [`Answer::covered`].
    pub covered: bool,
    /// See [`Answer::dirs`].
    pub dirs: Vec<Attr>,
    /// See [`Answer::commit`].
    pub commit: Commit,
    /// See [`Answer::durable`].
    pub durable: Commit,
}

/// A call under way; its number is free when dropped.
struct Number<'a> {
    mds: &'a Mds,
    number: u64,
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        self.mds.numbers.lock().under_way.remove(&self.number);
    }
}

impl Mds {
    /// Not connected; `locks` lists its locks.
    pub fn new(locks: &LockTable) -> Self {
        Self {
            numbers: ContentionMutex::new(locks, "client mds numbers", Numbers::default()),
            link: ContentionMutex::new(locks, "client mds link", None),
            known: ContentionMutex::new(locks, "client mds known", false),
            mount: AtomicBool::new(false),
            mounted: AtomicU64::new(0),
        }
    }

    /// The map says where the service is: calls that wait for it elsewhere are to be made again
    /// there.
    pub fn moved(&self, to: Option<SocketAddr>) {
        let mut link = self.link.lock();
        if let Some(old) = link.take_if(|link| to.is_some_and(|to| to != link.addr)) {
            old.connection.close();
        }
    }

    /// A new session uses a new connection. Numbers go on: calls of the last session end later, and
    /// theirs must not be taken for those of new ones.
    pub fn restart(&self) {
        *self.known.lock() = false;
        if let Some(link) = self.link.lock().take() {
            link.connection.close();
        }
    }
}

impl Shared {
    /// See [`super::Client::namespace`].
    pub(super) async fn namespace(
        self: &Arc<Self>,
        op: NamespaceOp,
        caller: Caller,
    ) -> Result<Answered, ClientError> {
        let session = self.check()?;
        let _timed = self.namespace_times.stopwatch();
        if !matches!(op, NamespaceOp::Mount) {
            self.ensure_mounted(session, caller).await?;
        }
        let number = Number { number: self.mds.numbers.lock().begin(), mds: &self.mds };
        let give_up =
            (!self.config.timeout.is_zero()).then(|| Instant::now() + self.config.timeout);
        let mut request = Request {
            session,
            number: number.number,
            answered: 0,
            epoch: Epoch::default(),
            caller,
            op,
        };
        let mut pause = AGAIN_PAUSE_MIN;
        loop {
            if self.check()? != session {
                return Err(ClientError::Fenced(session));
            }
            let remaining = match give_up {
                Some(at) => at.saturating_duration_since(Instant::now()).min(ATTEMPT_MAX),
                None => ATTEMPT_MAX,
            };
            if remaining.is_zero() {
                return Err(ClientError::TimedOut("the metadata service"));
            }
            request.answered = self.mds.numbers.lock().answered();
            request.epoch = self.newest_epoch();
            match self.ask_mds(&request, remaining).await? {
                Some(Answered { reply: Reply::Errno(errno), .. }) => {
                    return Err(ClientError::Posix(errno));
                }
                Some(Answered { reply: Reply::Fenced, .. }) => {
                    self.fenced(session);
                    return Err(ClientError::Fenced(session));
                }
                Some(Answered { reply: Reply::TryAgain, .. }) => {
                    self.pause(pause.min(remaining)).await;
                    pause = (pause * 2).min(AGAIN_PAUSE_MAX);
                }
                Some(answered) => return Ok(answered),
                None => self.pause(RETRY_PAUSE.min(remaining)).await,
            }
        }
    }

    /// See [`super::Client::mount`].
    pub(super) async fn mount(self: &Arc<Self>, caller: Caller) -> Result<(), ClientError> {
        self.mds.mount.store(true, Ordering::Release);
        self.ensure_mounted(self.check()?, caller).await
    }

    /// A new session of a mount says that it is one before it asks for anything else.
    async fn ensure_mounted(
        self: &Arc<Self>,
        session: SessionId,
        caller: Caller,
    ) -> Result<(), ClientError> {
        let told = self.mds.mounted.load(Ordering::Acquire) == session.get();
        if !self.mds.mount.load(Ordering::Acquire) || told {
            return Ok(());
        }
        Box::pin(self.namespace(NamespaceOp::Mount, caller)).await?;
        self.mds.mounted.store(session.get(), Ordering::Release);
        Ok(())
    }

    /// One attempt; `None` if it must be made again.
    async fn ask_mds(
        self: &Arc<Self>,
        request: &Request,
        remaining: Duration,
    ) -> Result<Option<Answered>, ClientError> {
        let Some(connection) = self.mds_connection()? else { return Ok(None) };
        let front = protocol::encode(request);
        let message =
            Message::new(TrafficClass::Client, Kind::Namespace.to_u16(), front, Bytes::new());
        let asked = Instant::now();
        let reply = match connection.call(message, remaining).await {
            Ok(reply) => reply,
            Err(CallError::TooLong(error)) => return Err(ClientError::Protocol(error.to_string())),
            Err(CallError::Deadline | CallError::Reset | CallError::Closed) => return Ok(None),
        };
        if reply.kind != Kind::NamespaceReply.to_u16() {
            return Err(ClientError::Protocol(format!(
                "kind {:#06x} from the metadata service",
                reply.kind
            )));
        }
        let answer = protocol::decode::<Answer>("namespace reply", &reply.front);
        let answer = answer.map_err(|error| ClientError::Protocol(error.to_string()))?;
        let until = |ms: u32| asked + Duration::from_millis(ms.into());
        let promised = (until(answer.alone_ms), until(answer.names_ms));
        self.told(request.session, promised, answer.alone_term);
        let Answer { reply, covered, dirs, commit, durable, .. } = answer;
        Ok(Some(Answered { reply, covered, dirs, commit, durable }))
    }

    /// The connection to where the map says that the service is; `None` if it says nothing.
    fn mds_connection(self: &Arc<Self>) -> Result<Option<Connection>, ClientError> {
        let map = self.map()?;
        let Some(addr) = map.mds else { return Ok(None) };
        let mut link = self.mds.link.lock();
        if let Some(link) =
            link.as_ref().filter(|l| l.addr == addr && l.connection.state() != ConnState::Closed)
        {
            return Ok(Some(link.connection.clone()));
        }
        if let Some(old) = link.take() {
            old.connection.close();
        }
        let config = ConnectConfig::new(addr, map.cluster, self.config.name.clone());
        let shared = Arc::downgrade(self);
        let connection = self
            .handle
            .connect(0, config, move |_| Rc::new(MdsService { shared }) as Rc<dyn Service>);
        *link = Some(Link { addr, connection: connection.clone() });
        Ok(Some(connection))
    }
}

/// What the metadata service sends of its own.
struct MdsService {
    shared: Weak<Shared>,
}

impl Service for MdsService {
    fn on_message(&self, _worker: &Worker, _connection: &Connection, message: Message) {
        let Some(shared) = self.shared.upgrade() else { return };
        let front = &message.front;
        let event = if message.kind == Kind::Recall.to_u16() {
            protocol::decode::<Recall>("recall", front).map(ClientEvent::Recall)
        } else if message.kind == Kind::NamesRecall.to_u16() {
            protocol::decode::<NamesRecall>("recall of names", front).map(ClientEvent::NamesRecall)
        } else {
            tracing::debug!(kind = message.kind, "message of the metadata service dropped");
            return;
        };
        match event {
            Ok(event) => shared.emit(event),
            Err(error) => tracing::warn!(%error, "recall dropped"),
        }
    }

    fn on_state(&self, _worker: &Worker, _connection: &Connection, event: &StateEvent) {
        let Some(shared) = self.shared.upgrade() else { return };
        match event {
            StateEvent::Up { resumed: false, .. } => {
                let again = std::mem::replace(&mut *shared.mds.known.lock(), true);
                if again {
                    shared.emit(ClientEvent::MdsRestarted);
                }
            }
            StateEvent::Down { reason } => {
                tracing::info!(reason, "connection to the metadata service lost")
            }
            _ => {}
        }
    }

    fn on_close(&self, _worker: &Worker, _connection: &Connection, reason: &CloseReason) {
        tracing::info!(%reason, "connection to the metadata service ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_never_passes_a_call_under_way() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.answered(), 0);
        let (first, second) = (numbers.begin(), numbers.begin());
        assert_eq!((first, second, numbers.answered()), (1, 2, 0));
        numbers.under_way.remove(&second);
        assert_eq!(numbers.answered(), 0);
        numbers.under_way.remove(&first);
        assert_eq!(numbers.answered(), 2);
    }
}
