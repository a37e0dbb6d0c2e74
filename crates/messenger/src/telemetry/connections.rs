//! What connections and their listeners tell of themselves, and what another mapping would make of
//! it.
//!
//! Contract: plain values, without any lock. [`ListenerStats::outlook`] and
//! [`ListenerStats::forecast`] ask `placement` what the placement task would ask it, over the same
//! snapshot, and move nothing.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::time::Duration;

use placement::threads::{
    ConnectionLoad, Mapping, Memory, Move, NewConnection, PlacementConfig, Snapshot, WorkerIndex,
    first_workers, place,
};
use serde::{Deserialize, Serialize};

use crate::serve::service::ConnState;
use crate::sync::contention_mutex::LockStats;

/// Connections that a listener reports one by one: at less than 400 bytes each, names of 256 bytes
/// included, they leave room in a message's front for everything else.
pub const CONNECTIONS_REPORTED_MAX: usize = 512;
/// Seats that it reports with them, at less than 80 bytes each.
pub const SEATS_REPORTED_MAX: usize = 4096;

/// What one worker has done on one connection since the connection began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentStats {
    /// The worker.
    pub worker: usize,
    /// It serves the connection now.
    pub seated: bool,
    /// How often it took the connection's lock.
    pub acquisitions: u64,
    /// How often it found the lock taken and waited.
    pub contended: u64,
    /// Time it waited for the lock, in nanoseconds: the paper's T_i.
    pub lock_wait_ns: u64,
    /// How often it found the connection taken, left a mark and moved on
    /// ([`placement::threads::Mapping::Handoff`]).
    pub marks: u64,
    /// Messages it dispatched, replies included.
    pub messages: u64,
    /// Bytes it read from the socket.
    pub bytes_in: u64,
    /// Bytes it wrote to the socket.
    pub bytes_out: u64,
}

/// A connection of a listener, and what the workers do on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStats {
    /// [`crate::Connection::id`].
    pub id: u64,
    /// Address of the peer when the session began.
    pub peer: SocketAddr,
    /// The name the peer gave itself; nothing proves it.
    pub name: String,
    /// The lane it asked for.
    pub lane: u16,
    /// Its state.
    pub state: ConnState,
    /// The workers that are to serve it, in the order in which they were placed. An attachment
    /// follows a moment later.
    pub workers: Vec<usize>,
    /// One entry for every worker that serves it or did.
    pub attachments: Vec<AttachmentStats>,
    /// The lock that is held from read to dispatch.
    pub lock: LockStats,
}

impl AttachmentStats {
    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.bytes_in.saturating_add(self.bytes_out)
    }

    fn since(&self, earlier: &AttachmentStats) -> AttachmentStats {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        AttachmentStats {
            worker: self.worker,
            seated: self.seated,
            acquisitions: less(self.acquisitions, earlier.acquisitions),
            contended: less(self.contended, earlier.contended),
            lock_wait_ns: less(self.lock_wait_ns, earlier.lock_wait_ns),
            marks: less(self.marks, earlier.marks),
            messages: less(self.messages, earlier.messages),
            bytes_in: less(self.bytes_in, earlier.bytes_in),
            bytes_out: less(self.bytes_out, earlier.bytes_out),
        }
    }
}

impl ConnectionStats {
    /// One figure of all attachments together.
    pub fn sum(&self, figure: impl Fn(&AttachmentStats) -> u64) -> u64 {
        self.attachments.iter().map(figure).fold(0, u64::saturating_add)
    }

    /// Time that all workers waited for the connection's lock, in nanoseconds.
    pub fn lock_wait_ns(&self) -> u64 {
        self.sum(|attachment| attachment.lock_wait_ns)
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.sum(AttachmentStats::bytes)
    }

    /// As `placement` takes it.
    fn load(&self) -> ConnectionLoad {
        ConnectionLoad {
            id: self.id,
            workers: self.workers.iter().copied().map(WorkerIndex).collect(),
            lock_time: Duration::from_nanos(self.lock_wait_ns()),
            bytes: self.bytes(),
        }
    }

    /// What happened between an earlier reading and this one; the longest wait stays that since the
    /// start.
    fn since(&self, earlier: &ConnectionStats) -> ConnectionStats {
        let attachment = |now: &AttachmentStats| match earlier
            .attachments
            .iter()
            .find(|then| then.worker == now.worker)
        {
            Some(then) => now.since(then),
            None => *now,
        };
        ConnectionStats {
            attachments: self.attachments.iter().map(attachment).collect(),
            lock: self.lock.since(&earlier.lock),
            ..self.clone()
        }
    }
}

