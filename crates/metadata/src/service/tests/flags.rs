//! Flags of chattr and leases.

use super::*;
use protocol::namespace::FileFlags;

fn flag(gfid: Gfid, immutable: bool) -> NamespaceOp {
    NamespaceOp::SetFlags { gfid, flags: FileFlags { immutable, append_only: false } }
}

fn open(gfid: Gfid, lease: LeaseMode) -> NamespaceOp {
    NamespaceOp::Open { gfid, lease }
}

#[test]
fn nobody_is_given_the_right_to_write_an_immutable_file() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", None).gfid;
    let token = {
        rig.call(B, open(gfid, LeaseMode::Read));
        let (_, events) = rig.send(A, flag(gfid, true));
        assert_eq!(recalls(&events), [(B, None)], "who goes on is to learn of it");
        rig.token
    };
    let (_, events) = rig.send(B, give_back(gfid, None, SetAttr::default()));
    rig.token = token;
    assert!(matches!(rig.answer(&events), Reply::Attr(attr) if attr.flags.immutable));
    assert_eq!(rig.call(B, open(gfid, LeaseMode::Write)), Reply::Errno(libc::EPERM));
    let opened = rig.call(B, open(gfid, LeaseMode::Read));
    assert!(matches!(opened, Reply::Opened { attr, .. } if attr.flags.immutable));
    assert_eq!(rig.call(A, unlink("f")), Reply::Errno(libc::EPERM));
    rig.send(A, flag(gfid, false));
    rig.call(B, give_back(gfid, None, SetAttr::default()));
    assert!(matches!(rig.call(A, open(gfid, LeaseMode::Write)), Reply::Opened { .. }));
    rig.check();
}

#[test]
fn who_waits_to_write_is_refused_when_the_flag_comes_first() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    let (_, events) = rig.send(B, open(gfid, LeaseMode::Write));
    assert_eq!(recalls(&events), [(A, None)]);
    let waiting = rig.token;
    rig.call(A, flag(gfid, true));
    let (_, events) = rig.send(A, give_back(gfid, None, sized(7)));
    rig.token = waiting;
    assert_eq!(rig.answer(&events), Reply::Errno(libc::EPERM));
    assert!(
        matches!(rig.call(A, NamespaceOp::GetAttr { gfid }), Reply::Attr(attr) if attr.size == 7)
    );
    rig.check();
}
