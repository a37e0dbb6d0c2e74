//! Configuration: one set of keys, each a flag, an environment variable and a line of the TOML
//! file.
//!
//! Contract: a flag wins over the environment, the environment over the file, the file over the
//! default. An unknown key is an error that names the nearest known one. Nothing here opens
//! anything but the file.

mod monitors;
pub mod page;
mod throttles;

pub use monitors::Monitors;

use crate::osd::StoreConfig;
use clap::{Args, ValueEnum};
use ec_store::fullness::FullRatios;
use ec_store::pg::shard::PgShard;
use ec_store::throttle::Throttles;
use messenger::address::HostPort;
use messenger::{ClassOrder, RuntimeConfig};
use placement::threads::{MappingError, MaxEvents, PlacementConfig};
use protocol::MONITOR_PORT;
use protocol::monitor::{ObjectStore, PathCut};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Where the metadata service listens, unless told otherwise.
pub const MDS_PORT: u16 = 7401;
/// Where storage daemon 0 listens, unless told otherwise; the others behind it.
pub const OSD_PORT: u16 = 7410;
/// Storage daemons of a cluster, at most.
const OSDS_MAX: u32 = 1000;
/// Ten years: longer intervals are mistakes.
const SECONDS_MAX: u64 = 10 * 366 * 86_400;
/// The least limit of the rate of rebuilding, in bytes a second: with less a volume would not
/// become whole.
const RECOVERY_BYTES_PER_SEC_MIN: u64 = 64 << 10;
/// Of a dirty list: it stands in every checkpoint of a journal, some 20 bytes for each object.
const DIRTY_OBJECTS_MAX: u32 = 1_000_000;

/// A part of the cluster that a process can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The cluster map, liveness and sessions.
    Monitor,
    /// The metadata service: directories, attributes, leases.
    Mds,
    /// A storage daemon.
    Osd,
}

/// Declares the settings once: the struct that flags, environment and file fill, and how two of
/// them merge.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $(#[arg($($arg:tt)*)])? $name:ident: $type:ty, $env:literal;)*) => {
        /// What was set somewhere; `None` where nothing was said.
        #[derive(Clone, Debug, Default, Args, Deserialize, Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            $($(#[doc = $doc])+ #[arg(long, env = $env $(, $($arg)*)?)] pub $name: Option<$type>,)*
        }

        impl Settings {
            /// All keys, in order.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Each key with what it means; the default stands in brackets at the end.
            pub const HELP: &'static [(&'static str, &'static str)] = &[$((stringify!($name), concat!($($doc),+))),*];

            /// The Rust type of each key's value.
            const TYPES: &'static [&'static str] = &[$(stringify!($type)),*];

            /// `self` where it says something, else `other`.
            #[must_use]
            pub fn or(self, other: Settings) -> Settings {
                Settings { $($name: self.$name.or(other.$name)),* }
            }
        }
    };
}

