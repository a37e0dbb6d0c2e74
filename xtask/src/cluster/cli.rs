//! `cargo xtask cluster up | status | kill | stop | start | down`.

use super::Cluster;
use super::layout::Spec;
use crate::error::Outcome;
use crate::exec::{self, Interrupt};
use crate::workspace;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// What to do with the cluster in a directory.
#[derive(Subcommand)]
pub enum ClusterTask {
    /// Builds, and starts the cluster in DIR, a new one or the one that is there; returns when it
    /// serves
    Up {
        #[command(flatten)]
        place: Place,
        /// Number of storage daemons of a new cluster
        #[arg(long, default_value_t = 3)]
        osds: u32,
        /// Mount it here, too
        #[arg(long)]
        mount: Option<PathBuf>,
        /// Data shards of a new cluster's pool
        #[arg(long, default_value_t = 2)]
        k: u8,
        /// Parity shards of a new cluster's pool
        #[arg(long, default_value_t = 1)]
        m: u8,
    },
    /// Shows which processes run, and what the monitor says
    Status {
        #[command(flatten)]
        place: Place,
        /// Only what the monitor says, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Sends SIGKILL to one process: monitor, mds, osd-0, osd-1, ..., mount
    Kill(OneOf),
    /// Stops one process cleanly
    Stop(OneOf),
    /// Starts one process again; returns when it serves
    Start(OneOf),
    /// Unmounts and stops everything; the data stays
    Down {
        #[command(flatten)]
        place: Place,
    },
}

/// The directory of a cluster.
#[derive(Args)]
pub struct Place {
    /// The cluster's directory
    #[arg(long)]
    dir: PathBuf,
}

/// A process of a cluster.
#[derive(Args)]
pub struct OneOf {
    #[command(flatten)]
    place: Place,
    /// Its name
    name: String,
}

/// Does it.
///
/// # Errors
/// With what the developer can do.
pub fn run(task: ClusterTask, interrupt: &Interrupt) -> Outcome {
    match task {
        ClusterTask::Up { place, osds, mount, k, m } => {
            let binaries = workspace::build_release(interrupt)?;
            let spec = Spec { osds, mount, k, m, ..Spec::new(&place.dir) };
            let cluster = Cluster::up(&spec, &binaries, interrupt)?;
            describe(&cluster);
            Ok(())
        }
        ClusterTask::Status { place, json } => status(&Cluster::open(&place.dir)?, json, interrupt),
        ClusterTask::Kill(one) => Cluster::open(&one.place.dir)?.kill(&one.name),
        ClusterTask::Stop(one) => Cluster::open(&one.place.dir)?.stop(&one.name, interrupt),
        ClusterTask::Start(one) => Cluster::open(&one.place.dir)?.start(&one.name, interrupt),
        ClusterTask::Down { place } => Cluster::open(&place.dir)?.down(interrupt),
    }
}

fn status(cluster: &Cluster, json: bool, interrupt: &Interrupt) -> Outcome {
    if !json {
        describe(cluster);
    }
    let mut command = cluster.command("trefoil");
    command.arg("status").args(json.then_some("--json"));
    exec::run_visible(&mut command, Duration::from_secs(30), interrupt)
}

fn describe(cluster: &Cluster) {
    for daemon in cluster.all() {
        let state =
            daemon.pid().map_or_else(|| "not running".into(), |pid| format!("process {pid}"));
        println!("{:10} {state:16} {}", daemon.name, daemon.log.display());
    }
    println!("monitor    {}", cluster.layout().monitor);
    if let Some(point) = cluster.mount_point() {
        println!("mount      {}", point.display());
    }
}
