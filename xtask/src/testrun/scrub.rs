//! Scrubs of a mounted cluster: damage of each kind is put on the disks, and must be found,
//! repaired or named.

use super::Bench;
use super::report::Report;
use super::rig::{Rig, RigTest, background};
use crate::cluster::layout::{Spec, osd_name};
use crate::error::{Context, Error, Outcome, ensure, fail};
use ec_store::fragment::{FragmentStore, Mark, SECTOR_BYTES, sector_crcs};
use ec_store::superblock::DataDir;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

/// Bytes of the file that every test looks at.
const FILE_BYTES: u64 = 3_000_000;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    if let Some(rig) = Rig::start("scrub", bench, report, |spec| spec)? {
        let tests: [RigTest; 4] = [
            ("under writes it finds nothing", under_writes),
            ("flipped bytes are found and repaired", flipped),
            ("a lost fragment is found and rebuilt", lost),
            ("what two of three cannot decide is named, and repaired on request", undecided),
        ];
        for (name, test) in tests {
            report.case("scrub", name, || test(bench, &rig))?;
        }
        rig.finish(bench, report)?;
    }
    let two_and_two = |spec: Spec| Spec { osds: 4, m: 2, ..spec };
    if let Some(rig) = Rig::start("scrub-2+2", bench, report, two_and_two)? {
        report.case("scrub", "with two parities a wrong shard is outvoted", || {
            outvoted(bench, &rig)
        })?;
        rig.finish(bench, report)?;
    }
    Ok(())
}

/// `trefoil scrub` with these words; gives what it printed.
fn scrub(bench: &Bench, rig: &Rig, words: &str) -> Outcome<String> {
    let mut command = rig.cluster.command("trefoil");
    command.arg("scrub").args(words.split_whitespace());
    Ok(bench.run(&mut command, 100)?.stdout)
}

/// A number of scrubbing in the status, summed over the storage daemons.
fn total(bench: &Bench, rig: &Rig, field: &str) -> Outcome<u64> {
    let status = rig.cluster.status(&bench.interrupt)?;
    let osds = status["osds"].as_array().cloned().unwrap_or_default();
    Ok(osds.iter().filter_map(|osd| osd["scrub"][field].as_u64()).sum())
}

/// A file of random bytes in the mount, on all disks, with a copy of it beside.
fn written(bench: &Bench, rig: &Rig, name: &str) -> Outcome<PathBuf> {
    let copy = rig.scratch("copies")?.join(name);
    let line = format!(
        "head -c {FILE_BYTES} /dev/urandom | tee '{}' > {name}; sync {name}",
        copy.display()
    );
    bench.shell(rig.mount(), &line, 30)?;
    Ok(copy)
}

/// The mount gives the copy's bytes, with no cache of the client left.
fn compare(bench: &Bench, rig: &Rig, name: &str, copy: &std::path::Path) -> Outcome {
    rig.remount(bench)?;
    bench.shell(rig.mount(), &format!("cmp {name} '{}'", copy.display()), 30).map(drop)
}

/// The data directory of a storage daemon.
fn osd_dir(rig: &Rig, osd: usize) -> PathBuf {
    rig.cluster.data_dir(&osd_name(osd)).join(format!("osd.{osd}"))
}

/// Where a piece of the file that a storage daemon holds lies: its fragment file, and the place in
/// it.
fn find(rig: &Rig, osd: usize, copy: &std::path::Path) -> Outcome<Option<(PathBuf, u64)>> {
    let bytes = fs::read(copy).doing(|| "cannot read the copy")?;
    let Ok(pgs) = fs::read_dir(osd_dir(rig, osd).join("pg")) else { return Ok(None) };
    for pg in pgs.flatten() {
        for entry in fs::read_dir(pg.path()).doing(|| "no fragments")?.flatten() {
            let held = fs::read(entry.path()).unwrap_or_default();
            // neighbouring chunks lie on different storage daemons
            for chunk in 1_000..1_000 + rig.cluster.layout().k as usize {
                let needle = &bytes[chunk * 512..chunk * 512 + 64];
                if let Some(at) = held.windows(needle.len()).position(|window| window == needle) {
                    return Ok(Some((entry.path(), at as u64)));
                }
            }
        }
    }
    Ok(None)
}

