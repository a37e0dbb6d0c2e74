//! The paper's examples, and properties that hold for every snapshot.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const INTERVAL: Duration = Duration::from_secs(3);
const THRESHOLD: Duration = Duration::from_millis(300);

fn workers(indexes: &[usize]) -> Vec<WorkerIndex> {
    indexes.iter().copied().map(WorkerIndex).collect()
}

fn connection(id: u64, placed: &[usize], lock_ms: u64, bytes: u64) -> ConnectionLoad {
    ConnectionLoad {
        id,
        workers: workers(placed),
        lock_time: Duration::from_millis(lock_ms),
        bytes,
    }
}

fn snapshot(worker_bytes: &[u64], connections: Vec<ConnectionLoad>) -> Snapshot {
    Snapshot { worker_bytes: worker_bytes.to_vec(), connections, elapsed: INTERVAL }
}

fn config(mapping: Mapping, lcam_rule: LcamRule) -> PlacementConfig {
    PlacementConfig { lcam_rule, ..PlacementConfig::new(mapping) }
}

/// Carries moves out, and checks what must hold of every decision.
fn apply(snapshot: &mut Snapshot, moves: &[Move]) {
    let pool = snapshot.worker_bytes.len();
    let before = snapshot.connections.clone();
    for step in moves {
        let connection =
            snapshot.connections.iter_mut().find(|c| c.id == step.connection).expect("it exists");
        let last = connection.workers.clone();
        step.change.apply(&mut connection.workers);
        assert_ne!(last, connection.workers, "a move that moves nothing");
    }
    for (before, after) in before.iter().zip(&snapshot.connections) {
        let unique: BTreeSet<_> = after.workers.iter().collect();
        assert_eq!(unique.len(), after.workers.len(), "a worker twice");
        assert!(!after.workers.is_empty(), "no worker left");
        assert!(after.workers.iter().all(|worker| worker.0 < pool));
        let kept = after.workers.iter().filter(|worker| before.workers.contains(worker)).count();
        let (gone, new) = (before.workers.len() - kept, after.workers.len() - kept);
        assert!(gone == 0 || new <= 1, "workers were exchanged");
        assert!(new <= before.workers.len(), "{new} workers more than {}", before.workers.len());
    }
}

/// Changes of one connection in one decision, at most.
fn most_changes(moves: &[Move]) -> usize {
    let of = |id: u64| moves.iter().filter(|step| step.connection == id).count();
    moves.iter().map(|step| of(step.connection)).max().unwrap_or(0)
}

#[test]
fn figure_8a_deletes_the_most_recently_placed_worker() {
    // fd 1 is served by workers 5, 2 and 3, in this order, and its lock time is above the threshold
    let now = snapshot(&[9; 6], vec![connection(1, &[5, 2, 3], 301, 100)]);
    let moves = lcam::lcam(&now, THRESHOLD);
    assert_eq!(moves, [Move { connection: 1, change: Change::Remove(WorkerIndex(3)) }]);
}

#[test]
fn figure_8b_adds_the_worker_with_the_fewest_bytes_that_does_not_serve_it() {
    // worker 5 has the fewest bytes, but serves fd 1 already; of the others worker 3 has the fewest
    let now = snapshot(&[90, 80, 70, 40, 60, 10], vec![connection(1, &[5, 2], 12, 100)]);
    let moves = lcam::lcam(&now, THRESHOLD);
    assert_eq!(moves, [Move { connection: 1, change: Change::Add(WorkerIndex(3)) }]);
}

#[test]
fn the_last_worker_stays_and_no_ninth_of_eight_is_added() {
    let now = snapshot(
        &[0; 8],
        vec![connection(1, &[4], 9999, 1), connection(2, &[7, 6, 5, 4, 3, 2, 1, 0], 0, 1)],
    );
    assert_eq!(lcam::lcam(&now, THRESHOLD), []);
    assert_eq!(lcam::damped(&now, THRESHOLD, &mut lcam::Damper::default()), []);
}