settings! {
    /// Directory of all data of this process [default: ./trefoil-data]
    data_dir: PathBuf, "TREFOIL_DATA_DIR";
    /// What this process runs [default: all three roles]
    #[arg(value_delimiter = ',', num_args = 1)]
    roles: Vec<Role>, "TREFOIL_ROLES";
    /// Where the monitor is reached: HOST or HOST:PORT, a name or an IP address [default:
    /// 127.0.0.1:7400]
    monitor_addr: HostPort, "TREFOIL_MONITOR_ADDR";
    /// Where the monitor listens; 0.0.0.0 for every address of this machine [default: monitor_addr]
    monitor_listen: HostPort, "TREFOIL_MONITOR_LISTEN";
    /// Where each of three or five monitors is reached, in the same order for all of them, as
    /// monitor_addr is given; with commas between them, or a list in the file [default: there is
    /// one monitor, at monitor_addr]
    #[arg(value_delimiter = ',', num_args = 1)]
    monitors: Vec<HostPort>, "TREFOIL_MONITORS";
    /// Which of monitors this process runs, counted from 0 [default: the one that monitor_listen or
    /// monitor_addr names]
    monitor_id: u16, "TREFOIL_MONITOR_ID";
    /// Where the metadata service listens; 0.0.0.0 needs mds_advertise [default: 127.0.0.1:7401]
    mds_listen: HostPort, "TREFOIL_MDS_LISTEN";
    /// Where others reach the metadata service; without a port, that of mds_listen [default:
    /// mds_listen]
    mds_advertise: HostPort, "TREFOIL_MDS_ADVERTISE";
    /// Number of the only storage daemon in this process [default: all of 0..osd_count]
    osd_id: u32, "TREFOIL_OSD_ID";
    /// Where storage daemon 0 (or osd_id) listens; the next ones take the next ports; 0.0.0.0 needs
    /// osd_advertise [default: 127.0.0.1:7410 + id]
    osd_listen: HostPort, "TREFOIL_OSD_LISTEN";
    /// Where others reach it, and so on as osd_listen; without a port, that of osd_listen [default:
    /// osd_listen]
    osd_advertise: HostPort, "TREFOIL_OSD_ADVERTISE";
    /// Name of this machine, the failure domain [default: the host name]
    host: String, "TREFOIL_HOST";
    /// Number of storage daemons of a new cluster, 1 to 1000: counts where the monitor runs, and
    /// where one process runs all of them [default: 3]
    osd_count: u32, "TREFOIL_OSD_COUNT";
    /// Data shards of a new cluster's first pool, 1 to 16 [default: 2]
    pool_k: u8, "TREFOIL_POOL_K";
    /// Parity shards of a new cluster's first pool, 0 to 15 [default: 1]
    pool_m: u8, "TREFOIL_POOL_M";
    /// Striping chunk of a new cluster's first pool, in bytes, a power of two from 512 [default:
    /// 512]
    pool_chunk_bytes: u32, "TREFOIL_POOL_CHUNK_BYTES";
    /// Placement groups of a new cluster's first pool [default: 32]
    pool_pg_num: u32, "TREFOIL_POOL_PG_NUM";
    /// Cores of a storage daemon: threads that each own a share of its PGs [default: CPUs / 4, at
    /// least 1]
    osd_op_threads: u16, "TREFOIL_OSD_OP_THREADS";
    /// Most threads for blocking disk I/O of a storage daemon, 1 to 64: syncs, and reads that miss
    /// the page cache; each is started when work waits, and ends after 10 s without any [default:
    /// 16]
    filestore_op_threads: u16, "TREFOIL_FILESTORE_OP_THREADS";
    /// Those of filestore_op_threads that background work takes at a time, 1 to 64: scrubs,
    /// rebuilding, returning space; each core takes one at least [default: 1]
    osd_disk_threads: u16, "TREFOIL_OSD_DISK_THREADS";
    /// Messenger workers of a storage daemon, osd_op_threads to 256: the first ones are its cores,
    /// the others read and write sockets for them [default: osd_op_threads]
    ms_workers: u16, "TREFOIL_MS_WORKERS";
    /// Which workers serve a connection of a storage daemon: round-robin, traffic-aware, shared,
    /// lcam, handoff or core-affine [default: core-affine]
    ms_mapping: String, "TREFOIL_MS_MAPPING";
    /// Time between adjustments under traffic-aware and lcam, in milliseconds, 1 to 3600000
    /// [default: 3000]
    ms_placement_interval_ms: u64, "TREFOIL_MS_PLACEMENT_INTERVAL_MS";
    /// Under lcam, share of that interval that a connection's workers may spend waiting for its
    /// lock, above 0 and up to 1 [default: 0.1]
    ms_lock_threshold: f64, "TREFOIL_MS_LOCK_THRESHOLD";
    /// How lcam decides: as-printed (the paper's Algorithm 1) or damped (rests under a steady load)
    /// [default: as-printed]
    ms_lcam_rule: String, "TREFOIL_MS_LCAM_RULE";
    /// Events that a messenger worker takes at once: auto (connections / workers, rounded up) or 1
    /// to 65536 [default: auto]
    ms_max_events: String, "TREFOIL_MS_MAX_EVENTS";
    /// Shares of traffic classes in a storage daemon's I/O threads and cores, each 1 to 1000: I map
    /// updates, II clients, III rebuilding, scrubs and returning space; or off, in the order of
    /// arrival [default: off]
    ms_class_weights: String, "TREFOIL_MS_CLASS_WEIGHTS";
    /// Buffer pools of a storage daemon, 1 to 64, each with a lock of its own; 1 is GlusterFS's old
    /// iobuf pool [default: 4]
    ms_buffer_pools: u16, "TREFOIL_MS_BUFFER_POOLS";
    /// Microseconds for which a messenger worker of a storage daemon or of the metadata service,
    /// that has no work, looks for more before it sleeps, while its waits are mostly that short, 0
    /// to 10000; 0: not at all [default: 100]
    ms_busy_poll_us: u64, "TREFOIL_MS_BUSY_POLL_US";
    /// Most sessions that each role takes from others, those without TCP included; more are refused
    /// and told why. Not more than the open files that the process may have; one whose data goes
    /// through shared memory takes three [default: 10000]
    ms_connections_max: u32, "TREFOIL_MS_CONNECTIONS_MAX";
    /// Peers on the same host come through a Unix socket, named after the address that they dial,
    /// instead of the loopback device [default: true]
    ms_local_sockets: bool, "TREFOIL_MS_LOCAL_SOCKETS";
    /// Data of peers that came through a Unix socket stays in memory that both processes map,
    /// instead of being copied through the socket; of a storage daemon [default: true]
    ms_shared_memory: bool, "TREFOIL_MS_SHARED_MEMORY";
    /// Time in which a connection carries nothing but pings after which it is closed until its
    /// client has something to send, in seconds, 10 to 86400, for every role; 0: never. Connections
    /// over which something is awaited stay [default: 0]
    ms_idle_timeout_s: u64, "TREFOIL_MS_IDLE_TIMEOUT_S";
    /// Time without a heartbeat after which a storage daemon is down, in milliseconds [default:
    /// 2000]
    osd_heartbeat_grace_ms: u64, "TREFOIL_OSD_HEARTBEAT_GRACE_MS";
    /// Time without a renewal after which a client's session is dead, in milliseconds; below 10000
    /// a cut of some seconds may end one, since a client counts its connection as dead after 3 s
    /// [default: 10000]
    session_ttl_ms: u64, "TREFOIL_SESSION_TTL_MS";
    /// Longest time between syncs of a journal with unsynced records, in milliseconds [default:
    /// 200]
    journal_sync_interval_ms: u64, "TREFOIL_JOURNAL_SYNC_INTERVAL_MS";
    /// Most bytes of journalled writes of a storage daemon that wait in memory to be applied, 1 MiB
    /// to 1 TiB; at the bound writers wait [default: 104857600]
    filestore_queue_max_bytes: u64, "TREFOIL_FILESTORE_QUEUE_MAX_BYTES";
    /// Most bytes of a storage daemon that wait for one sync, 1 MiB to 1 TiB: there the sync begins
    /// before journal_sync_interval_ms, and writers wait while the one before it runs [default:
    /// 104857600]
    filestore_queue_committing_max_bytes: u64, "TREFOIL_FILESTORE_QUEUE_COMMITTING_MAX_BYTES";
    /// Bytes of changes of fragment files of a storage daemon at which they begin to be written
    /// back, 64 KiB to 1 TiB; also filestore_wbthrottle_xfs_bytes_start_flusher [default:
    /// 134217728]
    #[arg(alias = "filestore-wbthrottle-xfs-bytes-start-flusher")]
    filestore_wbthrottle_bytes_start_flusher: u64, "TREFOIL_FILESTORE_WBTHROTTLE_BYTES_START_FLUSHER";
    /// Changes at which they do, 1 to 10000000; also filestore_wbthrottle_xfs_ios_start_flusher
    /// [default: 1000000]
    #[arg(alias = "filestore-wbthrottle-xfs-ios-start-flusher")]
    filestore_wbthrottle_ios_start_flusher: u64, "TREFOIL_FILESTORE_WBTHROTTLE_IOS_START_FLUSHER";
    /// Changed files at which they do, 1 to 100000; also
    /// filestore_wbthrottle_xfs_inodes_start_flusher [default: 10000]
    #[arg(alias = "filestore-wbthrottle-xfs-inodes-start-flusher")]
    filestore_wbthrottle_inodes_start_flusher: u64, "TREFOIL_FILESTORE_WBTHROTTLE_INODES_START_FLUSHER";
    /// Longest time for which names and attributes that the metadata service was told and nobody
    /// fsynced may be lost with the power of its machine, in milliseconds, 10 to 3600000 [default:
    /// 5000]
    mds_sync_interval_ms: u64, "TREFOIL_MDS_SYNC_INTERVAL_MS";
    /// Most bytes of a core's journal, and of its unapplied records in memory; at the bound writers
    /// wait [default: 512 MiB]
    journal_bytes_max: u64, "TREFOIL_JOURNAL_BYTES_MAX";
    /// Writes that replace whole slots of so many bytes of a fragment go to free places of its file
    /// at once, and not through the journal: a power of two from 4096 to 1048576; 0: through the
    /// journal, as all others [default: 32768, which is 64 KiB of a file with pool_k = 2]
    fragment_slot_bytes: u32, "TREFOIL_FRAGMENT_SLOT_BYTES";
    /// Share of a disk at which status warns that it is nearly full, 0.5 to 0.99 [default: 0.85,
    /// but at most the next]
    mon_osd_nearfull_ratio: f64, "TREFOIL_MON_OSD_NEARFULL_RATIO";
    /// Share of a disk at which no whole shard is rebuilt onto it, 0.5 to 0.99 [default: 0.90, but
    /// at most the next]
    mon_osd_backfillfull_ratio: f64, "TREFOIL_MON_OSD_BACKFILLFULL_RATIO";
    /// Share of a disk at which it counts as full and writers get ENOSPC, 0.5 to 0.99 [default:
    /// 0.95]
    mon_osd_full_ratio: f64, "TREFOIL_MON_OSD_FULL_RATIO";
    /// Where storage daemons keep objects: file, or memstore, which LOSES EVERYTHING when it stops
    /// and is for measuring [default: file]
    osd_objectstore: String, "TREFOIL_OSD_OBJECTSTORE";
    /// Most memory of a storage daemon with memstore, journals included, in bytes; then writers are
    /// told that the disk is full [default: 1 GiB]
    memstore_bytes_max: u64, "TREFOIL_MEMSTORE_BYTES_MAX";
    /// Where an operation stops and is answered as if it were done: none, msgr or msgr+pg. Anything
    /// but none DROPS WRITES, is for measuring, and needs osd_objectstore = memstore [default:
    /// none]
    osd_path_cut: String, "TREFOIL_OSD_PATH_CUT";
    /// Where `/metrics` is served over HTTP for Prometheus, of all roles of this process [default:
    /// nowhere]
    http_listen: SocketAddr, "TREFOIL_HTTP_LISTEN";
    /// Count locks and the time of workers; off only to measure what that costs [default: true]
    telemetry: bool, "TREFOIL_TELEMETRY";
    /// Time between checks of all checksums of a placement group, in seconds; 0: only when asked
    /// [default: 86400]
    osd_scrub_min_interval_s: u64, "TREFOIL_OSD_SCRUB_MIN_INTERVAL_S";
    /// Time between comparisons of its shards with each other, too, in seconds; 0: only when asked
    /// [default: 604800]
    osd_deep_scrub_interval_s: u64, "TREFOIL_OSD_DEEP_SCRUB_INTERVAL_S";
    /// Most bytes of each shard that a storage daemon's scrubs read in a second [default: 32 MiB]
    osd_scrub_bytes_per_sec: u64, "TREFOIL_OSD_SCRUB_BYTES_PER_SEC";
    /// Most placement groups of a storage daemon that are rebuilt at a time; each core takes one at
    /// least [default: 8]
    osd_recovery_max_active: u16, "TREFOIL_OSD_RECOVERY_MAX_ACTIVE";
    /// Most bytes that a storage daemon rebuilds, or compares instead, on its disk in a second; 0:
    /// no limit. Objects that clients write meanwhile do not wait for it [default: 0]
    osd_recovery_max_bytes_per_sec: u64, "TREFOIL_OSD_RECOVERY_MAX_BYTES_PER_SEC";
    /// Most objects of a placement group that are remembered of what an absent shard misses; beyond
    /// it the shard is compared with the others as a whole when it is back [default: 10000]
    osd_dirty_objects_max: u32, "TREFOIL_OSD_DIRTY_OBJECTS_MAX";
    /// Log filter, as of RUST_LOG [default: info]
    log: String, "TREFOIL_LOG";
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not as it should be.
    #[error("in the configuration file {}: {message}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What and where, with a suggestion.
        message: String,
    },
    /// A value is out of its range.
    #[error("{key} = {value}: {allowed}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What was said.
        value: String,
        /// What may be said.
        allowed: String,
    },
}

