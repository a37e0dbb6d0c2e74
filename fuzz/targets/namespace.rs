//! Edited records of the metadata store, and any requests of a session after them: opening, asking
//! and changing end in an answer or an error, never in a panic.
#![no_main]

use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use metadata::acl::{Acl, Entry, Tag};
use metadata::store::Batch;
use metadata::{MemoryStore, Namespace, Service, ServiceConfig, SessionView, Store, StoreError};
use protocol::namespace::{
    ACL_ACCESS, ACL_DEFAULT, Caller, FileKind, LeaseMode, NamespaceOp, Request, SetAttr, Timestamp,
};
use protocol::{ClusterId, Epoch, Gfid, PoolId, SessionId};
use std::cell::OnceCell;
use std::ops::ControlFlow;
use std::time::Duration;

const NOW: Timestamp = Timestamp { secs: 7, nanos: 1 };
const CALLER: Caller = Caller { uid: 1, gid: 1, now: NOW };
const LIVE: SessionId = SessionId::new(1);
const OTHER: SessionId = SessionId::new(2);
/// After any grace period.
const LATER: Duration = Duration::from_secs(60);

thread_local! {
    static RECORDS: OnceCell<Vec<(Vec<u8>, Vec<u8>)>> = const { OnceCell::new() };
}

fn create(name: &[u8], kind: FileKind, open: Option<LeaseMode>) -> NamespaceOp {
    let target = if kind == FileKind::Symlink { b"where".to_vec() } else { Vec::new() };
    let (parent, pool) = (Gfid::ROOT, PoolId::new(3));
    NamespaceOp::Create {
        parent,
        name: name.to_vec(),
        kind,
        mode: 0o640,
        umask: 0o022,
        rdev: 0,
        target,
        pool,
        open,
    }
}

fn set_xattr(name: &[u8], value: &[u8]) -> NamespaceOp {
    let (gfid, name, value) = (Gfid::ROOT, name.to_vec(), value.to_vec());
    NamespaceOp::SetXattr { gfid, name, value, create: None, kill_sgid: true }
}

/// One that names a user.
fn acl() -> Vec<u8> {
    let tags = [Tag::UserObj, Tag::User(7), Tag::GroupObj, Tag::Mask, Tag::Other];
    Acl::new(tags.map(|tag| Entry { tag, permissions: 5 }).to_vec()).expect("a list").encode()
}

fn unlink(name: &[u8]) -> NamespaceOp {
    NamespaceOp::Unlink { parent: Gfid::ROOT, name: name.to_vec(), gives: None }
}

fn view(live: &[SessionId]) -> SessionView {
    SessionView {
        live: live.iter().copied().collect(),
        epoch: Epoch::new(3),
        last: SessionId::new(9),
        ..Default::default()
    }
}