#[test]
fn exactly_the_threshold_is_not_above_it() {
    let now = snapshot(&[1, 0], vec![connection(1, &[0], 300, 1)]);
    assert_eq!(
        lcam::lcam(&now, THRESHOLD),
        [Move { connection: 1, change: Change::Add(WorkerIndex(1)) }]
    );
}

/// How many workers one connection has after each interval, if its lock time depends on their
/// number alone and its bytes are shared evenly among them.
fn course(
    rule: LcamRule,
    pool: usize,
    intervals: usize,
    lock_ms: impl Fn(usize) -> u64,
) -> Vec<usize> {
    let (config, mut memory) = (config(Mapping::Lcam, rule), Memory::default());
    let mut now = snapshot(&vec![0; pool], vec![connection(1, &[0], lock_ms(1), 10_000)]);
    let mut counts = Vec::new();
    for _ in 0..intervals {
        share_out(&mut now);
        let moves = place(&config, &now, &mut memory);
        apply(&mut now, &moves);
        let count = now.connections[0].workers.len();
        now.connections[0].lock_time = Duration::from_millis(lock_ms(count));
        counts.push(count);
    }
    counts
}

/// Gives each worker its share of the bytes of the connections that it serves.
fn share_out(snapshot: &mut Snapshot) {
    snapshot.worker_bytes.fill(0);
    for connection in &snapshot.connections {
        let share = connection.bytes / connection.workers.len() as u64;
        connection.workers.iter().for_each(|worker| snapshot.worker_bytes[worker.0] += share);
    }
}

/// A connection that contends from its third worker on: as printed it never rests, damped it does.
#[test]
fn as_printed_it_oscillates_and_damped_it_rests() {
    let lock_ms = |count: usize| if count < 3 { 40 } else { 500 };
    assert_eq!(course(LcamRule::AsPrinted, 4, 12, lock_ms), [2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3]);
    assert_eq!(course(LcamRule::Damped, 4, 12, lock_ms), [2, 4, 2, 3, 2, 2, 2, 2, 2, 2, 2, 2]);
}

/// One busy connection that never contends, and idle workers: as printed it has them all after 63
/// intervals (189 s at the paper's 3 s), damped after six.
#[test]
fn as_printed_it_converges_slowly_and_damped_it_does_not() {
    let needed = |rule| {
        1 + course(rule, 64, 80, |_| 0).iter().position(|count| *count == 64).expect("all workers")
    };
    assert_eq!(needed(LcamRule::AsPrinted), 63);
    assert_eq!(needed(LcamRule::Damped), 6);
}

/// Where lock time grows with the workers, one look is enough to know how many are too many. The
/// busiest go first.
#[test]
fn damped_a_contended_connection_keeps_what_its_lock_time_allows() {
    let mut damper = lcam::Damper::default();
    let loads = [500, 180, 170, 160, 150, 140, 130, 120];
    let contended = snapshot(&loads, vec![connection(1, &[7, 0, 1, 2, 3, 4, 5, 6], 1050, 800)]);
    let mut after = contended.clone();
    // 1050 ms for 7 more than the first is 150 ms each, of which 300 ms allow two
    apply(&mut after, &lcam::damped(&contended, THRESHOLD, &mut damper));
    assert_eq!(after.connections[0].workers, workers(&[7, 5, 6]));
}

