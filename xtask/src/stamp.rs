//! A writer that knows what it was promised, and the verifier that holds the file system to it.
//!
//! Contract: the file is an array of 512-byte pieces. Every piece written carries seed, piece
//! number and version, and is filled from those, so that a torn, misplaced or stale piece shows.
//! Before a write its intent goes to the manifest, after an fsync a line that says so. A direct
//! write that was answered is noted too: it is beyond the kernel's cache, and what no fsync
//! followed must yet survive the death of any processes. Verified is: every piece holds a version
//! that was written to it, whole, and no older one than its last promised. The same for names: what
//! was made and fsynced is there, what was removed is gone.
//!
//! Manifest lines, outside the file system under test:
//!
//! ```text
//! w FIRST COUNT VERSION    pieces about to be written
//! a                        the last `w` was answered, and was direct
//! s                        everything written since the last `n` is fsynced
//! n                        a new writer: the last one's fsync may never have been answered
//! f NAME                   the name is durable (its content is its name)
//! u NAME                   the name is about to be removed
//! U NAME                   its removal is durable
//! ```

mod read;

use crate::error::{Context, Outcome, ensure, fail};
use clap::{Args, Subcommand};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Unit of stamping: half a stripe of the default pool, so that writes of partial stripes occur
/// too.
const PIECE_BYTES: usize = 512;
/// Marks a stamped piece.
const MAGIC: u64 = 0x7472_6566_6f69_6c73;
/// Most pieces of one write.
const WRITE_PIECES_MAX: u64 = 32;
/// The buffer of direct I/O stands at a multiple of this.
const ALIGN_BYTES: usize = 4096;

/// Writes, reads or verifies.
#[derive(Subcommand)]
pub enum StampTask {
    /// Writes until the stop file appears
    Write {
        #[command(flatten)]
        place: Place,
        /// Ends when this file exists
        #[arg(long)]
        stop: PathBuf,
        /// O_DIRECT
        #[arg(long)]
        direct: bool,
    },
    /// Reads files that do not change until the stop file appears
    Read {
        /// A directory on the file system under test
        #[arg(long)]
        dir: PathBuf,
        /// What its files hold
        #[arg(long)]
        copies: PathBuf,
        /// Grows by a byte with each read
        #[arg(long)]
        notes: PathBuf,
        /// Ends when this file exists
        #[arg(long)]
        stop: PathBuf,
    },
    /// Checks everything against the manifest
    Verify {
        #[command(flatten)]
        place: Place,
        /// Fails if fewer fsyncs than this were promised: nothing would be shown
        #[arg(long, default_value_t = 1)]
        syncs_min: u64,
        /// Holds it to fsyncs only: what was answered and not fsynced may be gone
        #[arg(long)]
        fsynced_only: bool,
    },
}

/// Where, and what.
#[derive(Args)]
pub struct Place {
    /// A directory on the file system under test
    #[arg(long)]
    dir: PathBuf,
    /// A file outside of it
    #[arg(long)]
    manifest: PathBuf,
    /// Of all randomness
    #[arg(long)]
    seed: u64,
    /// Size of the file in pieces of 512 bytes
    #[arg(long, default_value_t = 16_384)]
    pieces: u64,
}

/// Does it; prints one line of numbers.
///
/// # Errors
/// A broken promise, or an error of the file system while writing.
pub fn run(task: StampTask) -> Outcome {
    match task {
        StampTask::Write { place, stop, direct } => Writer::open(&place, direct)?.run(&stop),
        StampTask::Read { dir, copies, notes, stop } => read::run(&dir, &copies, &notes, &stop),
        StampTask::Verify { place, syncs_min, fsynced_only } => {
            verify(&place, syncs_min, fsynced_only)
        }
    }
}

/// What the manifest says.
#[derive(Debug, Default)]
struct Promises {
    /// What was answered is none.
    fsynced_only: bool,
    /// Versions written to a piece, ascending; the first is the last promised one, if any is.
    pieces: BTreeMap<u64, Vec<u64>>,
    /// The last write: pieces and version.
    last: Option<(u64, u64, u64)>,
    /// Pieces written since the last fsync line.
    open: Vec<(u64, u64)>,
    /// Name, and whether it must be there (`None`: it may).
    names: BTreeMap<String, Option<bool>>,
    version: u64,
    syncs: u64,
    acks: u64,
    /// Of all writes that were begun.
    bytes: u64,
}

impl Promises {
    fn parse(text: &str) -> Outcome<Promises> {
        Promises::default().read(text)
    }

