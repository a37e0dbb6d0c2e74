//! `trefoil nbd serve`: a volume for qemu and whatever else speaks NBD.

use crate::error::OperatorError;
use crate::{Cluster, output, volume as volumes_of};
use clap::{Args, Subcommand};
use messenger::address::HostPort;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use volume::nbd::{Ended, Listener, Server};
use volume::{Access, VolumeError, VolumeName};

/// The port that IANA has given NBD.
const NBD_PORT: u16 = 10809;

/// What to do with NBD.
#[derive(Subcommand)]
pub enum NbdCommand {
    /// Serves a volume until SIGTERM or Ctrl-C; prints `ready:` and its URI for each place
    Serve(ServeArgs),
}

/// What to serve, and where.
#[derive(Args)]
pub struct ServeArgs {
    /// Which volume
    name: VolumeName,
    /// At a Unix socket, made here; who may write to it has the volume
    #[arg(long, value_name = "PATH", required_unless_present = "listen")]
    socket: Option<PathBuf>,
    /// At a TCP address, and a port if it is not 10809: without encryption, and for whoever reaches
    /// it
    #[arg(long, value_name = "ADDR")]
    listen: Option<HostPort>,
    /// For reading only; then others may have it open for reading, too
    #[arg(long)]
    read_only: bool,
    /// Take the volume away from whoever has it open: what that one still writes is refused
    #[arg(long)]
    steal: bool,
    /// How many seconds an operation waits for the cluster before the guest gets an error; 0 for
    /// ever
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    io_timeout: u64,
}

/// What the command waits for.
enum Event {
    Stop,
    Ended(Ended),
}

/// Does it.
///
/// # Errors
/// No such volume, one that is open elsewhere, or taken away meanwhile; sockets; the cluster.
pub fn run(cluster: &Cluster, command: NbdCommand) -> Result<(), OperatorError> {
    let NbdCommand::Serve(args) = command;
    // Before the volume is taken: where nobody can connect nothing is to be served.
    let listeners = listeners(&args)?;
    let uris =
        listeners.iter().map(|l| l.uri(args.name.as_str())).collect::<Result<Vec<_>, _>>()?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(VolumeError::local("cannot wait for signals"))?;
    let what = format!("nbd {}", args.name);
    let volumes = volumes_of::connect(cluster, &what, Duration::from_secs(args.io_timeout))?;
    let access = if args.read_only { Access::Read } else { Access::Write };
    let volume = volumes.open(&args.name, access, args.steal)?;
    let (sender, events) = mpsc::channel();
    let stop = sender.clone();
    let waiting = move || {
        for _ in signals.forever() {
            // The command may be ending.
            let _ = stop.send(Event::Stop);
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(waiting)
        .map_err(VolumeError::local("no thread"))?;
    let server =
        Server::start(volume, listeners, move |ended| drop(sender.send(Event::Ended(ended))))?;
    uris.iter().try_for_each(|uri| output::line(&format!("ready: {uri}")))?;
    match events.recv() {
        Ok(Event::Ended(Ended::Taken(error))) => Err(error.into()),
        Ok(Event::Stop) | Err(_) => {
            let stopped = server.stop();
            stopped.and(volumes.close()).map_err(OperatorError::from)
        }
    }
}

fn listeners(args: &ServeArgs) -> Result<Vec<Listener>, OperatorError> {
    let mut found = Vec::new();
    if let Some(path) = &args.socket {
        let path =
            std::path::absolute(path).map_err(VolumeError::local(path.display().to_string()))?;
        found.push(Listener::unix(&path)?);
    }
    if let Some(addr) = &args.listen {
        let resolved = addr.resolve(NBD_PORT).map_err(VolumeError::local(addr.to_string()))?;
        for addr in resolved {
            found.push(Listener::tcp(addr)?);
        }
    }
    Ok(found)
}
