//! What is scrubbed when, what was found, and what operators ask of it.
//!
//! Contract: one [`Board`] for all cores of an OSD, so that it leads one scrub at a time. What was
//! asked for goes first, then PGs with findings from before a restart, then those whose interval is
//! over, the oldest first. Scheduled scrubs wait for their PG to be clean. Times and findings are
//! kept in the file [`FILE`] of the data directory, written after every scrub; without it, or when
//! it is damaged, intervals begin anew and findings are found again.
//!
//! The file: CRC32C of the rest (4 bytes, little-endian), then [`Saved`] in postcard.

use super::shared::Shared;
use super::side::Side;
use bytes::Bytes;
use cluster::ClusterMap;
use ec_store::core::scrub::{Finding, Scrubbed};
use messenger::{Connection, Message, ReplyTo, TrafficClass, Worker};
use protocol::scrub::{
    FINDINGS_REPORTED_MAX, PgScrub, ScrubFinding, ScrubReply, ScrubReport, ScrubRequest,
    ScrubStatus, ScrubTotals,
};
use protocol::{Kind, ObjectId, OsdId, PgId, ShardIndex};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Its name in the data directory.
pub(super) const FILE: &str = "scrub";
/// How often a core looks for something to scrub.
const POLL: Duration = Duration::from_millis(500);
/// Pause after a scrub that a new epoch ended.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Findings that are kept, at most: beyond, the first ones say enough.
const FINDINGS_MAX: usize = 16_384;

/// A PG of a core, as far as scrubs are concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lead {
    /// Another OSD leads.
    No,
    /// It leads, and not all shards are in sync.
    Degraded,
    /// It leads.
    Clean,
}

/// When a PG was scrubbed, and when its intervals began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    at: PgScrub,
    since_secs: u64,
}

impl Stamp {
    /// What a clock that was ahead has noted says nothing, and must not keep the PG from being
    /// scrubbed until then.
    fn forget_the_future(&mut self, now: u64) {
        self.since_secs = self.since_secs.min(now);
        for secs in [&mut self.at.light_secs, &mut self.at.deep_secs] {
            *secs = if *secs > now { 0 } else { *secs };
        }
    }
}

/// What outlives a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Saved {
    stamps: Vec<Stamp>,
    findings: Vec<ScrubFinding>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Board {
    file: Option<PathBuf>,
    /// PGs that an operator wants scrubbed; true: deep.
    requested: BTreeMap<PgId, bool>,
    /// PGs with findings from before the restart.
    recheck: BTreeSet<PgId>,
    running: Option<PgId>,
    /// The running one was asked for; true: deep. Who asks while it runs gets another one: it began
    /// before.
    serves: Option<bool>,
    stamps: BTreeMap<PgId, Stamp>,
    findings: BTreeMap<(PgId, ObjectId), ScrubFinding>,
    totals: ScrubTotals,
}

