//! `cargo xtask demo`: the whole system in about two minutes, each step in plain words.
//!
//! Contract: whatever happens, Ctrl-C included, no process and no mount is left. The exit status is
//! 0 only if every comparison held and every wait ended in time.

use crate::cluster::{Cluster, layout::Spec};
use crate::error::{Context, Outcome, ensure};
use crate::exec::Interrupt;
use crate::tree::{self, Tree};
use crate::workspace;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bounds of the tree, for a demo that people watch to its end.
const FILES_MAX: u64 = 5_000;
const BYTES_MAX: u64 = 150 << 20;
/// No part of the demo takes longer than this, or the mount is taken away from under it.
const STUCK_MAX: Duration = Duration::from_secs(240);
/// How long the load runs before and after the kill.
const LOAD_BEFORE: Duration = Duration::from_secs(3);
const LOAD_AFTER: Duration = Duration::from_secs(8);
/// What the design states: no call hangs longer when a storage daemon dies.
const HANG_STATED: Duration = Duration::from_secs(5);

/// Runs the demo.
///
/// # Errors
/// When anything is not as it should be.
pub fn run(interrupt: &Interrupt) -> Outcome {
    step("Building the daemon, the client and the operator's command (release)");
    let binaries = workspace::build_release(interrupt)?;
    let base = workspace::target_dir(interrupt)?;
    std::fs::create_dir_all(&base).doing(|| format!("cannot make {}", base.display()))?;
    let dir = tempfile::Builder::new()
        .prefix("demo-")
        .tempdir_in(&base)
        .doing(|| "cannot make a directory")?;
    let spec =
        Spec { mount: Some(dir.path().join("mnt")), ..Spec::new(&dir.path().join("cluster")) };
    let cluster = Cluster::prepare(&spec, &binaries)?;
    let guard = Guard::new(&cluster, interrupt);
    let outcome = show(&cluster, interrupt);
    drop(guard);
    // A call that failed because Ctrl-C took the mount away is no news.
    interrupt.check()?;
    if outcome.is_err() {
        let kept = dir.keep().join("cluster/log");
        println!("The demo failed. The daemons' logs are kept in {}", kept.display());
    }
    outcome
}

/// All steps.
fn show(cluster: &Cluster, interrupt: &Interrupt) -> Outcome {
    let begin = Instant::now();
    step(
        "Starting a cluster: a monitor, a metadata service and three storage daemons, each a process of its own",
    );
    cluster.start_all(interrupt)?;
    let point = cluster.mount_point().expect("the demo mounts").to_path_buf();
    for daemon in cluster.all() {
        say(&format!(
            "{:8} process {}",
            daemon.name,
            daemon.pid().map_or_else(|| "?".into(), |p| p.to_string())
        ));
    }
    say(&format!("mounted on {}", point.display()));
    say(
        "Every block of data goes to two storage daemons, its parity to the third: 1.5 times the space, any one may die.",
    );

    let tree = Tree::list(&tree::real(interrupt)?, FILES_MAX, BYTES_MAX)?;
    let copy = point.join("tree");
    step(&format!(
        "Copying a real tree into the mount: {} files, {} MB from {}",
        tree.files,
        tree.bytes >> 20,
        tree.root.display()
    ));
    timed("copied", || tree.copy(&copy, || interrupt.check()))?;
    compare(&tree, &copy, "of the copy with all daemons alive", interrupt)?;

    let load = Load::start(&tree, &copy, &point)?;
    step(
        "A reader now reads the tree over and over, and a writer writes and fsyncs a file, without a pause",
    );
    interrupt.sleep(LOAD_BEFORE)?;
    step("Killing storage daemon osd-1 with SIGKILL, in the middle of that");
    cluster.kill("osd-1")?;
    interrupt.sleep(LOAD_AFTER)?;
    let progress = load.finish()?;
    say(&format!(
        "{} files were read and {} blocks written and fsynced meanwhile: no error",
        progress.0, progress.1
    ));
    say(&format!("the longest that a single call took was {} ms", progress.2.as_millis()));
    ensure!(
        progress.2 <= HANG_STATED,
        "a call took longer than the {} s that are promised",
        HANG_STATED.as_secs()
    );
    show_status(cluster, interrupt)?;
    compare(
        &tree,
        &copy,
        "of it with osd-1 dead: what it held is computed from the other two",
        interrupt,
    )?;

    step("Writing more while osd-1 is dead, so that it misses something");
    let second = point.join("written-while-dead");
    let part = Tree::list(&tree.root, FILES_MAX / 5, BYTES_MAX / 5)?;
    timed("copied", || part.copy(&second, || interrupt.check()))?;

    step("Starting osd-1 again, and waiting until it has caught up by itself");
    cluster.start("osd-1", interrupt)?;
    wait_clean(cluster, interrupt)?;

    step("Killing osd-2 instead: now what osd-1 has just rebuilt is needed for reading");
    cluster.kill("osd-2")?;
    compare(&part, &second, "of what was written while osd-1 was dead", interrupt)?;
    compare(&tree, &copy, "of the first tree", interrupt)?;
    cluster.start("osd-2", interrupt)?;
    wait_clean(cluster, interrupt)?;

    step("Stopping everything cleanly");
    cluster.down(interrupt)?;
    step(&format!(
        "Done in {} s: nothing was lost, nothing failed, nothing was left behind",
        begin.elapsed().as_secs()
    ));
    Ok(())
}

