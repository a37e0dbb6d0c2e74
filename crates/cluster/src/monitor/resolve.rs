//! The coordinator of dead sessions: asks every in-sync member what it holds, chooses the cut, has
//! it decided.
//!
//! Contract: pure; questions come out, answers (or their failure) go in, each by the number of its
//! question. Nothing here is durable: a monitor that restarts asks again, and members answer a
//! decision that they know with its cut.
//!
//! Rules of the model that live here, per PG: only in-sync members of an active PG take part
//! (RecoverIss), and all of them (RecoverAll); everything starts over when the PG changes its
//! epoch; a record is kept only if every in-sync shard it touches has it (RecoverTouch); a number
//! that nobody knows ends the prefix (RecoverGap); the PG is resolved when all members have
//! acknowledged the decision (DecideAll). The session is resolved when all its PGs are.

use crate::map::{ClusterMap, Pg};
use protocol::monitor::{ResolveReply, ResolveRequest, SessionHolding};
use protocol::{Epoch, OsdId, PgId, Rule, Rules, Seq, SessionId, ShardIndex, ShardSet};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A member that did not answer, or not yet, is asked again after this time: soon enough for a
/// client that waits for a lease, seldom enough for a member that is busy peering.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A question of the coordinator to an OSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its number: the answer names it, and an answer to a question that no longer stands is
    /// ignored.
    pub ticket: u64,
    /// Whom to ask.
    pub osd: OsdId,
    /// What.
    pub request: ResolveRequest,
}

/// All dead sessions on their way out.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    dead: BTreeMap<SessionId, Dead>,
    last_ticket: u64,
    rules: Rules,
}

/// One dead session.
#[derive(Debug, Default)]
struct Dead {
    resolved: BTreeSet<PgId>,
    progress: BTreeMap<PgId, Progress>,
    asking: BTreeMap<OsdId, Action>,
    not_before: BTreeMap<OsdId, Duration>,
}

/// Of one PG in one epoch (model: `report`, `cut`, `told`).
#[derive(Debug, Default)]
struct Progress {
    reports: BTreeMap<ShardIndex, SessionHolding>,
    cut: Option<Seq>,
    told: ShardSet,
}

impl Resolver {
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// A session is dead from now on.
    pub fn begin(&mut self, session: SessionId) {
        self.dead.entry(session).or_default();
    }

    /// The PG has a new epoch: what is not resolved starts over.
    pub fn epoch_changed(&mut self, pg: PgId) {
        self.dead.values_mut().for_each(|dead| {
            dead.progress.remove(&pg);
        });
    }

    /// The OSD has another process now, or none: nothing asked of the old one is answered.
    pub fn forget_osd(&mut self, osd: OsdId) {
        self.dead.values_mut().for_each(|dead| {
            dead.asking.remove(&osd);
            dead.not_before.remove(&osd);
        });
    }

    /// Takes out the sessions that are resolved in every PG.
    pub fn take_resolved(&mut self, map: &ClusterMap) -> Vec<SessionId> {
        let whole = |dead: &Dead| map.pgs.keys().all(|pg| dead.resolved.contains(pg));
        let done: Vec<SessionId> =
            self.dead.iter().filter(|(_, dead)| whole(dead)).map(|(id, _)| *id).collect();
        self.dead.retain(|id, _| !done.contains(id));
        done
    }

    /// The questions to ask now; each OSD has at most one per session under way.
    pub fn questions(&mut self, map: &ClusterMap, now: Duration) -> Vec<Action> {
        let mut out = Vec::new();
        for (&session, dead) in &mut self.dead {
            for (osd, request) in dead.open_questions(self.rules, session, map) {
                let waits = dead.not_before.get(&osd).is_some_and(|at| now < *at);
                if dead.asking.contains_key(&osd)
                    || waits
                    || !map.osds.get(&osd).is_some_and(|o| o.up)
                {
                    continue;
                }
                self.last_ticket += 1;
                let action = Action { ticket: self.last_ticket, osd, request };
                dead.asking.insert(osd, action.clone());
                out.push(action);
            }
        }
        out
    }

    /// An answer, or `None` if the member gave none in time.
    pub fn answer(
        &mut self,
        map: &ClusterMap,
        ticket: u64,
        reply: Option<ResolveReply>,
        now: Duration,
    ) {
        let of_ticket =
            |dead: &&mut Dead| dead.asking.values().any(|action| action.ticket == ticket);
        let Some(dead) = self.dead.values_mut().find(of_ticket) else { return };
        let Some(osd) =
            dead.asking.values().find(|action| action.ticket == ticket).map(|action| action.osd)
        else {
            return;
        };
        let Some(action) = dead.asking.remove(&osd) else { return };
        let whole = match (action.request, reply) {
            (ResolveRequest::Collect { pgs, .. }, Some(ResolveReply::Collected(holdings))) => {
                let whole = pgs.iter().all(|(pg, _)| holdings.iter().any(|h| h.pg == *pg));
                dead.collected(self.rules, map, osd, &pgs, holdings);
                whole
            }
            (ResolveRequest::Decide { cuts, .. }, Some(ResolveReply::Decided(pgs))) => {
                dead.decided(self.rules, map, osd, &cuts, &pgs);
                cuts.iter().all(|(pg, ..)| pgs.contains(pg))
            }
            _ => false,
        };
        if whole {
            dead.not_before.remove(&osd);
        } else {
            dead.not_before.insert(osd, now + RETRY_AFTER);
        }
    }
}