    fn read(mut self, text: &str) -> Outcome<Promises> {
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok());
            match (words[0], number(1), number(2), number(3)) {
                ("w", Some(first), Some(count), Some(version)) => {
                    self.written(first, count, version)
                }
                ("a", ..) => self.answered(),
                ("s", ..) => self.synced(),
                ("n", ..) => (self.last, _) = (None, self.open.clear()),
                ("f", ..) if words.len() == 2 => {
                    self.names.insert(words[1].into(), Some(true));
                }
                ("u", ..) if words.len() == 2 => drop(self.names.insert(words[1].into(), None)),
                ("U", ..) if words.len() == 2 => {
                    self.names.insert(words[1].into(), Some(false));
                }
                // A writer killed in the middle of a line has not acted on it.
                _ if !text.ends_with('\n') && text.ends_with(line) => {}
                _ => return fail(format!("the manifest has a strange line: {line}")),
            }
        }
        Ok(self)
    }

    fn written(&mut self, first: u64, count: u64, version: u64) {
        for piece in first..first + count {
            // Version 0 stands for zeros, what a piece holds before its first write.
            self.pieces.entry(piece).or_insert_with(|| vec![0]).push(version);
            self.open.push((piece, version));
        }
        self.version = self.version.max(version);
        self.bytes += count * PIECE_BYTES as u64;
        self.last = Some((first, count, version));
    }

    fn answered(&mut self) {
        let Some((first, count, version)) = self.last.take() else { return };
        self.acks += 1;
        if !self.fsynced_only {
            (first..first + count).for_each(|piece| self.promise(piece, version));
        }
    }

    fn promise(&mut self, piece: u64, version: u64) {
        if let Some(versions) = self.pieces.get_mut(&piece) {
            versions.retain(|&v| v >= version);
        }
    }

    fn synced(&mut self) {
        self.syncs += 1;
        for (piece, version) in std::mem::take(&mut self.open) {
            self.promise(piece, version);
        }
    }
}

struct Writer<'a> {
    place: &'a Place,
    file: File,
    dir: File,
    manifest: File,
    rng: fastrand::Rng,
    version: u64,
    names: Vec<String>,
    buffer: Vec<u8>,
    direct: bool,
    longest: Duration,
}

