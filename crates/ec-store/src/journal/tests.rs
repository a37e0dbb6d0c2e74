//! The journal against a model, a cut at every byte, a flip of every byte, and disks that are full
//! or fail.

use super::*;
use crate::medium::Memory;
use proptest::prelude::*;
use std::fs::{self, File};

const SEGMENT: u64 = 4096;

fn config() -> JournalConfig {
    JournalConfig {
        journal_segment_bytes: SEGMENT,
        journal_bytes_max: 1 << 20,
        on_damage: OnDamage::Refuse,
    }
}

fn pattern(lsn: Lsn, length: usize) -> Vec<u8> {
    (0..length).map(|i| (lsn as usize * 31 + i * 7) as u8).collect()
}

/// Appends entry `lsn`, whose contents follow from its number and lengths.
fn append(journal: &mut Journal, front: usize, data: usize) -> Location {
    let lsn = journal.last_lsn() + 1;
    let data = pattern(lsn, data);
    let (left, right) = data.split_at(data.len() / 3);
    let parts = [Bytes::copy_from_slice(left), Bytes::copy_from_slice(right)];
    let crc = lsn.is_multiple_of(2).then(|| crc32c::crc32c(&data));
    let location = journal.append(lsn as u8, &pattern(lsn, front), &parts, crc).unwrap();
    assert_eq!(location.lsn, lsn);
    location
}

fn check_contents(entry: &RecoveredEntry) {
    let lsn = entry.location.lsn;
    assert_eq!(entry.kind, lsn as u8);
    assert_eq!(entry.front, pattern(lsn, entry.front.len()));
    assert_eq!(entry.data, pattern(lsn, entry.data.len()));
}

fn copy_dir(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

fn lsns(recovered: &Recovered) -> Vec<Lsn> {
    recovered
        .entries
        .iter()
        .inspect(|entry| check_contents(entry))
        .map(|entry| entry.location.lsn)
        .collect()
}

#[test]
fn entries_come_back_and_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = Journal::open(dir.path(), config()).unwrap();
    assert_eq!(recovered, Recovered::default());
    assert!(journal.needs_checkpoint());
    journal.append_checkpoint(9, b"checkpoint", &[]).unwrap();
    assert!(!journal.needs_checkpoint());
    let at = append(&mut journal, 3, 2048);
    assert_eq!(journal.flushed_lsn(), 0);
    assert_eq!(journal.read_data(at).unwrap(), pattern(2, 2048));
    assert_eq!((journal.flushed_lsn(), journal.synced_lsn()), (2, 0));
    let handle = journal.sync_handle();
    let lsn = std::thread::spawn(move || handle.run().unwrap()).join().unwrap();
    journal.synced(lsn);
    assert_eq!(journal.synced_lsn(), 2);
    drop(journal);
    let (journal, recovered) = Journal::open(dir.path(), config()).unwrap();
    assert_eq!(recovered.torn, None);
    assert_eq!(recovered.entries.len(), 2);
    assert_eq!(recovered.entries[0].front, "checkpoint");
    assert_eq!(recovered.entries[1].data, pattern(2, 2048));
    assert_eq!(recovered.entries[1].location, at);
    assert_eq!((journal.last_lsn(), journal.synced_lsn()), (2, 2));
    assert!(journal.needs_checkpoint());
}

#[test]
fn data_too_long_to_copy_is_written_from_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let large = JournalConfig { journal_segment_bytes: 1 << 20, ..config() };
    let (mut journal, _) = Journal::open(dir.path(), large).unwrap();
    for data in [0, 1, 100_000, COPY_BYTES_MAX, 30_001, 7] {
        append(&mut journal, 5, data);
    }
    journal.flush().unwrap();
    drop(journal);
    assert_eq!(lsns(&Journal::open(dir.path(), large).unwrap().1), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn limits_are_typed_errors_and_trimming_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let small = JournalConfig { journal_bytes_max: 3 * SEGMENT, ..config() };
    let (mut journal, _) = Journal::open(dir.path(), small).unwrap();
    let error = journal.append(0, &[0; SEGMENT as usize], &[], None).unwrap_err();
    assert!(matches!(error, JournalError::TooLarge { .. }), "{error}");
    let full = loop {
        if let Err(error) = journal.append(1, &[1; 1000], &[], None) {
            break error;
        }
    };
    assert!(
        matches!(full, JournalError::Full { bytes, bytes_max } if bytes <= bytes_max),
        "{full}"
    );
    assert!(journal.segments().count() > 2);
    journal.append_exempt(2, b"a note", &[]).unwrap();
    let newest = journal.current_segment();
    assert_eq!(journal.trim(newest).unwrap(), 0, "what replaces the segments is not synced");
    journal.sync().unwrap();
    assert!(journal.trim(u64::MAX).unwrap() > 1);
    assert_eq!(journal.segments().collect::<Vec<_>>(), [newest], "the newest stays");
    journal.append(1, &[1; 1000], &[], None).unwrap();
}

