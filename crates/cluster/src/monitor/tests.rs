//! Examples: each a story of one cluster with one pool of 2+1 on three OSDs.

use super::resolve::choose_cut;
use super::*;
use protocol::monitor::{
    Fullness, Health, PgBacklog, PgCondition, RecoveryStatus, ResolveRequest, SessionHolding,
};
use protocol::{ClusterId, Profile, Seq};

const SECOND: Duration = Duration::from_secs(1);

fn fresh(osds: u32, pg_num: u32) -> Monitor {
    let pool = PoolSpec::new("data", 2, 1, 512, pg_num).expect("a profile");
    let state =
        create_cluster(ClusterId::new(1), &ExpectedOsd::first(osds), &pool).expect("enough OSDs");
    Monitor::start(state, Settings::default(), Duration::ZERO)
}

fn boot_with(osd: u32, fsid: u128, lost: bool, blank: bool) -> MonitorRequest {
    let addr = SocketAddr::from(([127, 0, 0, 1], 7000 + osd as u16 + 100 * fsid as u16));
    MonitorRequest::Boot {
        osd: OsdId::new(osd),
        fsid,
        addr,
        cores: 2,
        lost,
        blank,
        host: format!("host-{osd}"),
    }
}

/// Addresses of metadata services.
const NAMESPACE: u128 = 7;

fn mds(number: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6000 + number))
}

/// All PGs are PG 0 of a pool with one PG in most tests.
fn pg() -> PgId {
    PgId { pool: protocol::PoolId::new(1), number: 0 }
}

impl Monitor {
    fn ok(&mut self, request: MonitorRequest, now: Duration) -> Epoch {
        match self.handle(request, now) {
            MonitorReply::Done(epoch) => epoch,
            other => panic!("{other:?}"),
        }
    }

    fn boot_clean(&mut self, osd: u32, now: Duration) {
        self.ok(boot_with(osd, u128::from(osd) + 1, false, false), now);
    }

    /// Every proposed member that is up answers.
    fn peer_all(&mut self, now: Duration) {
        for osd in self.map().osds.keys().copied().collect::<Vec<_>>() {
            let pgs = self.map().pgs.iter().map(|(id, pg)| (*id, pg.epoch)).collect();
            self.ok(MonitorRequest::Peered { osd, pgs }, now);
        }
    }

    fn whole(osds: u32, pg_num: u32) -> Monitor {
        let mut monitor = fresh(osds, pg_num);
        monitor.ok(
            MonitorRequest::MdsUp { addr: mds(1), namespace: NAMESPACE, old: false },
            Duration::ZERO,
        );
        (0..osds).for_each(|osd| monitor.boot_clean(osd, Duration::ZERO));
        monitor.peer_all(Duration::ZERO);
        assert!(monitor.map().pgs.values().all(|pg| pg.active));
        monitor
    }

    fn shard(&self, osd: u32) -> ShardIndex {
        self.map().shard_of(pg(), OsdId::new(osd)).expect("three OSDs hold every PG")
    }

    fn conditions(&self) -> Vec<(PgCondition, u32)> {
        self.status().pgs
    }

    /// Heartbeats of these OSDs, then a tick.
    fn beat(&mut self, osds: &[u32], now: Duration) {
        for &osd in osds {
            let report = OsdReport { osd: OsdId::new(osd), ..OsdReport::default() };
            self.ok(MonitorRequest::Heartbeat { report }, now);
        }
        self.tick(now);
    }

    /// Beats every half second from `from` to `to`.
    fn beat_until(&mut self, osds: &[u32], from: Duration, to: Duration) {
        let mut now = from;
        while now < to {
            now += SECOND / 2;
            self.beat(osds, now);
        }
    }

    fn open(&mut self, now: Duration) -> SessionId {
        match self.handle(MonitorRequest::OpenSession { name: "test".into() }, now) {
            MonitorReply::Session { session, ttl_ms: 10_000, epoch }
                if epoch == self.map().epoch =>
            {
                session
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_new_cluster_waits_for_all_its_osds_and_is_active_when_all_have_answered() {
    let mut monitor = fresh(3, 4);
    monitor.boot_clean(0, SECOND);
    monitor.boot_clean(1, SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Down, 4)], "the third is waited for");
    monitor.boot_clean(2, 2 * SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Peering, 4)]);
    monitor.peer_all(2 * SECOND);
    assert_eq!(
        (monitor.conditions(), monitor.status().health),
        (vec![(PgCondition::Clean, 4)], Health::Ok)
    );
    for pg in monitor.map().pgs.values() {
        assert_eq!((pg.acting.len(), pg.in_sync), (3, ShardSet::first(3)));
    }
}