impl Dead {
    /// The PGs that can be worked on: active, and not resolved.
    fn open_pgs<'a>(
        &'a self,
        map: &'a ClusterMap,
    ) -> impl Iterator<Item = (PgId, &'a Pg, Option<&'a Progress>)> {
        let open = map.pgs.iter().filter(|(id, pg)| pg.active && !self.resolved.contains(id));
        open.map(|(id, pg)| (*id, pg, self.progress.get(id)))
    }

    /// For each OSD what it should be asked next: decisions first.
    fn open_questions(
        &self,
        rules: Rules,
        session: SessionId,
        map: &ClusterMap,
    ) -> BTreeMap<OsdId, ResolveRequest> {
        let mut collect: BTreeMap<OsdId, Vec<(PgId, Epoch)>> = BTreeMap::new();
        let mut decide: BTreeMap<OsdId, Vec<(PgId, Epoch, Seq)>> = BTreeMap::new();
        for (id, pg, progress) in self.open_pgs(map) {
            for shard in participants(rules, pg).iter() {
                let Some(osd) = map.osd_of(id, shard) else { continue };
                match progress.and_then(|p| p.cut.map(|cut| (p, cut))) {
                    Some((p, cut)) if !p.told.contains(shard) => {
                        decide.entry(osd).or_default().push((id, pg.epoch, cut));
                    }
                    None if progress.is_none_or(|p| !p.reports.contains_key(&shard)) => {
                        collect.entry(osd).or_default().push((id, pg.epoch));
                    }
                    _ => {}
                }
            }
        }
        let collect =
            collect.into_iter().map(|(osd, pgs)| (osd, ResolveRequest::Collect { session, pgs }));
        let decide =
            decide.into_iter().map(|(osd, cuts)| (osd, ResolveRequest::Decide { session, cuts }));
        collect.chain(decide).collect()
    }

    fn collected(
        &mut self,
        rules: Rules,
        map: &ClusterMap,
        osd: OsdId,
        asked: &[(PgId, Epoch)],
        holdings: Vec<SessionHolding>,
    ) {
        for holding in holdings {
            let id = holding.pg;
            let Some((pg, shard)) = current(rules, map, id, osd, asked.iter().copied()) else {
                continue;
            };
            let progress = self.progress.entry(id).or_default();
            if self.resolved.contains(&id) || progress.cut.is_some() {
                continue;
            }
            progress.reports.insert(shard, holding);
            progress.cut = choose_cut(rules, participants(rules, pg), &progress.reports);
        }
    }

    fn decided(
        &mut self,
        rules: Rules,
        map: &ClusterMap,
        osd: OsdId,
        asked: &[(PgId, Epoch, Seq)],
        pgs: &[PgId],
    ) {
        for &id in pgs {
            let epochs = asked.iter().map(|(pg, epoch, _)| (*pg, *epoch));
            let Some((pg, shard)) = current(rules, map, id, osd, epochs) else { continue };
            let Some(progress) = self.progress.get_mut(&id).filter(|p| p.cut.is_some()) else {
                continue;
            };
            progress.told = progress.told.with(shard);
            // Rule: DecideAll
            if pg.in_sync.minus(progress.told).is_empty() || !rules.on(Rule::DecideAll) {
                self.resolved.insert(id);
                self.progress.remove(&id);
            }
        }
    }
}

/// Those that take part in a decision. Rule: RecoverIss - in-sync members only.
fn participants(rules: Rules, pg: &Pg) -> ShardSet {
    if rules.on(Rule::RecoverIss) { pg.in_sync } else { pg.in_sync.union(pg.joining) }
}

/// The PG and the OSD's shard, if the PG was asked about in its present epoch and the shard is a
/// member.
fn current(
    rules: Rules,
    map: &ClusterMap,
    id: PgId,
    osd: OsdId,
    mut asked: impl Iterator<Item = (PgId, Epoch)>,
) -> Option<(&Pg, ShardIndex)> {
    let pg = map.pgs.get(&id).filter(|pg| pg.active)?;
    let shard = map.shard_of(id, osd).filter(|shard| participants(rules, pg).contains(*shard))?;
    asked.any(|asked| asked == (id, pg.epoch)).then_some((pg, shard))
}

/// The longest prefix that every participant a record touches has; none before all have reported.
pub(super) fn choose_cut(
    rules: Rules,
    members: ShardSet,
    reports: &BTreeMap<ShardIndex, SessionHolding>,
) -> Option<Seq> {
    let there =
        members.iter().filter(|shard| reports.contains_key(shard) || rules.on(Rule::RecoverAll));
    let reports: Option<Vec<(ShardIndex, &SessionHolding)>> =
        there.map(|shard| Some((shard, reports.get(&shard)?))).collect();
    let reports = reports?; // Rule: RecoverAll
    let held: Vec<(ShardIndex, Seq, BTreeMap<Seq, ShardSet>)> = reports
        .iter()
        .map(|(shard, r)| (*shard, r.settled, r.held.iter().copied().collect()))
        .collect();
    let mut cut = reports.iter().map(|(_, report)| report.settled).max()?;
    let mut next = cut;
    loop {
        next = Seq::new(next.get().checked_add(1)?);
        // Rule: RecoverGap: nobody knows the number
        let Some(touch) = held.iter().find_map(|(_, _, records)| records.get(&next)) else {
            let more = || held.iter().any(|(_, _, records)| records.keys().any(|seq| *seq > next));
            if !rules.on(Rule::RecoverGap) && more() {
                continue;
            }
            return Some(cut);
        };
        let has = |(_, settled, records): &&(ShardIndex, Seq, BTreeMap<Seq, ShardSet>)| {
            *settled >= next || records.contains_key(&next)
        };
        let touched = held.iter().filter(|(shard, ..)| touch.contains(*shard));
        if rules.on(Rule::RecoverTouch) && !touched.clone().all(|member| has(&member)) {
            return Some(cut); // Rule: RecoverTouch
        }
        cut = next;
    }
}
