//! The metadata service's machine loses its power, and with it what was told and not synced.

use super::*;

/// A mount with a file that is on the service's disk, empty and open.
fn mount_with_file() -> (Rc<LocalFs<Model>>, Gfid) {
    let mounts = mounts(1);
    let fs = Rc::clone(&mounts[0]);
    fs.backend.world.borrow_mut().commit.start = 1;
    let gfid = create(&fs, "file");
    block_on(fs.fsync(gfid, OPEN, false, at(1))).expect("fsync");
    (fs, gfid)
}

/// The service is started again, without what was not on its disk: `lose` takes that away.
fn lose_power(fs: &LocalFs<Model>, lose: impl FnOnce(&mut World)) {
    let mut world = fs.backend.world.borrow_mut();
    lose(&mut world);
    let left = world.durable;
    world.kept.push(left);
    world.commit = Commit { start: left.start + 1, number: 1 };
    world.durable = world.commit;
}

/// It is started again, and had lost nothing.
fn restart(fs: &LocalFs<Model>) {
    let last = fs.backend.world.borrow().commit;
    fs.backend.world.borrow_mut().durable = last;
    lose_power(fs, |_| ());
}

fn size_at_service(fs: &LocalFs<Model>, gfid: Gfid) -> u64 {
    fs.backend.with(gfid, |stored| stored.attr.size).expect("there")
}

fn write(fs: &LocalFs<Model>, gfid: Gfid, secs: i64) {
    block_on(fs.write(gfid, 0, Bytes::from_static(b"data"), PLACED, at(secs))).expect("write");
}

#[test]
fn a_size_that_was_told_and_lost_is_told_again_before_an_fsync_is_answered() {
    let (fs, gfid) = mount_with_file();
    write(&fs, gfid, 2);
    block_on(fs.sweep());
    assert_eq!(size_at_service(&fs, gfid), 4);
    lose_power(&fs, |world| world.files.get_mut(&gfid).expect("there").attr.size = 0);
    block_on(async {
        fs.reclaim().await;
        fs.fsync(gfid, OPEN, true, at(3)).await.expect("it can be told again");
    });
    assert_eq!(size_at_service(&fs, gfid), 4);
    let told = fs.backend.world.borrow().told.last().copied().expect("something was told");
    assert_eq!(
        (told.0.mtime, told.1),
        (Some(at(2).now), true),
        "with the times of the write, and on the disk"
    );
}

#[test]
fn it_is_told_again_without_an_fsync_too() {
    let (fs, gfid) = mount_with_file();
    write(&fs, gfid, 2);
    block_on(fs.sweep());
    lose_power(&fs, |world| world.files.get_mut(&gfid).expect("there").attr.size = 0);
    block_on(async {
        fs.reclaim().await;
        fs.sweep().await;
    });
    assert_eq!(size_at_service(&fs, gfid), 4);
    let told = fs.backend.world.borrow().told.len();
    block_on(fs.sweep());
    assert_eq!(fs.backend.world.borrow().told.len(), told, "once");
}

#[test]
fn a_restart_that_loses_nothing_is_told_nothing() {
    let (fs, gfid) = mount_with_file();
    write(&fs, gfid, 2);
    block_on(fs.sweep());
    let told = fs.backend.world.borrow().told.len();
    restart(&fs);
    block_on(async {
        fs.reclaim().await;
        fs.sweep().await;
    });
    assert_eq!(fs.backend.world.borrow().told.len(), told);
    let lease = fs.shared.table.get(gfid).expect("open").with(|state| state.token());
    let held = Held { gfid, lease: Some((LeaseMode::Write, lease)), open: true };
    assert_eq!(fs.backend.world.borrow().reclaimed, [held]);
}

#[test]
fn an_fsync_answered_by_a_new_service_waits_until_the_losses_are_known() {
    let (fs, gfid) = mount_with_file();
    write(&fs, gfid, 2);
    block_on(fs.sweep());
    lose_power(&fs, |world| world.files.get_mut(&gfid).expect("there").attr.size = 0);
    let mut fsync = pin!(fs.fsync(gfid, OPEN, false, at(3)));
    let mut poll = || fsync.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "it was synced by a service that did not know the size");
    block_on(fs.reclaim());
    assert!(matches!(poll(), Poll::Ready(Ok(()))));
    assert_eq!(size_at_service(&fs, gfid), 4);
}

#[test]
fn a_file_whose_making_was_lost_says_so_once() {
    let (fs, _) = mount_with_file();
    let gfid = create(&fs, "other");
    write(&fs, gfid, 2);
    lose_power(&fs, |world| world.names.retain(|name, _| name != b"other"));
    block_on(async {
        fs.reclaim().await;
        assert_eq!(
            fs.fsync(gfid, OPEN, true, at(3)).await.expect_err("it is gone").errno(),
            errno::EIO
        );
        assert_eq!(
            fs.sync_names(Gfid::ROOT, OPEN, at(3)).await.expect_err("a name is gone").errno(),
            errno::EIO
        );
        fs.sync_names(Gfid::ROOT, OPEN, at(3)).await.expect("it was said");
    });
}

#[test]
fn permissions_that_were_lost_are_an_error_of_the_next_fsync() {
    let (fs, gfid) = mount_with_file();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    block_on(fs.setattr(gfid, set, at(2))).expect("chmod");
    lose_power(&fs, |world| world.files.get_mut(&gfid).expect("there").attr.mode = 0o644);
    block_on(async {
        fs.reclaim().await;
        assert_eq!(
            fs.fsync(gfid, OPEN, false, at(3))
                .await
                .expect_err("nobody can set them again")
                .errno(),
            errno::EIO
        );
        fs.fsync(gfid, OPEN, false, at(3)).await.expect("it was said");
    });
}

#[test]
fn who_read_a_size_that_was_lost_asks_again() {
    let mounts = mounts(2);
    mounts[0].backend.world.borrow_mut().commit.start = 1;
    let gfid = create(&mounts[0], "file");
    block_on(async {
        mounts[0].fsync(gfid, OPEN, false, at(1)).await.expect("fsync");
        mounts[0].write(gfid, 0, Bytes::from_static(b"data"), PLACED, at(2)).await.expect("write");
        mounts[1].open(gfid, false, at(3)).await.expect("open");
        assert_eq!(mounts[1].getattr(gfid, at(3)).await.expect("there").size, 4);
    });
    lose_power(&mounts[0], |world| world.files.get_mut(&gfid).expect("there").attr.size = 0);
    block_on(async {
        mounts[1].reclaim().await;
        assert_eq!(
            mounts[1].getattr(gfid, at(4)).await.expect("there").size,
            0,
            "as everybody sees it"
        );
        mounts[1].fsync(gfid, OPEN, false, at(4)).await.expect("it has lost nothing of its own");
        mounts[0].reclaim().await;
        let told = mounts[0].fsync(gfid, OPEN, false, at(5)).await;
        assert_eq!(told.expect_err("it has no lease to tell it again").errno(), errno::EIO);
    });
}
