//! The simulation: workers, connections with their locks, and requests, as events in time.
//!
//! Contract: no I/O, no clock; the same plan gives the same outcome. Where a connection goes is
//! decided by the functions of `placement::threads` that the messenger asks. Times are nanoseconds
//! since the beginning.
//!
//! A worker's turn is that of the messenger: take what is ready, at most `max_events` connections;
//! from each, under its lock, dispatch what has arrived; then do the work after dispatch; then send
//! the replies, earlier if many bytes wait. A message makes its connection ready at every worker
//! that serves it, and wakes those that sleep. As in blocking mode, service time is slept once a
//! millisecond is owed, and oversleeping is taken off. A lock that is let go is free for whoever
//! comes first: a waiter that is woken may find it taken again. Delays of waking are drawn from a
//! seed; without them workers would march in step. Not modelled: the CPU that wake-ups cost, and
//! socket buffers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use placement::threads::{
    ConnectionLoad, Mapping, MaxEvents, Memory, NewConnection, PlacementConfig, Snapshot,
    WorkerIndex, first_workers, place,
};

use crate::load::{pick, running_sums, zipf};
use crate::scenario::{Cell, Traffic};

/// Messages dispatched from one connection before others have their turn, as in the messenger.
const MESSAGES_PER_TURN: usize = 64;
/// Reply bytes that are sent before a turn ends, as in the messenger.
const FLUSH_BYTES: u64 = 256 << 10;
/// How often the holder of a connection goes on for the marks of others, as in the messenger.
const PASSES_MAX: usize = 4;
/// Time that is owed before it is slept, as in the server of blocking mode.
const SLEEP_MIN_NS: i64 = 1_000_000;
/// Bytes read from one connection before others have their turn, as in the messenger.
const BYTES_PER_TURN: u64 = 1 << 20;
/// Longest delay of a thread that a timer or a socket wakes: timer slack, and a scheduler with
/// little to do.
const WAKE_NS_MAX: u64 = 100_000;
/// Longest delay of a thread that is woken because a lock was let go: no timer is in it.
const LOCK_WAKE_NS_MAX: u64 = 10_000;
/// From a reply's sending to the arrival of the client's next request, or from a request's sending
/// to its arrival.
const WIRE_NS: u64 = 60_000;
/// CPU that a message costs a worker under the lock, and again after it: half of what runs of
/// blocking mode used for each answer of 4 KiB.
const CPU_NS: u64 = 4_500;
/// CPU that a request costs the client, whose one thread sends for all connections.
const CLIENT_NS: u64 = 4_500;

/// What is simulated.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) cell: Cell,
    pub(crate) workers: usize,
    pub(crate) connections: usize,
    pub(crate) placement: PlacementConfig,
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
}

/// What came of it in the measured time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) ops_per_s: f64,
    pub(crate) mean_us: f64,
    /// By worker.
    pub(crate) bytes: Vec<u64>,
    /// Time that workers waited for locks, by connection, in nanoseconds.
    pub(crate) lock_ns: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Request {
    connection: usize,
    begin: u64,
    bytes_in: u64,
    bytes_out: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Answered by the next one of a closed loop.
    Closed,
    /// Followed by another after a pause.
    Ping,
    /// Arrived by itself.
    Open,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrival(Request),
    /// The next arrival of an open loop on a connection.
    NextOpen(usize),
    Step(usize),
    Place,
}

/// An event in the queue, ordered by time and then by the order of making.
struct Due(u64, u64, Event);

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// Where a worker is in its turn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Asleep,
    Poll,
    /// About to run the next connection of the batch.
    Batch,
    /// Waits for the lock of a connection since a time.
    Wait(usize, u64),
    /// Holds a connection.
    Hold(Turn),
    Tasks,
    /// Works on a task until the next step.
    Working(Request),
}

/// What a worker has done with the connection that it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    connection: usize,
    /// Messages dispatched from it, and their bytes.
    messages: usize,
    bytes: u64,
    /// How often the worker has come back for marks.
    passes: usize,
}

impl Turn {
    fn of(connection: usize) -> Turn {
        Turn { connection, messages: 0, bytes: 0, passes: 0 }
    }

