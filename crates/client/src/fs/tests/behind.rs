//! Writes that are answered before they are reported.

use super::*;

/// Two mounts, of which the first answers writes of so many bytes early. Nothing is reported at
/// first.
fn mounts_behind(window: u64) -> Vec<Rc<LocalFs<Model>>> {
    let mounts =
        mounts_with(&FsOptions { write_behind_bytes: window, ..options() }, &no_kernel(), 2);
    mounts[0].backend.world.borrow_mut().reports_wait = true;
    mounts
}

/// The same, of which the first answers closes early as well, and is the only one for a while.
fn mounts_flushing_behind() -> Vec<Rc<LocalFs<Model>>> {
    let options = FsOptions { write_behind_bytes: 8, flush_behind: true, ..options() };
    let mounts = mounts_with(&options, &no_kernel(), 2);
    mounts[0].backend.world.borrow_mut().reports_wait = true;
    mounts[0].backend.world.borrow_mut().alone = true;
    mounts
}

fn chmod(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

pub(super) fn poll<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn write(fs: &LocalFs<Model>, gfid: Gfid, offset: u64, data: &'static [u8]) -> Poll<Result<()>> {
    poll(pin!(fs.write(gfid, offset, Bytes::from_static(data), PLACED, at(2))))
}

/// All shards acknowledge what they were sent.
pub(super) fn report(fs: &LocalFs<Model>) {
    fs.backend.world.borrow_mut().reports_wait = false;
    let behind = std::mem::take(&mut fs.backend.world.borrow_mut().behind);
    drop(behind);
}

pub(super) fn told_sizes(fs: &LocalFs<Model>) -> Vec<Option<u64>> {
    fs.backend.world.borrow().told.iter().map(|(set, _)| set.size).collect()
}

#[test]
fn a_write_is_answered_and_seen_before_it_is_reported() {
    let mounts = mounts_behind(8);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(matches!(write(fs, gfid, 0, b"data"), Poll::Ready(Ok(()))));
    block_on(async {
        assert_eq!(&fs.read(gfid, 0, 9, at(3)).await.expect("read")[..], b"data");
        assert_eq!(fs.getattr(gfid, at(3)).await.expect("stat").size, 4);
    });
    assert!(matches!(write(fs, gfid, 4, b"more"), Poll::Ready(Ok(()))), "the window has room");
    assert!(write(fs, gfid, 8, b"beyond").is_pending(), "and no more than it has");
    report(fs);
    assert!(matches!(write(fs, gfid, 8, b"a write larger than the window"), Poll::Ready(Ok(()))));
    assert_eq!(fs.backend.world.borrow().behind.len(), 1);
}

#[test]
fn without_a_window_a_write_waits_for_its_report() {
    let mounts = mounts_behind(0);
    let gfid = create(&mounts[0], "file");
    assert!(write(&mounts[0], gfid, 0, b"data").is_pending());
}

#[test]
fn close_and_fsync_wait_and_a_size_is_told_after_its_data() {
    for sync in [false, true] {
        let mounts = mounts_behind(8);
        let fs = &mounts[0];
        let gfid = create(fs, "file");
        assert!(write(fs, gfid, 0, b"data").is_ready());
        let owner = LockOwner(1);
        let mut done: std::pin::Pin<Box<dyn Future<Output = Result<()>>>> = if sync {
            Box::pin(fs.fsync(gfid, OPEN, false, at(3)))
        } else {
            Box::pin(fs.flush(gfid, OPEN, owner))
        };
        assert!(poll(done.as_mut()).is_pending());
        assert_eq!(told_sizes(fs), []);
        report(fs);
        assert!(matches!(poll(done.as_mut()), Poll::Ready(Ok(()))));
        assert_eq!(told_sizes(fs), [Some(4)]);
    }
}

#[test]
fn the_sweeper_waits_for_no_report() {
    let mounts = mounts_behind(8);
    let fs = &mounts[0];
    let (slow, quick) = (create(fs, "slow"), create(fs, "quick"));
    block_on(fs.write(quick, 0, Bytes::from_static(b"x"), PLACED, at(2))).expect("answered");
    report(fs);
    fs.backend.world.borrow_mut().reports_wait = true;
    assert!(write(fs, slow, 0, b"data").is_ready());
    // The model drops a task that waits.
    fs.backend.world.borrow_mut().syncs_wait = true;
    assert!(poll(pin!(fs.sweep())).is_ready());
    assert_eq!(told_sizes(fs), [Some(1)], "that of the file whose data is acknowledged");
    report(fs);
    fs.backend.world.borrow_mut().syncs_wait = false;
    block_on(fs.sweep());
    assert_eq!(told_sizes(fs), [Some(1), Some(4)]);
}

#[test]
fn a_truncation_and_another_mount_wait() {
    let mounts = mounts_behind(8);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    let cut = SetAttr { size: Some(2), ..SetAttr::default() };
    assert!(poll(pin!(fs.setattr(gfid, cut, at(3)))).is_pending());
    let mut other = pin!(mounts[1].read(gfid, 0, 9, at(3)));
    assert!(poll(other.as_mut()).is_pending());
    report(fs);
    assert!(matches!(poll(other), Poll::Ready(Ok(data)) if &data[..] == b"data"));
}

#[test]
fn what_dies_with_the_session_is_told_once() {
    let mounts = mounts_behind(8);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    block_on(fs.open(gfid, true, at(1))).expect("open");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    fs.backend.with(gfid, |stored| stored.lost = true).expect("there");
    block_on(fs.fenced());
    report(fs);
    block_on(async {
        assert!(matches!(
            fs.fsync(gfid, OPEN, false, at(3)).await,
            Err(ClientError::Posix(errno::EIO))
        ));
        fs.fsync(gfid, OPEN, false, at(4)).await.expect("told already");
    });
}

#[test]
fn a_close_between_the_death_of_the_session_and_the_news_of_it_tells_what_was_lost() {
    let mounts = mounts_behind(8);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    block_on(fs.open(gfid, true, at(1))).expect("open");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    let behind = std::mem::take(&mut fs.backend.world.borrow_mut().behind);
    behind.iter().for_each(|behind| behind.lost());
    report(fs);
    drop(behind);
    assert!(matches!(
        block_on(fs.flush(gfid, OPEN, LockOwner(1))),
        Err(ClientError::Posix(errno::EIO))
    ));
}

#[test]
fn a_close_does_not_wait_for_those_who_go_on_writing() {
    let mounts = mounts_behind(8);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    let owner = LockOwner(1);
    let mut close = pin!(fs.flush(gfid, OPEN, owner));
    assert!(poll(close.as_mut()).is_pending());
    report(fs);
    block_on(fs.write(gfid, 4, Bytes::from_static(b"more"), PLACED, at(3))).expect("answered");
    assert!(matches!(poll(close), Poll::Ready(Ok(()))));
}

#[test]
fn a_close_may_be_answered_before_its_writes_are_reported_and_its_size_is_told() {
    let mounts = mounts_flushing_behind();
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    let changed = block_on(fs.setattr(gfid, chmod(0o664), at(3))).expect("answered");
    assert_eq!((changed.mode, changed.size), (0o664, 4));
    block_on(fs.flush(gfid, OPEN, LockOwner(1))).expect("answered");
    assert_eq!(told_sizes(fs), []);
    let mut closing = pin!(fs.release(gfid));
    assert!(poll(closing.as_mut()).is_pending());
    let known = block_on(fs.getattr(gfid, at(4))).expect("stat");
    assert_eq!((known.mode, known.size), (0o664, 4));
    report(fs);
    assert!(poll(closing).is_ready());
    let told = fs.backend.world.borrow().told.last().map(|(set, _)| (set.size, set.mode));
    assert_eq!(told, Some((Some(4), Some(0o664))), "in one request");
}

#[test]
fn another_mount_sees_what_a_close_has_not_told_yet() {
    let mounts = mounts_flushing_behind();
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    block_on(fs.setattr(gfid, chmod(0o664), at(3))).expect("answered");
    block_on(fs.flush(gfid, OPEN, LockOwner(1))).expect("answered");
    fs.backend.world.borrow_mut().alone = false;
    {
        let mut other = pin!(mounts[1].getattr(gfid, at(4)));
        assert!(poll(other.as_mut()).is_pending(), "its size comes after its data");
        report(fs);
        let Poll::Ready(Ok(seen)) = poll(other) else { panic!("nothing is in the way") };
        assert_eq!((seen.mode, seen.size), (0o664, 4));
    }
    block_on(async {
        let changed = mounts[1].setattr(gfid, chmod(0o600), at(5)).await.expect("chmod");
        assert_eq!(changed.mode, 0o600);
        fs.release(gfid).await.expect("told");
        assert_eq!(
            mounts[1].getattr(gfid, at(6)).await.expect("stat").mode,
            0o600,
            "the later one stays"
        );
    });
}

#[test]
fn an_acl_comes_after_a_chmod_that_was_not_told_yet_and_before_one_that_follows() {
    use metadata::acl::{Entry, Tag};
    let mounts = mounts_flushing_behind();
    let fs = &mounts[0];
    report(fs);
    let gfid = create(fs, "file");
    let tags = [Tag::UserObj, Tag::User(7), Tag::GroupObj, Tag::Mask, Tag::Other];
    let entries =
        tags.map(|tag| Entry { tag, permissions: if tag == Tag::UserObj { 7 } else { 4 } });
    let acl = Acl::new(entries.to_vec()).expect("well-formed").encode();
    block_on(async {
        assert_eq!(fs.setattr(gfid, chmod(0o666), at(3)).await.expect("kept").mode, 0o666);
        fs.setxattr(gfid, ACL_ACCESS.to_vec(), acl, None, false, at(4)).await.expect("set");
        let modes = |fs: &LocalFs<Model>| -> Vec<Option<u32>> {
            fs.backend.world.borrow().told.iter().map(|(set, _)| set.mode).collect()
        };
        assert_eq!(modes(fs), [Some(0o666)]);
        assert_eq!(fs.getattr(gfid, at(5)).await.expect("stat").mode, 0o744);
        let changed = fs.setattr(gfid, chmod(0o755), at(6)).await.expect("told");
        assert_eq!(
            (changed.mode, modes(fs).len()),
            (0o755, 2),
            "the ACL's mask is the service's to change"
        );
        fs.release(gfid).await.expect("closed");
    });
}

#[test]
fn an_fsync_waits_for_what_a_close_did_not_wait_for() {
    let mounts = mounts_flushing_behind();
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    block_on(fs.setattr(gfid, chmod(0o664), at(3))).expect("answered");
    let mut sync = pin!(fs.fsync(gfid, OPEN, false, at(4)));
    assert!(poll(sync.as_mut()).is_pending());
    report(fs);
    assert!(matches!(poll(sync), Poll::Ready(Ok(()))));
    let told =
        fs.backend.world.borrow().told.last().map(|(set, synced)| (set.size, set.mode, *synced));
    assert_eq!(told, Some((Some(4), Some(0o664), true)));
}

#[test]
fn closes_wait_where_too_many_are_under_way() {
    let mounts = mounts_flushing_behind();
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    fs.shared.closing.store(crate::fs::CLOSES_BEHIND_MAX, std::sync::atomic::Ordering::Relaxed);
    let mut close = pin!(fs.flush(gfid, OPEN, LockOwner(1)));
    assert!(poll(close.as_mut()).is_pending());
    report(fs);
    assert!(matches!(poll(close), Poll::Ready(Ok(()))));
}

#[test]
fn what_is_lost_after_a_close_is_told_by_the_next() {
    let mounts = mounts_flushing_behind();
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    block_on(fs.flush(gfid, OPEN, LockOwner(1))).expect("answered");
    assert!(poll(pin!(fs.release(gfid))).is_pending());
    fs.backend.with(gfid, |stored| stored.holders.clear()).expect("there");
    block_on(fs.fenced());
    report(fs);
    block_on(async {
        assert!(
            matches!(fs.sync_everything().await, Err(ClientError::Posix(errno::EIO))),
            "if there is no next"
        );
        fs.open(gfid, true, at(5)).await.expect("open");
        assert!(matches!(
            fs.flush(gfid, OPEN, LockOwner(1)).await,
            Err(ClientError::Posix(errno::EIO))
        ));
        assert!(matches!(
            fs.fsync(gfid, OPEN, false, at(6)).await,
            Err(ClientError::Posix(errno::EIO))
        ));
        fs.flush(gfid, OPEN, LockOwner(1)).await.expect("its fsync has said so");
        let later = fs.shared.told.open_id();
        fs.fsync(gfid, later, false, at(6)).await.expect("somebody was told before it was opened");
        fs.sync_everything().await.expect("told already");
    });
}
