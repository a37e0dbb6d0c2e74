//! The namespace: inodes, directories, extended attributes and leases over an ordered transactional
//! key-value store.
//!
//! * [`store`]: the seam to the key-value store, with an embedded backend (`fjall`) and one in
//!   memory.
//! * [`namespace`]: what the operations of [`protocol::namespace`] do to the tree; pure over that
//!   seam.
//! * [`acl`]: POSIX access control lists, and how they go together with modes; pure.
//! * [`lease`]: who may cache or write a file, as a state machine with time passed in.
//! * [`locks`]: byte-range locks over all mounts, likewise.
//! * [`service`]: the two together with sessions, exactly-once answers and the grace period after a
//!   restart. Requests go in, events come out; whoever owns it carries bytes and calls
//!   [`service::Service::commit`] before it sends them.
//!
//! What it is not: it does no network I/O, reads no clock, starts no thread and touches no file
//! data. Permission checks are the kernel's (`default_permissions`), by modes and ACLs that are
//! kept here.
//!
//! Depends on `protocol` only. Start reading at [`service::Service::submit`], and for the records
//! on disk at [`namespace`]'s table of keys.
//!
//! ```
//! use metadata::{namespace::Namespace, store::MemoryStore};
//! use protocol::{Gfid, namespace::{Caller, NamespaceOp, Reply, Timestamp}};
//!
//! let now = Timestamp { secs: 1, nanos: 0 };
//! let mut namespace = Namespace::open(MemoryStore::default(), now)?;
//! let caller = Caller { uid: 0, gid: 0, now };
//! let op = NamespaceOp::Lookup { parent: Gfid::ROOT, name: b"missing".to_vec() };
//! assert_eq!(namespace.execute(&caller, &|_| false, &op)?, Reply::Errno(2));
//! # Ok::<(), metadata::store::StoreError>(())
//! ```
#![forbid(unsafe_code)]

pub mod acl;
pub mod lease;
pub mod locks;
pub mod namespace;
pub mod service;
pub mod store;

pub use namespace::{Namespace, PurgeEntry, SizeRecovery};
pub use service::{Event, Service, ServiceConfig, SessionView};
pub use store::{EmbeddedStore, MemoryStore, Store, StoreConfig, StoreError};
