//! Leases on names and attributes: given to several mounts, and taken away by whoever changes
//! something.

use super::*;
use protocol::namespace::NamesRecall;

/// Two mounts, and a file that the first made.
fn two_mounts() -> (Rig, Gfid) {
    let mut rig = Rig::new();
    rig.pass(0);
    for session in [A, B] {
        assert_eq!(rig.call(session, NamespaceOp::Mount), Reply::Done);
    }
    let gfid = rig.create(A, "f", None).gfid;
    (rig, gfid)
}

fn list() -> NamespaceOp {
    NamespaceOp::ReadDir { gfid: Gfid::ROOT, after: vec![], limit: 100 }
}

/// Asks, and says whether the answer is covered by leases that count from now on.
fn covers(rig: &mut Rig, session: SessionId, op: NamespaceOp) -> bool {
    rig.call(session, op);
    let covered = rig.service.is_covered(rig.token);
    let promise = rig.service.promise_names(Duration::from_millis(rig.now), session);
    covered && promise > Duration::ZERO
}

fn recalls(events: &[Event], to: SessionId) -> Vec<NamesRecall> {
    let recall = |event: &Event| match event {
        Event::NamesRecall { session, recall } if *session == to => Some(*recall),
        _ => None,
    };
    events.iter().filter_map(recall).collect()
}

fn has_answer(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Reply { .. } | Event::Sync { .. }))
}

#[test]
fn whoever_only_reads_takes_nothing_away_and_whoever_changes_waits_for_the_others() {
    let (mut rig, gfid) = two_mounts();
    assert!(covers(&mut rig, B, list()) && covers(&mut rig, A, list()));
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let changes = [
        (NamespaceOp::SetAttr { gfid, set: mode, sync: false }, vec![gfid]),
        (create("g", None), vec![Gfid::ROOT]),
        (NamespaceOp::Open { gfid, lease: LeaseMode::Write }, vec![gfid]),
        (
            NamespaceOp::Rename {
                parent: Gfid::ROOT,
                name: b"f".to_vec(),
                new_parent: Gfid::ROOT,
                new_name: b"h".to_vec(),
                mode: protocol::namespace::RenameMode::Replace,
            },
            vec![Gfid::ROOT],
        ),
        (unlink("g"), vec![Gfid::ROOT]),
    ];
    for (change, on) in changes {
        assert!(covers(&mut rig, B, list()), "before {change:?}");
        let (_, events) = rig.send(A, change.clone());
        let (token, asked) = (rig.token, recalls(&events, B));
        assert!(!has_answer(&events), "{change:?} does not wait");
        assert!(on.iter().all(|gfid| asked.iter().any(|recall| recall.gfid == Some(*gfid))));
        assert!(!covers(&mut rig, B, list()), "what changes is not given again");
        let mut answered = false;
        for recall in asked {
            let (_, events) = rig.send(B, NamespaceOp::ReturnNames { recall });
            let is_reply =
                |event: &Event| matches!(event, Event::Reply { token: of, .. } if *of == token);
            answered |= events.iter().any(is_reply);
        }
        assert!(answered, "{change:?} waits though nobody counts on anything");
    }
}

#[test]
fn a_mount_that_is_silent_or_dead_holds_up_a_change_for_a_moment_only() {
    let (mut rig, gfid) = two_mounts();
    assert!(covers(&mut rig, B, NamespaceOp::GetAttr { gfid }));
    let (_, events) = rig.send(A, unlink("f"));
    assert!(!has_answer(&events));
    assert!(!has_answer(&rig.pass(1200)));
    let events = rig.pass(50);
    assert_eq!(rig.answer(&events), Reply::Done);
    assert!(!covers(&mut rig, B, lookup("none")), "it has not said that it has forgotten");
    rig.create(A, "g", None);
}

#[test]
fn what_another_mount_writes_is_not_covered() {
    let (mut rig, gfid) = two_mounts();
    assert!(matches!(
        rig.call(A, NamespaceOp::Open { gfid, lease: LeaseMode::Write }),
        Reply::Opened { .. }
    ));
    let Reply::Entries { entries, .. } = rig.call(B, list()) else { panic!("no entries") };
    assert!(entries[0].written_elsewhere);
    let (_, events) = rig.send(A, NamespaceOp::SetAttr { gfid, set: sized(5), sync: false });
    assert!(has_answer(&events) && recalls(&events, B).is_empty());
}

#[test]
fn after_a_restart_nothing_changes_before_all_mounts_have_forgotten() {
    let (mut rig, gfid) = two_mounts();
    assert!(covers(&mut rig, B, NamespaceOp::GetAttr { gfid }));
    rig.restart();
    rig.sessions(&[A, B], &[]);
    let reclaim = || {
        let NamespaceOp::Reclaim { held, locks, since, begun, last, .. } = reclaim(vec![]) else {
            unreachable!()
        };
        NamespaceOp::Reclaim { held, locks, mount: true, since, begun, last }
    };
    rig.call(A, reclaim());
    assert_eq!(rig.call(A, unlink("f")), Reply::TryAgain);
    rig.call(B, reclaim());
    assert_eq!(rig.call(A, unlink("f")), Reply::Done);
}
