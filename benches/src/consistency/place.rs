//! Where a server carries out a request: its fragments and its locks, shared by threads or one
//! core's own.
//!
//! Contract: what is done is the same everywhere; who may do it at the same time is the
//! [`Place`]'s.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use ec_store::cluster_lock::{
    Access, Ask, Grant, Holders, Lock, LockOwner, LockRange, LockTable, Refused, Reply, Waited,
};
use ec_store::fragment::{
    FragmentConfig, FragmentError, FragmentFile, FragmentKey, FragmentStore, Mark, ReadMode,
    sector_crcs,
};
use ec_store::medium::Dir;
use messenger::buffer::Pool;
use messenger::sync::{ContentionMutex, LockTable as ThreadLocks};
use messenger::{Connection, Message, ReplyTo};
use protocol::{ClusterId, CoreId, Gfid, ObjectId, PgId, PoolId, Profile, SessionId, ShardIndex};

use super::plan::ServiceTime;
use super::wire::{self, Request, What};
use crate::server::Debt;

/// Bytes of a file.
pub(super) const FILE_BYTES: u64 = 512 << 10;

/// 2+1, as the thesis has it; a file is one object.
pub(super) fn profile() -> Profile {
    const PROFILE: Result<Profile, protocol::ids::ProfileError> =
        Profile::new(2, 1, 512, FILE_BYTES);
    PROFILE.expect("a profile that exists")
}

/// Fragments of one server, or of one of its cores.
pub(super) struct Fragments {
    store: FragmentStore,
    shard: ShardIndex,
    /// The cores of a server never open the same file, so each has a placement group.
    pg: PgId,
}

impl Fragments {
    pub(super) fn open(
        dir: Dir,
        shard: ShardIndex,
        core: u16,
        locks: &ThreadLocks,
    ) -> Result<Fragments, FragmentError> {
        let cluster = ClusterId::new(1);
        let store =
            FragmentStore::open(dir, CoreId::new(core), cluster, FragmentConfig::default(), locks)?;
        Ok(Fragments { store, shard, pg: PgId { pool: PoolId::new(1), number: core.into() } })
    }

    fn file(&mut self, gfid: Gfid) -> Result<Arc<FragmentFile>, FragmentError> {
        let key =
            FragmentKey { pg: self.pg, object: ObjectId { gfid, index: 0 }, shard: self.shard };
        self.store.get_or_create(key, profile())
    }
}

/// A lock that is waited for: who is to be told.
type Waiter = (Connection, ReplyTo);

/// Locks, and the clients that may have some.
#[derive(Default)]
pub(super) struct Locks {
    table: LockTable<Waiter>,
    clients: HashMap<SessionId, Connection>,
}

/// Messages that an answer is made of.
#[derive(Default)]
struct Answers {
    replies: Vec<(Connection, ReplyTo, Message)>,
    notices: Vec<(Connection, Message)>,
}

impl Answers {
    fn send(self) {
        self.replies.into_iter().for_each(|(to, reply_to, message)| to.reply_to(reply_to, message));
        self.notices.into_iter().for_each(|(to, message)| to.send(message));
    }

    fn reply(&mut self, connection: &Connection, to: ReplyTo, is_granted: bool) {
        let reply = Reply { is_granted, is_contended: false };
        self.replies.push((connection.clone(), to, wire::lock_reply(reply)));
    }

    fn grant(&mut self, grants: Vec<Grant<Waiter>>) {
        for Grant { is_contended, token: (connection, to), .. } in grants {
            self.replies.push((
                connection,
                to,
                wire::lock_reply(Reply { is_granted: true, is_contended }),
            ));
        }
    }
}

impl Locks {
    fn ask(&mut self, connection: &Connection, to: ReplyTo, lock: Lock, ask: Ask) -> Answers {
        let mut answers = Answers::default();
        let holders = match ask {
            Ask::TryLock => match self.table.try_lock(lock) {
                Ok(()) => {
                    answers.reply(connection, to, true);
                    Holders::new()
                }
                Err(refused) => {
                    answers.reply(connection, to, false);
                    if let Refused::Taken(holders) = refused { holders } else { Holders::new() }
                }
            },
            Ask::Lock => match self.table.lock(lock, (connection.clone(), to)) {
                Waited::Granted((connection, to)) => {
                    answers.reply(&connection, to, true);
                    Holders::new()
                }
                Waited::Queued(holders) => holders,
                Waited::NoClient((connection, to)) => {
                    answers.reply(&connection, to, false);
                    Holders::new()
                }
            },
            Ask::Unlock => {
                let grants = self.table.unlock(lock);
                answers.reply(connection, to, grants.is_ok());
                answers.grant(grants.unwrap_or_default());
                Holders::new()
            }
        };
        for holder in holders {
            let told = self
                .clients
                .get(&holder.client)
                .map(|told| (told.clone(), wire::wanted(lock.file)));
            answers.notices.extend(told);
        }
        answers
    }