impl Board {
    /// Takes over what the file says, and keeps it from now on.
    pub fn load(&mut self, path: PathBuf) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        if let Some(saved) = decode(&bytes) {
            self.stamps = saved.stamps.into_iter().map(|stamp| (stamp.at.pg, stamp)).collect();
            self.recheck = saved.findings.iter().map(|finding| finding.pg).collect();
            self.findings = saved.findings.into_iter().map(|f| ((f.pg, f.object), f)).collect();
        } else if !bytes.is_empty() {
            tracing::warn!(path = %path.display(), "damaged: the intervals of scrubs begin anew");
        }
        self.file = Some(path);
    }

    /// An operator wants these scrubbed.
    pub fn request(&mut self, pgs: &[PgId], deep: bool) {
        for pg in pgs {
            *self.requested.entry(*pg).or_default() |= deep;
        }
    }

    /// The next PG to scrub among a core's, and whether deeply; it counts as running. None while
    /// another one does. `light`, `deep`: intervals in seconds; 0: only when asked.
    pub fn next(
        &mut self,
        mine: &[(PgId, Lead)],
        now: u64,
        light: u64,
        deep: u64,
    ) -> Option<(PgId, bool)> {
        self.stamps.values_mut().for_each(|stamp| stamp.forget_the_future(now));
        for (pg, lead) in mine {
            match lead {
                Lead::No => drop(self.requested.remove(pg)),
                _ => drop(self.stamps.entry(*pg).or_insert_with(|| Stamp {
                    at: PgScrub { pg: *pg, ..PgScrub::default() },
                    since_secs: now,
                })),
            }
        }
        if self.running.is_some() {
            return None;
        }
        let asked = mine.iter().find_map(|(pg, _)| Some((*pg, *self.requested.get(pg)?)));
        let clean = || mine.iter().filter(|(_, lead)| *lead == Lead::Clean).map(|(pg, _)| *pg);
        let again = || clean().find(|pg| self.recheck.contains(pg)).map(|pg| (pg, true));
        let scheduled = || {
            let due = clean().filter_map(|pg| {
                let stamp = &self.stamps[&pg];
                let age = |secs: u64| now - secs.max(stamp.since_secs);
                let is_deep = deep > 0 && age(stamp.at.deep_secs) >= deep;
                (is_deep || light > 0 && age(stamp.at.light_secs) >= light).then_some((
                    stamp.at.light_secs,
                    pg,
                    is_deep,
                ))
            });
            due.min().map(|(_, pg, is_deep)| (pg, is_deep))
        };
        let chosen = asked.or_else(again).or_else(scheduled)?;
        self.running = Some(chosen.0);
        self.serves = self.requested.remove(&chosen.0);
        Some(chosen)
    }

    /// The scrub has ended; `None`: it came to nothing and is tried again.
    pub fn finish(
        &mut self,
        pg: PgId,
        deep: bool,
        acting: &[OsdId],
        scrubbed: Option<&Scrubbed>,
        now: u64,
    ) {
        self.running = None;
        let served = self.serves.take();
        let Some(scrubbed) = scrubbed else {
            if let Some(deep) = served {
                self.request(&[pg], deep);
            }
            return;
        };
        self.totals.add(scrubbed.totals);
        let stamp = self
            .stamps
            .entry(pg)
            .or_insert(Stamp { at: PgScrub { pg, ..PgScrub::default() }, since_secs: now });
        stamp.at.light_secs = now;
        if deep {
            stamp.at.deep_secs = now;
            self.recheck.remove(&pg);
            self.findings.retain(|(of, _), _| *of != pg);
        }
        for Finding { object, range, wrong } in scrubbed.findings.iter().cloned() {
            if self.findings.len() < FINDINGS_MAX {
                let (acting, offset, length) =
                    (acting.to_vec(), range.start, range.end - range.start);
                self.findings.insert(
                    (pg, object),
                    ScrubFinding { pg, object, acting, offset, length, wrong },
                );
            }
        }
    }

    /// An object's shards match again.
    pub fn forget(&mut self, pg: PgId, object: ObjectId) {
        self.findings.remove(&(pg, object));
    }

    /// For the monitor.
    pub fn report(&self) -> ScrubReport {
        ScrubReport {
            running: self.running,
            totals: self.totals,
            open: self.findings.len() as u64,
            findings: self.findings.values().take(FINDINGS_REPORTED_MAX).cloned().collect(),
        }
    }

    /// For operators.
    pub fn status(&self) -> ScrubStatus {
        ScrubStatus {
            running: self.running,
            waiting: self
                .requested
                .keys()
                .filter(|pg| self.running != Some(**pg))
                .copied()
                .collect(),
            pgs: self.stamps.values().map(|stamp| stamp.at).collect(),
            findings: self.findings.values().cloned().collect(),
            totals: self.totals,
        }
    }

    /// The file's path and bytes, once it is known where it is.
    fn to_save(&self) -> Option<(PathBuf, Vec<u8>)> {
        let stamps = self.stamps.values().copied().collect();
        let saved = Saved { stamps, findings: self.findings.values().cloned().collect() };
        let payload = protocol::encode(&saved);
        let mut bytes = crc32c::crc32c(&payload).to_le_bytes().to_vec();
        bytes.extend(&payload[..]);
        Some((self.file.clone()?, bytes))
    }
}

