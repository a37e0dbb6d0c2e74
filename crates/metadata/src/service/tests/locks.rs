//! Byte-range locks and arriving mounts, as clients see them.

use super::*;
use protocol::lock::{ByteRange, LockClaim, LockOp, LockOwner, RangeLock, WaitId};

const ONE: LockOwner = LockOwner(1);
const LOCK: RangeLock = RangeLock { range: ByteRange::ALL, mode: LeaseMode::Write, pid: 5 };

fn lock(gfid: Gfid, op: LockOp) -> NamespaceOp {
    NamespaceOp::Lock { gfid, owner: ONE, op }
}

fn replies(events: &[Event]) -> Vec<(u64, Reply)> {
    let reply = |event: &Event| match event {
        Event::Reply { token, reply } => Some((*token, reply.clone())),
        _ => None,
    };
    events.iter().filter_map(reply).collect()
}

#[test]
fn a_wait_is_answered_when_the_lock_is_free_or_after_a_moment() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", None).gfid;
    assert_eq!(rig.call(A, lock(gfid, LockOp::Set(LOCK))), Reply::Done);
    assert_eq!(rig.call(B, lock(gfid, LockOp::Set(LOCK))), Reply::Errno(libc::EAGAIN));
    assert_eq!(rig.call(B, lock(gfid, LockOp::Test(LOCK))), Reply::Lock(Some(LOCK)));
    assert_eq!(rig.call(B, lock(gfid, LockOp::Who(LOCK))), Reply::Holder(Some(A)));
    assert_eq!(rig.call(A, lock(gfid, LockOp::Who(LOCK))), Reply::Holder(None), "its own");
    let (_, events) = rig.send(B, lock(gfid, LockOp::Wait(LOCK, WaitId(1))));
    assert_eq!(events, []);
    assert_eq!(replies(&rig.pass(300)), [(rig.token, Reply::Errno(libc::EINPROGRESS))]);
    let (number, _) = rig.send(B, lock(gfid, LockOp::Wait(LOCK, WaitId(1))));
    let waiting = rig.token;
    let (_, events) = rig.send(A, lock(gfid, LockOp::Close));
    assert_eq!(replies(&events), [(rig.token, Reply::Done), (waiting, Reply::Done)]);
    assert_eq!(rig.call(A, lock(gfid, LockOp::Set(LOCK))), Reply::Errno(libc::EAGAIN));
    let events = rig.send_as(B, number, lock(gfid, LockOp::Wait(LOCK, WaitId(1))));
    assert_eq!(rig.answer(&events), Reply::Done, "asked again, the answer is the same");
    assert_eq!(rig.call(B, lock(gfid, LockOp::Cancel(WaitId(1)))), Reply::Count(0), "too late");
    rig.service.locks.check_invariants();
}

#[test]
fn a_cancelled_wait_gets_nothing() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", None).gfid;
    rig.call(A, lock(gfid, LockOp::Set(LOCK)));
    rig.send(B, lock(gfid, LockOp::Wait(LOCK, WaitId(1))));
    assert_eq!(rig.call(B, lock(gfid, LockOp::Cancel(WaitId(1)))), Reply::Count(1));
    rig.call(A, lock(gfid, LockOp::Clear(ByteRange::ALL)));
    assert_eq!(rig.call(A, lock(gfid, LockOp::Test(LOCK))), Reply::Lock(None));
}

#[test]
fn locks_of_a_dead_session_pass_on_when_it_is_resolved() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", None).gfid;
    rig.call(A, lock(gfid, LockOp::Set(LOCK)));
    rig.send(B, lock(gfid, LockOp::Wait(LOCK, WaitId(1))));
    let waiting = rig.token;
    assert_eq!(replies(&rig.sessions(&[B], &[A])), [], "its writes are not decided yet");
    assert_eq!(replies(&rig.sessions(&[B], &[])), [(waiting, Reply::Done)]);
}

#[test]
fn locks_are_reclaimed_after_a_restart_before_anyone_takes_them() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", None).gfid;
    rig.create(B, "g", None);
    rig.call(A, lock(gfid, LockOp::Set(LOCK)));
    rig.restart();
    rig.sessions(&[A, B], &[]);
    rig.call(B, reclaim(vec![]));
    assert_eq!(
        rig.call(B, lock(gfid, LockOp::Set(LOCK))),
        Reply::TryAgain,
        "not everybody has said what he holds"
    );
    let locks = vec![LockClaim { gfid, owner: ONE, lock: LOCK }];
    let part = NamespaceOp::Reclaim {
        held: vec![],
        locks,
        mount: true,
        since: u64::MAX,
        begun: 0,
        last: false,
    };
    assert!(matches!(rig.call(A, part), Reply::Kept { .. }));
    assert!(rig.service.in_grace(), "more is to come");
    rig.call(A, reclaim(vec![]));
    assert_eq!(rig.call(B, lock(gfid, LockOp::Set(LOCK))), Reply::Errno(libc::EAGAIN));
}

#[test]
fn a_second_mount_arrives_when_nobody_counts_on_being_alone() {
    let mut rig = Rig::new();
    let alone = ServiceConfig::default().alone;
    assert_eq!(rig.call(A, NamespaceOp::Mount), Reply::Done);
    assert_eq!(rig.service.promise_alone(Duration::from_millis(rig.now), A), alone);
    assert_eq!(rig.call(B, NamespaceOp::Mount), Reply::TryAgain);
    rig.pass(2000);
    assert_eq!(rig.call(B, NamespaceOp::Mount), Reply::Done);
    assert_eq!(rig.service.promise_alone(Duration::from_millis(rig.now), A), Duration::ZERO);
    rig.sessions(&[A], &[]);
    assert_eq!(rig.service.promise_alone(Duration::from_millis(rig.now), A), alone);
}
