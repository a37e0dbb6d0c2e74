//! Which objects of a file a shard holds, and what they take on its disk: what lets a client do
//! work over what exists, where a file's size says nothing.
//!
//! Contract: every object that a session's acknowledged writes made, and no later record of this
//! shard removed, is told. The log is looked at before the directory: a record that is applied in
//! between has its fragment in the directory by then. The directory is read on an I/O thread, and
//! no more is kept of it than one reply takes.

use super::reading::{SETTLE_BYTES, answer, space_to_come};
use super::{Core, Malformed, Outlet, State, read_front};
use crate::fragment::FragmentError;
use bytes::Bytes;
use messenger::Message;
use protocol::shard::{OBJECTS_LISTED_MAX, ObjectsReply, Status};
use protocol::{Kind, ObjectId, ShardIndex};
use std::collections::{BTreeMap, BTreeSet};

/// Names in a PG's directory, as they are found.
type Entry = Result<(ObjectId, ShardIndex), FragmentError>;

impl<O: Outlet> Core<O> {
    pub(super) fn on_objects(&self, outlet: &O, message: &Message) -> Result<(), Malformed> {
        let request = read_front(message)?;
        let (pg, first) = (request.head.pg(), ObjectId::from(request.object));
        let (to, is_measured) = (message.reply_to(), request.length.get() > 0);
        let asked = {
            let mut state = self.shared.state.borrow_mut();
            let State { store, shards, .. } = &mut *state;
            let held = shards.get_mut(&pg).ok_or(Status::NotActive);
            let known = held.and_then(|held| {
                held.shard.check_read(&request)?;
                if is_measured {
                    let waiting = held.shard.unapplied(first);
                    // What cannot be applied now is told as it is.
                    let _ = held.shard.settle(store, &waiting, SETTLE_BYTES);
                }
                let known = held.shard.existence_over(first);
                let mut to_come = BTreeMap::new();
                for object in held.shard.unapplied(first).into_iter().filter(|_| is_measured) {
                    let key = store.key(pg, object).ok_or(Status::Io)?;
                    to_come.insert(object.index, space_to_come(&mut held.shard, store, key));
                }
                Ok((held.shard.view().me, known, to_come))
            });
            known.and_then(|(me, known, to_come)| {
                let entries = store.fragments.list(pg).map_err(|_| Status::Io)?;
                let sizes = store.fragments.sizes_of(pg);
                Ok((me, known, to_come, entries, sizes))
            })
        };
        let (me, known, to_come, entries, sizes) = match asked {
            Ok(asked) => asked,
            Err(status) => {
                outlet.reply_to(to, reply(&refused(status)));
                return Ok(());
            }
        };
        let (worker, outlet) = (self.shared.worker.clone(), outlet.clone());
        self.shared.worker.spawn(async move {
            let listed = worker
                .blocking(move || {
                    let mut told = page(entries, me, first, &known.into_iter().collect())?;
                    if is_measured {
                        let taken = |index: &u32| {
                            let size = sizes(ObjectId { index: *index, ..first }, me);
                            size.saturating_add_signed(to_come.get(index).copied().unwrap_or(0))
                        };
                        told.taken = told.indexes.iter().map(taken).collect();
                    }
                    Ok(told)
                })
                .await;
            let told = listed.unwrap_or(Err(Status::Io));
            outlet.reply_to(to, reply(&told.unwrap_or_else(refused)));
        });
        Ok(())
    }
}

fn refused(status: Status) -> ObjectsReply {
    ObjectsReply { status, indexes: Vec::new(), taken: Vec::new(), more: false }
}

fn reply(told: &ObjectsReply) -> Message {
    answer(Kind::ObjectsReply, protocol::encode(told), Bytes::new())
}

/// The least indexes of a file's objects from `first` on: those in the directory, but for what the
/// log `knows` better.
fn page(
    entries: impl Iterator<Item = Entry>,
    me: ShardIndex,
    first: ObjectId,
    known: &BTreeMap<u32, bool>,
) -> Result<ObjectsReply, Status> {
    let mut found: BTreeSet<u32> = BTreeSet::new();
    let mut add = |index| {
        found.insert(index);
        if found.len() > OBJECTS_LISTED_MAX + 1 {
            found.pop_last();
        }
    };
    known.iter().filter(|(_, exists)| **exists).for_each(|(index, _)| add(*index));
    for entry in entries {
        let (object, shard) = entry.map_err(|_| Status::Io)?;
        let is_asked_for = shard == me && object.gfid == first.gfid && object.index >= first.index;
        if is_asked_for && known.get(&object.index) != Some(&false) {
            add(object.index);
        }
    }
    let more = found.len() > OBJECTS_LISTED_MAX;
    Ok(ObjectsReply {
        status: Status::Ok,
        indexes: found.into_iter().take(OBJECTS_LISTED_MAX).collect(),
        taken: Vec::new(),
        more,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Gfid;

    fn entry(file: u64, index: u32, shard: u8) -> Entry {
        Ok((ObjectId { gfid: Gfid::of_inode(file), index }, ShardIndex::new(shard)))
    }

    fn listed(entries: Vec<Entry>, first: u32, known: &[(u32, bool)]) -> ObjectsReply {
        let first = ObjectId { gfid: Gfid::of_inode(7), index: first };
        page(entries.into_iter(), ShardIndex::new(1), first, &known.iter().copied().collect())
            .expect("listed")
    }

    #[test]
    fn directory_and_log_together_tell_what_exists() {
        let entries = vec![
            entry(7, 30, 1),
            entry(8, 31, 1),
            entry(7, 20, 1),
            entry(7, 40, 2),
            entry(7, 5, 1),
        ];
        let told = listed(entries, 6, &[(30, false), (25, true), (20, true), (u32::MAX, true)]);
        assert_eq!((told.indexes, told.more), (vec![20, 25, u32::MAX], false));
    }

    #[test]
    fn a_reply_has_the_least_and_says_that_there_are_more() {
        let all = OBJECTS_LISTED_MAX as u32 + 1;
        let told = listed((0..all).rev().map(|index| entry(7, index, 1)).collect(), 0, &[]);
        assert_eq!((told.indexes.len(), told.indexes[0], told.more), (OBJECTS_LISTED_MAX, 0, true));
        let told = listed((1..all).map(|index| entry(7, index, 1)).collect(), 0, &[]);
        assert!(!told.more, "exactly one reply");
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_told() {
        let broken =
            || FragmentError::Store { path: "pg".into(), source: std::io::Error::other("broken") };
        let first = ObjectId { gfid: Gfid::of_inode(7), index: 0 };
        let told = page([Err(broken())].into_iter(), ShardIndex::new(1), first, &BTreeMap::new());
        assert_eq!(told, Err(Status::Io));
    }
}