/// A storage daemon that holds data of the file, its fragment file, and a place in it; waits until
/// journals are applied.
fn place(bench: &Bench, rig: &Rig, copy: &std::path::Path) -> Outcome<(usize, PathBuf, u64)> {
    let mut found = None;
    rig.wait_for(bench, "the file's bytes in fragment files", 40, || {
        for osd in 0..rig.cluster.layout().osds.len() {
            if let Some((path, at)) = find(rig, osd, copy)? {
                found = Some((osd, path, at));
            }
        }
        Ok(found.is_some())
    })?;
    found.ok_or_else(|| Error::Failed("found, and not".into()))
}

/// Journals are trimmed: what is on disk is all there is, and repairs need not wait.
fn settled(bench: &Bench, rig: &Rig) -> Outcome {
    bench.interrupt.sleep(std::time::Duration::from_secs(6))?;
    rig.wait_clean(bench, 60)
}

fn under_writes(bench: &Bench, rig: &Rig) -> Outcome {
    let line = "for i in $(seq 60); do dd if=/dev/urandom of=busy bs=64k count=8 seek=$((i % 7 * 5)) conv=notrunc \
                status=none; echo $i >> log; done; sync busy";
    let output = rig.scratch("writes")?.join("out");
    let writer =
        background(Command::new("bash").args(["-ec", line]).current_dir(rig.mount()), &output)?;
    let before = total(bench, rig, "pgs")?;
    for words in ["--wait", "--deep --wait"] {
        let said = scrub(bench, rig, words)?;
        ensure!(said.contains("nothing open"), "a scrub under writes says: {said}");
    }
    writer.finish(bench, 60)?;
    rig.wait_for(bench, "the totals of the scrubs", 20, || {
        Ok(total(bench, rig, "pgs")? >= before + 64)
    })?;
    ensure!(total(bench, rig, "objects")? > 0, "no object was looked at");
    ensure!(total(bench, rig, "found")? == 0, "damage was found where there is none");
    Ok(())
}

fn flipped(bench: &Bench, rig: &Rig) -> Outcome {
    let copy = written(bench, rig, "flipped")?;
    let (_, path, at) = place(bench, rig, &copy)?;
    settled(bench, rig)?;
    let repaired = rig.osd_sum(bench, "corrupt_repaired")?;
    let file =
        OpenOptions::new().read(true).write(true).open(&path).doing(|| "cannot open a fragment")?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at + 9).doing(|| "cannot read a fragment")?;
    file.write_all_at(&[byte[0] ^ 0x20], at + 9).doing(|| "cannot flip a byte")?;
    let said = scrub(bench, rig, "--wait")?;
    ensure!(said.contains("nothing open"), "the scrub says: {said}");
    let mut after = [0];
    file.read_exact_at(&mut after, at + 9).doing(|| "cannot read a fragment")?;
    ensure!(after == byte, "the byte is still flipped after the scrub");
    rig.wait_for(bench, "the repair in the status", 20, || {
        Ok(rig.osd_sum(bench, "corrupt_repaired")? > repaired)
    })?;
    compare(bench, rig, "flipped", &copy)
}

fn lost(bench: &Bench, rig: &Rig) -> Outcome {
    let copy = written(bench, rig, "lost")?;
    let (osd, path, _) = place(bench, rig, &copy)?;
    settled(bench, rig)?;
    fs::remove_file(&path).doing(|| "cannot remove a fragment")?;
    let said = scrub(bench, rig, "--wait")?;
    ensure!(said.contains("nothing open"), "the scrub says: {said}");
    ensure!(path.exists(), "the fragment was not rebuilt");
    // the rebuilt one is needed when another dies
    let other = osd_name((osd + 1) % 3);
    rig.cluster.kill(&other)?;
    let compared = compare(bench, rig, "lost", &copy);
    rig.cluster.start(&other, &bench.interrupt)?;
    compared?;
    rig.wait_clean(bench, 60)
}

/// Puts other bytes with right checksums into a fragment of a storage daemon that is stopped for
/// it.
fn falsify(bench: &Bench, rig: &Rig, osd: usize, path: &std::path::Path, at: u64) -> Outcome {
    let name = osd_name(osd);
    rig.cluster.stop(&name, &bench.interrupt)?;
    let falsified = write_falsely(rig, osd, path, at);
    rig.cluster.start(&name, &bench.interrupt)?;
    falsified?;
    rig.wait_clean(bench, 60)
}

