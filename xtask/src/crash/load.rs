//! Writers of six kinds, each of which remembers what it was promised, outside the file system
//! under test.
//!
//! * Stamped blocks, buffered and direct: see [`crate::stamp`]. * fio: writes and verifies again
//!   and again.
//! * SQLite: numbered transactions without gaps. * git: commits whose ids were told.
//! * Files that two mounts write, with locks and without: `shared.py`. * Beside them files that do
//!   not change.
//!
//! Contract: while only daemons die none of them may see an error. When the client dies they end,
//! and begin again on the new mount with what they left; the second mount stays, and may have to
//! wait until the dead client's locks and leases go. [`Load::verify`] holds the file system to
//! every promise so far.

use super::counts::Counts;
use crate::error::{Context, Outcome, ensure};
use crate::testrun::Bench;
use crate::testrun::rig::{Background, background};
use protocol::Gfid;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A writer ends, or a check is done, within so many seconds on a cluster without faults.
const END_SECONDS: u64 = 150;
/// Files that do not change, and bytes of each.
const COLD_FILES: u64 = 24;
pub(super) const COLD_BYTES: usize = 150_000;

/// One run writes a little, so that it ends soon after it is told to.
const FIO: &str = "--name=verify --rw=randwrite --bsrange=512-64k --size=2M --direct=1 --numjobs=2 --iodepth=8 \
    --ioengine=libaio --verify=crc32c --do_verify=1 --verify_fatal=1 --end_fsync=1 --group_reporting --invalidate=1";

/// Every commit as durable as git can make it.
const GIT_CONFIG: &str = "[safe]\n\tdirectory = *\n[user]\n\tname = test\n\temail = test@localhost\n\
    [init]\n\tdefaultBranch = main\n[core]\n\tfsync = all\n[gc]\n\tauto = 0\n";

/// What two mounts do to the same files.
const SHARED: &str = include_str!("shared.py");

/// A kind of writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    Buffered,
    Direct,
    Fio,
    Sqlite,
    Git,
    /// On the first mount.
    Here,
    /// On the second.
    There,
}

impl Writer {
    const ALL: [Writer; 7] = [
        Writer::Buffered,
        Writer::Direct,
        Writer::Fio,
        Writer::Sqlite,
        Writer::Git,
        Writer::Here,
        Writer::There,
    ];

    fn name(self) -> &'static str {
        match self {
            Writer::Buffered => "buffered",
            Writer::Direct => "direct",
            Writer::Fio => "fio",
            Writer::Sqlite => "sqlite",
            Writer::Git => "git",
            Writer::Here => "here",
            Writer::There => "there",
        }
    }

    /// Its directory in that of all.
    fn dir(self) -> &'static str {
        match self {
            Writer::Here | Writer::There => "shared",
            _ => self.name(),
        }
    }

    /// The shell's part of those that are no program of ours; it finds the directory in `area`, its
    /// notes in `notes`.
    fn script(self) -> String {
        let body = match self {
            Writer::Buffered | Writer::Direct => String::new(),
            Writer::Fio => format!(
                "fio {FIO} --randseed=$RANDOM --directory=\"$area\" && echo pass >> \"$notes\""
            ),
            Writer::Sqlite => {
                "sqlite3 -batch -bail -init /dev/null -cmd '.timeout 100000' \"$area/db\" \
                'PRAGMA synchronous=FULL; INSERT INTO t SELECT coalesce(max(n), 0) + 1, \
                randomblob(500 + abs(random() % 4000)) FROM t RETURNING n;' >> \"$notes\""
                    .into()
            }
            Writer::Git => "seq $RANDOM > file-$((RANDOM % 20)) && git add -A && \
                git commit --quiet --allow-empty -m change && git rev-parse HEAD >> \"$notes\""
                .into(),
            Writer::Here | Writer::There => {
                format!(
                    "python3 \"$scratch/shared.py\" write {} \"$area\" \"$notes\" \"$stop\"",
                    self.name()
                )
            }
        };
        // What a killed git holds locked is nobody's.
        let before = match self {
            Writer::Git => "cd \"$area/repository\"; find .git -name '*.lock' -delete",
            _ => "cd \"$scratch\"",
        };
        format!("{before}; while [ ! -e \"$stop\" ]; do {{ {body}; }} || exit 1; done")
    }
}

