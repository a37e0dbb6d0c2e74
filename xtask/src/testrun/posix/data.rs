//! Bytes: writing, reading, mapping, direct and appended.

use super::{Check, noise, refused, same, stored};
use crate::error::{Context, Outcome, ensure, fail};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// All of this module.
pub const CHECKS: [Check; 11] = [
    ("append", 60, append),
    ("small_appends", 90, small_appends),
    ("exclusive_create", 30, exclusive_create),
    ("truncating_open", 30, truncating_open),
    ("direct_io_at_512_bytes", 60, direct_io),
    ("mmap_shared", 60, mmap_shared),
    ("random_writes_against_a_model", 120, random_writes),
    ("truncate_reads_zeros_after_growing", 60, truncate_and_grow),
    ("large_writes", 90, large_writes),
    ("copy_file_range", 60, copy_range),
    ("many_threads_one_file", 90, many_threads),
];

fn create(path: &Path) -> Outcome<File> {
    let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path);
    file.doing(|| format!("creating {}", path.display()))
}

/// Two descriptors append by turns, and nothing is overwritten.
fn append(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("log");
    let open =
        || OpenOptions::new().create(true).append(true).open(&path).doing(|| "open with O_APPEND");
    let (mut a, mut b) = (open()?, open()?);
    let mut expected = Vec::new();
    for i in 0..300 {
        let line = format!("line {i} {}\n", "x".repeat(i % 97));
        let file = if i % 3 == 0 { &mut a } else { &mut b };
        file.write_all(line.as_bytes()).doing(|| "append")?;
        expected.extend_from_slice(line.as_bytes());
    }
    a.sync_all().and_then(|()| b.sync_all()).doing(|| "fsync")?;
    ensure!(stored(&path)? == expected, "appended lines were lost or mixed");
    Ok(())
}

/// Several writers append four bytes at a time to one file, and one to a file of its own, which
/// sees what it has just written: at the end there are whole words, each writer's in turn.
fn small_appends(dir: &Path, quick: bool) -> Outcome {
    let words = if quick { 400 } else { 2_000 };
    let path = dir.join("words");
    File::create_new(&path).doing(|| "creating the file")?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u16)
            .map(|writer| {
                let path = &path;
                scope.spawn(move || append_words(path, writer, words, |_, _| Ok(())))
            })
            .collect();
        let alone = scope.spawn(|| append_words(&dir.join("alone"), 9, words, looks_right));
        let mut joined = writers.into_iter().chain([alone]);
        joined.try_for_each(|writer| writer.join().unwrap_or_else(|_| fail("a writer panicked")))
    })?;
    same("words of each", &words_in_turn(&path)?, &vec![words; 3])?;
    // An append goes to the end, wherever that is by now.
    let mut file = OpenOptions::new().append(true).open(&path).doing(|| "open with O_APPEND")?;
    let cut = OpenOptions::new().write(true).open(&path).doing(|| "open to cut")?;
    let mut expected = Vec::new();
    for turn in 0..40u8 {
        file.write_all(&[turn; 4]).doing(|| "append")?;
        if turn % 8 == 7 {
            cut.set_len(u64::from(turn)).doing(|| "cut")?;
            expected = stored(&path)?;
            same("bytes after a cut", &expected.len(), &usize::from(turn))?;
            file.write_all(b"word").and_then(|()| file.write_all(b"wor2")).doing(|| "append")?;
            expected.extend_from_slice(b"wordwor2");
            ensure!(stored(&path)? == expected, "appended words do not follow a cut");
        }
        if turn % 8 == 3 {
            cut.write_all_at(b"in the middle", 2).doing(|| "overwriting")?;
            let mut read = [0; 13];
            cut_reads(&path, &mut read)?;
            same("overwritten", &read, b"in the middle")?;
        }
    }
    ensure!(
        stored(&path)?.ends_with(b"wordwor2"),
        "words after the last cut: {} bytes",
        expected.len()
    );
    Ok(())
}

