//! What fsync and fdatasync ask of the metadata service.

use super::*;

/// A file of four bytes, of which all is on disk.
fn synced_file(fs: &LocalFs<Model>) -> Gfid {
    let gfid = create(fs, "file");
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"data"), PLACED, at(2)).await.expect("write");
        fs.fsync(gfid, OPEN, false, at(2)).await.expect("fsync");
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
    let told = std::mem::take(&mut world.told)
        .iter()
        .map(|(set, sync)| (set.size, set.mtime, *sync))
        .collect();
    (told, std::mem::take(&mut world.syncs))
}

#[test]
fn fsync_tells_and_syncs_in_one_trip() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(3)).await.expect("write");
        fs.fsync(gfid, OPEN, false, at(3)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![(Some(4), Some(at(3).now), true)], 0));
        fs.fsync(gfid, OPEN, false, at(4)).await.expect("fsync");
        assert_eq!(
            asked(fs),
            (vec![], 1),
            "what others did to the file, a chmod say, is synced, too"
        );
        fs.write(gfid, 4, Bytes::from_static(b"more"), PLACED, at(5)).await.expect("write");
        fs.fsync(gfid, OPEN, true, at(5)).await.expect("fdatasync");
        assert_eq!(
            asked(fs),
            (vec![(Some(8), Some(at(5).now), true)], 0),
            "the size is needed to read the data"
        );
    });
}

#[test]
fn fdatasync_leaves_times_for_later() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(3)).await.expect("write");
        fs.fsync(gfid, OPEN, true, at(3)).await.expect("fdatasync");
        assert_eq!(asked(fs), (vec![], 0));
        assert!(
            fs.backend.with(gfid, |stored| stored.unstable.is_none()).expect("there"),
            "but the data is synced"
        );
        fs.fsync(gfid, OPEN, false, at(4)).await.expect("fsync");
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
        assert_eq!(
            fs.fsync(gfid, OPEN, true, at(4)).await.expect_err("refused").errno(),
            errno::EIO
        );
        fs.backend.world.borrow_mut().refuses_to_sync = false;
        fs.fsync(gfid, OPEN, true, at(4)).await.expect("fdatasync");
        assert_eq!(asked(fs), (vec![], 2), "asked again after a failure");
        fs.fsync(gfid, OPEN, true, at(5)).await.expect("fdatasync");
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
        mounts[1].fsync(gfid, OPEN, true, at(4)).await.expect("fdatasync");
        assert_eq!(asked(&mounts[1]), (vec![], 1), "nobody has synced it");
        mounts[1].fsync(gfid, OPEN, true, at(5)).await.expect("fdatasync");
        assert_eq!(asked(&mounts[1]), (vec![], 0));
    });
}

/// Writes and syncs so often that the next sync is expected; forgets what was asked.
fn used_to_sync(fs: &LocalFs<Model>, gfid: Gfid, datasync: bool) {
    block_on(async {
        for _ in 0..3 {
            fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(3)).await.expect("write");
            fs.fsync(gfid, OPEN, datasync, at(3)).await.expect("fsync");
        }
    });
    asked(fs);
    fs.backend.world.borrow_mut().syncs_ahead = 0;
}

/// A mount that tells the times of every write before an fsync is answered.
fn telling_mounts() -> Vec<Rc<LocalFs<Model>>> {
    mounts_with(&FsOptions { times_follow: false, ..options() }, &no_kernel(), 1)
}