#[test]
fn a_new_cluster_goes_on_without_an_osd_that_never_comes() {
    let mut monitor = fresh(3, 4);
    monitor.boot_clean(0, Duration::ZERO);
    monitor.boot_clean(1, Duration::ZERO);
    monitor.beat_until(&[0, 1], Duration::ZERO, 3 * SECOND - SECOND / 2);
    assert_eq!(monitor.conditions(), [(PgCondition::Down, 4)]);
    monitor.beat_until(&[0, 1], 3 * SECOND - SECOND / 2, 4 * SECOND);
    monitor.peer_all(4 * SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Degraded, 4)]);
    assert!(
        monitor.status().messages().any(|m| m.contains("osd.2") && m.contains("never started"))
    );
}

#[test]
fn a_silent_osd_leaves_the_in_sync_set_and_returns_through_joining() {
    let mut monitor = Monitor::whole(3, 1);
    monitor.beat_until(&[0, 1], Duration::ZERO, 3 * SECOND);
    let shard = monitor.shard(2);
    assert_eq!(monitor.conditions(), [(PgCondition::Peering, 1)]);
    assert_eq!(monitor.map().pgs[&pg()].in_sync, ShardSet::first(3).without(shard));
    monitor.peer_all(3 * SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Degraded, 1)]);

    monitor.boot_clean(2, 4 * SECOND);
    let stale = Epoch::new(monitor.map().epoch.get() - 1);
    let ask = |epoch| MonitorRequest::AskJoin { osd: OsdId::new(2), pgs: vec![(pg(), epoch)] };
    monitor.ok(ask(stale), 4 * SECOND);
    assert!(monitor.map().pgs[&pg()].joining.is_empty(), "an old epoch is not listened to");
    monitor.ok(ask(monitor.map().epoch), 4 * SECOND);
    assert_eq!(monitor.map().pgs[&pg()].joining, ShardSet::only(shard));
    assert_eq!(monitor.conditions(), [(PgCondition::Recovering, 1)]);

    let join = |epoch| MonitorRequest::Join { osd: OsdId::new(2), pg: pg(), epoch };
    assert!(matches!(monitor.handle(join(stale), 4 * SECOND), MonitorReply::Refused(_)), "JoinCas");
    monitor.ok(join(monitor.map().epoch), 4 * SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Clean, 1)]);
}

#[test]
fn the_in_sync_set_never_shrinks_below_k() {
    let mut monitor = Monitor::whole(3, 1);
    monitor.beat_until(&[0], Duration::ZERO, 3 * SECOND);
    assert_eq!(
        (monitor.conditions(), monitor.status().health),
        (vec![(PgCondition::Down, 1)], Health::Down)
    );
    assert_eq!(monitor.state().pgs[&pg()].confirmed, ShardSet::first(3));
    monitor.boot_clean(1, 4 * SECOND);
    monitor.peer_all(4 * SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Degraded, 1)], "without waiting for the third");
}

#[test]
fn who_lost_power_leaves_unless_too_few_kept_it() {
    let mut monitor = Monitor::whole(3, 1);
    monitor.ok(boot_with(1, 2, true, false), SECOND);
    let one = monitor.shard(1);
    assert_eq!(monitor.map().pgs[&pg()].in_sync, ShardSet::first(3).without(one), "LostLeaves");
    monitor.ok(boot_with(0, 1, true, false), SECOND);
    assert_eq!(monitor.map().pgs[&pg()].in_sync, ShardSet::first(3), "forced: only one kept power");
    monitor.peer_all(SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Clean, 1)]);
    assert!(monitor.state().pgs[&pg()].lost.is_empty());
}

