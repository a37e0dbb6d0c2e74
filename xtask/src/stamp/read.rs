//! A reader beside a writer: it reads what does not change, and tells how long it stood still at
//! most.

use crate::error::{Context, Outcome, ensure};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a read, and where it must begin.
const BLOCK_BYTES: usize = 64 << 10;
/// A multiple of this is where the buffer of direct I/O stands.
const ALIGN_BYTES: usize = 4096;
/// Between two reads: others need this machine, too.
const PAUSE: Duration = Duration::from_millis(2);

/// Reads blocks of the files in `dir` with O_DIRECT, in turn, until `stop` exists, and compares
/// them with those in `copies`. For each a byte goes to `notes`.
///
/// # Errors
/// When a read fails or gives other bytes.
pub fn run(dir: &Path, copies: &Path, notes: &Path, stop: &Path) -> Outcome {
    let mut files: Vec<(File, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(copies).doing(|| "cannot list the copies")?.flatten() {
        let path = dir.join(entry.file_name());
        let file =
            OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
        let copy = fs::read(entry.path()).doing(|| "cannot read a copy")?;
        files.push((file.doing(|| format!("cannot open {}", path.display()))?, copy));
    }
    ensure!(!files.is_empty(), "there is nothing to read");
    let mut notes = File::create(notes).doing(|| "cannot make the notes")?;
    let mut buffer = vec![0; ALIGN_BYTES + BLOCK_BYTES];
    let skew = buffer.as_ptr().align_offset(ALIGN_BYTES);
    let buffer = &mut buffer[skew..skew + BLOCK_BYTES];
    let (mut reads, mut longest) = (0, Duration::ZERO);
    while !stop.exists() {
        let (file, copy) = &files[reads % files.len()];
        let at = reads / files.len() * BLOCK_BYTES % copy.len();
        let begin = Instant::now();
        let read = file
            .read_at(buffer, at as u64)
            .doing(|| format!("read of {BLOCK_BYTES} bytes at {at}"))?;
        longest = longest.max(begin.elapsed());
        let wanted = &copy[at..copy.len().min(at + BLOCK_BYTES)];
        ensure!(buffer[..read] == *wanted, "the {read} bytes at {at} are others than were written");
        reads += 1;
        notes.write_all(b"r").doing(|| "cannot write the notes")?;
        std::thread::sleep(PAUSE);
    }
    println!("{reads} reads, longest {} ms", longest.as_millis());
    Ok(())
}