#[test]
fn an_fsync_that_always_follows_begins_with_the_write() {
    let mounts = telling_mounts();
    let fs = &mounts[0];
    fs.backend.world.borrow_mut().alone = true;
    let gfid = synced_file(fs);
    used_to_sync(fs, gfid, false);
    block_on(async {
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(4)).await.expect("write");
        assert_eq!(
            asked(fs),
            (vec![(Some(4), Some(at(4).now), true)], 0),
            "told and synced before anybody asks"
        );
        assert_eq!(fs.backend.world.borrow().syncs_ahead, 1);
        fs.fsync(gfid, OPEN, false, at(5)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![], 0), "nothing is left to do");
        fs.write(gfid, 4, Bytes::from_static(b"more"), PLACED, at(6)).await.expect("write");
        assert_eq!(asked(fs), (vec![], 0), "a size is told after the data is stable");
        assert_eq!(fs.backend.world.borrow().syncs_ahead, 2);
        fs.fsync(gfid, OPEN, false, at(7)).await.expect("fsync");
        assert_eq!(asked(fs), (vec![(Some(8), Some(at(6).now), true)], 0));
        fs.setattr(gfid, SetAttr { mode: Some(0o600), ..SetAttr::default() }, at(8))
            .await
            .expect("chmod");
        asked(fs);
        fs.fsync(gfid, OPEN, false, at(9)).await.expect("fsync");
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
    let mounts = telling_mounts();
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    used_to_sync(fs, gfid, false);
    block_on(async {
        fs.backend.world.borrow_mut().refuses_to_sync = true;
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(4)).await.expect("write");
        assert_eq!(
            fs.fsync(gfid, OPEN, false, at(5)).await.expect_err("refused").errno(),
            errno::EIO
        );
        fs.backend.world.borrow_mut().refuses_to_sync = false;
        fs.fsync(gfid, OPEN, false, at(6)).await.expect("fsync");
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
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), synced(SyncKind::Data), at(3))
            .await
            .expect("O_DSYNC");
        assert_eq!(
            (unstable(), asked(fs)),
            (None, (vec![], 0)),
            "its time is not needed to read it"
        );
        fs.write(gfid, 4, Bytes::from_static(b"more"), synced(SyncKind::Data), at(4))
            .await
            .expect("O_DSYNC");
        assert_eq!(
            (unstable(), asked(fs)),
            (None, (vec![(Some(8), Some(at(4).now), true)], 0)),
            "its size is"
        );
        fs.write(gfid, 0, Bytes::from_static(b"data"), synced(SyncKind::Full), at(5))
            .await
            .expect("O_SYNC");
        assert_eq!((unstable(), asked(fs)), (None, (vec![(Some(8), Some(at(5).now), true)], 0)));
        fs.write(gfid, 0, Bytes::from_static(b"DATA"), PLACED, at(6)).await.expect("no sync");
        assert!(unstable().is_some());
    });
}

/// What the service was told since it was looked last: the size, the modification time, and whether
/// times may follow. Everything that has to do with these was synced.
fn told_of_times(fs: &LocalFs<Model>) -> Vec<(Option<u64>, Option<Timestamp>, bool)> {
    let told = std::mem::take(&mut fs.backend.world.borrow_mut().told);
    assert!(
        told.iter().all(|(_, sync)| *sync),
        "without a sync a loss of power brings older times and the mark back"
    );
    told.iter().map(|(set, _)| (set.size, set.mtime, set.times_follow)).collect()
}

fn write_at(fs: &LocalFs<Model>, gfid: Gfid, offset: u64, time: i64) {
    block_on(fs.write(gfid, offset, Bytes::from_static(b"DATA"), PLACED, at(time))).expect("write");
}

fn fsync_at(fs: &LocalFs<Model>, gfid: Gfid, time: i64) {
    block_on(fs.fsync(gfid, OPEN, false, at(time))).expect("fsync");
}

/// A file of four bytes whose every write is followed by an fsync, so that the service knows that
/// times may follow.
fn marked_file(fs: &LocalFs<Model>) -> Gfid {
    fs.backend.world.borrow_mut().alone = true;
    let gfid = synced_file(fs);
    used_to_sync(fs, gfid, false);
    let mut is_marked = false;
    while !is_marked {
        write_at(fs, gfid, 0, 3);
        fsync_at(fs, gfid, 3);
        is_marked = told_of_times(fs).iter().any(|(_, _, follows)| *follows);
    }
    write_at(fs, gfid, 0, 4);
    fsync_at(fs, gfid, 4);
    assert_eq!(asked(fs), (vec![], 0), "it was told with the last sync before");
    gfid
}

#[test]
fn times_follow_where_an_fsync_always_does() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    fs.backend.world.borrow_mut().alone = true;
    let gfid = synced_file(fs);
    for time in 3..7 {
        write_at(fs, gfid, 0, time);
        fsync_at(fs, gfid, time);
        assert_eq!(
            told_of_times(fs),
            [(Some(4), Some(at(time).now), time == 6)],
            "a mark is earned"
        );
    }
    for time in 7..9 {
        write_at(fs, gfid, 0, time);
        fsync_at(fs, gfid, time);
        block_on(fs.sweep());
        assert_eq!(asked(fs), (vec![], 0));
        assert!(
            fs.backend.with(gfid, |stored| stored.unstable.is_none()).expect("there"),
            "the data is synced"
        );
        assert_eq!(block_on(fs.getattr(gfid, at(9))).expect("stat").mtime, at(time).now);
    }
    block_on(fs.sweep());
    assert_eq!(told_of_times(fs), [(Some(4), Some(at(8).now), false)], "a sweep found nothing new");
    block_on(fs.sweep());
    assert_eq!(told_of_times(fs), []);
}

