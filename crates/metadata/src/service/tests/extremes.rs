//! Every kind of request with extreme numbers in it: an answer, a sound store, and nothing for
//! anybody else to feel.

use super::*;
use protocol::lock::{ByteRange, LockClaim, LockOp, LockOwner, RangeLock, WaitId};
use protocol::namespace::{ACL_DEFAULT, RenameMode};

const EXTREMES: [u64; 9] =
    [0, 1, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 58, (1 << 63) - 1, 1 << 63, u64::MAX];

/// All requests that carry a number, with this one in each of them.
fn requests(n: u64, known: Gfid) -> Vec<NamespaceOp> {
    let time = Timestamp { secs: n as i64, nanos: n as u32 };
    let set = SetAttr {
        mode: Some(n as u32),
        uid: Some(n as u32),
        gid: Some(n as u32),
        size: Some(n),
        atime: Some(time),
        mtime: Some(time),
        ctime: Some(time),
        footprint: None,
        times_follow: true,
    };
    let tags = [Tag::UserObj, Tag::User(n as u32 >> 1), Tag::GroupObj, Tag::Mask, Tag::Other];
    let acl =
        Acl::new(tags.map(|tag| Entry { tag, permissions: 7 }).to_vec()).expect("well-formed");
    let mut ops = Vec::new();
    for gfid in [known, Gfid::ROOT, Gfid::of_inode(n)] {
        let (name, to) = (n.to_string().into_bytes(), format!("to-{n}").into_bytes());
        let parent = gfid;
        ops.extend([
            NamespaceOp::Lookup { parent, name: name.clone() },
            NamespaceOp::GetAttr { gfid },
            NamespaceOp::Open { gfid, lease: LeaseMode::Write },
            NamespaceOp::SetAttr { gfid, set, sync: true },
            NamespaceOp::SetAttr { gfid, set: SetAttr { size: None, ..set }, sync: false },
            NamespaceOp::ReadDir { gfid, after: vec![], limit: n as u32 },
            NamespaceOp::ReadDir { gfid, after: vec![0xff; 300], limit: n as u32 },
            NamespaceOp::Link { gfid, parent: Gfid::ROOT, name: name.clone() },
            NamespaceOp::Parent { gfid },
            NamespaceOp::ReadLink { gfid },
            set_xattr(gfid, b"user.n", &name),
            set_xattr(gfid, ACL_ACCESS, &name),
            set_xattr(gfid, ACL_DEFAULT, &acl.encode()),
            NamespaceOp::RemoveXattr { gfid, name: ACL_ACCESS.to_vec() },
            NamespaceOp::GetXattr { gfid, name: b"user.n".to_vec() },
            NamespaceOp::ListXattr { gfid },
            NamespaceOp::RemoveXattr { gfid, name: b"user.n".to_vec() },
            NamespaceOp::Rename {
                parent,
                name: name.clone(),
                new_parent: Gfid::ROOT,
                new_name: to,
                mode: RenameMode::Replace,
            },
            NamespaceOp::Close { gfid },
            NamespaceOp::ReturnLease { gfid, keep: None, set },
            NamespaceOp::Unlink { parent, name: name.clone(), gives: Some(gfid) },
            NamespaceOp::Rmdir { parent, name },
        ]);
        ops.extend(reclaims(n, gfid));
        ops.extend(lock_requests(n, gfid));
    }
    for kind in [FileKind::Regular, FileKind::Directory, FileKind::BlockDevice, FileKind::Symlink] {
        let (parent, name, pool) =
            (Gfid::ROOT, format!("{kind:?}-{n}").into_bytes(), PoolId::new(n as u32));
        let (mode, umask, rdev, open) = (n as u32, n as u32, n as u32, Some(LeaseMode::Write));
        ops.push(NamespaceOp::Create {
            parent,
            name,
            kind,
            mode,
            umask,
            rdev,
            target: vec![b'x'; 9],
            pool,
            open,
        });
    }
    ops
}

fn set_xattr(gfid: Gfid, name: &[u8], value: &[u8]) -> NamespaceOp {
    let (name, value) = (name.to_vec(), value.to_vec());
    NamespaceOp::SetXattr { gfid, name, value, create: None, kill_sgid: true }
}

fn reclaims(n: u64, gfid: Gfid) -> [NamespaceOp; 2] {
    let lock =
        RangeLock { range: ByteRange { start: n, last: 0 }, mode: LeaseMode::Write, pid: n as u32 };
    let locks = vec![LockClaim { gfid, owner: LockOwner(n), lock }];
    let held = vec![held(gfid, LeaseMode::Write, n, true)];
    [
        NamespaceOp::Reclaim { held, locks, mount: false, since: n, begun: n, last: false },
        NamespaceOp::Reclaim {
            held: vec![],
            locks: vec![],
            mount: false,
            since: n,
            begun: 0,
            last: true,
        },
    ]
}

