//! The owner task of one of several monitors.
//!
//! Contract: what arrives is taken as it comes, frames of other monitors first, and nothing here
//! waits: the log is written by an I/O thread, a proposal or a round of questions is under way
//! while ticks and frames go on. One that leads takes requests in batches, one at a time; what
//! comes meanwhile is the next one. Rule: CommitPublish - a batch is published and answered when
//! what it changed is committed. Rule: ConfirmRenew - one that changed nothing, but has an answer
//! of the leader's own, is answered after a majority has followed since. One that follows publishes
//! what is committed, shows what it has, and leaves the rest to the leader.
//!
//! A leader that is deposed drops its [`Monitor`] with all that was not committed, and tells
//! whoever waits that it does not lead.

use super::batch::{Batch, Leading};
use super::desk::{Answer, Desk, speaks_for};
use super::founding::{self, Founding, Verdict};
use super::inbox::{Event, Inbox};
use super::peers::{self, Peers};
use super::replica::{Happened, Replica, cluster_of};
use cluster::{ControlError, Embedded, ExpectedOsd, Observer, PoolSpec};
use consensus::{NodeId, Outcome, ReplicaId, Role, Ticket};
use messenger::{Connection, LateCluster, ReplyTo, Worker};
use protocol::monitor::{Health, MonitorReply, MonitorRequest};
use protocol::quorum::{MonitorHello, MonitorStatus, QuorumStatus};
use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause before what could not be written is written again.
const KEEP_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often it is logged for whom the first start waits.
const SAY_MISSING_EVERY: Duration = Duration::from_secs(10);
/// Time for the frame that makes another one stand for election, when this one ends.
const HAND_OVER: Duration = Duration::from_millis(100);
const WRITE_POLL: Duration = Duration::from_millis(5);

/// Which monitor it is, and of what cluster.
pub(super) struct Identity {
    /// Its place in the list.
    pub node: NodeId,
    /// The list.
    pub addrs: Vec<SocketAddr>,
    /// The role's directory, which it has locked.
    pub dir: PathBuf,
    pub _lock: Embedded,
    /// Known once the cluster has begun.
    pub cluster: LateCluster,
    pub settings: cluster::Settings,
    /// What a new cluster has.
    pub osds: Vec<ExpectedOsd>,
    pub pool: PoolSpec,
}

/// The owner.
pub(super) struct Member {
    identity: Identity,
    worker: Worker,
    inbox: Arc<Inbox>,
    desk: Desk,
    peers: Peers,
    /// Until the directory has a log.
    founding: Option<Founding>,
    /// Absent before that, and while the log is opened again.
    replica: Option<Replica>,
    part: Part,
    is_writing: Rc<Cell<bool>>,
    keep_at: Duration,
    said_at: Option<Duration>,
}

enum Part {
    /// None before the cluster is made.
    Follows(Option<Box<Observer>>),
    Leads(Box<Leading>),
}

impl Member {
    /// `replica`: what the directory holds; without one, what its number is (see [`founding`]).
    pub fn new(
        identity: Identity,
        worker: Worker,
        inbox: Arc<Inbox>,
        begun: Result<Replica, Option<u128>>,
    ) -> Self {
        let desk = Desk::new(worker.clone(), Arc::clone(&inbox));
        let Identity { node, addrs, cluster, settings, .. } = &identity;
        let peers = Peers::new(*node, addrs, cluster.clone(), Arc::clone(&inbox));
        let (founding, replica) = match begun {
            Ok(replica) => (None, Some(replica)),
            Err(nonce) => (Some(Founding::new(node.0, addrs.len() as u16, nonce)), None),
        };
        let state = replica.as_ref().and_then(Replica::state).cloned();
        let observer = state.map(|state| Box::new(Observer::new(state, *settings, Duration::ZERO)));
        let (is_writing, keep_at, said_at) = Default::default();
        let part = Part::Follows(observer);
        Self {
            identity,
            worker,
            inbox,
            desk,
            peers,
            founding,
            replica,
            part,
            is_writing,
            keep_at,
            said_at,
        }
    }