#[test]
fn a_replaced_disk_is_recognised_and_a_wrong_process_refused() {
    let mut monitor = Monitor::whole(3, 1);
    monitor.beat(&[0, 1, 2], SECOND);
    let refused = monitor.handle(boot_with(2, 77, false, true), SECOND);
    assert!(matches!(refused, MonitorReply::Refused(why) if why.contains("another disk")));
    let up = monitor.handle(MonitorRequest::ReplaceOsd { osd: OsdId::new(2) }, SECOND);
    assert!(matches!(up, MonitorReply::Refused(why) if why.contains("is up")));
    monitor.beat_until(&[0, 1], SECOND, 4 * SECOND);
    monitor.ok(MonitorRequest::ReplaceOsd { osd: OsdId::new(2) }, 4 * SECOND);
    monitor.ok(boot_with(2, 77, false, false), 4 * SECOND);
    let two = monitor.shard(2);
    assert_eq!(monitor.state().pgs[&pg()].gone, ShardSet::only(two), "BlankCheck");
    // Its return is the same with a member down: a blank disk does not count.
    monitor.ok(MonitorRequest::Leave { osd: OsdId::new(1) }, 4 * SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Down, 1)]);
    let stranger = monitor.handle(boot_with(9, 1, false, true), SECOND);
    assert!(matches!(stranger, MonitorReply::Refused(why) if why.contains("osd.0, osd.1, osd.2")));
}

#[test]
fn another_disk_needs_the_operators_consent_which_holds_for_one_boot() {
    let mut monitor = Monitor::whole(3, 1);
    let osd = OsdId::new(2);
    monitor.ok(MonitorRequest::Leave { osd }, SECOND);
    let refused = |monitor: &mut Monitor, blank| {
        let epoch = monitor.map().epoch;
        let reply = monitor.handle(boot_with(2, 77, false, blank), SECOND);
        assert!(
            matches!(&reply, MonitorReply::Refused(why) if why.contains("`trefoil osd replace osd.2`")),
            "{reply:?}"
        );
        assert_eq!(monitor.map().epoch, epoch, "a refusal changes nothing");
    };
    refused(&mut monitor, true);
    refused(&mut monitor, false);
    monitor.ok(MonitorRequest::ReplaceOsd { osd }, SECOND);
    // a restart of the monitor does not forget it
    let mut monitor = Monitor::start(monitor.state().clone(), Settings::default(), SECOND);
    assert!(
        monitor
            .status()
            .messages()
            .any(|message| message.contains("osd.2 may start on an empty disk"))
    );
    // the old disk is back after all: that used the consent up
    monitor.boot_clean(2, SECOND);
    monitor.ok(MonitorRequest::Leave { osd }, SECOND);
    refused(&mut monitor, true);
    monitor.ok(MonitorRequest::ReplaceOsd { osd }, SECOND);
    monitor.ok(boot_with(2, 77, false, true), SECOND);
    assert_eq!(monitor.state().pgs[&pg()].gone, ShardSet::only(monitor.shard(2)), "BlankCheck");
    let other = monitor.handle(boot_with(2, 78, false, true), 9 * SECOND);
    assert!(matches!(other, MonitorReply::Refused(_)), "{other:?}");
}

#[test]
fn no_disk_is_given_up_that_holds_the_last_whole_shards() {
    let mut monitor = Monitor::whole(3, 1);
    let replace = |monitor: &mut Monitor, osd| {
        monitor.handle(MonitorRequest::ReplaceOsd { osd: OsdId::new(osd) }, SECOND)
    };
    monitor.ok(MonitorRequest::Leave { osd: OsdId::new(2) }, SECOND);
    monitor.peer_all(SECOND);
    monitor.ok(MonitorRequest::Leave { osd: OsdId::new(1) }, SECOND);
    let reply = replace(&mut monitor, 1);
    assert!(
        matches!(&reply, MonitorReply::Refused(why) if why.contains("1 placement groups would be lost")),
        "{reply:?}"
    );
    assert!(
        matches!(replace(&mut monitor, 2), MonitorReply::Done(_)),
        "the others have all that it has"
    );
    assert!(matches!(replace(&mut monitor, 9), MonitorReply::Refused(_)));
}

