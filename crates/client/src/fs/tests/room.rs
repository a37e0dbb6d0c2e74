//! Files that grow in a directory with a quota.

use super::*;

pub(super) const EDQUOT: i32 = 122;
/// What the model promises beyond what is asked for.
pub(super) const MORE: u64 = 1000;

fn limited(limit: u64) -> (Rc<LocalFs<Model>>, Gfid) {
    let mounts = mounts(1);
    let fs = Rc::clone(&mounts[0]);
    fs.backend.world.borrow_mut().limit = Some(limit);
    let gfid = create(&fs, "file");
    (fs, gfid)
}

fn write(fs: &LocalFs<Model>, gfid: Gfid, offset: u64, len: usize) -> Result<()> {
    let data = Bytes::from(vec![7; len]);
    block_on(fs.write(gfid, offset, data, WriteMode::default(), at(1)))
}

fn size(fs: &LocalFs<Model>, gfid: Gfid) -> u64 {
    block_on(fs.getattr(gfid, at(1))).expect("getattr").size
}

fn is_over(result: Result<()>) -> bool {
    matches!(result, Err(ClientError::Posix(EDQUOT)))
}

#[test]
fn a_write_that_does_not_fit_is_refused_before_anything_of_it_is_taken() {
    let (fs, gfid) = limited(5000);
    write(&fs, gfid, 0, 4000).expect("it fits");
    assert!(is_over(write(&fs, gfid, 4000, 1001)));
    assert_eq!(size(&fs, gfid), 4000);
    write(&fs, gfid, 4000, 1000).expect("it just fits");
    write(&fs, gfid, 100, 4000).expect("inside the file");
    assert!(is_over(write(&fs, gfid, 9_000_000, 1)), "sparse files count with their length");
    assert_eq!(size(&fs, gfid), 5000);
}

#[test]
fn room_is_asked_for_once_in_a_while() {
    let (fs, gfid) = limited(1 << 30);
    for at in 0..100 {
        write(&fs, gfid, at * 50, 50).expect("it fits");
    }
    assert_eq!(fs.backend.world.borrow().rooms, 5, "for 1050 bytes each");
}

#[test]
fn other_ways_to_grow_are_refused_too() {
    let (fs, gfid) = limited(5000);
    let set = SetAttr { size: Some(5001), ..SetAttr::default() };
    assert!(is_over(block_on(fs.setattr(gfid, set, at(1))).map(drop)));
    for mode in [AllocateMode::Allocate, AllocateMode::Zero] {
        assert!(is_over(block_on(fs.allocate(gfid, 4000, 1001, mode, at(1)))), "{mode:?}");
    }
    assert_eq!(size(&fs, gfid), 0);
    let set = SetAttr { size: Some(5000), ..SetAttr::default() };
    block_on(fs.setattr(gfid, set, at(1))).expect("it fits");
}

#[test]
fn a_truncation_and_a_close_end_the_allowance() {
    let (fs, gfid) = limited(5000);
    write(&fs, gfid, 0, 4000).expect("it fits");
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    block_on(fs.setattr(gfid, set, at(1))).expect("truncated");
    fs.backend.world.borrow_mut().limit = Some(10);
    assert!(is_over(write(&fs, gfid, 0, 11)), "the rest of it may be another's");
    fs.backend.world.borrow_mut().limit = Some(5000);
    write(&fs, gfid, 0, 10).expect("it fits");
    block_on(fs.release(gfid)).expect("closed");
    fs.backend.world.borrow_mut().limit = Some(10);
    block_on(fs.open(gfid, true, at(1))).expect("open");
    assert!(is_over(write(&fs, gfid, 10, 1)));
}

#[test]
fn a_file_without_a_quota_asks_for_nothing() {
    let mounts = mounts(1);
    let gfid = create(&mounts[0], "file");
    write(&mounts[0], gfid, 1 << 20, 100).expect("no limit");
    assert_eq!(mounts[0].backend.world.borrow().rooms, 0);
}