/// A listener, its settings, and what its connections did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListenerStats {
    /// Unique in its runtime.
    pub id: u64,
    /// The address it listens on.
    pub addr: SocketAddr,
    /// How its connections are mapped to workers.
    pub placement: PlacementConfig,
    /// Sessions it has, those without TCP included.
    pub sessions: u64,
    /// Workers that serve a session, over all sessions.
    pub attachments: u64,
    /// Its connections in the order in which they began. All of them, or those that carried the
    /// most bytes since they began: at most [`CONNECTIONS_REPORTED_MAX`], with at most
    /// [`SEATS_REPORTED_MAX`] attachments.
    pub connections: Vec<ConnectionStats>,
}

/// What each worker would have handled in an interval under another mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forecast {
    /// Bytes of each worker.
    Bytes(Vec<u64>),
    /// Several workers serve a connection, and its bytes go to whoever is free.
    FollowsWhoIsFree,
    /// Not all connections are in the report, or it says of its listener what none is set to.
    Unknown,
}

impl ListenerStats {
    /// A report on all `connections` of a listener, of which it keeps as many as a report may have.
    pub(crate) fn new(
        id: u64,
        addr: SocketAddr,
        placement: PlacementConfig,
        mut connections: Vec<ConnectionStats>,
    ) -> ListenerStats {
        let seated = |connection: &ConnectionStats| {
            connection.attachments.iter().filter(|attachment| attachment.seated).count() as u64
        };
        let (sessions, attachments) =
            (connections.len() as u64, connections.iter().map(seated).sum());
        connections.sort_by_key(|connection| Reverse(connection.bytes()));
        let mut room = SEATS_REPORTED_MAX;
        let mut fits = |connection: &ConnectionStats| {
            let left = room.checked_sub(connection.attachments.len());
            room = left.unwrap_or(0);
            left.is_some()
        };
        let kept = connections
            .iter()
            .take(CONNECTIONS_REPORTED_MAX)
            .take_while(|connection| fits(connection))
            .count();
        connections.truncate(kept);
        connections.sort_by_key(|connection| connection.id);
        ListenerStats { id, addr, placement, sessions, attachments, connections }
    }

    /// What happened between an earlier report and this one.
    pub fn since(&self, earlier: &ListenerStats) -> ListenerStats {
        let connection =
            |now: &ConnectionStats| match earlier.connections.iter().find(|then| then.id == now.id)
            {
                Some(then) => now.since(then),
                None => now.clone(),
            };
        ListenerStats {
            connections: self.connections.iter().map(connection).collect(),
            ..self.clone()
        }
    }

    /// What `mapping` would change after this interval, which took `elapsed` and in which the
    /// workers handled `worker_bytes`, were it to begin with the workers that serve the connections
    /// now. The listener's threshold and rule count. `None` where that cannot be told: for mappings
    /// that never change anything; for [`Mapping::TrafficAware`] if a connection has several
    /// workers; if not all connections are in this report; and if it says of its listener what none
    /// is set to.
    pub fn outlook(
        &self,
        mapping: Mapping,
        worker_bytes: Vec<u64>,
        elapsed: Duration,
    ) -> Option<Vec<Move>> {
        if !mapping.is_adjusted()
            || !self.is_complete()
            || mapping == Mapping::TrafficAware && !self.has_one_each()
        {
            return None;
        }
        let connections = self.connections.iter().map(ConnectionStats::load).collect();
        Some(self.moves(mapping, &Snapshot { worker_bytes, connections, elapsed }))
    }

    /// What each worker would have handled in this interval, which took `elapsed` and in which the
    /// workers handled `worker_bytes`, had `mapping` placed the connections at its begin; under
    /// [`Mapping::TrafficAware`] after one round of moves, from the workers that serve the
    /// connections now if each has one, else from those of [`Mapping::RoundRobin`]. What workers
    /// did besides the connections of this report, those included that have ended, stays where it
    /// is.
    pub fn forecast(&self, mapping: Mapping, worker_bytes: &[u64], elapsed: Duration) -> Forecast {
        if matches!(mapping, Mapping::Shared | Mapping::Lcam | Mapping::Handoff) {
            return Forecast::FollowsWhoIsFree;
        }
        let Some(mut connections) =
            self.loads_under(mapping, worker_bytes.len()).filter(|_| self.is_complete())
        else {
            return Forecast::Unknown;
        };
        let snapshot = Snapshot {
            worker_bytes: worker_bytes.to_vec(),
            connections: connections.clone(),
            elapsed,
        };
        for step in self.moves(mapping, &snapshot) {
            let moved = connections.iter_mut().find(|load| load.id == step.connection);
            moved.into_iter().for_each(|load| step.change.apply(&mut load.workers));
        }
        let mut bytes = self.bytes_besides(worker_bytes);
        for load in &connections {
            let worker = load.workers.first().and_then(|worker| bytes.get_mut(worker.0));
            worker.into_iter().for_each(|bytes| *bytes = bytes.saturating_add(load.bytes));
        }
        Forecast::Bytes(bytes)
    }

