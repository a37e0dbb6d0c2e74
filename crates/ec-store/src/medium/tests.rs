//! Memory against the real disk: one script, two media, the same answers.

use super::*;
use crate::disk;
use proptest::prelude::*;

const PATH_BYTES: u64 = 5 * 4096;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<Vec<u8>>),
    SetLen(u64),
    Punch(u64, u64),
    Allocate(u64),
    Read(u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..PATH_BYTES;
    prop_oneof![
        (at.clone(), prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 1..4))
            .prop_map(|(at, parts)| Step::Write(at, parts)),
        at.clone().prop_map(Step::SetLen),
        (at.clone(), 1..9000u64).prop_map(|(at, length)| Step::Punch(at, length)),
        (1..PATH_BYTES).prop_map(Step::Allocate),
        (at, 0..9000usize).prop_map(|(at, length)| Step::Read(at, length)),
    ]
}

fn run(file: &dyn MediumFile, step: &Step) -> Vec<u8> {
    match step {
        Step::Write(at, parts) => {
            let mut slices: Vec<IoSlice<'_>> =
                parts.iter().map(|part| IoSlice::new(part)).collect();
            write_vectored(file, *at, &mut slices).unwrap();
            Vec::new()
        }
        Step::SetLen(length) => file.set_len(*length).map(|()| Vec::new()).unwrap(),
        Step::Punch(at, length) => {
            file.extent(Extent::Punch, *at, *length).map(|_| Vec::new()).unwrap()
        }
        Step::Allocate(length) => {
            file.extent(Extent::Allocate, 0, *length).map(|_| Vec::new()).unwrap()
        }
        Step::Read(at, length) => {
            let mut bytes = vec![0xaa; *length];
            let read = file.read_at(&mut bytes, *at).unwrap();
            bytes.truncate(read);
            bytes
        }
    }
}

/// What lies before the next data is 0, from wherever it is asked for.
fn skips_only_zeros(file: &dyn MediumFile) {
    let bytes = read_all(file).unwrap();
    for from in (0..bytes.len()).step_by(1000) {
        let next = file.next_data(from as u64).unwrap().map_or(bytes.len(), |next| next as usize);
        assert!(
            (from..=bytes.len()).contains(&next) && bytes[from..next].iter().all(|byte| *byte == 0),
            "{from} {next}"
        );
    }
    assert_eq!(file.next_data(bytes.len() as u64).unwrap(), None);
}

proptest! {
    #[test]
    fn memory_answers_as_a_disk_does(steps in prop::collection::vec(step(), 1..30)) {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(1 << 20, &messenger::sync::LockTable::default());
        memory.create_dir(dir.path()).unwrap();
        let path = dir.path().join("file");
        let (real, ours) = (Disk.open(&path, OpenMode::OrCreate).unwrap(), memory.open(&path, OpenMode::OrCreate).unwrap());
        for step in &steps {
            prop_assert_eq!(run(&*real, step), run(&*ours, step));
            for file in [&*real, &*ours] {
                skips_only_zeros(file);
            }
            let (real, ours) = (real.stat().unwrap(), ours.stat().unwrap());
            prop_assert_eq!(real.length, ours.length);
            prop_assert_eq!(memory.space(&path).unwrap().used_bytes, ours.allocated_bytes);
        }
        prop_assert_eq!(read_all(&*real).unwrap(), read_all(&*ours).unwrap());
        memory.remove(&path).unwrap();
        prop_assert!(memory.space(&path).unwrap().used_bytes > 0 || ours.stat().unwrap().allocated_bytes == 0);
        drop(ours);
        prop_assert_eq!(memory.space(&path).unwrap().used_bytes, 0);
    }
}

