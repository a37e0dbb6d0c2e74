//! The machine loses its power: what was committed and not synced is gone, while sessions go on
//! with what they were told.

use super::*;

/// Both sessions are known on the disk, and a file of each: "a" and "b".
fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.create(A, "a", None);
    rig.create(B, "b", None);
    rig.sync();
    rig
}

fn open(gfid: Gfid, lease: LeaseMode) -> NamespaceOp {
    NamespaceOp::Open { gfid, lease }
}

fn opened(reply: Reply) -> (Attr, u64) {
    match reply {
        Reply::Opened { attr, grant: Some(grant) } => (attr, grant.token),
        other => panic!("{other:?}"),
    }
}

fn file(rig: &mut Rig, name: &str) -> Gfid {
    match rig.call(A, lookup(name)) {
        Reply::Attr(attr) => attr.gfid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_is_answered_when_the_disk_knows_it() {
    let mut rig = Rig::new();
    let (_, events) = rig.send(A, create("f", None));
    assert!(matches!(events[..], [Event::Sync { .. }]), "{events:?}");
    let (_, events) = rig.send(A, create("g", None));
    assert!(matches!(events[..], [Event::Reply { .. }]), "{events:?}");
    rig.lose_power();
    assert_eq!(rig.call(B, create("h", None)), Reply::TryAgain, "A may hold leases");
    rig.call(A, reclaim(vec![]));
    assert!(matches!(rig.call(B, create("h", None)), Reply::Attr(_)));
}

#[test]
fn a_writer_of_which_the_note_was_lost_keeps_its_lease() {
    let mut rig = rig();
    let gfid = file(&mut rig, "a");
    let (_, token) = opened(rig.call(A, open(gfid, LeaseMode::Write)));
    rig.lose_power();
    assert_eq!(rig.service.leases().writer(gfid), None);
    rig.call(B, reclaim(vec![]));
    rig.call(A, reclaim(vec![held(gfid, LeaseMode::Write, token, true)]));
    assert_eq!(rig.service.leases().writer(gfid), Some(A));
    let (_, events) = rig.send(B, open(gfid, LeaseMode::Write));
    assert_eq!(recalls(&events), [(A, None)], "B has it only when A gives it back");
    rig.restart();
    rig.sessions(&[A, B], &[]);
    assert_eq!(rig.service.leases().writer(gfid), Some(A), "it is noted again");
}

#[test]
fn of_two_claims_the_later_grant_counts_whoever_comes_first() {
    for a_is_first in [true, false] {
        let mut rig = rig();
        let gfid = file(&mut rig, "a");
        let (_, first) = opened(rig.call(A, open(gfid, LeaseMode::Write)));
        rig.sync();
        rig.call(A, give_back(gfid, None, SetAttr::default()));
        let (_, second) = opened(rig.call(B, open(gfid, LeaseMode::Write)));
        rig.lose_power();
        assert_eq!(rig.service.leases().writer(gfid), Some(A), "as of when the disk was written");
        // The answer to A's return is on its way still.
        let mut claims = [(A, first), (B, second)];
        claims.rotate_left(usize::from(!a_is_first));
        let mut asked = Vec::new();
        for (session, token) in claims {
            let (_, events) =
                rig.send(session, reclaim(vec![held(gfid, LeaseMode::Write, token, true)]));
            asked.extend(recalls(&events));
        }
        assert_eq!(rig.service.leases().writer(gfid), Some(B));
        assert!(asked.iter().all(|recall| *recall == (A, None)) && !asked.is_empty(), "{asked:?}");
        rig.call(A, give_back(gfid, None, SetAttr::default()));
        assert_eq!(rig.service.leases().writer(gfid), Some(B));
        rig.check();
    }
}

#[test]
fn a_writer_that_became_a_reader_is_one() {
    let mut rig = rig();
    let gfid = file(&mut rig, "a");
    let (_, first) = opened(rig.call(A, open(gfid, LeaseMode::Write)));
    rig.sync();
    rig.call(A, give_back(gfid, Some(LeaseMode::Read), SetAttr::default()));
    let (_, second) = opened(rig.call(B, open(gfid, LeaseMode::Read)));
    rig.lose_power();
    rig.call(B, reclaim(vec![held(gfid, LeaseMode::Read, second, true)]));
    rig.call(A, reclaim(vec![held(gfid, LeaseMode::Read, first, true)]));
    let leases = rig.service.leases();
    assert_eq!(
        (leases.held(gfid, A), leases.held(gfid, B)),
        (Some(LeaseMode::Read), Some(LeaseMode::Read))
    );
}

#[test]
fn a_claim_that_comes_after_others_were_granted_leases_counts_no_more() {
    let mut rig = rig();
    let gfid = file(&mut rig, "a");
    let (_, token) = opened(rig.call(A, open(gfid, LeaseMode::Write)));
    rig.lose_power();
    rig.call(B, reclaim(vec![]));
    rig.pass(31_000);
    assert!(!rig.service.in_grace(), "A was silent for too long");
    opened(rig.call(B, open(gfid, LeaseMode::Write)));
    let claim = reclaim(vec![held(gfid, LeaseMode::Write, token, true)]);
    let refused = |reply: Reply| matches!(reply, Reply::Kept { refused, .. } if refused == [gfid]);
    assert!(refused(rig.call(A, claim.clone())));
    rig.call(B, give_back(gfid, None, SetAttr::default()));
    assert!(refused(rig.call(A, claim)), "B may have written");
    assert_eq!(rig.service.leases().writer(gfid), None);
    rig.check();
}

#[test]
fn what_a_dead_session_may_have_held_is_nobodys_until_its_writes_are_decided() {
    let mut rig = rig();
    let gfid = file(&mut rig, "a");
    opened(rig.call(A, open(gfid, LeaseMode::Write)));
    rig.store.lose_power();
    rig.restart();
    rig.sessions(&[B], &[A]);
    rig.call(B, reclaim(vec![]));
    assert_eq!(rig.call(B, open(gfid, LeaseMode::Write)), Reply::TryAgain);
    rig.sessions(&[B], &[]);
    opened(rig.call(B, open(gfid, LeaseMode::Write)));
}

#[test]
fn what_the_store_alone_knows_is_granted_with_a_token_of_its_own() {
    let mut rig = rig();
    let gfid = file(&mut rig, "a");
    opened(rig.call(A, open(gfid, LeaseMode::Write)));
    rig.sync();
    rig.call(A, give_back(gfid, None, SetAttr::default()));
    let (_, later) = opened(rig.call(A, open(gfid, LeaseMode::Write)));
    rig.call(A, give_back(gfid, None, SetAttr::default()));
    rig.lose_power();
    rig.call(B, reclaim(vec![]));
    rig.call(A, reclaim(vec![Held { gfid, lease: None, open: true }]));
    let (_, token) = opened(rig.call(A, open(gfid, LeaseMode::Write)));
    assert!(token > later, "a smaller one would be void to A, for ever");
}

#[test]
fn what_is_lost_can_be_told_from_what_is_kept() {
    let mut rig = rig();
    let first = rig.service.namespace().last_commit();
    rig.create(A, "lost", None);
    let lost = rig.service.namespace().last_commit();
    rig.lose_power();
    let since = NamespaceOp::Reclaim {
        held: vec![],
        locks: vec![],
        mount: false,
        since: first.start,
        begun: 0,
        last: true,
    };
    let Reply::Kept { commits: kept, .. } = rig.call(A, since) else { panic!("another answer") };
    let left =
        |commit: Commit| kept.iter().any(|kept| kept.start == commit.start && commit <= *kept);
    assert!(left(first) && !left(lost), "{kept:?}");
    assert!(kept.last().is_some_and(|now| now.start > first.start), "{kept:?}");
}
