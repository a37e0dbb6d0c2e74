//! `cargo xtask numbers`: fio on a mount of a fresh 2+1 cluster, with the CPU that each operation
//! took.
//!
//! Contract: measures, and asserts nothing. Each cell is run several times in turn, and the table
//! shows medians. CPU is that of the whole machine (from /proc/stat), so everything is in it: fio,
//! kernel, client, daemons, and whatever else ran; and of the client's and the daemons' processes
//! beside it.

use crate::cluster::{Cluster, layout::Spec};
use crate::error::{Context, Outcome, fail};
use crate::exec::{self, Interrupt};
use crate::workspace;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// fio's workload and block size of each cell.
const CELLS: [(&str, &str); 6] = [
    ("randread", "4k"),
    ("randwrite", "4k"),
    ("randread", "64k"),
    ("randwrite", "64k"),
    ("randread", "1m"),
    ("randwrite", "1m"),
];
/// Jobs, and bytes of each job's file in MiB.
const JOBS: u64 = 4;
const FILE_MIB: u64 = 256;

/// How long and how often.
#[derive(clap::Args, Clone, Debug)]
pub struct NumbersArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Runs of each cell; the table shows medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// One run of a cell.
#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    mb_per_s: f64,
    mean_us: f64,
    p99_us: f64,
    machine_us: f64,
    client_us: f64,
    daemons_us: f64,
}

/// Measures and prints a table in Markdown.
///
/// # Errors
/// When a program fails. What was started is stopped.
pub fn run(args: &NumbersArgs, interrupt: &Interrupt) -> Outcome {
    let binaries = workspace::build_release(interrupt)?;
    let base = workspace::target_dir(interrupt)?;
    std::fs::create_dir_all(&base).doing(|| format!("cannot make {}", base.display()))?;
    let dir = tempfile::Builder::new()
        .prefix("numbers-")
        .tempdir_in(&base)
        .doing(|| "cannot make a directory")?;
    let mount = dir.path().join("mnt");
    let spec = Spec { mount: Some(mount.clone()), ..Spec::new(&dir.path().join("cluster")) };
    let cluster = Cluster::up(&spec, &binaries, interrupt)?;
    let outcome = measure(&cluster, &mount, args, interrupt);
    let down = cluster.down(interrupt);
    cluster.kill_all();
    outcome.and(down)
}

fn measure(cluster: &Cluster, mount: &Path, args: &NumbersArgs, interrupt: &Interrupt) -> Outcome {
    println!("writing {JOBS} files of {FILE_MIB} MiB");
    fio(mount, &["--rw=write", "--bs=1m"], interrupt)?;
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); CELLS.len()];
    for run in 1..=args.runs {
        for (cell, (rw, bs)) in CELLS.iter().enumerate() {
            let sample = sample(cluster, mount, rw, bs, args.seconds, interrupt)?;
            println!(
                "run {run}: {rw} {bs}: {:.0} IOPS, {:.0} us of the machine each",
                sample.iops, sample.machine_us
            );
            samples[cell].push(sample);
        }
    }
    println!(
        "\n| cell | IOPS | MB/s | mean us | p99 us | CPU us per op: machine | client | daemons |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for ((rw, bs), runs) in CELLS.iter().zip(&samples) {
        let m = |of: fn(&Sample) -> f64| median(runs.iter().map(of).collect());
        println!(
            "| {rw} {bs} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
            m(|s| s.iops),
            m(|s| s.mb_per_s),
            m(|s| s.mean_us),
            m(|s| s.p99_us),
            m(|s| s.machine_us),
            m(|s| s.client_us),
            m(|s| s.daemons_us)
        );
    }
    Ok(())
}

fn sample(
    cluster: &Cluster,
    mount: &Path,
    rw: &str,
    bs: &str,
    seconds: u64,
    interrupt: &Interrupt,
) -> Outcome<Sample> {
    let before = cpu(cluster)?;
    let (rw_option, bs_option) = (format!("--rw={rw}"), format!("--bs={bs}"));
    let runtime = format!("--runtime={seconds}");
    let result = fio(mount, &[&rw_option, &bs_option, "--time_based", &runtime], interrupt)?;
    let after = cpu(cluster)?;
    let job = &result["jobs"][0][if rw.contains("read") { "read" } else { "write" }];
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
    let ops = number(&job["total_ios"]).max(1.0);
    let each = |of: fn(&Cpu) -> f64| (of(&after) - of(&before)) * 1e6 / ops;
    Ok(Sample {
        iops: number(&job["iops"]),
        mb_per_s: number(&job["bw_bytes"]) / 1e6,
        mean_us: number(&job["clat_ns"]["mean"]) / 1e3,
        p99_us: number(&job["clat_ns"]["percentile"]["99.000000"]) / 1e3,
        machine_us: each(|c| c.machine),
        client_us: each(|c| c.client),
        daemons_us: each(|c| c.daemons),
    })
}

/// One fio over the files; its JSON.
fn fio(mount: &Path, options: &[&str], interrupt: &Interrupt) -> Outcome<serde_json::Value> {
    let mut command = Command::new("fio");
    command.args([
        "--name=cell",
        "--filename_format=f.$jobnum",
        "--direct=1",
        "--ioengine=libaio",
        "--iodepth=8",
    ]);
    command.args(["--randrepeat=0", "--norandommap", "--group_reporting", "--output-format=json"]);
    command.arg(format!("--directory={}", mount.display())).arg(format!("--numjobs={JOBS}"));
    command.arg(format!("--size={FILE_MIB}m")).args(options);
    let run = exec::run_ok(&mut command, Duration::from_secs(300), interrupt)?;
    // fio may print notes before the JSON.
    let json = run.stdout.find('{').map_or("", |at| &run.stdout[at..]);
    serde_json::from_str(json).doing(|| "fio did not print JSON")
}

/// CPU seconds used so far.
struct Cpu {
    machine: f64,
    client: f64,
    daemons: f64,
}

fn cpu(cluster: &Cluster) -> Outcome<Cpu> {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let stat = std::fs::read_to_string("/proc/stat").doing(|| "cannot read /proc/stat")?;
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or("")
        .split_whitespace()
        .skip(1)
        .filter_map(|f| f.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq: all but the idle ones
    let [user, nice, system, _, _, irq, softirq, ..] = fields[..] else {
        return fail("/proc/stat looks strange");
    };
    let mut cpu =
        Cpu { machine: (user + nice + system + irq + softirq) / ticks, client: 0.0, daemons: 0.0 };
    for daemon in cluster.all() {
        let Some(pid) = daemon.pid() else { continue };
        let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let text = std::fs::read_to_string(&path).doing(|| format!("cannot read {path}"))?;
        let after_name = text.rsplit(')').next().unwrap_or("");
        // utime and stime are fields 14 and 15, counted from the pid
        let used: f64 = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|f| f.parse::<f64>().ok())
            .sum();
        if daemon.name == "mount" {
            cpu.client += used / ticks
        } else {
            cpu.daemons += used / ticks
        }
    }
    Ok(cpu)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
