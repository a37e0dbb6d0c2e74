//! What the study of "Ceph single parameter" changes and measures: its Table 5.2, its sixteen
//! figures, and what its section 5.3 says of them.

/// One of the ten parameters.
pub(super) struct Parameter {
    /// Its name, here as in Ceph.
    pub key: &'static str,
    /// Ceph's default, which configuration A has.
    pub default: u64,
    /// Whose it is.
    pub side: Side,
}

/// Whose a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Of the storage daemons: a line of their configuration.
    Daemon,
    /// Of whoever serves a volume: an option of `trefoil nbd serve`.
    Volume,
}

const fn parameter(key: &'static str, default: u64, side: Side) -> Parameter {
    Parameter { key, default, side }
}

/// Table 5.2, first two columns.
pub(super) const PARAMETERS: [Parameter; 10] = [
    parameter("osd_op_threads", 2, Side::Daemon),
    parameter("osd_disk_threads", 1, Side::Daemon),
    parameter("filestore_op_threads", 2, Side::Daemon),
    parameter("filestore_wbthrottle_xfs_bytes_start_flusher", 41_943_040, Side::Daemon),
    parameter("filestore_wbthrottle_xfs_ios_start_flusher", 500, Side::Daemon),
    parameter("filestore_wbthrottle_xfs_inodes_start_flusher", 500, Side::Daemon),
    parameter("filestore_queue_max_bytes", 104_857_600, Side::Daemon),
    parameter("filestore_queue_committing_max_bytes", 104_857_600, Side::Daemon),
    parameter("objecter_inflight_op_bytes", 104_857_600, Side::Volume),
    parameter("objecter_inflight_ops", 1024, Side::Volume),
];

/// Table 5.2, last column: the letter, which parameter, its value.
const CHANGES: [(&str, usize, u64); 23] = [
    ("B", 0, 1),
    ("C", 0, 4),
    ("D", 0, 8),
    ("E", 1, 2),
    ("F", 1, 4),
    ("G", 1, 8),
    ("H", 2, 1),
    ("I", 2, 4),
    ("J", 2, 8),
    ("K", 3, 4_194_304),
    ("L", 3, 419_430_400),
    ("M", 4, 5000),
    ("N", 4, 50),
    ("O", 5, 5000),
    ("P", 5, 50),
    ("Q", 6, 1_048_576_000),
    ("R", 6, 10_485_760),
    ("S", 7, 1_048_576_000),
    ("T", 7, 10_485_760),
    ("U", 8, 1_048_576_000),
    ("V", 8, 10_485_760),
    ("W", 9, 8192),
    ("X", 9, 128),
];

/// The configuration that all are compared with.
pub(super) const BASE: &str = "A";
/// The same again, at the end: what changes between the two is noise.
pub(super) const AGAIN: &str = "A2";
/// What a cluster has that nobody configures.
pub(super) const OWN: &str = "own";

/// A configuration of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// The paper's letter, or [`AGAIN`] or [`OWN`].
    pub name: &'static str,
    /// What differs from A, if anything does: which parameter, and its value.
    pub change: Option<(usize, u64)>,
}

impl Config {
    /// All, in the order of the study: A to X, our own defaults, A again.
    pub fn all() -> Vec<Config> {
        let plain = |name| Config { name, change: None };
        let changes = CHANGES.map(|(name, at, value)| Config { name, change: Some((at, value)) });
        std::iter::once(plain(BASE)).chain(changes).chain([plain(OWN), plain(AGAIN)]).collect()
    }

    /// Parameters of one side with their values; none of [`OWN`].
    pub fn values(&self, side: Side) -> Vec<(&'static str, u64)> {
        let all = PARAMETERS.iter().enumerate().filter(|(_, p)| p.side == side);
        let value = |(at, p): (usize, &Parameter)| match self.change {
            Some((changed, value)) if changed == at => (p.key, value),
            _ => (p.key, p.default),
        };
        if self.name == OWN { Vec::new() } else { all.map(value).collect() }
    }

    /// What it is, in words.
    pub fn words(&self) -> String {
        match (self.name, self.change) {
            (_, Some((at, value))) => format!("{} = {value}", PARAMETERS[at].key),
            (OWN, None) => "the defaults here".to_owned(),
            (AGAIN, None) => "A once more, at the end".to_owned(),
            (_, None) => "Ceph's defaults".to_owned(),
        }
    }
}

/// A workload of the study, shown in one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// As on the command line.
    pub name: &'static str,
    /// As of fio.
    pub rw: &'static str,
    /// As of fio.
    pub block: &'static str,
    /// The figure of the paper.
    pub figure: &'static str,
    /// What is counted.
    pub unit: Unit,
}

