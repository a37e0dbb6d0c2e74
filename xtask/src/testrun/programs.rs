//! Programs that we did not write, on the mount: pjdfstest, fsx, fio, git, tar.

use super::Bench;
use super::report::Report;
use super::rig::Rig;
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec;
use crate::tree::{self, Tree};
use crate::workspace;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Everything that pjdfstest has for Linux.
const PJDFSTEST_CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Every operation that fsx knows, at every alignment.
const FSX_CONFIG: &str = r#"
flen = 1048576
[opsize]
max = 131072
min = 1
align = 1
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = 5
punch_hole = 5
sendfile = 2
posix_fadvise = 1
copy_file_range = 5
"#;

/// Bounds of the tree for tar.
const TAR_FILES: u64 = 1_500;
const TAR_BYTES: u64 = 40 << 20;

/// pjdfstest, one line for each of its tests. Those that remount read-only run by themselves:
/// others leave a removed file open, and with that no file system can become read-only.
///
/// # Errors
/// Only on Ctrl-C.
pub fn pjdfstest(bench: &Bench, rig: &Rig, area: &str, report: &mut Report) -> Outcome {
    pjdfstest_part(bench, rig, area, false, report)?;
    pjdfstest_part(bench, rig, area, true, report)
}

fn pjdfstest_part(
    bench: &Bench,
    rig: &Rig,
    area: &str,
    remount: bool,
    report: &mut Report,
) -> Outcome {
    let begin = Instant::now();
    let out = match run_pjdfstest(bench, rig, area, remount) {
        Ok(out) => out,
        Err(error) => {
            report.record("pjdfstest", "runs", Err(error), begin.elapsed());
            return bench.interrupt.check();
        }
    };
    let mut lines = out.stdout.lines().peekable();
    let mut seen = 0;
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, verdict @ ("ok" | "FAILED" | "skipped")] = words[..] else { continue };
        if name.contains("erofs") != remount {
            continue;
        }
        seen += 1;
        let mut reason = String::new();
        while let Some(more) = lines.next_if(|l| l.starts_with('\t')) {
            reason.push_str(more.trim());
            reason.push('\n');
        }
        let outcome = match verdict {
            "ok" => Ok(()),
            _ => fail(format!("{verdict}: {reason}")),
        };
        if report.wants_test("pjdfstest", name) {
            report.record("pjdfstest", name, outcome, Duration::ZERO);
        }
    }
    // Version 0.2.2 has 398 tests, 13 of them about EROFS; if not all are seen, its output has
    // changed or it died.
    if seen != if remount { 13 } else { 385 } {
        let words =
            format!("only {seen} tests were run: {}\n{}", exec::how(out.status), out.tail());
        report.record("pjdfstest", "runs", fail(words), begin.elapsed());
    }
    Ok(())
}

fn run_pjdfstest(bench: &Bench, rig: &Rig, area: &str, remount: bool) -> Outcome<exec::Run> {
    // A short name: the sockets made in it have full paths of at most 107 bytes.
    let area = rig.area(bench, &format!("pj-{area}"))?;
    bench.shell(rig.mount(), &format!("chmod 755 . '{}'", area.display()), 10)?;
    let scratch = rig.scratch("pjdfstest")?;
    let config = scratch.join("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST_CONFIG.replace("REMOUNT", &remount.to_string()))
        .doing(|| "cannot write the configuration")?;
    let secondary = rig.scratch("pjdfstest-secondary")?;
    if crate::mounts::kind_at(&secondary).is_none() {
        bench.run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&secondary), 10)?;
    }
    // Its remounting calls mount(8), which would look for a helper of our file system's type: `-i`
    // leaves that out.
    let wrapped = scratch.join("mount");
    let real = bench.shell(&scratch, "PATH=/usr/bin:/bin:/usr/sbin:/sbin command -v mount", 5)?;
    std::fs::write(&wrapped, format!("#!/bin/sh\nexec {} -i \"$@\"\n", real.stdout.trim()))
        .and_then(|()| std::fs::set_permissions(&wrapped, PermissionsExt::from_mode(0o755)))
        .doing(|| "cannot write the wrapper of mount")?;
    let path = format!("{}:{}", scratch.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(bench.tools.join("pjdfstest"));
    command.env("PATH", path).env("NO_COLOR", "1").args(["-c"]).arg(&config);
    command.arg("-p").arg(&area).arg("-s").arg(&secondary).args(remount.then_some("erofs"));
    let run = exec::run(&mut command, Duration::from_secs(300), &bench.interrupt);
    crate::mounts::clear(&secondary);
    run
}