fn compare(tree: &Tree, copy: &Path, what: &str, interrupt: &Interrupt) -> Outcome {
    step(&format!("Comparing every byte, mode and time {what}"));
    timed("equal: compared", || tree.compare(copy, || interrupt.check()))
}

fn timed(what: &str, work: impl FnOnce() -> Outcome) -> Outcome {
    let begin = Instant::now();
    work()?;
    say(&format!("{what} in {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

fn show_status(cluster: &Cluster, interrupt: &Interrupt) -> Outcome {
    let status = cluster.status(interrupt)?;
    say(&format!(
        "`trefoil status` says: health {}, {}",
        status["health"].as_str().unwrap_or("?"),
        conditions(&status)
    ));
    Ok(())
}

fn wait_clean(cluster: &Cluster, interrupt: &Interrupt) -> Outcome {
    let begin = Instant::now();
    let mut last = String::new();
    cluster.wait_clean(Duration::from_secs(90), interrupt, |status| {
        let rest = status["objects_to_rebuild"].as_u64().unwrap_or(0);
        let now = format!("{}, {rest} objects to rebuild", conditions(status));
        if now != last {
            say(&now);
            last = now;
        }
    })?;
    say(&format!("clean after {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

/// "placement groups: 30 clean, 2 recovering".
fn conditions(status: &serde_json::Value) -> String {
    let counts = status["pgs"].as_object().into_iter().flatten();
    let named =
        counts.filter(|(_, n)| n.as_u64() != Some(0)).map(|(name, n)| format!("{n} {name}"));
    format!("placement groups: {}", named.collect::<Vec<_>>().join(", "))
}

fn step(words: &str) {
    println!("\n==> {words}");
}

fn say(words: &str) {
    println!("    {words}");
}

/// Takes processes and mounts away when dropped; and, should a call into the mount hang or Ctrl-C
/// be pressed, kills the client first, which ends every such call.
struct Guard {
    cluster: Cluster,
    done: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl Guard {
    fn new(cluster: &Cluster, interrupt: &Interrupt) -> Guard {
        let done = Arc::new(AtomicBool::new(false));
        let (flag, stop, watched) = (done.clone(), interrupt.clone(), cluster.clone());
        let watcher = std::thread::spawn(move || {
            let end = Instant::now() + STUCK_MAX;
            while !flag.load(Ordering::Relaxed) {
                if stop.check().is_err() || Instant::now() > end {
                    let _ = watched.kill(crate::cluster::layout::MOUNT);
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Guard { cluster: cluster.clone(), done, watcher: Some(watcher) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        self.cluster.kill_all();
    }
}

/// How often, and the longest single call.
type Count = (u64, Duration);

/// A reader and a writer that go on until told.
struct Load {
    done: Arc<AtomicBool>,
    reader: JoinHandle<Outcome<Count>>,
    writer: JoinHandle<Outcome<Count>>,
}

impl Load {
    fn start(tree: &Tree, copy: &Path, point: &Path) -> Outcome<Load> {
        let done = Arc::new(AtomicBool::new(false));
        let (flag, tree, copy) = (done.clone(), tree.clone(), copy.to_path_buf());
        let reader = std::thread::spawn(move || read_over_and_over(&tree, &copy, &flag));
        let (flag, path) = (done.clone(), point.join("written-under-load"));
        let writer = std::thread::spawn(move || write_and_check(&path, &flag));
        Ok(Load { done, reader, writer })
    }

    /// Files read, blocks written, longest call.
    fn finish(self) -> Outcome<(u64, u64, Duration)> {
        self.done.store(true, Ordering::Relaxed);
        let reads =
            self.reader.join().unwrap_or_else(|_| crate::error::fail("the reader panicked"))?;
        let writes =
            self.writer.join().unwrap_or_else(|_| crate::error::fail("the writer panicked"))?;
        ensure!(
            reads.0 > 0 && writes.0 > 0,
            "nothing was read or written meanwhile: this shows nothing"
        );
        Ok((reads.0, writes.0, reads.1.max(writes.1)))
    }
}

fn read_over_and_over(tree: &Tree, copy: &Path, done: &AtomicBool) -> Outcome<Count> {
    let files: Vec<&PathBuf> = tree.paths.iter().filter(|p| tree.root.join(p).is_file()).collect();
    let mut count: Count = (0, Duration::ZERO);
    for path in files.iter().cycle() {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let expected = std::fs::read(tree.root.join(path)).doing(|| "cannot read the original")?;
        let begin = Instant::now();
        let found = tree::read_uncached(&copy.join(path))
            .doing(|| format!("reading {}", path.display()))?;
        count = (count.0 + 1, count.1.max(begin.elapsed()));
        if let Some(difference) = tree::first_difference(&expected, &found) {
            return crate::error::fail(format!("{}: {difference}", path.display()));
        }
    }
    Ok(count)
}

/// Writes numbered blocks round a file, fsyncs each, and at the end finds all as written.
fn write_and_check(path: &Path, done: &AtomicBool) -> Outcome<Count> {
    const BLOCK_BYTES: usize = 16 << 10;
    const BLOCKS: u64 = 256;
    let file = File::create(path).doing(|| format!("cannot make {}", path.display()))?;
    let block = |number: u64| {
        (0..BLOCK_BYTES / 8).flat_map(|i| (number + i as u64).to_le_bytes()).collect::<Vec<u8>>()
    };
    let mut count: Count = (0, Duration::ZERO);
    while !done.load(Ordering::Relaxed) {
        let begin = Instant::now();
        file.write_all_at(&block(count.0), count.0 % BLOCKS * BLOCK_BYTES as u64)
            .doing(|| "write")?;
        file.sync_data().doing(|| "fsync")?;
        count = (count.0 + 1, count.1.max(begin.elapsed()));
    }
    let file = File::open(path).doing(|| "cannot open again")?;
    fadvise(&file, 0, None, Advice::DontNeed).doing(|| "fadvise")?;
    let mut held = vec![0; BLOCK_BYTES];
    for number in count.0.saturating_sub(BLOCKS)..count.0 {
        file.read_exact_at(&mut held, number % BLOCKS * BLOCK_BYTES as u64)
            .doing(|| "read back")?;
        ensure!(held == block(number), "block {number} does not hold what was fsynced");
    }
    Ok(count)
}
