//! The operator's command: how is the cluster, and what is in it.
//!
//! * [`monitor`]: one question to the monitor. [`status`], [`table`]: its state, for programs and
//!   for people.
//! * [`events`]: what happened of late.
//! * [`config`]: settings of running daemons. [`scrub`]: checking what is on the disks.
//! * [`object`]: named objects. [`transfer`]: files and pipes, to and from which they go.
//! * [`volume`]: disks of virtual machines. [`nbd`]: the server that gives them out.
//! * [`locks`], [`profile`], [`top`]: where threads wait, where time goes and what workers do,
//!   asked of each daemon and client by [`telemetry`].
//! * [`history`]: the last requests of a mount.
//! * [`confirm`]: asks before what cannot be taken back.
//! * [`error`]: what can go wrong, and the exit code for it.
//!
//! Knows nothing of FUSE and disks. Start reading at [`run`].
#![forbid(unsafe_code)]

mod config;
mod confirm;
mod error;
mod events;
mod history;
mod locks;
mod monitor;
mod nbd;
mod object;
mod output;
mod pool;
mod profile;
mod scrub;
mod status;
mod table;
mod telemetry;
mod top;
mod transfer;
mod volume;
mod watch;

use clap::{Parser, Subcommand};
use error::OperatorError;
use protocol::OsdId;
use protocol::monitor::{ClusterStatus, Health, MonitorReply, MonitorRequest};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Shows and uses a Trefoil cluster
#[derive(Parser)]
#[command(name = "trefoil", version = env!("TREFOIL_VERSION"), after_help = error::EXIT_CODES)]
struct Cli {
    /// Where the monitor listens: a name or IP address, and a port if it is not 7400
    #[arg(
        long,
        env = "TREFOIL_MONITOR",
        default_value = "127.0.0.1",
        global = true,
        value_name = "ADDR"
    )]
    monitor: String,
    /// How long to wait for the cluster, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600), global = true)]
    timeout: u64,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Health, storage daemons, placement groups, space, clients
    Status {
        /// As JSON, in a shape that stays
        #[arg(long)]
        json: bool,
    },
    /// Health alone, and why, by code; the exit code tells it to scripts and to Nagios: 0 ok, 1
    /// degraded, 2 down, 3 not known
    Health {
        /// Line by line, since when, and what can be done
        #[arg(value_parser = ["detail"])]
        detail: Option<String>,
        /// Say nothing
        #[arg(short, long, conflicts_with_all = ["detail", "json"])]
        quiet: bool,
        /// As JSON, in a shape that stays
        #[arg(long, conflicts_with = "detail")]
        json: bool,
    },
    /// What happened of late: OSDs that came and went, clients, health
    Events(events::EventsArgs),
    /// Named objects
    #[command(subcommand)]
    Object(object::ObjectCommand),
    /// Storage daemons
    #[command(subcommand)]
    Osd(OsdCommand),
    /// Where threads wait for each other: the locks of daemons and mounts
    Locks(locks::LocksArgs),
    /// The last requests of a mount, one by one, where its option op_history is on
    History(history::HistoryArgs),
    /// How long operations take, from FUSE down to the disk
    Profile(profile::ProfileArgs),
    /// What the workers of daemons and mounts do now
    Top(top::TopArgs),
    /// Pools
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    /// Settings of a running daemon
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Volumes: disks of virtual machines
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// Volumes by NBD, as qemu and others speak it
    #[command(subcommand)]
    Nbd(nbd::NbdCommand),
    /// Checks what is on the disks, repairs what it can, and names what it cannot
    Scrub(scrub::ScrubArgs),
}