/// A storage daemon of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OsdPlace {
    /// Its number.
    pub id: u32,
    /// Where it listens.
    pub listen: HostPort,
    /// Where it is reached, if that is not where it listens.
    pub advertise: Option<HostPort>,
}

/// The configuration of a process, complete and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// All of it as it was said.
    pub settings: Settings,
    /// Directory of all data of this process.
    pub data_dir: PathBuf,
    /// What this process runs.
    pub roles: Vec<Role>,
    /// Where the monitor is reached.
    pub monitor_addr: HostPort,
    /// Where the monitor listens.
    pub monitor_listen: HostPort,
    /// All monitors, if there are several.
    pub monitors: Option<Monitors>,
    /// Where the metadata service listens.
    pub mds_listen: HostPort,
    /// Where it is reached, if that is not where it listens.
    pub mds_advertise: Option<HostPort>,
    /// The storage daemons of this process.
    pub osds: Vec<OsdPlace>,
    /// Name of this machine.
    pub host: String,
    /// Storage daemons of a new cluster.
    pub osd_count: u32,
    /// Code of a new cluster's first pool.
    pub profile: protocol::Profile,
    /// PGs of a new cluster's first pool.
    pub pool_pg_num: u32,
    /// Cores of a storage daemon.
    pub osd_op_threads: u16,
    /// Threads for blocking I/O of a storage daemon, at most.
    pub filestore_op_threads: u16,
    /// Those of them that background work takes at a time.
    pub osd_disk_threads: u16,
    /// Bounds on what a storage daemon has not applied or synced, and when write-back begins.
    pub throttles: Throttles,
    /// Messenger workers of a storage daemon.
    pub ms_workers: u16,
    /// Which of them serve a connection.
    pub ms_placement: PlacementConfig,
    /// Events that one of them takes at once.
    pub ms_max_events: MaxEvents,
    /// How traffic classes share its I/O threads and cores.
    pub ms_class_order: ClassOrder,
    /// Buffer pools of a storage daemon.
    pub ms_buffer_pools: u16,
    /// Workers without work look for more for so long before they sleep.
    pub ms_busy_poll: Duration,
    /// Sessions that each role takes.
    pub ms_connections_max: u32,
    /// Peers on the same host come through a Unix socket.
    pub ms_local_sockets: bool,
    /// Their data goes through shared memory.
    pub ms_shared_memory: bool,
    /// Time after which a connection that carries nothing is closed; `None`: never.
    pub ms_idle_timeout: Option<Duration>,
    /// Grace of heartbeats, in milliseconds.
    pub osd_heartbeat_grace_ms: u64,
    /// Life of a session without a renewal, in milliseconds.
    pub session_ttl_ms: u64,
    /// Time between syncs of a journal, in milliseconds.
    pub journal_sync_interval_ms: u64,
    /// Time between syncs of the metadata, in milliseconds.
    pub mds_sync_interval_ms: u64,
    /// Bytes of a core's journal.
    pub journal_bytes_max: u64,
    /// Bytes of a slot of a fragment; 0: nothing is placed.
    pub fragment_slot_bytes: u32,
    /// Shares of a disk at which it is nearly full, too full for backfill, and full.
    pub ratios: FullRatios,
    /// Where storage daemons keep objects.
    pub store: StoreConfig,
    /// Where an operation stops.
    pub path_cut: PathCut,
    /// Where metrics are served.
    pub http_listen: Option<SocketAddr>,
    /// Count locks and times.
    pub telemetry: bool,
    /// Time between light scrubs of a PG, in seconds; 0: never.
    pub osd_scrub_min_interval_s: u64,
    /// Time between deep scrubs of a PG, in seconds; 0: never.
    pub osd_deep_scrub_interval_s: u64,
    /// Rate of scrubs, in bytes of each shard a second.
    pub osd_scrub_bytes_per_sec: u64,
    /// PGs that an OSD rebuilds at a time.
    pub osd_recovery_max_active: u16,
    /// Rate of rebuilding, in bytes a second; 0: no limit.
    pub osd_recovery_max_bytes_per_sec: u64,
    /// Objects of a PG in the dirty list of an absent shard.
    pub osd_dirty_objects_max: u32,
    /// Log filter.
    pub log: String,
}

