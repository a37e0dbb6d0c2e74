//! What a run measures: the scenario file, checked and spread out into cells.
//!
//! Contract: everything that the outcome depends on stands in the file, and a file that asks for
//! what does not exist is refused before anything runs. Sizes are in bytes, or in KiB or MiB with a
//! `K` or `M` behind the number.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use placement::threads::Mapping;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// A scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Name of the run if none is given.
    pub(crate) name: String,
    /// What it shows and what it assumes; goes into the report.
    pub(crate) about: String,
    /// Workers of the server in blocking mode.
    pub(crate) workers: usize,
    /// Connections to it.
    pub(crate) connections: usize,
    /// Runs of each cell, taken in turn with all mappings.
    pub(crate) runs: usize,
    /// Time before the measured one, in which placement settles.
    pub(crate) warmup_ms: u64,
    /// Time measured.
    pub(crate) measure_ms: u64,
    /// Names of mappings; the first is what the others are compared with.
    pub(crate) mappings: Vec<String>,
    /// Settings of placement.
    pub(crate) placement: Placement,
    /// Service times by name.
    pub(crate) service: BTreeMap<String, ServiceTimes>,
    /// Traffic by name.
    pub(crate) traffic: BTreeMap<String, Traffic>,
    /// Numbers of workers that the model computes the headline cell for.
    #[serde(default)]
    pub(crate) model_workers: Vec<usize>,
    /// Numbers of connections, with the most workers.
    #[serde(default)]
    pub(crate) model_connections: Vec<usize>,
    /// Groups of cells.
    #[serde(rename = "cell")]
    pub(crate) groups: Vec<CellGroup>,
}

/// Settings of placement, as in the daemon's `ms_*` keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Placement {
    /// Time between two decisions.
    pub(crate) interval_ms: u64,
    /// Share of the interval above which the lock time of a connection counts as contention.
    pub(crate) lock_threshold: f64,
}

/// How long a worker is taken up by a message, in blocking mode.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServiceTimes {
    /// Under the connection's lock, from read to dispatch, for each message.
    pub(crate) locked_us_per_message: f64,
    /// Under the lock, for each KiB received.
    pub(crate) locked_us_per_kib_in: f64,
    /// Under the lock, for each KiB of the reply: what an implementation costs that writes replies
    /// under it.
    #[serde(default)]
    pub(crate) locked_us_per_kib_out: f64,
    /// After dispatch, on the same worker without the lock, for each message.
    pub(crate) free_us_per_message: f64,
    /// The same for each KiB of the reply.
    pub(crate) free_us_per_kib_out: f64,
}

impl ServiceTimes {
    /// Time under the lock in nanoseconds, for so many bytes in and out.
    pub(crate) fn locked_ns(&self, bytes_in: u64, bytes_out: u64) -> i64 {
        let (kib_in, kib_out) = (bytes_in as f64 / 1024.0, bytes_out as f64 / 1024.0);
        let us = self.locked_us_per_message
            + self.locked_us_per_kib_in * kib_in
            + self.locked_us_per_kib_out * kib_out;
        (us * 1e3) as i64
    }

    /// Time without the lock in nanoseconds.
    pub(crate) fn free_ns(&self, bytes_out: u64) -> i64 {
        ((self.free_us_per_message + self.free_us_per_kib_out * bytes_out as f64 / 1024.0) * 1e3)
            as i64
    }
}

