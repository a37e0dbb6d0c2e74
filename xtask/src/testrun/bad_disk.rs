//! Disks that lie or end in the middle.

use super::Bench;
use super::report::Report;
use super::rig::Rig;
use crate::cluster::layout::osd_name;
use crate::error::{Context, Outcome, ensure};
use crate::tree::Tree;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    if let Some(rig) = Rig::start("disk", bench, report, |spec| spec)? {
        report.case("disk", "flipped bytes are served right, counted, and repaired", || {
            flipped(bench, &rig)
        })?;
        report.case("disk", "a torn journal tail is cut", || torn_tail(bench, &rig))?;
        rig.finish(bench, report)?;
    }
    Ok(())
}

/// Fragment files of a storage daemon that hold these bytes, and where.
fn find(rig: &Rig, osd: usize, needle: &[u8]) -> Outcome<Vec<(PathBuf, u64)>> {
    let root = rig.cluster.data_dir(&osd_name(osd));
    let mut found = Vec::new();
    for path in Tree::list(&root, u64::MAX, u64::MAX)?.paths {
        // Only fragments: what is in a journal is read from there only at a restart.
        if path.components().any(|c| c.as_os_str() == "pg") && root.join(&path).is_file() {
            let bytes = fs::read(root.join(&path)).unwrap_or_default();
            let at = bytes.windows(needle.len()).position(|w| w == needle);
            found.extend(at.map(|at| (root.join(&path), at as u64)));
        }
    }
    Ok(found)
}

fn flipped(bench: &Bench, rig: &Rig) -> Outcome {
    let copy = rig.scratch("flip")?.join("copy");
    let mut bytes = vec![0; 1 << 20];
    fastrand::Rng::with_seed(11).fill(&mut bytes);
    fs::write(&copy, &bytes).doing(|| "cannot write")?;
    let line = format!("cp '{}' flipped; sync flipped", copy.display());
    bench.shell(rig.mount(), &line, 20)?;
    // One needle per chunk; with k = 2 neighbouring chunks lie on different storage daemons.
    let needles: Vec<&[u8]> =
        [100usize, 701].iter().map(|chunk| &bytes[chunk * 512..chunk * 512 + 64]).collect();
    let mut spots = Vec::new();
    rig.wait_for(bench, "the file's bytes in fragment files", 40, || {
        spots.clear();
        for needle in &needles {
            for osd in 0..rig.cluster.layout().osds.len() {
                spots.extend(
                    find(rig, osd, needle)?
                        .into_iter()
                        .map(|(path, at)| (osd, path, at, needle.to_vec())),
                );
            }
        }
        Ok(spots.len() >= needles.len())
    })?;
    let found_before = rig.osd_sum(bench, "corrupt_found")?;
    for (_, path, at, needle) in &spots {
        let file = OpenOptions::new().write(true).open(path).doing(|| "cannot open a fragment")?;
        file.write_all_at(&[needle[7] ^ 0x10], at + 7).doing(|| "cannot flip a byte")?;
    }
    rig.remount(bench)?;
    bench.shell(rig.mount(), &format!("cmp flipped '{}'", copy.display()), 30)?;
    let flips = spots.len() as u64;
    // A read that finds one storage daemon late takes the others' chunks: then the flipped byte is
    // met by a later one.
    let read = "dd if=flipped of=/dev/null bs=1M iflag=direct status=none";
    rig.wait_for(
        bench,
        "corrupt_found and corrupt_repaired in `trefoil status --json`",
        30,
        || {
            bench.shell(rig.mount(), read, 30)?;
            let found = rig.osd_sum(bench, "corrupt_found")?;
            Ok(found >= found_before + flips && rig.osd_sum(bench, "corrupt_repaired")? >= flips)
        },
    )?;
    rig.wait_for(bench, "the bytes on disk are right again", 30, || {
        let whole = |(osd, _, _, needle): &(usize, PathBuf, u64, Vec<u8>)| {
            Ok(!find(rig, *osd, needle)?.is_empty())
        };
        spots.iter().try_fold(true, |all, spot| Ok(all && whole(spot)?))
    })?;
    bench.shell(rig.mount(), &format!("cmp flipped '{}'", copy.display()), 30).map(drop)
}

fn torn_tail(bench: &Bench, rig: &Rig) -> Outcome {
    let copy = rig.scratch("torn")?.join("copy");
    let line = format!("head -c 3000000 /dev/urandom | tee '{}' > torn; sync torn", copy.display());
    bench.shell(rig.mount(), &line, 20)?;
    rig.cluster.kill("osd-1")?;
    let root = rig.cluster.data_dir("osd-1");
    let tree = Tree::list(&root, u64::MAX, u64::MAX)?;
    let in_journal = |p: &&PathBuf| p.components().any(|c| c.as_os_str() == "journal");
    let mut journals: Vec<PathBuf> =
        tree.paths.iter().filter(in_journal).map(|p| root.join(p)).collect();
    journals.retain(|p| p.is_file());
    ensure!(!journals.is_empty(), "no journal below {}", root.display());
    for journal in &journals {
        let mut noise = vec![0; 3_333];
        fastrand::Rng::with_seed(5).fill(&mut noise);
        let file = OpenOptions::new().append(true).open(journal);
        file.and_then(|mut f| f.write_all(&noise)).doing(|| "cannot spoil a journal")?;
    }
    rig.cluster.start("osd-1", &bench.interrupt)?;
    rig.wait_clean(bench, 60)?;
    rig.remount(bench)?;
    bench.shell(rig.mount(), &format!("cmp torn '{}'", copy.display()), 30).map(drop)
}