fn decode(bytes: &[u8]) -> Option<Saved> {
    let (crc, payload) = bytes.split_first_chunk::<4>()?;
    (u32::from_le_bytes(*crc) == crc32c::crc32c(payload)).then_some(())?;
    protocol::decode("scrub file", payload).ok()
}

/// Seconds since 1970.
fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Scrubs a core's PGs for as long as the OSD runs.
pub(super) async fn run(side: Rc<Side>) {
    let shared = Arc::clone(&side.shared);
    let (light, deep) =
        (shared.config.osd_scrub_min_interval, shared.config.osd_deep_scrub_interval);
    while !shared.is_stopping() {
        let lead = |pg: PgId| match (side.core.leads(pg, true), side.core.leads(pg, false)) {
            (true, _) => Lead::Clean,
            (_, true) => Lead::Degraded,
            _ => Lead::No,
        };
        let mine: Vec<(PgId, Lead)> =
            side.core.pgs().into_iter().map(|pg| (pg, lead(pg))).collect();
        let next = shared.scrub.lock().next(&mine, now_secs(), light.as_secs(), deep.as_secs());
        let Some((pg, deep)) = next else {
            side.worker.sleep(POLL).await;
            continue;
        };
        let scrubbed = side.core.scrub(pg, deep, side.others()).await;
        shared.scrub.lock().finish(pg, deep, &acting(&shared, pg), scrubbed.as_ref(), now_secs());
        match scrubbed {
            Some(Scrubbed { totals, findings }) => {
                tracing::debug!(%pg, deep, ?totals, open = findings.len(), "scrubbed");
                save(&side).await;
            }
            None => side.worker.sleep(RETRY_AFTER).await,
        }
    }
}

async fn save(side: &Side) {
    let Some((path, bytes)) = side.shared.scrub.lock().to_save() else { return };
    let job = side.worker.blocking(move || ec_store::disk::write_atomically(&path, &bytes));
    if let Ok(Err(error)) = job.await {
        tracing::warn!(%error, "what was scrubbed cannot be kept: it will be scrubbed again after a restart");
    }
}

/// The OSDs of a PG, by shard.
fn acting(shared: &Shared, pg: PgId) -> Vec<OsdId> {
    shared
        .map()
        .and_then(|map| map.pgs.get(&pg).map(|info| info.acting.clone()))
        .unwrap_or_default()
}

/// The PGs whose lowest in-sync shard an OSD holds.
fn led(map: &ClusterMap, osd: OsdId) -> Vec<PgId> {
    let leads = |pg: PgId| {
        map.pgs[&pg].in_sync.iter().next().and_then(|shard| map.osd_of(pg, shard)) == Some(osd)
    };
    map.pgs.iter().filter(|(pg, info)| info.active && leads(**pg)).map(|(pg, _)| *pg).collect()
}

