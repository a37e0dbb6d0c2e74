//! The log on a real directory: what comes back after any end, and what is refused.

use bytes::Bytes;
use consensus::{
    Config, Entry, EntryKind, GroupId, HardState, Host, NodeId, Output, Persist, Record, Recovered,
    Replay, ReplicaId, Snapshot, TICK, Voters,
};
use consensus_log::{LogConfig, LogError, LogStore};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const GROUPS: [GroupId; 2] = [GroupId(0), GroupId(1)];
const SMALL: LogConfig = LogConfig { segment_bytes: 4096, bytes_max: 64 << 10 };

fn replica() -> ReplicaId {
    ReplicaId::new(NodeId(1), 7).expect("a good number")
}

fn voters() -> Voters {
    Voters::of([replica()])
}

fn first() -> Vec<Recovered> {
    GROUPS.map(|group| Recovered::first(group, voters(), "first".into())).to_vec()
}

fn entry(index: u64, term: u64, bytes: usize) -> Entry {
    Entry { index, term, kind: EntryKind::Data, data: Bytes::from(vec![index as u8; bytes]) }
}

fn append(group: GroupId, entries: Vec<Entry>, term: u64) -> Persist {
    let hard = Some(HardState { term, vote: Some(replica()), commit: 1 });
    Persist { number: 0, group, snapshot: None, restarts: false, append: entries, hard }
}

fn snapshot(group: GroupId, index: u64, term: u64, restarts: bool) -> Persist {
    let snapshot =
        Some(Snapshot { index, term, voters: voters(), data: Bytes::from(format!("at {index}")) });
    let hard = Some(HardState { term, vote: None, commit: index });
    Persist { number: 0, group, snapshot, restarts, append: vec![], hard }
}

fn open(dir: &Path) -> Result<(LogStore, Vec<Recovered>), LogError> {
    LogStore::open(dir, &GROUPS, SMALL)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for file in fs::read_dir(from).expect("a directory").flatten() {
        let to = to.join(file.file_name());
        match file.path().is_dir() {
            true => copy(&file.path(), &to),
            false => drop(fs::copy(file.path(), to).expect("a file")),
        }
    }
}

/// What a start should find, by the records alone.
#[derive(Default)]
struct Model {
    records: Vec<Record>,
    snapshots: BTreeMap<GroupId, Snapshot>,
}

impl Model {
    fn keep(&mut self, persist: &Persist) {
        self.snapshots.extend(persist.snapshot.clone().map(|snapshot| (persist.group, snapshot)));
        self.records.extend(Record::of_cut(persist));
        self.records.extend(Record::of_append(persist));
    }

    fn recovered(&self) -> Vec<Recovered> {
        let mut replay = Replay::default();
        self.records.iter().cloned().for_each(|record| replay.take(record));
        GROUPS.map(|group| replay.group(group, self.snapshots.get(&group).cloned())).to_vec()
    }
}

#[test]
fn what_is_kept_comes_back_and_old_segments_go() {
    for seed in 0..10 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = tempfile::tempdir().expect("a directory");
        LogStore::create(dir.path(), replica(), &first(), SMALL).expect("created");
        let (mut store, found) = open(dir.path()).expect("opened");
        assert_eq!(found, first());
        let mut model = Model::default();
        for group in first() {
            model.snapshots.extend(group.snapshot.map(|snapshot| (group.group, snapshot)));
            model.records.push(Record::Hard(group.group, group.hard));
        }
        let (mut last, mut cut, mut term) = ([1u64; 2], [1u64; 2], 1);
        for _ in 0..300 {
            let at = random.usize(0..2);
            let group = GROUPS[at];
            let persist = match random.u8(0..16) {
                0 if cut[at] < last[at] => {
                    // the own state at any entry that is there; its term is that of the entry
                    let index = random.u64(cut[at] + 1..=last[at]);
                    let entries = model.recovered().swap_remove(at).entries;
                    let of = entries
                        .iter()
                        .find(|entry| entry.index == index)
                        .expect("it is there")
                        .term;
                    cut[at] = index;
                    Persist { hard: None, ..snapshot(group, index, of, false) }
                }
                1 => {
                    // a leader's, ahead of all
                    term += 1;
                    (cut[at], last[at]) = (last[at] + 5, last[at] + 5);
                    snapshot(group, cut[at], term, true)
                }
                n => {
                    term += u64::from(n == 2);
                    let from =
                        if n == 2 { random.u64(cut[at] + 1..=last[at] + 1) } else { last[at] + 1 };
                    let count = random.u64(1..4);
                    last[at] = from + count - 1;
                    let entries = (from..from + count)
                        .map(|i| entry(i, term, random.usize(1..600)))
                        .collect();
                    append(group, entries, term)
                }
            };
            model.keep(&persist);
            match store.keep(&[persist]) {
                Err(LogError::Journal(ec_store::journal::JournalError::Full { .. })) => break,
                result => result.expect("kept"),
            }
            if random.u8(0..10) == 0 {
                drop(store);
                let found;
                (store, found) = open(dir.path()).expect("opened again");
                assert_eq!(found, model.recovered(), "seed {seed}");
            }
        }
        assert!(store.bytes() <= SMALL.bytes_max + 4096, "{} bytes", store.bytes());
    }
}

