//! Small writes that are gathered and sent as one.

use super::super::gather::Small;
use super::behind::{poll, report, told_sizes};
use super::*;

/// What waits to be sent.
pub(super) struct Collected {
    pub(super) file: FileRef,
    pub(super) start: u64,
    pub(super) gathered: Arc<dyn Gathered>,
    pub(super) behind: Arc<dyn Behind>,
}

/// Two mounts, of which the first answers writes of so many bytes early and gathers small ones.
fn mounts_gathering(window: u64) -> Vec<Rc<LocalFs<Model>>> {
    let mounts =
        mounts_with(&FsOptions { write_behind_bytes: window, ..options() }, &no_kernel(), 2);
    mounts[0].backend.world.borrow_mut().gathers = true;
    mounts
}

fn gather(fs: &LocalFs<Model>, gfid: Gfid, offset: u64, data: &[u8]) -> bool {
    fs.shared.gather(
        gfid,
        &Small { offset, data, pages: true, now: at(3).now },
        fs.backend.moment(),
    )
}

fn write(fs: &LocalFs<Model>, gfid: Gfid, offset: u64, data: &'static [u8]) -> Poll<Result<()>> {
    poll(pin!(fs.write(gfid, offset, Bytes::from_static(data), PLACED, at(2))))
}

/// A file with two small writes, behind which others are gathered.
fn begun(fs: &LocalFs<Model>) -> Gfid {
    let gfid = create(fs, "file");
    block_on(fs.open(gfid, true, at(1))).expect("open");
    assert!(matches!(write(fs, gfid, 0, b"ab"), Poll::Ready(Ok(()))));
    assert!(!gather(fs, gfid, 2, b"x"), "one write is no habit");
    assert!(matches!(write(fs, gfid, 2, b"cd"), Poll::Ready(Ok(()))));
    gfid
}

/// The time is over, or somebody waits: what was gathered is sent.
fn send(fs: &LocalFs<Model>) {
    let collected = fs.backend.world.borrow_mut().gathered.pop().expect("something is gathered");
    if let Some((data, hint)) = collected.gathered.take() {
        let ending = Ending { behind: Some(collected.behind), ..Ending::default() };
        block_on(fs.backend.write(collected.file, collected.start, data, hint, ending))
            .expect("sent");
        collected.gathered.sent();
    }
    drop(collected.gathered);
    report(fs);
}