/// Two connections that contend with a second worker each, on one worker: one of them moves,
/// although neither may grow.
#[test]
fn damped_connections_that_must_not_grow_move_apart() {
    let (config, mut memory) = (config(Mapping::Lcam, LcamRule::Damped), Memory::default());
    let mut now =
        snapshot(&[0; 2], vec![connection(1, &[0], 0, 1000), connection(2, &[0], 0, 1000)]);
    for _ in 0..8 {
        share_out(&mut now);
        for connection in &mut now.connections {
            connection.lock_time =
                if connection.workers.len() > 1 { INTERVAL } else { Duration::ZERO };
        }
        let moves = place(&config, &now, &mut memory);
        apply(&mut now, &moves);
    }
    let mut placed: Vec<_> =
        now.connections.iter().flat_map(|connection| connection.workers.clone()).collect();
    placed.sort_unstable();
    assert_eq!(placed, workers(&[0, 1]));
}

/// Every worker has as much to do as the others: as printed each connection grows all the same,
/// damped none does.
#[test]
fn damped_even_traffic_stays_where_it_is() {
    let connections: Vec<_> =
        (0..8).map(|id| connection(id, &[id as usize % 4], 0, 1000)).collect();
    let even = snapshot(&[2000, 2040, 1950, 2010], connections);
    assert_eq!(lcam::lcam(&even, THRESHOLD).len(), 8);
    assert_eq!(lcam::damped(&even, THRESHOLD, &mut lcam::Damper::default()), []);
}

/// All that grow in one interval crowd on one worker as printed, and spread when damped.
#[test]
fn as_printed_all_take_the_same_worker() {
    let connections: Vec<_> = (0..6).map(|id| connection(id, &[0], 0, 1000)).collect();
    let now = snapshot(&[6000, 0, 0, 0], connections);
    let targets = |moves: Vec<Move>| -> BTreeSet<usize> {
        let target = |step: Move| match step.change {
            Change::Add(worker) => worker.0,
            other => panic!("{other:?}"),
        };
        moves.into_iter().map(target).collect()
    };
    assert_eq!(targets(lcam::lcam(&now, THRESHOLD)), BTreeSet::from([1]));
    assert_eq!(
        targets(lcam::damped(&now, THRESHOLD, &mut lcam::Damper::default())),
        BTreeSet::from([1, 2, 3])
    );
}

#[test]
fn a_damped_connection_grows_again_when_its_traffic_changes() {
    let mut damper = lcam::Damper::default();
    let contended = snapshot(&[500, 500, 0, 0], vec![connection(1, &[0, 1], 400, 1000)]);
    assert_eq!(lcam::damped(&contended, THRESHOLD, &mut damper).len(), 1);
    let calm = |bytes| snapshot(&[bytes, 0, 0, 0], vec![connection(1, &[0], 0, bytes)]);
    assert_eq!(lcam::damped(&calm(1900), THRESHOLD, &mut damper), []);
    assert_eq!(
        lcam::damped(&calm(0), THRESHOLD, &mut damper),
        [],
        "an idle connection needs no worker"
    );
    assert_eq!(lcam::damped(&calm(499), THRESHOLD, &mut damper).len(), 1);
}

#[test]
fn the_heavy_connection_moves_to_the_idle_worker() {
    let connections = vec![
        connection(1, &[0], 0, 600),
        connection(2, &[0], 0, 500),
        connection(3, &[1], 0, 300),
        connection(4, &[2], 0, 100),
    ];
    let now = snapshot(&[0; 3], connections);
    // then the light one, which would share with it, to the worker that now has least: 1100, 300,
    // 100 becomes 500, 400, 600
    let only = |connection, worker| Move { connection, change: Change::Only(WorkerIndex(worker)) };
    assert_eq!(traffic::traffic_aware(&now), [only(1, 2), only(4, 1)]);
    // one heavy connection alone on its worker has nowhere better to go
    let alone = snapshot(&[0; 2], vec![connection(1, &[0], 0, 1000), connection(2, &[1], 0, 10)]);
    assert_eq!(traffic::traffic_aware(&alone), []);
}