fn write_falsely(rig: &Rig, osd: usize, path: &std::path::Path, at: u64) -> Outcome {
    let said = |error: &dyn std::fmt::Display| Error::Failed(error.to_string());
    let dir = osd_dir(rig, osd);
    let cluster = DataDir::peek(&dir).map_err(|e| said(&e))?.cluster;
    let mut store = FragmentStore::open_alone(dir.as_path(), cluster).map_err(|e| said(&e))?;
    for pg in store.list_pgs().map_err(|e| said(&e))? {
        for entry in store.list(pg).map_err(|e| said(&e))? {
            let (object, shard) = entry.map_err(|e| said(&e))?;
            let key = ec_store::fragment::FragmentKey { pg, object, shard };
            if !path.ends_with(format!("{pg}/{object}.{}", shard.get())) {
                continue;
            }
            let Some(file) = store.get(key).map_err(|e| said(&e))? else { continue };
            let length = fs::metadata(path).doing(|| "no fragment")?.len();
            let start = file.data_start();
            ensure!(at >= start && at < length, "{at} is not in the data of {}", path.display());
            let offset = (at - start) / SECTOR_BYTES * SECTOR_BYTES;
            let (bytes, mut crcs) = (vec![0x5a; SECTOR_BYTES as usize], Vec::new());
            sector_crcs(&bytes, &mut crcs);
            file.write(offset, &bytes, &crcs, Mark::default()).map_err(|e| said(&e))?;
            return file.sync().map_err(|e| said(&e));
        }
    }
    fail(format!("{} is no fragment of osd.{osd}", path.display()))
}

fn undecided(bench: &Bench, rig: &Rig) -> Outcome {
    let copy = written(bench, rig, "undecided")?;
    let (osd, path, at) = place(bench, rig, &copy)?;
    settled(bench, rig)?;
    falsify(bench, rig, osd, &path, at)?;
    let said = scrub(bench, rig, "--wait")?;
    ensure!(
        said.contains("nothing open"),
        "checksums cannot show it, but the light scrub says: {said}"
    );
    let said = scrub(bench, rig, "--deep --wait")?;
    ensure!(said.contains("not decided"), "the deep scrub says: {said}");
    rig.wait_for(bench, "a warning in the status, with the object's name", 20, || {
        let status = rig.cluster.status(&bench.interrupt)?;
        let named = status["scrub"]["findings"][0]["object"]
            .as_str()
            .is_some_and(|name| said.contains(name));
        Ok(named
            && status["health"] == "degraded"
            && status["messages"].to_string().contains("do not match"))
    })?;
    // it is not forgotten with the process
    for name in (0..3).map(osd_name) {
        rig.cluster.stop(&name, &bench.interrupt)?;
        rig.cluster.start(&name, &bench.interrupt)?;
        rig.wait_clean(bench, 60)?;
    }
    rig.wait_for(bench, "the finding after a restart", 60, || {
        Ok(scrub(bench, rig, "list")?.contains("not decided"))
    })?;
    let object = said
        .lines()
        .find(|line| line.contains("not decided"))
        .and_then(|line| line.split_whitespace().next());
    let Some(object) = object else { return fail(format!("no object in: {said}")) };
    scrub(bench, rig, &format!("repair {object} --distrust osd.{osd}"))?;
    let said = scrub(bench, rig, "--deep --wait")?;
    ensure!(said.contains("nothing open"), "after the repair the deep scrub says: {said}");
    // health as a whole also tells of the disk of the machine that runs this
    rig.wait_for(bench, "a status without open findings and checksum errors", 20, || {
        let status = rig.cluster.status(&bench.interrupt)?;
        let messages = status["messages"].to_string();
        Ok(status["scrub"]["open"] == 0
            && !messages.contains("do not match")
            && !messages.contains("checksum errors"))
    })?;
    compare(bench, rig, "undecided", &copy)
}

fn outvoted(bench: &Bench, rig: &Rig) -> Outcome {
    let copy = written(bench, rig, "outvoted")?;
    let (osd, path, at) = place(bench, rig, &copy)?;
    settled(bench, rig)?;
    falsify(bench, rig, osd, &path, at)?;
    let said = scrub(bench, rig, "--deep --wait")?;
    ensure!(said.contains("nothing open"), "the scrub says: {said}");
    rig.wait_for(bench, "one found and repaired", 20, || {
        Ok(total(bench, rig, "found")? == 1 && total(bench, rig, "repaired")? == 1)
    })?;
    compare(bench, rig, "outvoted", &copy)
}