#[test]
fn a_cut_at_every_byte_leaves_the_entries_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    append(&mut journal, 10, 3000);
    journal.sync().unwrap();
    append(&mut journal, 10, 2000);
    let mut ends = vec![];
    for (front, data) in [(0, 0), (24, 40), (13, 60), (1, 0), (0, 3)] {
        let at = append(&mut journal, front, data);
        ends.push((at.lsn, at.offset + format::ENTRY_HEADER_BYTES + (front + data) as u64));
    }
    journal.flush().unwrap();
    let last = segment_of(&journal, dir.path());
    let used = journal.newest().bytes;
    drop(journal);
    let second_end = format::SEGMENT_HEADER_BYTES + format::ENTRY_HEADER_BYTES + 10 + 2000;
    for length in (0..70).chain(second_end - 3..=used) {
        let copy = copy_dir(dir.path());
        File::options().write(true).open(copy.path().join(&last)).unwrap().set_len(length).unwrap();
        let (journal, recovered) = Journal::open(copy.path(), config()).unwrap();
        let mut expected = vec![1];
        expected.extend((length >= second_end).then_some(2));
        expected.extend(ends.iter().filter(|(_, end)| *end <= length).map(|(lsn, _)| *lsn));
        assert_eq!(lsns(&recovered), expected, "cut at {length}");
        assert_eq!(journal.last_lsn(), *expected.last().unwrap());
    }
}

fn segment_of(journal: &Journal, dir: &Path) -> std::ffi::OsString {
    format::segment_path(dir, journal.current_segment()).file_name().unwrap().to_os_string()
}

#[test]
fn a_flip_of_any_byte_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = JournalConfig { journal_segment_bytes: 400, ..config() };
    let (mut journal, _) = Journal::open(dir.path(), tiny).unwrap();
    // Two segments, all entries multiples of 8 so that there is no padding; the first two entries
    // are synced.
    append(&mut journal, 8, 16);
    append(&mut journal, 16, 32);
    journal.sync().unwrap();
    for _ in 0..3 {
        append(&mut journal, 8, 64);
    }
    journal.flush().unwrap();
    let used: Vec<(u64, u64)> =
        journal.segments.iter().map(|segment| (segment.number, segment.bytes)).collect();
    assert_eq!(used.len(), 2);
    drop(journal);
    for (number, bytes) in used {
        for at in 0..bytes as usize {
            let copy = copy_dir(dir.path());
            let path = format::segment_path(copy.path(), number);
            let mut contents = fs::read(&path).unwrap();
            contents[at] ^= 1 << (at % 8);
            fs::write(&path, &contents).unwrap();
            match Journal::open(copy.path(), tiny) {
                Err(JournalError::Damaged { lsn, synced, .. }) => {
                    assert!(lsn <= synced && number == 1, "segment {number} byte {at}");
                    assert_eq!(
                        fs::read(&path).unwrap(),
                        contents,
                        "a refused journal is left as it was"
                    );
                }
                Ok((_, recovered)) => {
                    let found = lsns(&recovered);
                    assert!(
                        found.len() < 5 && found == (1..=found.len() as u64).collect::<Vec<_>>()
                    );
                    assert!(
                        found.len() >= 2,
                        "segment {number} byte {at}: synced entries are gone without a word"
                    );
                    assert!(recovered.torn.is_some_and(|torn| !torn.is_damage()));
                }
                Err(error) => panic!("segment {number} byte {at}: {error}"),
            }
        }
    }
}

#[test]
fn damage_can_be_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    append(&mut journal, 8, 100);
    let bad = append(&mut journal, 8, 100);
    journal.sync().unwrap();
    append(&mut journal, 8, 3000);
    append(&mut journal, 8, 3000);
    journal.flush().unwrap();
    drop(journal);
    let path = format::segment_path(dir.path(), bad.segment);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    medium::write_counted(&file, bad.offset + 70, &[0xff; 8]).unwrap();
    let error = Journal::open(dir.path(), config()).unwrap_err();
    assert!(matches!(error, JournalError::Damaged { lsn: 2, synced: 2, .. }), "{error}");
    let set_aside = JournalConfig { on_damage: OnDamage::SetAside, ..config() };
    let (_, recovered) = Journal::open(dir.path(), set_aside).unwrap();
    assert_eq!(lsns(&recovered), [1]);
    assert!(recovered.torn.unwrap().is_damage());
    assert!(path.with_extension("log.damaged").exists());
    assert_eq!(lsns(&Journal::open(dir.path(), config()).unwrap().1), [1]);
}

