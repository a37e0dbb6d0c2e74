//! Disks that lie, and disks that are replaced. One storage daemon at a time: what a 2+1 volume
//! survives.

use super::Arena;
use super::load::COLD_BYTES;
use crate::cluster::Cluster;
use crate::cluster::layout::osd_name;
use crate::error::{Context, Outcome, ensure, fail};
use ec_store::fragment::{FragmentKey, FragmentStore, ReadMode, SECTOR_BYTES};
use ec_store::layout::Layout;
use ec_store::superblock::DataDir;
use protocol::Gfid;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that are flipped at most, each in a fragment of its own.
const FLIPS: usize = 8;
/// What was read wrong is right on the disk again within this time.
const REPAIRED_MAX: Duration = Duration::from_secs(60);
/// Sectors of a fragment among which one is chosen.
const EXTENTS: usize = 64;

/// The directory of a storage daemon's disk.
///
/// # Errors
/// When there is none.
pub fn osd_dir(cluster: &Cluster, id: usize) -> Outcome<PathBuf> {
    let data = cluster.data_dir(&osd_name(id));
    let entries = std::fs::read_dir(&data).doing(|| format!("no directory {}", data.display()))?;
    let found =
        entries.flatten().map(|entry| entry.path()).find(|path| path.join("superblock").exists());
    found.map_or_else(|| fail(format!("no superblock below {}", data.display())), Ok)
}

/// A byte on a disk.
struct Flip {
    key: FragmentKey,
    /// Offset in the fragment.
    offset: u64,
}

impl Arena<'_> {
    /// Flips bytes of the files that do not change, in data shards on one disk; they must be read
    /// right all the same, and be right on the disk again soon after. Nothing is written meanwhile.
    /// Returns what was done, in words.
    pub(super) fn flip(&mut self) -> Outcome<String> {
        let osd = self.rng.usize(0..self.cluster.layout().osds.len());
        let dir = osd_dir(&self.cluster, osd)?;
        let files = self.load.cold_inodes(self.bench)?;
        let flips = self.flip_bytes(&dir, &files)?;
        let words = format!("flip {} bytes (osd-{osd})", flips.len());
        ensure!(!flips.is_empty(), "no fragment of the files that do not change is on osd-{osd}");
        self.counts.flipped += flips.len() as u64;
        let end = Instant::now() + REPAIRED_MAX;
        loop {
            // again: a mount that has just begun reads from those shards that answered first
            self.load.compare_cold(self.bench).doing(|| words.clone())?;
            self.bench.interrupt.sleep(Duration::from_millis(200))?;
            let Some(bad) = first_bad(&dir, &flips)? else { break };
            ensure!(Instant::now() < end, "{words}: {bad}, though it was read");
        }
        Ok(words)
    }

    fn flip_bytes(&mut self, dir: &Path, files: &BTreeSet<Gfid>) -> Outcome<Vec<Flip>> {
        let mut store = open(dir)?;
        let mut keys = Vec::new();
        for pg in store.list_pgs().doing(|| "cannot list placement groups")? {
            for found in store.list(pg).doing(|| "cannot list fragments")? {
                let (object, shard) = found.doing(|| "cannot list fragments")?;
                if files.contains(&object.gfid) && shard.get() < self.cluster.layout().k {
                    keys.push(FragmentKey { pg, object, shard });
                }
            }
        }
        keys.sort_unstable();
        self.rng.shuffle(&mut keys);
        let mut flips = Vec::new();
        for key in keys.into_iter().take(FLIPS) {
            let Some(file) = store.get(key).doing(|| "cannot open a fragment")? else { continue };
            let extents = file.data_extents(0, EXTENTS).doing(|| "cannot list extents")?;
            // Sectors behind the end of the file hold zeros that no read asks for; a scrub finds
            // what is wrong there.
            let read =
                Layout::new(file.profile()).shard_sectors(key.shard, &(0..COLD_BYTES as u64));
            let cut = |extent: Range<u64>| extent.start.max(read.start)..extent.end.min(read.end);
            let extents: Vec<_> =
                extents.into_iter().map(cut).filter(|extent| !extent.is_empty()).collect();
            let Some(extent) = self.rng.choice(extents) else { continue };
            let offset = self.rng.u64(extent);
            let at = file.data_start() + offset;
            let path = dir.join(format!("pg/{}/{}.{}", key.pg, key.object, key.shard.get()));
            let raw = OpenOptions::new().read(true).write(true).open(&path);
            let raw = raw.doing(|| format!("cannot open {}", path.display()))?;
            let mut byte = [0];
            raw.read_exact_at(&mut byte, at).doing(|| "cannot read a byte to flip")?;
            raw.write_all_at(&[byte[0] ^ 0x20], at).doing(|| "cannot flip a byte")?;
            flips.push(Flip { key, offset });
        }
        ensure!(
            flips.is_empty() || first_bad(dir, &flips)?.is_some(),
            "the flipped bytes still pass their checksum"
        );
        Ok(flips)
    }

    /// Kills a storage daemon, empties its disk, gives that up, and starts it; it is rebuilt under
    /// what comes next.
    pub(super) fn replace_disk(&mut self) -> Outcome<String> {
        let osd = self.rng.usize(0..self.cluster.layout().osds.len());
        let (name, dir) = (osd_name(osd), osd_dir(&self.cluster, osd)?);
        self.cluster.kill(&name)?;
        std::fs::remove_dir_all(&dir).doing(|| format!("cannot empty {}", dir.display()))?;
        self.cluster.replace(osd, &self.bench.interrupt)?;
        self.cluster.start(&name, &self.bench.interrupt)?;
        self.counts.fault("replace a disk");
        Ok(format!("replace a disk ({name})"))
    }
}

fn open(dir: &Path) -> Outcome<FragmentStore> {
    let superblock = DataDir::peek(dir).doing(|| "cannot read a superblock")?;
    FragmentStore::open_alone(dir, superblock.cluster).doing(|| "cannot open fragments")
}

/// The first of these places whose sector is not as its checksum says.
fn first_bad(dir: &Path, flips: &[Flip]) -> Outcome<Option<String>> {
    // Opened anew each time: a file that is open keeps its table of checksums.
    let mut store = open(dir)?;
    let mut sector = vec![0; SECTOR_BYTES as usize];
    for flip in flips {
        let start = flip.offset / SECTOR_BYTES * SECTOR_BYTES;
        let Some(file) = store.get(flip.key).doing(|| "cannot open a fragment")? else { continue };
        if let Err(error) = file.read(start, &mut sector, ReadMode::Blocking) {
            return Ok(Some(error.to_string()));
        }
    }
    Ok(None)
}
