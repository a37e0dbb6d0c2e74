//! Too few storage daemons: everything waits, goes on by itself, and can be got rid of meanwhile.

use super::super::Bench;
use super::super::report::Report;
use super::super::rig::{Background, Rig, background};
use super::SOON_SECONDS;
use crate::cluster::layout::MOUNT;
use crate::error::{Outcome, ensure, fail};
use crate::{exec, mounts};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// Without these, one is left of three.
const FEW: [&str; 2] = ["osd-0", "osd-2"];

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, rig: &Rig, report: &mut Report) -> Outcome {
    report.case("sick", "too few storage daemons: calls wait, and go on by themselves", || {
        too_few(bench, rig)
    })?;
    report.case("sick", "too few storage daemons: a process that waits can be killed", || {
        killed(bench, rig)
    })?;
    report.case("sick", "too few storage daemons: unmounting works", || unmounted(bench, rig))?;
    report.case(
        "sick",
        "too few storage daemons: mounts with unwritten data can be got rid of",
        || unwritten(bench, rig),
    )
}

/// Calls wait, and end by themselves once enough storage daemons are back.
fn too_few(bench: &Bench, rig: &Rig) -> Outcome {
    let scratch = rig.scratch("few")?;
    bench.shell(rig.mount(), "head -c 200000 /dev/urandom > few && sync few", 30)?;
    bench.shell(rig.mount(), &format!("cp few '{}'", scratch.join("copy").display()), 30)?;
    FEW.iter().try_for_each(|name| rig.cluster.kill(name))?;
    let mut write = Command::new("bash");
    write.args(["-c", "cp few few-copied && sync few-copied"]).current_dir(rig.mount());
    let mut waiting = background(&mut write, &scratch.join("waiting"))?;
    bench.interrupt.sleep(Duration::from_secs(3))?;
    let waits = !waiting.has_ended();
    FEW.iter().try_for_each(|name| rig.cluster.start(name, &bench.interrupt))?;
    ensure!(waits, "a write was made durable though too few storage daemons were there");
    waiting.finish(bench, SOON_SECONDS)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    let copy = scratch.join("copy");
    bench
        .shell(rig.mount(), &format!("cmp few '{0}' && cmp few-copied '{0}'", copy.display()), 30)
        .map(drop)
}

/// The kernel lets a process that waits for FUSE die only when its call is answered, so every call
/// has a deadline.
fn killed(bench: &Bench, rig: &Rig) -> Outcome {
    let point = rig.scratch("second")?;
    let mut mount = rig.cluster.background_client();
    mount
        .args(["mount", "--daemon", "-o", "timeout=5"])
        .arg(rig.cluster.layout().monitor.to_string())
        .arg(&point);
    bench.shell(rig.mount(), "head -c 200000 /dev/urandom > doomed && sync doomed", 30)?;
    bench.run(&mut mount, 30)?;
    let read = || {
        let mut read = Command::new("dd");
        read.args(["if=doomed", "iflag=direct", "bs=64k", "status=none", "of=/dev/null"])
            .current_dir(&point);
        read
    };
    let outcome = bench.run(&mut read(), 30).and_then(|_| {
        FEW.iter().try_for_each(|name| rig.cluster.kill(name))?;
        let mut doomed = exec::spawn(&mut read(), "dd")?;
        bench.interrupt.sleep(Duration::from_secs(1))?;
        let waits = matches!(doomed.try_wait(), Ok(None));
        exec::kill_group(&mut doomed);
        let ended = exec::wait(
            &mut doomed,
            "dd, killed",
            Duration::from_secs(SOON_SECONDS),
            &bench.interrupt,
        );
        ensure!(waits, "a read ended though too few storage daemons were there");
        ended.map(drop)
    });
    mounts::clear(&point);
    FEW.iter().try_for_each(|name| rig.cluster.start(name, &bench.interrupt))?;
    rig.wait_clean(bench, SOON_SECONDS).and(outcome)
}

fn unmounted(bench: &Bench, rig: &Rig) -> Outcome {
    bench.shell(rig.mount(), "echo kept > kept && sync kept", 30)?;
    FEW.iter().try_for_each(|name| rig.cluster.kill(name))?;
    let gone = rig.cluster.unmount(&bench.interrupt);
    FEW.iter().try_for_each(|name| rig.cluster.start(name, &bench.interrupt))?;
    gone?;
    rig.cluster.start(MOUNT, &bench.interrupt)?;
    rig.wait_clean(bench, SOON_SECONDS)?;
    bench.shell(rig.mount(), "grep -qx kept kept", 30).map(drop)
}