#[test]
fn what_is_left_to_rebuild_is_told_with_rate_and_time_and_is_zero_when_clean() {
    let mut monitor = Monitor::whole(3, 2);
    let osd = OsdId::new(2);
    monitor.ok(MonitorRequest::Leave { osd }, SECOND);
    monitor.peer_all(SECOND);
    assert_eq!(
        monitor.status().recovery,
        RecoveryStatus { seconds_left: Some(0), ..RecoveryStatus::default() }
    );
    monitor.boot_clean(2, SECOND);
    let pgs: Vec<PgId> = monitor.map().pgs.keys().copied().collect();
    let beat = |monitor: &mut Monitor, second: u32, recovered_bytes, to_rebuild: Vec<PgBacklog>| {
        let report = OsdReport { osd, recovered_bytes, to_rebuild, ..OsdReport::default() };
        monitor.ok(MonitorRequest::Heartbeat { report }, second * SECOND);
        monitor.beat(&[0, 1], second * SECOND);
        monitor.status().recovery
    };
    let backlog = |at: usize, bytes, is_counted| PgBacklog {
        pg: pgs[at],
        objects: bytes / 10,
        bytes,
        is_counted,
    };
    let told = beat(&mut monitor, 1, 0, vec![]);
    assert_eq!((told.shards_uncounted, told.objects, told.seconds_left), (2, 0, Some(0)));
    let told = beat(&mut monitor, 2, 0, vec![backlog(0, 1000, true), backlog(1, 500, false)]);
    assert_eq!(
        (told.shards_uncounted, told.objects, told.bytes, told.seconds_left),
        (1, 150, 1500, None)
    );
    let told = beat(&mut monitor, 3, 300, vec![backlog(0, 700, true), backlog(1, 500, true)]);
    assert_eq!(
        (told.shards_uncounted, told.bytes, told.bytes_per_sec, told.seconds_left),
        (0, 1200, 300, Some(4))
    );
    for pg in pgs {
        let epoch = monitor.map().pgs[&pg].epoch;
        monitor.ok(MonitorRequest::AskJoin { osd, pgs: vec![(pg, epoch)] }, 3 * SECOND);
        let epoch = monitor.map().pgs[&pg].epoch;
        monitor.ok(MonitorRequest::Join { osd, pg, epoch }, 3 * SECOND);
    }
    // the last report still names some: the map knows better
    assert_eq!(monitor.conditions(), [(PgCondition::Clean, 2)]);
    assert_eq!(
        monitor.status().recovery,
        RecoveryStatus { seconds_left: Some(0), ..RecoveryStatus::default() }
    );
}

#[test]
fn blank_disks_of_a_cluster_never_active_have_lost_nothing() {
    let mut monitor = fresh(3, 1);
    for osd in 0..3 {
        monitor.ok(boot_with(osd, 5, false, true), SECOND);
        monitor.ok(MonitorRequest::Leave { osd: OsdId::new(osd) }, 4 * SECOND);
        monitor.ok(MonitorRequest::ReplaceOsd { osd: OsdId::new(osd) }, 4 * SECOND);
        monitor.ok(boot_with(osd, 6, true, true), 4 * SECOND);
    }
    monitor.peer_all(4 * SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Clean, 1)]);
}

#[test]
fn a_restarted_monitor_knows_all_and_gives_everyone_time() {
    let mut monitor = Monitor::whole(3, 4);
    let session = monitor.open(SECOND);
    let mut again = Monitor::start(monitor.state().clone(), Settings::default(), 100 * SECOND);
    assert_eq!(again.map(), monitor.map());
    again.tick(101 * SECOND);
    assert_eq!(again.map(), monitor.map(), "the grace begins anew");
    again.beat_until(&[0, 1, 2], 101 * SECOND, 112 * SECOND);
    assert_eq!(again.map().sessions[&session], SessionState::Dead);
}

#[test]
fn a_monitor_that_stood_still_blames_nobody() {
    let mut monitor = Monitor::whole(3, 1);
    let session = monitor.open(Duration::ZERO);
    monitor.tick(60 * SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Clean, 1)]);
    assert_eq!(monitor.map().sessions[&session], SessionState::Live);
}

#[test]
fn after_a_clean_stop_of_all_the_first_to_come_wait_for_the_rest() {
    let mut monitor = Monitor::whole(3, 1);
    (0..3).for_each(|osd| {
        monitor.ok(MonitorRequest::Leave { osd: OsdId::new(osd) }, SECOND);
    });
    let mut again = Monitor::start(monitor.state().clone(), Settings::default(), Duration::ZERO);
    again.boot_clean(1, Duration::ZERO);
    again.boot_clean(2, Duration::ZERO);
    assert_eq!(again.conditions(), [(PgCondition::Down, 1)]);
    again.boot_clean(0, SECOND);
    again.peer_all(SECOND);
    assert_eq!(again.conditions(), [(PgCondition::Clean, 1)]);
}