#[test]
fn connections_begin_where_the_mapping_says() {
    let at = |mapping, lane, before| {
        first_workers(mapping, 3, NewConnection { lane, before }).expect("workers")
    };
    for before in 0..7 {
        for mapping in [Mapping::RoundRobin, Mapping::TrafficAware, Mapping::Lcam] {
            assert_eq!(at(mapping, 9, before), workers(&[before as usize % 3]));
        }
        assert_eq!(at(Mapping::CoreAffine, 5, before), workers(&[2]));
        assert_eq!(at(Mapping::Shared, 5, before), workers(&[0, 1, 2]));
        assert_eq!(at(Mapping::Handoff, 5, before), workers(&[0, 1, 2]));
    }
    assert_eq!(
        first_workers(Mapping::Shared, 0, NewConnection::default()),
        Err(MappingError::NoWorkers)
    );
    let (current, connection) = (workers(&[2, 0]), NewConnection::default());
    assert_eq!(switched_workers(Mapping::Lcam, 3, connection, &current), Ok(current.clone()));
    assert_eq!(switched_workers(Mapping::RoundRobin, 3, connection, &current), Ok(workers(&[0])));
}

#[test]
fn names_parse_back_and_errors_say_what_is_allowed() {
    for mapping in Mapping::ALL {
        assert_eq!(mapping.name().parse::<Mapping>(), Ok(mapping));
    }
    for rule in LcamRule::ALL {
        assert_eq!(rule.name().parse::<LcamRule>(), Ok(rule));
    }
    let error = "robin".parse::<Mapping>().expect_err("not a name").to_string();
    let all = "round-robin, traffic-aware, shared, lcam, handoff, core-affine";
    assert_eq!(error, format!("unknown mapping \"robin\", expected one of {all}"));
    let error = "printed".parse::<LcamRule>().expect_err("not a name").to_string();
    assert!(error.ends_with("expected one of as-printed, damped"), "{error}");
    let good = PlacementConfig::default();
    assert_eq!(good.check(), Ok(()));
    for interval in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(3601)] {
        let error =
            PlacementConfig { interval, ..good }.check().expect_err("out of range").to_string();
        assert!(error.contains("1 ms to 3600s"), "{error}");
    }
    for lock_threshold in [0.0, -1.0, 1.01, f64::NAN] {
        let error = PlacementConfig { lock_threshold, ..good }
            .check()
            .expect_err("out of range")
            .to_string();
        assert!(error.contains("above 0 and up to 1"), "{error}");
    }
    assert_eq!(good.threshold(INTERVAL), THRESHOLD);
}

#[test]
fn events_follow_connections_and_workers() {
    let cases = [
        (0, 8, 1),
        (1, 8, 1),
        (8, 8, 1),
        (9, 8, 2),
        (30, 8, 4),
        (30, 0, 30),
        (usize::MAX, 1, EVENTS_MAX),
    ];
    for (connections, workers, events) in cases {
        assert_eq!(MaxEvents::Auto.limit(connections, workers), events);
        assert_eq!(MaxEvents::Fixed(5000).limit(connections, workers), 5000);
    }
    for text in ["auto", "1", "5000", "65536"] {
        assert_eq!(text.parse::<MaxEvents>().expect("allowed").to_string(), text);
    }
    for text in ["0", "65537", "-1", "many", ""] {
        let error = text.parse::<MaxEvents>().expect_err("not allowed").to_string();
        assert!(error.contains("auto and 1 to 65536"), "{error}");
    }
}

prop_compose! {
    fn any_snapshot()(pool in 1usize..9)(
        worker_bytes in prop::collection::vec(0u64..10_000, pool),
        connections in prop::collection::vec(
            (prop::sample::subsequence((0..pool).collect::<Vec<_>>(), 1..=pool).prop_shuffle(), 0u64..700, 0u64..5000),
            0..20,
        ),
    ) -> Snapshot {
        let load = |(id, (placed, lock_ms, bytes)): (usize, (Vec<usize>, u64, u64))| {
            connection(id as u64, &placed, lock_ms, bytes)
        };
        snapshot(&worker_bytes, connections.into_iter().enumerate().map(load).collect())
    }
}