/// A mount of its own, with data in the kernel that no storage daemon has, and a process that has
/// it open.
struct Dirty {
    client: Option<Background>,
    point: PathBuf,
    holder: Child,
}

impl Dirty {
    fn start(bench: &Bench, rig: &Rig, name: &str) -> Outcome<Dirty> {
        let point = rig.scratch(&format!("dirty-{name}"))?;
        let mut mount = rig.cluster.command("fuse-client");
        mount
            .args(["mount", "-o", "timeout=5"])
            .arg(rig.cluster.layout().monitor.to_string())
            .arg(&point);
        let client = Some(background(&mut mount, &point.with_extension("out"))?);
        rig.wait_for(bench, "a mount", 30, || Ok(mounts::kind_at(&point).is_some()))?;
        let ready = point.with_extension("ready");
        let line = format!(
            "exec 3> dirty-{name}; head -c 4M /dev/urandom >&3; touch '{}'; exec sleep 1000",
            ready.display()
        );
        let holder =
            exec::spawn(Command::new("bash").args(["-c", &line]).current_dir(&point), "bash")?;
        let dirty = Dirty { client, point, holder };
        rig.wait_for(bench, "unwritten data", 30, || Ok(ready.exists()))?;
        Ok(dirty)
    }

    /// Kills who has the file open; its last close may wait as long as a call may.
    fn release(&mut self, bench: &Bench) -> Outcome {
        exec::kill_group(&mut self.holder);
        exec::wait(
            &mut self.holder,
            "a writer, killed",
            Duration::from_secs(SOON_SECONDS),
            &bench.interrupt,
        )
        .map(drop)
    }

    /// Unmounts, trying again while somebody is still there.
    fn unmount(&self, bench: &Bench, rig: &Rig, words: &[&str]) -> Outcome {
        let what = format!("{} of a mount with unwritten data", words.join(" "));
        rig.wait_for(bench, &what, SOON_SECONDS, || {
            let deadline = Duration::from_secs(SOON_SECONDS);
            exec::run(
                Command::new(words[0]).args(&words[1..]).arg(&self.point),
                deadline,
                &bench.interrupt,
            )?;
            Ok(mounts::kind_at(&self.point).is_none())
        })
    }
}

impl Drop for Dirty {
    fn drop(&mut self) {
        exec::kill_group(&mut self.holder);
        mounts::clear(&self.point);
    }
}

/// A way to get rid of a mount.
type End = fn(&Bench, &Rig, &mut Dirty) -> Outcome;

fn unwritten(bench: &Bench, rig: &Rig) -> Outcome {
    let start = |name| Dirty::start(bench, rig, name);
    let all = ["gentle", "helper", "forced", "lazy", "killed"].map(start);
    let outcome = all.into_iter().collect::<Outcome<Vec<Dirty>>>().and_then(|all| {
        FEW.iter().try_for_each(|name| rig.cluster.kill(name))?;
        let ends: [End; 5] = [
            |bench, rig, dirty| {
                dirty.release(bench).and_then(|()| dirty.unmount(bench, rig, &["umount"]))
            },
            |bench, rig, dirty| {
                dirty
                    .release(bench)
                    .and_then(|()| dirty.unmount(bench, rig, &["fusermount3", "-u"]))
            },
            // these while the file is open
            |bench, rig, dirty| {
                dirty
                    .unmount(bench, rig, &["umount", "-f", "-l"])
                    .and_then(|()| dirty.release(bench))
            },
            |bench, rig, dirty| {
                dirty.unmount(bench, rig, &["umount", "-l"]).and_then(|()| dirty.release(bench))
            },
            |bench, _, dirty| {
                dirty.client.as_mut().map_or(Ok(()), Background::kill_unawaited)?;
                dirty.release(bench)
            },
        ];
        // All at once: each waits for deadlines.
        std::thread::scope(|scope| {
            let run = |(mut dirty, end): (Dirty, End)| {
                scope.spawn(move || {
                    end(bench, rig, &mut dirty)?;
                    dirty.client.take().map_or(Ok(()), |client| client.end(bench, SOON_SECONDS))
                })
            };
            let running: Vec<_> = all.into_iter().zip(ends).map(run).collect();
            let ended = |thread: std::thread::ScopedJoinHandle<'_, Outcome>| {
                thread.join().unwrap_or_else(|_| fail("a thread of the test panicked"))
            };
            running.into_iter().map(ended).collect::<Vec<_>>().into_iter().collect()
        })
    });
    for name in FEW {
        // what was not killed runs
        if rig.cluster.daemon(name)?.pid().is_none() {
            rig.cluster.start(name, &bench.interrupt)?;
        }
    }
    rig.wait_clean(bench, SOON_SECONDS).and(outcome)
}