    /// Runs until [`Event::Stop`], or until the log cannot be followed any more.
    pub async fn run(mut self) {
        loop {
            let mut events = self.inbox.take().await;
            let now = events.last().map_or(Duration::ZERO, |(at, _)| *at);
            // stable: each kind stays in its order
            events.sort_by_key(|(_, event)| !matches!(event, Event::Frame { .. }));
            let mut stops = false;
            for (at, event) in events {
                stops |= matches!(event, Event::Stop);
                self.take(event, at, now);
            }
            if let Err(error) = self.advance(now) {
                tracing::error!(%error, "the monitor stops: its replica of the state is of no use");
                self.inbox.push(Event::Stop);
                stops = true;
            }
            if stops {
                return self.finish(now).await;
            }
        }
    }

    /// Leaves the lead to another one, and waits until nothing is written.
    async fn finish(mut self, now: Duration) {
        if let (Part::Leads(_), Some(replica)) = (&self.part, &mut self.replica) {
            replica.hand_over();
            let _ = self.advance(now);
            self.worker.sleep(HAND_OVER).await;
        }
        self.peers.close();
        while self.is_writing.get() {
            self.worker.sleep(WRITE_POLL).await;
        }
    }

    fn take(&mut self, event: Event, at: Duration, now: Duration) {
        match event {
            Event::Request { connection, reply_to, request } => {
                self.request(connection, reply_to, request, at);
            }
            Event::AskClient { connection, reply_to, session, asked } => {
                self.desk.clients.ask(&self.worker, session, asked, connection, reply_to);
            }
            Event::Closed { connection } => self.desk.closed(connection),
            Event::Resolved { .. } => {
                if let Part::Leads(leading) = &mut self.part {
                    leading.waiting.push((at, event));
                }
            }
            // whoever asked may have gone
            Event::Tell(sender) => match &self.part {
                Part::Leads(leading) => drop(sender.try_send(leading.monitor.status())),
                Part::Follows(Some(observer)) => drop(sender.try_send(observer.status())),
                Part::Follows(None) => {}
            },
            Event::Tick => self.tick(at, now),
            Event::Hello { connection, reply_to, hello } => {
                if self.peers.greeted_by(&hello, &connection) {
                    self.consider(&hello, now);
                    peers::answer(&connection, reply_to, &self.hello());
                } else {
                    let why = "this monitor has another list of monitors".to_owned();
                    let reply = MonitorReply::Refused(why);
                    Answer { connection, reply_to, reply }.send();
                }
            }
            Event::Answered { hello } => self.consider(&hello, now),
            Event::Ungreeted { node, lane, connection } => {
                self.peers.ungreeted(node, lane, connection);
            }
            Event::Frame { node, frame } => {
                self.peers.heard(node, frame.from, now);
                if let Some(replica) = &mut self.replica {
                    replica.step(node, &frame, now);
                }
            }
            Event::Kept { store, persists, result } => {
                let Some(replica) = &mut self.replica else { return };
                if let Err(error) = &result {
                    tracing::error!(%error, "the monitor cannot write its log; tried every second");
                    self.keep_at = now + KEEP_AGAIN_AFTER;
                }
                if !replica.kept(*store, persists, &result, now) {
                    self.reopen(now);
                }
            }
            Event::Reopened(replica) => self.replica = Some(*replica),
            Event::Stop => {}
        }
    }

    fn request(
        &mut self,
        connection: Connection,
        reply_to: ReplyTo,
        request: MonitorRequest,
        at: Duration,
    ) {
        let leader = self.leader_addr();
        let reply = match &mut self.part {
            Part::Leads(leading) => {
                let event = Event::Request { connection, reply_to, request };
                return leading.waiting.push((at, event));
            }
            Part::Follows(None) => None,
            Part::Follows(Some(observer)) => {
                self.desk.note_subscriber(&connection, &request, observer.map());
                let speaks_for = speaks_for(&request);
                let reply = observer.answer(request, at);
                reply.iter().for_each(|reply| self.desk.note_osd(&connection, speaks_for, reply));
                reply
            }
        };
        let mut reply = reply.unwrap_or(MonitorReply::NotLeader { leader });
        self.identity.name_monitors(&mut reply);
        Answer { connection, reply_to, reply }.send();
    }

