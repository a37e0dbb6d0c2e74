//! What a client counts.
//!
//! Contract: only answers in the measured time count. CPU time is the sum over all threads of a
//! process, as the kernel gives it in `/proc`, read at the beginning and the end of that time.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use benches::histogram::Histogram;
use benches::machine;
use serde::{Deserialize, Serialize};

/// What to measure.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Shape {
    /// Bytes of each reply.
    pub size: u32,
    /// Connections.
    pub connections: usize,
    /// Requests in flight on each.
    pub in_flight: usize,
    /// Time before the measured one.
    pub warm_up_ms: u64,
    /// Time measured.
    pub measure_ms: u64,
}

/// What was measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measured {
    #[serde(default)]
    pub system: String,
    #[serde(default)]
    pub run: usize,
    pub shape: Shape,
    pub messages: u64,
    pub messages_per_s: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// CPU time per message of each end, in microseconds.
    pub client_cpu_us: f64,
    pub server_cpu_us: f64,
}

impl Measured {
    /// Both ends.
    pub fn cpu_us(&self) -> f64 {
        self.client_cpu_us + self.server_cpu_us
    }
}

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// Shared by whoever sends requests and whoever keeps the time.
#[derive(Clone, Default)]
pub struct Meter {
    phase: Arc<AtomicU8>,
    latencies: Arc<Mutex<Histogram>>,
}

impl Meter {
    /// True until the time is over.
    pub fn goes_on(&self) -> bool {
        self.phase.load(Relaxed) != STOP
    }

    /// Counts an answer to what was sent at `begin`.
    pub fn answered(&self, begin: Instant) {
        if self.phase.load(Relaxed) == MEASURE {
            let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            // A thread that panicked while counting has ended the run already.
            self.latencies.lock().unwrap_or_else(PoisonError::into_inner).record(ns);
        }
    }

    /// Keeps the time, on a thread of its own, while others send; returns what came of it.
    pub fn watch(&self, shape: Shape, server: u32) -> Measured {
        debug_assert_eq!(self.phase.load(Relaxed), WARM_UP);
        std::thread::sleep(Duration::from_millis(shape.warm_up_ms));
        let cpu = || (machine::process_cpu_ns(std::process::id()), machine::process_cpu_ns(server));
        let (begin, before) = (Instant::now(), cpu());
        self.phase.store(MEASURE, Relaxed);
        std::thread::sleep(Duration::from_millis(shape.measure_ms));
        self.phase.store(STOP, Relaxed);
        let (elapsed, after) = (begin.elapsed(), cpu());
        let latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = latencies.count();
        let each = |before: u64, after: u64| {
            after.saturating_sub(before) as f64 / 1e3 / messages.max(1) as f64
        };
        Measured {
            system: String::new(),
            run: 0,
            shape,
            messages,
            messages_per_s: messages as f64 / elapsed.as_secs_f64(),
            mean_us: latencies.mean_us(),
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
            client_cpu_us: each(before.0, after.0),
            server_cpu_us: each(before.1, after.1),
        }
    }
}