    fn leave(&mut self, client: SessionId) -> Answers {
        self.clients.remove(&client);
        let mut answers = Answers::default();
        answers.grant(self.table.leave(client));
        answers
    }
}

/// Where requests are carried out.
pub(super) trait Place {
    /// The fragment of a file, made if it does not exist.
    fn file(&self, gfid: Gfid) -> Result<Arc<FragmentFile>, FragmentError>;

    /// Something with the locks.
    fn with_locks<R>(&self, f: impl FnOnce(&mut Locks) -> R) -> R;
}

/// Of a server whose threads share everything.
pub(super) struct SharedPlace {
    fragments: ContentionMutex<Fragments>,
    locks: ContentionMutex<Locks>,
}

impl SharedPlace {
    pub(super) fn new(fragments: Fragments, table: &ThreadLocks) -> SharedPlace {
        SharedPlace {
            fragments: ContentionMutex::new(table, "files", fragments),
            locks: ContentionMutex::new(table, "cluster locks", Locks::default()),
        }
    }
}

impl Place for SharedPlace {
    fn file(&self, gfid: Gfid) -> Result<Arc<FragmentFile>, FragmentError> {
        self.fragments.lock().file(gfid)
    }

    fn with_locks<R>(&self, f: impl FnOnce(&mut Locks) -> R) -> R {
        f(&mut self.locks.lock())
    }
}

/// Of one core.
pub(super) struct CorePlace {
    fragments: RefCell<Fragments>,
    locks: RefCell<Locks>,
}

impl CorePlace {
    pub(super) fn new(fragments: Fragments) -> CorePlace {
        CorePlace { fragments: RefCell::new(fragments), locks: RefCell::default() }
    }
}

impl Place for CorePlace {
    fn file(&self, gfid: Gfid) -> Result<Arc<FragmentFile>, FragmentError> {
        self.fragments.borrow_mut().file(gfid)
    }

    fn with_locks<R>(&self, f: impl FnOnce(&mut Locks) -> R) -> R {
        f(&mut self.locks.borrow_mut())
    }
}

/// What a thread that carries out requests has of its own.
pub(super) struct Hands {
    pub(super) pool: Arc<Pool>,
    /// How long it sleeps besides, if it does.
    pub(super) service: Option<ServiceTime>,
    pub(super) debt: Debt,
}

/// A client has connected.
pub(super) fn join(place: &impl Place, client: SessionId, connection: Connection) {
    place.with_locks(|locks| {
        locks.clients.insert(client, connection);
        locks.table.join(client);
    });
}

/// A client is gone.
pub(super) fn leave(place: &impl Place, client: SessionId) {
    place.with_locks(|locks| locks.leave(client)).send();
}

/// Carries a request out and answers it.
pub(super) fn serve(
    place: &impl Place,
    hands: &Hands,
    client: SessionId,
    connection: &Connection,
    message: Message,
) {
    let Some(Request { gfid, what }) = Request::parse(&message) else { return };
    let to = message.reply_to();
    if let Some(service) = hands.service {
        let read = if let What::Read { bytes, .. } = what { u64::from(bytes) } else { 0 };
        hands.debt.pay(service.ns(message.data.len() as u64 + read));
    }
    match what {
        What::Read { offset, bytes } => {
            let data = read(place, hands, gfid, offset, bytes);
            connection.reply_to(to, wire::data_reply(data));
        }
        What::Write { offset } => {
            let written = write(place, gfid, offset, &message.data);
            connection.reply_to(to, wire::data_reply(written.then(Bytes::new)));
        }
        What::Lock { ask, access } => {
            let lock = whole_file(client, gfid, access);
            place.with_locks(|locks| locks.ask(connection, to, lock, ask)).send();
        }
        What::Greeting => connection.reply_to(to, wire::data_reply(Some(Bytes::new()))),
    }
}

fn whole_file(client: SessionId, file: Gfid, access: Access) -> Lock {
    Lock { owner: LockOwner { client, key: 0 }, file, range: LockRange::WHOLE, access }
}

/// `None` if it failed.
fn read(place: &impl Place, hands: &Hands, gfid: Gfid, offset: u64, bytes: u32) -> Option<Bytes> {
    let mut buffer = hands.pool.take(bytes as usize);
    let read =
        place.file(gfid).and_then(|file| file.read(offset, buffer.as_mut(), ReadMode::Blocking));
    read.map(|_| buffer.freeze()).inspect_err(|error| eprintln!("read: {error}")).ok()
}

fn write(place: &impl Place, gfid: Gfid, offset: u64, data: &[u8]) -> bool {
    let mut crcs = Vec::new();
    sector_crcs(data, &mut crcs);
    let written =
        place.file(gfid).and_then(|file| file.write(offset, data, &crcs, Mark::default()));
    written.inspect_err(|error| eprintln!("write: {error}")).is_ok()
}
