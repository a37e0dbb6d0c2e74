//! Connections among monitors.
//!
//! Contract: each monitor dials every other one at its configured address, twice: one connection is
//! for heartbeats and small frames, one for what is large ([`BULK_BYTES`]), so that neither a
//! snapshot nor the load of clients holds a heartbeat back. It says who it is
//! ([`MonitorHello`]), and the other one sends it frames over the connection that it dialed. So
//! frames are believed only if they come from where a monitor of the list listens; a stranger who
//! says that he is a monitor is sent frames, and is heard by nobody. There is no authentication:
//! who has a monitor's address is taken for it.
//!
//! Nothing is queued for a monitor that is away: consensus sends again.

use super::inbox::{Event, Inbox};
use bytes::Bytes;
use consensus::{Frame, NodeId, ReplicaId};
use messenger::{
    CloseReason, ConnState, ConnectConfig, Connection, LateCluster, Message, ReplyTo, Service,
    SessionConfig, StateEvent, TrafficClass, Worker,
};
use protocol::Kind;
use protocol::quorum::MonitorHello;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Frames larger than this have a connection of their own.
const BULK_BYTES: usize = 64 << 10;
/// Bytes of a frame, at most: what a message takes. A snapshot of 65,536 placement groups has some
/// 5 MB.
const FRAME_BYTES_MAX: usize = messenger::frame::DATA_BYTES_MAX;
/// Pause before a monitor that closed a connection is dialed again.
const REDIAL_AFTER: Duration = Duration::from_millis(500);
/// How often a monitor says who it is, while the cluster has not begun, and time for the answer.
const HELLO_EVERY: Duration = Duration::from_millis(500);
/// Connections over which one monitor is sent frames, at most: the newest ones, as one of a process
/// that has just died may still seem to be up.
const ACCEPTED_MAX: usize = 2;
/// One that was not heard for so long is down: ten heartbeats.
const HEARD_MAX: Duration = Duration::from_secs(2);

/// Heartbeats, or what is large.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Lane {
    Beat,
    Bulk,
}

const LANES: [Lane; 2] = [Lane::Beat, Lane::Bulk];

/// The other monitors.
pub(super) struct Peers {
    node: NodeId,
    cluster: LateCluster,
    inbox: Arc<Inbox>,
    nodes: BTreeMap<NodeId, Peer>,
}

struct Peer {
    addr: SocketAddr,
    dialed: BTreeMap<Lane, Dialed>,
    accepted: Vec<(Lane, Connection)>,
    /// When a frame last came, and of which of its replicas.
    heard: Option<(Duration, ReplicaId)>,
}

struct Dialed {
    connection: Connection,
    /// It was said over it who this is, in this session.
    greeted: bool,
    greeted_at: Duration,
    closed_at: Option<Duration>,
}

impl Peers {
    /// Those of the list but `node`.
    pub fn new(
        node: NodeId,
        addrs: &[SocketAddr],
        cluster: LateCluster,
        inbox: Arc<Inbox>,
    ) -> Self {
        let peer = |(other, addr): (u16, &SocketAddr)| {
            let (dialed, accepted, heard) = Default::default();
            (NodeId(other), Peer { addr: *addr, dialed, accepted, heard })
        };
        let nodes = (0..).zip(addrs).map(peer).filter(|(other, _)| *other != node).collect();
        Self { node, cluster, inbox, nodes }
    }

