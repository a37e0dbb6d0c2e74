//! The owner: the one task that carries out all requests.

use super::inbox::{Event, Inbox};
use super::{MdsConfig, reserve, wall_clock};
use bytes::Bytes;
use cluster::{ClusterMap, SessionState};
use messenger::sync::{Receiver, Sender, oneshot};
use messenger::{Connection, InlinePredictor, LateCluster, Message, ReplyTo, TrafficClass, Worker};
use metadata::store::Persist;
use metadata::{EmbeddedStore, PurgeEntry, Service, SessionView, StoreError};
use protocol::namespace::{Answer, Attr, Commit, Reply};
use protocol::{Epoch, Gfid, Kind, SessionId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events carried out between two commits, at most: bounds the delay of the first by the work of
/// the others.
const TURN_EVENTS_MAX: usize = 256;
/// A sync of more changes than these may have much to bring to the disk.
const SMALL_CHANGES_MAX: usize = 256;
/// How often the free space of the disk is looked at.
const SPACE_EVERY: Duration = Duration::from_secs(1);

/// The state of the role, on its worker.
pub(super) struct Owner {
    worker: Worker,
    service: Service<EmbeddedStore>,
    inbox: Arc<Inbox>,
    config: MdsConfig,
    /// From the first map on, if the store did not know it: peers of another are refused.
    cluster: LateCluster,
    epoch: Epoch,
    token_next: u64,
    asked: HashMap<u64, Asked>,
    /// Arrival of the last event.
    now: Duration,
    /// The connection on which each session last spoke.
    sessions: HashMap<SessionId, Connection>,
    sync: Sync,
    space_checked: Duration,
}

/// A request: where its answer goes, and what that tells beside the reply.
struct Asked {
    session: SessionId,
    connection: Connection,
    reply_to: ReplyTo,
    dirs: Vec<Gfid>,
}

/// Bringing commits to disk.
struct Sync {
    /// `None` while a sync runs.
    persister: Option<Box<dyn Persist>>,
    /// The end of the sync that runs, or ran last.
    ended: Option<Receiver<()>>,
    /// Who waits for the sync that runs.
    running: Vec<Waiter>,
    /// Who came after it began.
    waiting: Vec<Waiter>,
    /// The last commit that the sync which runs, or ran last, brings to the disk.
    upto: Commit,
    /// Something was committed since the last sync began.
    dirty: bool,
    /// How much.
    changes: usize,
    last: Duration,
    /// Of syncs of few changes.
    predictor: InlinePredictor,
}

/// Waits for a sync.
enum Waiter {
    /// A request, and its answer.
    Request(u64, Reply),
    /// The data worker, for files to purge. Their objects may go only when the removal is on disk:
    /// after a power loss the file would be back, without its data.
    Purges(Sender<Vec<PurgeEntry>>, Vec<PurgeEntry>),
}

impl Owner {
    pub fn new(
        worker: Worker,
        service: Service<EmbeddedStore>,
        inbox: Arc<Inbox>,
        config: MdsConfig,
        cluster: LateCluster,
    ) -> Self {
        let sync = Sync {
            persister: Some(service.persister()),
            ended: None,
            running: Vec::new(),
            waiting: Vec::new(),
            upto: service.durable(),
            dirty: true,
            changes: 0,
            last: Duration::ZERO,
            predictor: InlinePredictor::default(),
        };
        Self {
            worker,
            service,
            inbox,
            config,
            cluster,
            epoch: Epoch::new(0),
            token_next: 0,
            asked: HashMap::new(),
            now: Duration::ZERO,
            sessions: HashMap::new(),
            sync,
            space_checked: Duration::ZERO,
        }
    }

    /// Serves until the end. Everything answered is then on disk.
    ///
    /// # Errors
    /// When the store fails: nothing since the last turn was told to anyone.
    pub async fn run(mut self) -> Result<(), StoreError> {
        let result = self.serve().await;
        // Clients come again, to the service that is started next.
        self.sessions.values().for_each(Connection::close);
        if let Some(ended) = self.sync.ended.take() {
            // The sync holds the store open; gone or done, it has let go.
            let _ = ended.await;
        }
        result
    }

    async fn serve(&mut self) -> Result<(), StoreError> {
        self.check_space();
        loop {
            let mut events = self.inbox.take().await.into_iter().peekable();
            while events.peek().is_some() {
                for (at, event) in events.by_ref().take(TURN_EVENTS_MAX) {
                    if matches!(event, Event::Stop) {
                        self.finish_turn()?;
                        return self.service.sync();
                    }
                    self.handle(at, event)?;
                }
                self.finish_turn()?;
            }
            self.worker.yield_now().await; // the sockets of this worker have their turn, however much arrives
        }
    }

    fn handle(&mut self, now: Duration, event: Event) -> Result<(), StoreError> {
        self.now = now;
        match event {
            Event::Request { connection, reply_to, request } => {
                let token = self.token_next;
                self.token_next += 1;
                match self.sessions.get_mut(&request.session) {
                    Some(known) if known.id() == connection.id() => {}
                    Some(known) => *known = connection.clone(),
                    None => drop(self.sessions.insert(request.session, connection.clone())),
                }
                let dirs = request.op.changed_dirs().collect();
                self.asked
                    .insert(token, Asked { session: request.session, connection, reply_to, dirs });
                self.service.submit(now, token, request)
            }
            Event::Closed { connection } => {
                self.sessions.retain(|_, known| known.id() != connection);
                Ok(())
            }
            Event::Map(map) => self.take_map(now, &map),
            Event::Synced { persister, result, took } => {
                self.synced(persister, result, took)?;
                self.maybe_sync(now)
            }
            Event::NextPurges { after, limit, answer } => {
                self.finish_turn()?; // a file is handed out only when its removal is committed
                let entries = self.service.purge_next(after, limit)?;
                if entries.is_empty() {
                    drop(answer.send(entries));
                } else {
                    self.sync.waiting.push(Waiter::Purges(answer, entries));
                    self.start_sync()?;
                }
                Ok(())
            }
            Event::NextSizes { after, limit, answer } => {
                drop(answer.send(self.service.size_recovery_next(after, limit)?));
                Ok(())
            }
            Event::Purged(gfid) => self.service.purged(gfid),
            Event::SizeRecovered { gfid, end } => {
                self.service.size_recovered(now, gfid, end, wall_clock())
            }
            Event::Tick => {
                self.service.tick(now)?;
                if now >= self.space_checked + SPACE_EVERY {
                    self.space_checked = now;
                    self.check_space();
                }
                self.maybe_sync(now)
            }
            Event::Stop => Ok(()),
        }
    }

    /// Commits and tells.
    fn finish_turn(&mut self) -> Result<(), StoreError> {
        let changes = self.service.namespace().uncommitted();
        self.sync.dirty |= changes > 0;
        self.sync.changes += changes;
        let mut wants_sync = false;
        for event in self.service.finish_turn()? {
            match event {
                metadata::Event::Reply { token, reply } => {
                    self.answer(token, reply, self.service.namespace().last_commit());
                }
                metadata::Event::Recall { session, recall } => {
                    self.tell(session, Kind::Recall, protocol::encode(&recall));
                }
                metadata::Event::NamesRecall { session, recall } => {
                    self.tell(session, Kind::NamesRecall, protocol::encode(&recall));
                }
                metadata::Event::Sync { token, reply } => {
                    self.sync.waiting.push(Waiter::Request(token, reply));
                    wants_sync = true;
                }
            }
        }
        if wants_sync { self.start_sync() } else { Ok(()) }
    }

    /// Tells the reply, which is in this commit or one before it.
    fn answer(&mut self, token: u64, reply: Reply, commit: Commit) {
        let covered = self.service.is_covered(token);
        if let Some(Asked { session, connection, reply_to: to, dirs }) = self.asked.remove(&token) {
            let alone = self.service.promise_alone(self.now, session);
            let alone_ms = u32::try_from(alone.as_millis()).unwrap_or(0);
            let names = self.service.promise_names(self.now, session);
            let names_ms = u32::try_from(names.as_millis()).unwrap_or(0);
            let alone_term = self.service.alone_term();
            let tells = alone_ms > 0 && !matches!(reply, Reply::Errno(_));
            let dirs = if tells { self.attrs(&dirs) } else { Vec::new() };
            let durable = self.service.durable();
            let front = protocol::encode(&Answer {
                reply,
                alone_ms,
                alone_term,
                names_ms,
                covered,
                dirs,
                commit,
                durable,
            });
            connection.reply_to(
                to,
                Message::new(to.class, Kind::NamespaceReply.to_u16(), front, Default::default()),
            );
        }
    }

    /// Of those that can be read: what is not told is asked for.
    fn attrs(&self, files: &[Gfid]) -> Vec<Attr> {
        files
            .iter()
            .filter_map(|&gfid| self.service.namespace().attr(gfid).ok().flatten())
            .collect()
    }

    /// Asks for a lease. A session without a connection is asked again by the repetition, when it
    /// is back.
    fn tell(&self, session: SessionId, recall: Kind, front: Bytes) {
        if let Some(connection) = self.sessions.get(&session) {
            let kind = recall.to_u16();
            connection.send(Message::new(TrafficClass::Client, kind, front, Bytes::new()));
        }
    }

    fn take_map(&mut self, now: Duration, map: &ClusterMap) -> Result<(), StoreError> {
        if map.epoch <= self.epoch {
            return Ok(());
        }
        let bound = self.service.bind_cluster(map.cluster)?;
        if bound != map.cluster {
            tracing::error!(%bound, monitor = %map.cluster, "the monitor is another cluster's: its map is ignored");
            return Ok(());
        }
        self.cluster.learn(bound);
        self.epoch = map.epoch;
        let of = |wanted: SessionState| {
            map.sessions
                .iter()
                .filter(move |(_, state)| **state == wanted)
                .map(|(session, _)| *session)
                .collect()
        };
        let (live, dead) = (of(SessionState::Live), of(SessionState::Dead));
        let view = SessionView { live, dead, epoch: map.epoch, last: map.last_session };
        self.sessions.retain(|session, _| view.live.contains(session) || *session > view.last);
        self.service.sessions_changed(now, wall_clock(), view)
    }

    fn maybe_sync(&mut self, now: Duration) -> Result<(), StoreError> {
        let is_time = now >= self.sync.last + self.config.sync_interval;
        let due = self.sync.dirty && (is_time || self.service.awaits_sync());
        if !due && self.sync.waiting.is_empty() {
            return Ok(());
        }
        if due {
            self.sync.last = now;
        }
        self.start_sync()
    }

    /// Starts a sync unless one runs; requests that came meanwhile share the next. One that should
    /// be brief is run here.
    fn start_sync(&mut self) -> Result<(), StoreError> {
        let Some(persister) = self.sync.persister.take() else { return Ok(()) };
        self.sync.running = std::mem::take(&mut self.sync.waiting);
        self.sync.dirty = false;
        self.sync.upto = self.service.namespace().last_commit();
        let is_small = std::mem::take(&mut self.sync.changes) <= SMALL_CHANGES_MAX;
        if is_small && self.sync.predictor.is_expected() {
            let (result, took) = timed_persist(&*persister);
            return self.synced(persister, result, Some(took));
        }
        let inbox = Arc::clone(&self.inbox);
        let job = self.worker.blocking(move || {
            let (result, took) = timed_persist(&*persister);
            Event::Synced { persister, result, took: is_small.then_some(took) }
        });
        let (ended, receiver) = oneshot();
        self.sync.ended = Some(receiver);
        self.worker.spawn(async move {
            let event = job.await.unwrap_or_else(|error| {
                tracing::error!(%error, "sync failed");
                Event::Stop
            });
            inbox.push(event);
            // Nobody waits unless the role ends.
            let _ = ended.send(());
        });
        Ok(())
    }

    /// A sync has ended, a small one after so long: who waited for it is answered.
    fn synced(
        &mut self,
        persister: Box<dyn Persist>,
        result: Result<(), StoreError>,
        took: Option<Duration>,
    ) -> Result<(), StoreError> {
        result?;
        took.into_iter().for_each(|took| self.sync.predictor.took(took));
        self.service.persisted(self.sync.upto);
        self.sync.persister = Some(persister);
        for waiter in std::mem::take(&mut self.sync.running) {
            match waiter {
                Waiter::Request(token, reply) => self.answer(token, reply, self.sync.upto),
                // The asker is gone only at the end.
                Waiter::Purges(answer, entries) => drop(answer.send(entries)),
            }
        }
        Ok(())
    }

    fn check_space(&mut self) {
        match rustix::fs::statvfs(&self.config.dir) {
            Ok(space) => {
                let free = space.f_bavail * space.f_frsize;
                self.service.set_full(free < self.config.free_bytes_min);
                let fits = free > self.config.free_bytes_min + reserve::RESERVE_BYTES;
                if let Err(error) = if fits { reserve::keep(&self.config.dir) } else { Ok(()) } {
                    tracing::debug!(%error, "no space is reserved");
                }
            }
            Err(error) => {
                tracing::warn!(%error, dir = %self.config.dir.display(), "cannot read the free space")
            }
        }
    }
}

/// Waits for the disk, and says for how long.
fn timed_persist(persister: &dyn Persist) -> (Result<(), StoreError>, Duration) {
    let began = Instant::now();
    (persister.persist(), began.elapsed())
}