/// What a figure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Operations per second.
    Iops,
    /// 10^6 bytes per second.
    MegabytesPerSecond,
}

impl Unit {
    /// In a label.
    pub fn words(self) -> &'static str {
        match self {
            Unit::Iops => "IOPS",
            Unit::MegabytesPerSecond => "MB/s",
        }
    }
}

const fn cell(
    name: &'static str,
    rw: &'static str,
    block: &'static str,
    figure: &'static str,
    unit: Unit,
) -> Cell {
    Cell { name, rw, block, figure, unit }
}

/// Figures 5.1 to 5.16.
pub(super) const CELLS: [Cell; 16] = [
    cell("randread-4k", "randread", "4k", "5.1", Unit::Iops),
    cell("randwrite-4k", "randwrite", "4k", "5.2", Unit::Iops),
    cell("read-4k", "read", "4k", "5.3", Unit::Iops),
    cell("write-4k", "write", "4k", "5.4", Unit::Iops),
    cell("randread-128k", "randread", "128k", "5.5", Unit::Iops),
    cell("randwrite-128k", "randwrite", "128k", "5.6", Unit::Iops),
    cell("read-128k", "read", "128k", "5.7", Unit::Iops),
    cell("write-128k", "write", "128k", "5.8", Unit::Iops),
    cell("randread-1m", "randread", "1m", "5.9", Unit::MegabytesPerSecond),
    cell("randwrite-1m", "randwrite", "1m", "5.10", Unit::MegabytesPerSecond),
    cell("read-1m", "read", "1m", "5.11", Unit::MegabytesPerSecond),
    cell("write-1m", "write", "1m", "5.12", Unit::MegabytesPerSecond),
    cell("randread-32m", "randread", "32m", "5.13", Unit::MegabytesPerSecond),
    cell("randwrite-32m", "randwrite", "32m", "5.14", Unit::MegabytesPerSecond),
    cell("read-32m", "read", "32m", "5.15", Unit::MegabytesPerSecond),
    cell("write-32m", "write", "32m", "5.16", Unit::MegabytesPerSecond),
];

/// What the paper says of a configuration.
pub(super) struct Finding {
    /// In which cell.
    pub cell: &'static str,
    /// Of which configuration.
    pub config: &'static str,
    /// Beside which.
    pub beside: &'static str,
    /// The quotient of the two that the paper's words come to.
    pub ratio: f64,
}

const fn finding(cell: &'static str, config: &'static str, ratio: f64) -> Finding {
    Finding { cell, config, beside: BASE, ratio }
}

/// Findings of section 5.3 that have a number.
pub(super) const FINDINGS: [Finding; 16] = [
    finding("randread-4k", "B", 0.75),
    finding("read-4k", "F", 0.49),
    finding("write-4k", "N", 0.75),
    finding("randread-128k", "K", 1.08),
    finding("randwrite-128k", "K", 1.14),
    Finding { cell: "randwrite-128k", config: "K", beside: "L", ratio: 1.3 },
    Finding { cell: "read-128k", config: "O", beside: "Q", ratio: 0.91 },
    finding("write-128k", "K", 0.835),
    finding("randread-1m", "F", 1.10),
    finding("randread-1m", "J", 0.87),
    finding("randwrite-1m", "K", 1.445),
    finding("read-1m", "W", 0.92),
    finding("write-1m", "K", 1.28),
    finding("read-32m", "C", 0.86),
    finding("write-32m", "R", 1.06),
    finding("write-32m", "L", 0.855),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_letter_changes_one_parameter_of_ten() {
        let all = Config::all();
        let letters: String = all.iter().filter(|c| c.name.len() == 1).map(|c| c.name).collect();
        assert_eq!(letters, "ABCDEFGHIJKLMNOPQRSTUVWX");
        let both =
            |config: &Config| [config.values(Side::Daemon), config.values(Side::Volume)].concat();
        let base = both(&all[0]);
        assert_eq!(base.len(), PARAMETERS.len());
        for config in &all {
            let differ = both(config).iter().zip(&base).filter(|(a, b)| a != b).count();
            let expected = usize::from(config.change.is_some());
            assert_eq!(differ, expected, "{}: {}", config.name, config.words());
        }
        assert!(both(&all[24]).is_empty() && all[24].name == OWN);
    }

    #[test]
    fn findings_are_of_what_is_measured() {
        let all = Config::all();
        for finding in &FINDINGS {
            assert!(CELLS.iter().any(|cell| cell.name == finding.cell), "{}", finding.cell);
            for name in [finding.config, finding.beside] {
                assert!(all.iter().any(|config| config.name == name), "{name}");
            }
        }
    }
}