    /// Dials who is not dialed, and says who this is where that was not said. `again`: also where
    /// it was, now and then.
    pub fn tick(&mut self, worker: &Worker, hello: &MonitorHello, again: bool, now: Duration) {
        for (node, peer) in &mut self.nodes {
            peer.accepted.retain(|(_, connection)| connection.state() != ConnState::Closed);
            for lane in LANES {
                let Some(dialed) = peer.dialed.get_mut(&lane) else {
                    let connection =
                        dial(self.node, *node, peer.addr, lane, &self.cluster, &self.inbox, worker);
                    let dialed =
                        Dialed { connection, greeted: false, greeted_at: now, closed_at: None };
                    peer.dialed.insert(lane, dialed);
                    continue;
                };
                match dialed.connection.state() {
                    ConnState::Closed => {
                        let since = *dialed.closed_at.get_or_insert(now);
                        if now >= since + REDIAL_AFTER {
                            peer.dialed.remove(&lane);
                        }
                    }
                    ConnState::Up
                        if !dialed.greeted || again && now >= dialed.greeted_at + HELLO_EVERY =>
                    {
                        (dialed.greeted, dialed.greeted_at) = (true, now);
                        let hello = MonitorHello { bulk: lane == Lane::Bulk, ..hello.clone() };
                        let at = (*node, lane, dialed.connection.clone());
                        worker.spawn(greet(at, hello, Arc::clone(&self.inbox)));
                    }
                    _ => {}
                }
            }
        }
    }

    /// A session is new, or the other side did not take what was said: it is said again.
    pub fn ungreeted(&mut self, node: NodeId, lane: Lane, connection: u64) {
        let dialed = self.nodes.get_mut(&node).and_then(|peer| peer.dialed.get_mut(&lane));
        if let Some(dialed) = dialed.filter(|dialed| dialed.connection.id() == connection) {
            dialed.greeted = false;
        }
    }

    /// Somebody says that he is a monitor. False: of no list that this one has.
    pub fn greeted_by(&mut self, hello: &MonitorHello, connection: &Connection) -> bool {
        let count = self.nodes.len() + 1;
        let Some(peer) = self.nodes.get_mut(&NodeId(hello.node)) else { return false };
        if usize::from(hello.count) != count {
            return false;
        }
        let lane = if hello.bulk { Lane::Bulk } else { Lane::Beat };
        peer.accepted.retain(|(_, known)| known.id() != connection.id());
        peer.accepted.push((lane, connection.clone()));
        let of_lane = |(l, _): &&(Lane, Connection)| *l == lane;
        if peer.accepted.iter().filter(of_lane).count() > ACCEPTED_MAX {
            let oldest = peer.accepted.iter().position(|(l, _)| *l == lane);
            oldest.map(|at| peer.accepted.remove(at));
        }
        true
    }

    /// A frame came from it.
    pub fn heard(&mut self, node: NodeId, replica: ReplicaId, now: Duration) {
        if let Some(peer) = self.nodes.get_mut(&node) {
            peer.heard = Some((now, replica));
        }
    }

    /// As which replica it speaks; `None`: it does not.
    pub fn speaks_as(&self, node: NodeId, now: Duration) -> Option<ReplicaId> {
        let heard = self.nodes.get(&node)?.heard.filter(|(at, _)| now <= *at + HEARD_MAX);
        heard.map(|(_, replica)| replica)
    }

    /// Sends a frame, if that is possible now.
    pub fn send(&self, to: NodeId, frame: &Frame) {
        let Some(peer) = self.nodes.get(&to) else { return };
        let data = frame.encode();
        if data.len() > FRAME_BYTES_MAX {
            tracing::error!(to = to.0, bytes = data.len(), "a frame is too large for a message");
            return;
        }
        let lane = if data.len() > BULK_BYTES { Lane::Bulk } else { Lane::Beat };
        let open = |(l, connection): &&(Lane, Connection)| *l == lane && connection.is_up();
        for (_, connection) in peer.accepted.iter().filter(open) {
            let kind = Kind::Consensus.to_u16();
            connection.send(Message::new(TrafficClass::Control, kind, Bytes::new(), data.clone()));
        }
    }

    /// Is it heard of? A leader hears from everybody, all the time; others only from the leader,
    /// and know of the rest whether a connection is up.
    pub fn is_up(&self, node: NodeId, must_speak: bool, now: Duration) -> bool {
        let Some(peer) = self.nodes.get(&node) else { return node == self.node };
        let spoke = peer.heard.is_some_and(|(at, _)| now <= at + HEARD_MAX);
        let is_connected = || peer.dialed.values().any(|dialed| dialed.connection.is_up());
        spoke || (!must_speak && is_connected())
    }