fn cut_reads(path: &Path, out: &mut [u8]) -> Outcome {
    File::open(path)
        .and_then(|file| file.read_exact_at(out, 2))
        .doing(|| "reading what was overwritten")
}

/// Appends words that carry the writer and a number.
fn append_words(
    path: &Path,
    writer: u16,
    words: u16,
    look: impl Fn(&File, u16) -> Outcome,
) -> Outcome {
    let options = OpenOptions::new().create(true).read(true).append(true).open(path);
    let mut file = options.doing(|| "open with O_APPEND")?;
    for number in 0..words {
        let [a, b] = writer.to_le_bytes();
        let [c, d] = number.to_le_bytes();
        let taken = file.write(&[a, b, c, d]).doing(|| "append")?;
        same("bytes taken", &taken, &4)?;
        look(&file, number)?;
    }
    Ok(())
}

/// The only writer of a file sees its size, and now and then reads its last word.
fn looks_right(file: &File, number: u16) -> Outcome {
    let size = file.metadata().doing(|| "fstat")?.len();
    same("size", &size, &((u64::from(number) + 1) * 4))?;
    if number % 16 == 5 {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, size - 4).doing(|| "reading the last word")?;
        same("last word", &u16::from_le_bytes([word[2], word[3]]), &number)?;
    }
    if number % 300 == 7 {
        file.sync_data().doing(|| "fdatasync")?;
    }
    Ok(())
}

/// How many words of each writer there are; they stand in turn.
fn words_in_turn(path: &Path) -> Outcome<Vec<u16>> {
    let content = stored(path)?;
    ensure!(content.len() % 4 == 0, "the file ends within a word: {} bytes", content.len());
    let mut next = vec![0u16; 3];
    for word in content.chunks_exact(4) {
        let writer = usize::from(u16::from_le_bytes([word[0], word[1]]));
        let number = u16::from_le_bytes([word[2], word[3]]);
        ensure!(next.get(writer) == Some(&number), "word {word:?}, expected {next:?}");
        next[writer] += 1;
    }
    Ok(next)
}

fn exclusive_create(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("once");
    File::create_new(&path).doing(|| "first O_EXCL create")?;
    refused("second O_EXCL create", File::create_new(&path), Errno::EXIST)?;
    std::os::unix::fs::symlink("nowhere", dir.join("link")).doing(|| "symlink")?;
    refused(
        "O_EXCL create over a dangling link",
        File::create_new(dir.join("link")),
        Errno::EXIST,
    )?;
    // Of many that try at once exactly one wins.
    let wins: usize = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| usize::from(File::create_new(dir.join("race")).is_ok())))
            .collect();
        tries.into_iter().map(|t| t.join().unwrap_or(0)).sum()
    });
    same("winners of an O_EXCL race", &wins, &1)
}

fn truncating_open(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    fs::write(&path, noise(1, 100_000)).doing(|| "write")?;
    create(&path)?.write_all(b"short").doing(|| "write after O_TRUNC")?;
    same("content after O_TRUNC", &stored(&path)?, &b"short".to_vec())
}

