//! The state file: kept, guarded, and never silently wrong.

use super::*;
use crate::monitor::{ExpectedOsd, PoolSpec, create_cluster};
use protocol::{ClusterId, Epoch};

fn state() -> MonitorState {
    let pool = PoolSpec::new("data", 2, 1, 512, 4).expect("a profile");
    create_cluster(ClusterId::new(77), &ExpectedOsd::first(3), &pool)
        .expect("three OSDs are enough")
}

#[test]
fn what_is_saved_is_loaded_and_the_version_before_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("monitor");
    let mut control = Embedded::open(&path).expect("opens");
    assert_eq!(control.load().expect("empty"), None);
    let mut state = state();
    control.save(&state).expect("saves");
    let first = fs::read(path.join("state")).expect("is there");
    state.map.epoch = Epoch::new(2);
    control.save(&state).expect("saves");
    assert_eq!(control.load().expect("loads"), Some(state));
    assert_eq!(fs::read(path.join("state.prev")).expect("is there"), first);
    assert!(!path.join("state.tmp").exists());
}

#[test]
fn a_second_monitor_is_told_who_holds_the_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = Embedded::open(dir.path()).expect("opens");
    let error = Embedded::open(dir.path()).expect_err("in use");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(first);
    Embedded::open(dir.path()).expect("free again");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut control = Embedded::open(dir.path()).expect("opens");
    control.save(&state()).expect("saves");
    let path = dir.path().join("state");
    let whole = fs::read(&path).expect("is there");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        Embedded::parse(&path, &bytes).expect_err("flipped");
        Embedded::parse(&path, &whole[..at]).expect_err("cut");
    }
    let mut other = whole.clone();
    other[8] = 9;
    fs::write(&path, other).expect("writes");
    assert!(matches!(control.load(), Err(ControlError::Format { found: 9, .. })));
}

#[test]
fn the_format_before_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut control = Embedded::open(dir.path()).expect("opens");
    let state = state();
    control.save(&state).expect("saves");
    let path = dir.path().join("state");
    let mut bytes = fs::read(&path).expect("is there");
    assert_eq!(bytes.pop(), Some(NO_NAMESPACE), "what format 3 has added");
    bytes[8] = 2;
    let length = bytes.len() - Embedded::HEADER_BYTES;
    bytes[16..24].copy_from_slice(&(length as u64).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).expect("writes");
    assert_eq!(control.load().expect("loads"), Some(state));
}

#[test]
fn a_lost_file_is_not_a_new_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut control = Embedded::open(dir.path()).expect("opens");
    control.save(&state()).expect("saves");
    control.save(&state()).expect("saves");
    fs::remove_file(dir.path().join("state")).expect("removes");
    assert!(matches!(control.load(), Err(ControlError::Damaged { .. })));
}

#[test]
fn a_save_that_failed_can_be_done_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut control = Embedded::open(dir.path()).expect("opens");
    fs::create_dir(dir.path().join("state.tmp")).expect("in the way");
    assert!(matches!(control.save(&state()), Err(ControlError::Io { .. })));
    fs::remove_dir(dir.path().join("state.tmp")).expect("removes");
    control.save(&state()).expect("nothing is in the way any more");
    assert_eq!(control.load().expect("loads"), Some(state()));
}
