//! Files that are made without a name.

use super::*;

fn unnamed(linkable: bool) -> NamespaceOp {
    let (parent, open) = (Gfid::ROOT, LeaseMode::Write);
    NamespaceOp::CreateUnnamed { parent, mode: 0o600, umask: 0, pool: POOL, open, linkable }
}

fn link(gfid: Gfid, name: &str) -> NamespaceOp {
    NamespaceOp::Link { gfid, parent: Gfid::ROOT, name: name.into() }
}

fn opened(reply: Reply) -> (Attr, u64) {
    match reply {
        Reply::Opened { attr, grant: Some(grant) } => (attr, grant.token),
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_goes_with_its_last_handle_or_with_its_session() {
    let mut rig = Rig::new();
    let (attr, _) = opened(rig.call(A, unnamed(true)));
    assert_eq!((attr.nlink, attr.mode), (0, 0o600));
    assert!(rig.purges().is_empty());
    let (_, events) = rig.send(A, NamespaceOp::Close { gfid: attr.gfid });
    assert_eq!(recalls(&events), [(A, None)], "its writer may still have something to say");
    rig.call(A, give_back(attr.gfid, None, sized(7)));
    assert_eq!(
        rig.purges().iter().map(|purge| (purge.gfid, purge.size)).collect::<Vec<_>>(),
        [(attr.gfid, 7)]
    );
    let (second, _) = opened(rig.call(A, unnamed(true)));
    rig.sessions(&[B], &[]);
    assert!(rig.purges().iter().any(|purge| purge.gfid == second.gfid));
    rig.check();
}

#[test]
fn one_that_gets_a_name_stays() {
    let mut rig = Rig::new();
    let (attr, _) = opened(rig.call(A, unnamed(true)));
    let Reply::Attr(linked) = rig.call(A, link(attr.gfid, "f")) else { panic!("not linked") };
    assert_eq!(linked.nlink, 1);
    rig.call(A, NamespaceOp::Close { gfid: attr.gfid });
    rig.call(A, give_back(attr.gfid, None, sized(7)));
    rig.sessions(&[B], &[]);
    assert!(rig.purges().is_empty());
    assert!(matches!(rig.call(B, lookup("f")), Reply::Attr(found) if found.gfid == attr.gfid));
    rig.check();
    rig.call(B, unlink("f"));
    assert_eq!(rig.purges().len(), 1);
}

#[test]
fn a_name_is_given_once() {
    let mut rig = Rig::new();
    let (exclusive, _) = opened(rig.call(A, unnamed(false)));
    assert_eq!(rig.call(A, link(exclusive.gfid, "f")), Reply::Errno(libc::ENOENT));
    let (attr, _) = opened(rig.call(A, unnamed(true)));
    assert!(matches!(rig.call(A, link(attr.gfid, "f")), Reply::Attr(_)));
    rig.call(A, unlink("f"));
    assert_eq!(
        rig.call(A, link(attr.gfid, "f")),
        Reply::Errno(libc::ENOENT),
        "it had lost its last one"
    );
    rig.check();
}

#[test]
fn a_restart_keeps_what_is_claimed() {
    let mut rig = Rig::new();
    let (kept, token) = opened(rig.call(A, unnamed(true)));
    let (lost, _) = opened(rig.call(A, unnamed(true)));
    rig.restart();
    rig.sessions(&[A, B], &[]);
    let held = vec![held(kept.gfid, LeaseMode::Write, token, true)];
    assert!(matches!(rig.call(A, reclaim(held)), Reply::Kept { .. }));
    // The lease is noted in the store: its holder is asked, and has nothing.
    rig.call(A, give_back(lost.gfid, None, SetAttr::default()));
    assert_eq!(rig.purges().iter().map(|purge| purge.gfid).collect::<Vec<_>>(), [lost.gfid]);
    assert!(matches!(rig.call(A, link(kept.gfid, "f")), Reply::Attr(attr) if attr.nlink == 1));
    rig.check();
}

#[test]
fn one_whose_answer_was_lost_is_made_once() {
    let mut rig = Rig::new();
    let (number, events) = rig.send(A, unnamed(true));
    let (first, _) = opened(rig.answer(&events));
    let events = rig.send_as(A, number, unnamed(true));
    assert_eq!(opened(rig.answer(&events)).0.gfid, first.gfid);
    rig.check();
}