/// fsx with several seeds.
///
/// # Errors
/// Only on Ctrl-C.
pub fn fsx(bench: &Bench, rig: &Rig, area: &str, report: &mut Report) -> Outcome {
    let seeds: &[u64] = if area == "healthy" { &[1, 2, 3] } else { &[4, 5] };
    let operations = bench.size(4_000, 800);
    for seed in seeds {
        let name = format!("seed {seed}, {operations} operations");
        if !report.wants_test("fsx", &name) {
            continue;
        }
        report.case("fsx", &name, || {
            let scratch = rig.scratch("fsx")?;
            let config = scratch.join("fsx.toml");
            std::fs::write(&config, FSX_CONFIG).doing(|| "cannot write the configuration")?;
            let area = rig.area(bench, &format!("fsx-{area}-{seed}"))?;
            let mut command = Command::new(bench.tools.join("fsx"));
            command
                .args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-f"])
                .arg(&config);
            command.arg("-P").arg(&scratch).arg(area.join("file"));
            let out = bench.run(&mut command, 200)?;
            ensure!(
                out.stdout.contains("A-OK") || out.stderr.contains("A-OK"),
                "fsx did not say A-OK:\n{}",
                out.tail()
            );
            Ok(())
        })?;
    }
    Ok(())
}

/// fio with verification: random and sequential, direct and buffered, 4 jobs, 8 deep.
///
/// # Errors
/// Only on Ctrl-C.
pub fn fio(bench: &Bench, rig: &Rig, area: &str, report: &mut Report) -> Outcome {
    let small = bench.size(12, 4);
    let large = bench.size(48, 8);
    for (name, kind, block, mib) in [
        ("random 4k", "randwrite", "bs=4k", small),
        ("random 512 bytes to 64k", "randwrite", "bsrange=512-64k", large),
        ("sequential 1M", "write", "bs=1M", large),
        ("sequential 20k", "write", "bs=20k", small),
    ] {
        for (how, direct) in [("direct", 1), ("buffered", 0)] {
            let name = format!("{name}, {how}");
            if !report.wants_test("fio", &name) {
                continue;
            }
            report.case("fio", &name, || {
                let area = rig.area(bench, &format!("fio-{area}"))?;
                let mut command = Command::new("fio");
                let words = format!(
                    "--name=verify --rw={kind} --{block} --size={mib}M --direct={direct} --numjobs=4 --iodepth=8 \
                     --ioengine=libaio --verify=crc32c --do_verify=1 --verify_fatal=1 --end_fsync=1 --group_reporting \
                     --randseed=7 --invalidate=1"
                );
                command.args(words.split_whitespace()).arg("--directory").arg(&area);
                // fio keeps state files in the current directory.
                bench.run(command.current_dir(rig.scratch("fio")?), 200)?;
                bench.shell(rig.mount(), &format!("rm -rf '{}'", area.display()), 60).map(drop)
            })?;
        }
    }
    Ok(())
}

/// A repository cloned into the mount, checked, committed to, repacked.
///
/// # Errors
/// Only on Ctrl-C.
pub fn git(bench: &Bench, rig: &Rig, area: &str, report: &mut Report) -> Outcome {
    report.case("git", "clone, fsck, commit, gc", || {
        let scratch = rig.scratch("git")?;
        let source = source_repository(bench, &scratch)?;
        let area = rig.area(bench, &format!("git-{area}"))?;
        let lines = format!(
            "export HOME='{}' GIT_CONFIG_NOSYSTEM=1\n\
             git clone --quiet --no-hardlinks 'file://{}' clone\n\
             cd clone\n\
             git fsck --full --strict\n\
             test -z \"$(git status --porcelain)\"\n\
             echo change > changed-here; git add -A; git commit --quiet -m change\n\
             git gc --quiet --prune=now\n\
             git fsck --full --strict\n\
             git checkout --quiet HEAD~1; git checkout --quiet -\n\
             test -z \"$(git status --porcelain)\"",
            scratch.display(),
            source.display()
        );
        bench.shell(&area, &lines, 240).map(drop)
    })
}

