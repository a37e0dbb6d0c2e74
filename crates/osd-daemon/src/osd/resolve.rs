//! The monitor's questions about dead sessions, put to the cores that own the PGs.
//!
//! Contract: every core is asked at once, and its answer counts whether or not others can answer.
//! PGs that are not answered for are asked about again by the monitor.

use super::shared::Shared;
use super::side::Side;
use bytes::Bytes;
use messenger::{Connection, Message, ReplyTo, Worker};
use protocol::monitor::{ResolveReply, ResolveRequest};
use protocol::{Kind, PgId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Takes a question as it arrived, on any worker.
pub(super) fn on_question(
    worker: &Worker,
    shared: &Arc<Shared>,
    connection: &Connection,
    message: &Message,
) {
    match protocol::decode("question about a dead session", &message.front) {
        Ok(request) => answer(worker, shared, connection.clone(), message.reply_to(), request),
        Err(error) => tracing::error!(%error, "question dropped"),
    }
}

/// Answers when all cores have.
fn answer(
    worker: &Worker,
    shared: &Arc<Shared>,
    connection: Connection,
    reply_to: ReplyTo,
    request: ResolveRequest,
) {
    let parts = split(request, shared.config.osd_op_threads);
    let ask = |(core, part): (u16, ResolveRequest)| {
        let work = move |worker: Worker| async move { ask_core(&worker, part).await };
        shared.handle.run_on(usize::from(core), work)
    };
    let answers: Vec<_> = parts.into_iter().map(ask).collect();
    worker.spawn(async move {
        let mut merged = ResolveReply::NotYet;
        for answer in answers {
            merged = merge(merged, answer.await.unwrap_or(ResolveReply::NotYet));
        }
        let front = protocol::encode(&merged);
        connection.reply_to(
            reply_to,
            Message::new(reply_to.class, Kind::ResolveReply.to_u16(), front, Bytes::new()),
        );
    });
}

async fn ask_core(worker: &Worker, request: ResolveRequest) -> ResolveReply {
    let Some(side) = worker.local::<Side>() else { return ResolveReply::NotYet };
    let answered = match request {
        ResolveRequest::Collect { session, pgs } => {
            side.core.collect(session, &pgs).await.map(|held| held.map(ResolveReply::Collected))
        }
        ResolveRequest::Decide { session, cuts } => {
            side.core.decide(session, &cuts).await.map(|pgs| Some(ResolveReply::Decided(pgs)))
        }
    };
    match answered {
        Ok(answer) => answer.unwrap_or(ResolveReply::NotYet),
        Err(error) => {
            tracing::warn!(core = %side.core.id(), %error, "a question about a dead session cannot be answered");
            ResolveReply::NotYet
        }
    }
}

/// The part of a question for each core.
fn split(request: ResolveRequest, cores: u16) -> BTreeMap<u16, ResolveRequest> {
    fn by_core<T>(items: Vec<T>, cores: u16, pg: impl Fn(&T) -> PgId) -> BTreeMap<u16, Vec<T>> {
        let mut parts: BTreeMap<u16, Vec<T>> = BTreeMap::new();
        for item in items {
            parts.entry(pg(&item).core(cores).get()).or_default().push(item);
        }
        parts
    }
    match request {
        ResolveRequest::Collect { session, pgs } => by_core(pgs, cores, |(pg, _)| *pg)
            .into_iter()
            .map(|(core, pgs)| (core, ResolveRequest::Collect { session, pgs }))
            .collect(),
        ResolveRequest::Decide { session, cuts } => by_core(cuts, cores, |(pg, ..)| *pg)
            .into_iter()
            .map(|(core, cuts)| (core, ResolveRequest::Decide { session, cuts }))
            .collect(),
    }
}

fn merge(a: ResolveReply, b: ResolveReply) -> ResolveReply {
    match (a, b) {
        (ResolveReply::Collected(mut a), ResolveReply::Collected(b)) => {
            a.extend(b);
            ResolveReply::Collected(a)
        }
        (ResolveReply::Decided(mut a), ResolveReply::Decided(b)) => {
            a.extend(b);
            ResolveReply::Decided(a)
        }
        (ResolveReply::NotYet, other) | (other, _) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Epoch, PoolId, Seq, SessionId};

    fn pg(number: u32) -> PgId {
        PgId { pool: PoolId::new(1), number }
    }

    #[test]
    fn every_pg_goes_to_its_core_and_back() {
        let session = SessionId::new(3);
        let cuts: Vec<_> = (0..5).map(|n| (pg(n), Epoch::new(1), Seq::new(2))).collect();
        let parts = split(ResolveRequest::Decide { session, cuts }, 2);
        assert_eq!(parts.keys().copied().collect::<Vec<_>>(), [0, 1]);
        let mut merged = ResolveReply::NotYet;
        for (core, part) in parts {
            let ResolveRequest::Decide { cuts, .. } = part else { panic!("a decision stays one") };
            assert!(cuts.iter().all(|(pg, ..)| pg.core(2).get() == core));
            merged =
                merge(merged, ResolveReply::Decided(cuts.iter().map(|(pg, ..)| *pg).collect()));
            merged = merge(merged, ResolveReply::NotYet);
        }
        let ResolveReply::Decided(mut pgs) = merged else { panic!("{merged:?}") };
        pgs.sort();
        assert_eq!(pgs, (0..5).map(pg).collect::<Vec<_>>());
    }
}
