//! `osd-daemon`: runs a whole Trefoil cluster, or one role of it, until SIGINT or SIGTERM.
//!
//! Prints a line `ready: ROLE ADDRESS` on standard output for each role that serves; logs go to
//! standard error. Exit status: 0 after a clean stop, 1 when something could not start or stop, 2
//! for a bad command line.

use clap::Parser;
use logging::CountedLog;
use osd_daemon::admin::Log;
use osd_daemon::config::{Config, Settings, page};
use osd_daemon::roles;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::error::Error;
use std::io::IsTerminal as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The storage daemon of Trefoil. Without arguments: a whole cluster (three OSDs, monitor, metadata
/// service) in one process, with its data under ./trefoil-data.
#[derive(Parser, Debug)]
#[command(name = "osd-daemon", version = env!("TREFOIL_VERSION"))]
struct Cli {
    /// TOML file with any of the keys below, with _ for -
    #[arg(long, env = "TREFOIL_CONFIG")]
    config: Option<PathBuf>,
    /// Prints docs/use/configuration.md
    #[arg(long, hide = true)]
    markdown_settings: bool,
    /// The program's own name, as `cargo run osd-daemon` passes it on
    #[arg(hide = true, value_parser = ["osd-daemon"])]
    itself: Option<String>,
    #[command(flatten)]
    settings: Settings,
}

/// Gives freed memory back to the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("osd-daemon: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), Box<dyn Error>> {
    if cli.markdown_settings {
        print!("{}", page::page());
        return Ok(());
    }
    // Connections and fragment files need descriptors; the soft limit is for programs that use
    // `select`.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let file = cli.config.as_deref().map(Settings::from_file).transpose()?.unwrap_or_default();
    let mut config = Config::new(cli.settings.or(file))?;
    // So that everything that names it says which one.
    config.data_dir = std::path::absolute(&config.data_dir)?;
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log)?;
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(CountedLog::on_stderr());
    // Colours are for a terminal.
    let subscriber = subscriber.with_ansi(std::io::stderr().is_terminal());
    let subscriber = subscriber.with_filter_reloading();
    let reload = subscriber.reload_handle();
    subscriber.init();
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let log = Log::new(config.log.clone(), move |filter| {
        let filter =
            tracing_subscriber::EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
        reload.reload(filter).map_err(|error| error.to_string())
    });
    // Registered before anything starts, so that an early Ctrl-C is a clean stop too.
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&cancel))?;
    }
    let running = match roles::start(&config, Some(&log), &cancel) {
        Err(_) if cancel.load(Ordering::Acquire) => return Ok(()),
        started => started?,
    };
    announce(&config, &running);
    signals.forever().next();
    tracing::info!("stopping");
    running.stop();
    Ok(())
}

/// Says what serves where, and how to mount it. A closed standard output is no reason to stop.
fn announce(config: &Config, running: &roles::Running) {
    let mut out = std::io::stdout().lock();
    for (name, addr) in running.addresses() {
        let _ = writeln!(out, "ready: {name} {addr}");
    }
    if let Some(status) = running.status() {
        let beside = std::env::current_exe().ok().map(|path| path.with_file_name("fuse-client"));
        let beside = beside.filter(|path| path.exists());
        // Built from sources, the daemon alone may have been; installed, the client is in the path.
        let hint = if beside.is_some() {
            ""
        } else {
            " (if it is not built yet: cargo build --release -p fuse-client)"
        };
        let client = beside.unwrap_or_else(|| "fuse-client".into());
        let taken =
            || running.addresses().find(|(name, _)| name == "monitor").map(|(_, addr)| addr.into());
        let is_chosen = config.monitor_addr.port() != Some(0);
        let monitor =
            if is_chosen { None } else { taken() }.unwrap_or_else(|| config.monitor_addr.clone());
        let (dir, epoch, health) = (config.data_dir.display(), status.epoch.get(), status.health);
        let new = if running.is_new() { "new cluster" } else { "cluster" };
        let _ = writeln!(
            out,
            "{new} {} in {dir}: map epoch {epoch}, health {health:?}",
            status.cluster
        );
        let _ = writeln!(out, "mount it with: {} mount {monitor} DIR{hint}", client.display());
    }
    let _ = out.flush();
}

/// An error with its causes, in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
