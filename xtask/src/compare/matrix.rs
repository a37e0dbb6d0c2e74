//! Runs the chosen cells on all systems in turn: a cell on every peer and on Trefoil, then again,
//! then the next cell.
//!
//! Contract: a run that fails is noted, the cells after it are measured all the same, and a system
//! that failed in a block of cells is left out of the rest of that block. A system's turn begins
//! when the one before is at rest. Faults come after everything that needs whole systems.

use super::cells::{CLIENTS_MAX, Cell, FioJob, NameCall, TreeCall, Work};
use super::fio::Files;
use super::journal::Journal;
use super::load::Loads;
use super::sample::{Measured, Metrics};
use super::system::System;
use crate::error::{Context, Error, Outcome, ensure};
use std::mem::discriminant;
use std::process::Command;
use std::time::Duration;

/// A heal that is not over by then is noted as such.
const HEAL_MAX: Duration = Duration::from_secs(300);
/// Within this time of a kill a small file can be written again, or the cell fails.
const GOES_ON_SECONDS_MAX: u64 = 60;
/// Who only heals when asked is asked this long after the part's return at most, before the load
/// begins.
const HEAL_BEGUN: Duration = Duration::from_secs(2);

/// What a step returns: each cell that it measured, by its title.
type Steps = Vec<(String, Measured)>;

/// Everything of a run.
pub struct Matrix<'a> {
    /// Runs the loads.
    pub loads: Loads<'a>,
    /// Peers, then Trefoil.
    pub systems: Vec<Box<dyn System>>,
    /// Keeps what was measured.
    pub journal: Journal,
}

