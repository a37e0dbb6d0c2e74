//! Room for writers in directories with quotas.

use super::*;
use protocol::namespace::{Quota, QuotaChange};

const MIB: u64 = 1 << 20;

fn set_quota(rig: &mut Rig, bytes: u64) {
    let change = QuotaChange { max_bytes: Some(bytes), max_files: Some(0) };
    assert_eq!(rig.call(A, NamespaceOp::SetQuota { gfid: Gfid::ROOT, change }), Reply::Done);
}

/// Counts all that is there; gives what is told meanwhile.
fn count(rig: &mut Rig) -> Vec<Event> {
    let mut events = Vec::new();
    while rig.service.is_counting_quotas() {
        let now = Duration::from_millis(rig.now);
        rig.service.count_quotas(now, 1).expect("store works");
        events.extend(rig.turn());
    }
    events
}

fn quota(rig: &mut Rig) -> Quota {
    match rig.call(A, NamespaceOp::GetQuota { gfid: Gfid::ROOT }) {
        Reply::Quotas(quotas) => quotas[0],
        other => panic!("{other:?}"),
    }
}

fn writes(rig: &mut Rig, session: SessionId, name: &str) -> (Gfid, u64) {
    match rig.call(session, create(name, Some(LeaseMode::Write))) {
        Reply::Opened { attr, grant: Some(grant) } => (attr.gfid, grant.allowance),
        other => panic!("{other:?}"),
    }
}

fn room(gfid: Gfid, size: u64) -> NamespaceOp {
    NamespaceOp::GetRoom { gfid, size }
}

/// A length as its writer tells it.
fn tell(gfid: Gfid, size: u64) -> NamespaceOp {
    let set = SetAttr { ctime: Some(wall(8)), ..sized(size) };
    NamespaceOp::SetAttr { gfid, set, sync: false }
}

#[test]
fn without_a_quota_there_is_no_limit() {
    let mut rig = Rig::new();
    let (file, allowance) = writes(&mut rig, A, "file");
    assert_eq!(allowance, NO_LIMIT);
    assert_eq!(rig.call(A, room(file, 1 << 50)), Reply::Room(NO_LIMIT));
}

#[test]
fn what_is_promised_is_nobody_elses() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let (file, first) = writes(&mut rig, A, "file");
    assert_eq!(first, MIB, "a part of the room");
    let Reply::Room(more) = rig.call(A, room(file, 10 * MIB)) else { panic!("no room") };
    assert!((10 * MIB..11 * MIB).contains(&more), "{more}");
    assert_eq!(quota(&mut rig).promised, u128::from(more));
    rig.call(A, tell(file, 4 * MIB));
    let now = quota(&mut rig);
    assert_eq!((now.bytes, now.promised), (u128::from(4 * MIB), u128::from(more - 4 * MIB)));
    rig.call(A, NamespaceOp::Close { gfid: file });
    assert_eq!(quota(&mut rig).promised, 0);
    rig.check();
}

#[test]
fn who_finds_no_room_waits_for_promises_that_nobody_uses() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let (slow, _) = writes(&mut rig, A, "slow");
    assert!(matches!(rig.call(A, room(slow, 40 * MIB)), Reply::Room(_)));
    let (file, _) = writes(&mut rig, B, "file");
    let (number, events) = rig.send(B, room(file, 60 * MIB));
    assert_eq!(rig.answer(&events), Reply::TryAgain);
    assert_eq!(recalls(&events), [(A, Some(LeaseMode::Read))]);
    rig.call(A, tell(slow, 2 * MIB));
    rig.call(A, give_back(slow, Some(LeaseMode::Read), SetAttr::default()));
    let events = rig.send_as(B, number, room(file, 60 * MIB));
    let Reply::Room(more) = rig.answer(&events) else { panic!("{events:?}") };
    assert!(more <= 62 * MIB);
    assert_eq!(rig.call(B, room(file, 62 * MIB + 1)), Reply::Errno(libc::EDQUOT), "no promises");
    assert!(matches!(rig.call(B, room(file, 62 * MIB)), Reply::Room(_)));
}

#[test]
fn a_promise_that_does_not_come_back_is_not_waited_for_without_end() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let (slow, _) = writes(&mut rig, A, "slow");
    assert!(matches!(rig.call(A, room(slow, 40 * MIB)), Reply::Room(_)));
    let (file, _) = writes(&mut rig, B, "file");
    let (number, _) = rig.send(B, room(file, 60 * MIB));
    rig.pass(1900);
    let events = rig.send_as(B, number, room(file, 60 * MIB));
    assert_eq!(rig.answer(&events), Reply::TryAgain);
    rig.pass(200);
    let events = rig.send_as(B, number, room(file, 60 * MIB));
    assert_eq!(rig.answer(&events), Reply::Errno(libc::EDQUOT));
}