fn newest_segment(dir: &Path) -> PathBuf {
    let files =
        fs::read_dir(dir.join("log")).expect("a directory").flatten().map(|file| file.path());
    let with_entries = files.filter(|path| {
        let bytes = fs::read(path).expect("a file");
        bytes.iter().filter(|byte| **byte != 0).count() > 64
    });
    with_entries.max().expect("a segment")
}

#[test]
fn a_tail_torn_at_any_byte_is_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    LogStore::create(dir.path(), replica(), &first(), SMALL).expect("created");
    let (mut store, _) = open(dir.path()).expect("opened");
    store.keep(&[append(GROUPS[0], vec![entry(2, 2, 100), entry(3, 2, 50)], 2)]).expect("kept");
    let path = newest_segment(dir.path());
    // the last record ends with a number whose upper seven bytes are 0, and is padded to 8
    let end = |path: &Path| {
        let last = fs::read(path)
            .expect("a file")
            .iter()
            .rposition(|byte| *byte != 0)
            .expect("not all is 0");
        (last + 8).next_multiple_of(8)
    };
    let from = end(&path);
    store.keep(&[append(GROUPS[0], vec![entry(4, 3, 77)], 3)]).expect("kept");
    drop(store);
    let whole = fs::read(&path).expect("a file");
    let to = end(&path);
    assert!(to > from + 100, "the last records are {from}..{to}");
    let (mut with_entry, mut with_promises) = (0, 0);
    for at in from..=to {
        let torn = tempfile::tempdir().expect("a directory");
        copy(dir.path(), torn.path());
        let file = torn.path().join("log").join(path.file_name().expect("a name"));
        // nothing behind it, or zeros: both are what a crash leaves
        let mut bytes = whole.clone();
        if at % 2 == 0 {
            bytes.truncate(at)
        } else {
            bytes[at..].fill(0)
        }
        fs::write(&file, bytes).expect("written");
        let (mut store, found) =
            open(torn.path()).unwrap_or_else(|error| panic!("cut at {at}: {error}"));
        let group = &found[0];
        assert_eq!(group.entries[..2], [entry(2, 2, 100), entry(3, 2, 50)], "cut at {at}");
        let has_entry = group.entries.get(2) == Some(&entry(4, 3, 77));
        assert!(has_entry || group.entries.len() == 2, "cut at {at}: {group:?}");
        assert!(
            group.hard.term == 2 || (group.hard.term == 3 && has_entry),
            "cut at {at}: {group:?}"
        );
        assert_eq!(found[1], first()[1]);
        with_entry += u32::from(has_entry);
        with_promises += u32::from(group.hard.term == 3);
        // and it goes on
        store.keep(&[append(GROUPS[0], vec![entry(4, 4, 5)], 4)]).expect("kept");
        drop(store);
        let (_, found) = open(torn.path()).expect("opened again");
        assert_eq!(found[0].entries[2..], [entry(4, 4, 5)], "cut at {at}");
    }
    assert!(with_entry > with_promises && with_promises >= 1, "{with_entry} {with_promises}");
}

#[test]
fn a_snapshot_cut_short_at_any_step_leaves_a_log() {
    let dir = tempfile::tempdir().expect("a directory");
    LogStore::create(dir.path(), replica(), &first(), SMALL).expect("created");
    let (mut store, _) = open(dir.path()).expect("opened");
    store.keep(&[append(GROUPS[0], (2..6).map(|i| entry(i, 2, 10)).collect(), 2)]).expect("kept");
    drop(store);
    for restarts in [false, true] {
        let (index, term) = if restarts { (9, 3) } else { (4, 2) };
        let done = tempfile::tempdir().expect("a directory");
        copy(dir.path(), done.path());
        let (mut store, _) = open(done.path()).expect("opened");
        store.keep(&[snapshot(GROUPS[0], index, term, restarts)]).expect("kept");
        drop(store);
        let name = "snapshot.0";
        for (new, old) in [("snapshot.0.new", "of it is written"), (name, "it has its name")] {
            let cut = tempfile::tempdir().expect("a directory");
            copy(dir.path(), cut.path());
            let bytes = fs::read(done.path().join(name)).expect("a file");
            let some = if new == name { bytes.len() } else { bytes.len() / 2 };
            fs::write(cut.path().join(new), &bytes[..some]).expect("written");
            let (_, found) = open(cut.path()).unwrap_or_else(|error| panic!("{old}: {error}"));
            let config = config();
            Host::open(config, found.clone(), Duration::ZERO)
                .unwrap_or_else(|error| panic!("{old}: {error}"));
            let indexes: Vec<_> = found[0].entries.iter().map(|entry| entry.index).collect();
            let expected = match (new == name, restarts) {
                (false, _) => vec![2, 3, 4, 5],
                (true, false) => vec![5],
                (true, true) => vec![],
            };
            assert_eq!(indexes, expected, "{old}");
        }
    }
}

