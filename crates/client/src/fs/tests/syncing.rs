//! What fsync and fdatasync ask of the metadata service.

use super::*;

/// A file of four bytes, of which all is on disk.
fn synced_file(fs: &LocalFs<Model>) -> Gfid {
    let gfid = create(fs, "file");
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"data"), PLACED, at(2)).await.expect("write");
        fs.fsync(gfid, false, at(2)).await.expect("fsync");
    });
    let mut world = fs.backend.world.borrow_mut();
    (world.told, world.syncs) = (Vec::new(), 0);
    drop(world);
    gfid
}

/// Size and time of change that the service was told, and whether it was to sync that.
type Told = (Option<u64>, Option<Timestamp>, bool);

/// What it was told since it was looked last, and how often it was asked to sync alone.
fn asked(fs: &LocalFs<Model>) -> (Vec<Told>, u32) {
    let mut world = fs.backend.world.borrow_mut();
    let told = std::mem::take(&mut world.told).iter().map(|(set, sync)| (set.size, set.mtime, *sync)).collect();
    (told, std::mem::take(&mut world.syncs))
}

#[test]
fn fsync_tells_and_syncs_in_one_trip() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(3)).await.expect("write");
        fs.fsync(gfid, false, at(3)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![(Some(4), Some(at(3).now), true)], 0));
        fs.fsync(gfid, false, at(4)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![], 1), "what others did to the file, a chmod say, is synced, too");
        fs.write(gfid, 4, Bytes::from_static(b"more"), PLACED, at(5)).await.expect("write");
        fs.fsync(gfid, true, at(5)).await.expect("fdatasync");
        assert_eq!(asked(fs), (vec![(Some(8), Some(at(5).now), true)], 0), "the size is needed to read the data");
    });
}

#[test]
fn fdatasync_leaves_times_for_later() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(3)).await.expect("write");
        fs.fsync(gfid, true, at(3)).await.expect("fdatasync");
        assert_eq!(asked(fs), (vec![], 0));
        assert!(fs.backend.with(gfid, |stored| stored.unstable.is_none()).expect("there"), "but the data is synced");
        fs.fsync(gfid, false, at(4)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![(Some(4), Some(at(3).now), true)], 0));
    });
}

#[test]
fn fdatasync_syncs_a_size_that_was_told_without() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    block_on(async {
        fs.setattr(gfid, truncate(2), at(3)).await.expect("truncate");
        assert_eq!(asked(fs), (vec![(Some(2), Some(at(3).now), false)], 0));
        fs.backend.world.borrow_mut().refuses_to_sync = true;
        assert_eq!(fs.fsync(gfid, true, at(4)).await.expect_err("refused").errno(), errno::EIO);
        fs.backend.world.borrow_mut().refuses_to_sync = false;
        fs.fsync(gfid, true, at(4)).await.expect("fdatasync");
        assert_eq!(asked(fs), (vec![], 2), "asked again after a failure");
        fs.fsync(gfid, true, at(5)).await.expect("fdatasync");
        assert_eq!(asked(fs), (vec![], 0), "and not after a success");
    });
}

#[test]
fn fdatasync_syncs_a_size_that_another_mount_told() {
    let mounts = mounts(2);
    let gfid = create(&mounts[0], "file");
    block_on(async {
        mounts[0].write(gfid, 0, Bytes::from_static(b"data"), PLACED, at(2)).await.expect("write");
        mounts[1].open(gfid, false, at(3)).await.expect("open");
        asked(&mounts[1]);
        mounts[1].fsync(gfid, true, at(4)).await.expect("fdatasync");
        assert_eq!(asked(&mounts[1]), (vec![], 1), "nobody has synced it");
        mounts[1].fsync(gfid, true, at(5)).await.expect("fdatasync");
        assert_eq!(asked(&mounts[1]), (vec![], 0));
    });
}