impl Settings {
    /// The settings in a TOML file.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has a key that does not exist.
    pub fn from_file(path: &Path) -> Result<Settings, ConfigError> {
        let path = path.to_path_buf();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        Settings::from_toml(&text).map_err(|message| ConfigError::Parse { path, message })
    }

    fn from_toml(text: &str) -> Result<Settings, String> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.to_string())?;
        table.keys().try_for_each(|key| Settings::check_key(key))?;
        if table.keys().any(|key| throttles::plain_name(key).is_some()) {
            return throttles::with_plain_names(table)?
                .try_into()
                .map_err(|e: toml::de::Error| e.to_string());
        }
        toml::from_str(text).map_err(|e: toml::de::Error| e.to_string())
    }

    /// The key by the one of its spellings that is in [`Settings::KEYS`], where it has several.
    pub fn plain_key(key: &str) -> Cow<'_, str> {
        throttles::plain_name(key).map_or(Cow::Borrowed(key), Cow::Owned)
    }

    /// Is there such a key?
    ///
    /// # Errors
    /// If not: names the nearest.
    pub fn check_key(key: &str) -> Result<(), String> {
        if Settings::KEYS.contains(&&*Settings::plain_key(key)) {
            return Ok(());
        }
        let nearest = Settings::KEYS
            .iter()
            .min_by_key(|known| strsim::levenshtein(known, key))
            .expect("there are keys");
        Err(format!(
            "unknown key `{key}`; did you mean `{nearest}`? `osd-daemon --help` lists all keys"
        ))
    }

    /// One setting, its value as in the file but that quotes may be left out.
    ///
    /// # Errors
    /// When there is no such key, or the value is not of its type.
    pub fn from_words(key: &str, value: &str) -> Result<Settings, String> {
        Settings::check_key(key)?;
        let key = &*Settings::plain_key(key);
        if value.contains(char::is_control) {
            return Err(format!("{key}: the value must be one line"));
        }
        let quoted =
            toml::Table::from_iter([(key.to_owned(), toml::Value::String(value.to_owned()))]);
        let plain =
            format!("{key} = {value}").parse::<toml::Table>().ok().filter(|table| table.len() == 1);
        let settings = plain.and_then(|table| table.try_into::<Settings>().ok());
        settings.map_or_else(
            || quoted.try_into().map_err(|e| format!("{key} = {value}: {}", e.message())),
            Ok,
        )
    }

    /// What was set, each with its value in a word.
    pub fn words(&self) -> Vec<(String, String)> {
        let table = toml::Table::try_from(self).unwrap_or_default();
        table.into_iter().map(|(key, value)| (key, word(&value))).collect()
    }
}