/// Direct writes and reads at multiples of 512 bytes, mixed with buffered ones.
fn direct_io(dir: &Path, _: bool) -> Outcome {
    const SECTOR: usize = 512;
    let path = dir.join("direct");
    let buffered = create(&path)?;
    let flags = OFlags::DIRECT.bits() as i32;
    let direct = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path);
    let direct = direct.doing(|| "open with O_DIRECT")?;
    let mut rng = fastrand::Rng::with_seed(2);
    let mut model = vec![0u8; 256 * SECTOR];
    let mut space = vec![0u8; model.len() + 4096];
    let skew = space.as_ptr().align_offset(4096);
    for round in 0..300u64 {
        let count = rng.usize(1..=16) * SECTOR;
        let at = rng.usize(0..=(model.len() - count) / SECTOR) * SECTOR;
        let bytes = noise(round, count);
        let aligned = &mut space[skew..skew + count];
        if rng.bool() {
            aligned.copy_from_slice(&bytes);
            direct
                .write_all_at(aligned, at as u64)
                .doing(|| format!("direct write of {count} at {at}"))?;
        } else {
            buffered.write_all_at(&bytes, at as u64).doing(|| "buffered write")?;
        }
        model[at..at + count].copy_from_slice(&bytes);
        let aligned = &mut space[skew..skew + count];
        let got = direct
            .read_at(aligned, at as u64)
            .doing(|| format!("direct read of {count} at {at}"))?;
        ensure!(
            aligned[..got] == model[at..at + got] && got == count,
            "round {round}: direct read at {at} differs"
        );
    }
    let end = buffered.metadata().doing(|| "fstat")?.len() as usize;
    ensure!(stored(&path)? == model[..end], "the file differs from what was written");
    let over_end = direct
        .read_at(&mut space[skew..skew + SECTOR], end as u64 + 4096)
        .doing(|| "read past the end")?;
    same("direct read past the end", &over_end, &0)
}

/// What is stored through a mapping is read by read(2), and the other way round.
fn mmap_shared(dir: &Path, _: bool) -> Outcome {
    const LENGTH: usize = 1 << 20;
    let path = dir.join("mapped");
    let file = create(&path)?;
    file.set_len(LENGTH as u64).doing(|| "ftruncate")?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping of a file that this process alone uses; the slice below ends before
    // munmap.
    let base =
        unsafe { mmap(std::ptr::null_mut(), LENGTH, protection, MapFlags::SHARED, &file, 0) };
    let base = base.doing(|| "mmap")?;
    // SAFETY: the mapping has LENGTH bytes, is readable and writable, and nothing else refers to
    // it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), LENGTH) };
    let expected = noise(3, LENGTH);
    bytes[..LENGTH / 2].copy_from_slice(&expected[..LENGTH / 2]);
    file.write_all_at(&expected[LENGTH / 2..], (LENGTH / 2) as u64)
        .doing(|| "write beside the mapping")?;
    let coherent = bytes == expected;
    // SAFETY: the mapping is still there.
    unsafe { msync(base, LENGTH, MsyncFlags::SYNC) }.doing(|| "msync")?;
    // SAFETY: `bytes` is not used any more.
    unsafe { munmap(base, LENGTH) }.doing(|| "munmap")?;
    ensure!(coherent, "a mapping does not see what write(2) wrote");
    ensure!(stored(&path)? == expected, "what was stored through the mapping is not in the file");
    Ok(())
}

