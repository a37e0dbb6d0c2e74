//! The model against what can be computed by hand, and its own invariants.

use super::*;
use crate::scenario::{Mode, Pattern, ServiceTimes};

const ALL: [Mapping; 6] = Mapping::ALL;

fn even(in_flight: usize) -> Traffic {
    Traffic::Even { in_flight, in_flight_mib_max: 1 }
}

fn skewed(in_flight: usize, ping_ms: u64) -> Traffic {
    Traffic::Roles { heavy_every: 4, in_flight, in_flight_mib_max: 1, ping_ms }
}

fn plan(mapping: Mapping, traffic: Traffic, workers: usize, connections: usize) -> Plan {
    let times = ServiceTimes {
        locked_us_per_message: 100.0,
        free_us_per_message: 900.0,
        ..ServiceTimes::default()
    };
    let cell = Cell {
        mode: Mode::Blocking,
        service: "test".into(),
        times,
        traffic_name: "test".into(),
        traffic,
        pattern: Pattern::Randread,
        block_bytes: 4096,
        max_events: None,
        variants: Vec::new(),
    };
    let placement =
        PlacementConfig { interval: Duration::from_millis(100), ..PlacementConfig::new(mapping) };
    let (warm_up, measure) = (Duration::from_millis(1500), Duration::from_millis(1000));
    Plan { cell, workers, connections, placement, warm_up, measure }
}

#[test]
fn one_worker_serves_one_request_per_service_time() {
    for mapping in ALL {
        let outcome = simulate(&plan(mapping, even(4), 1, 1));
        assert!(
            (950.0..=1000.0).contains(&outcome.ops_per_s),
            "{mapping}: {} ops/s of 1000",
            outcome.ops_per_s
        );
        // Little's law: four in flight, a thousand each second.
        assert!((3900.0..4250.0).contains(&outcome.mean_us), "{mapping}: {} us", outcome.mean_us);
        assert_eq!(outcome.lock_ns, [0]);
    }
}

#[test]
fn even_traffic_fills_all_workers_of_fixed_mappings() {
    for mapping in
        [Mapping::RoundRobin, Mapping::CoreAffine, Mapping::TrafficAware, Mapping::Handoff]
    {
        let outcome = simulate(&plan(mapping, even(4), 4, 16));
        assert!(outcome.ops_per_s > 3850.0, "{mapping}: {} ops/s of 4000", outcome.ops_per_s);
        let total: u64 = outcome.bytes.iter().sum();
        assert!(
            (total as f64 - outcome.ops_per_s * 4096.0).abs() < 0.05 * total as f64,
            "{mapping}: bytes and ops differ"
        );
    }
}

#[test]
fn skew_leaves_workers_idle_under_round_robin_and_not_under_lanes() {
    let traffic = skewed(8, 50);
    let ops = |mapping| simulate(&plan(mapping, traffic, 4, 16)).ops_per_s;
    // All four connections with data are on worker 0, which serves the pings of none.
    assert!((950.0..=1000.0).contains(&ops(Mapping::RoundRobin)), "{}", ops(Mapping::RoundRobin));
    for mapping in [Mapping::CoreAffine, Mapping::TrafficAware, Mapping::Handoff] {
        assert!(ops(mapping) > 3400.0, "{mapping}: {} ops/s", ops(mapping));
    }
}

#[test]
fn only_shared_workers_wait_for_locks() {
    let traffic = skewed(8, 50);
    let waits = |mapping| simulate(&plan(mapping, traffic, 4, 16)).lock_ns.iter().sum::<u64>();
    for mapping in
        [Mapping::RoundRobin, Mapping::TrafficAware, Mapping::Handoff, Mapping::CoreAffine]
    {
        assert_eq!(waits(mapping), 0, "{mapping}");
    }
    let (shared, lcam) = (waits(Mapping::Shared), waits(Mapping::Lcam));
    assert!(shared > 0, "nobody waits under shared");
    assert!(lcam <= shared, "lcam waits {lcam} ns, shared {shared}");
}

#[test]
fn no_mapping_serves_more_than_its_workers_can() {
    let traffics = [even(4), skewed(16, 20)];
    for traffic in traffics {
        for mapping in ALL {
            for locked_us in [20.0, 500.0, 1000.0] {
                let mut plan = plan(mapping, traffic, 4, 16);
                plan.cell.times.locked_us_per_message = locked_us;
                plan.cell.times.free_us_per_message = 1000.0 - locked_us;
                let outcome = simulate(&plan);
                assert!(
                    outcome.ops_per_s <= 4050.0,
                    "{mapping}, {locked_us} us: {} ops/s of 4000",
                    outcome.ops_per_s
                );
            }
        }
    }
}

#[test]
fn the_same_plan_gives_the_same_outcome() {
    let traffics = [
        Traffic::Zipf { exponent: 1.0, in_flight: 16, seed: 3 },
        Traffic::OpenRoles {
            heavy_every: 2,
            offered: 0.5,
            in_flight_max: 32,
            ping_ms: 10,
            seed: 3,
        },
    ];
    for traffic in traffics {
        for mapping in ALL {
            let (a, b) =
                (simulate(&plan(mapping, traffic, 3, 9)), simulate(&plan(mapping, traffic, 3, 9)));
            assert_eq!(
                (a.ops_per_s, a.mean_us, a.bytes, &a.lock_ns),
                (b.ops_per_s, b.mean_us, b.bytes, &b.lock_ns)
            );
            assert!(a.ops_per_s > 0.0, "{mapping}: nothing was served");
        }
    }
}

#[test]
fn an_open_loop_serves_what_is_offered() {
    let traffic = Traffic::OpenRoles {
        heavy_every: 1,
        offered: 0.5,
        in_flight_max: 64,
        ping_ms: 10,
        seed: 5,
    };
    let outcome = simulate(&plan(Mapping::CoreAffine, traffic, 4, 8));
    assert!(
        (1800.0..2200.0).contains(&outcome.ops_per_s),
        "{} ops/s, 2000 were offered",
        outcome.ops_per_s
    );
}