#[test]
fn what_lost_promises_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(matches!(open(dir.path()), Err(LogError::Missing { .. })));
    LogStore::create(dir.path(), replica(), &first(), SMALL).expect("created");
    let again = LogStore::create(dir.path(), replica(), &first(), SMALL);
    assert!(matches!(again, Err(LogError::Exists { .. })), "{again:?}");
    let (mut store, _) = open(dir.path()).expect("opened");
    for index in 2..5 {
        store.keep(&[append(GROUPS[0], vec![entry(index, 2, 100)], 2)]).expect("kept");
    }
    drop(store);
    let flipped = |path: &Path, at: usize| {
        let bad = tempfile::tempdir().expect("a directory");
        copy(dir.path(), bad.path());
        let path = bad.path().join(path);
        let mut bytes = fs::read(&path).expect("a file");
        bytes[at] ^= 1;
        fs::write(&path, bytes).expect("written");
        open(bad.path())
    };
    let segment = newest_segment(dir.path());
    let in_log = segment.strip_prefix(dir.path()).expect("in it");
    let bytes = fs::read(&segment).expect("a file");
    let second =
        bytes.windows(100).position(|window| window == [2; 100]).expect("the entry is there");
    let damaged = flipped(in_log, second);
    assert!(matches!(damaged, Err(LogError::Journal(_))), "{damaged:?}");
    for name in ["snapshot.1", "replica"] {
        let length = fs::read(dir.path().join(name)).expect("a file").len();
        for at in 0..length {
            let damaged = flipped(Path::new(name), at);
            assert!(matches!(damaged, Err(LogError::Damaged { .. })), "{name} at {at}");
        }
    }
}

fn config() -> Config {
    Config {
        replica: replica(),
        peers: vec![],
        boot: 1,
        seed: 1,
        rules: protocol::Rules::default(),
    }
}

#[test]
fn a_host_of_one_voter_keeps_what_it_gave_out() {
    let dir = tempfile::tempdir().expect("a directory");
    LogStore::create(dir.path(), replica(), &first(), SMALL).expect("created");
    let mut kept: Vec<Bytes> = Vec::new();
    for run in 0..5u8 {
        // the process is dropped at the end of each run, as it is when it is killed
        let (mut store, found) = open(dir.path()).expect("opened");
        let mut state: Vec<Bytes> = match &found[0].snapshot {
            Some(snapshot) if snapshot.index > 1 => {
                snapshot.data.chunks(2).map(Bytes::copy_from_slice).collect()
            }
            _ => vec![],
        };
        let mut host = Host::open(config(), found, Duration::ZERO).expect("a good log");
        let (mut now, mut asked) = (Duration::ZERO, 0u8);
        while state.len() < usize::from(run + 1) * 20 {
            now += TICK / 4;
            host.tick(now);
            if host.propose(GROUPS[0], Bytes::from(vec![run, asked])).is_ok() {
                asked = asked.saturating_add(1);
            }
            loop {
                let (mut persists, outputs) = (Vec::new(), host.outputs().collect::<Vec<_>>());
                if outputs.is_empty() {
                    break;
                }
                for output in outputs {
                    match output {
                        Output::Persist(persist) => persists.push(persist),
                        Output::Committed { entries, .. } => {
                            state.extend(entries.into_iter().map(|entry| entry.data))
                        }
                        _ => {}
                    }
                }
                if let Some(last) = persists.last().map(|persist| persist.number) {
                    store.keep(&persists).expect("kept");
                    host.persisted(last, now);
                }
            }
            if state.len().is_multiple_of(7) {
                let applied = host.status(GROUPS[0]).expect("a group").applied;
                host.snapshot(GROUPS[0], applied, state.concat().into());
            }
        }
        assert_eq!(state[..kept.len()], kept[..], "run {run} goes on from what was given out");
        kept = state;
    }
}
