//! The three classes in the queue of a runtime's I/O threads: all at once, and class III alone.
//!
//! Contract: a job takes its time asleep, as one that waits for a disk, so that the number of CPUs
//! is not what is measured. Classes II and III have always more jobs waiting than there are
//! threads; class I has one at a time, with pauses, as heartbeats and maps come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use messenger::histogram::{Histogram, Times};
use messenger::sync::block_on;
use messenger::{Runtime, RuntimeConfig, TrafficClass, Worker};
use serde::Serialize;

use super::{SIDES, order_of};
use crate::error::BenchError;

/// I/O threads.
const THREADS: usize = 4;
/// Time of a job.
const SERVICE: Duration = Duration::from_micros(500);
/// Bytes that a job counts for.
const JOB_BYTES: usize = 4096;
/// Pause of class I between two jobs.
const PAUSE: Duration = Duration::from_millis(5);
/// Jobs under way or waiting, by class.
const IN_FLIGHT: [usize; 3] = [1, 32, 32];

/// What is served together, with its name in reports.
pub(super) type QueueLoad = (&'static str, &'static [TrafficClass]);

/// All at once, and class III alone.
pub(super) const LOADS: [QueueLoad; 2] =
    [("all", &TrafficClass::ALL), ("alone", &[TrafficClass::Background])];

/// One class in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct QueueRound {
    pub(super) round: usize,
    /// "all" or "alone".
    pub(super) load: &'static str,
    pub(super) side: &'static str,
    pub(super) class: &'static str,
    pub(super) per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

#[derive(Default)]
struct Meter {
    measuring: AtomicBool,
    stop: AtomicBool,
    times: [Histogram; 3],
}

/// One load on one side; a row for each class of it.
pub(super) fn measure(
    round: usize,
    (load, classes): QueueLoad,
    side: usize,
    duration: Duration,
) -> Result<Vec<QueueRound>, BenchError> {
    let all = serve(side, classes, duration)?;
    let row = |class: &TrafficClass| {
        let times = &all[class.index()];
        QueueRound {
            round,
            load,
            side: SIDES[side],
            class: class.numeral(),
            per_s: times.calls() as f64 / duration.as_secs_f64(),
            p50_us: times.quantile_ns(0.5) as f64 / 1e3,
            p99_us: times.quantile_ns(0.99) as f64 / 1e3,
            p999_us: times.quantile_ns(0.999) as f64 / 1e3,
        }
    };
    Ok(classes.iter().map(row).collect())
}

fn serve(
    side: usize,
    classes: &[TrafficClass],
    duration: Duration,
) -> Result<[Times; 3], BenchError> {
    let config = RuntimeConfig {
        blocking_threads_max: THREADS,
        class_order: order_of(side),
        ..RuntimeConfig::new("classes", 1)
    };
    let runtime = Runtime::start(config)?;
    let meter = Arc::new(Meter::default());
    let mut loads = Vec::new();
    for &class in classes {
        for _ in 0..IN_FLIGHT[class.index()] {
            let meter = Arc::clone(&meter);
            loads.push(runtime.handle().run_on(0, move |worker| load(worker, class, meter)));
        }
    }
    std::thread::sleep(duration / 4);
    meter.measuring.store(true, Relaxed);
    std::thread::sleep(duration);
    meter.measuring.store(false, Relaxed);
    meter.stop.store(true, Relaxed);
    for load in loads {
        block_on(load).map_err(|_| BenchError::Gone)?;
    }
    runtime.shutdown();
    Ok([0, 1, 2].map(|class: usize| meter.times[class].times()))
}

async fn load(worker: Worker, class: TrafficClass, meter: Arc<Meter>) {
    while !meter.stop.load(Relaxed) {
        let began = Instant::now();
        let job = worker.blocking_as(class, JOB_BYTES, || std::thread::sleep(SERVICE));
        if job.await.is_err() {
            return;
        }
        if meter.measuring.load(Relaxed) {
            meter.times[class.index()].record(began.elapsed().as_nanos() as u64);
        }
        if class == TrafficClass::Control {
            worker.sleep(PAUSE).await;
        }
    }
}