#[test]
fn pools_are_made_and_refused_with_reasons() {
    let mut monitor = Monitor::whole(3, 2);
    let spec = |name: &str, k, m, pg_num| {
        let PoolSpec { name, profile, pg_num } =
            PoolSpec::new(name, k, m, 512, pg_num).expect("a profile");
        MonitorRequest::CreatePool { name, profile, pg_num }
    };
    monitor.ok(spec("mirror", 1, 2, 8), SECOND);
    monitor.peer_all(SECOND);
    assert_eq!(monitor.conditions(), [(PgCondition::Clean, 10)]);
    for (request, why) in [
        (spec("data", 2, 1, 8), "already"),
        (spec("wide", 3, 1, 8), "needs as many OSDs"),
        (spec("none", 2, 1, 0), "pg_num"),
        (spec("", 2, 1, 8), "name"),
    ] {
        let reply = monitor.handle(request, SECOND);
        assert!(matches!(&reply, MonitorReply::Refused(text) if text.contains(why)), "{reply:?}");
    }
    let odd = PoolSpec::new("odd", 3, 1, 512, 8).expect("rounded").profile;
    assert_eq!(odd.object_bytes(), Profile::OBJECT_BYTES_DEFAULT / 1536 * 1536);
}

#[test]
fn a_session_that_is_evicted_is_dead_before_its_time() {
    let mut monitor = Monitor::whole(3, 1);
    let session = monitor.open(Duration::ZERO);
    let before = monitor.map().pgs[&pg()].epoch;
    monitor.ok(MonitorRequest::EvictSession { session }, SECOND);
    assert!(monitor.map().pgs[&pg()].epoch > before, "ExpireEpoch: every shard learns of it");
    assert_eq!(monitor.map().sessions.get(&session), Some(&crate::map::SessionState::Dead));
    assert_eq!(
        monitor.handle(MonitorRequest::RenewSession { session }, SECOND),
        MonitorReply::Fenced
    );
    assert_eq!(monitor.actions(SECOND).len(), 3, "its last writes are to be decided");
    let after = monitor.map().epoch;
    for session in [session, SessionId::new(99)] {
        monitor.ok(MonitorRequest::EvictSession { session }, SECOND);
    }
    assert_eq!(monitor.map().epoch, after, "one that is dead or was never there changes nothing");
}

#[test]
fn a_renamed_pool_keeps_its_id_and_its_placement_groups() {
    let mut monitor = Monitor::whole(3, 2);
    let rename = |name: &str, new_name: &str| MonitorRequest::RenamePool {
        name: name.into(),
        new_name: new_name.into(),
    };
    let before = monitor.map().clone();
    monitor.ok(rename("data", "files"), SECOND);
    let after = monitor.map();
    assert!(after.epoch > before.epoch, "everybody learns of it");
    assert_eq!(after.pgs, before.pgs, "no attach ends");
    assert_eq!(
        after.pool_named("files").map(|(id, _)| id),
        before.pool_named("data").map(|(id, _)| id)
    );
    assert_eq!(monitor.conditions(), [(PgCondition::Clean, 2)]);
    for (name, new_name, why) in [
        ("data", "other", "there are: files"),
        ("files", "files", "already"),
        ("files", "", "1 to 64 bytes"),
    ] {
        let reply = monitor.handle(rename(name, new_name), SECOND);
        assert!(matches!(&reply, MonitorReply::Refused(text) if text.contains(why)), "{reply:?}");
    }
}

