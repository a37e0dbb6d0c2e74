//! `cargo xtask fuzz`: the targets of `fuzz/`, built with coverage counters by the compiler that
//! builds everything else.
//!
//! Contract: what was learnt stays in `target/fuzz-corpus`, an input that breaks something in
//! `target/fuzz-found`; the error says how to run it again.

use crate::error::{Context, Outcome, ensure, fail};
use crate::exec::{self, Interrupt, Run};
use crate::workspace;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The targets, one for each way in which bytes come from outside.
pub const TARGETS: [&str; 13] = [
    "frame",
    "handshake",
    "hot",
    "control",
    "map",
    "state",
    "journal",
    "replay",
    "fragment",
    "superblock",
    "namespace",
    "http",
    "consensus",
];
/// A target with a planted fault.
const CANARY: &str = "canary";
/// What makes the compiler count edges and comparisons, as libFuzzer reads them.
const COVERAGE: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// What to fuzz.
#[derive(clap::Args)]
pub struct FuzzArgs {
    /// Only this target: frame, handshake, hot, control, map, state, journal, replay, fragment,
    /// superblock, namespace, http, consensus
    target: Option<String>,
    /// For how long each, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Runs the targets one after the other.
///
/// # Errors
/// With the input that broke one.
pub fn run(args: &FuzzArgs, interrupt: &Interrupt) -> Outcome {
    let known = |name: &&String| !TARGETS.contains(&name.as_str());
    if let Some(name) = args.target.as_ref().filter(known) {
        return fail(format!("there is no target {name}; there are: {}", TARGETS.join(", ")));
    }
    let fuzzer = Fuzzer::build(interrupt)?;
    fuzzer.find_canary(interrupt)?;
    for target in
        TARGETS.iter().filter(|target| args.target.as_ref().is_none_or(|name| name == *target))
    {
        println!("{target}: {}", fuzzer.run(target, args.seconds, interrupt)?);
    }
    Ok(())
}

/// The built targets.
pub struct Fuzzer {
    binaries: PathBuf,
    corpus: PathBuf,
    found: PathBuf,
}

impl Fuzzer {
    /// Builds all targets.
    ///
    /// # Errors
    /// When the build fails; the compiler has said why.
    pub fn build(interrupt: &Interrupt) -> Outcome<Fuzzer> {
        let target = workspace::target_dir(interrupt)?;
        let host = host(interrupt)?;
        let mut cargo = Command::new(workspace::cargo());
        // With a target named, build scripts and macros are built without the counters.
        cargo.current_dir(workspace::root().join("fuzz")).args([
            "build",
            "--release",
            "--target",
            &host,
        ]);
        cargo.arg("--target-dir").arg(target.join("fuzz"));
        cargo.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}")).env_remove("RUSTFLAGS");
        exec::run_visible(&mut cargo, exec::NO_DEADLINE, interrupt)?;
        Ok(Fuzzer {
            binaries: target.join("fuzz").join(host).join("release"),
            corpus: target.join("fuzz-corpus"),
            found: target.join("fuzz-found"),
        })
    }

    /// Runs a target for so many seconds; says how many inputs it tried.
    ///
    /// # Errors
    /// When an input broke it, or it tried none.
    pub fn run(&self, target: &str, seconds: u64, interrupt: &Interrupt) -> Outcome<String> {
        let run = self.start(target, seconds, interrupt)?;
        if !run.ok() {
            let input =
                std::fs::read_dir(self.found.join(target)).into_iter().flatten().flatten().next();
            let input =
                input.map_or("(not kept)".into(), |entry| entry.path().display().to_string());
            let binary = self.binaries.join(target);
            return fail(format!("{}\nagain: {} {input}", run.tail(), binary.display()));
        }
        let done = run.stderr.lines().find(|line| line.starts_with("Done ")).map(str::to_owned);
        let done = done.filter(|line| !line.starts_with("Done 0 "));
        ensure!(done.is_some(), "{target} tried no input\n{}", run.tail());
        Ok(done.unwrap_or_default())
    }

    /// Shows that a fault is found.
    ///
    /// # Errors
    /// When the planted one is not.
    pub fn find_canary(&self, interrupt: &Interrupt) -> Outcome {
        let run = self.start(CANARY, 60, interrupt)?;
        ensure!(
            run.stderr.contains("the planted fault"),
            "the planted fault was not found\n{}",
            run.tail()
        );
        Ok(())
    }

    fn start(&self, target: &str, seconds: u64, interrupt: &Interrupt) -> Outcome<Run> {
        let (corpus, found) = (self.corpus.join(target), self.found.join(target));
        // An old input must not be taken for this run's, nor teach the canary where its fault is.
        let _ = std::fs::remove_dir_all(&found);
        if target == CANARY {
            let _ = std::fs::remove_dir_all(&corpus);
        }
        for dir in [&corpus, &found] {
            std::fs::create_dir_all(dir).doing(|| format!("cannot make {}", dir.display()))?;
        }
        let mut command = Command::new(self.binaries.join(target));
        command.arg(format!("-max_total_time={seconds}")).args([
            "-max_len=4096",
            "-rss_limit_mb=2048",
            "-timeout=20",
        ]);
        command.arg(format!("-artifact_prefix={}/", found.display())).arg(&corpus);
        // The end of the output is what is shown: it must hold what the panic said.
        command.env("RUST_BACKTRACE", "0");
        exec::run(&mut command, Duration::from_secs(seconds * 2 + 120), interrupt)
    }
}

/// The compiler's name for this machine.
fn host(interrupt: &Interrupt) -> Outcome<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let run = exec::run_ok(Command::new(rustc).arg("-vV"), Duration::from_secs(60), interrupt)?;
    match run.stdout.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => fail(format!("`rustc -vV` names no host:\n{}", run.stdout)),
    }
}