/// Who sends how much.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Traffic {
    /// Closed loop: every connection has so many requests in flight.
    Even {
        /// Requests in flight on each.
        in_flight: usize,
        /// Most MiB in flight on each, so that large blocks go round as often as small ones; one
        /// request at least.
        #[serde(default = "unbounded")]
        in_flight_mib_max: u64,
    },
    /// Closed loop: every `heavy_every`-th connection, from the first, carries data with so many
    /// requests in flight; the others send an empty message each `ping_ms`.
    Roles {
        /// Distance of two connections with data.
        heavy_every: usize,
        /// Requests in flight on each of those.
        in_flight: usize,
        /// Most MiB in flight on each of those; one request at least.
        #[serde(default = "unbounded")]
        in_flight_mib_max: u64,
        /// Pause between the messages of each other connection.
        ping_ms: u64,
    },
    /// Closed loop over all connections: each request chooses its connection anew, by Zipf's law
    /// over an order of connections drawn once from `seed`.
    Zipf {
        /// Exponent: the n-th connection has a share in proportion to `n^-exponent`.
        exponent: f64,
        /// Requests in flight on all together.
        in_flight: usize,
        /// Seed of the order and of the choices.
        seed: u64,
    },
    /// Open loop: as `Roles`, but requests on connections with data arrive at random times
    /// (Poisson), whether or not earlier ones are answered; latency counts from the time of
    /// arrival.
    OpenRoles {
        /// Distance of two connections with data.
        heavy_every: usize,
        /// Requests each second on all connections with data together, as a share of what all
        /// workers can serve.
        offered: f64,
        /// Requests in flight on a connection beyond which arrivals are dropped and counted.
        in_flight_max: usize,
        /// Pause between the messages of each other connection.
        ping_ms: u64,
        /// Seed of the arrivals.
        seed: u64,
    },
}

fn unbounded() -> u64 {
    u64::MAX >> 20
}

impl Traffic {
    /// The traffic with blocks of this size: as many requests in flight as its bound of bytes
    /// allows.
    fn with_blocks(self, block_bytes: u64) -> Traffic {
        let bounded = |in_flight: usize, mib_max: u64| {
            let most = mib_max.saturating_mul(1 << 20) / block_bytes.max(1);
            in_flight.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
        };
        match self {
            Traffic::Even { in_flight, in_flight_mib_max } => Traffic::Even {
                in_flight: bounded(in_flight, in_flight_mib_max),
                in_flight_mib_max,
            },
            Traffic::Roles { heavy_every, in_flight, in_flight_mib_max, ping_ms } => {
                let in_flight = bounded(in_flight, in_flight_mib_max);
                Traffic::Roles { heavy_every, in_flight, in_flight_mib_max, ping_ms }
            }
            Traffic::Zipf { .. } | Traffic::OpenRoles { .. } => self,
        }
    }

    /// Requests with data that a closed loop has in flight over so many connections; an open loop's
    /// are not bounded by it.
    pub(crate) fn in_flight(&self, connections: usize) -> usize {
        let heavy = (0..connections).filter(|index| self.is_heavy(*index)).count();
        match *self {
            Traffic::Even { in_flight, .. } | Traffic::Roles { in_flight, .. } => in_flight * heavy,
            Traffic::Zipf { in_flight, .. } => in_flight,
            Traffic::OpenRoles { .. } => 0,
        }
    }

    /// Whether connection `index` carries data.
    pub(crate) fn is_heavy(&self, index: usize) -> bool {
        match *self {
            Traffic::Even { .. } | Traffic::Zipf { .. } => true,
            Traffic::Roles { heavy_every, .. } | Traffic::OpenRoles { heavy_every, .. } => {
                index.is_multiple_of(heavy_every)
            }
        }
    }

    /// The lane that a client asks for that knows which core owns its data: connections with data
    /// in turn, the others in turn.
    pub(crate) fn lane(&self, index: usize, workers: usize) -> u16 {
        let same = (0..index).filter(|other| self.is_heavy(*other) == self.is_heavy(index)).count();
        u16::try_from(same % workers.max(1)).unwrap_or(0)
    }