/// Answers an operator.
pub(super) fn answer(
    worker: &Worker,
    shared: &Arc<Shared>,
    connection: &Connection,
    message: &Message,
    request: ScrubRequest,
) {
    let to = message.reply_to();
    match request {
        ScrubRequest::Status => {
            reply(connection, to, &ScrubReply::Status(shared.scrub.lock().status()))
        }
        ScrubRequest::Start { pg, deep } => {
            let mut pgs = shared.map().map_or_else(Vec::new, |map| led(&map, shared.config.id));
            pgs.retain(|of| pg.is_none_or(|pg| pg == *of));
            shared.scrub.lock().request(&pgs, deep);
            reply(connection, to, &ScrubReply::Started { pgs, at_secs: now_secs() });
        }
        ScrubRequest::Repair { pg, object, shard } => {
            let owner = usize::from(pg.core(shared.config.osd_op_threads).get());
            let connection = connection.clone();
            worker.handle().spawn_on(owner, move |worker| async move {
                let answer = match worker.local::<Side>() {
                    Some(side) => repair(&side, pg, object, shard).await,
                    None => ScrubReply::Refused("this osd is stopping".into()),
                };
                reply(&connection, to, &answer);
            });
        }
    }
}

async fn repair(side: &Side, pg: PgId, object: ObjectId, shard: ShardIndex) -> ScrubReply {
    let in_sync = side.core.view(pg).is_some_and(|view| view.pg.in_sync.contains(shard));
    if !side.core.leads(pg, false) || !in_sync {
        return ScrubReply::Refused(format!(
            "pg {pg} is not led by this osd, or shard {shard} is not in sync: try again"
        ));
    }
    match side.core.repair_shard(pg, object, shard, side.others()).await {
        Some(None) => {
            side.shared.scrub.lock().forget(pg, object);
            save(side).await;
            ScrubReply::Repaired
        }
        Some(Some(_)) => {
            ScrubReply::Refused(format!("{object} still does not match: see the log of the osds"))
        }
        None => ScrubReply::Refused("the placement group changed meanwhile: try again".into()),
    }
}