impl Config {
    /// Fills in the defaults and checks every value.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first value out of its range.
    pub fn new(s: Settings) -> Result<Config, ConfigError> {
        let settings = s.clone();
        let mds_listen = s.mds_listen.clone().unwrap_or_else(|| loopback(MDS_PORT));
        let roles = s.roles.clone().filter(|r| !r.is_empty());
        let roles = roles.unwrap_or_else(|| vec![Role::Monitor, Role::Mds, Role::Osd]);
        let monitors = monitors::of(&s, &roles)?;
        let own = monitors.as_ref().map(|all| &all.list[usize::from(all.own.unwrap_or(0))]);
        // of several, its own is told to nobody but through the list
        let monitor_addr = match (own, monitors.as_ref().and_then(|all| all.own)) {
            (Some(own), Some(_)) => own.clone(),
            (own, _) => {
                (s.monitor_addr.clone().or(own.cloned())).unwrap_or_else(|| loopback(MONITOR_PORT))
            }
        };
        reachable(
            "monitor_addr",
            &monitor_addr,
            "monitor_listen may be 0.0.0.0, and this is the address to dial",
        )?;
        if let (true, None) = (roles.contains(&Role::Mds), &s.mds_advertise) {
            reachable(
                "mds_listen",
                &mds_listen,
                "set mds_advertise to the address at which others reach this machine",
            )?;
        }
        for (key, advertise) in
            [("mds_advertise", &s.mds_advertise), ("osd_advertise", &s.osd_advertise)]
        {
            advertise
                .iter()
                .try_for_each(|address| reachable(key, address, "it must be an address to dial"))?;
        }
        let osds = if roles.contains(&Role::Osd) { osd_places(&s, &roles)? } else { Vec::new() };
        let osd_count = in_range("osd_count", s.osd_count.unwrap_or(3), 1, OSDS_MAX)?;
        let profile = profile(
            s.pool_k.unwrap_or(2),
            s.pool_m.unwrap_or(1),
            s.pool_chunk_bytes.unwrap_or(512),
        )?;
        if u32::from(profile.shards()) > osd_count {
            let allowed = format!(
                "a pool of k + m = {} shards needs at least as many OSDs",
                profile.shards()
            );
            return Err(ConfigError::Value {
                key: "osd_count",
                value: osd_count.to_string(),
                allowed,
            });
        }
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let ms_placement = placement(&s)?;
        let ms_max_events =
            parsed("ms_max_events", s.ms_max_events.as_deref())?.unwrap_or_default();
        let ratios = full_ratios(&s)?;
        let osd_op_threads = s.osd_op_threads.unwrap_or((cpus / 4).max(1) as u16);
        let osd_op_threads = in_range("osd_op_threads", osd_op_threads, 1, 256)?;
        let throttles = throttles::of(&s)?;
        let store = store(s.osd_objectstore.as_deref(), s.memstore_bytes_max, osd_op_threads)?;
        Ok(Config {
            settings,
            data_dir: s.data_dir.unwrap_or_else(|| "trefoil-data".into()),
            roles,
            monitor_listen: s.monitor_listen.unwrap_or_else(|| monitor_addr.clone()),
            monitor_addr,
            monitors,
            mds_listen,
            mds_advertise: s.mds_advertise,
            osds,
            host: s.host.unwrap_or_else(host_name),
            osd_count,
            profile,
            pool_pg_num: in_range("pool_pg_num", s.pool_pg_num.unwrap_or(32), 1, 65_536)?,
            osd_op_threads,
            filestore_op_threads: in_range(
                "filestore_op_threads",
                s.filestore_op_threads.unwrap_or(16),
                1,
                64,
            )?,
            osd_disk_threads: in_range("osd_disk_threads", s.osd_disk_threads.unwrap_or(1), 1, 64)?,
            throttles,
            ms_workers: in_range(
                "ms_workers",
                s.ms_workers.unwrap_or(osd_op_threads),
                osd_op_threads,
                256,
            )?,
            ms_placement,
            ms_max_events,
            ms_class_order: parsed("ms_class_weights", s.ms_class_weights.as_deref())?
                .unwrap_or_default(),
            ms_buffer_pools: in_range("ms_buffer_pools", s.ms_buffer_pools.unwrap_or(4), 1, 64)?,
            ms_busy_poll: busy_poll(s.ms_busy_poll_us)?,
            ms_connections_max: connections_max(s.ms_connections_max)?,
            ms_local_sockets: s.ms_local_sockets.unwrap_or(true),
            ms_shared_memory: s.ms_shared_memory.unwrap_or(true),
            ms_idle_timeout: idle_timeout(s.ms_idle_timeout_s.unwrap_or(0))?,
            osd_heartbeat_grace_ms: in_range(
                "osd_heartbeat_grace_ms",
                s.osd_heartbeat_grace_ms.unwrap_or(2000),
                200,
                600_000,
            )?,
            session_ttl_ms: in_range(
                "session_ttl_ms",
                s.session_ttl_ms.unwrap_or(10_000),
                1000,
                3_600_000,
            )?,
            journal_sync_interval_ms: in_range(
                "journal_sync_interval_ms",
                s.journal_sync_interval_ms.unwrap_or(200),
                1,
                60_000,
            )?,
            mds_sync_interval_ms: in_range(
                "mds_sync_interval_ms",
                s.mds_sync_interval_ms.unwrap_or(5000),
                10,
                3_600_000,
            )?,
            journal_bytes_max: in_range(
                "journal_bytes_max",
                s.journal_bytes_max.unwrap_or(512 << 20),
                64 << 20,
                1 << 40,
            )?,
            fragment_slot_bytes: slot_bytes(s.fragment_slot_bytes.unwrap_or(32 << 10))?,
            ratios,
            store,
            path_cut: path_cut(s.osd_path_cut.as_deref(), store)?,
            http_listen: s.http_listen,
            telemetry: s.telemetry.unwrap_or(true),
            osd_scrub_min_interval_s: in_range(
                "osd_scrub_min_interval_s",
                s.osd_scrub_min_interval_s.unwrap_or(86_400),
                0,
                SECONDS_MAX,
            )?,
            osd_deep_scrub_interval_s: in_range(
                "osd_deep_scrub_interval_s",
                s.osd_deep_scrub_interval_s.unwrap_or(7 * 86_400),
                0,
                SECONDS_MAX,
            )?,
            osd_scrub_bytes_per_sec: in_range(
                "osd_scrub_bytes_per_sec",
                s.osd_scrub_bytes_per_sec.unwrap_or(32 << 20),
                64 << 10,
                1 << 40,
            )?,
            osd_recovery_max_active: in_range(
                "osd_recovery_max_active",
                s.osd_recovery_max_active.unwrap_or(8),
                1,
                1024,
            )?,
            osd_recovery_max_bytes_per_sec: match s.osd_recovery_max_bytes_per_sec {
                None | Some(0) => 0,
                Some(rate) => in_range(
                    "osd_recovery_max_bytes_per_sec",
                    rate,
                    RECOVERY_BYTES_PER_SEC_MIN,
                    1 << 40,
                )?,
            },
            osd_dirty_objects_max: in_range(
                "osd_dirty_objects_max",
                s.osd_dirty_objects_max.unwrap_or(PgShard::DIRTY_OBJECTS_MAX as u32),
                1,
                DIRTY_OBJECTS_MAX,
            )?,
            log: s.log.unwrap_or_else(|| "info".into()),
        })
    }

