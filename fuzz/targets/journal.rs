//! A journal with edited segments opens to a prefix of what was appended, byte for byte, or is
//! refused; and what opened takes more entries. With checksums computed anew it is refused, or
//! opens to an unbroken sequence of entries that are on the disk.
#![no_main]

use bytes::Bytes;
use ec_store::journal::{Journal, JournalConfig, OnDamage};
use fuzz::{Input, Scratch, seal};
use libfuzzer_sys::fuzz_target;
use std::cell::OnceCell;
use std::fs;
use std::path::PathBuf;

type Entry = (u8, Vec<u8>, Vec<u8>);

/// As the format says.
const SEGMENT_HEADER_BYTES: usize = 64;
const ENTRY_HEADER_BYTES: usize = 56;
const ENTRY_ALIGN: usize = 8;
const ENTRY_MAGIC: &[u8] = b"TJE1";

struct Ground {
    scratch: Scratch,
    /// The segments of a journal that was synced half way, and what is in them.
    segments: Vec<(PathBuf, Vec<u8>)>,
    entries: Vec<Entry>,
}

thread_local! {
    static GROUND: OnceCell<Ground> = const { OnceCell::new() };
}

fn config(on_damage: OnDamage) -> JournalConfig {
    JournalConfig { journal_segment_bytes: 8192, journal_bytes_max: 1 << 20, on_damage }
}

fn ground() -> Ground {
    let scratch = Scratch::new();
    let mut entries = Vec::new();
    {
        let (mut journal, _) =
            Journal::open(scratch.path(), config(OnDamage::Refuse)).expect("an empty directory");
        for i in 0u8..24 {
            let entry =
                (i % 5, vec![i; 40 + usize::from(i)], vec![i ^ 0x55; 600 * usize::from(i % 3)]);
            journal
                .append(entry.0, &entry.1, &[Bytes::from(entry.2.clone())], None)
                .expect("there is room");
            entries.push(entry);
            journal.flush().expect("there is room");
            if i == 12 {
                journal.sync().expect("it syncs");
            }
        }
    }
    let files =
        fs::read_dir(scratch.path()).expect("it exists").flatten().map(|entry| entry.path());
    let mut segments: Vec<_> =
        files.filter_map(|path| Some((path.clone(), fs::read(path).ok()?))).collect();
    segments.sort();
    Ground { scratch, segments, entries }
}

/// Computes the checksums of a segment's header and entries anew, as far as they are there.
fn seal_segment(segment: &mut [u8]) {
    seal(segment, SEGMENT_HEADER_BYTES - 4);
    for at in (SEGMENT_HEADER_BYTES..segment.len()).step_by(ENTRY_ALIGN) {
        let Some((header, payload)) = segment[at..].split_at_mut_checked(ENTRY_HEADER_BYTES) else {
            return;
        };
        if !header.starts_with(ENTRY_MAGIC) {
            continue;
        }
        let length =
            |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i])) as usize;
        let (front, data) = (length(8), length(12));
        if let Some((front, rest)) = payload.split_at_checked(front) {
            header[40..44].copy_from_slice(&crc32c::crc32c(front).to_le_bytes());
            if let Some(data) = rest.get(..data) {
                header[44..48].copy_from_slice(&crc32c::crc32c(data).to_le_bytes());
            }
        }
        seal(header, ENTRY_HEADER_BYTES - 4);
    }
}

fuzz_target!(|bytes: &[u8]| {
    GROUND.with(|cell| {
        let ground = cell.get_or_init(ground);
        let mut input = Input::new(bytes);
        let (mode, chosen) = (input.byte(), usize::from(input.byte()));
        let on_damage = if mode % 2 == 0 { OnDamage::Refuse } else { OnDamage::SetAside };
        let is_sealed = mode & 2 != 0;
        let mut bytes_on_disk = 0;
        ground.scratch.clear();
        for (i, (path, segment)) in ground.segments.iter().enumerate() {
            let mut segment = segment.clone();
            if i == chosen % ground.segments.len() {
                input.edit(&mut segment);
                if is_sealed {
                    seal_segment(&mut segment);
                }
            }
            bytes_on_disk += segment.len();
            ground.scratch.write(path, &segment);
        }
        let Ok((mut journal, recovered)) = Journal::open(ground.scratch.path(), config(on_damage))
        else {
            return;
        };
        if is_sealed {
            let lsns = recovered
                .entries
                .windows(2)
                .map(|pair| (pair[0].location.lsn, pair[1].location.lsn));
            assert!(
                lsns.into_iter().all(|(one, next)| one.checked_add(1) == Some(next)),
                "an entry is missing"
            );
            let bytes: usize =
                recovered.entries.iter().map(|entry| entry.front.len() + entry.data.len()).sum();
            assert!(bytes <= bytes_on_disk, "{bytes} bytes out of {bytes_on_disk}");
        } else {
            assert!(
                recovered.entries.len() <= ground.entries.len(),
                "entries that nobody appended"
            );
            for (found, (kind, front, data)) in recovered.entries.iter().zip(&ground.entries) {
                assert_eq!(
                    (found.kind, &found.front[..], &found.data[..]),
                    (*kind, &front[..], &data[..])
                );
            }
        }
        let more = journal.append(1, b"more", &[], None).and_then(|_| journal.flush());
        more.expect("a journal that opened takes entries");
    });
});
