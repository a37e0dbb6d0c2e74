use super::*;
use protocol::namespace::{FileKind, SetAttr};

fn time(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

fn attr(size: u64) -> Attr {
    Attr {
        gfid: Gfid::of_inode(7),
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size,
        atime: time(1),
        mtime: time(1),
        ctime: time(1),
        pool: PoolId::new(1),
        btime: None,
        flags: protocol::namespace::FileFlags::default(),
        has_xattrs: false,
        footprint: Default::default(),
    }
}

fn grant(mode: LeaseMode) -> Grant {
    Grant { mode, token: 1, epoch: Epoch::new(1) }
}

/// A file of which this mount holds a lease.
fn leased(mode: LeaseMode, size: u64) -> InodeState {
    let mut state = InodeState::new(Gfid::of_inode(7));
    let Entry::Acquire(ticket, asked) = state.try_enter(Need::shared(mode), false) else {
        panic!("no lease yet")
    };
    assert_eq!(asked, mode);
    assert!(state.granted(ticket, &attr(size), grant(mode)));
    state
}

/// Of a file that its owner alone may read and write.
fn private() -> Attr {
    Attr { mode: 0o600, ..attr(10) }
}

/// The stamp of an answer that is younger than all flushes.
const NOW: u64 = u64::MAX;
const READ: Need = Need::shared(LeaseMode::Read);
const WRITE: Need = Need::shared(LeaseMode::Write);
const ALONE: Need = Need::exclusive();

#[test]
fn one_task_asks_and_the_others_wait() {
    let mut state = InodeState::new(Gfid::of_inode(7));
    let Entry::Acquire(ticket, LeaseMode::Write) = state.try_enter(WRITE, false) else {
        panic!("asks")
    };
    assert_eq!(state.try_enter(READ, false), Entry::Wait);
    state.not_granted(ticket);
    assert!(matches!(state.try_enter(READ, false), Entry::Acquire(..)));
}

#[test]
fn an_upgrade_keeps_what_is_dirty_and_an_open_asks_for_no_less() {
    let mut state = leased(LeaseMode::Read, 10);
    let Entry::Acquire(ticket, LeaseMode::Write) = state.try_enter(WRITE, false) else {
        panic!("upgrades")
    };
    assert!(state.granted(ticket, &attr(10), grant(LeaseMode::Write)));
    assert_eq!(state.try_enter(WRITE, true), Entry::Entered);
    state.wrote(50, time(9));
    state.leave(Access::Shared);
    let ticket = state.try_close();
    assert_eq!(ticket, None, "dirty");
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    assert_eq!((flush.set.size, flush.set.mtime), (Some(50), Some(time(9))));
    state.flush_done(flush, Sent::Told, 1);
    let ticket = state.try_close().expect("nothing is left to say");
    assert_eq!(
        state.try_enter(Need { open: true, ..READ }, false),
        Entry::Wait,
        "the close comes first"
    );
    state.close_done(ticket, true);
    let again = state.try_enter(Need { open: true, ..READ }, false);
    assert!(matches!(again, Entry::Acquire(_, LeaseMode::Write)), "the lease held is not lowered");
}

#[test]
fn exclusive_waits_for_shared_and_holds_back_later_ones() {
    let mut state = leased(LeaseMode::Write, 0);
    assert_eq!(state.try_enter(READ, false), Entry::Entered);
    state.exclusive_wanted();
    assert_eq!(state.try_enter(ALONE, false), Entry::Wait);
    assert_eq!(state.try_enter(READ, false), Entry::Wait);
    assert_eq!(state.try_enter(READ, true), Entry::Entered, "who brought the lease goes in");
    state.leave(Access::Shared);
    state.leave(Access::Shared);
    assert_eq!(state.try_enter(ALONE, false), Entry::Entered);
    state.exclusive_settled();
    assert_eq!(state.try_enter(READ, true), Entry::Wait);
    state.leave(Access::Exclusive);
    assert_eq!(state.try_enter(READ, false), Entry::Entered);
}

#[test]
fn a_grant_that_a_recall_may_have_crossed_is_asked_for_anew() {
    let mut state = InodeState::new(Gfid::of_inode(7));
    let Entry::Acquire(ticket, _) = state.try_enter(WRITE, false) else { panic!("asks") };
    assert_eq!(state.recall(None), RecallStep::Answer);
    assert!(!state.granted(ticket, &attr(5), grant(LeaseMode::Write)), "void");
    assert_eq!(state.lease(), None);
    let Entry::Acquire(ticket, _) = state.try_enter(WRITE, false) else { panic!("asks again") };
    assert!(state.granted(ticket, &attr(5), grant(LeaseMode::Write)));
}

#[test]
fn a_recall_takes_the_lease_and_the_kernels_pages() {
    let mut state = leased(LeaseMode::Write, 5);
    assert!(!state.opened(), "nothing is known of the kernel's pages yet");
    assert!(state.opened());
    assert_eq!(state.recall(Some(LeaseMode::Read)), RecallStep::Begin);
    assert_eq!(state.recall(None), RecallStep::Merged);
    assert_eq!(state.try_enter(WRITE, false), Entry::Entered, "the lease still holds");
    assert!(!state.enter_if_quiet(state.entered()));
    state.leave(Access::Shared);
    assert!(!state.enter_if_quiet(0), "someone was inside since");
    assert!(state.enter_if_quiet(state.entered()));
    state.gave_back(Some(LeaseMode::Read));
    state.leave(Access::Exclusive);
    assert_eq!(
        state.recalled(Some(Some(LeaseMode::Read))),
        Some(None),
        "the second recall asks for more"
    );
    assert_eq!(state.recall(None), RecallStep::Begin);
    assert_eq!(state.try_enter(WRITE, false), Entry::Wait, "no upgrade while giving back");
    assert!(state.enter_if_quiet(state.entered()));
    state.gave_back(None);
    state.leave(Access::Exclusive);
    assert_eq!(state.recalled(Some(None)), None);
    assert_eq!(state.recall(None), RecallStep::Answer);
    let Entry::Acquire(ticket, _) = state.try_enter(READ, false) else { panic!("asks") };
    assert!(state.granted(ticket, &attr(5), grant(LeaseMode::Read)));
    assert!(!state.opened(), "the pages are of before");
}

#[test]
fn the_size_covers_only_what_is_written() {
    let mut state = leased(LeaseMode::Write, 100);
    state.try_enter(WRITE, false);
    let first = state.begin_write(100, 50, false).expect("no gap");
    let second = state.begin_write(150, 50, false).expect("begun writes leave no gap");
    assert_eq!(first.hint.size_after, 150);
    assert_eq!(second.hint.zero_from, u64::MAX, "a dead writer may have left something");
    state.wrote(200, time(3));
    assert_eq!(state.size(), 200);
    let mut seen = attr(100);
    state.merge(&mut seen, 0);
    assert_eq!((seen.size, seen.mtime, seen.ctime), (200, time(3), time(3)));
}

#[test]
fn unknown_bytes_are_zeroed_before_the_size_moves_past_them() {
    let mut state = leased(LeaseMode::Write, 100);
    assert_eq!(state.begin_write(300, 10, false), None);
    assert_eq!(state.gap(300), Some(100..300));
    state.zeroed(300);
    assert!(state.begin_write(300, 10, false).is_some());
    state.wrote(310, time(2));
    assert_eq!(state.gap(310), None);
    // A cut that is not known to have happened leaves unknown bytes again.
    state.truncated(50);
    assert_eq!(state.gap(200), Some(50..200));
    state.truncated_data(310);
    assert_eq!(state.gap(310), None);
    assert_eq!(state.gap(400), Some(310..400), "beyond what we cut, nothing is known");
}

#[test]
fn a_new_file_has_no_unknown_bytes() {
    let mut state = InodeState::new(Gfid::of_inode(7));
    state.created(&attr(0), Brought::Lease(grant(LeaseMode::Write)));
    assert_eq!(state.opens(), 1);
    let plan = state.begin_write(1000, 10, false).expect("sparse");
    assert_eq!((plan.hint.zero_from, plan.hint.size_after), (0, 1010));
    assert_eq!(state.begin_write(2000, 10, false).expect("sparse").hint.zero_from, 1010);
    state.wrote(1010, time(2));
    state.wrote(2010, time(2));
    state.truncated(100);
    assert_eq!(state.gap(500), Some(100..500), "the cut is not done");
    state.truncated_data(2010);
    assert_eq!(state.gap(u64::MAX), None);
    assert_eq!(state.begin_write(600, 1, false).expect("clean").hint.zero_from, 100);
}

#[test]
fn an_append_after_another_mounts_goes_to_the_real_end() {
    let mut state = leased(LeaseMode::Write, 1000);
    let plan = state.begin_write(400, 10, true).expect("no gap");
    assert_eq!(plan.offset, 1000);
    state.wrote(1010, time(2));
    assert_eq!(
        state.begin_write(410, 700, true).expect("no gap").offset,
        1010,
        "the kernel still counts from 400"
    );
    state.wrote(1710, time(2));
    assert_eq!(
        state.begin_write(1110, 10, true).expect("no gap").offset,
        1710,
        "even past the first size it did not know"
    );
    state.wrote(1720, time(2));
    assert_eq!(state.begin_write(1720, 10, true).expect("no gap").offset, 1720, "now it has asked");
    state.wrote(1730, time(2));
    assert_eq!(
        state.begin_write(1730, 10, true).expect("no gap").offset,
        1730,
        "our own it has seen"
    );
    assert_eq!(state.begin_write(400, 10, false).expect("inside").offset, 400);
}

#[test]
fn an_append_after_another_mounts_cut_leaves_no_hole() {
    let mut state = leased(LeaseMode::Write, 1000);
    assert_eq!(state.recall(None), RecallStep::Begin);
    assert!(state.enter_if_quiet(state.entered()));
    state.gave_back(None);
    state.leave(Access::Exclusive);
    state.recalled(Some(None));
    state.merge(&mut attr(3000), 0);
    let Entry::Acquire(ticket, _) = state.try_enter(WRITE, false) else { panic!("asks") };
    assert!(state.granted(ticket, &attr(100), grant(LeaseMode::Write)));
    assert_eq!(
        state.begin_write(3000, 10, true).expect("no gap").offset,
        100,
        "the kernel counts from what it saw"
    );
    state.wrote(110, time(2));
    assert_eq!(state.begin_write(3010, 10, true).expect("no gap").offset, 110, "and goes on");
    state.wrote(120, time(2));
    assert_eq!(state.begin_write(120, 10, true).expect("no gap").offset, 120, "until it asks");
}

#[test]
fn a_change_during_a_flush_stays_dirty() {
    let mut state = leased(LeaseMode::Write, 0);
    state.wrote(10, time(2));
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    assert!(state.begin_flush(FlushKind::Whole).is_none(), "one at a time");
    state.wrote(20, time(3));
    state.flush_done(flush, Sent::Told, 1);
    assert!(state.has_to_tell());
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    assert_eq!(flush.set.size, Some(20));
    state.flush_done(flush, Sent::No, 2);
    assert!(state.has_to_tell(), "not sent");
}

#[test]
fn an_answer_older_than_a_flush_does_not_turn_time_back() {
    let mut state = leased(LeaseMode::Write, 0);
    state.wrote(10, time(5));
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    state.flush_done(flush, Sent::Told, 8);
    let mut old = attr(0);
    state.merge(&mut old, 7);
    assert_eq!((old.size, old.mtime), (10, time(5)));
    let mut new = attr(0);
    state.merge(&mut new, 8);
    assert_eq!(new.mtime, time(1), "set back by the user since");
    state.opened();
    let earlier = SetAttr { mtime: Some(time(0)), ..SetAttr::default() };
    assert!(state.keep_change(&earlier, (&mut attr(10), NOW), time(20), Keep::Times));
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    state.flush_done(flush, Sent::Told, 9);
    let mut old = attr(10);
    state.merge(&mut old, 8);
    assert_eq!(old.mtime, time(0), "what the writer set back stays so");
}

#[test]
fn who_has_a_file_open_to_write_keeps_its_times_until_a_flush() {
    let mut state = leased(LeaseMode::Write, 10);
    let utimes = SetAttr { mtime: Some(time(3)), ..SetAttr::default() };
    let same = SetAttr { mode: Some(0o644), uid: Some(0), gid: Some(0), ..SetAttr::default() };
    let mut shown = attr(10);
    assert!(
        !state.keep_change(&utimes, (&mut shown, NOW), time(20), Keep::Times),
        "no close would tell it"
    );
    assert!(!state.has_to_tell());
    state.opened();
    assert!(state.keep_change(&utimes, (&mut shown, NOW), time(20), Keep::Times));
    assert_eq!((shown.mtime, shown.ctime), (time(3), time(20)));
    let mut shown = attr(10);
    assert!(
        state.keep_change(&same, (&mut shown, NOW), time(21), Keep::Times),
        "nothing but ctime moves"
    );
    assert_eq!((shown.mtime, shown.ctime), (time(3), time(21)));
    let told = [
        SetAttr::default(),
        SetAttr { mode: Some(0o600), ..same },
        SetAttr { uid: Some(1), ..same },
        SetAttr { gid: Some(1), ..same },
        SetAttr { size: Some(10), ..utimes },
        SetAttr { mtime: Some(Timestamp { secs: 3, nanos: 1_000_000_000 }), ..utimes },
        SetAttr { atime: Some(time(3)), ..utimes },
        SetAttr { ctime: Some(time(3)), ..utimes },
    ];
    for set in told {
        assert!(!state.keep_change(&set, (&mut attr(10), NOW), time(22), Keep::Times), "{set:?}");
    }
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    assert_eq!((flush.set.mtime, flush.set.ctime), (Some(time(3)), Some(time(21))));
    assert!(
        state.keep_change(&utimes, (&mut attr(10), NOW), time(23), Keep::Times),
        "while it is told"
    );
    state.flush_done(flush, Sent::Told, 1);
    assert!(state.has_to_tell(), "what came meanwhile is still to be told");
    assert_eq!(state.try_enter(ALONE, false), Entry::Entered);
    assert!(
        !state.keep_change(&utimes, (&mut attr(10), NOW), time(24), Keep::Times),
        "the lease may be on its way back"
    );
    state.leave(Access::Exclusive);
    let mut reader = leased(LeaseMode::Read, 10);
    reader.opened();
    assert!(
        !reader.keep_change(&utimes, (&mut attr(10), NOW), time(24), Keep::Times),
        "times are the writer's"
    );
}

#[test]
fn a_change_is_measured_by_what_is_so_and_not_by_an_older_answer() {
    let mut state = leased(LeaseMode::Write, 10);
    state.opened();
    let chmod = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let (before, mode) = (attr(10), attr(10).mode);
    assert!(state.keep_change(&chmod(mode | 0o111), (&mut attr(10), NOW), time(20), Keep::All));
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    state.flush_done(flush, Sent::Told, 7);
    state.learned(&Attr { mode: mode | 0o111, ..before });
    let mut shown = before;
    assert!(
        !state.keep_change(&chmod(mode), (&mut shown, 6), time(21), Keep::All),
        "it takes permissions away"
    );
    assert!(state.keep_change(&chmod(mode | 0o133), (&mut shown, 6), time(21), Keep::All));
    assert_eq!(shown.mode, mode | 0o133);
}

#[test]
fn chmod_of_a_file_that_may_have_an_acl_is_told_at_once() {
    let mut state = leased(LeaseMode::Write, 10);
    state.opened();
    let with = |has_xattrs| Attr { has_xattrs, ..private() };
    let chmod = SetAttr { mode: Some(0o660), ..SetAttr::default() };
    assert!(!state.keep_change(&chmod, (&mut with(true), NOW), time(20), Keep::All));
    assert!(state.keep_change(&chmod, (&mut with(false), NOW), time(20), Keep::All));
    let chown = SetAttr { uid: Some(9), ..SetAttr::default() };
    assert!(
        state.keep_change(&chown, (&mut with(true), NOW), time(21), Keep::All),
        "an ACL says nothing of it"
    );
}

#[test]
fn what_takes_a_permission_away_is_told_at_once() {
    let mut state = leased(LeaseMode::Write, 10);
    state.opened();
    let chmod = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let chgrp = SetAttr { gid: Some(6), ..SetAttr::default() };
    assert!(!state.keep_change(&chmod(0o400), (&mut private(), NOW), time(20), Keep::All));
    assert!(
        state.keep_change(&chgrp, (&mut private(), NOW), time(20), Keep::All),
        "no group had any"
    );
    assert!(state.keep_change(&chmod(0o640), (&mut private(), NOW), time(21), Keep::All));
    let other = SetAttr { gid: Some(7), ..SetAttr::default() };
    assert!(
        !state.keep_change(&other, (&mut private(), NOW), time(22), Keep::All),
        "a group had some"
    );
}

#[test]
fn with_flushes_behind_a_writer_keeps_all_but_a_size() {
    let mut state = leased(LeaseMode::Write, 10);
    state.opened();
    let chmod = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let chown = SetAttr { uid: Some(5), gid: Some(6), atime: Some(time(9)), ..SetAttr::default() };
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    assert!(!state.keep_change(&cut, (&mut private(), NOW), time(20), Keep::All));
    let invalid =
        SetAttr { atime: Some(Timestamp { secs: 0, nanos: 1_000_000_000 }), ..SetAttr::default() };
    assert!(!state.keep_change(&invalid, (&mut private(), NOW), time(20), Keep::All));
    let mut shown = private();
    assert!(state.keep_change(&chown, (&mut shown, NOW), time(20), Keep::All));
    assert_eq!((shown.uid, shown.mtime, shown.ctime), (5, private().mtime, time(20)));
    assert!(state.keep_change(&chmod(0o640), (&mut private(), NOW), time(21), Keep::All));
    let mut shown = private();
    state.merge(&mut shown, 0);
    assert_eq!((shown.mode, shown.uid, shown.gid, shown.atime), (0o640, 5, 6, time(9)));
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    assert_eq!((flush.set.mode, flush.set.uid, flush.set.gid), (Some(0o640), Some(5), Some(6)));
    assert_eq!((flush.set.atime, flush.set.ctime), (Some(time(9)), Some(time(21))));
    assert!(
        state.keep_change(&chmod(0o644), (&mut private(), NOW), time(22), Keep::All),
        "while it is told"
    );
    state.flush_done(flush, Sent::Told, 1);
    state.learned(&Attr { mode: 0o640, uid: 5, gid: 6, atime: time(9), ..private() });
    let mut old = private();
    state.merge(&mut old, 0);
    assert_eq!(
        (old.mode, old.uid),
        (0o644, 5),
        "what came meanwhile, over what an older answer does not know"
    );
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    assert_eq!(
        (flush.set.mode, flush.set.uid),
        (Some(0o644), None),
        "what was told is not told again"
    );
    state.flush_done(flush, Sent::No, 2);
    let again = state.begin_flush(FlushKind::Sync { times_may_follow: true }).expect("idle");
    assert_eq!((again.set.mode, again.set.times_follow), (Some(0o644), false));
    state.flush_done(again, Sent::Synced, 3);
    assert!(!state.has_to_tell());
    assert!(state.keep_change(&chmod(0o666), (&mut private(), NOW), time(23), Keep::All));
    state.fenced();
    assert!(state.take_lost(), "nobody else knew of it");
    let mut shown = private();
    state.merge(&mut shown, 9);
    assert_eq!(shown.mode, private().mode);
}

#[test]
fn a_close_is_at_once_if_it_has_nothing_to_wait_for() {
    let mut state = leased(LeaseMode::Write, 0);
    state.opened();
    assert!(state.closes_at_once(false));
    assert!(state.stay_behind(4, 8));
    assert_eq!((state.closes_at_once(false), state.closes_at_once(true)), (false, true));
    state.behind_ended(4);
    state.wrote(4, time(5));
    assert_eq!((state.closes_at_once(false), state.closes_at_once(true)), (false, true));
    state.mark_lost();
    assert!(!state.closes_at_once(true), "it has something to say");
}

#[test]
fn a_dead_session_takes_everything_and_says_so_once() {
    let mut state = leased(LeaseMode::Write, 0);
    state.opened();
    state.try_enter(WRITE, false);
    state.wrote(10, time(5));
    state.fenced();
    state.wrote(20, time(6));
    state.leave(Access::Shared);
    assert!(state.take_lost());
    assert!(!state.take_lost());
    assert_eq!(state.held(), None);
    assert!(matches!(state.try_enter(READ, false), Entry::Acquire(..)));
}

#[test]
fn only_what_nobody_misses_is_forgotten() {
    let mut state = leased(LeaseMode::Read, 0);
    state.opened();
    assert_eq!(state.cached_since(), None);
    state.closed(3);
    assert_eq!(state.cached_since(), Some(3));
    assert!(!state.is_forgettable());
    let ticket = state.try_close().expect("idle");
    state.close_done(ticket, true);
    assert_eq!(
        state.held(),
        Some(Held {
            gfid: Gfid::of_inode(7),
            lease: Some((LeaseMode::Read, state.token())),
            open: false
        })
    );
    assert_eq!(state.recall(None), RecallStep::Begin);
    assert!(state.enter_if_quiet(state.entered()));
    state.gave_back(None);
    state.leave(Access::Exclusive);
    state.recalled(Some(None));
    assert!(state.is_forgettable());
}

#[test]
fn pages_that_requests_have_locked_are_left_out_of_a_drop() {
    let mut state = leased(LeaseMode::Read, 100);
    assert_eq!(state.unlocked_parts(), [crate::fs::WHOLE_FILE]);
    for pages in [40..50, 10..20, 0..5, 15..30, 10..20] {
        state.pages_locked(pages);
    }
    assert_eq!(state.unlocked_parts(), [5..10, 30..40, 50..u64::MAX]);
    state.pages_unlocked(&(10..20));
    state.pages_unlocked(&(0..5));
    assert_eq!(state.unlocked_parts(), [0..10, 30..40, 50..u64::MAX], "one of two is left");
}

#[test]
fn an_expired_session_has_the_next_open_drop_what_is_cached() {
    let mut state = leased(LeaseMode::Read, 100);
    state.opened();
    assert!(state.opened(), "cached");
    assert!(state.expired(), "there may be pages");
    assert!(!state.opened());
    state.fenced();
    assert!(!state.expired(), "no lease, no pages");
}

#[test]
fn a_size_is_synced_when_all_that_was_told_is() {
    let mut state = leased(LeaseMode::Write, 0);
    assert!(!state.is_size_synced(), "what the service knows need not be on its disk");
    state.tellings_synced(state.tellings());
    assert!(state.is_size_synced());
    state.wrote(10, time(2));
    assert!(!state.is_size_synced(), "not told");
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    state.flush_done(flush, Sent::Told, 1);
    assert!(!state.is_size_synced(), "told, not synced");
    let before = state.tellings();
    state.wrote(20, time(3));
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    state.flush_done(flush, Sent::Told, 2);
    state.tellings_synced(before);
    assert!(!state.is_size_synced(), "told after the sync began");
    state.tellings_synced(state.tellings());
    assert!(state.is_size_synced());
    state.wrote(30, time(4));
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    state.flush_done(flush, Sent::Synced, 3);
    assert!(state.is_size_synced(), "told and synced at once");
    state.wrote(30, time(5));
    assert!(state.is_size_synced(), "times do not count");
}

#[test]
fn a_window_has_room_for_one_write_and_for_more_that_fit() {
    let mut state = InodeState::new(Gfid::of_inode(7));
    assert!(!state.stay_behind(1, 0), "there is no window");
    assert!(state.stay_behind(100, 8) && state.is_behind());
    assert!(!state.stay_behind(1, 8));
    state.behind_ended(100);
    assert!(state.stay_behind(5, 8) && state.stay_behind(3, 8) && !state.stay_behind(1, 8));
    state.behind_ended(5);
    state.behind_ended(3);
    assert!(!state.is_behind());
}

/// A write at this time, and the flush of the fsync after it.
fn fsync(state: &mut InodeState, time_of_write: i64) -> Flush {
    state.begin_write(0, 4, false).expect("no gap");
    state.wrote(4, time(time_of_write));
    state.sync_asked(SyncKind::Full);
    state.begin_flush(FlushKind::Sync { times_may_follow: true }).expect("idle")
}

#[test]
fn a_mark_of_a_dead_session_does_not_count_in_the_next() {
    let mut state = leased(LeaseMode::Write, 10);
    let mut flush = fsync(&mut state, 2);
    for time in 3.. {
        if flush.set.times_follow {
            break;
        }
        state.flush_done(flush, Sent::Synced, 1);
        flush = fsync(&mut state, time);
    }
    state.fenced();
    let Entry::Acquire(ticket, LeaseMode::Write) = state.try_enter(WRITE, false) else {
        panic!("no lease yet")
    };
    assert!(state.granted(ticket, &attr(10), Grant { token: 2, ..grant(LeaseMode::Write) }));
    state.flush_done(flush, Sent::Synced, 2);
    assert!(!state.has_to_tell());
    let flush = fsync(&mut state, 99);
    assert_eq!(flush.set.mtime, Some(time(99)), "the service has to be told");
}

#[test]
fn what_was_lost_is_told_by_a_flush_that_began_later() {
    let mut state = leased(LeaseMode::Write, 50);
    let earlier = state.begin_flush(FlushKind::Whole).expect("idle");
    assert_eq!(state.told_lost(), Remedy::TellAgain);
    state.flush_done(earlier, Sent::Told, 1);
    assert!(state.has_to_tell(), "the one under way did not have it");
    state.learned(&Attr { mtime: time(8), ..attr(50) });
    let flush = state.begin_flush(FlushKind::Whole).expect("idle");
    assert_eq!(
        (flush.set.size, flush.set.mtime),
        (Some(50), Some(time(8))),
        "a time set meanwhile stays"
    );
    state.flush_done(flush, Sent::No, 2);
    assert!(state.has_to_tell());
    let flush = state.begin_flush(FlushKind::Sync { times_may_follow: true }).expect("idle");
    assert!(flush.sync && flush.set.size == Some(50));
    state.flush_done(flush, Sent::Synced, 3);
    assert!(!state.has_to_tell() && state.is_size_synced());
}

#[test]
fn a_lease_on_its_way_back_tells_nothing_that_was_lost() {
    let mut state = leased(LeaseMode::Write, 50);
    state.opened();
    assert_eq!(state.recall(None), RecallStep::Begin);
    assert!(state.enter_if_quiet(state.entered()));
    state.return_begins();
    assert_eq!(state.told_lost(), Remedy::None);
    assert!(!state.has_to_tell(), "another may be telling its own by now");
    state.gave_back(None);
    state.leave(Access::Exclusive);
    assert_eq!(state.recalled(Some(None)), None);
}