    /// What an operator should know of settings that are good and may not mean what they meant.
    pub fn warnings(&self) -> Vec<String> {
        let s = &self.settings;
        let renamed = self.roles.contains(&Role::Osd)
            && s.osd_disk_threads.is_some()
            && s.filestore_op_threads.is_none();
        let text = "osd_disk_threads counts the threads of scrubs, rebuilding and returning space; the threads of all \
                    disk I/O, which it once counted, are filestore_op_threads, which is not set";
        renamed.then(|| text.to_owned()).into_iter().collect()
    }

    /// The directory of one role's data.
    pub fn role_dir(&self, role: &str) -> PathBuf {
        self.data_dir.join(role)
    }
}

fn word(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        // With a point or an exponent always, or it is an integer to TOML; not as `NaN`.
        toml::Value::Float(number) => format!("{number:?}").to_lowercase(),
        toml::Value::Boolean(truth) => truth.to_string(),
        toml::Value::Datetime(time) => time.to_string(),
        toml::Value::Array(values) => values.iter().map(word).collect::<Vec<_>>().join(","),
        toml::Value::Table(_) => String::new(),
    }
}

/// The storage daemons of this process: one with a given id, or all, on ports one after the other.
fn osd_places(s: &Settings, roles: &[Role]) -> Result<Vec<OsdPlace>, ConfigError> {
    let count = in_range("osd_count", s.osd_count.unwrap_or(3), 1, OSDS_MAX)?;
    // Elsewhere the monitor knows how many there are, and refuses those that are not members.
    let is_told = roles.contains(&Role::Monitor) || s.osd_count.is_some();
    let end = if is_told { count } else { OSDS_MAX };
    if let Some(id) = s.osd_id.filter(|&id| id >= end) {
        let allowed = if is_told {
            format!("must be below osd_count = {count}")
        } else {
            format!("must be below {end}")
        };
        return Err(value("osd_id", &id, allowed));
    }
    let ids = s.osd_id.map_or(0..count, |id| id..id + 1);
    // At most 7410 + 999.
    let listen = s.osd_listen.clone().unwrap_or_else(|| loopback(OSD_PORT + ids.start as u16));
    if s.osd_advertise.is_none() {
        reachable(
            "osd_listen",
            &listen,
            "set osd_advertise to the address at which others reach this machine",
        )?;
    }
    let base = listen.port().unwrap_or(OSD_PORT + ids.start as u16);
    let place = |id: u32| {
        let step = id - ids.start;
        let advertise = match &s.osd_advertise {
            None => None,
            Some(address) => Some(match address.port() {
                None | Some(0) => address.clone(),
                Some(port) => address.with_port(port_after("osd_advertise", port, step)?),
            }),
        };
        let port = if base == 0 { 0 } else { port_after("osd_listen", base, step)? };
        Ok(OsdPlace { id, listen: listen.with_port(port), advertise })
    };
    ids.clone().map(place).collect()
}