fn lock_requests(n: u64, gfid: Gfid) -> Vec<NamespaceOp> {
    let owner = LockOwner(n);
    let mut ops = Vec::new();
    for range in [
        ByteRange { start: n, last: u64::MAX },
        ByteRange { start: 0, last: n },
        ByteRange { start: n, last: 0 },
    ] {
        let lock = RangeLock { range, mode: LeaseMode::Read, pid: n as u32 };
        let all = [
            LockOp::Test(lock),
            LockOp::Set(lock),
            LockOp::Wait(lock, WaitId(n)),
            LockOp::Cancel(WaitId(n)),
            LockOp::Clear(range),
            LockOp::Close,
        ];
        ops.extend(all.map(|op| NamespaceOp::Lock { gfid, owner, op }));
    }
    ops
}

#[test]
fn extreme_numbers_get_an_answer_and_leave_a_sound_store() {
    let mut rig = Rig::new();
    let known = rig.create(B, "known", None).gfid;
    for n in EXTREMES {
        for op in requests(n, known) {
            let (_, events) = rig.send(A, op.clone());
            let answered = events
                .iter()
                .any(|event| matches!(event, Event::Reply { .. } | Event::Sync { .. }));
            assert!(answered || !rig.pass(5000).is_empty(), "no answer to {op:?}");
            let root = rig.service.namespace().attr(Gfid::ROOT).expect("store works");
            assert!(root.is_some(), "after {op:?}");
        }
        rig.check();
    }
    assert!(matches!(rig.call(B, create("after", None)), Reply::Attr(_)));
}

#[test]
fn extreme_numbers_of_requests_are_the_sessions_own_affair() {
    for n in EXTREMES {
        let mut rig = Rig::new();
        let caller = Caller {
            uid: n as u32,
            gid: n as u32,
            now: Timestamp { secs: n as i64, nanos: n as u32 },
        };
        for session in [A, SessionId::new(n)] {
            rig.token += 1;
            let request = Request {
                session,
                number: n,
                answered: n,
                epoch: Epoch::new(n),
                caller,
                op: create("mine", None),
            };
            rig.service.submit(Duration::ZERO, rig.token, request).expect("store works");
            rig.turn();
        }
        assert!(
            matches!(rig.call(B, create("file", Some(LeaseMode::Write))), Reply::Opened { .. }),
            "{n}"
        );
        rig.check();
    }
}

#[test]
fn a_claim_of_a_token_that_nobody_was_given_takes_nobodys_lease() {
    let mut rig = Rig::new();
    let (gfid, token) = rig.write_new(A, "file");
    rig.create(B, "other", None);
    rig.restart();
    rig.sessions(&[A, B], &[]);
    let Reply::Kept { refused, .. } =
        rig.call(B, reclaim(vec![held(gfid, LeaseMode::Write, u64::MAX, true)]))
    else {
        panic!("a claim is answered")
    };
    assert_eq!(refused, [gfid]);
    let Reply::Kept { refused, .. } =
        rig.call(A, reclaim(vec![held(gfid, LeaseMode::Write, token, true)]))
    else {
        panic!("a claim is answered")
    };
    assert_eq!(refused, []);
    assert_eq!(rig.service.leases().writer(gfid), Some(A));
}

#[test]
fn unlocking_makes_no_pieces_without_end() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "file", None).gfid;
    let lock = |op| NamespaceOp::Lock { gfid, owner: LockOwner(1), op };
    let all = RangeLock { range: ByteRange::ALL, mode: LeaseMode::Write, pid: 1 };
    assert_eq!(rig.call(A, lock(LockOp::Set(all))), Reply::Done);
    let inverted = LockOp::Clear(ByteRange { start: 60, last: 40 });
    assert_eq!(rig.call(A, lock(inverted)), Reply::Errno(libc::EINVAL));
    let pieces_max = ServiceConfig::default().locks.file_locks_max as u64;
    let hole = |n: u64| LockOp::Clear(ByteRange { start: 2 * n + 1, last: 2 * n + 1 });
    for n in 0..pieces_max - 1 {
        assert_eq!(rig.call(A, lock(hole(n))), Reply::Done, "{n}");
    }
    assert_eq!(rig.call(A, lock(hole(pieces_max))), Reply::Errno(libc::ENOLCK));
    assert_eq!(rig.call(A, lock(LockOp::Clear(ByteRange::ALL))), Reply::Done);
}