#[test]
fn a_dead_session_is_collected_decided_and_only_then_gone() {
    let mut monitor = Monitor::whole(3, 1);
    let session = monitor.open(Duration::ZERO);
    let before = monitor.map().pgs[&pg()].epoch;
    monitor.beat_until(&[0, 1, 2], Duration::ZERO, 11 * SECOND);
    let now = 11 * SECOND;
    assert!(monitor.map().pgs[&pg()].epoch > before, "ExpireEpoch");
    assert_eq!(monitor.handle(MonitorRequest::RenewSession { session }, now), MonitorReply::Fenced);
    let questions = monitor.actions(now);
    assert_eq!(questions.len(), 3);
    assert_eq!(monitor.actions(now), [], "asked once");
    let holding = |seqs: &[u64]| {
        let held = seqs.iter().map(|&s| (Seq::new(s), ShardSet::first(3))).collect();
        Some(ResolveReply::Collected(vec![SessionHolding { pg: pg(), settled: Seq::new(4), held }]))
    };
    monitor.resolve_answer(questions[0].ticket, holding(&[5, 6]), now);
    monitor.resolve_answer(questions[1].ticket, holding(&[5]), now);
    monitor.resolve_answer(questions[2].ticket, None, now);
    assert_eq!(monitor.actions(now), [], "RecoverAll; and who did not answer is not pressed");
    let again = monitor.actions(now + SECOND);
    assert_eq!((again.len(), again[0].osd), (1, questions[2].osd));
    monitor.resolve_answer(questions[2].ticket, holding(&[5, 6]), now + SECOND);
    assert_eq!(monitor.actions(now + SECOND), [], "an answer to an old question is ignored");
    monitor.resolve_answer(again[0].ticket, holding(&[5, 6]), now + SECOND);
    let decisions = monitor.actions(now + SECOND);
    assert_eq!(decisions.len(), 3);
    for decision in decisions {
        assert_eq!(monitor.map().sessions[&session], SessionState::Dead, "DecideAll");
        let ResolveRequest::Decide { cuts, .. } = decision.request else { panic!("{decision:?}") };
        assert_eq!(cuts, [(pg(), monitor.map().pgs[&pg()].epoch, Seq::new(5))]);
        monitor.resolve_answer(
            decision.ticket,
            Some(ResolveReply::Decided(vec![pg()])),
            now + SECOND,
        );
    }
    assert!(monitor.map().sessions.is_empty());
    assert!(monitor.state().session_names.is_empty());
}

#[test]
fn a_new_epoch_begins_the_end_of_a_session_anew_and_old_answers_do_not_count() {
    let mut monitor = Monitor::whole(3, 1);
    monitor.open(Duration::ZERO);
    monitor.beat_until(&[0, 1, 2], Duration::ZERO, 11 * SECOND);
    let now = 11 * SECOND;
    let empty = || {
        let nothing = SessionHolding { pg: pg(), settled: Seq::default(), held: Vec::new() };
        Some(ResolveReply::Collected(vec![nothing]))
    };
    let of_old = monitor.actions(now);
    monitor.resolve_answer(of_old[0].ticket, empty(), now);
    monitor.open(now);
    assert_eq!(monitor.actions(now), [], "a new epoch of the map that no PG notices");
    // An outsider's life is a new epoch of the PG: here, osd.2 leaves, and osd.0 and osd.1 confirm
    // the smaller set.
    monitor.ok(MonitorRequest::Leave { osd: OsdId::new(2) }, now);
    assert_eq!(monitor.actions(now), [], "not while the PG is not active");
    monitor.peer_all(now);
    for old in &of_old[1..] {
        monitor.resolve_answer(old.ticket, empty(), now);
    }
    let later = now + SECOND;
    let asked: Vec<_> =
        monitor.actions(later).into_iter().map(|a| (a.osd.get(), a.request)).collect();
    let epoch = monitor.map().pgs[&pg()].epoch;
    let collect = ResolveRequest::Collect { session: SessionId::new(1), pgs: vec![(pg(), epoch)] };
    assert_eq!(
        asked,
        [(0, collect.clone()), (1, collect)],
        "all members of the new set, from the beginning"
    );
}

#[test]
fn the_cut_is_the_longest_prefix_that_every_touched_member_has() {
    let set = |bits| ShardSet::from_bits(bits);
    let report = |settled, held: &[(u64, u16)]| SessionHolding {
        pg: pg(),
        settled: Seq::new(settled),
        held: held.iter().map(|(seq, bits)| (Seq::new(*seq), set(*bits))).collect(),
    };
    let cut = |in_sync, reports: &[SessionHolding]| {
        let reports = (0..).map(ShardIndex::new).zip(reports.iter().cloned()).collect();
        choose_cut(Rules::default(), set(in_sync), &reports).map(Seq::get)
    };
    let nothing = report(0, &[]);
    assert_eq!(cut(0b111, &[nothing.clone(), nothing.clone()]), None, "one has not reported");
    assert_eq!(cut(0b111, &[nothing.clone(), nothing.clone(), nothing.clone()]), Some(0));
    let (a, b) = (report(1, &[(2, 0b101), (3, 0b110)]), report(2, &[(3, 0b110)]));
    assert_eq!(cut(0b111, &[a.clone(), b.clone(), report(0, &[(2, 0b101), (3, 0b110)])]), Some(3));
    assert_eq!(
        cut(0b111, &[a.clone(), b.clone(), report(0, &[(2, 0b101)])]),
        Some(2),
        "RecoverTouch"
    );
    assert_eq!(cut(0b011, &[a, b]), Some(3), "outsiders do not count");
    let gap = report(0, &[(1, 0b111), (3, 0b111)]);
    assert_eq!(cut(0b111, &[gap.clone(), gap.clone(), gap]), Some(1), "RecoverGap");
}

