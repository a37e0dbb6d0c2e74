//! What goes on while a part is sick: a writer that fsyncs again and again, and a reader.

use super::super::Bench;
use super::super::rig::{Background, Rig, background};
use super::SOON_SECONDS;
use crate::error::{Context, Outcome, ensure};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Fsyncs that must be answered while a part is sick.
const FSYNCS_MORE: usize = 5;
/// Reads too: as many as there are files, so that every storage daemon is concerned.
const READS_MORE: u64 = 8;

/// Both, and their notes.
pub struct Load {
    writer: Background,
    reader: Background,
    manifest: PathBuf,
    notes: PathBuf,
    stop: PathBuf,
    place: [OsString; 6],
}

impl Load {
    /// Starts them in a directory of this name, and waits until they are under way.
    pub fn start(bench: &Bench, rig: &Rig, name: &str) -> Outcome<Load> {
        let scratch = rig.scratch(name)?;
        let in_scratch = |name: &str| scratch.join(name);
        let [manifest, notes, stop, copies] =
            ["manifest", "notes", "stop", "copies"].map(in_scratch);
        let (dir, read) = (rig.mount().join(name), rig.mount().join(format!("{name}-read")));
        // Of several files, since of a single object's group one storage daemon holds no data.
        let line = format!(
            "mkdir -p '{0}' '{1}'; for i in $(seq {READS_MORE}); do \
             head -c 1M /dev/urandom | tee '{0}'/$i > '{1}'/$i; done; sync '{1}'/*",
            copies.display(),
            read.display()
        );
        bench.shell(&scratch, &line, 60)?;
        let place = [
            "--seed".into(),
            "5".into(),
            "--dir".into(),
            dir.into(),
            "--manifest".into(),
            manifest.clone().into(),
        ];
        let until = |command: &mut std::process::Command, out: &str| {
            background(command.arg("--stop").arg(&stop), &scratch.join(out))
        };
        let writer = until(bench.xtask(&["stamp", "write", "--direct"]).args(&place), "out")?;
        let paths: [(&str, &Path); 3] =
            [("--dir", &read), ("--copies", &copies), ("--notes", &notes)];
        let mut command = bench.xtask(&["stamp", "read"]);
        for (option, path) in paths {
            command.arg(option).arg(path);
        }
        let reader = until(&mut command, "out-of-reads")?;
        let load = Load { writer, reader, manifest, notes, stop, place };
        load.goes_on(bench, "at first")?;
        Ok(load)
    }

    /// Fsyncs answered so far.
    fn fsyncs(&self) -> usize {
        fs::read_to_string(&self.manifest)
            .unwrap_or_default()
            .lines()
            .filter(|line| *line == "s")
            .count()
    }

    /// Reads answered so far.
    fn reads(&self) -> u64 {
        fs::metadata(&self.notes).map_or(0, |metadata| metadata.len())
    }

    /// Some more fsyncs and reads are answered, counted from now.
    pub fn goes_on(&self, bench: &Bench, when: &str) -> Outcome {
        let (fsyncs, reads, begin) =
            (self.fsyncs() + FSYNCS_MORE, self.reads() + READS_MORE, Instant::now());
        while self.fsyncs() < fsyncs || self.reads() < reads {
            let is_soon = begin.elapsed().as_secs() < SOON_SECONDS;
            let (fsyncs, reads) =
                (fsyncs.saturating_sub(self.fsyncs()), reads.saturating_sub(self.reads()));
            ensure!(
                is_soon,
                "{when}: {fsyncs} fsyncs and {reads} reads are not answered within {SOON_SECONDS} s"
            );
            bench.interrupt.sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// They end well, and everything is as promised.
    pub fn finish(self, bench: &Bench) -> Outcome {
        fs::write(&self.stop, "").doing(|| "cannot write the stop file")?;
        let wrote = self.writer.finish(bench, SOON_SECONDS)?;
        let read = self.reader.finish(bench, SOON_SECONDS)?;
        println!("        {}; {}", wrote.trim(), read.trim());
        bench.run(bench.xtask(&["stamp", "verify"]).args(&self.place), SOON_SECONDS).map(drop)
    }
}

/// Reads for which a mount asked others than those that it had asked first, so far.
pub fn hedges(bench: &Bench, rig: &Rig) -> Outcome<u64> {
    let mut command = rig.cluster.command("trefoil");
    command.args(["profile", "--json", "--filter", "hedged read"]);
    let said = bench.run(&mut command, 60)?.stdout;
    let shown: serde_json::Value =
        serde_json::from_str(&said).doing(|| "the profile is no JSON")?;
    let rows = shown["operations"].as_array().into_iter().flatten();
    Ok(rows.filter_map(|row| row["calls"].as_u64()).sum())
}
