//! What the fuzz targets share: inputs read as numbers, edits of valid bytes, a scratch directory
//! in memory.
//!
//! A target is one function of bytes that must not panic, and must hold what its first lines say.
//! Formats with checksums are reached in three ways: raw bytes; valid bytes with a few edits, which
//! must either be refused or change nothing; and edited bytes with their checksums computed anew
//! ([`seal`]), which say something else, or must be refused for that. `targets/canary.rs` has a
//! planted fault, so that a run that finds nothing has shown that it could have.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reads an input from its front; after its end everything is zero.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads from the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// Is nothing left?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// The next number, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next number, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Up to `count` bytes.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Edits `bytes` as the rest of the input says: changes bytes, puts numbers near the front,
    /// where headers are, cuts the end off, adds to it.
    pub fn edit(&mut self, bytes: &mut Vec<u8>) {
        while !self.is_empty() {
            match self.byte() % 8 {
                0 => bytes.truncate(usize::from(self.u16())),
                1 => {
                    let count = usize::from(self.byte());
                    bytes.extend_from_slice(self.bytes(count));
                }
                _ if bytes.is_empty() => {}
                2 => {
                    let at = (usize::from(self.byte()) * 4) % bytes.len();
                    let number = self.u64().to_le_bytes();
                    bytes[at..].iter_mut().zip(number).for_each(|(byte, new)| *byte = new);
                }
                _ => {
                    let at = usize::from(self.u16()) % bytes.len();
                    bytes[at] ^= self.byte();
                }
            }
        }
    }
}

/// Puts the CRC32C of the bytes before `at` there, little-endian, if there are so many.
pub fn seal(bytes: &mut [u8], at: usize) {
    if let Some((sealed, rest)) = bytes.split_at_mut_checked(at)
        && let Some(crc) = rest.first_chunk_mut::<4>()
    {
        *crc = crc32c::crc32c(sealed).to_le_bytes();
    }
}

/// A directory that is removed at the end, in memory where there is a file system for that, as
/// every run writes to it.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes one.
    ///
    /// # Panics
    /// If the system lets nobody make one.
    pub fn new() -> Scratch {
        let memory = Path::new("/dev/shm");
        let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Scratch(made.expect("a temporary directory can be made"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file below it, whole. What the machine refuses for a moment, as when others fill
    /// its memory, is no finding: it is tried again for ten seconds.
    ///
    /// # Panics
    /// If the machine goes on to refuse it, with what it said.
    pub fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) {
        let path = self.path().join(name);
        let mut tries = 0;
        while let Err(error) = std::fs::write(&path, bytes) {
            tries += 1;
            assert!(tries <= 100, "the machine does not let us write {}: {error}", path.display());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Removes everything in it.
    ///
    /// # Panics
    /// If something cannot be removed.
    pub fn clear(&self) {
        for entry in std::fs::read_dir(self.path()).expect("it exists").flatten() {
            let path = entry.path();
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.expect("what is in a directory of ours can be removed");
        }
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}