/// Records of every kind, as a service leaves them.
fn records() -> Vec<(Vec<u8>, Vec<u8>)> {
    let store = MemoryStore::default();
    let works = "a store in memory works";
    let mut service =
        Service::open(store.clone(), ServiceConfig::default(), NOW).expect("an empty store");
    service.bind_cluster(ClusterId::new(5)).expect(works);
    service.sessions_changed(Duration::ZERO, NOW, view(&[LIVE, OTHER])).expect(works);
    let write = Some(LeaseMode::Write);
    let written =
        SetAttr { size: Some(9), mtime: Some(NOW), times_follow: true, ..SetAttr::default() };
    let ops = [
        (LIVE, create(b"file", FileKind::Regular, write)),
        (LIVE, create(b"dir", FileKind::Directory, None)),
        (LIVE, create(b"link", FileKind::Symlink, None)),
        (LIVE, set_xattr(b"user.a", b"b")),
        (LIVE, set_xattr(ACL_ACCESS, &acl())),
        (LIVE, set_xattr(ACL_DEFAULT, &acl())),
        (LIVE, NamespaceOp::BlobRoot { pool: PoolId::new(3) }),
        (LIVE, create(b"orphan", FileKind::Regular, write)),
        (LIVE, unlink(b"orphan")),
        (LIVE, create(b"gone", FileKind::Regular, None)),
        (LIVE, unlink(b"gone")),
        (OTHER, create(b"half", FileKind::Regular, write)),
        (LIVE, NamespaceOp::SetAttr { gfid: Gfid::of_inode(2), set: written, sync: false }),
    ];
    for (number, (session, op)) in (1..).zip(ops) {
        let request =
            Request { session, number, answered: 0, epoch: Epoch::default(), caller: CALLER, op };
        service.submit(Duration::ZERO, number, request).expect(works);
    }
    // The size of what the other was writing is to be recovered.
    service.sessions_changed(Duration::ZERO, NOW, view(&[LIVE])).expect(works);
    service.finish_turn().expect(works);
    let mut pairs = Vec::new();
    let visited = store.scan(&[], &[u8::MAX], &mut |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    visited.expect(works);
    for kind in b"dixposwbrcm" {
        assert!(
            pairs.iter().any(|(key, _)| key.first() == Some(kind)),
            "no record of kind {}",
            char::from(*kind)
        );
    }
    pairs
}

/// Asks and changes what a client could; answers do not matter, panics do.
fn exercise(namespace: &mut Namespace<MemoryStore>) {
    let _ = namespace.verify();
    let _ = namespace.retained();
    let _ = namespace.orphans();
    let _ = namespace.purge_next(None, 8);
    let _ = namespace.size_recovery_next(None, 8);
    let parent = Gfid::ROOT;
    let ops = [
        NamespaceOp::Lookup { parent, name: b"file".to_vec() },
        NamespaceOp::ReadDir { gfid: parent, after: Vec::new(), limit: 16 },
        NamespaceOp::ListXattr { gfid: parent },
        NamespaceOp::GetXattr { gfid: parent, name: b"user.a".to_vec() },
        create(b"new", FileKind::Regular, None),
        create(b"below", FileKind::Directory, None),
        set_xattr(ACL_ACCESS, &acl()),
        NamespaceOp::SetAttr {
            gfid: parent,
            set: SetAttr { mode: Some(0o700), ..SetAttr::default() },
            sync: true,
        },
        unlink(b"file"),
        NamespaceOp::Rmdir { parent, name: b"dir".to_vec() },
        NamespaceOp::StatFs,
    ];
    for op in ops {
        let _ = namespace.execute(&CALLER, &|_| false, &op);
    }
    let _ = namespace.commit();
}

/// A restart of the service, and the requests that `front` holds one after the other.
fn serve(store: MemoryStore, grace: bool, mut front: &[u8]) -> Result<(), StoreError> {
    let mut service = Service::open(store, ServiceConfig::default(), NOW)?;
    service.bind_cluster(ClusterId::new(5))?;
    service.sessions_changed(Duration::ZERO, NOW, view(&[LIVE]))?;
    let mut now = Duration::ZERO;
    if !grace {
        now = LATER;
        service.tick(now)?;
    }
    let mut token = 0;
    while let Ok((request, rest)) = postcard::take_from_bytes::<Request>(front) {
        (front, token) = (rest, token + 1);
        service.submit(now, token, request)?;
        service.finish_turn()?;
    }
    service.tick(now + LATER)?;
    service.sessions_changed(now + LATER, NOW, view(&[]))?;
    service.finish_turn()?;
    service.purge_next(None, 8)?;
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    RECORDS.with(|cell| {
        let records = cell.get_or_init(records);
        let mut batch: Batch =
            records.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        let mut input = Input::new(bytes);
        let mode = input.byte();
        for _ in 0..mode % 4 {
            let (key, value) = &records[usize::from(input.byte()) % records.len()];
            let (mut key, mut value) = (key.clone(), value.clone());
            let length = usize::from(input.byte());
            let mut edits = Input::new(input.bytes(length));
            // Every other time under a key of its own, beside the real one.
            let part = if length % 2 == 0 { &mut value } else { &mut key };
            edits.edit(part);
            batch.insert(key, Some(value));
        }
        let mut store = MemoryStore::default();
        store.commit(batch).expect("a store in memory works");
        if mode & 4 != 0 {
            // An error of the store ends the service: what matters is that it is one.
            let _ = serve(store, mode & 8 != 0, input.rest());
        } else if let Ok(mut namespace) = Namespace::open(store, NOW) {
            exercise(&mut namespace);
        }
    });
});
