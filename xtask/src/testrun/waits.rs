//! Programs that wait for daemons which do not answer. Those that are killed go at once, and leave
//! nothing in the way of others: their mount waits for ever, so that nothing but this ends a
//! request. On a mount with a timeout every call ends with an error.

use super::Bench;
use super::report::Report;
use super::rig::{Background, Rig, background};
use crate::cluster::layout::{MOUNT, Spec, osd_name};
use crate::error::{Context, Outcome, ensure};
use crate::exec;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What is killed is gone within this time, on a busy machine too; unanswered requests here are
/// never answered.
const GONE_SECONDS: u64 = 60;
/// Programs reach the request that is not answered within this time.
const REACH: Duration = Duration::from_secs(1);
/// What each program does, from a directory of the mount that has a file of 8 MiB for each.
const PROGRAMS: [&str; 7] = [
    "exec cat file0 > /dev/null",
    "exec dd if=file1 of=/dev/null bs=1M iflag=direct status=none",
    "exec dd if=/dev/zero of=file2 bs=1M count=8 conv=notrunc,fsync status=none",
    "exec dd if=/dev/zero of=file3 bs=1M count=8 conv=notrunc oflag=direct status=none",
    "exec dd if=/dev/zero of=new4 bs=1M count=8 conv=fsync status=none",
    "exec truncate -s 100 file5",
    "exec python3 -c 'import mmap; f = open(\"file6\", \"rb\"); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[9999]'",
];

/// What fails on a mount with a timeout while nothing of the cluster answers. File descriptor 3 is
/// `file0`, opened before.
const CALLS: [&str; 15] = [
    "cat <&3 > /dev/null",
    "dd if=/dev/fd/3 of=/dev/null bs=4k count=1 status=none",
    "cat file1 > /dev/null",
    "stat file2",
    "ls -l .",
    "touch new",
    "mkdir new.d",
    "mv file3 moved",
    "rm file4",
    "dd if=/dev/zero of=file5 bs=4k count=1 conv=notrunc,fsync status=none",
    "stat -f .",
    "setfattr -n user.a -v b file6",
    "truncate -s 100 file6",
    "fallocate -l 1000000 file6",
    "ln file2 linked",
];

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let change = |spec| Spec { mount_options: "timeout=0".into(), ..spec };
    let Some(rig) = Rig::start("waits", bench, report, change)? else { return Ok(()) };
    let name = "programs that wait for stopped storage daemons go when they are killed, and the mount goes on";
    if report.wants_test("waits", name) {
        report.case("waits", name, || killed(bench, &rig))?;
    }
    let name = "on a mount with a timeout every call ends with an error while nothing answers, and works afterwards";
    if report.wants_test("waits", name) {
        report.case("waits", name, || all_end(bench, &rig))?;
    }
    let name = "a mount with retry= waits for servers that come later, and one without is refused";
    if report.wants_test("waits", name) {
        report.case("waits", name, || comes_later(bench, &rig))?;
    }
    let name =
        "umount while the cluster is away names who waits in the mount, and works once he is gone";
    if report.wants_test("waits", name) {
        report.case("waits", name, || waiting_is_named(bench, &rig))?;
    }
    rig.finish(bench, report)
}

fn all_end(bench: &Bench, rig: &Rig) -> Outcome {
    let fill = "for i in 0 1 2 3 4 5 6; do head -c 300000 /dev/urandom > file$i; done; sync file*";
    bench.shell(rig.mount(), fill, GONE_SECONDS)?;
    let (second, scratch) = (rig.scratch("timeout-mount")?, rig.scratch("calls")?);
    let mut mount = rig.cluster.background_client();
    mount.arg("mount").arg(rig.cluster.layout().monitor.to_string()).arg(&second);
    mount.args(["--daemon", "-o", "timeout=3"]);
    bench.run(&mut mount, GONE_SECONDS)?;
    let outcome = calls_end(bench, rig, &second, &scratch);
    bench.run(rig.cluster.command("fuse-client").arg("umount").arg(&second), GONE_SECONDS)?;
    outcome?;
    bench.shell(rig.mount(), "rm -rf file* new* moved*", GONE_SECONDS).map(drop)
}

fn calls_end(bench: &Bench, rig: &Rig, mount: &Path, scratch: &Path) -> Outcome {
    let ready = |number: usize| scratch.join(format!("ready-{number}"));
    let start = |(number, line): (usize, &&str)| {
        let script =
            "exec 3< file0; touch $1; while [ ! -e $2 ]; do sleep 0.1; done; ! eval \"$3\"";
        let mut command = Command::new("bash");
        command
            .args(["-c", script, "calls"])
            .arg(ready(number))
            .arg(scratch.join("go"))
            .arg(line)
            .current_dir(mount);
        background(&mut command, &scratch.join(format!("{number}.out")))
    };
    let calls: Vec<Background> = CALLS.iter().enumerate().map(start).collect::<Outcome<_>>()?;
    let all_ready = || Ok((0..CALLS.len()).all(|number| ready(number).exists()));
    rig.wait_for(bench, "all to have opened their files", GONE_SECONDS, all_ready)?;
    let osds = (0..rig.cluster.layout().osds.len()).map(osd_name);
    let daemons: Vec<String> = osds.chain(["mds".to_owned(), "monitor".to_owned()]).collect();
    let signal =
        |signal| daemons.iter().try_for_each(|name| rig.cluster.daemon(name)?.signal(signal));
    signal(Signal::STOP)?;
    let ended = std::fs::write(scratch.join("go"), "")
        .doing(|| "cannot tell them to go on")
        .and_then(|()| {
            let end = |(call, line): (Background, &str)| {
                call.finish(bench, GONE_SECONDS)
                    .doing(|| format!("`{line}` does not fail, or does not end"))
            };
            calls.into_iter().zip(CALLS).map(end).collect::<Outcome<Vec<String>>>()
        });
    // Also when it failed: nothing may stay stopped.
    signal(Signal::CONT)?;
    for (said, line) in ended?.iter().zip(CALLS) {
        ensure!(said.contains("Input/output error"), "`{line}` says: {said}");
    }
    rig.wait_clean(bench, GONE_SECONDS)?;
    let line =
        "cat file0 | wc -c; stat file2; ls -l . > /dev/null; touch new2; mv new2 moved2; stat -f .";
    bench.shell(mount, line, GONE_SECONDS).map(drop)
}