#[test]
fn a_metadata_service_with_another_namespace_is_refused() {
    let mut monitor = Monitor::whole(3, 1);
    let epoch = monitor.map().epoch;
    for addr in [mds(1), mds(2)] {
        let up = monitor.handle(MonitorRequest::MdsUp { addr, namespace: 8, old: true }, SECOND);
        assert!(matches!(up, MonitorReply::Refused(why) if why.contains("not mounted")));
        let beat = monitor.handle(MonitorRequest::MdsHeartbeat { addr, namespace: 8 }, SECOND);
        assert!(matches!(beat, MonitorReply::Refused(_)), "it is no sign of life");
    }
    assert_eq!((monitor.map().mds, monitor.map().epoch), (Some(mds(1)), epoch));
    // Known after a restart of the monitor, too; the same namespace may move.
    let mut again = Monitor::start(monitor.state().clone(), Settings::default(), 2 * SECOND);
    let up =
        again.handle(MonitorRequest::MdsUp { addr: mds(1), namespace: 8, old: true }, 3 * SECOND);
    assert!(matches!(up, MonitorReply::Refused(_)));
    again.ok(MonitorRequest::MdsUp { addr: mds(2), namespace: NAMESPACE, old: true }, 3 * SECOND);
    assert_eq!(again.map().mds, Some(mds(2)));
}

#[test]
fn the_namespace_of_an_older_state_is_the_first_old_one_that_comes() {
    let mut state = Monitor::whole(3, 1).state().clone();
    state.namespace = None;
    let mut monitor = Monitor::start(state, Settings::default(), SECOND);
    let epoch = monitor.map().epoch;
    let new =
        monitor.handle(MonitorRequest::MdsUp { addr: mds(1), namespace: 9, old: false }, SECOND);
    assert!(matches!(new, MonitorReply::Refused(_)), "an empty one is not it");
    monitor.ok(MonitorRequest::MdsUp { addr: mds(1), namespace: 8, old: true }, SECOND);
    assert!(monitor.map().epoch > epoch, "it is saved before it is answered");
    assert_eq!(monitor.state().namespace, Some(8));
}

#[test]
fn a_silent_metadata_service_is_told_with_the_time_since() {
    let monitor = fresh(3, 1);
    assert!(
        monitor.status().messages().any(|m| m.contains("no metadata service has ever started"))
    );
    let mut monitor = Monitor::whole(3, 1);
    let beat = |addr| MonitorRequest::MdsHeartbeat { addr, namespace: NAMESPACE };
    monitor.beat_until(&[0, 1, 2], Duration::ZERO, 4 * SECOND);
    monitor.ok(beat(mds(1)), 4 * SECOND);
    let other = monitor.handle(beat(mds(2)), 8 * SECOND);
    assert!(
        matches!(other, MonitorReply::Refused(why) if why.contains("127.0.0.1:6001")),
        "another one is no sign"
    );
    monitor.beat_until(&[0, 1, 2], 4 * SECOND, 9 * SECOND);
    assert_eq!((monitor.status().health, monitor.status().mds_silent_secs), (Health::Ok, None));
    monitor.beat_until(&[0, 1, 2], 9 * SECOND, 44 * SECOND);
    let status = monitor.status();
    assert_eq!((status.health, status.mds_silent_secs), (Health::Down, Some(40)));
    assert!(
        status.checks[0].summary.contains("127.0.0.1:6001 is silent for 40 s"),
        "{:?}",
        status.checks
    );
    monitor.ok(beat(mds(1)), 45 * SECOND);
    assert_eq!((monitor.status().health, monitor.status().checks), (Health::Ok, vec![]));
    // After a restart it has the full time again.
    let mut again = Monitor::start(monitor.state().clone(), Settings::default(), 60 * SECOND);
    again.tick(61 * SECOND);
    assert_eq!(again.status().mds_silent_secs, None);
}