#[test]
fn names_answer_as_a_disk_does() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::new(1 << 20, &messenger::sync::LockTable::default());
    let script = |medium: &dyn Medium| {
        let path = |name: &str| dir.path().join("below/here").join(name);
        let mut said: Vec<String> = Vec::new();
        let mut say = |what: io::Result<String>| {
            said.push(what.unwrap_or_else(|error| format!("{:?}", error.kind())))
        };
        let open = |name: &str, mode| medium.open(&path(name), mode).map(|_| "opened".into());
        say(open("a", OpenMode::OrCreate));
        say(medium.create_dir(&dir.path().join("below/here")).map(|()| "made".into()));
        say(open("a", OpenMode::Existing));
        say(open("a", OpenMode::OrCreate));
        say(open("b", OpenMode::Truncated));
        write_counted(&*medium.open(&path("b"), OpenMode::Existing).unwrap(), 0, b"of b").unwrap();
        say(medium.rename(&path("b"), &path("a")).map(|()| "renamed".into()));
        say(medium.rename(&path("b"), &path("c")).map(|()| "renamed".into()));
        let read = |name: &str| read_all(&*medium.open(&path(name), OpenMode::Existing)?);
        say(read("a").map(|bytes| String::from_utf8(bytes).unwrap()));
        say(open("c", OpenMode::OrCreate));
        for below in
            [dir.path().join("below/here"), dir.path().join("below"), dir.path().join("beside")]
        {
            say(medium.list(&below).map(|names| {
                let mut names: Vec<_> =
                    names.map(|name| name.unwrap().into_string().unwrap()).collect();
                names.sort();
                names.join(" ")
            }));
        }
        say(medium.remove(&path("a")).map(|()| "removed".into()));
        say(medium.remove(&path("a")).map(|()| "removed".into()));
        say(open("a", OpenMode::Existing));
        said
    };
    assert_eq!(script(&Disk), script(&memory));
}

#[test]
fn a_full_memory_refuses_and_changes_nothing() {
    let memory = Memory::new(4 * 4096, &messenger::sync::LockTable::default());
    let dir = Path::new("/full");
    memory.create_dir(dir).unwrap();
    let file = memory.open(&dir.join("a"), OpenMode::OrCreate).unwrap();
    write_counted(&*file, 0, &[1; 2 * 4096]).unwrap();
    let (written, error) = write_counted(&*file, 4096, &[2; 4 * 4096]).unwrap_err();
    assert!(written == 0 && disk::is_full(&error), "{error}");
    assert_eq!(read_all(&*file).unwrap(), [1; 2 * 4096]);
    assert!(disk::is_full(&file.extent(Extent::Allocate, 0, 5 * 4096).unwrap_err()));
    file.extent(Extent::Allocate, 0, 4 * 4096).unwrap();
    let other = memory.open(&dir.join("b"), OpenMode::OrCreate).unwrap();
    assert!(disk::is_full(&write_counted(&*other, 0, &[3]).unwrap_err().1));
    // what is reserved can be written
    write_counted(&*file, 2 * 4096, &[4; 2 * 4096]).unwrap();
    assert!(
        disk::is_full(&write_counted(&*file, u64::MAX - 7, &[1]).unwrap_err().1),
        "offsets have an end"
    );
    file.set_len(4096).unwrap();
    write_counted(&*other, 0, &[3]).unwrap();
    assert_eq!(memory.space(dir).unwrap().free_bytes, 2 * 4096);
}

#[test]
fn many_slices_are_written_in_order() {
    let file = tempfile::tempfile().unwrap();
    let parts: Vec<[u8; 3]> = (0..3000u16).map(|i| [i as u8, (i >> 8) as u8, 7]).collect();
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    write_vectored(&file, 5, &mut slices).unwrap();
    let mut back = vec![0xff; 9010];
    read_zero_filled(&file, 5, &mut back).unwrap();
    assert_eq!(back[..9000], *parts.as_flattened());
    assert!(back[9000..].iter().all(|&byte| byte == 0), "behind the end there are zeros");
}

#[test]
fn a_read_that_does_not_wait_takes_all_or_nothing() {
    let memory = Memory::new(1 << 20, &messenger::sync::LockTable::default());
    memory.create_dir(Path::new("/")).unwrap();
    let ours = memory.open(Path::new("/a"), OpenMode::OrCreate).unwrap();
    let real = tempfile::tempfile().unwrap();
    for file in [&real as &dyn MediumFile, &*ours] {
        write_counted(file, 0, &[9; 100]).unwrap();
        assert!(!file.read_now(&mut [0; 51], 50).unwrap());
    }
}

#[test]
fn files_in_memory_are_read_without_a_wait() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    write_counted(&file, 0, &[9; 100]).unwrap();
    let mut bytes = [0; 50];
    assert!(file.read_now(&mut bytes, 50).unwrap());
    assert_eq!(bytes, [9; 50]);
    assert!(!file.read_now(&mut bytes, 51).unwrap(), "a byte lies behind the end");
}
