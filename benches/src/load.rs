//! The clients of a run: requests on many connections, and how long each took.
//!
//! Contract: all connections live on one worker of the client's runtime, so that nothing here is
//! locked. Only requests answered in the measured phase are counted. Choices are drawn from seeds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use messenger::{CallError, Connection, Worker};

use crate::histogram::Histogram;
use crate::scenario::{Cell as Plan, Pattern, Traffic};
use crate::server::Request;

/// A request without an answer for so long ends the run: far above any latency of a run that works.
const DEADLINE: Duration = Duration::from_secs(60);

/// Where a run stands; set from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    WarmUp = 0,
    Measure = 1,
    Stop = 2,
}

/// The phase, shared by the generator and whoever keeps the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct PhaseCell(Arc<AtomicU8>);

impl PhaseCell {
    pub(crate) fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Relaxed);
    }

    pub(crate) fn get(&self) -> Phase {
        match self.0.load(Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }
}

/// What was counted in the measured phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Latencies of reads and writes.
    pub(crate) data: Histogram,
    /// Latencies of pings.
    pub(crate) pings: Histogram,
    /// Reads and writes answered, by connection.
    pub(crate) by_connection: Vec<u64>,
    /// Arrivals of an open loop that were dropped.
    pub(crate) dropped: u64,
    /// The first call that failed.
    pub(crate) error: Option<CallError>,
}

struct Generator {
    worker: Worker,
    connections: Vec<Connection>,
    data: Bytes,
    phase: PhaseCell,
    pattern: Pattern,
    block: u32,
    tally: RefCell<Tally>,
    running: Cell<usize>,
    random: RefCell<fastrand::Rng>,
}

/// Sends requests as `plan` says until the phase is [`Phase::Stop`] and all of them are answered.
/// `capacity` is what all workers of the server can answer each second, for open loops.
pub(crate) async fn generate(
    worker: Worker,
    connections: Vec<Connection>,
    plan: Plan,
    capacity: f64,
    phase: PhaseCell,
    data: Bytes,
) -> Tally {
    let seed = match plan.traffic {
        Traffic::Zipf { seed, .. } | Traffic::OpenRoles { seed, .. } => seed,
        Traffic::Even { .. } | Traffic::Roles { .. } => 1,
    };
    let tally = Tally { by_connection: vec![0; connections.len()], ..Tally::default() };
    let generator = Rc::new(Generator {
        worker: worker.clone(),
        connections,
        data,
        phase,
        pattern: plan.pattern,
        block: u32::try_from(plan.block_bytes).unwrap_or(u32::MAX),
        tally: RefCell::new(tally),
        running: Cell::new(0),
        random: RefCell::new(fastrand::Rng::with_seed(seed)),
    });
    generator.start(&plan.traffic, capacity);
    while generator.running.get() > 0 {
        worker.sleep(Duration::from_millis(5)).await;
    }
    generator.tally.borrow().clone()
}

impl Generator {
    fn start(self: &Rc<Self>, traffic: &Traffic, capacity: f64) {
        let heavy = (0..self.connections.len()).filter(|index| traffic.is_heavy(*index)).count();
        for index in 0..self.connections.len() {
            match *traffic {
                Traffic::Even { in_flight, .. } => {
                    (0..in_flight).for_each(|_| self.spawn_closed(Target::One(index)))
                }
                Traffic::Roles { in_flight, .. } if traffic.is_heavy(index) => {
                    (0..in_flight).for_each(|_| self.spawn_closed(Target::One(index)));
                }
                Traffic::OpenRoles { offered, in_flight_max, .. } if traffic.is_heavy(index) => {
                    self.spawn_open(index, capacity * offered / heavy as f64, in_flight_max);
                }
                Traffic::Roles { ping_ms, .. } | Traffic::OpenRoles { ping_ms, .. } => {
                    self.spawn_pings(index, Duration::from_millis(ping_ms));
                }
                Traffic::Zipf { .. } => {}
            }
        }
        if let Traffic::Zipf { exponent, in_flight, .. } = *traffic {
            let shares = zipf(self.connections.len(), exponent, &mut self.random.borrow_mut());
            let sums: Rc<[f64]> = running_sums(&shares).into();
            (0..in_flight).for_each(|_| self.spawn_closed(Target::Any(Rc::clone(&sums))));
        }
    }

    fn spawn_closed(self: &Rc<Self>, target: Target) {
        self.spawn(|this| async move {
            while this.phase.get() != Phase::Stop && this.tally.borrow().error.is_none() {
                let index = match &target {
                    Target::One(index) => *index,
                    Target::Any(sums) => pick(sums, this.random.borrow_mut().f64()),
                };
                this.request(index, this.draw(), Instant::now()).await;
            }
        });
    }