fn port_after(key: &'static str, first: u16, step: u32) -> Result<u16, ConfigError> {
    let port = u16::try_from(u32::from(first) + step);
    port.map_err(|_| {
        value(key, &first, "the ports of all storage daemons must be at most 65535".into())
    })
}

/// Refuses what others cannot dial: they would dial themselves.
fn reachable(key: &'static str, address: &HostPort, instead: &str) -> Result<(), ConfigError> {
    let allowed =
        || format!("others are told this address, and would find themselves there; {instead}");
    if address.is_unspecified() { Err(value(key, address, allowed())) } else { Ok(()) }
}

fn loopback(port: u16) -> HostPort {
    SocketAddr::from(([127, 0, 0, 1], port)).into()
}

/// What a memory must have for each core, in bytes: two journal segments, and as much again for
/// objects.
const MEMSTORE_CORE_BYTES: u64 = 128 << 20;

fn store(
    kind: Option<&str>,
    bytes_max: Option<u64>,
    cores: u16,
) -> Result<StoreConfig, ConfigError> {
    let kind = kind.unwrap_or(ObjectStore::File.as_str());
    match kind.parse().map_err(|e| value("osd_objectstore", &kind, format!("{e}")))? {
        ObjectStore::File => Ok(StoreConfig::File),
        ObjectStore::Memory => {
            let least = u64::from(cores) * MEMSTORE_CORE_BYTES;
            let bytes_max = in_range(
                "memstore_bytes_max",
                bytes_max.unwrap_or(least.max(1 << 30)),
                least,
                1 << 40,
            )?;
            Ok(StoreConfig::Memory { bytes_max })
        }
    }
}

fn path_cut(cut: Option<&str>, store: StoreConfig) -> Result<PathCut, ConfigError> {
    let cut = cut.unwrap_or(PathCut::None.as_str());
    match cut.parse().map_err(|e| value("osd_path_cut", &cut, format!("{e}")))? {
        PathCut::Msgr | PathCut::MsgrPg if store == StoreConfig::File => {
            let allowed =
                "it drops acknowledged writes, so it needs osd_objectstore = \"memstore\"";
            Err(value("osd_path_cut", &cut, allowed.into()))
        }
        cut => Ok(cut),
    }
}

/// Least number of sessions that makes a cluster: OSDs, monitor, metadata service and a few
/// clients.
const CONNECTIONS_MIN: u32 = 16;