#[test]
fn unsynced_entries_that_reached_the_disk_out_of_order_are_a_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    append(&mut journal, 8, 1000);
    journal.sync().unwrap();
    let lost = append(&mut journal, 8, 1000);
    for _ in 0..5 {
        append(&mut journal, 8, 1000);
    }
    journal.flush().unwrap();
    assert!(journal.segments.len() > 1);
    let file = journal.segments[0].file.clone();
    drop(journal);
    medium::write_counted(&*file, lost.offset, &vec![0; lost.bytes as usize]).unwrap();
    let (mut journal, recovered) = Journal::open(dir.path(), config()).unwrap();
    assert_eq!(lsns(&recovered), [1]);
    let torn = recovered.torn.unwrap();
    assert_eq!((torn.lsn, torn.is_damage()), (2, false));
    // The numbers go on, and nothing that was cut comes back.
    append(&mut journal, 3, 3);
    journal.flush().unwrap();
    drop(journal);
    let (_, recovered) = Journal::open(dir.path(), config()).unwrap();
    assert_eq!(lsns(&recovered), [1, 2]);
    assert_eq!(recovered.torn, None);
}

#[test]
fn stale_bytes_of_another_segment_are_no_entries() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    append(&mut journal, 8, 8);
    let second = append(&mut journal, 8, 8);
    journal.flush().unwrap();
    let mut stale = vec![0; second.bytes as usize];
    medium::read_zero_filled(&*journal.newest().file, second.offset, &mut stale).unwrap();
    // The same entry, valid in every respect but that it was written into another segment.
    let other = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(other.path(), config()).unwrap();
    append(&mut journal, 8, 8);
    journal.flush().unwrap();
    medium::write_counted(&*journal.newest().file, second.offset, &stale).unwrap();
    drop(journal);
    assert_eq!(lsns(&Journal::open(other.path(), config()).unwrap().1), [1]);
}

#[test]
fn a_journal_in_memory_is_as_one_on_disk_until_the_memory_goes() {
    let segments = 4;
    let memory = Memory::new(
        (segments + 1) * config().journal_segment_bytes.next_multiple_of(4096),
        &messenger::sync::LockTable::default(),
    );
    let dir = Dir::new(Arc::new(memory), Path::new("/nowhere"));
    let (mut journal, _) = Journal::open(dir.clone(), config()).unwrap();
    let last = loop {
        let lsn = journal.last_lsn() + 1;
        match journal.append(lsn as u8, b"", &[pattern(lsn, 1000).into()], None) {
            Ok(_) => journal.flush().unwrap(),
            Err(JournalError::NoSpace { .. }) => break journal.last_lsn(),
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(journal.segments().count() as u64, segments);
    journal.sync().unwrap();
    drop(journal);
    let (mut journal, recovered) = Journal::open(dir.clone(), config()).unwrap();
    assert_eq!(lsns(&recovered), (1..=last).collect::<Vec<_>>());
    assert!(journal.trim(journal.current_segment()).unwrap() > 0);
    append(&mut journal, 5, 1000);
    journal.sync().unwrap();
    drop(journal);
    assert!(lsns(&Journal::open(dir, config()).unwrap().1).ends_with(&[last, last + 1]));
}

#[test]
fn a_full_disk_loses_nothing_and_passes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    append(&mut journal, 8, 8);
    journal.flush().unwrap();
    let full = Arc::new(File::options().write(true).open("/dev/full").unwrap());
    let real = std::mem::replace(&mut journal.segments[0].file, full);
    append(&mut journal, 8, 8);
    let error = journal.flush().unwrap_err();
    assert!(matches!(error, JournalError::NoSpace { .. }), "{error}");
    assert_eq!((journal.flushed_lsn(), journal.last_lsn()), (1, 2));
    append(&mut journal, 8, 8);
    journal.segments[0].file = real;
    journal.flush().unwrap();
    drop(journal);
    assert_eq!(lsns(&Journal::open(dir.path(), config()).unwrap().1), [1, 2, 3]);
}

#[test]
fn a_failed_sync_poisons_until_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    append(&mut journal, 8, 8);
    journal.flush().unwrap();
    let other_handle = journal.sync_handle();
    // A device that cannot be synced.
    journal.segments[0].file = Arc::new(File::options().write(true).open("/dev/null").unwrap());
    let error = journal.sync_handle().run().unwrap_err();
    assert!(matches!(error, JournalError::Io { .. }), "{error}");
    assert!(journal.is_poisoned());
    let poisoned = |error| matches!(error, JournalError::Poisoned { .. });
    assert!(poisoned(other_handle.run().unwrap_err()));
    assert!(poisoned(journal.append(1, b"", &[], None).unwrap_err()));
    assert!(poisoned(journal.flush().unwrap_err()));
    assert!(poisoned(journal.sync().unwrap_err()));
    drop(journal);
    let (mut journal, recovered) = Journal::open(dir.path(), config()).unwrap();
    assert_eq!(lsns(&recovered), [1]);
    journal.append(1, b"", &[], None).unwrap();
    journal.sync().unwrap();
}