impl<'a> Writer<'a> {
    fn open(place: &'a Place, direct: bool) -> Outcome<Writer<'a>> {
        let before = match fs::read_to_string(&place.manifest) {
            Ok(text) => Promises::parse(&text)?,
            Err(_) => Promises::default(),
        };
        let manifest = OpenOptions::new().create(true).append(true).open(&place.manifest);
        let mut manifest = manifest.doing(|| "cannot open the manifest")?;
        fs::create_dir_all(&place.dir).doing(|| format!("cannot make {}", place.dir.display()))?;
        let flags = if direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let path = place.dir.join("stamped");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(&path);
        let file = file.doing(|| format!("cannot open {}", path.display()))?;
        let dir = File::open(&place.dir).doing(|| "cannot open the directory")?;
        file.sync_all().and_then(|()| dir.sync_all()).doing(|| "cannot sync the new file")?;
        // Ends a line that a killed writer may have left unfinished.
        let torn = fs::read(&place.manifest).is_ok_and(|m| m.last().is_some_and(|&b| b != b'\n'));
        if torn {
            let whole = fs::read_to_string(&place.manifest).doing(|| "cannot read the manifest")?;
            let keep = whole.rfind('\n').map_or(0, |at| at + 1);
            manifest.set_len(keep as u64).doing(|| "cannot cut the manifest")?;
        }
        manifest.write_all(b"n\n").doing(|| "cannot write the manifest")?;
        let names = before
            .names
            .iter()
            .filter(|(_, there)| **there == Some(true))
            .map(|(n, _)| n.clone())
            .collect();
        let rng = fastrand::Rng::with_seed(
            place.seed ^ before.version.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        );
        let buffer = vec![0; ALIGN_BYTES + WRITE_PIECES_MAX as usize * PIECE_BYTES];
        let (version, longest) = (before.version, Duration::ZERO);
        Ok(Writer { place, file, dir, manifest, rng, version, names, buffer, direct, longest })
    }

    fn run(mut self, stop: &Path) -> Outcome {
        let (mut writes, mut syncs) = (0u64, 0u64);
        while !stop.exists() {
            let batch = self.rng.u64(1..=16);
            for _ in 0..batch {
                self.timed(Self::write_one)?;
            }
            self.timed(Self::sync)?;
            if self.rng.u8(0..4) == 0 {
                self.name_one()?;
            }
            writes += batch;
            syncs += 1;
        }
        self.sync()?;
        println!(
            "{writes} writes, {syncs} fsyncs, the longest took {} ms",
            self.longest.as_millis()
        );
        Ok(())
    }

    fn timed(&mut self, call: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        let begin = Instant::now();
        call(self)?;
        self.longest = self.longest.max(begin.elapsed());
        Ok(())
    }

    fn write_one(&mut self) -> Outcome {
        let count = self.rng.u64(1..=WRITE_PIECES_MAX.min(self.place.pieces));
        let first = self.rng.u64(0..=self.place.pieces - count);
        self.version += 1;
        self.note(&format!("w {first} {count} {}\n", self.version))?;
        let skew = self.buffer.as_ptr().align_offset(ALIGN_BYTES);
        let bytes = &mut self.buffer[skew..skew + count as usize * PIECE_BYTES];
        for (piece, slot) in (first..).zip(bytes.chunks_exact_mut(PIECE_BYTES)) {
            slot.copy_from_slice(&stamped(self.place.seed, piece, self.version));
        }
        self.file
            .write_all_at(bytes, first * PIECE_BYTES as u64)
            .doing(|| format!("write of {count} pieces at piece {first}"))?;
        if self.direct { self.note("a\n") } else { Ok(()) }
    }

    fn sync(&mut self) -> Outcome {
        self.file.sync_all().doing(|| "fsync")?;
        self.note("s\n")
    }

    /// Makes a name durable, by way of a rename, or removes one.
    fn name_one(&mut self) -> Outcome {
        if self.names.len() > 200 || (!self.names.is_empty() && self.rng.u8(0..4) == 0) {
            let name = self.names.swap_remove(self.rng.usize(0..self.names.len()));
            self.note(&format!("u {name}\n"))?;
            fs::remove_file(self.place.dir.join(&name)).doing(|| format!("unlink of {name}"))?;
            self.dir.sync_all().doing(|| "fsync of the directory")?;
            return self.note(&format!("U {name}\n"));
        }
        self.version += 1;
        let name = format!("name-{}", self.version);
        let temporary = self.place.dir.join(format!("temporary-{}", self.version));
        let mut file = File::create(&temporary).doing(|| format!("create of {name}"))?;
        file.write_all(name.as_bytes())
            .and_then(|()| file.sync_all())
            .doing(|| format!("write of {name}"))?;
        fs::rename(&temporary, self.place.dir.join(&name)).doing(|| format!("rename to {name}"))?;
        self.dir.sync_all().doing(|| "fsync of the directory")?;
        self.note(&format!("f {name}\n"))?;
        self.names.push(name);
        Ok(())
    }

    fn note(&mut self, line: &str) -> Outcome {
        self.manifest.write_all(line.as_bytes()).doing(|| "cannot write the manifest")
    }
}

/// The bytes of a piece in a version.
fn stamped(seed: u64, piece: u64, version: u64) -> [u8; PIECE_BYTES] {
    let mut bytes = [0; PIECE_BYTES];
    let mut rng = fastrand::Rng::with_seed(
        seed ^ piece.rotate_left(32) ^ version.wrapping_mul(0xd134_2543_de82_ef95),
    );
    rng.fill(&mut bytes[32..]);
    for (slot, value) in bytes.chunks_exact_mut(8).zip([MAGIC, seed, piece, version]) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Which version a piece holds, or what is wrong with it.
fn version_of(seed: u64, piece: u64, bytes: &[u8]) -> Result<u64, String> {
    if bytes.iter().all(|&b| b == 0) {
        return Ok(0);
    }
    let field =
        |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    if (field(0), field(1), field(2)) != (MAGIC, seed, piece) {
        return Err(format!("holds foreign bytes {:02x?}", &bytes[..32]));
    }
    let version = field(3);
    match bytes.iter().zip(stamped(seed, piece, version)).position(|(a, b)| *a != b) {
        None => Ok(version),
        Some(at) => Err(format!("is torn: version {version} is wrong from byte {at} on")),
    }
}

fn verify(place: &Place, syncs_min: u64, fsynced_only: bool) -> Outcome {
    let text = fs::read_to_string(&place.manifest).doing(|| "cannot read the manifest")?;
    let promises = Promises { fsynced_only, ..Promises::default() }.read(&text)?;
    ensure!(
        promises.syncs >= syncs_min,
        "only {} fsyncs were made: this would show nothing",
        promises.syncs
    );
    let path = place.dir.join("stamped");
    let mut bytes =
        crate::tree::read_uncached(&path).doing(|| format!("cannot read {}", path.display()))?;
    bytes.resize(place.pieces as usize * PIECE_BYTES, 0);
    let mut broken = Vec::new();
    for (piece, held) in (0u64..).zip(bytes.chunks_exact(PIECE_BYTES)) {
        let allowed = promises.pieces.get(&piece).map_or(&[0][..], Vec::as_slice);
        match version_of(place.seed, piece, held) {
            Ok(version) if allowed.contains(&version) => {}
            Ok(version) => broken
                .push(format!("piece {piece} has version {version}; promised: one of {allowed:?}")),
            Err(what) => broken.push(format!("piece {piece} {what}")),
        }
    }
    for (name, there) in &promises.names {
        let content = fs::read(place.dir.join(name));
        match (there, content) {
            (Some(true), Ok(bytes)) if bytes == name.as_bytes() => {}
            (Some(true), Ok(bytes)) => {
                broken.push(format!("{name} holds {:?}", String::from_utf8_lossy(&bytes)))
            }
            (Some(true), Err(e)) => broken.push(format!("{name} was fsynced and is lost: {e}")),
            (Some(false), Ok(_)) => broken.push(format!("{name} was removed for good and is back")),
            (Some(false), Err(_)) | (None, _) => {}
        }
    }
    let (count, first) =
        (broken.len(), broken.iter().take(8).cloned().collect::<Vec<_>>().join("\n  "));
    ensure!(broken.is_empty(), "{count} broken promises:\n  {first}");
    let (pieces, names) = (promises.pieces.len(), promises.names.len());
    let Promises { syncs, acks, bytes, .. } = promises;
    println!(
        "{pieces} pieces and {names} names as promised by {syncs} fsyncs and {acks} acks; {bytes} bytes written"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path) -> Place {
        Place { dir: dir.join("fs"), manifest: dir.join("manifest"), seed: 7, pieces: 64 }
    }

    /// Writes a few rounds into a plain directory.
    fn written(place: &Place) -> Promises {
        let mut writer = Writer::open(place, false).unwrap();
        for _ in 0..10 {
            writer.write_one().unwrap();
            writer.name_one().unwrap();
        }
        while writer.names.is_empty() {
            writer.name_one().unwrap();
        }
        writer.sync().unwrap();
        Promises::parse(&fs::read_to_string(&place.manifest).unwrap()).unwrap()
    }

    #[test]
    fn an_honest_file_system_passes_also_after_a_second_writer() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let first = written(&place);
        let second = written(&place);
        assert!(second.version > first.version);
        verify(&place, 2, false).unwrap();
        assert!(verify(&place, 100, false).is_err(), "too few fsyncs must not pass");
    }

    #[test]
    fn lost_torn_stale_and_forgotten_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let promises = written(&place);
        let (&piece, versions) = promises.pieces.iter().next().unwrap();
        let version = versions[0];
        let path = place.dir.join("stamped");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let at = piece * PIECE_BYTES as u64;
        let good = stamped(7, piece, version);
        let mut torn = good;
        torn[300..].copy_from_slice(&stamped(7, piece, version + 1)[300..]);
        let stale = stamped(7, piece, version.wrapping_sub(1));
        for bad in [[0; PIECE_BYTES], torn, stale, stamped(7, piece + 1, version)] {
            file.write_all_at(&bad, at).unwrap();
            assert!(verify(&place, 1, false).is_err());
            file.write_all_at(&good, at).unwrap();
            verify(&place, 1, false).unwrap();
        }
        let name = promises.names.iter().find(|(_, there)| **there == Some(true)).unwrap().0;
        fs::remove_file(place.dir.join(name)).unwrap();
        assert!(verify(&place, 1, false).is_err());
    }