/// Unaligned writes, reads and truncations, against a vector.
fn random_writes(dir: &Path, quick: bool) -> Outcome {
    const LENGTH_MAX: usize = 700_000;
    let path = dir.join("model");
    let file = create(&path)?;
    let mut model: Vec<u8> = Vec::new();
    let mut rng = fastrand::Rng::with_seed(4);
    for round in 0..if quick { 200 } else { 600u64 } {
        let at = rng.usize(0..LENGTH_MAX);
        match rng.u8(0..10) {
            0 => {
                file.set_len(at as u64).doing(|| "ftruncate")?;
                model.resize(at, 0);
            }
            1 => file.sync_data().doing(|| "fdatasync")?,
            2..5 => {
                let mut found = vec![0; rng.usize(1..20_000)];
                let got = file.read_at(&mut found, at as u64).doing(|| "pread")?;
                let expected = model.get(at..model.len().min(at + found.len())).unwrap_or_default();
                ensure!(
                    found[..got] == *expected,
                    "round {round}: read of {} at {at} differs",
                    found.len()
                );
            }
            _ => {
                let bytes = noise(round, rng.usize(1..20_000));
                file.write_all_at(&bytes, at as u64).doing(|| "pwrite")?;
                model.resize(model.len().max(at + bytes.len()), 0);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        same("size", &file.metadata().doing(|| "fstat")?.len(), &(model.len() as u64))?;
    }
    file.sync_all().doing(|| "fsync")?;
    ensure!(stored(&path)? == model, "the file differs from the model");
    Ok(())
}

fn truncate_and_grow(dir: &Path, _: bool) -> Outcome {
    let path = dir.join("file");
    let file = create(&path)?;
    let bytes = noise(5, 10_000);
    file.write_all_at(&bytes, 0).doing(|| "write")?;
    for cut in [9_999u64, 5_121, 1_024, 1_023, 513, 1] {
        file.set_len(cut).and_then(|()| file.set_len(10_000)).doing(|| "ftruncate")?;
        let mut expected = bytes[..cut as usize].to_vec();
        expected.resize(10_000, 0);
        ensure!(stored(&path)? == expected, "cut at {cut} and grown: the rest must be zeros");
    }
    Ok(())
}

/// A file over several objects' worth of chunks in calls of many sizes, read back in others.
fn large_writes(dir: &Path, quick: bool) -> Outcome {
    let length = if quick { 8 << 20 } else { 96 << 20 };
    let path = dir.join("large");
    let mut file = create(&path)?;
    let bytes = noise(6, length);
    let mut rest = &bytes[..];
    for size in [1 << 20, 3_000_001, 16 << 20, 777].iter().cycle() {
        let (now, later) = rest.split_at(rest.len().min(*size));
        file.write_all(now).doing(|| format!("write of {size} bytes"))?;
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    file.sync_all().doing(|| "fsync")?;
    ensure!(stored(&path)? == bytes, "the file differs from what was written");
    file.seek(SeekFrom::Start(length as u64 - 10)).doing(|| "lseek")?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).doing(|| "read of the tail")?;
    ensure!(tail == bytes[length - 10..], "the tail differs");
    same("size", &file.metadata().doing(|| "fstat")?.size(), &(length as u64))
}

fn copy_range(dir: &Path, _: bool) -> Outcome {
    let (from, to) = (create(&dir.join("from"))?, create(&dir.join("to"))?);
    let bytes = noise(7, 300_000);
    from.write_all_at(&bytes, 0).doing(|| "write")?;
    let (mut source, mut target, mut left) = (1_234u64, 77u64, 250_000usize);
    while left > 0 {
        let n = rustix::fs::copy_file_range(&from, Some(&mut source), &to, Some(&mut target), left);
        let n = n.doing(|| "copy_file_range")?;
        ensure!(n > 0, "copy_file_range copies nothing");
        left -= n;
    }
    let mut expected = vec![0; 77];
    expected.extend_from_slice(&bytes[1_234..251_234]);
    ensure!(stored(&dir.join("to"))? == expected, "the copied range differs");
    Ok(())
}

/// Threads write interleaved slices of one file, and all are there.
fn many_threads(dir: &Path, quick: bool) -> Outcome {
    const SLICE: usize = 3_000;
    const THREADS: usize = 8;
    let slices = if quick { 80 } else { 400 };
    let path = dir.join("shared");
    let file = create(&path)?;
    let bytes = noise(8, slices * SLICE);
    let results: Vec<_> = std::thread::scope(|scope| {
        let one = |thread: usize| {
            let mine = bytes.chunks(SLICE).enumerate().filter(move |(i, _)| i % THREADS == thread);
            let file = &file;
            scope.spawn(move || {
                mine.into_iter()
                    .try_for_each(|(i, slice)| file.write_all_at(slice, (i * SLICE) as u64))
            })
        };
        let threads: Vec<_> = (0..THREADS).map(one).collect();
        threads.into_iter().map(|t| t.join()).collect()
    });
    for result in results {
        result.map_err(|_| "panicked").doing(|| "thread")?.doing(|| "write")?;
    }
    file.sync_all().doing(|| "fsync")?;
    ensure!(stored(&path)? == bytes, "slices were lost");
    Ok(())
}