#[test]
fn another_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Journal::open(dir.path(), config()).unwrap());
    let path = format::segment_path(dir.path(), 1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 99;
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let error = Journal::open(dir.path(), config()).unwrap_err();
    assert!(matches!(error, JournalError::OtherFormat { found: 99, .. }), "{error}");
}

#[test]
fn a_segment_that_begins_at_no_entry_is_refused() {
    for (first_lsn, is_one) in [(0, false), (1, true), (format::LSN_MAX, true), (Lsn::MAX, false)] {
        let header =
            SegmentHeader { number: 1, incarnation: 7, first_lsn, synced: 0, is_reused: false };
        let decoded = SegmentHeader::decode(&header.encode(), Path::new("")).unwrap();
        assert_eq!(decoded, is_one.then_some(header));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append(usize, usize),
    Flush,
    Sync,
    Trim(u64),
    /// The process dies: what was not flushed is gone.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0usize..100, 0usize..1500).prop_map(|(front, data)| Step::Append(front, data)),
        3 => Just(Step::Flush),
        2 => Just(Step::Sync),
        1 => (0u64..4).prop_map(Step::Trim),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_journal_holds_what_was_flushed_and_not_trimmed(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
        let mut model: Vec<Location> = Vec::new();
        for step in steps.into_iter().chain([Step::Flush, Step::Restart]) {
            match step {
                Step::Append(front, data) => model.push(append(&mut journal, front, data)),
                Step::Flush => journal.flush().unwrap(),
                Step::Sync => journal.sync().unwrap(),
                Step::Trim(back) => {
                    journal.trim(journal.current_segment().saturating_sub(back)).unwrap();
                    let oldest = journal.segments().next().unwrap();
                    model.retain(|at| at.segment >= oldest);
                }
                Step::Restart => {
                    let (flushed, numbers) = (journal.flushed_lsn(), journal.last_lsn());
                    prop_assert!(journal.synced_lsn() <= flushed && flushed <= numbers);
                    model.retain(|at| at.lsn <= flushed);
                    drop(journal);
                    let (opened, recovered) = Journal::open(dir.path(), config()).unwrap();
                    journal = opened;
                    prop_assert_eq!(recovered.torn, None);
                    lsns(&recovered);
                    let found: Vec<Location> = recovered.entries.iter().map(|entry| entry.location).collect();
                    prop_assert_eq!(&found, &model);
                    prop_assert_eq!(journal.synced_lsn(), journal.last_lsn());
                }
            }
            prop_assert_eq!(journal.bytes(), model.iter().map(|at| at.bytes).sum::<u64>());
            for at in &model {
                prop_assert_eq!(at.lsn > journal.flushed_lsn(), journal.reader(*at).unwrap().read().is_err());
            }
        }
    }
}

/// Entries that take a segment or more, synced, and everything before them trimmed.
fn fill_and_trim(journal: &mut Journal) {
    for _ in 0..4 {
        append(journal, 8, 1500);
    }
    journal.sync().unwrap();
    assert!(journal.trim(journal.current_segment()).unwrap() > 0);
}

fn inode_of(journal: &Journal, dir: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir.join(segment_of(journal, dir))).unwrap())
}

fn kept_in(dir: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let kept = all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(".kept."));
    kept.map(|path| (path.file_name().unwrap().to_os_string(), fs::read(&path).unwrap())).collect()
}

/// Begins segments until one is a file that was a segment before.
fn until_reused(journal: &mut Journal) {
    while !SegmentHeader::decode(&medium::read_all(&*journal.newest().file).unwrap(), Path::new(""))
        .unwrap()
        .unwrap()
        .is_reused
    {
        fill_and_trim(journal);
    }
}

