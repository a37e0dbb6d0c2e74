//! Whether a range of a fragment has space on the disk, and taking it.
//!
//! Contract: nothing that gives space back waits to be applied to the file, and nothing is applied
//! to it between the question and the answer. Space is taken only from what the disk has beside
//! what it has promised: see [`crate::space`]. A reservation is in no record; the object must be
//! made by one before, or shards that were away would not know of it.

use super::reading::answer;
use super::{Core, Malformed, Outlet, State, read_front};
use crate::fragment::{FragmentError, FragmentFile, space_of_range};
use crate::pg::shard::StoreError;
use bytes::Bytes;
use messenger::{Message, ReplyTo};
use protocol::shard::{ReadRequest, SpaceReply, Status};
use protocol::{Kind, ObjectId, PgId};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What is told of a range.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    missing: u64,
    free: u64,
    reserves: bool,
}

/// A range of a fragment that nothing is applied to.
struct Asked {
    pg: PgId,
    object: ObjectId,
    range: Range<u64>,
    /// `None`: the fragment is not there.
    file: Option<Arc<FragmentFile>>,
}

impl<O: Outlet> Core<O> {
    pub(super) fn on_space(
        &self,
        outlet: &O,
        message: &Message,
        kind: Kind,
    ) -> Result<(), Malformed> {
        let request = read_front(message)?;
        let (to, attach, pg) = (message.reply_to(), request.head.attach().get(), request.head.pg());
        let asked = {
            let mut state = self.shared.state.borrow_mut();
            self.look_up_space(&mut state);
            let asked = ask(&mut state, &request, kind == Kind::Reserve);
            state.count_queued(pg);
            state.touched.push(pg);
            asked
        };
        self.schedule_turn();
        match asked {
            Err(status) => reply(outlet, to, attach, Err((status, Told::default()))),
            Ok(asked) => {
                let (core, outlet) = (self.clone(), outlet.clone());
                self.shared.worker.spawn(async move {
                    let told = core.space_of(&asked, kind == Kind::Reserve).await;
                    Self::unpin(&mut core.shared.state.borrow_mut(), asked.pg, asked.object);
                    reply(&outlet, to, attach, told);
                });
            }
        }
        Ok(())
    }

    /// Looks at the range, and takes what is missing if it is to. An error comes with what was
    /// seen.
    async fn space_of(&self, asked: &Asked, takes: bool) -> Result<Told, (Status, Told)> {
        let ratios = self.shared.ratios.get();
        let free = self.shared.state.borrow().store.space.free(ratios);
        let nothing = Told { missing: 0, free, reserves: false };
        let Some(file) = asked.file.clone() else {
            return Ok(Told { missing: space_of_range(&asked.range), free, reserves: true });
        };
        let status = |error: &FragmentError| match error {
            error if error.is_full() => Status::NoSpace,
            FragmentError::BadRange { .. } => Status::Invalid,
            _ => Status::Io,
        };
        let (range, looked_at) = (asked.range.clone(), Arc::clone(&file));
        let missing = self.shared.worker.blocking(move || looked_at.missing(range)).await;
        let missing = match missing {
            Ok(Ok(Some(missing))) => missing,
            Ok(Ok(None)) => return Ok(nothing),
            Ok(Err(error)) => return Err((status(&error), nothing)),
            Err(_) => return Err((Status::Io, nothing)),
        };
        let told = Told { missing, free, reserves: true };
        if !takes || missing == 0 {
            return Ok(told);
        }
        if !self.shared.state.borrow().store.space.take(missing, ratios) {
            return Err((Status::NoSpace, told));
        }
        let range = asked.range.clone();
        match self.shared.worker.blocking(move || file.reserve(range)).await {
            Ok(Ok(reserves)) => Ok(Told { reserves, ..told }),
            Ok(Err(error)) => {
                tracing::warn!(%error, "space cannot be reserved");
                Err((status(&error), told))
            }
            Err(_) => Err((Status::Io, told)),
        }
    }
}

/// Pins the object, if the request may be answered; `makes`: its fragment is made if it is missing.
fn ask<O>(state: &mut State<O>, request: &ReadRequest, makes: bool) -> Result<Asked, Status> {
    let State { store, shards, trim_wanted, .. } = state;
    if store.poison().is_some() {
        return Err(Status::Io);
    }
    let (pg, object) = (request.head.pg(), ObjectId::from(request.object));
    let held = shards.get_mut(&pg).ok_or(Status::NotActive)?;
    held.shard.check_read(request)?;
    let (start, length) = (request.offset.get(), u64::from(request.length.get()));
    let end = start.checked_add(length).ok_or(Status::Invalid)?;
    if end > held.shard.view().pg.profile.fragment_bytes() {
        return Err(Status::Invalid);
    }
    let key = store.key(pg, object).ok_or(Status::Io)?;
    let is_applied = held.shard.pin_space(store, object).map_err(|error: StoreError| {
        tracing::warn!(%pg, %error, "records cannot be applied before space is reserved");
        error.status()
    })?;
    if !is_applied {
        // A removal may wait until records of what it removes are out of the journal.
        *trim_wanted = true;
        return Err(Status::Busy);
    }
    let profile = held.shard.view().pg.profile;
    let file = match makes && !store.is_cut() {
        true => store.fragments.get_or_create(key, profile).map(Some),
        false => store.fragments.get(key),
    };
    match file {
        Ok(file) => Ok(Asked { pg, object, range: start..end, file }),
        Err(error) => {
            held.shard.unpin(object);
            Err(match error {
                error if error.is_full() => Status::NoSpace,
                error if error.is_erasure() => Status::Corrupt,
                _ => Status::Io,
            })
        }
    }
}

fn reply<O: Outlet>(outlet: &O, to: ReplyTo, attach: u64, told: Result<Told, (Status, Told)>) {
    let (status, told) = told.map_or_else(|refused| refused, |told| (Status::Ok, told));
    let reply = SpaceReply {
        attach: attach.into(),
        missing: told.missing.into(),
        free: told.free.into(),
        status: status as u8,
        flags: if told.reserves { SpaceReply::RESERVES } else { 0 },
    };
    let front = Bytes::copy_from_slice(reply.as_bytes());
    outlet.reply_to(to, answer(Kind::SpaceReply, front, Bytes::new()));
}