    /// Has it all connections, and possible settings?
    fn is_complete(&self) -> bool {
        self.connections.len() as u64 == self.sessions && self.placement.check().is_ok()
    }

    fn has_one_each(&self) -> bool {
        self.connections.iter().all(|connection| connection.workers.len() == 1)
    }

    fn moves(&self, mapping: Mapping, snapshot: &Snapshot) -> Vec<Move> {
        place(&PlacementConfig { mapping, ..self.placement }, snapshot, &mut Memory::default())
    }

    /// The connections with the workers that they have when a mapping begins; `None` without
    /// workers.
    fn loads_under(&self, mapping: Mapping, workers: usize) -> Option<Vec<ConnectionLoad>> {
        let stays = mapping == Mapping::TrafficAware && self.has_one_each();
        let load = |(connection, before): (&ConnectionStats, u64)| {
            let now = connection.load();
            let first =
                first_workers(mapping, workers, NewConnection { lane: connection.lane, before })
                    .ok()?;
            Some(if stays { now } else { ConnectionLoad { workers: first, ..now } })
        };
        self.connections.iter().zip(0..).map(load).collect()
    }

    /// Bytes of each worker without those of the connections.
    fn bytes_besides(&self, worker_bytes: &[u64]) -> Vec<u64> {
        let mut bytes = worker_bytes.to_vec();
        for attachment in self.connections.iter().flat_map(|connection| &connection.attachments) {
            let worker = bytes.get_mut(attachment.worker);
            worker.into_iter().for_each(|bytes| *bytes = bytes.saturating_sub(attachment.bytes()));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::threads::Change;

    fn connection(id: u64, workers: &[usize], bytes_in: u64, lock_wait_ns: u64) -> ConnectionStats {
        let attachment = |worker: &usize| AttachmentStats {
            worker: *worker,
            seated: true,
            ..AttachmentStats::default()
        };
        let mut attachments: Vec<_> = workers.iter().map(attachment).collect();
        attachments[0] = AttachmentStats { bytes_in, lock_wait_ns, ..attachments[0] };
        ConnectionStats {
            id,
            peer: ([127, 0, 0, 1], 1).into(),
            name: "n".repeat(256),
            lane: 0,
            state: ConnState::Up,
            workers: workers.to_vec(),
            attachments,
            lock: LockStats::default(),
        }
    }

    fn listener(connections: Vec<ConnectionStats>) -> ListenerStats {
        let placement = PlacementConfig::new(Mapping::RoundRobin);
        ListenerStats::new(9, ([127, 0, 0, 1], 2).into(), placement, connections)
    }

    #[test]
    fn differences_are_by_connection_and_worker() {
        let then = listener(vec![connection(1, &[0], 10, 5), connection(2, &[1], 7, 0)]);
        let now = listener(vec![connection(1, &[0, 1], 30, 9), connection(3, &[0], 4, 0)]);
        let expected = listener(vec![connection(1, &[0, 1], 20, 4), connection(3, &[0], 4, 0)]);
        assert_eq!(now.since(&then), expected);
    }

    #[test]
    fn the_busiest_are_kept_and_all_are_counted() {
        let many = (0..2000).map(|id| connection(id, &[0, 1], id, 0)).collect();
        let report = listener(many);
        assert_eq!((report.sessions, report.attachments), (2000, 4000));
        let kept: Vec<u64> = report.connections.iter().map(|connection| connection.id).collect();
        assert_eq!(kept, (2000 - CONNECTIONS_REPORTED_MAX as u64..2000).collect::<Vec<_>>());
        assert_eq!(
            report.outlook(Mapping::Lcam, vec![0, 0], Duration::from_secs(1)),
            None,
            "not all are known"
        );
        let wide: Vec<usize> = (0..1024).collect();
        let report = listener((0..9).map(|id| connection(id, &wide, id, 0)).collect());
        assert_eq!(report.connections.len(), SEATS_REPORTED_MAX / 1024);
    }

    #[test]
    fn the_largest_report_fits_into_a_message() {
        let wide: Vec<usize> = (0..8).collect();
        let mut connections: Vec<_> =
            (0..600).map(|id| connection(u64::MAX - id, &wide, u64::MAX >> 4, u64::MAX)).collect();
        for attachment in connections.iter_mut().flat_map(|connection| &mut connection.attachments)
        {
            let most = u64::MAX >> 4;
            let figures = AttachmentStats {
                acquisitions: most,
                contended: most,
                lock_wait_ns: most,
                marks: most,
                ..*attachment
            };
            *attachment =
                AttachmentStats { messages: most, bytes_in: most, bytes_out: 0, ..figures };
        }
        let bytes = postcard::to_stdvec(&listener(connections)).expect("plain values").len();
        assert!(bytes < crate::wire::frame::FRONT_BYTES_MAX / 2, "{bytes} bytes");
    }

    #[test]
    fn other_mappings_say_what_they_would_do() {
        let second = Duration::from_secs(1);
        let report = listener(vec![connection(1, &[0], 600, 0), connection(2, &[0], 300, 0)]);
        let moved = |connection, change| Move { connection, change };
        let lcam = report.outlook(Mapping::Lcam, vec![900, 0, 5], second);
        let add = Change::Add(WorkerIndex(1));
        assert_eq!(lcam, Some(vec![moved(1, add), moved(2, add)]));
        let traffic = report.outlook(Mapping::TrafficAware, vec![900, 0, 5], second);
        assert_eq!(traffic, Some(vec![moved(1, Change::Only(WorkerIndex(1)))]));
        assert_eq!(report.outlook(Mapping::Handoff, vec![900, 0, 5], second), None);
        let report = listener(vec![connection(1, &[0, 2], 600, 150_000_000)]);
        let lcam = report.outlook(Mapping::Lcam, vec![900, 0, 5], second);
        assert_eq!(lcam, Some(vec![moved(1, Change::Remove(WorkerIndex(2)))]));
        assert_eq!(
            report.outlook(Mapping::TrafficAware, vec![900, 0, 5], second),
            None,
            "it has two workers"
        );
        let placement = PlacementConfig { lock_threshold: f64::NAN, ..report.placement };
        assert_eq!(
            ListenerStats { placement, ..report }.outlook(Mapping::Lcam, vec![900, 0, 5], second),
            None
        );
    }

    fn forecasts(report: &ListenerStats, worker_bytes: &[u64]) -> [Forecast; 3] {
        let one_each = [Mapping::RoundRobin, Mapping::TrafficAware, Mapping::CoreAffine];
        one_each.map(|mapping| report.forecast(mapping, worker_bytes, Duration::from_secs(1)))
    }

    #[test]
    fn mappings_with_one_worker_each_are_predicted_in_bytes_per_worker() {
        let lanes = |mut connections: Vec<ConnectionStats>| {
            connections
                .iter_mut()
                .zip([1, 1, 1, 2])
                .for_each(|(connection, lane)| connection.lane = lane);
            connections
        };
        let on_first = [(1, 600), (2, 300), (3, 200), (4, 100)]
            .map(|(id, bytes)| connection(id, &[0], bytes, 0));
        let report = listener(lanes(on_first.to_vec()));
        // 50 bytes of worker 1 and 7 of worker 2 are of something else, and stay there
        let [round_robin, traffic, lanes_of_three] = forecasts(&report, &[1200, 50, 7]);
        assert_eq!(round_robin, Forecast::Bytes(vec![700, 350, 207]));
        assert_eq!(
            traffic,
            Forecast::Bytes(vec![300, 650, 307]),
            "one move per worker: 600, 200 and 100 leave"
        );
        assert_eq!(lanes_of_three, Forecast::Bytes(vec![0, 1150, 107]));
    }

    #[test]
    fn what_several_workers_serve_now_is_predicted_for_one_each() {
        let mut shared = connection(1, &[0, 1], 600, 0);
        shared.attachments[1].bytes_out = 400;
        let report = listener(vec![shared, connection(2, &[0, 1], 100, 0)]);
        let [round_robin, traffic, _] = forecasts(&report, &[700, 400]);
        assert_eq!(round_robin, Forecast::Bytes(vec![1000, 100]));
        assert_eq!(traffic, Forecast::Bytes(vec![1000, 100]), "a connection is never cut in two");
    }

    #[test]
    fn what_cannot_be_predicted_is_not() {
        let report = listener(vec![connection(1, &[0], 600, 0)]);
        for mapping in [Mapping::Shared, Mapping::Lcam, Mapping::Handoff] {
            assert_eq!(
                report.forecast(mapping, &[600, 0], Duration::from_secs(1)),
                Forecast::FollowsWhoIsFree
            );
        }
        let unknown = [const { Forecast::Unknown }; 3];
        assert_eq!(forecasts(&report, &[]), unknown, "no workers");
        assert_eq!(
            forecasts(&ListenerStats { sessions: 2, ..report.clone() }, &[600, 0]),
            unknown,
            "not all are known"
        );
        let placement = PlacementConfig { lock_threshold: f64::NAN, ..report.placement };
        assert_eq!(
            forecasts(&ListenerStats { placement, ..report.clone() }, &[600, 0]),
            unknown,
            "none is set to that"
        );
        let mut strange = report;
        strange.connections[0].workers = vec![9];
        strange.connections[0].attachments[0].worker = 9;
        assert!(
            matches!(forecasts(&strange, &[600, 0])[1], Forecast::Bytes(_)),
            "a worker that is not there"
        );
    }
}