#[test]
fn a_trimmed_segment_is_written_over_once_its_new_name_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    let first = inode_of(&journal, dir.path());
    fill_and_trim(&mut journal);
    let kept = kept_in(dir.path());
    assert!(!kept.is_empty());
    // A loss of power now may bring the old name back: the bytes under it must be the old ones.
    let unsynced = journal.sync_handle();
    assert!(unsynced.has_new_name, "the next sync is to make the new name durable");
    for _ in 0..4 {
        append(&mut journal, 8, 1500);
    }
    journal.flush().unwrap();
    assert_eq!(kept_in(dir.path()), kept);
    // A sync that was begun before says nothing of the name.
    journal.synced(unsynced.run().unwrap());
    append(&mut journal, 8, 3000);
    journal.flush().unwrap();
    assert_eq!(kept_in(dir.path()), kept);
    journal.sync().unwrap();
    append(&mut journal, 8, 3000);
    assert_eq!(inode_of(&journal, dir.path()), first, "the same file once more");
    journal.flush().unwrap();
    let last = journal.last_lsn();
    drop(journal);
    let (_, recovered) = Journal::open(dir.path(), config()).unwrap();
    assert_eq!(lsns(&recovered).last(), Some(&last));
    assert_eq!(recovered.torn, None, "old bytes behind the last entry are no torn tail");
    assert_eq!(kept_in(dir.path()), []);
}

#[test]
fn a_segment_that_is_still_read_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    let at = append(&mut journal, 8, 100);
    journal.sync().unwrap();
    let reader = journal.reader(at).unwrap();
    for _ in 0..5 {
        fill_and_trim(&mut journal);
    }
    assert_eq!(reader.read().unwrap().2, pattern(1, 100));
}

#[test]
fn no_more_segments_are_kept_than_the_limit_and_none_on_a_disk_that_fills_up() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    for _ in 0..80 {
        append(&mut journal, 8, 3000);
    }
    journal.sync().unwrap();
    assert!(journal.trim(u64::MAX).unwrap() > kept::KEPT_SEGMENTS_MAX);
    assert_eq!(kept_in(dir.path()).len(), kept::KEPT_SEGMENTS_MAX);
    journal.keep_segments(false);
    assert_eq!(kept_in(dir.path()), []);
    fill_and_trim(&mut journal);
    assert_eq!(kept_in(dir.path()), []);
    // Nor beyond what the journal may take.
    let small = JournalConfig { journal_bytes_max: 3 * SEGMENT, ..config() };
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), small).unwrap();
    fill_and_trim(&mut journal);
    fill_and_trim(&mut journal);
    assert!(kept_in(dir.path()).len() + journal.segments().count() <= 3);
}

#[test]
fn loss_and_damage_are_told_apart_in_a_segment_that_was_one_before() {
    for is_synced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
        until_reused(&mut journal);
        journal.sync().unwrap();
        let before = journal.last_lsn();
        let lost = append(&mut journal, 8, 100);
        if is_synced {
            journal.sync().unwrap();
        }
        append(&mut journal, 8, 100);
        journal.flush().unwrap();
        assert_eq!(lost.segment, journal.current_segment());
        // Old bytes, as if the page had never been written.
        medium::write_counted(
            &*journal.newest().file,
            lost.offset,
            &vec![0x5a; lost.bytes as usize],
        )
        .unwrap();
        drop(journal);
        match Journal::open(dir.path(), config()) {
            Ok((_, recovered)) => {
                assert!(!is_synced);
                assert_eq!(lsns(&recovered).last(), Some(&before));
                assert_eq!(recovered.torn.map(|torn| torn.is_damage()), Some(false));
            }
            Err(JournalError::Damaged { lsn, .. }) => assert!(is_synced && lsn == lost.lsn),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_segment_whose_header_did_not_reach_the_disk_is_a_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), config()).unwrap();
    while kept_in(dir.path()).is_empty() {
        fill_and_trim(&mut journal);
    }
    journal.sync().unwrap();
    append(&mut journal, 8, 100);
    journal.sync().unwrap();
    let (before, path) = (journal.last_lsn(), dir.path().join(&kept_in(dir.path())[0].0));
    drop(journal);
    // The old contents under the new name, which alone became durable.
    let old = fs::read(path).unwrap();
    let next = dir.path().join(format!("{:020}.log", 10_000));
    fs::write(next, old).unwrap();
    let (_, recovered) = Journal::open(dir.path(), config()).unwrap();
    assert_eq!(lsns(&recovered).last(), Some(&before));
    assert_eq!(recovered.torn.map(|torn| torn.is_damage()), Some(false));
}