/// This checkout, if it has a history; else a repository that is made up.
fn source_repository(bench: &Bench, home: &Path) -> Outcome<PathBuf> {
    let config = "[safe]\n\tdirectory = *\n[user]\n\tname = test\n\temail = test@localhost\n[init]\n\tdefaultBranch = main\n";
    std::fs::write(home.join(".gitconfig"), config).doing(|| "cannot write a git configuration")?;
    let ours = format!("HOME='{}' git rev-parse --is-shallow-repository HEAD~1", home.display());
    if bench.shell(workspace::root(), &ours, 20).is_ok_and(|out| out.stdout.starts_with("false")) {
        return Ok(workspace::root().to_path_buf());
    }
    let made = home.join("made-up");
    if !made.exists() {
        let lines = format!(
            "export HOME='{}'; git init --quiet made-up; cd made-up\n\
             for c in $(seq 20); do\n\
               for f in $(seq 20); do mkdir -p d$((f % 5)); seq $c $((c * f + 50)) > d$((f % 5))/f$f; done\n\
               git add -A; git commit --quiet -m \"commit $c\"\n\
             done",
            home.display()
        );
        bench.shell(home, &lines, 120)?;
    }
    Ok(made)
}

/// A real tree, packed here, unpacked in the mount, compared byte by byte, packed again there and
/// compared by tar.
///
/// # Errors
/// Only on Ctrl-C.
pub fn tar(bench: &Bench, rig: &Rig, area: &str, report: &mut Report) -> Outcome {
    report.case("tar", "extract a real tree, compare, pack again", || {
        let scratch = rig.scratch("tar")?;
        let (root, files) = (tree::real(&bench.interrupt)?, bench.size(TAR_FILES, 200));
        let archive = scratch.join("tree.tar");
        if !archive.exists() {
            let tree = Tree::list(&root, files, TAR_BYTES)?;
            let names: Vec<String> = tree.paths.iter().map(|p| p.display().to_string()).collect();
            std::fs::write(scratch.join("names"), names.join("\n"))
                .doing(|| "cannot write a list")?;
            let mut pack = Command::new("tar");
            pack.arg("-C")
                .arg(&root)
                .args(["--no-recursion", "--verbatim-files-from", "-T"])
                .arg(scratch.join("names"));
            bench.run(pack.args(["--format=posix", "-cf"]).arg(&archive), 60)?;
        }
        let area = rig.area(bench, &format!("tar-{area}"))?;
        bench.run(Command::new("tar").arg("-C").arg(&area).arg("-xpf").arg(&archive), 200)?;
        compare(bench, &root, &area, files)?;
        bench.run(
            Command::new("tar").arg("-C").arg(&area).arg("--compare").arg("-f").arg(&archive),
            200,
        )?;
        let again = scratch.join("again.tar");
        bench
            .run(Command::new("tar").arg("-C").arg(&area).args(["-cf"]).arg(&again).arg("."), 200)
            .map(drop)
    })
}

/// The trees that [`tar`] left, compared once more.
///
/// # Errors
/// When one differs.
pub fn compare_trees(bench: &Bench, rig: &Rig) -> Outcome {
    let (root, files) = (tree::real(&bench.interrupt)?, bench.size(TAR_FILES, 200));
    rig.remount(bench)?;
    for area in ["healthy", "degraded"] {
        compare(bench, &root, &rig.mount().join(format!("tar-{area}")), files)?;
    }
    Ok(())
}

fn compare(bench: &Bench, root: &Path, copy: &Path, files: u64) -> Outcome {
    let mut command = bench.xtask(&[
        "same-tree",
        "--files",
        &files.to_string(),
        "--bytes",
        &TAR_BYTES.to_string(),
    ]);
    bench.run(command.arg(root).arg(copy), 200).map(drop)
}