    /// In words, for the report.
    pub(crate) fn words(&self) -> String {
        match *self {
            Traffic::Even { in_flight, in_flight_mib_max } => {
                format!(
                    "closed loop, {in_flight} requests{} in flight on every connection",
                    at_most_mib(in_flight_mib_max)
                )
            }
            Traffic::Roles { heavy_every, in_flight, in_flight_mib_max, ping_ms } => format!(
                "closed loop, {in_flight} requests{} in flight on every connection whose number is a multiple of {heavy_every}; an \
                 empty message every {ping_ms} ms on each other one",
                at_most_mib(in_flight_mib_max)
            ),
            Traffic::Zipf { exponent, in_flight, seed } => format!(
                "closed loop, {in_flight} requests in flight over all connections, each choosing its connection by Zipf's law, \
                 exponent {exponent}, order drawn from seed {seed}"
            ),
            Traffic::OpenRoles { heavy_every, offered, in_flight_max, ping_ms, seed } => format!(
                "open loop, Poisson arrivals (seed {seed}) of {:.0}% of what all workers can serve, spread over the connections \
                 whose number is a multiple of {heavy_every}; at most {in_flight_max} in flight on each, arrivals beyond are dropped \
                 and counted; an empty message every {ping_ms} ms on each other one",
                offered * 100.0
            ),
        }
    }
}

fn at_most_mib(mib: u64) -> String {
    if mib == unbounded() { String::new() } else { format!(", {mib} MiB at most,") }
}

/// What the workers' time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// Handlers sleep, so that workers act as cores of their own.
    Blocking,
    /// Nothing but the messenger's own work, with as many workers as there are cores.
    Cpu,
}

impl Mode {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Blocking => "blocking",
            Mode::Cpu => "cpu",
        }
    }
}

/// What requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    /// Empty requests, replies of a block.
    Randread,
    /// Requests of a block, empty replies.
    Randwrite,
    /// 80% reads, 20% writes.
    Mix,
}

impl Pattern {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::Randread => "randread",
            Pattern::Randwrite => "randwrite",
            Pattern::Mix => "mix",
        }
    }

    /// Share of requests that are reads.
    pub(crate) fn read_share(self) -> f64 {
        match self {
            Pattern::Randread => 1.0,
            Pattern::Randwrite => 0.0,
            Pattern::Mix => 0.8,
        }
    }
}

/// Cells that differ in pattern and block size.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CellGroup {
    mode: Mode,
    service: String,
    traffic: String,
    patterns: Vec<Pattern>,
    block_sizes: Vec<String>,
    /// `auto` or a number.
    #[serde(default = "auto")]
    max_events: String,
    /// Mappings of this group only.
    #[serde(default)]
    mappings: Vec<String>,
}

fn auto() -> String {
    "auto".into()
}

/// One thing to measure, with every mapping.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) mode: Mode,
    /// Name of the service times.
    pub(crate) service: String,
    /// Service times of blocking mode.
    pub(crate) times: ServiceTimes,
    /// Name of the traffic.
    pub(crate) traffic_name: String,
    pub(crate) traffic: Traffic,
    pub(crate) pattern: Pattern,
    pub(crate) block_bytes: u64,
    /// `None` is `auto`.
    pub(crate) max_events: Option<usize>,
    pub(crate) variants: Vec<Variant>,
}

/// A mapping with the rule it decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) mapping: Mapping,
    /// Under `lcam`: the rule that comes to rest, instead of the algorithm as printed.
    pub(crate) damped: bool,
}

impl Variant {
    /// Name of `lcam` with the rule that comes to rest.
    pub(crate) const DAMPED: &str = "lcam-damped";

    /// Its name in scenarios and tables.
    pub(crate) fn name(self) -> &'static str {
        if self.damped { Variant::DAMPED } else { self.mapping.name() }
    }
}

impl Cell {
    /// Mean service time of a request, both parts.
    pub(crate) fn mean_service(&self) -> Duration {
        let (times, block, reads) = (&self.times, self.block_bytes, self.pattern.read_share());
        let read = (times.locked_ns(0, block) + times.free_ns(block)) as f64;
        let write = (times.locked_ns(block, 0) + times.free_ns(0)) as f64;
        Duration::from_nanos((read * reads + write * (1.0 - reads)).max(1.0) as u64)
    }