    fn spawn_pings(self: &Rc<Self>, index: usize, pause: Duration) {
        let first = pause.mul_f64(self.random.borrow_mut().f64());
        self.spawn(move |this| async move {
            this.worker.sleep(first).await;
            while this.phase.get() != Phase::Stop && this.tally.borrow().error.is_none() {
                this.request(index, Request::Ping, Instant::now()).await;
                this.worker.sleep(pause).await;
            }
        });
    }

    fn spawn_open(self: &Rc<Self>, index: usize, rate: f64, in_flight_max: usize) {
        self.spawn(move |this| async move {
            let in_flight = Rc::new(Cell::new(0usize));
            let mut at = Instant::now();
            loop {
                at += Duration::from_secs_f64(-(1.0 - this.random.borrow_mut().f64()).ln() / rate);
                this.worker.sleep_until(at).await;
                if this.phase.get() == Phase::Stop || this.tally.borrow().error.is_some() {
                    return;
                }
                if in_flight.get() >= in_flight_max {
                    let measured = this.phase.get() == Phase::Measure;
                    this.tally.borrow_mut().dropped += u64::from(measured);
                    continue;
                }
                in_flight.set(in_flight.get() + 1);
                let (request, in_flight) = (this.draw(), Rc::clone(&in_flight));
                this.spawn(move |this| async move {
                    this.request(index, request, at).await;
                    in_flight.set(in_flight.get() - 1);
                });
            }
        });
    }

    /// Starts a task that [`generate`] waits for.
    fn spawn<Fut: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        task: impl FnOnce(Rc<Generator>) -> Fut,
    ) {
        self.running.set(self.running.get() + 1);
        let (future, this) = (task(Rc::clone(self)), Rc::clone(self));
        self.worker.spawn(async move {
            future.await;
            this.running.set(this.running.get() - 1);
        });
    }

    fn draw(&self) -> Request {
        let share = self.pattern.read_share();
        let read = share >= 1.0 || share > 0.0 && self.random.borrow_mut().f64() < share;
        if read { Request::Read(self.block) } else { Request::Write(self.block) }
    }

    /// One request; `begin` is when it arrived.
    async fn request(&self, index: usize, request: Request, begin: Instant) {
        let result = self.connections[index].call(request.message(&self.data), DEADLINE).await;
        let mut tally = self.tally.borrow_mut();
        if let Err(error) = result {
            tally.error.get_or_insert(error);
            return;
        }
        if self.phase.get() != Phase::Measure {
            return;
        }
        let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if request == Request::Ping {
            tally.pings.record(ns);
        } else {
            tally.data.record(ns);
            tally.by_connection[index] += 1;
        }
    }
}

/// The connection of a request in a closed loop.
enum Target {
    One(usize),
    /// Chosen anew each time, by running sums of shares.
    Any(Rc<[f64]>),
}

/// Shares by Zipf's law, in an order drawn at random; they add up to 1.
pub(crate) fn zipf(count: usize, exponent: f64, random: &mut fastrand::Rng) -> Vec<f64> {
    let mut shares: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-exponent)).collect();
    let sum: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
    random.shuffle(&mut shares);
    shares
}

/// Sums of shares up to and including each.
pub(crate) fn running_sums(shares: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    shares
        .iter()
        .map(|share| {
            sum += share;
            sum
        })
        .collect()
}

/// The index that a number in 0..1 falls on.
pub(crate) fn pick(sums: &[f64], at: f64) -> usize {
    sums.partition_point(|sum| *sum <= at).min(sums.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_is_a_distribution_and_seeded() {
        let draw = |seed| zipf(30, 1.0, &mut fastrand::Rng::with_seed(seed));
        let shares = draw(7);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(shares, draw(7));
        assert_ne!(shares, draw(8));
        let most = shares.iter().copied().fold(0.0, f64::max);
        let least = shares.iter().copied().fold(1.0, f64::min);
        assert!((most / least - 30.0).abs() < 1e-6);
    }

    #[test]
    fn picks_follow_the_shares() {
        let sums = running_sums(&[0.5, 0.25, 0.25]);
        let picked: Vec<usize> =
            [0.0, 0.49, 0.5, 0.74, 0.75, 0.999, 1.0].map(|at| pick(&sums, at)).to_vec();
        assert_eq!(picked, [0, 0, 1, 1, 2, 2, 2]);
    }
}