    fn leader_addr(&self) -> Option<SocketAddr> {
        let leader = self.replica.as_ref()?.leader()?;
        self.identity.addrs.get(usize::from(leader.0)).copied()
    }

    fn hello(&self) -> MonitorHello {
        let birth = self.replica.as_ref().map_or(Vec::new(), |replica| replica.birth().to_vec());
        MonitorHello {
            node: self.identity.node.0,
            count: self.identity.addrs.len() as u16,
            bulk: false,
            nonce: self.founding.as_ref().and_then(Founding::nonce),
            birth,
        }
    }

    fn tick(&mut self, at: Duration, now: Duration) {
        let (hello, again) = (self.hello(), self.founding.is_some());
        self.peers.tick(&self.worker, &hello, again, now);
        if let Some(founding) = &self.founding
            && self.said_at.is_none_or(|said| now >= said + SAY_MISSING_EVERY)
            && now >= SAY_MISSING_EVERY / 5
        {
            self.said_at = Some(now);
            let missing: Vec<_> = founding.missing().collect();
            tracing::warn!(?missing, "waits for these monitors: the first start needs all of them");
        }
        if let Some(replica) = &mut self.replica {
            replica.tick(now);
        }
        let quorum = self.quorum(now);
        match &mut self.part {
            Part::Leads(leading) => {
                leading.monitor.set_quorum(quorum);
                leading.waiting.push((at, Event::Tick));
                leading.ask_again = true;
            }
            Part::Follows(Some(observer)) => observer.tick(quorum, now),
            Part::Follows(None) => {}
        }
    }

    fn quorum(&self, now: Duration) -> QuorumStatus {
        let (own, leads) = (self.identity.node, matches!(self.part, Part::Leads(_)));
        let other = self.replica.as_ref().and_then(Replica::leader);
        let status = self.replica.as_ref().map(Replica::status);
        let voters = status.as_ref().map(|status| &status.voters);
        let monitor = |(place, addr): (u16, &SocketAddr)| {
            let node = NodeId(place);
            let must_speak = leads || other == Some(node);
            let speaks_as = match &self.replica {
                Some(replica) if node == own => Some(replica.id()),
                _ => self.peers.speaks_as(node, now),
            };
            MonitorStatus {
                addr: *addr,
                up: self.peers.is_up(node, must_speak, now),
                votes: voters.is_some_and(|voters| {
                    let of_node = |id: &ReplicaId| id.node() == node;
                    let known = || voters.voters.iter().copied().find(of_node);
                    // while voters change it is one of those before and of those after
                    let settled =
                        |id: &ReplicaId| voters.outgoing.is_empty() || voters.outgoing.contains(id);
                    speaks_as
                        .or_else(known)
                        .is_some_and(|id| voters.voters.contains(&id) && settled(&id))
                }),
            }
        };
        QuorumStatus {
            term: status.as_ref().map_or(0, |status| status.term),
            leader: if leads { Some(own.0) } else { other.map(|node| node.0) },
            told_by: own.0,
            monitors: (0..).zip(&self.identity.addrs).map(monitor).collect(),
        }
    }

    // ---- the first start

    /// Another monitor has said who it is.
    fn consider(&mut self, hello: &MonitorHello, now: Duration) {
        if let Some(replica) = &mut self.replica {
            replica.learn_birth(&hello.birth, self.identity.addrs.len());
            if !replica.birth().is_empty() {
                self.identity.cluster.learn(cluster_of(replica.birth()));
            }
            return;
        }
        let Some(founding) = &mut self.founding else { return };
        let verdict = founding.hears(hello);
        if verdict == Verdict::Wait {
            return;
        }
        match self.identity.begin(verdict, now) {
            Ok(replica) => {
                self.identity.cluster.learn(cluster_of(replica.birth()));
                (self.founding, self.replica) = (None, Some(replica));
            }
            Err(error) => {
                tracing::error!(%error, "the monitor cannot begin its log; tried again");
            }
        }
    }

    // ---- the log