/// Each session needs a file descriptor.
fn connections_max(asked: Option<u32>) -> Result<u32, ConfigError> {
    let files = getrlimit(Resource::Nofile)
        .current
        .map_or(u32::MAX, |files| u32::try_from(files).unwrap_or(u32::MAX));
    let Some(asked) = asked else { return Ok(10_000) };
    in_range("ms_connections_max", asked, CONNECTIONS_MIN, files).map_err(|error| match error {
        ConfigError::Value { key, value, allowed } => {
            let allowed = format!(
                "{allowed}, the open files that this process may have (`ulimit -Hn`, LimitNOFILE=)"
            );
            ConfigError::Value { key, value, allowed }
        }
        other => other,
    })
}

/// Shorter times would close connections between the turns of an application.
fn idle_timeout(seconds: u64) -> Result<Option<Duration>, ConfigError> {
    match seconds {
        0 => Ok(None),
        10..=86_400 => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(value("ms_idle_timeout_s", &seconds, "allowed are 0 and 10 to 86400".into())),
    }
}

/// The profile, with the default object size rounded down to whole stripes.
fn profile(k: u8, m: u8, chunk: u32) -> Result<protocol::Profile, ConfigError> {
    let stripe = (u64::from(k) * u64::from(chunk)).max(1);
    let object = protocol::Profile::OBJECT_BYTES_DEFAULT / stripe * stripe;
    protocol::Profile::new(k, m, chunk, object).map_err(|e| {
        value("pool_k, pool_m, pool_chunk_bytes", &format!("{k}, {m}, {chunk}"), e.to_string())
    })
}

fn busy_poll(asked: Option<u64>) -> Result<Duration, ConfigError> {
    let [usual, max] = [RuntimeConfig::BUSY_POLL, RuntimeConfig::BUSY_POLL_MAX]
        .map(|time| time.as_micros() as u64);
    in_range("ms_busy_poll_us", asked.unwrap_or(usual), 0, max).map(Duration::from_micros)
}

/// Which workers serve a connection.
fn placement(s: &Settings) -> Result<PlacementConfig, ConfigError> {
    let default = PlacementConfig::default();
    let config = PlacementConfig {
        mapping: parsed("ms_mapping", s.ms_mapping.as_deref())?.unwrap_or(default.mapping),
        interval: s.ms_placement_interval_ms.map_or(default.interval, Duration::from_millis),
        lock_threshold: s.ms_lock_threshold.unwrap_or(default.lock_threshold),
        lcam_rule: parsed("ms_lcam_rule", s.ms_lcam_rule.as_deref())?.unwrap_or(default.lcam_rule),
    };
    config.check().map_err(|error| match error {
        MappingError::Interval(interval) => {
            value("ms_placement_interval_ms", &interval.as_millis(), error.to_string())
        }
        _ => value("ms_lock_threshold", &config.lock_threshold, error.to_string()),
    })?;
    Ok(config)
}

/// A value that has names of its own, if it was set.
fn parsed<T: FromStr<Err: std::fmt::Display>>(
    key: &'static str,
    text: Option<&str>,
) -> Result<Option<T>, ConfigError> {
    text.map(|text| text.parse().map_err(|error: T::Err| value(key, &text, error.to_string())))
        .transpose()
}

/// The ratios of full disks, in order; a default gives way to what was set.
fn full_ratios(s: &Settings) -> Result<FullRatios, ConfigError> {
    let default = FullRatios::default();
    let below = |key, set: Option<f64>, default: f64, next_key: &str, next: f64| match set {
        Some(ratio) if ratio > next => {
            let allowed = format!("allowed is at most {next_key}, which is {next}");
            Err(ConfigError::Value { key, value: ratio.to_string(), allowed })
        }
        set => in_range(key, set.unwrap_or(default.min(next)), 0.5, 0.99),
    };
    let full =
        in_range("mon_osd_full_ratio", s.mon_osd_full_ratio.unwrap_or(default.full), 0.5, 0.99)?;
    let (key, set) = ("mon_osd_backfillfull_ratio", s.mon_osd_backfillfull_ratio);
    let backfillfull = below(key, set, default.backfillfull, "mon_osd_full_ratio", full)?;
    let (next_key, set) = (key, s.mon_osd_nearfull_ratio);
    let nearfull = below("mon_osd_nearfull_ratio", set, default.nearfull, next_key, backfillfull)?;
    Ok(FullRatios { nearfull, backfillfull, full })
}

fn in_range<T: PartialOrd + Copy + std::fmt::Display>(
    key: &'static str,
    v: T,
    min: T,
    max: T,
) -> Result<T, ConfigError> {
    if (min..=max).contains(&v) {
        Ok(v)
    } else {
        Err(value(key, &v, format!("must be from {min} to {max}")))
    }
}

fn slot_bytes(bytes: u32) -> Result<u32, ConfigError> {
    let is_size = bytes == 0 || bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes);
    let allowed = || "must be 0, or a power of two from 4096 to 1048576".to_owned();
    if is_size { Ok(bytes) } else { Err(value("fragment_slot_bytes", &bytes, allowed())) }
}

fn value(key: &'static str, value: &impl ToString, allowed: String) -> ConfigError {
    ConfigError::Value { key, value: value.to_string(), allowed }
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(test)]
mod tests;