fn any_config() -> impl Strategy<Value = PlacementConfig> {
    let mapping = prop::sample::select(Mapping::ALL.to_vec());
    let rule = prop::sample::select(LcamRule::ALL.to_vec());
    (mapping, rule, 0.001f64..1.0).prop_map(|(mapping, rule, lock_threshold)| PlacementConfig {
        lock_threshold,
        ..config(mapping, rule)
    })
}

proptest! {
    #[test]
    fn decisions_are_valid_and_the_same_each_time(config in any_config(), mut now in any_snapshot()) {
        if config.mapping == Mapping::TrafficAware {
            now.connections.iter_mut().for_each(|connection| connection.workers.truncate(1));
        }
        let moves = place(&config, &now, &mut Memory::default());
        prop_assert_eq!(&moves, &place(&config, &now, &mut Memory::default()));
        match (config.mapping, config.lcam_rule) {
            (Mapping::TrafficAware, _) => prop_assert!(moves.len() <= now.worker_bytes.len()),
            (Mapping::Lcam, LcamRule::Damped) => {}
            _ => prop_assert!(most_changes(&moves) <= 1),
        }
        if !config.mapping.is_adjusted() {
            prop_assert!(moves.is_empty());
        }
        apply(&mut now, &moves);
    }

    /// Traffic that stays the same per connection: the moves end, and none made the busiest worker
    /// busier.
    #[test]
    fn traffic_aware_comes_to_rest(mut now in any_snapshot()) {
        for connection in &mut now.connections {
            connection.workers.truncate(1);
        }
        let busiest = |now: &Snapshot| -> u64 {
            let sum = |worker| now.connections.iter().filter(|c| c.workers[0] == worker).map(|c| c.bytes).sum::<u64>();
            (0..now.worker_bytes.len()).map(|worker| sum(WorkerIndex(worker))).max().unwrap_or(0)
        };
        let mut rounds = 0;
        loop {
            let (before, moves) = (busiest(&now), traffic::traffic_aware(&now));
            if moves.is_empty() {
                break;
            }
            apply(&mut now, &moves);
            prop_assert!(busiest(&now) <= before);
            rounds += 1;
            prop_assert!(rounds <= 100, "still moving");
        }
    }

    /// A mapping remembers only what it has seen: two that saw the same decide the same, interval
    /// after interval.
    #[test]
    fn memory_is_all_that_one_interval_hands_to_the_next(config in any_config(), seen in prop::collection::vec(any_snapshot(), 1..6)) {
        let (mut one, mut other) = (Memory::default(), Memory::default());
        for mut now in seen {
            if config.mapping == Mapping::TrafficAware {
                now.connections.iter_mut().for_each(|connection| connection.workers.truncate(1));
            }
            let moves = place(&config, &now, &mut one);
            prop_assert_eq!(&moves, &place(&config, &now, &mut other));
            apply(&mut now, &moves);
        }
    }

    /// Steady traffic, shared evenly by the workers of a connection, and lock time that is any
    /// function of their number: damped, the moves end. (Each fall lowers a connection's ceiling,
    /// and between two falls workers are added, or exchanged for less loaded ones.)
    #[test]
    fn damped_comes_to_rest(mut now in any_snapshot(), lock_ms in prop::collection::vec(0u64..700, 9)) {
        let mut damper = lcam::Damper::default();
        let mut rounds = 0;
        loop {
            share_out(&mut now);
            for connection in &mut now.connections {
                connection.lock_time = Duration::from_millis(lock_ms[connection.workers.len()]);
            }
            let moves = lcam::damped(&now, THRESHOLD, &mut damper);
            if moves.is_empty() {
                break;
            }
            apply(&mut now, &moves);
            rounds += 1;
            prop_assert!(rounds <= 100, "still moving: {moves:?}");
        }
    }
}