/// Writes and syncs so often that the next sync is expected; forgets what was asked.
fn used_to_sync(fs: &LocalFs<Model>, gfid: Gfid, datasync: bool) {
    block_on(async {
        for _ in 0..3 {
            fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(3)).await.expect("write");
            fs.fsync(gfid, datasync, at(3)).await.expect("fsync");
        }
    });
    asked(fs);
    fs.backend.world.borrow_mut().syncs_ahead = 0;
}

#[test]
fn an_fsync_that_always_follows_begins_with_the_write() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    fs.backend.world.borrow_mut().alone = true;
    let gfid = synced_file(fs);
    used_to_sync(fs, gfid, false);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(4)).await.expect("write");
        assert_eq!(asked(fs), (vec![(Some(4), Some(at(4).now), true)], 0), "told and synced before anybody asks");
        assert_eq!(fs.backend.world.borrow().syncs_ahead, 1);
        fs.fsync(gfid, false, at(5)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![], 0), "nothing is left to do");
        fs.write(gfid, 4, Bytes::from_static(b"more"), PLACED, at(6)).await.expect("write");
        assert_eq!(asked(fs), (vec![], 0), "a size is told after the data is stable");
        assert_eq!(fs.backend.world.borrow().syncs_ahead, 2);
        fs.fsync(gfid, false, at(7)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![(Some(8), Some(at(6).now), true)], 0));
        fs.setattr(gfid, SetAttr { mode: Some(0o600), ..SetAttr::default() }, at(8)).await.expect("chmod");
        asked(fs);
        fs.fsync(gfid, false, at(9)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![], 1), "the mode is not synced yet");
    });
}

#[test]
fn an_fdatasync_that_always_follows_tells_nothing_ahead() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    used_to_sync(fs, gfid, true);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(4)).await.expect("write");
        assert_eq!(asked(fs), (vec![], 0));
        assert_eq!(fs.backend.world.borrow().syncs_ahead, 1);
    });
}

#[test]
fn a_failure_ahead_of_an_fsync_is_for_the_fsync_to_tell() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    used_to_sync(fs, gfid, false);
    block_on(async {
        fs.backend.world.borrow_mut().refuses_to_sync = true;
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(4)).await.expect("write");
        assert_eq!(fs.fsync(gfid, false, at(5)).await.expect_err("refused").errno(), errno::EIO);
        fs.backend.world.borrow_mut().refuses_to_sync = false;
        fs.fsync(gfid, false, at(6)).await.expect("fsync");
        let (told, _) = asked(fs);
        assert_eq!(told.last(), Some(&(Some(4), Some(at(4).now), true)));
    });
}

#[test]
fn nothing_begins_ahead_where_that_is_off() {
    let mounts = mounts_with(&FsOptions { sync_ahead: false, ..options() }, &no_kernel(), 1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    used_to_sync(fs, gfid, false);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(4)).await.expect("write");
        assert_eq!(asked(fs), (vec![], 0));
        assert_eq!(fs.backend.world.borrow().syncs_ahead, 0);
    });
}

#[test]
fn a_write_through_a_synchronous_handle_is_done_once_it_is_synced() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    fs.backend.world.borrow_mut().alone = true;
    let gfid = synced_file(fs);
    let unstable = || fs.backend.with(gfid, |stored| stored.unstable).expect("there");
    block_on(async {
        let synced = |sync| WriteMode { sync, ..PLACED };
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), synced(SyncKind::Data), at(3)).await.expect("O_DSYNC");
        assert_eq!((unstable(), asked(fs)), (None, (vec![], 0)), "its time is not needed to read it");
        fs.write(gfid, 4, Bytes::from_static(b"more"), synced(SyncKind::Data), at(4)).await.expect("O_DSYNC");
        assert_eq!((unstable(), asked(fs)), (None, (vec![(Some(8), Some(at(4).now), true)], 0)), "its size is");
        fs.write(gfid, 0, Bytes::from_static(b"data"), synced(SyncKind::Full), at(5)).await.expect("O_SYNC");
        assert_eq!((unstable(), asked(fs)), (None, (vec![(Some(8), Some(at(5).now), true)], 0)));
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(6)).await.expect("no sync");
        assert!(unstable().is_some());
    });
}
