//! Access times: what reads cost, who sees them when, and what a user sets.

use super::*;

/// Sweeps until access times are told.
const SWEEPS: usize = 5;

fn mounts_by(rule: AtimeRule) -> Vec<Rc<LocalFs<Model>>> {
    let options = FsOptions { atimes: AtimeRules::all(rule), ..options() };
    mounts_with(&options, &no_kernel(), 2)
}

/// A file of four bytes, written at 2, that is closed here.
fn file(fs: &LocalFs<Model>, name: &str) -> Gfid {
    let gfid = create(fs, name);
    block_on(fs.write(gfid, 0, Bytes::from_static(b"abcd"), PLACED, at(2))).expect("write");
    block_on(fs.flush(gfid, OPEN, LockOwner(1))).expect("flush");
    gfid
}

fn read(fs: &LocalFs<Model>, gfid: Gfid, now: i64) -> bool {
    block_on(fs.read(gfid, 0, 4, at(now))).expect("read");
    fs.accessed(gfid, at(now).now)
}

fn atime(fs: &LocalFs<Model>, gfid: Gfid) -> i64 {
    block_on(fs.getattr(gfid, at(9))).expect("stat").atime.secs
}

fn told(fs: &LocalFs<Model>) -> usize {
    fs.backend.world.borrow().accessed.len()
}

#[test]
fn reads_ask_the_service_for_nothing_and_it_hears_of_all_files_in_one_request() {
    let mounts = mounts_by(AtimeRule::Relative);
    let (fs, other) = (&mounts[0], &mounts[1]);
    let files: Vec<Gfid> = (0..40).map(|number| file(fs, &format!("f{number}"))).collect();
    let before = fs.backend.world.borrow().commit.number;
    for turn in 0..25 {
        for gfid in &files {
            assert_eq!(read(fs, *gfid, 10 + turn), turn == 0, "the first read since the write");
            assert_eq!(atime(fs, *gfid), 10);
        }
    }
    assert_eq!(fs.backend.world.borrow().commit.number, before, "a read told the service");
    assert_eq!((atime(fs, files[0]), atime(other, files[0])), (10, 1));
    for _ in 0..SWEEPS {
        assert_eq!(told(fs), 0, "it waits for others");
        block_on(fs.sweep());
    }
    assert_eq!(fs.backend.world.borrow().accessed, [40], "one request for all of them");
    assert_eq!((atime(fs, files[39]), atime(other, files[39])), (10, 10));
    for _ in 0..2 * SWEEPS {
        block_on(fs.sweep());
    }
    assert_eq!(told(fs), 1);
}

#[test]
fn a_read_takes_no_lease_and_its_time_outlives_one_that_is_recalled() {
    let mounts = mounts_by(AtimeRule::Relative);
    let (fs, other) = (&mounts[0], &mounts[1]);
    let gfid = file(fs, "f");
    assert!(read(other, gfid, 5) && !read(other, gfid, 6));
    block_on(fs.write(gfid, 0, Bytes::from_static(b"x"), PLACED, at(7))).expect("write");
    let tokens = fs.backend.world.borrow().tokens;
    assert!(!other.accessed(gfid, at(4).now), "a clock that is behind");
    block_on(other.tell_atimes());
    assert_eq!(fs.backend.world.borrow().tokens, tokens, "telling is not writing");
    assert_eq!(told(fs), 1);
    assert_eq!(atime(fs, gfid), 5);
    assert!(read(other, gfid, 8), "it was written since");
}

#[test]
fn an_access_time_that_a_user_sets_stays() {
    for rule in [AtimeRule::Relative, AtimeRule::Strict] {
        let mounts = mounts_by(rule);
        let (fs, other) = (&mounts[0], &mounts[1]);
        let gfid = file(fs, "f");
        assert!(read(fs, gfid, 10));
        let set = SetAttr { atime: Some(at(4).now), ..SetAttr::default() };
        block_on(fs.setattr(gfid, set, at(11))).expect("utimes");
        block_on(fs.tell_atimes());
        assert_eq!((told(fs), atime(fs, gfid), atime(other, gfid)), (0, 4, 4), "{rule:?}");
        assert!(read(fs, gfid, 12), "ctime moved with it");
        assert_eq!(read(fs, gfid, 13), rule == AtimeRule::Strict);
    }
}

#[test]
fn a_service_that_does_not_answer_is_told_later_and_at_the_end_all_is_told() {
    let mounts = mounts_by(AtimeRule::Strict);
    let fs = &mounts[0];
    let gfid = file(fs, "f");
    assert!(read(fs, gfid, 10));
    fs.backend.world.borrow_mut().down = true;
    block_on(fs.tell_atimes());
    fs.backend.world.borrow_mut().down = false;
    assert_eq!((told(fs), atime(fs, gfid)), (0, 10));
    block_on(fs.sync_everything()).expect("sync");
    assert_eq!(told(fs), 1);
}

#[test]
fn a_directory_that_is_listed_was_read_unless_its_handle_says_no() {
    let mounts = mounts_by(AtimeRule::Relative);
    let fs = &mounts[0];
    file(fs, "f");
    for counts in [false, true] {
        let handle = fs.shared.opendir(Gfid::ROOT, counts);
        block_on(fs.readdir(handle, 0, 10, at(3))).expect("list");
        assert_eq!(atime(fs, Gfid::ROOT) > 0, counts);
    }
}

#[test]
fn where_no_read_counts_nothing_moves() {
    let mounts = mounts_by(AtimeRule::Never);
    let gfid = file(&mounts[0], "f");
    assert!(!read(&mounts[0], gfid, 10));
    block_on(mounts[0].tell_atimes());
    assert_eq!((told(&mounts[0]), atime(&mounts[0], gfid)), (0, 1));
}