impl Matrix<'_> {
    /// Measures; `after` is called after each block of cells.
    ///
    /// # Errors
    /// On Ctrl-C, or when nothing can be kept; failures of cells are in the journal.
    pub fn run(&mut self, cells: &[Cell], mut after: impl FnMut(&Journal) -> Outcome) -> Outcome {
        if let Some(first) =
            cells.iter().find(|cell| matches!(cell.work, Work::Fio(_) | Work::Dead(_)))
        {
            self.once(&first.title(), |loads, system| loads.prepare(system.area(), loads.files()))?;
        }
        for block in cells.chunk_by(|a, b| discriminant(&a.work) == discriminant(&b.work)) {
            match block[0].work {
                Work::Fio(_) => self.fio(block)?,
                Work::Dd { .. } => self.each_run(block, dd)?,
                Work::Names(_) => self.each_run(block, names)?,
                Work::Tree(_) => self.each_run(block, tree)?,
                Work::Clients(_) => self.clients(block)?,
                Work::Memory => self.memory(&block[0])?,
                Work::Dead(_) => self.dead(block)?,
                Work::Heal => self.each_run(block, heal)?,
                Work::Healing(_) => self.healing(block)?,
            }
            after(&self.journal)?;
        }
        Ok(())
    }

    /// Does something on every system; where it fails, that is noted with a cell.
    fn once(
        &mut self,
        cell: &str,
        mut step: impl FnMut(&Loads<'_>, &mut dyn System) -> Outcome,
    ) -> Outcome {
        for system in &mut self.systems {
            match step(&self.loads, system.as_mut()) {
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => self.journal.failed((cell, system.name(), 0), &error.to_string())?,
                Ok(()) => {}
            }
            self.loads.rest(system.as_ref())?;
        }
        Ok(())
    }

    /// Every run on every system in turn.
    fn each_run(
        &mut self,
        block: &[Cell],
        mut step: impl FnMut(&Loads<'_>, &mut dyn System, &[Cell], u32) -> Outcome<Steps>,
    ) -> Outcome {
        let mut broken = vec![false; self.systems.len()];
        for run in 1..=self.loads.sizes.runs {
            for (system, broken) in
                self.systems.iter_mut().zip(&mut broken).filter(|(_, broken)| !**broken)
            {
                match step(&self.loads, system.as_mut(), block, run) {
                    Err(Error::Interrupted) => return Err(Error::Interrupted),
                    Err(error) => {
                        *broken = true;
                        for cell in block {
                            self.journal
                                .failed((&cell.title(), system.name(), run), &error.to_string())?;
                        }
                    }
                    Ok(measured) => {
                        for (cell, measured) in measured {
                            self.journal.measured((&cell, system.name(), run), measured)?;
                        }
                    }
                }
                self.loads.rest(system.as_ref())?;
            }
        }
        Ok(())
    }

    /// Each cell by itself, so that its runs lie side by side; those with a part dead on systems of
    /// several.
    fn fio(&mut self, block: &[Cell]) -> Outcome {
        for cell in block.chunks(1) {
            self.each_run(cell, |loads, system, cell, _| {
                let job = match &cell[0].work {
                    Work::Fio(job) => job,
                    Work::Dead(job) if system.parts().is_some() => job,
                    _ => return Ok(Vec::new()),
                };
                let mounts = [system.area().to_path_buf()];
                Ok(vec![(cell[0].title(), loads.fio(system, job, &mounts, loads.files())?)])
            })?;
        }
        Ok(())
    }

    /// Mounts come as cells need them, the fewest first, and go in the end.
    fn clients(&mut self, block: &[Cell]) -> Outcome {
        let files =
            Files { prefix: "c", count: CLIENTS_MAX, mib: self.loads.sizes.client_file_mib };
        self.once(block[0].name, |loads, system| match system.parts() {
            Some(_) => loads.prepare(system.area(), files),
            None => Ok(()),
        })?;
        for cell in block.chunks(1) {
            self.each_run(cell, |loads, system, cell, _| {
                let Work::Clients(count) = cell[0].work else { return Ok(Vec::new()) };
                let Some(parts) = system.parts() else { return Ok(Vec::new()) };
                let mounts = parts.mount_all(count)?;
                Ok(vec![(
                    cell[0].title(),
                    loads.fio(system, &super::cells::CLIENT_JOB, &mounts, files)?,
                )])
            })?;
        }
        self.once(block[0].name, |loads, system| {
            let area = system.area().to_path_buf();
            let Some(parts) = system.parts() else { return Ok(()) };
            parts.unmount_others()?;
            loads.clean(&files.paths(&area));
            Ok(())
        })
    }

    fn memory(&mut self, cell: &Cell) -> Outcome {
        for system in &self.systems {
            if system.processes().is_empty() {
                continue;
            }
            match self.loads.memory(system.as_ref()) {
                Ok(measured) => self.journal.measured((cell.name, system.name(), 1), measured)?,
                Err(error) => {
                    self.journal.failed((cell.name, system.name(), 1), &error.to_string())?
                }
            }
        }
        Ok(())
    }

    /// Each cell by itself, as those of [`fio`](Matrix::fio).
    fn healing(&mut self, block: &[Cell]) -> Outcome {
        for cell in block.chunks(1) {
            self.each_run(cell, |loads, system, cell, _| {
                let Work::Healing(job) = &cell[0].work else { return Ok(Vec::new()) };
                let measured = load_while_healing(loads, system, job)?;
                Ok(measured.map(|measured| (cell[0].title(), measured)).into_iter().collect())
            })?;
        }
        Ok(())
    }

    /// One part of each system is dead while its cells run. It returns to a system without the
    /// files that were written meanwhile: healing is a cell of its own.
    fn dead(&mut self, block: &[Cell]) -> Outcome {
        self.once(block[0].name, |loads, system| {
            let area = system.area().to_path_buf();
            let Some(parts) = system.parts() else { return Ok(()) };
            parts.kill_one()?;
            let mut write = Command::new("dd");
            write.arg("if=/dev/zero").arg(format!("of={}", area.join("goes-on").display()));
            loads.bench.run(write.args(["bs=4k", "count=1", "conv=fsync"]), GOES_ON_SECONDS_MAX)?;
            // Cells before have emptied the kernel's caches, and those without a fault were
            // measured warm.
            loads.warm(&area, loads.files())
        })?;
        self.fio(block)?;
        self.once(block[0].name, |loads, system| {
            let area = system.area().to_path_buf();
            let Some(parts) = system.parts() else { return Ok(()) };
            let mut left = loads.files().paths(&area);
            left.push(area.join("goes-on"));
            loads.clean(&left);
            let whole = parts.heal(HEAL_MAX)?;
            ensure!(
                whole.is_some(),
                "not whole {} s after the part was started again",
                HEAL_MAX.as_secs()
            );
            Ok(())
        })
    }
}

/// A part that was away returns while a load runs on what it missed.
fn load_while_healing(
    loads: &Loads<'_>,
    system: &mut dyn System,
    job: &FioJob,
) -> Outcome<Option<Measured>> {
    let area = system.area().to_path_buf();
    let files =
        Files { prefix: "h", count: job.jobs, mib: loads.sizes.heal_mib / u64::from(job.jobs) };
    let Some(parts) = system.parts() else { return Ok(None) };
    parts.kill_one()?;
    let written = loads.prepare(&area, files);
    parts.return_one()?;
    let before = parts.wait_whole(HEAL_BEGUN)?;
    let measured =
        written.and_then(|()| loads.fio(system, job, std::slice::from_ref(&area), files));
    let Some(parts) = system.parts() else { return Ok(None) };
    let after = parts.wait_whole(HEAL_MAX)?;
    loads.clean(&files.paths(&area));
    let after = after
        .ok_or("not whole")
        .doing(|| format!("healing, {} s after the load", HEAL_MAX.as_secs()))?;
    let mut measured = measured?;
    let more = if before.is_some() { 0.0 } else { after.as_secs_f64() };
    measured.metrics.insert("whole_after_load_s".to_owned(), more);
    Ok(Some(measured))
}

fn dd(loads: &Loads<'_>, system: &mut dyn System, block: &[Cell], _: u32) -> Outcome<Steps> {
    let mut measured = Vec::new();
    // What is read was written before, whether that is asked for or not.
    for write in [true, false] {
        let metrics = loads.dd(system, write)?;
        measured.extend(
            block.iter().find(|c| c.work == Work::Dd { write }).map(|cell| (cell.title(), metrics)),
        );
    }
    loads.clean(&[system.area().join("dd")]);
    Ok(measured)
}

fn names(loads: &Loads<'_>, system: &mut dyn System, block: &[Cell], run: u32) -> Outcome<Steps> {
    let dir = system.area().join(format!("names-{run}"));
    let mut measured = Vec::new();
    for call in
        [NameCall::Create, NameCall::Stat, NameCall::Readdir, NameCall::Rename, NameCall::Unlink]
    {
        let cell = block.iter().find(|c| c.work == Work::Names(call));
        // Others are only looked at; these leave what the next one needs.
        if cell.is_some() || matches!(call, NameCall::Create | NameCall::Rename | NameCall::Unlink)
        {
            let metrics = loads.names(system, &dir, call)?;
            measured.extend(cell.map(|cell| (cell.title(), metrics)));
        }
    }
    loads.clean(&[dir]);
    Ok(measured)
}

fn tree(loads: &Loads<'_>, system: &mut dyn System, block: &[Cell], run: u32) -> Outcome<Steps> {
    let dir = system.area().join(format!("tree-{run}"));
    std::fs::create_dir(&dir).doing(|| format!("cannot make {}", dir.display()))?;
    let mut measured = Vec::new();
    for call in [TreeCall::Extract, TreeCall::List, TreeCall::Remove] {
        let cell = block.iter().find(|c| c.work == Work::Tree(call));
        if cell.is_some() || call != TreeCall::List {
            let metrics = loads.tree(system, &dir, call)?;
            measured.extend(cell.map(|cell| (cell.title(), metrics)));
        }
    }
    Ok(measured)
}

fn heal(loads: &Loads<'_>, system: &mut dyn System, block: &[Cell], _: u32) -> Outcome<Steps> {
    let area = system.area().to_path_buf();
    let Some(parts) = system.parts() else { return Ok(Vec::new()) };
    parts.kill_one()?;
    let files = Files { prefix: "h", count: 1, mib: loads.sizes.heal_mib };
    let written = loads.prepare(&area, files);
    // Started again also if nothing could be written, so that the next cells find it whole.
    let whole = parts.heal(HEAL_MAX)?;
    written?;
    loads.clean(&files.paths(&area));
    let took = whole
        .ok_or("not over")
        .doing(|| format!("heal, after {} s", HEAL_MAX.as_secs()))?
        .as_secs_f64();
    let megabytes = loads.sizes.heal_mib as f64 * 1.048_576;
    let metrics = [("seconds", took), ("mb_per_s", megabytes / took)];
    let metrics: Metrics =
        metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(vec![(block[0].title(), metrics.into())])
}