#[test]
fn an_osd_that_fills_up_is_named_with_what_follows_from_it() {
    let mut monitor = Monitor::whole(3, 1);
    let osd = OsdId::new(1);
    let mut told = |fullness, backfills_waiting| {
        let (used_percent, free_bytes) = (87, 5 << 20);
        let report = OsdReport {
            osd,
            fullness,
            backfills_waiting,
            used_percent,
            free_bytes,
            ..OsdReport::default()
        };
        monitor.ok(MonitorRequest::Heartbeat { report }, SECOND);
        let status = monitor.status();
        (status.health, status.messages().collect::<Vec<_>>().join("; "))
    };
    assert_eq!(told(Fullness::Ok, 0), (Health::Ok, String::new()));
    let rest = "87% of its disk is used, it takes 5 MiB more";
    for (fullness, waiting, what) in [
        (Fullness::NearFull, 0, "is nearly full"),
        (Fullness::BackfillFull, 0, "is too full for backfill"),
        (
            Fullness::BackfillFull,
            4,
            "is too full for backfill, backfill of 4 placement groups waits",
        ),
        (Fullness::Full, 0, "is full, writers get ENOSPC"),
        (Fullness::Full, 4, "is full, writers get ENOSPC, backfill of 4 placement groups waits"),
    ] {
        assert_eq!(told(fullness, waiting), (Health::Degraded, format!("osd.1 {what}: {rest}")));
    }
}

#[test]
fn extreme_numbers_of_osds_and_clients_move_nothing_that_others_depend_on() {
    let numbers = [0, 1, 1 << 31, 1 << 32, 1 << 58, (1 << 63) - 1, u64::MAX];
    let mut monitor = Monitor::whole(3, 1);
    let epoch = monitor.map().epoch;
    for n in numbers {
        let (osd, pgs) = (OsdId::new(n as u32 | 1 << 30), vec![(pg(), Epoch::new(n))]);
        let none = PgId { pool: protocol::PoolId::new(n as u32), number: n as u32 };
        let requests = [
            MonitorRequest::RenewSession { session: SessionId::new(n) },
            MonitorRequest::CloseSession { session: SessionId::new(n) },
            MonitorRequest::Leave { osd },
            MonitorRequest::ReplaceOsd { osd },
            MonitorRequest::Peered { osd, pgs: pgs.clone() },
            MonitorRequest::Peered { osd: OsdId::new(0), pgs: pgs.clone() },
            MonitorRequest::AskJoin { osd: OsdId::new(0), pgs },
            MonitorRequest::Join { osd: OsdId::new(0), pg: none, epoch: Epoch::new(n) },
            MonitorRequest::MdsReport(MdsReport {
                removals_stuck: n,
                sizes_stuck: n,
                stuck_secs: n,
                why: String::new(),
            }),
        ];
        for request in requests {
            let shown = format!("{request:?}");
            monitor.handle(request, Duration::ZERO);
            assert_eq!(monitor.map().epoch, epoch, "{shown}");
        }
    }
    for n in numbers {
        for osd in 0..3 {
            let to_rebuild = vec![PgBacklog { pg: pg(), objects: n, bytes: n, is_counted: true }];
            let (total_bytes, free_bytes, recovered_bytes) = (n, n, n);
            let told = OsdReport {
                osd: OsdId::new(osd),
                epoch: Epoch::new(n),
                to_rebuild,
                ..OsdReport::default()
            };
            let mut report =
                OsdReport { total_bytes, free_bytes, recovered_bytes, disk: n, ..told };
            (report.scrub.open, report.backfills_waiting, report.corrupt_found) = (n, n, n);
            monitor.ok(MonitorRequest::Heartbeat { report }, Duration::ZERO);
        }
        monitor.tick(Duration::ZERO);
        monitor.status();
    }
    assert_eq!(monitor.map().epoch, epoch);
}

#[test]
fn an_osd_with_more_cores_or_a_longer_name_than_can_be_is_refused() {
    let mut monitor = fresh(3, 1);
    let MonitorRequest::Boot { osd, fsid, addr, lost, blank, .. } = boot_with(0, 1, false, true)
    else {
        unreachable!("it is a boot")
    };
    let epoch = monitor.map().epoch;
    for (cores, host) in [(u16::MAX, "host".to_owned()), (1, "h".repeat(HOST_NAME_BYTES_MAX + 1))] {
        let boot = MonitorRequest::Boot { osd, fsid, addr, cores, lost, blank, host };
        assert!(matches!(monitor.handle(boot, Duration::ZERO), MonitorReply::Refused(_)));
    }
    assert_eq!(monitor.map().epoch, epoch);
    monitor.boot_clean(0, Duration::ZERO);
}
