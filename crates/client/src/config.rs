//! Settings of a client, each with its unit and default.
//!
//! Contract: plain values; [`ClientConfig::checked`] says what does not make sense. Names that Ceph
//! has are Ceph's.

use crate::error::ClientError;
use messenger::buffer::PoolConfig;
use messenger::{HistoryMode, RuntimeConfig};
use protocol::ClusterId;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Which k shards a read asks when more than k could answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ReadPolicy {
    /// The data shards that hold the range: nothing is decoded while all are there.
    #[default]
    Systematic,
    /// k shards in turn, from one read to the next (as GlusterFS).
    RoundRobin,
    /// k shards chosen by the file's id (as GlusterFS's `gfid-hash`).
    Hash,
    /// The k shards with the least expected latency.
    Fastest,
}

impl ReadPolicy {
    /// Every policy with its name in configuration.
    pub const ALL: [(&'static str, ReadPolicy); 4] = [
        ("systematic", ReadPolicy::Systematic),
        ("round-robin", ReadPolicy::RoundRobin),
        ("hash", ReadPolicy::Hash),
        ("fastest", ReadPolicy::Fastest),
    ];
}

impl fmt::Display for ReadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            Self::ALL.iter().find(|(_, policy)| policy == self).map_or("unknown", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for ReadPolicy {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy).ok_or_else(|| {
            ClientError::Config(format!(
                "read policy {text:?} is unknown: choose systematic, round-robin, hash or fastest"
            ))
        })
    }
}

/// How a client behaves. Make one with [`ClientConfig::new`] and change what differs.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the monitor listens: `HOST` or `HOST:PORT`, see [`messenger::address`].
    pub monitor: String,
    /// The cluster that it must be; zero takes any. Default zero.
    pub cluster: ClusterId,
    /// For the operator's list of clients: program, machine, mount point.
    pub name: String,
    /// Worker threads. Default: 1 below 8 CPUs, else a quarter of them, at most 8: a 4 KiB
    /// operation costs a worker microseconds, and more threads than the load needs only wake each
    /// other up.
    pub workers: usize,
    /// How long an operation waits for daemons that it cannot do without before it fails with EIO.
    /// Zero: for ever. Default 30 s. This is for more dead OSDs than parity: with one dead OSD
    /// reads are answered by the others at once and writes go on as soon as the monitor has marked
    /// it down, within 5 s.
    pub timeout: Duration,
    /// Reads and writes of objects under way at once; further ones wait. Default 1024.
    pub objecter_inflight_ops: usize,
    /// Bytes of them. Default 100 MiB.
    pub objecter_inflight_op_bytes: usize,
    /// Bytes kept until all shards have them on disk; beyond half of it shards are asked to sync,
    /// at it writers wait. Default 128 MiB, counted with parity.
    pub client_unstable_bytes_max: usize,
    /// Count locks, operations and times. Default true; off only to measure what it costs.
    pub telemetry: bool,
    /// Which operations are remembered. Default off.
    pub op_history: HistoryMode,
    /// Buffer pools, each with a lock of its own. Default 4; 1 is GlusterFS's old iobuf pool.
    pub buffer_pools: usize,
    /// For how long a worker without work looks for more before it sleeps, while its waits are
    /// mostly that short; zero: not at all. Default 100 us: what a request to a process of the same
    /// host takes.
    pub busy_poll: Duration,
    /// Which shards answer reads.
    pub read_policy: ReadPolicy,
    /// A read that a shard has not answered after this long also asks another one. Zero: never.
    /// Default 500 ms: well above a healthy disk's tail, well below the time after which an OSD is
    /// marked down.
    pub hedge_delay: Duration,
}

impl ClientConfig {
    /// The defaults for a cluster and a name.
    pub fn new(monitor: impl Into<String>, name: impl Into<String>) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            monitor: monitor.into(),
            cluster: ClusterId::default(),
            name: name.into(),
            workers: if cpus < 8 { 1 } else { (cpus / 4).min(8) },
            timeout: Duration::from_secs(30),
            objecter_inflight_ops: 1024,
            objecter_inflight_op_bytes: 100 << 20,
            client_unstable_bytes_max: 128 << 20,
            telemetry: true,
            op_history: HistoryMode::Off,
            buffer_pools: PoolConfig::default().pools,
            busy_poll: RuntimeConfig::BUSY_POLL,
            read_policy: ReadPolicy::Systematic,
            hedge_delay: Duration::from_millis(500),
        }
    }

    /// The configuration, if it makes sense.
    ///
    /// # Errors
    /// [`ClientError::Config`] with what to change.
    pub fn checked(self) -> Result<Self, ClientError> {
        let complaint = if self.workers == 0 || self.workers > 256 {
            Some("client_workers must be 1..=256")
        } else if self.buffer_pools == 0 {
            Some("buffer_pools must be at least 1")
        } else if !(1..=INFLIGHT_OPS_MAX).contains(&self.objecter_inflight_ops) {
            Some("objecter_inflight_ops must be 1..=1000000")
        } else if !(INFLIGHT_BYTES_MIN..=INFLIGHT_BYTES_MAX)
            .contains(&self.objecter_inflight_op_bytes)
        {
            Some("objecter_inflight_op_bytes must be 4 MiB to 64 GiB")
        } else if self.client_unstable_bytes_max < INFLIGHT_BYTES_MIN {
            Some("client_unstable_bytes_max must be at least 4 MiB")
        } else {
            None
        };
        match complaint {
            Some(text) => Err(ClientError::Config(text.to_owned())),
            None => Ok(self),
        }
    }
}

/// Least bound on bytes: a write of the largest piece, with parity, must fit.
pub const INFLIGHT_BYTES_MIN: usize = 4 << 20;
/// Greatest: more memory than a client has.
pub const INFLIGHT_BYTES_MAX: usize = 64 << 30;
/// Most operations that may be under way at once.
pub const INFLIGHT_OPS_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_names() {
        for (name, policy) in ReadPolicy::ALL {
            assert_eq!(name.parse::<ReadPolicy>().expect("a name of the list"), policy);
            assert_eq!(policy.to_string(), name);
        }
        assert!("fast".parse::<ReadPolicy>().is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        let config = ClientConfig::new("localhost:1", "test");
        assert!(config.clone().checked().is_ok());
        assert!(ClientConfig { workers: 0, ..config.clone() }.checked().is_err());
        assert!(ClientConfig { objecter_inflight_ops: 0, ..config.clone() }.checked().is_err());
        for ops in [128, 8192, INFLIGHT_OPS_MAX] {
            assert!(
                ClientConfig { objecter_inflight_ops: ops, ..config.clone() }.checked().is_ok()
            );
        }
        assert!(
            ClientConfig { objecter_inflight_ops: INFLIGHT_OPS_MAX + 1, ..config.clone() }
                .checked()
                .is_err()
        );
        for bytes in [10_485_760, 1_048_576_000] {
            assert!(
                ClientConfig { objecter_inflight_op_bytes: bytes, ..config.clone() }
                    .checked()
                    .is_ok()
            );
        }
        assert!(ClientConfig { client_unstable_bytes_max: 1, ..config }.checked().is_err());
    }
}