#[test]
fn times_that_followed_are_told_with_a_close_a_recall_and_a_size() {
    type End = fn(&[Rc<LocalFs<Model>>], Gfid);
    let truncated: End = |mounts, gfid| {
        block_on(mounts[0].setattr(gfid, truncate(4), at(4))).map(drop).expect("truncate");
    };
    let ends: [(&str, End, u64, i64); 6] = [
        ("close", |mounts, gfid| block_on(mounts[0].release(gfid)).expect("close"), 4, 4),
        (
            "recall",
            |mounts, gfid| _ = block_on(mounts[1].getattr(gfid, at(9))).expect("stat"),
            4,
            4,
        ),
        ("truncation", truncated, 4, 4),
        (
            "chmod",
            |mounts, gfid| {
                let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                block_on(mounts[0].setattr(gfid, mode, at(9))).map(drop).expect("chmod");
            },
            4,
            4,
        ),
        ("syncfs", |mounts, _| block_on(mounts[0].sync_everything()).expect("syncfs"), 4, 4),
        (
            "growth",
            |mounts, gfid| {
                write_at(&mounts[0], gfid, 4, 7);
                fsync_at(&mounts[0], gfid, 7);
            },
            8,
            7,
        ),
    ];
    for (what, end, size, time) in ends {
        let mounts = mounts(2);
        let gfid = marked_file(&mounts[0]);
        end(&mounts, gfid);
        assert_eq!(told_of_times(&mounts[0]), [(Some(size), Some(at(time).now), false)], "{what}");
        mounts[0].backend.world.borrow_mut().syncs = 0;
        let stored = mounts[0].backend.with(gfid, |stored| stored.attr).expect("there");
        assert_eq!((stored.size, stored.mtime), (size, at(time).now), "{what}");
    }
}

#[test]
fn a_time_that_a_program_sets_does_not_follow() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = marked_file(fs);
    let utimes = SetAttr { mtime: Some(at(1).now), ..SetAttr::default() };
    block_on(fs.setattr(gfid, utimes, at(5))).expect("utimes");
    assert_eq!(told_of_times(fs), [], "kept here");
    fsync_at(fs, gfid, 6);
    assert_eq!(
        told_of_times(fs),
        [(Some(4), Some(at(1).now), false)],
        "the service would say when the session died"
    );
    write_at(fs, gfid, 0, 7);
    fsync_at(fs, gfid, 7);
    let (_, _, follows) = told_of_times(fs)[0];
    assert!(!follows, "two syncs without a write between them: the habit is broken");
}

#[test]
fn an_fsync_after_other_changes_asks_where_times_follow() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = marked_file(fs);
    create(fs, "other");
    write_at(fs, gfid, 0, 5);
    fsync_at(fs, gfid, 5);
    assert_eq!(asked(fs), (vec![], 1), "the new name is not synced yet");
    fs.backend.world.borrow_mut().alone = false;
    write_at(fs, gfid, 0, 6);
    fsync_at(fs, gfid, 6);
    assert_eq!(asked(fs), (vec![], 1), "another mount may have changed the mode");
}

#[test]
fn a_mark_that_was_not_answered_does_not_count() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    fs.backend.world.borrow_mut().alone = true;
    let gfid = synced_file(fs);
    used_to_sync(fs, gfid, false);
    // The next one sets the mark.
    write_at(fs, gfid, 0, 3);
    fsync_at(fs, gfid, 3);
    told_of_times(fs);
    fs.backend.world.borrow_mut().refuses_to_sync = true;
    write_at(fs, gfid, 0, 5);
    assert_eq!(told_of_times(fs), [(Some(4), Some(at(5).now), true)], "ahead of the fsync");
    block_on(fs.sweep());
    assert_eq!(
        told_of_times(fs),
        [(Some(4), Some(at(5).now), false)],
        "it may have arrived, and is taken back"
    );
    assert_eq!(
        block_on(fs.fsync(gfid, OPEN, false, at(5))).expect_err("refused").errno(),
        errno::EIO
    );
    fs.backend.world.borrow_mut().refuses_to_sync = false;
    told_of_times(fs);
    fsync_at(fs, gfid, 6);
    assert_eq!(
        told_of_times(fs),
        [(Some(4), Some(at(5).now), false)],
        "told, and the mark is taken back"
    );
    block_on(fs.release(gfid)).expect("close");
    assert_eq!(told_of_times(fs), [], "nothing is left to tell");
}