    /// The end.
    pub fn close(&self) {
        for dialed in self.nodes.values().flat_map(|peer| peer.dialed.values()) {
            dialed.connection.close();
        }
    }
}

/// A peer that is silent for a second is not waited for longer.
fn session() -> SessionConfig {
    SessionConfig {
        ping_after: Duration::from_millis(500),
        dead_after: Duration::from_millis(1500),
        idle_after: Duration::from_secs(1),
        handshake_max: Duration::from_secs(1),
        backoff_max: Duration::from_millis(250),
        ..SessionConfig::default()
    }
}

fn dial(
    own: NodeId,
    node: NodeId,
    addr: SocketAddr,
    lane: Lane,
    cluster: &LateCluster,
    inbox: &Arc<Inbox>,
    worker: &Worker,
) -> Connection {
    let name = format!("monitor.{}", own.0);
    let mut to = ConnectConfig::new(addr, cluster.clone(), name);
    to.session = session();
    let inbox = Arc::clone(inbox);
    worker.handle().connect(worker.index(), to, move |_| {
        Rc::new(FromPeer { node, lane, inbox: inbox.clone() })
    })
}

/// Says who this is; the answer arrives in the inbox.
async fn greet(
    (node, lane, connection): (NodeId, Lane, Connection),
    hello: MonitorHello,
    inbox: Arc<Inbox>,
) {
    let (front, kind) = (protocol::encode(&hello), Kind::MonitorHello.to_u16());
    let message = Message::new(TrafficClass::Control, kind, front, Bytes::new());
    let answer = match connection.call(message, HELLO_EVERY).await {
        Ok(reply) if Kind::from_u16(reply.kind) == Some(Kind::MonitorHelloReply) => {
            protocol::decode::<MonitorHello>("monitor's answer", &reply.front).ok()
        }
        Ok(reply) => {
            let why = protocol::decode::<protocol::monitor::MonitorReply>("reply", &reply.front);
            tracing::debug!(node = node.0, ?why, "a monitor takes this one for a stranger");
            None
        }
        Err(_) => None,
    };
    inbox.push(match answer {
        Some(hello) if hello.node == node.0 => Event::Answered { hello },
        _ => Event::Ungreeted { node, lane, connection: connection.id() },
    });
}

/// What comes over a connection to a monitor of the list.
struct FromPeer {
    node: NodeId,
    lane: Lane,
    inbox: Arc<Inbox>,
}

impl Service for FromPeer {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        let frame = match Kind::from_u16(message.kind) {
            Some(Kind::Consensus) if !message.is_request() => Frame::decode(message.data),
            _ => {
                tracing::warn!(node = self.node.0, kind = message.kind, "not for a monitor");
                return connection.close();
            }
        };
        match frame {
            Ok(frame) => self.inbox.push(Event::Frame { node: self.node, frame }),
            Err(error) => {
                tracing::warn!(node = self.node.0, %error, "bad frame: connection closed");
                connection.close();
            }
        }
    }

    fn on_state(&self, _worker: &Worker, connection: &Connection, event: &StateEvent) {
        if let StateEvent::Up { resumed: false, .. } = event {
            let (node, lane) = (self.node, self.lane);
            self.inbox.push(Event::Ungreeted { node, lane, connection: connection.id() });
        }
        if let StateEvent::Refused(refusal) = event {
            tracing::debug!(node = self.node.0, %refusal, "a monitor refuses the connection");
        }
    }

    fn on_close(&self, _worker: &Worker, _connection: &Connection, reason: &CloseReason) {
        tracing::debug!(node = self.node.0, %reason, "the connection to a monitor is closed");
    }
}

/// Answers who greeted.
pub(super) fn answer(connection: &Connection, reply_to: ReplyTo, hello: &MonitorHello) {
    let (kind, front) = (Kind::MonitorHelloReply.to_u16(), protocol::encode(hello));
    connection.reply_to(reply_to, Message::new(reply_to.class, kind, front, Bytes::new()));
}
