//! What clients and other OSDs ask, handed to the core that owns the PG.
//!
//! Contract: messages of one connection reach a core in the order in which they arrived, whichever
//! workers read them: at once if the worker that read one is the PG's and none is on its way, else
//! as a function sent to that worker. A core then serves them by their traffic class, which follows
//! from the kind ([`crate::traffic`]). What no correct peer sends closes its connection, with a
//! count and a line in the log; all others go on.

use super::cut;
use super::scrub;
use super::shared::Shared;
use super::side::Side;
use crate::traffic::{Sender, class_of};
use bytes::Bytes;
use messenger::{Connection, Message, Service, TrafficClass, Worker};
use protocol::monitor::PathCut;
use protocol::recovery::RecoveryRequest;
use protocol::shard::ShardHead;
use protocol::{Kind, PgId};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::FromBytes;

/// Shards of a PG: what a set of them has bits for.
const SHARDS_MAX: u8 = 16;

/// The service of one worker, whose core, if it is one, is open.
pub(super) fn make(shared: &Arc<Shared>, worker: &Worker) -> Rc<dyn Service> {
    Rc::new(Dispatch { shared: Arc::clone(shared), side: worker.local::<Side>() })
}

struct Dispatch {
    shared: Arc<Shared>,
    /// The core of this worker, unless it only serves sockets.
    side: Option<Rc<Side>>,
}

impl Service for Dispatch {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        if message.kind == Kind::Admin.to_u16() && message.is_request() {
            return self.shared.live.serve(&*self.shared, connection, &message);
        }
        if self.shared.config.path_cut == PathCut::Msgr && message.kind != Kind::OsdStatus.to_u16()
        {
            let answered = cut::answer(connection, &message);
            return answered
                .unwrap_or_else(|| refuse(&self.shared, connection, message.kind, "malformed"));
        }
        let kind = Kind::from_u16(message.kind);
        let Some(class) = kind.and_then(|kind| class_of(kind, Sender::Anyone)) else {
            return refuse(&self.shared, connection, message.kind, "not for an osd");
        };
        let pg = match kind {
            Some(
                Kind::Attach
                | Kind::Write
                | Kind::Mark
                | Kind::Read
                | Kind::Stat
                | Kind::Extents
                | Kind::Objects
                | Kind::Space
                | Kind::Reserve,
            ) => ShardHead::read_from_prefix(&message.front).ok().map(|(head, _)| head.pg()),
            Some(Kind::Recovery) if message.is_request() => {
                let request =
                    protocol::decode::<RecoveryRequest>("recovery request", &message.front).ok();
                request.filter(|request| request.from.get() < SHARDS_MAX).map(|request| request.pg)
            }
            Some(Kind::OsdStatus) if message.is_request() => {
                let report = protocol::encode(&self.shared.report());
                return connection.reply(
                    &message,
                    Kind::OsdStatusReply.to_u16(),
                    report,
                    Bytes::new(),
                );
            }
            _ if messenger::telemetry::answer(worker, connection, &message) => return,
            Some(Kind::Scrub) if message.is_request() => {
                match protocol::decode("scrub request", &message.front) {
                    Ok(request) => {
                        return scrub::answer(worker, &self.shared, connection, &message, request);
                    }
                    Err(_) => None,
                }
            }
            _ => return refuse(&self.shared, connection, message.kind, "not for an osd"),
        };
        match pg {
            Some(pg) => self.hand_over(worker, connection, pg, class, message),
            None => refuse(&self.shared, connection, message.kind, "malformed"),
        }
    }
}

impl Dispatch {
    fn hand_over(
        &self,
        worker: &Worker,
        connection: &Connection,
        pg: PgId,
        class: TrafficClass,
        message: Message,
    ) {
        let owner = usize::from(pg.core(self.shared.config.osd_op_threads).get());
        if owner == worker.index() && connection.is_caught_up() {
            return take(self.side.as_deref(), &self.shared, connection, class, message);
        }
        let (shared, to) = (Arc::clone(&self.shared), connection.clone());
        connection.hand_over(worker, owner, move |worker| {
            take(worker.local::<Side>().as_deref(), &shared, &to, class, message);
        });
    }
}

/// Lets the core of this worker take a message.
fn take(
    side: Option<&Side>,
    shared: &Shared,
    connection: &Connection,
    class: TrafficClass,
    message: Message,
) {
    // a core that has stopped would take it and never answer
    let Some(side) = side.filter(|_| !shared.is_stopping()) else { return connection.close() };
    let kind = message.kind;
    if side.core.handle(connection, class, message).is_err() {
        refuse(shared, connection, kind, "malformed");
    }
}

fn refuse(shared: &Shared, connection: &Connection, kind: u16, why: &str) {
    shared.malformed.fetch_add(1, Ordering::Relaxed);
    tracing::warn!(osd = %shared.config.id, peer = %connection.peer(), kind, why, "message refused: connection closed");
    connection.close();
}
