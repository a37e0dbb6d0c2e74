//! Writes that are answered before they are reported.

use super::*;

/// Two mounts, of which the first answers writes of so many bytes early. Nothing is reported at first.
fn mounts_behind(window: u64) -> Vec<Rc<LocalFs<Model>>> {
    let mounts = mounts_with(&FsOptions { write_behind_bytes: window, ..options() }, &no_kernel(), 2);
    mounts[0].backend.world.borrow_mut().reports_wait = true;
    mounts
}

fn poll<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn write(fs: &LocalFs<Model>, gfid: Gfid, offset: u64, data: &'static [u8]) -> Poll<Result<()>> {
    poll(pin!(fs.write(gfid, offset, Bytes::from_static(data), PLACED, at(2))))
}

/// All shards acknowledge what they were sent.
fn report(fs: &LocalFs<Model>) {
    fs.backend.world.borrow_mut().reports_wait = false;
    let behind = std::mem::take(&mut fs.backend.world.borrow_mut().behind);
    drop(behind);
}

fn told_sizes(fs: &LocalFs<Model>) -> Vec<Option<u64>> {
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
        let mut done: std::pin::Pin<Box<dyn Future<Output = Result<()>>>> =
            if sync { Box::pin(fs.fsync(gfid, false, at(3))) } else { Box::pin(fs.flush(gfid, owner)) };
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
        assert!(matches!(fs.fsync(gfid, false, at(3)).await, Err(ClientError::Posix(errno::EIO))));
        fs.fsync(gfid, false, at(4)).await.expect("told already");
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
    assert!(matches!(block_on(fs.flush(gfid, LockOwner(1))), Err(ClientError::Posix(errno::EIO))));
}

#[test]
fn a_close_does_not_wait_for_those_who_go_on_writing() {
    let mounts = mounts_behind(8);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    assert!(write(fs, gfid, 0, b"data").is_ready());
    let owner = LockOwner(1);
    let mut close = pin!(fs.flush(gfid, owner));
    assert!(poll(close.as_mut()).is_pending());
    report(fs);
    block_on(fs.write(gfid, 4, Bytes::from_static(b"more"), PLACED, at(3))).expect("answered");
    assert!(matches!(poll(close), Poll::Ready(Ok(()))));
}