/// All writers of a run.
pub struct Load {
    /// On the first mount.
    area: PathBuf,
    /// The same on the second.
    other_area: PathBuf,
    scratch: PathBuf,
    seed: u64,
    /// Promised is what was fsynced, not what was answered.
    fsynced_only: bool,
    running: Vec<(Writer, Background)>,
}

impl Load {
    /// On these two mounts of one cluster; manifests go to `scratch`, which lies elsewhere.
    /// `fsynced_only`: promised is what was fsynced, not what was answered.
    pub fn new(mounts: [&Path; 2], scratch: &Path, seed: u64, fsynced_only: bool) -> Load {
        let [area, other_area] = mounts.map(|mount| mount.join("load"));
        Load {
            area,
            other_area,
            scratch: scratch.to_path_buf(),
            seed,
            fsynced_only,
            running: Vec::new(),
        }
    }

    /// Makes what the writers begin with, and the files that do not change.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn prepare(&self, bench: &Bench) -> Outcome {
        let cold = self.scratch.join("cold");
        std::fs::create_dir_all(&cold).doing(|| format!("cannot make {}", cold.display()))?;
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let mut bytes = vec![0; COLD_BYTES];
        for number in 0..COLD_FILES {
            rng.fill(&mut bytes);
            std::fs::write(cold.join(format!("cold-{number}")), &bytes)
                .doing(|| "cannot write a file")?;
        }
        std::fs::write(self.scratch.join(".gitconfig"), GIT_CONFIG)
            .doing(|| "cannot write a git configuration")?;
        std::fs::write(self.scratch.join("shared.py"), SHARED).doing(|| "cannot write a script")?;
        let script = "mkdir -p \"$area\"/{fio,sqlite,git/repository,shared} && cp -r \"$scratch/cold\" \"$area/cold\" && \
            sqlite3 -batch -init /dev/null \"$area/sqlite/db\" 'CREATE TABLE t(n INTEGER PRIMARY KEY, body BLOB);' && \
            git -C \"$area/git/repository\" init --quiet && sync \"$area\"/cold/* \"$area/cold\" \"$area\"";
        bench.run(self.bash(script, "").env("area", &self.area), END_SECONDS).map(drop)
    }

    /// Starts every writer.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(&mut self, bench: &Bench) -> Outcome {
        let stop = self.scratch.join("stop");
        if stop.exists() {
            std::fs::remove_file(&stop).doing(|| "cannot remove the stop file")?;
        }
        for writer in Writer::ALL {
            let mut command = match writer {
                Writer::Buffered | Writer::Direct => {
                    let mut command = self.stamp(bench, "write", writer);
                    command.arg("--stop").arg(&stop);
                    command.args((writer == Writer::Direct).then_some("--direct"));
                    command
                }
                _ => self.script_of(writer, &writer.script()),
            };
            let output = self.scratch.join(format!("{}.out", writer.name()));
            self.running.push((writer, background(&mut command, &output)?));
        }
        Ok(())
    }

    /// None of them may have ended.
    ///
    /// # Errors
    /// With what the one that has ended said.
    pub fn check(&mut self) -> Outcome {
        let ended = self
            .running
            .iter_mut()
            .find_map(|(writer, child)| child.has_ended().then_some(*writer));
        let Some(writer) = ended else { return Ok(()) };
        let said = std::fs::read_to_string(self.scratch.join(format!("{}.out", writer.name())))
            .unwrap_or_default();
        crate::error::fail(format!(
            "the writer {} ended: {}",
            writer.name(),
            crate::exec::last_lines(&said, 12)
        ))
    }

    /// How far each has come: its notes only grow.
    pub fn progress(&self) -> Vec<u64> {
        let path = |writer: Writer| match writer {
            Writer::Buffered | Writer::Direct => self.scratch.join(writer.name()),
            _ => self.notes_path(writer.name()),
        };
        let length = |writer| std::fs::metadata(path(writer)).map_or(0, |notes| notes.len());
        Writer::ALL.into_iter().map(length).collect()
    }

    /// Waits until every one has come further than it had then.
    ///
    /// # Errors
    /// When one does not, or has ended.
    pub fn wait_progress(&mut self, bench: &Bench, since: &[u64]) -> Outcome {
        let end = Instant::now() + Duration::from_secs(END_SECONDS);
        loop {
            self.check()?;
            let now = self.progress();
            let Some(at) = now.iter().zip(since).position(|(now, then)| now <= then) else {
                return Ok(());
            };
            let name = Writer::ALL[at].name();
            ensure!(
                Instant::now() < end,
                "the writer {name} has done nothing for {END_SECONDS} s without faults"
            );
            bench.interrupt.sleep(Duration::from_millis(50))?;
        }
    }

    /// They end, all well.
    ///
    /// # Errors
    /// When one fails or does not end.
    pub fn stop(&mut self, bench: &Bench) -> Outcome {
        self.tell_to_stop()?;
        for (writer, child) in self.running.drain(..) {
            child.finish(bench, END_SECONDS).doing(|| format!("the writer {}", writer.name()))?;
        }
        Ok(())
    }

    /// The client died: they end, with errors or without, but no verification may have failed.
    ///
    /// # Errors
    /// When one does not end, or fio read what it had not written.
    pub fn abandon(&mut self, bench: &Bench) -> Outcome {
        self.tell_to_stop()?;
        for (_, child) in self.running.drain(..) {
            child.end(bench, END_SECONDS)?;
        }
        let said = std::fs::read_to_string(self.scratch.join("fio.out")).unwrap_or_default();
        let wrong = said
            .lines()
            .find(|line| line.contains("verify failed") || line.contains("verify: bad"));
        ensure!(wrong.is_none(), "fio: {}", wrong.unwrap_or_default());
        Ok(())
    }

    fn tell_to_stop(&self) -> Outcome {
        std::fs::write(self.scratch.join("stop"), "").doing(|| "cannot write the stop file")
    }

    /// Everything promised so far is there.
    ///
    /// # Errors
    /// A broken promise.
    pub fn verify(&self, bench: &Bench, counts: &mut Counts) -> Outcome {
        let (mut acks, mut fsyncs, mut bytes) = (0, 0, 0);
        for writer in [Writer::Buffered, Writer::Direct] {
            let mut command = self.stamp(bench, "verify", writer);
            command.args(self.fsynced_only.then_some("--fsynced-only"));
            let out = bench.run(&mut command, END_SECONDS)?.stdout;
            let number = |word: &str| {
                let words: Vec<&str> =
                    out.split([' ', ';', '\n']).filter(|w| !w.is_empty()).collect();
                let at = words.iter().position(|w| *w == word).unwrap_or(0);
                at.checked_sub(1).and_then(|before| words[before].parse::<u64>().ok()).unwrap_or(0)
            };
            (acks, fsyncs, bytes) =
                (acks + number("acks"), fsyncs + number("fsyncs"), bytes + number("bytes"));
        }
        (counts.acks, counts.fsyncs, counts.stamped_bytes) = (acks, fsyncs, bytes);
        counts.fio_passes = self.notes(Writer::Fio).len() as u64;
        counts.sqlite_commits = self.sqlite(bench)?;
        counts.git_commits = self.git(bench)?;
        counts.shared_writes = self.shared(bench)?;
        self.compare_cold(bench)
    }

    fn sqlite(&self, bench: &Bench) -> Outcome<u64> {
        let told = self
            .notes(Writer::Sqlite)
            .iter()
            .filter_map(|n| n.parse::<u64>().ok())
            .max()
            .unwrap_or(0);
        let script = "sqlite3 -batch -bail -init /dev/null \"$area/db\" \
            'PRAGMA integrity_check; SELECT coalesce(max(n), 0) || \" \" || count(*) FROM t;'";
        let out = bench.run(&mut self.script_of(Writer::Sqlite, script), END_SECONDS)?.stdout;
        let lines: Vec<&str> = out.lines().collect();
        let numbers: Vec<u64> =
            lines.last().map_or("", |l| l).split(' ').filter_map(|n| n.parse().ok()).collect();
        ensure!(
            lines.first() == Some(&"ok") && numbers.len() == 2,
            "SQLite's integrity_check: {out}"
        );
        ensure!(
            numbers[0] >= told,
            "SQLite told of transaction {told}, and the last that is there is {}",
            numbers[0]
        );
        ensure!(
            numbers[0] == numbers[1],
            "the last transaction of SQLite is {}, but there are {}",
            numbers[0],
            numbers[1]
        );
        Ok(told)
    }

    fn git(&self, bench: &Bench) -> Outcome<u64> {
        let told = self.notes(Writer::Git);
        let script = "cd \"$area/repository\"; git fsck --full --strict; git merge-base --is-ancestor \"$last\" HEAD";
        if let Some(last) = told.last() {
            bench.run(
                self.script_of(Writer::Git, &format!("set -e; {script}")).env("last", last),
                END_SECONDS,
            )?;
        }
        Ok(told.len() as u64)
    }

    /// What two mounts wrote to the same files, as each of them shows it.
    fn shared(&self, bench: &Bench) -> Outcome<u64> {
        let script =
            "python3 \"$scratch/shared.py\" verify \"$area\" \"$scratch\"/{here,there}.notes";
        let mut told = 0;
        for writer in [Writer::Here, Writer::There] {
            let out = bench.run(&mut self.script_of(writer, script), END_SECONDS)?.stdout;
            told = out.trim().parse().doing(|| format!("no count of writes: {out}"))?;
        }
        Ok(told)
    }

    /// The files that do not change are as they were, read past the kernel's cache.
    ///
    /// # Errors
    /// When one is not.
    pub fn compare_cold(&self, bench: &Bench) -> Outcome {
        let script = "set -e; cd \"$scratch/cold\"; for f in *; do \
            dd if=\"$area/$f\" iflag=direct bs=64k status=none | cmp - \"$f\"; done";
        bench.run(&mut self.bash(script, "cold"), END_SECONDS).map(drop)
    }

    /// The ids of the files that do not change.
    ///
    /// # Errors
    /// When they cannot be looked at.
    pub fn cold_inodes(&self, bench: &Bench) -> Outcome<BTreeSet<Gfid>> {
        let out = bench.run(&mut self.bash("stat --format=%i \"$area\"/*", "cold"), END_SECONDS)?;
        Ok(out.stdout.lines().filter_map(|line| line.parse().ok()).map(Gfid::of_inode).collect())
    }

    /// What a writer noted as done, one line each; a line cut by a kill does not count.
    fn notes(&self, writer: Writer) -> Vec<String> {
        let text = std::fs::read_to_string(self.notes_path(writer.name())).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    fn notes_path(&self, name: &str) -> PathBuf {
        self.scratch.join(format!("{name}.notes"))
    }

    fn stamp(&self, bench: &Bench, task: &str, writer: Writer) -> Command {
        let mut command = bench.xtask(&["stamp", task, "--seed", &self.seed.to_string()]);
        let manifest = self.scratch.join(writer.name());
        command.arg("--dir").arg(self.area.join(writer.name())).arg("--manifest").arg(manifest);
        command
    }

    /// A writer's script.
    fn script_of(&self, writer: Writer, script: &str) -> Command {
        let mut command = self.bash(script, writer.name());
        let area = if writer == Writer::There { &self.other_area } else { &self.area };
        command.env("area", area.join(writer.dir()));
        command
    }

    /// A script with the names it knows: `area`, `scratch`, `stop`, `notes`.
    fn bash(&self, script: &str, name: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("set -o pipefail; {script}")]).current_dir(&self.scratch);
        command
            .env("area", self.area.join(name))
            .env("scratch", &self.scratch)
            .env("HOME", &self.scratch);
        command.env("stop", self.scratch.join("stop")).env("notes", self.notes_path(name));
        command.env("writes_per_fsync", if self.fsynced_only { "1" } else { "8" });
        command.env("GIT_CONFIG_NOSYSTEM", "1");
        command
    }
}