    /// Carries out all that is to be done, and begins what can be begun.
    fn advance(&mut self, now: Duration) -> Result<(), ControlError> {
        loop {
            self.carry_out(now)?;
            let (Part::Leads(leading), Some(replica)) = (&mut self.part, &mut self.replica) else {
                break;
            };
            if !leading.begin(replica, &mut self.desk, &self.identity, now) {
                break;
            }
        }
        self.keep(now);
        Ok(())
    }

    fn carry_out(&mut self, now: Duration) -> Result<(), ControlError> {
        loop {
            let Some(replica) = &mut self.replica else { return Ok(()) };
            let happened = replica.drive()?;
            if happened.is_empty() {
                return Ok(());
            }
            for happened in happened {
                match happened {
                    Happened::Send(to, frame) => self.peers.send(to, &frame),
                    Happened::State => self.committed(now),
                    Happened::Role(role) => self.take_role(role, now),
                    Happened::Settled(ticket, outcome) => self.settled(ticket, outcome, now),
                }
            }
        }
    }

    /// There is something newer to show, for one that follows. A leader shows it when its batch is
    /// settled.
    fn committed(&mut self, now: Duration) {
        let Some(replica) = &self.replica else { return };
        if !replica.birth().is_empty() {
            self.identity.cluster.learn(cluster_of(replica.birth()));
        }
        let (Part::Follows(observer), Some(state)) = (&mut self.part, replica.state()) else {
            return;
        };
        let (state, settings) = (state.clone(), self.identity.settings);
        match observer {
            Some(observer) => observer.see(state),
            None => *observer = Some(Box::new(Observer::new(state, settings, now))),
        }
        if let Some(observer) = observer {
            let update = || self.identity.with_monitors(observer.update());
            self.desk.publish(observer.map().epoch, update);
        }
    }

    fn take_role(&mut self, role: Role, now: Duration) {
        self.depose(now);
        match role {
            Role::Leader { term } => self.lead(term, now),
            Role::Follower { leader } => {
                let leader = leader.map(|leader| leader.node().0);
                tracing::info!(leader, "the monitor follows");
                if let (Part::Follows(Some(observer)), Some(leader)) = (&mut self.part, leader) {
                    observer.remember(Health::Ok, &format!("monitor.{leader} leads"));
                }
            }
        }
    }

    fn lead(&mut self, term: u64, now: Duration) {
        let Part::Follows(observer) = &mut self.part else { return };
        let monitor = match observer.take() {
            Some(observer) => observer.lead(now, now),
            None => match self.identity.create(now) {
                Ok(monitor) => monitor,
                // it was tried when the process started
                Err(error) => return tracing::error!(%error, "cannot make the cluster"),
            },
        };
        tracing::info!(term, "the monitor leads");
        let mut leading = Leading::new(term, monitor);
        let node = self.identity.node.0;
        leading.monitor.remember(Health::Ok, &format!("monitor.{node} leads, in term {term}"));
        self.part = Part::Leads(Box::new(leading));
        let quorum = self.quorum(now);
        if let Part::Leads(leading) = &mut self.part {
            leading.monitor.set_quorum(quorum);
        }
    }

    /// It leads no longer, if it did: nobody hears of what it had not committed.
    fn depose(&mut self, now: Duration) {
        let before = std::mem::replace(&mut self.part, Part::Follows(None));
        let leading = match before {
            Part::Follows(_) => return self.part = before,
            Part::Leads(leading) => *leading,
        };
        let Leading { term, monitor, batch, waiting, .. } = leading;
        tracing::warn!(term, "the monitor leads no longer");
        let state = self.replica.as_ref().and_then(Replica::state).cloned();
        self.part = Part::Follows(state.map(|state| Box::new(monitor.follow(state, now))));
        let leader = self.leader_addr();
        for answer in batch.into_iter().flat_map(|batch: Batch| batch.answers) {
            Answer { reply: MonitorReply::NotLeader { leader }, ..answer }.send();
        }
        waiting.into_iter().for_each(|(at, event)| {
            if let Event::Request { .. } = event {
                self.take(event, at, now);
            }
        });
        if let Part::Follows(Some(observer)) = &self.part {
            let update = || self.identity.with_monitors(observer.update());
            self.desk.publish(observer.map().epoch, update);
        }
    }

