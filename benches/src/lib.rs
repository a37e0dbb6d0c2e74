//! Criterion benches and side-by-side runs.
//!
//! What it is: the runs that compare mappings of connections to workers over real sockets
//! ([`contention`]), with their scenarios, statistics, figures and reports; the daemon with its
//! path cut ([`datapath`]); what telemetry costs ([`overhead`]); what traffic classes are worth
//! ([`classes`]); and what it costs to keep shards alike ([`consistency`]). What it is not: a test
//! of speed; nothing here asserts a time.
//!
//! Start reading at `scenario` for what is measured, `runner` for how, `model` for what is computed
//! instead.

pub mod classes;
pub mod consistency;
pub mod contention;
mod daemon;
pub mod datapath;
mod error;
mod figures;
pub mod histogram;
mod load;
pub mod machine;
mod model;
pub mod overhead;
mod report;
mod runner;
mod scenario;
mod server;
pub mod stats;
mod table;
mod targets;
mod telemetry;