    fn may_go_on(self) -> bool {
        self.messages < MESSAGES_PER_TURN && self.bytes < BYTES_PER_TURN
    }
}

struct Worker {
    stage: Stage,
    ready: VecDeque<usize>,
    /// Whether a connection is in `ready`.
    is_ready: Vec<bool>,
    batch: VecDeque<usize>,
    tasks: VecDeque<Request>,
    replies: Vec<Request>,
    reply_bytes: u64,
    /// Service time owed under locks and after them, in nanoseconds.
    locked_debt: i64,
    free_debt: i64,
    bytes: u64,
    bytes_at_placement: u64,
}

#[derive(Default)]
struct Connection {
    workers: Vec<WorkerIndex>,
    queue: VecDeque<Request>,
    held: bool,
    waiting: VecDeque<usize>,
    marked: bool,
    in_flight: usize,
    lock_ns: u64,
    bytes: u64,
    /// Lock time and bytes at the last placement.
    at_placement: (u64, u64),
}

struct Sim<'a> {
    plan: &'a Plan,
    now: u64,
    events: BinaryHeap<Reverse<Due>>,
    made: u64,
    workers: Vec<Worker>,
    connections: Vec<Connection>,
    random: fastrand::Rng,
    /// Running sums of the shares of a Zipf traffic.
    sums: Vec<f64>,
    max_events: usize,
    memory: Memory,
    measuring: bool,
    ops: u64,
    latency_ns: u128,
    /// Until when the client's thread is busy with what it sends.
    client_busy_until: u64,
}