    fn settled(&mut self, ticket: Ticket, outcome: Outcome, now: Duration) {
        let Part::Leads(leading) = &mut self.part else { return };
        // one that is deposed is told so by its role
        if outcome != Outcome::Deposed {
            leading.settled(ticket, &mut self.desk, &self.identity, now);
        }
    }

    /// Begins to write what is to be written, unless something is.
    fn keep(&mut self, now: Duration) {
        if now < self.keep_at {
            return;
        }
        let Some((mut store, persists)) = self.replica.as_mut().and_then(Replica::take_unkept)
        else {
            return;
        };
        let (worker, inbox) = (self.worker.clone(), Arc::clone(&self.inbox));
        let is_writing = Rc::clone(&self.is_writing);
        is_writing.set(true);
        self.worker.spawn(async move {
            let job = move || {
                let result = store.keep(&persists);
                (store, persists, result)
            };
            match worker.blocking(job).await {
                Ok((store, persists, result)) => {
                    inbox.push(Event::Kept { store: Box::new(store), persists, result });
                }
                Err(_) => {
                    tracing::error!("the monitor stops: a write of its log ended without a result");
                    inbox.push(Event::Stop);
                }
            }
            is_writing.set(false);
        });
    }

    /// The log takes nothing more. What the disk has is what was promised.
    fn reopen(&mut self, now: Duration) {
        self.depose(now);
        let Some(dir) = self.replica.take().map(|replica| replica.dir().to_path_buf()) else {
            return;
        };
        let (worker, inbox) = (self.worker.clone(), Arc::clone(&self.inbox));
        let (node, count) = (self.identity.node, self.identity.addrs.len() as u16);
        self.worker.spawn(async move {
            loop {
                worker.sleep(KEEP_AGAIN_AFTER).await;
                if inbox.is_stopped() {
                    return;
                }
                let dir = dir.clone();
                let job = move || Replica::open(&dir, node, count, Vec::new(), now);
                match worker.blocking(job).await {
                    Ok(Ok(replica)) => return inbox.push(Event::Reopened(Box::new(replica))),
                    Ok(Err(error)) => {
                        tracing::error!(%error, "the monitor cannot open its log; tried every second");
                    }
                    Err(_) => return inbox.push(Event::Stop),
                }
            }
        });
    }
}

impl Identity {
    /// Makes the log of a directory that has none, and opens it. At the first start nothing else is
    /// to be done meanwhile.
    fn begin(&self, verdict: Verdict, now: Duration) -> Result<Replica, ControlError> {
        let (dir, count) = (self.replicas(), self.addrs.len() as u16);
        let birth = match verdict {
            Verdict::Begin(birth) => {
                Replica::found(&dir, self.node, birth.clone())?;
                tracing::info!(cluster = %cluster_of(&birth), "the cluster's monitors begin");
                birth
            }
            Verdict::Lost(birth) => {
                Replica::join(&dir, self.node)?;
                tracing::warn!(
                    dir = %self.dir.display(),
                    "the others know this monitor with another directory: it begins as a new one, and is told everything"
                );
                birth
            }
            Verdict::Wait => Vec::new(),
        };
        founding::mark_begun(&self.dir)?;
        Replica::open(&dir, self.node, count, birth, now)
    }

    /// Where the log lies.
    pub fn replicas(&self) -> PathBuf {
        self.dir.join("replicas")
    }

    fn create(&self, now: Duration) -> Result<cluster::Monitor, cluster::CreateError> {
        let state = cluster::create_cluster(self.cluster.get(), &self.osds, &self.pool)?;
        Ok(cluster::Monitor::start(state, self.settings, now))
    }

    /// Where all monitors listen is told with each map.
    pub fn with_monitors(
        &self,
        update: protocol::monitor::MapUpdate,
    ) -> protocol::monitor::MapUpdate {
        protocol::monitor::MapUpdate { monitors: self.addrs.clone(), ..update }
    }

    /// The same in an answer.
    pub fn name_monitors(&self, reply: &mut MonitorReply) {
        if let MonitorReply::Map(update) = reply {
            update.monitors.clone_from(&self.addrs);
        }
    }
}