/// Who waits has nothing open, so that no program lists him; for the kernel the mount is in use.
fn waiting_is_named(bench: &Bench, rig: &Rig) -> Outcome {
    rig.cluster.kill("mds")?;
    let waiting = background(
        Command::new("stat").arg("-f").arg(rig.mount()),
        &rig.scratch("programs")?.join("stat.out"),
    )?;
    bench.interrupt.sleep(REACH)?;
    let unmount = || {
        let mut command = rig.cluster.command("fuse-client");
        exec::run(
            command.arg("umount").arg(rig.mount()),
            Duration::from_secs(GONE_SECONDS),
            &bench.interrupt,
        )
    };
    let refused = unmount()?;
    waiting.kill();
    let then = unmount()?;
    rig.cluster.start("mds", &bench.interrupt)?;
    let is_gone = rig.cluster.daemon(MOUNT)?.wait_gone(Duration::from_secs(GONE_SECONDS));
    rig.cluster.start(MOUNT, &bench.interrupt)?;
    ensure!(is_gone, "unmounted, and its process stays");
    ensure!(
        !refused.ok() && refused.stderr.contains("(stat)"),
        "while `stat` waits: {}",
        refused.stderr
    );
    ensure!(then.ok(), "once it is gone: {}", then.stderr);
    Ok(())
}

fn comes_later(bench: &Bench, rig: &Rig) -> Outcome {
    rig.cluster.unmount(&bench.interrupt)?;
    rig.cluster.kill("monitor")?;
    let mount = |option: &str| {
        let mut command = rig.cluster.background_client();
        command.arg("mount").arg(rig.cluster.layout().monitor.to_string()).arg(rig.mount());
        command.args(["--daemon", "-o", option]);
        command
    };
    let refused = exec::run(&mut mount("ro"), Duration::from_secs(GONE_SECONDS), &bench.interrupt)?;
    ensure!(
        !refused.ok() && refused.stderr.contains("nothing listens there"),
        "without: {}",
        refused.stderr
    );
    let waiting =
        background(&mut mount("retry=forever"), &rig.scratch("programs")?.join("retry.out"))?;
    bench.interrupt.sleep(REACH)?;
    rig.cluster.start("monitor", &bench.interrupt)?;
    waiting.finish(bench, GONE_SECONDS)?;
    bench.shell(rig.mount(), "echo here > later; cat later", GONE_SECONDS)?;
    bench.run(rig.cluster.command("fuse-client").arg("umount").arg(rig.mount()), GONE_SECONDS)?;
    rig.cluster.start(MOUNT, &bench.interrupt)
}

fn killed(bench: &Bench, rig: &Rig) -> Outcome {
    let fill = "for i in 0 1 2 3 4 5 6; do head -c 8M /dev/urandom > file$i; done; sync file*";
    bench.shell(rig.mount(), fill, GONE_SECONDS)?;
    bench.shell(rig.mount(), "cat file? > sum; sync sum", GONE_SECONDS)?;
    rig.remount(bench)?;
    let osds: Vec<String> = (0..rig.cluster.layout().osds.len()).map(osd_name).collect();
    let signal = |signal| osds.iter().try_for_each(|name| rig.cluster.daemon(name)?.signal(signal));
    signal(Signal::STOP)?;
    let outcome = kill_programs(bench, rig);
    // Also when it failed: nothing may stay stopped.
    signal(Signal::CONT)?;
    outcome?;
    rig.wait_clean(bench, GONE_SECONDS)?;
    let line = "for i in 0 1 6; do cmp -n 8388608 file$i sum 0 $((i * 8388608)); done; rm -f file* new4 sum";
    bench.shell(rig.mount(), line, GONE_SECONDS).map(drop)
}

fn kill_programs(bench: &Bench, rig: &Rig) -> Outcome {
    let scratch = rig.scratch("programs")?;
    let start = |(number, line): (usize, &&str)| {
        let output = scratch.join(format!("{number}.out"));
        background(Command::new("bash").args(["-c", line]).current_dir(rig.mount()), &output)
    };
    let mut programs: Vec<Background> =
        PROGRAMS.iter().enumerate().map(start).collect::<Outcome<_>>()?;
    bench.interrupt.sleep(REACH)?;
    for (program, line) in programs.iter_mut().zip(PROGRAMS) {
        ensure!(!program.has_ended(), "`{line}` ended, though nothing answers");
        program.kill_unawaited()?;
    }
    for (program, line) in programs.into_iter().zip(PROGRAMS) {
        program.end(bench, GONE_SECONDS).doing(|| format!("`{line}` was killed and stays"))?;
    }
    Ok(())
}
