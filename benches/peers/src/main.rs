//! `cargo xtask bench peers`: the messenger, gRPC and a bare blocking echo, over the same loopback
//! in one run.
//!
//! * [`measure`]: what a client counts, and what both processes' CPU time was meanwhile.
//! * [`ours`], [`grpc`], [`echo`]: the three systems, each with a server and a client.
//! * [`report`]: medians, targets, figure.
//!
//! Contract: client and server are processes of their own, started anew for each cell. A client
//! sends an 8-byte request that names a size, and the server answers with so many bytes. The
//! messenger and gRPC have one thread at each end; the echo has one per connection at each end, and
//! neither batches nor checks anything.

mod echo;
mod error;
mod grpc;
mod measure;
mod ours;
mod report;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use error::PeerError;
use measure::{Measured, Shape};

#[derive(Parser)]
#[command(name = "peers", about = "The messenger beside gRPC and a bare blocking echo")]
struct Args {
    /// One short run of each cell
    #[arg(long)]
    quick: bool,
    /// Name of the run
    #[arg(long, default_value = "peers")]
    name: String,
    /// Directory to write to; benches/runs/<date>-<name> unless given
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// Serves until stdin ends; prints its address
    #[command(hide = true)]
    Serve { system: System },
    /// Loads a server and prints what it measured, as JSON
    #[command(hide = true)]
    Load {
        system: System,
        addr: SocketAddr,
        /// Process of the server
        server: u32,
        /// A [`Shape`] as JSON
        shape: String,
    },
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
    Messenger,
    Grpc,
    Echo,
}

impl System {
    const ALL: [System; 3] = [System::Messenger, System::Grpc, System::Echo];

    fn name(self) -> &'static str {
        match self {
            System::Messenger => "messenger",
            System::Grpc => "grpc",
            System::Echo => "echo",
        }
    }
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), PeerError> {
    match args.part {
        Some(Part::Serve { system }) => serve(system),
        Some(Part::Load { system, addr, server, shape }) => {
            let shape: Shape = serde_json::from_str(&shape)?;
            let measured = match system {
                System::Messenger => ours::load(addr, server, shape),
                System::Grpc => grpc::load(addr, server, shape),
                System::Echo => echo::load(addr, server, shape),
            }?;
            println!("{}", serde_json::to_string(&measured)?);
            Ok(())
        }
        None => compare(&args),
    }
}

/// Serves until the parent closes our stdin, or has gone.
fn serve(system: System) -> Result<(), PeerError> {
    let until_told = |addr: SocketAddr| {
        println!("{addr}");
        std::io::stdout().flush()?;
        std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
    };
    match system {
        System::Messenger => ours::serve(until_told),
        System::Grpc => grpc::serve(until_told),
        System::Echo => echo::serve(until_told),
    }
}

/// All cells; the systems take turns within each run.
fn compare(args: &Args) -> Result<(), PeerError> {
    let machine = benches::machine::Machine::look();
    let (runs, warm_up_ms, measure_ms) = if args.quick { (1, 20, 60) } else { (3, 150, 450) };
    let mut measured: Vec<Measured> = Vec::new();
    for size in [0u32, 4 << 10, 64 << 10, 1 << 20] {
        for connections in [1, 8] {
            for in_flight in [1, 16] {
                let shape = Shape { size, connections, in_flight, warm_up_ms, measure_ms };
                for run in 0..runs {
                    for system in System::ALL {
                        let one =
                            Measured { system: system.name().into(), run, ..cell(system, shape)? };
                        println!(
                            "{:9} {size:7} B, {connections} connections, {in_flight:2} in flight: {:8.0} messages/s, {:6.1} us of CPU",
                            one.system,
                            one.messages_per_s,
                            one.client_cpu_us + one.server_cpu_us
                        );
                        measured.push(one);
                    }
                }
            }
        }
    }
    let dir = match &args.out {
        Some(dir) => dir.clone(),
        None => benches::machine::free_dir(&report::home().join("runs"), &args.name),
    };
    report::write(&dir, &args.name, &machine, &measured)?;
    println!("report: {}", dir.join("report.md").display());
    Ok(())
}

/// A server and a client of one system, as processes.
fn cell(system: System, shape: Shape) -> Result<Measured, PeerError> {
    let this = std::env::current_exe()?;
    let mut server = Guard(
        Command::new(&this)
            .args(["serve", system.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let mut addr = String::new();
    let stdout =
        server.0.stdout.take().ok_or(PeerError::Child("the server's output is not here"))?;
    BufReader::new(stdout).read_line(&mut addr)?;
    let pid = server.0.id().to_string();
    let shape = serde_json::to_string(&shape)?;
    let out = Command::new(&this)
        .args(["load", system.name(), addr.trim(), &pid, &shape])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !out.status.success() {
        return Err(PeerError::Child("the client failed"));
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// Ends a child: closes its stdin, then kills what does not end.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        for _ in 0..200 {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // A server that serves after its stdin has ended hangs; what it says then is of no use.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
