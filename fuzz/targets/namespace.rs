//! Edited records of the metadata store: opening, asking and changing end in an answer or an error, never in a panic.
#![no_main]

use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use metadata::store::Batch;
use metadata::{MemoryStore, Namespace, Store};
use protocol::namespace::{Caller, FileKind, NamespaceOp, SetAttr, Timestamp};
use protocol::{Gfid, PoolId};
use std::ops::ControlFlow;

const NOW: Timestamp = Timestamp { secs: 7, nanos: 1 };

fn create(name: &[u8], kind: FileKind) -> NamespaceOp {
    let target = if kind == FileKind::Symlink { b"where".to_vec() } else { Vec::new() };
    let (parent, pool) = (Gfid::ROOT, PoolId::new(3));
    NamespaceOp::Create { parent, name: name.to_vec(), kind, mode: 0o640, rdev: 0, target, pool, open: None }
}

/// Asks and changes what a client could; answers do not matter, panics do.
fn exercise(namespace: &mut Namespace<MemoryStore>) {
    let caller = Caller { uid: 1, gid: 1, now: NOW };
    let _ = namespace.verify();
    let _ = namespace.retained();
    let _ = namespace.orphans();
    let _ = namespace.purge_next(8);
    let _ = namespace.size_recovery_next(8);
    let parent = Gfid::ROOT;
    let ops = [
        NamespaceOp::Lookup { parent, name: b"file".to_vec() },
        NamespaceOp::ReadDir { gfid: parent, after: Vec::new(), limit: 16 },
        create(b"new", FileKind::Regular),
        NamespaceOp::SetAttr { gfid: parent, set: SetAttr { mode: Some(0o700), ..SetAttr::default() } },
        NamespaceOp::Unlink { parent, name: b"file".to_vec() },
        NamespaceOp::Rmdir { parent, name: b"dir".to_vec() },
        NamespaceOp::StatFs,
    ];
    for op in ops {
        let _ = namespace.execute(&caller, &|_| false, &op);
    }
    let _ = namespace.commit();
}

fuzz_target!(|bytes: &[u8]| {
    let mut store = MemoryStore::default();
    {
        let mut namespace = Namespace::open(store.clone(), NOW).expect("an empty store");
        let caller = Caller { uid: 1, gid: 1, now: NOW };
        let files = [(&b"file"[..], FileKind::Regular), (b"dir", FileKind::Directory), (b"link", FileKind::Symlink)];
        for (name, kind) in files {
            namespace.execute(&caller, &|_| false, &create(name, kind)).expect("a store in memory works");
        }
        namespace.commit().expect("a store in memory works");
    }
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let visited = store.scan(&[], &[u8::MAX], &mut |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    visited.expect("a store in memory works");
    let mut input = Input::new(bytes);
    let mut batch = Batch::new();
    for _ in 0..=input.byte() % 3 {
        let (key, value) = &pairs[usize::from(input.byte()) % pairs.len()];
        let (mut key, mut value) = (key.clone(), value.clone());
        let length = usize::from(input.byte());
        let mut edits = Input::new(input.bytes(length));
        // Every other time under a key of its own, beside the real one.
        let part = if length % 2 == 0 { &mut value } else { &mut key };
        edits.edit(part);
        batch.insert(key, Some(value));
    }
    store.commit(batch).expect("a store in memory works");
    if let Ok(mut namespace) = Namespace::open(store, NOW) {
        exercise(&mut namespace);
    }
});