fn reply(connection: &Connection, to: ReplyTo, reply: &ScrubReply) {
    let message = Message::new(
        TrafficClass::Control,
        Kind::ScrubReply.to_u16(),
        protocol::encode(reply),
        Bytes::new(),
    );
    connection.reply_to(to, message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Gfid, PoolId, ShardSet};

    fn pg(number: u32) -> PgId {
        PgId { pool: PoolId::new(1), number }
    }

    fn scrubbed(findings: &[u64]) -> Scrubbed {
        let object = |n: &u64| ObjectId { gfid: Gfid::of_inode(*n), index: 0 };
        let finding =
            |n: &u64| Finding { object: object(n), range: 0..4096, wrong: ShardSet::EMPTY };
        Scrubbed { findings: findings.iter().map(finding).collect(), ..Scrubbed::default() }
    }

    #[test]
    fn asked_for_goes_first_then_the_oldest_and_one_at_a_time() {
        let mut board = Board::default();
        let mine = [
            (pg(0), Lead::Clean),
            (pg(1), Lead::Clean),
            (pg(2), Lead::Degraded),
            (pg(3), Lead::No),
        ];
        assert_eq!(
            board.next(&mine, 1000, 100, 500),
            None,
            "intervals begin when a PG is first seen"
        );
        board.request(&[pg(2), pg(3)], true);
        assert_eq!(board.next(&mine, 1000, 100, 500), Some((pg(2), true)));
        assert_eq!(board.next(&mine, 9000, 100, 500), None, "one runs");
        board.finish(pg(2), true, &[], Some(&scrubbed(&[])), 1001);
        assert_eq!(board.next(&mine, 1099, 100, 500), None, "nobody leads pg 3 here");
        assert_eq!(board.next(&mine, 1100, 100, 500), Some((pg(0), false)));
        board.finish(pg(0), false, &[], Some(&scrubbed(&[])), 1110);
        assert_eq!(board.next(&mine, 1110, 100, 500), Some((pg(1), false)));
        board.finish(pg(1), false, &[], None, 1120);
        assert_eq!(board.next(&mine, 1120, 100, 500), Some((pg(1), false)), "tried again");
        board.finish(pg(1), false, &[], Some(&scrubbed(&[])), 1130);
        assert_eq!(board.next(&mine, 1500, 0, 500), Some((pg(0), true)));
        board.finish(pg(0), true, &[], Some(&scrubbed(&[])), 1501);
        board.finish(pg(1), true, &[], Some(&scrubbed(&[])), 1501);
        assert_eq!(board.next(&mine, 1 << 40, 0, 0), None, "never unasked");
    }

    #[test]
    fn who_asks_while_it_runs_gets_another_one_and_one_that_came_to_nothing_is_still_asked_for() {
        let mut board = Board::default();
        let mine = [(pg(0), Lead::Clean)];
        board.request(&[pg(0)], true);
        assert_eq!(board.next(&mine, 10, 0, 0), Some((pg(0), true)));
        board.finish(pg(0), true, &[], None, 11);
        assert_eq!(board.next(&mine, 12, 0, 0), Some((pg(0), true)), "it came to nothing");
        board.request(&[pg(0)], false);
        assert_eq!(board.status().running, Some(pg(0)));
        board.finish(pg(0), true, &[], Some(&scrubbed(&[])), 13);
        assert_eq!(
            board.next(&mine, 14, 0, 0),
            Some((pg(0), false)),
            "asked for after the other began"
        );
        board.finish(pg(0), false, &[], Some(&scrubbed(&[])), 15);
        assert_eq!(board.next(&mine, 16, 0, 0), None);
    }

    #[test]
    fn findings_outlive_a_restart_and_are_looked_at_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut board = Board::default();
        board.load(dir.path().join(FILE));
        let mine = [(pg(0), Lead::Clean)];
        board.request(&[pg(0)], true);
        assert!(board.next(&mine, 50, 100, 100).is_some());
        board.finish(pg(0), true, &[OsdId::new(4)], Some(&scrubbed(&[7, 8])), 60);
        board.forget(pg(0), scrubbed(&[8]).findings[0].object);
        let (path, bytes) = board.to_save().expect("it knows its file");
        std::fs::write(&path, &bytes).expect("written");
        let mut after = Board::default();
        after.load(path.clone());
        assert_eq!(after.status().findings, board.status().findings);
        assert_eq!((after.report().open, after.status().pgs[0].deep_secs), (1, 60));
        assert_eq!(
            after.next(&mine, 61, 100, 100),
            Some((pg(0), true)),
            "it may have been mended meanwhile"
        );
        after.finish(pg(0), true, &[], Some(&scrubbed(&[])), 62);
        assert_eq!((after.report().open, after.next(&mine, 63, 100, 100)), (0, None));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).expect("written");
            let mut damaged = Board::default();
            damaged.load(path.clone());
            assert_eq!(damaged.status(), ScrubStatus::default());
        }
    }

    /// Behind the checksum anything may stand: it is refused, or reported.
    #[test]
    fn a_file_with_other_contents_does_no_harm() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE);
        let mut board = Board::default();
        board.load(path.clone());
        board.finish(pg(0), true, &[OsdId::new(4)], Some(&scrubbed(&[7, 8])), 60);
        let (_, whole) = board.to_save().expect("it knows its file");
        let mut rng = fastrand::Rng::with_seed(1);
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut payload = whole[4..].to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..payload.len());
                payload[at] = rng.u8(..);
            }
            payload.truncate(rng.usize(1..=payload.len()).max(rng.usize(..payload.len())));
            let mut bytes = crc32c::crc32c(&payload).to_le_bytes().to_vec();
            bytes.extend(payload);
            if decode(&bytes).is_none() {
                continue;
            }
            std::fs::write(&path, &bytes).expect("written");
            let mut other = Board::default();
            other.load(path.clone());
            assert_eq!(other.report().open as usize, other.status().findings.len());
            let next = [1_000, 1_010].map(|now| other.next(&[(pg(0), Lead::Clean)], now, 5, 5));
            assert!(next.iter().any(Option::is_some), "never scrubbed again");
            taken += 1;
        }
        assert!(taken > 100, "{taken} of them were taken");
    }
}