    #[test]
    fn a_new_writers_fsync_promises_nothing_of_the_last_one() {
        let promises = Promises::parse("n\nw 0 1 1\ns\nw 0 1 2\nn\ns\n").unwrap();
        assert_eq!(promises.pieces[&0], [1, 2]);
    }

    #[test]
    fn an_answered_direct_write_is_a_promise_without_an_fsync() {
        let promises = Promises::parse("n\nw 0 2 1\na\nw 1 1 2\na\nw 0 1 3\nn\n").unwrap();
        assert_eq!((&promises.pieces[&0][..], &promises.pieces[&1][..]), (&[1, 3][..], &[2][..]));
        assert_eq!(promises.acks, 2);
        let fsynced = Promises { fsynced_only: true, ..Promises::default() };
        let fsynced = fsynced.read("n\nw 0 1 1\na\ns\nw 0 1 2\na\n").unwrap();
        assert_eq!((&fsynced.pieces[&0], fsynced.acks), (&vec![1, 2], 2), "both may be there");
        // the last writer's write was never answered
        assert_eq!(Promises::parse("w 0 1 1\nn\na\n").unwrap().pieces[&0], [0, 1]);
    }

    #[test]
    fn a_line_cut_by_a_kill_is_not_a_promise() {
        let promises = Promises::parse("w 0 2 1\ns\nw 1 1 2\nw 3 1").unwrap();
        assert_eq!(promises.pieces[&0], [1]);
        assert_eq!(promises.pieces[&1], [1, 2]);
        assert!(!promises.pieces.contains_key(&3));
        assert!(Promises::parse("x\ns\n").is_err());
    }
}