#[test]
fn who_wrote_before_the_quota_is_asked_for_the_lease() {
    let mut rig = Rig::new();
    let (file, _) = writes(&mut rig, A, "file");
    set_quota(&mut rig, 64 * MIB);
    assert_eq!(recalls(&count(&mut rig)), [(A, Some(LeaseMode::Read))]);
    rig.call(A, tell(file, 65 * MIB));
    rig.call(A, give_back(file, Some(LeaseMode::Read), SetAttr::default()));
    assert_eq!(quota(&mut rig).bytes, u128::from(65 * MIB), "what he told has happened");
    let Reply::Opened { grant: Some(grant), .. } =
        rig.call(A, NamespaceOp::Open { gfid: file, lease: LeaseMode::Write })
    else {
        panic!("no lease")
    };
    assert_eq!(grant.allowance, 65 * MIB);
    assert_eq!(rig.call(A, room(file, 65 * MIB + 1)), Reply::Errno(libc::EDQUOT));
    rig.check();
}

#[test]
fn promises_are_said_again_after_a_restart() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let (file, token) = rig.write_new(A, "file");
    let Reply::Room(more) = rig.call(A, room(file, 20 * MIB)) else { panic!("no room") };
    rig.restart();
    rig.sessions(&[A, B], &[]);
    assert_eq!(rig.call(B, room(file, 1)), Reply::TryAgain, "in the grace period");
    let claim = Held { allowance: more, ..held(file, LeaseMode::Write, token, true) };
    assert!(matches!(rig.call(A, reclaim(vec![claim])), Reply::Kept { .. }));
    rig.call(B, reclaim(vec![]));
    assert_eq!(quota(&mut rig).promised, u128::from(more));
}

#[test]
fn what_a_dead_writer_was_promised_is_kept_until_its_length_is_known() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let (file, _) = writes(&mut rig, A, "file");
    assert!(matches!(rig.call(A, room(file, 20 * MIB)), Reply::Room(_)));
    let held = quota(&mut rig).promised;
    rig.sessions(&[B], &[A]);
    rig.sessions(&[B], &[]);
    let after = |rig: &mut Rig| match rig.call(B, NamespaceOp::ListQuotas { after: 0 }) {
        Reply::Quotas(quotas) => (quotas[0].bytes, quotas[0].promised),
        other => panic!("{other:?}"),
    };
    assert_eq!(after(&mut rig), (0, held));
    let now = Duration::from_millis(rig.now);
    rig.service.size_recovered(now, file, 19 * MIB, wall(9)).expect("store works");
    assert_eq!(after(&mut rig), (u128::from(19 * MIB), 0));
    rig.check();
}

#[test]
fn a_length_that_a_user_sets_needs_room_too() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let file = rig.create(A, "file", None).gfid;
    let set = |size| NamespaceOp::SetAttr { gfid: file, set: sized(size), sync: false };
    assert_eq!(rig.call(A, set(64 * MIB + 1)), Reply::Errno(libc::EDQUOT));
    assert!(matches!(rig.call(A, set(64 * MIB)), Reply::Attr(_)));
    assert!(matches!(rig.call(A, set(MIB)), Reply::Attr(_)));
    assert_eq!(quota(&mut rig).bytes, u128::from(MIB));
}

#[test]
fn what_was_removed_a_moment_ago_is_waited_for() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let (old, _) = writes(&mut rig, A, "old");
    rig.call(A, tell(old, 64 * MIB));
    let (file, _) = writes(&mut rig, B, "file");
    assert_eq!(rig.call(A, unlink("old")), Reply::Done);
    let (number, events) = rig.send(B, room(file, MIB));
    assert_eq!(rig.answer(&events), Reply::TryAgain);
    rig.call(A, NamespaceOp::Close { gfid: old });
    rig.call(A, give_back(old, None, SetAttr::default()));
    let events = rig.send_as(B, number, room(file, MIB));
    assert!(matches!(rig.answer(&events), Reply::Room(_)), "{events:?}");
}

#[test]
fn a_reader_that_closes_takes_no_promise_away() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let gfid = rig.create(B, "file", None).gfid;
    rig.call(B, NamespaceOp::Open { gfid, lease: LeaseMode::Read });
    rig.call(B, give_back(gfid, None, SetAttr::default()));
    rig.call(A, NamespaceOp::Open { gfid, lease: LeaseMode::Write });
    assert!(matches!(rig.call(A, room(gfid, 20 * MIB)), Reply::Room(_)));
    let promised = quota(&mut rig).promised;
    rig.call(B, NamespaceOp::Close { gfid });
    assert_eq!(quota(&mut rig).promised, promised);
}

#[test]
fn two_that_ask_for_each_others_promises_come_to_an_end() {
    let mut rig = Rig::new();
    set_quota(&mut rig, 64 * MIB);
    let files = [(A, "a"), (B, "b")].map(|(session, name)| {
        let file = writes(&mut rig, session, name).0;
        assert!(matches!(rig.call(session, room(file, 31 * MIB)), Reply::Room(_)));
        (session, file)
    });
    let mut refused = 0;
    for _ in 0..200 {
        for (session, gfid) in files {
            rig.pass(20);
            match rig.call(session, room(gfid, 40 * MIB)) {
                Reply::TryAgain | Reply::Room(0) => {}
                Reply::Errno(libc::EDQUOT) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        // Both have written all that they were promised, and give back what they are asked for.
        for (session, gfid) in files {
            rig.call(session, tell(gfid, 31 * MIB));
            rig.call(session, give_back(gfid, Some(LeaseMode::Read), SetAttr::default()));
            rig.call(session, NamespaceOp::Open { gfid, lease: LeaseMode::Write });
        }
    }
    assert!(refused > 300, "{refused}");
    rig.check();
}