    /// Its name, block size aside: mode, service times, traffic, pattern, and the events setting if
    /// it is not `auto`.
    pub(crate) fn scenario(&self) -> String {
        let events = self.max_events.map_or(String::new(), |n| format!("/max-events-{n}"));
        let service =
            if self.mode == Mode::Blocking { format!("/{}", self.service) } else { String::new() };
        format!(
            "{}{service}/{}/{}{events}",
            self.mode.name(),
            self.traffic_name,
            self.pattern.name()
        )
    }
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// When the file cannot be read, is not TOML of this shape, or asks for something that does not
    /// exist.
    pub(crate) fn load(path: &Path) -> Result<Scenario, BenchError> {
        let text = std::fs::read_to_string(path).map_err(BenchError::file(path))?;
        let scenario: Scenario = toml::from_str(&text).map_err(|source| BenchError::Toml {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        scenario.cells()?;
        Ok(scenario)
    }

    /// Warm-up and measured time of a cell: those of the file, or as long as it takes two workers,
    /// which is what the skew leaves to the worst mapping, to answer all requests in flight once
    /// before the measured time and twice within it.
    pub(crate) fn times(&self, cell: &Cell) -> (Duration, Duration) {
        let in_flight = u32::try_from(cell.traffic.in_flight(self.connections)).unwrap_or(u32::MAX);
        let round = match cell.mode {
            Mode::Blocking => cell.mean_service() * in_flight / 2,
            Mode::Cpu => Duration::ZERO,
        };
        let (warm_up, measured) =
            (Duration::from_millis(self.warmup_ms), Duration::from_millis(self.measure_ms));
        (warm_up.max(round), measured.max(round * 2))
    }

    /// All cells, in the order of the file.
    ///
    /// # Errors
    /// [`BenchError::Scenario`].
    pub(crate) fn cells(&self) -> Result<Vec<Cell>, BenchError> {
        let refuse = |words: String| Err(BenchError::Scenario(words));
        if self.workers == 0 || self.connections == 0 || self.runs == 0 || self.measure_ms == 0 {
            return refuse("workers, connections, runs and measure_ms are at least 1".into());
        }
        if self.model_workers.iter().chain(&self.model_connections).any(|n| *n == 0) {
            return refuse("model_workers and model_connections are at least 1".into());
        }
        if self.placement.interval_ms == 0 {
            return refuse("placement.interval_ms is at least 1".into());
        }
        let mut cells = Vec::new();
        for group in &self.groups {
            let Some(times) = self.service.get(&group.service) else {
                return refuse(format!("no [service.{}]", group.service));
            };
            let Some(traffic) = self.traffic.get(&group.traffic) else {
                return refuse(format!("no [traffic.{}]", group.traffic));
            };
            check_traffic(&group.traffic, traffic)?;
            let names = if group.mappings.is_empty() { &self.mappings } else { &group.mappings };
            let max_events = match group.max_events.as_str() {
                "auto" => None,
                number => match number.parse() {
                    Ok(0) | Err(_) => {
                        return refuse(format!(
                            "max_events is `auto` or at least 1, not {number:?}"
                        ));
                    }
                    Ok(number) => Some(number),
                },
            };
            for pattern in &group.patterns {
                for size in &group.block_sizes {
                    let block_bytes = parse_size(size)?;
                    cells.push(Cell {
                        mode: group.mode,
                        service: group.service.clone(),
                        times: *times,
                        traffic_name: group.traffic.clone(),
                        traffic: traffic.with_blocks(block_bytes),
                        pattern: *pattern,
                        block_bytes,
                        max_events,
                        variants: parse_mappings(names)?,
                    });
                }
            }
        }
        if cells.is_empty() { refuse("no cells".into()) } else { Ok(cells) }
    }
}

fn check_traffic(name: &str, traffic: &Traffic) -> Result<(), BenchError> {
    let good = match *traffic {
        Traffic::Even { in_flight, in_flight_mib_max } => in_flight > 0 && in_flight_mib_max > 0,
        Traffic::Roles { heavy_every, in_flight, in_flight_mib_max, ping_ms } => {
            heavy_every > 0 && in_flight > 0 && in_flight_mib_max > 0 && ping_ms > 0
        }
        Traffic::Zipf { exponent, in_flight, .. } => exponent >= 0.0 && in_flight > 0,
        Traffic::OpenRoles { heavy_every, offered, in_flight_max, ping_ms, .. } => {
            heavy_every > 0 && offered > 0.0 && in_flight_max > 0 && ping_ms > 0
        }
    };
    if good {
        Ok(())
    } else {
        Err(BenchError::Scenario(format!("[traffic.{name}] has a number that is not positive")))
    }
}

fn parse_mappings(names: &[String]) -> Result<Vec<Variant>, BenchError> {
    let parse = |name: &String| match name.as_str() {
        Variant::DAMPED => Ok(Variant { mapping: Mapping::Lcam, damped: true }),
        name => name.parse().map(|mapping| Variant { mapping, damped: false }),
    };
    let parsed = names
        .iter()
        .map(|name| parse(name).map_err(|error| BenchError::Scenario(format!("{error}"))));
    let variants: Vec<Variant> = parsed.collect::<Result<_, _>>()?;
    if variants.is_empty() { Err(BenchError::Scenario("no mappings".into())) } else { Ok(variants) }
}

/// "4K", "1M" or "512".
fn parse_size(text: &str) -> Result<u64, BenchError> {
    let (digits, shift) = match text.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
    };
    let number: Option<u64> = digits.parse().ok().filter(|n| *n <= 16 << (20 - shift));
    number.map(|n: u64| n << shift).ok_or_else(|| {
        BenchError::Scenario(format!("block size {text:?}, expected 0 to 16M, as in 4K, 1M or 512"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::size_name;

    #[test]
    fn the_files_in_git_are_good() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut seen = 0;
        for entry in std::fs::read_dir(dir).expect("a directory of scenarios") {
            let path = entry.expect("an entry").path();
            Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
            seen += 1;
        }
        assert!(seen >= 2, "only {seen} scenarios were seen");
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("4K", 4096), ("1M", 1 << 20), ("16M", 16 << 20)]
        {
            assert_eq!(parse_size(text).expect("a size"), bytes);
            assert_eq!(size_name(bytes), text);
        }
        for text in ["", "K", "17M", "-1", "4k", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn lanes_spread_the_connections_with_data() {
        let traffic =
            Traffic::Roles { heavy_every: 4, in_flight: 1, in_flight_mib_max: 1, ping_ms: 1 };
        let heavy: Vec<u16> = (0..30).step_by(4).map(|i| traffic.lane(i, 8)).collect();
        assert_eq!(heavy, [0, 1, 2, 3, 4, 5, 6, 7]);
        let by_turn: Vec<usize> = (0..30).step_by(4).map(|i| i % 8).collect();
        assert_eq!(by_turn, [0, 4, 0, 4, 0, 4, 0, 4]);
    }

    #[test]
    fn large_blocks_are_fewer_in_flight() {
        let traffic =
            Traffic::Roles { heavy_every: 4, in_flight: 16, in_flight_mib_max: 4, ping_ms: 1 };
        let all = [(0, 128), (4 << 10, 128), (256 << 10, 128), (1 << 20, 32), (16 << 20, 8)];
        for (block, in_flight) in all {
            assert_eq!(traffic.with_blocks(block).in_flight(30), in_flight, "{block} bytes");
        }
        let unbounded = Traffic::Even { in_flight: 3, in_flight_mib_max: unbounded() };
        assert_eq!(unbounded.with_blocks(1 << 20).in_flight(10), 30);
    }

    #[test]
    fn service_times_add_up() {
        let times = ServiceTimes {
            locked_us_per_message: 20.0,
            locked_us_per_kib_in: 32.0,
            locked_us_per_kib_out: 0.0,
            free_us_per_message: 380.0,
            free_us_per_kib_out: 32.0,
        };
        assert_eq!((times.locked_ns(0, 65536), times.free_ns(65536)), (20_000, 2_428_000));
        assert_eq!((times.locked_ns(65536, 0), times.free_ns(0)), (2_068_000, 380_000));
    }
}