/// Simulates a plan.
pub(crate) fn simulate(plan: &Plan) -> Outcome {
    let mut sim = Sim::new(plan);
    sim.begin();
    let (warm, whole) = (nanos(plan.warm_up), nanos(plan.warm_up + plan.measure));
    sim.run_until(warm);
    sim.measuring = true;
    let locks: Vec<u64> = sim.connections.iter().map(|c| c.lock_ns).collect();
    let bytes: Vec<u64> = sim.workers.iter().map(|w| w.bytes).collect();
    sim.run_until(whole);
    Outcome {
        ops_per_s: sim.ops as f64 / plan.measure.as_secs_f64(),
        mean_us: if sim.ops == 0 { 0.0 } else { sim.latency_ns as f64 / sim.ops as f64 / 1e3 },
        bytes: sim
            .workers
            .iter()
            .zip(bytes)
            .map(|(worker, before)| worker.bytes - before)
            .collect(),
        lock_ns: sim.connections.iter().zip(locks).map(|(c, before)| c.lock_ns - before).collect(),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a> Sim<'a> {
    fn new(plan: &'a Plan) -> Sim<'a> {
        let seed = match plan.cell.traffic {
            Traffic::Zipf { seed, .. } | Traffic::OpenRoles { seed, .. } => seed,
            Traffic::Even { .. } | Traffic::Roles { .. } => 1,
        };
        let worker = || Worker {
            stage: Stage::Asleep,
            ready: VecDeque::new(),
            is_ready: vec![false; plan.connections],
            batch: VecDeque::new(),
            tasks: VecDeque::new(),
            replies: Vec::new(),
            reply_bytes: 0,
            locked_debt: 0,
            free_debt: 0,
            bytes: 0,
            bytes_at_placement: 0,
        };
        let max_events = plan.cell.max_events.map_or(MaxEvents::Auto, MaxEvents::Fixed);
        Sim {
            plan,
            now: 0,
            events: BinaryHeap::new(),
            made: 0,
            workers: (0..plan.workers).map(|_| worker()).collect(),
            connections: (0..plan.connections).map(|_| Connection::default()).collect(),
            random: fastrand::Rng::with_seed(seed),
            sums: Vec::new(),
            max_events: max_events.limit(plan.connections, plan.workers),
            memory: Memory::default(),
            measuring: false,
            ops: 0,
            latency_ns: 0,
            client_busy_until: 0,
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse(Due(time, self.made, event)));
    }

    /// Assigns the first workers and sends the first requests.
    fn begin(&mut self) {
        let traffic = self.plan.cell.traffic;
        let heavy = (0..self.plan.connections).filter(|index| traffic.is_heavy(*index)).count();
        if let Traffic::Zipf { exponent, in_flight, .. } = traffic {
            self.sums = running_sums(&zipf(self.plan.connections, exponent, &mut self.random));
            (0..in_flight).for_each(|_| self.send(0, Kind::Closed));
        }
        for index in 0..self.plan.connections {
            let connection = NewConnection {
                lane: traffic.lane(index, self.plan.workers),
                before: index as u64,
            };
            self.connections[index].workers =
                first_workers(self.plan.placement.mapping, self.plan.workers, connection)
                    .unwrap_or_default();
            match traffic {
                Traffic::Even { in_flight, .. } => {
                    (0..in_flight).for_each(|_| self.send(index, Kind::Closed))
                }
                Traffic::Roles { in_flight, .. } if traffic.is_heavy(index) => {
                    (0..in_flight).for_each(|_| self.send(index, Kind::Closed));
                }
                Traffic::OpenRoles { .. } if traffic.is_heavy(index) => {
                    self.next_open(index, heavy)
                }
                Traffic::Roles { .. } | Traffic::OpenRoles { .. } => self.send(index, Kind::Ping),
                Traffic::Zipf { .. } => {}
            }
        }
        self.at(nanos(self.plan.placement.interval), Event::Place);
    }

    fn next_open(&mut self, index: usize, heavy: usize) {
        let Traffic::OpenRoles { offered, .. } = self.plan.cell.traffic else { return };
        let rate = crate::runner::capacity(&self.plan.cell, self.plan.workers) * offered
            / heavy.max(1) as f64;
        let pause = -(1.0 - self.random.f64()).ln() / rate;
        self.at(self.now + (pause * 1e9) as u64, Event::NextOpen(index));
    }

    /// Sends a request of the client on a connection, or under Zipf traffic on one that is drawn.
    fn send(&mut self, connection: usize, kind: Kind) {
        let connection =
            if self.sums.is_empty() { connection } else { pick(&self.sums, self.random.f64()) };
        let (block, reads) = (self.plan.cell.block_bytes, self.plan.cell.pattern.read_share());
        let (bytes_in, bytes_out) = match kind {
            Kind::Ping => (0, 0),
            _ if self.random.f64() < reads => (0, block),
            _ => (block, 0),
        };
        self.connections[connection].in_flight += 1;
        let request = Request { connection, begin: self.now, bytes_in, bytes_out, kind };
        self.client_busy_until = self.client_busy_until.max(self.now) + CLIENT_NS;
        self.at(self.client_busy_until + WIRE_NS, Event::Arrival(request));
    }

    fn run_until(&mut self, end: u64) {
        while self.events.peek().is_some_and(|Reverse(due)| due.0 <= end) {
            let Some(Reverse(Due(time, _, event))) = self.events.pop() else { return };
            debug_assert!(time >= self.now, "time goes forward");
            self.now = time;
            match event {
                Event::Arrival(request) => self.arrive(request),
                Event::NextOpen(index) => self.open_arrival(index),
                Event::Step(worker) => self.step(worker),
                Event::Place => self.place(),
            }
        }
        self.now = end;
    }

    fn open_arrival(&mut self, index: usize) {
        let Traffic::OpenRoles { in_flight_max, .. } = self.plan.cell.traffic else { return };
        if self.connections[index].in_flight < in_flight_max {
            self.send(index, Kind::Open);
        }
        let traffic = self.plan.cell.traffic;
        let heavy = (0..self.plan.connections).filter(|index| traffic.is_heavy(*index)).count();
        self.next_open(index, heavy);
    }

    fn arrive(&mut self, request: Request) {
        let index = request.connection;
        self.connections[index].queue.push_back(request);
        for seat in 0..self.connections[index].workers.len() {
            let worker = self.connections[index].workers[seat].0;
            self.make_ready(worker, index);
        }
    }

    fn make_ready(&mut self, worker: usize, connection: usize) {
        let w = &mut self.workers[worker];
        if !std::mem::replace(&mut w.is_ready[connection], true) {
            w.ready.push_back(connection);
        }
        if w.stage == Stage::Asleep {
            w.stage = Stage::Poll;
            let delay = self.delay();
            self.at(self.now + delay, Event::Step(worker));
        }
    }

    fn delay(&mut self) -> u64 {
        self.random.u64(0..=WAKE_NS_MAX)
    }

    /// Lets a worker go on after the CPU of half a message, and after the time that it now owes if
    /// that is worth a sleep.
    fn pay(&mut self, worker: usize, ns: i64, of: fn(&mut Worker) -> &mut i64) {
        let owed = *of(&mut self.workers[worker]) + ns;
        *of(&mut self.workers[worker]) = owed;
        if owed < SLEEP_MIN_NS {
            self.at(self.now + CPU_NS, Event::Step(worker));
            return;
        }
        let over = self.delay();
        *of(&mut self.workers[worker]) = -i64::try_from(over).unwrap_or(0);
        self.at(self.now + CPU_NS + owed.unsigned_abs() + over, Event::Step(worker));
    }

    /// Runs a worker until something takes time.
    fn step(&mut self, worker: usize) {
        loop {
            match self.workers[worker].stage {
                Stage::Asleep => return,
                Stage::Wait(index, since) => {
                    if !self.woken(worker, index, since) {
                        return;
                    }
                }
                Stage::Poll => {
                    if !self.poll(worker) {
                        return;
                    }
                }
                Stage::Batch => {
                    if self.next_of_batch(worker) {
                        return;
                    }
                }
                Stage::Hold(turn) => {
                    if self.hold(worker, turn) {
                        return;
                    }
                }
                Stage::Tasks => match self.workers[worker].tasks.pop_front() {
                    Some(request) => {
                        let free = self.plan.cell.times.free_ns(request.bytes_out);
                        self.workers[worker].stage = Stage::Working(request);
                        return self.pay(worker, free, |w| &mut w.free_debt);
                    }
                    None => {
                        self.flush(worker);
                        self.workers[worker].stage = Stage::Poll;
                    }
                },
                Stage::Working(request) => self.answer(worker, request),
            }
        }
    }

    /// Takes what is ready; false if the worker sleeps instead.
    fn poll(&mut self, worker: usize) -> bool {
        let w = &mut self.workers[worker];
        for _ in 0..self.max_events {
            let Some(connection) = w.ready.pop_front() else { break };
            w.is_ready[connection] = false;
            w.batch.push_back(connection);
        }
        w.stage = if w.batch.is_empty() { Stage::Asleep } else { Stage::Batch };
        !w.batch.is_empty()
    }

    /// Turns to the next connection of the batch; true if the worker waits for its lock.
    fn next_of_batch(&mut self, worker: usize) -> bool {
        let Some(index) = self.workers[worker].batch.pop_front() else {
            self.workers[worker].stage = Stage::Tasks;
            return false;
        };
        let connection = &mut self.connections[index];
        if !connection.workers.contains(&WorkerIndex(worker)) {
            return false; // it was taken away meanwhile; the others have seen the same message
        }
        if !connection.held {
            connection.held = true;
            self.workers[worker].stage = Stage::Hold(Turn::of(index));
        } else if self.plan.placement.mapping == Mapping::Handoff {
            connection.marked = true;
        } else {
            connection.waiting.push_back(worker);
            self.workers[worker].stage = Stage::Wait(index, self.now);
            return true;
        }
        false
    }

    /// Dispatches the next message, or lets go; true if that takes time.
    fn hold(&mut self, worker: usize, turn: Turn) -> bool {
        let index = turn.connection;
        let connection = &mut self.connections[index];
        if turn.may_go_on()
            && let Some(request) = connection.queue.pop_front()
        {
            connection.bytes += request.bytes_in + request.bytes_out;
            let locked = self.plan.cell.times.locked_ns(request.bytes_in, request.bytes_out);
            let w = &mut self.workers[worker];
            w.bytes += request.bytes_in + request.bytes_out;
            w.tasks.push_back(request);
            let bytes = turn.bytes + request.bytes_in;
            w.stage = Stage::Hold(Turn { messages: turn.messages + 1, bytes, ..turn });
            self.pay(worker, locked, |w| &mut w.locked_debt);
            return true;
        }
        let marked = std::mem::take(&mut connection.marked);
        if marked && turn.passes < PASSES_MAX && turn.may_go_on() {
            self.workers[worker].stage = Stage::Hold(Turn { passes: turn.passes + 1, ..turn });
            return false;
        }
        self.release(index);
        self.workers[worker].stage = Stage::Batch;
        if !self.connections[index].queue.is_empty() {
            self.make_ready(worker, index);
        }
        false
    }

    /// Frees a connection, and wakes the one that has waited longest.
    fn release(&mut self, index: usize) {
        self.connections[index].held = false;
        if let Some(next) = self.connections[index].waiting.pop_front() {
            let delay = self.random.u64(0..=LOCK_WAKE_NS_MAX);
            self.at(self.now + delay, Event::Step(next));
        }
    }

    /// A worker that waited is awake: it has the lock now, or waits on in front of the others.
    fn woken(&mut self, worker: usize, index: usize, since: u64) -> bool {
        let connection = &mut self.connections[index];
        if connection.held {
            connection.waiting.push_front(worker);
            return false;
        }
        connection.held = true;
        connection.lock_ns += self.now - since;
        self.workers[worker].stage = Stage::Hold(Turn::of(index));
        true
    }

    fn answer(&mut self, worker: usize, request: Request) {
        let w = &mut self.workers[worker];
        w.stage = Stage::Tasks;
        w.reply_bytes += request.bytes_out;
        w.replies.push(request);
        if w.reply_bytes >= FLUSH_BYTES {
            self.flush(worker);
        }
    }

    /// Sends the replies of a worker; their clients go on.
    fn flush(&mut self, worker: usize) {
        self.workers[worker].reply_bytes = 0;
        for request in std::mem::take(&mut self.workers[worker].replies) {
            self.connections[request.connection].in_flight -= 1;
            if request.kind == Kind::Ping {
                let pause = match self.plan.cell.traffic {
                    Traffic::Roles { ping_ms, .. } | Traffic::OpenRoles { ping_ms, .. } => {
                        ping_ms * 1_000_000
                    }
                    Traffic::Even { .. } | Traffic::Zipf { .. } => 0,
                };
                self.connections[request.connection].in_flight += 1;
                let next = Request { begin: self.now + pause, ..request };
                self.at(self.now + pause + WIRE_NS, Event::Arrival(next));
                continue;
            }
            if self.measuring {
                self.ops += 1;
                self.latency_ns += u128::from(self.now + WIRE_NS - request.begin);
            }
            if request.kind == Kind::Closed {
                self.send(request.connection, Kind::Closed);
            }
        }
    }

    fn place(&mut self) {
        let interval = self.plan.placement.interval;
        let snapshot = Snapshot {
            worker_bytes: self.workers.iter().map(|w| w.bytes - w.bytes_at_placement).collect(),
            connections: self.connections.iter().enumerate().map(|(id, c)| load(id, c)).collect(),
            elapsed: interval,
        };
        self.workers.iter_mut().for_each(|w| w.bytes_at_placement = w.bytes);
        self.connections.iter_mut().for_each(|c| c.at_placement = (c.lock_ns, c.bytes));
        for step in place(&self.plan.placement, &snapshot, &mut self.memory) {
            let index = step.connection as usize;
            let before = self.connections[index].workers.clone();
            step.change.apply(&mut self.connections[index].workers);
            if self.connections[index].queue.is_empty() {
                continue;
            }
            let new: Vec<usize> = self.connections[index]
                .workers
                .iter()
                .filter(|w| !before.contains(w))
                .map(|w| w.0)
                .collect();
            new.into_iter().for_each(|worker| self.make_ready(worker, index));
        }
        self.at(self.now + nanos(interval), Event::Place);
    }
}

fn load(id: usize, connection: &Connection) -> ConnectionLoad {
    ConnectionLoad {
        id: id as u64,
        workers: connection.workers.clone(),
        lock_time: Duration::from_nanos(connection.lock_ns - connection.at_placement.0),
        bytes: connection.bytes - connection.at_placement.1,
    }
}

#[cfg(test)]
mod tests;