#[derive(Subcommand)]
enum OsdCommand {
    /// Lists them
    Ls,
    /// Lets one whose disk is lost start on an empty one, once, to be filled again from the others
    Replace {
        /// Which: osd.N. It must be down
        #[arg(value_parser = scrub::parse_osd)]
        osd: OsdId,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

/// Where the cluster is, and how long to wait for it.
struct Cluster {
    monitor: String,
    timeout: Duration,
}

impl Cluster {
    fn ask(&self, request: &MonitorRequest) -> Result<MonitorReply, OperatorError> {
        monitor::ask(&self.monitor, request, self.timeout)
    }

    fn status(&self) -> Result<ClusterStatus, OperatorError> {
        match self.ask(&MonitorRequest::Status)? {
            MonitorReply::Status(status) => Ok(*status),
            other => Err(OperatorError::unexpected(&other)),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Off unless asked for, but where a command serves: what matters to the operator is in the
    // error.
    let usual = if matches!(cli.command, Command::Nbd(_)) { "info" } else { "off" };
    let filter = std::env::var("TREFOIL_LOG").unwrap_or_else(|_| usual.into());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .init();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output wants no more of it.
        Err(OperatorError::ClosedPipe) => ExitCode::SUCCESS,
        // The answer, not a failure, and told already.
        Err(answer @ OperatorError::Unhealthy(_)) => ExitCode::from(answer.exit_code()),
        Err(error) => {
            eprintln!("trefoil: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn replace(cluster: &Cluster, osd: OsdId, yes: bool) -> Result<(), OperatorError> {
    let status = cluster.status()?;
    // The monitor refuses for one that is up or unknown, without anybody being asked.
    let found = status.osds.iter().find(|known| known.id == osd && !known.up);
    if let (Some(found), false) = (found, yes) {
        confirm::ask(&table::stake(found, &status))?;
    }
    match cluster.ask(&MonitorRequest::ReplaceOsd { osd })? {
        MonitorReply::Done(_) => output::line(&format!(
            "{osd} may start on an empty disk, once; it will be filled again from the others"
        )),
        MonitorReply::Refused(why) => Err(OperatorError::Refused(why)),
        other => Err(OperatorError::unexpected(&other)),
    }
}

/// How much of the health is told.
enum Told {
    Nothing,
    Summary,
    Detail,
    Json,
}

fn health(cluster: &Cluster, told: Told) -> Result<(), OperatorError> {
    let status = cluster.status()?;
    match told {
        Told::Nothing => {}
        Told::Summary => output::text(&table::health_report(&status, false))?,
        Told::Detail => output::text(&table::health_report(&status, true))?,
        Told::Json => output::line(&status::health_to_json(&status))?,
    }
    match status.health {
        Health::Ok => Ok(()),
        worse => Err(OperatorError::Unhealthy(worse)),
    }
}

fn run(cli: Cli) -> Result<(), OperatorError> {
    let cluster = Cluster { monitor: cli.monitor, timeout: Duration::from_secs(cli.timeout) };
    match cli.command {
        Command::Status { json: true } => output::line(&status::to_json(&cluster.status()?)),
        Command::Status { json: false } => output::text(&table::status(&cluster.status()?)),
        Command::Health { quiet: true, .. } => health(&cluster, Told::Nothing),
        Command::Health { json: true, .. } => health(&cluster, Told::Json),
        Command::Health { detail: Some(_), .. } => health(&cluster, Told::Detail),
        Command::Health { .. } => health(&cluster, Told::Summary),
        Command::Events(args) => events::run(&cluster, &args),
        Command::Osd(OsdCommand::Ls) => output::text(&table::osds(&cluster.status()?.osds)),
        Command::Osd(OsdCommand::Replace { osd, yes }) => replace(&cluster, osd, yes),
        Command::Locks(args) => locks::run(&cluster, &args),
        Command::History(args) => history::run(&cluster, &args),
        Command::Profile(args) => profile::run(&cluster, &args),
        Command::Top(args) => top::run(&cluster, &args),
        Command::Pool(command) => pool::run(&cluster, command),
        Command::Config(command) => config::run(&cluster, command),
        Command::Scrub(args) => scrub::run(&cluster, &args),
        Command::Object(command) => object::run(&cluster, command),
        Command::Volume(command) => volume::run(&cluster, command),
        Command::Nbd(command) => nbd::run(&cluster, command),
    }
}
