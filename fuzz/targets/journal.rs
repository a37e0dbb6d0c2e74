//! A journal with edited segments opens to a prefix of what was appended, byte for byte, or is refused; and what opened
//! takes more entries.
#![no_main]

use bytes::Bytes;
use ec_store::journal::{Journal, JournalConfig, OnDamage};
use fuzz::{Input, Scratch};
use libfuzzer_sys::fuzz_target;
use std::cell::OnceCell;
use std::fs;
use std::path::PathBuf;

type Entry = (u8, Vec<u8>, Vec<u8>);

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
        let (mut journal, _) = Journal::open(scratch.path(), config(OnDamage::Refuse)).expect("an empty directory");
        for i in 0u8..24 {
            let entry = (i % 5, vec![i; 40 + usize::from(i)], vec![i ^ 0x55; 600 * usize::from(i % 3)]);
            journal.append(entry.0, &entry.1, &[Bytes::from(entry.2.clone())], None).expect("there is room");
            entries.push(entry);
            journal.flush().expect("there is room");
            if i == 12 {
                journal.sync().expect("it syncs");
            }
        }
    }
    let files = fs::read_dir(scratch.path()).expect("it exists").flatten().map(|entry| entry.path());
    let mut segments: Vec<_> = files.filter_map(|path| Some((path.clone(), fs::read(path).ok()?))).collect();
    segments.sort();
    Ground { scratch, segments, entries }
}

fuzz_target!(|bytes: &[u8]| {
    GROUND.with(|cell| {
        let ground = cell.get_or_init(ground);
        let mut input = Input::new(bytes);
        let (mode, chosen) = (input.byte(), usize::from(input.byte()));
        let on_damage = if mode % 2 == 0 { OnDamage::Refuse } else { OnDamage::SetAside };
        ground.scratch.clear();
        for (i, (path, segment)) in ground.segments.iter().enumerate() {
            let mut segment = segment.clone();
            if i == chosen % ground.segments.len() {
                input.edit(&mut segment);
            }
            fs::write(path, segment).expect("the scratch directory can be written");
        }
        let Ok((mut journal, recovered)) = Journal::open(ground.scratch.path(), config(on_damage)) else { return };
        assert!(recovered.entries.len() <= ground.entries.len(), "entries that nobody appended");
        for (found, (kind, front, data)) in recovered.entries.iter().zip(&ground.entries) {
            assert_eq!((found.kind, &found.front[..], &found.data[..]), (*kind, &front[..], &data[..]));
        }
        let more = journal.append(1, b"more", &[], None).and_then(|_| journal.flush());
        more.expect("a journal that opened takes entries");
    });
});