/// Is it to be sent now?
fn is_wanted(fs: &LocalFs<Model>) -> bool {
    let world = fs.backend.world.borrow();
    world.gathered[0].gathered.poll_ends(&Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn who_reads_finds_what_was_gathered() {
    let mounts = mounts_gathering(1 << 20);
    let fs = &mounts[0];
    let gfid = begun(fs);
    assert!(gather(fs, gfid, 4, b"ef") && gather(fs, gfid, 6, b"g"));
    assert_eq!(block_on(fs.getattr(gfid, at(4))).expect("stat").size, 7);
    assert!(!is_wanted(fs));
    let mut read = Box::pin(fs.read(gfid, 0, 9, at(4)));
    assert!(poll(read.as_mut()).is_pending());
    assert!(is_wanted(fs));
    assert!(!gather(fs, gfid, 7, b"h"), "somebody is inside");
    send(fs);
    assert!(matches!(poll(read.as_mut()), Poll::Ready(Ok(data)) if &data[..] == b"abcdefg"));
    assert!(matches!(write(fs, gfid, 7, b"h"), Poll::Ready(Ok(()))));
    assert!(gather(fs, gfid, 8, b"i"), "it goes on");
    send(fs);
    assert_eq!(&block_on(fs.read(gfid, 0, 9, at(5))).expect("read")[..], b"abcdefghi");
}

#[test]
fn syncs_closes_truncations_and_other_mounts_wait_for_it() {
    type Waiting = std::pin::Pin<Box<dyn Future<Output = Result<()>>>>;
    for what in 0..5 {
        let mounts = mounts_gathering(1 << 20);
        let (fs, other) = (Rc::clone(&mounts[0]), Rc::clone(&mounts[1]));
        let gfid = begun(&fs);
        assert!(gather(&fs, gfid, 4, b"ef"));
        let there = Rc::clone(&fs);
        let mut waits: Waiting = match what {
            0 => Box::pin(async move { there.fsync(gfid, OPEN, false, at(4)).await }),
            1 => Box::pin(async move { there.flush(gfid, OPEN, LockOwner(1)).await }),
            2 => Box::pin(async move { there.setattr(gfid, truncate(6), at(4)).await.map(drop) }),
            3 => Box::pin(async move { there.sync_everything().await }),
            _ => Box::pin(async move {
                let data = other.read(gfid, 0, 9, at(4)).await?;
                assert_eq!(&data[..], b"abcdef");
                Ok(())
            }),
        };
        assert!(poll(waits.as_mut()).is_pending(), "{what}");
        assert_eq!(told_sizes(&fs), [], "{what}: no size before its data");
        assert!(is_wanted(&fs), "{what}");
        send(&fs);
        let done = poll(waits.as_mut());
        assert!(matches!(done, Poll::Ready(Ok(()))), "{what}: {done:?}");
        assert_eq!(told_sizes(&fs).last(), Some(&Some(6)), "{what}");
    }
}

#[test]
fn only_small_writes_at_the_end_are_gathered_while_nobody_else_is_there() {
    let mounts = mounts_gathering(1 << 20);
    let fs = &mounts[0];
    let gfid = begun(fs);
    assert!(!gather(fs, gfid, 3, b"x") && !gather(fs, gfid, 5, b"x"));
    assert!(!gather(fs, gfid, 4, &[0; 4097]) && !gather(fs, gfid, 4, b""));
    fs.backend.world.borrow_mut().expired = true;
    assert!(!gather(fs, gfid, 4, b"x"), "the session's time has run out");
    fs.backend.world.borrow_mut().expired = false;
    assert!(gather(fs, gfid, 4, b"e"));
    // Somebody wants it alone.
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    let mut truncating = Box::pin(fs.setattr(gfid, cut, at(4)));
    assert!(poll(truncating.as_mut()).is_pending());
    assert!(!gather(fs, gfid, 5, b"x"));
    send(fs);
    assert!(poll(truncating.as_mut()).is_ready());
    assert_eq!(&block_on(fs.read(gfid, 0, 9, at(5))).expect("read")[..], b"a");
}

#[test]
fn no_more_is_gathered_than_there_is_room_for() {
    let mounts = mounts_gathering(8);
    let fs = &mounts[0];
    let gfid = begun(fs);
    assert!(
        gather(fs, gfid, 4, b"efg") && !gather(fs, gfid, 7, b"hi") && gather(fs, gfid, 7, b"h")
    );
    send(fs);
    assert_eq!(&block_on(fs.read(gfid, 0, 99, at(4))).expect("read")[..], b"abcdefgh");
    let tight = mounts_gathering(6);
    let gfid = begun(&tight[0]);
    assert!(!gather(&tight[0], gfid, 4, b"e"), "what is behind has the window");
    let without = mounts_gathering(0);
    let gfid = begun(&without[0]);
    assert!(!gather(&without[0], gfid, 4, b"e"));
}

#[test]
fn what_was_gathered_and_cannot_be_sent_is_told_once() {
    for closes in [false, true] {
        let mounts = mounts_gathering(1 << 20);
        let fs = &mounts[0];
        let gfid = begun(fs);
        assert!(gather(fs, gfid, 4, b"ef"));
        drop(fs.backend.world.borrow_mut().gathered.pop());
        if closes {
            let told = block_on(fs.flush(gfid, OPEN, LockOwner(1)));
            assert!(matches!(told, Err(ClientError::Posix(errno::EIO))));
        }
        let told = block_on(fs.fsync(gfid, OPEN, false, at(4)));
        assert!(
            matches!(told, Err(ClientError::Posix(errno::EIO))),
            "a close takes it from nobody"
        );
        block_on(fs.fsync(gfid, OPEN, false, at(5))).expect("told already");
    }
}

#[test]
fn an_end_without_anything_loses_nothing() {
    let mounts = mounts_gathering(1 << 20);
    let fs = &mounts[0];
    let gfid = begun(fs);
    drop(fs.backend.world.borrow_mut().gathered.pop());
    block_on(fs.fsync(gfid, OPEN, false, at(4))).expect("nothing is lost");
    assert_eq!(&block_on(fs.read(gfid, 0, 9, at(4))).expect("read")[..], b"abcd");
}

#[test]
fn set_ids_go_with_the_write_that_takes_them() {
    let mounts = mounts_gathering(1 << 20);
    let fs = &mounts[0];
    let gfid = create(fs, "file");
    let set = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
    block_on(fs.setattr(gfid, set, at(1))).expect("chmod");
    let user = Caller { uid: 7, ..at(2) };
    for offset in [0, 2] {
        let data = Bytes::from_static(b"ab");
        block_on(fs.write(gfid, offset, data, PLACED, at(2))).expect("root's writes take nothing");
    }
    assert!(!gather(fs, gfid, 4, b"e"), "whose it is is not looked at");
    send(fs);
    block_on(fs.write(gfid, 4, Bytes::from_static(b"e"), PLACED, user)).expect("written");
    assert_eq!(block_on(fs.getattr(gfid, at(3))).expect("stat").mode, 0o755);
}