#[test]
fn times_that_may_follow_are_not_lost_with_the_session() {
    for (extends, result) in [(false, Ok(())), (true, Err(errno::EIO))] {
        let mounts = mounts(1);
        let fs = &mounts[0];
        let gfid = marked_file(fs);
        if extends {
            write_at(fs, gfid, 4, 5);
        }
        block_on(fs.fenced());
        let synced = block_on(fs.fsync(gfid, OPEN, false, at(6)));
        assert_eq!(synced.map_err(|error| error.errno()), result, "a size may be lost");
    }
}

#[test]
fn what_does_not_follow_an_fsync_is_told_at_each_sweep() {
    let utimes = SetAttr { mtime: Some(at(1).now), ..SetAttr::default() };
    for grows in [true, false] {
        let mounts = mounts(1);
        let fs = &mounts[0];
        let gfid = marked_file(fs);
        if grows {
            write_at(fs, gfid, 4, 5);
        } else {
            block_on(fs.setattr(gfid, utimes, at(5))).expect("utimes");
        }
        block_on(fs.sweep());
        let told =
            if grows { (Some(8), Some(at(5).now), false) } else { (Some(4), utimes.mtime, false) };
        assert_eq!(told_of_times(fs), [told]);
    }
}

#[test]
fn a_file_that_is_closed_and_recalled_is_forgotten_at_a_sweep() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = marked_file(fs);
    block_on(async {
        fs.sweep().await;
        fs.release(gfid).await.expect("close");
        fs.recall(gfid, None).await;
        assert!(fs.shared.table.get(gfid).is_some());
        fs.sweep().await;
    });
    assert!(fs.shared.table.get(gfid).is_none());
}

#[test]
fn a_file_that_is_closed_after_each_fsync_is_told_of_once_each_time() {
    let mounts = mounts(1);
    let fs = &mounts[0];
    let gfid = synced_file(fs);
    block_on(fs.release(gfid)).expect("close");
    for time in 3..20 {
        block_on(fs.open(gfid, true, at(time))).expect("open");
        write_at(fs, gfid, 0, time);
        fsync_at(fs, gfid, time);
        block_on(fs.release(gfid)).expect("close");
        assert_eq!(told_of_times(fs), [(Some(4), Some(at(time).now), false)]);
    }
}

#[test]
fn a_time_that_a_program_sets_together_with_another_does_not_follow() {
    for writes in [true, false] {
        let mounts = mounts(1);
        let fs = &mounts[0];
        fs.backend.world.borrow_mut().alone = true;
        let gfid = synced_file(fs);
        let set = at(1).now;
        let same_mode = fs.backend.with(gfid, |stored| stored.attr.mode).expect("there");
        for time in 3..15 {
            if writes {
                write_at(fs, gfid, 0, time);
            }
            block_on(async {
                let both = SetAttr { atime: Some(set), mtime: Some(set), ..SetAttr::default() };
                fs.setattr(gfid, both, at(time)).await.expect("utimensat");
                let mode = SetAttr { mode: Some(same_mode), ..SetAttr::default() };
                fs.setattr(gfid, mode, at(time)).await.expect("fchmod");
            });
            fsync_at(fs, gfid, time);
            let told = std::mem::take(&mut fs.backend.world.borrow_mut().told);
            // The time of the write itself may be told ahead, marked; utimensat takes that back.
            assert!(
                told.iter().all(|(told, _)| !told.times_follow || told.mtime != Some(set)),
                "written: {writes}"
            );
            assert!(told.last().is_none_or(|(told, _)| !told.times_follow), "written: {writes}");
            assert_eq!(fs.backend.with(gfid, |stored| stored.attr.mtime).expect("there"), set);
        }
    }
}
