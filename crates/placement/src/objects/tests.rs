//! Properties of placement, and the golden vectors.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A tree with `per_host` OSDs on each host and two hosts to a rack; `weights[i]` for osd.i.
fn tree(weights: &[u32], per_host: usize) -> Vec<Device> {
    let device = |(i, &weight): (usize, &u32)| {
        let host = (i / per_host) as u64;
        Device {
            osd: OsdNumber(i as u32),
            rack: 1000 + host / 2,
            host: 100 + host,
            weight,
            is_in: true,
        }
    };
    weights.iter().enumerate().map(device).collect()
}

fn map(devices: &[Device]) -> Hierarchy {
    Hierarchy::new(devices.to_vec()).expect("a proper tree")
}

fn equal(n: usize, per_host: usize) -> Hierarchy {
    map(&tree(&vec![WEIGHT_ONE; n], per_host))
}

fn placements(
    map: &Hierarchy,
    pgs: u64,
    shards: usize,
    domain: FailureDomain,
) -> Vec<Vec<Option<OsdNumber>>> {
    (0..pgs).map(|pg| select(map, pg, shards, domain)).collect()
}

/// How many shards each OSD holds.
fn load(placed: &[Vec<Option<OsdNumber>>]) -> BTreeMap<u32, u64> {
    let mut count = BTreeMap::new();
    placed.iter().flatten().flatten().for_each(|osd| *count.entry(osd.0).or_default() += 1);
    count
}

/// Shards whose OSD differs.
fn moved(a: &[Vec<Option<OsdNumber>>], b: &[Vec<Option<OsdNumber>>]) -> u64 {
    let differ =
        |(a, b): (&Vec<_>, &Vec<_>)| a.iter().zip(b).filter(|(a, b)| a != b).count() as u64;
    a.iter().zip(b).map(differ).sum()
}

/// Shards that have to move, whatever their positions: members of the new sets that were not in the
/// old.
fn arrived(a: &[Vec<Option<OsdNumber>>], b: &[Vec<Option<OsdNumber>>]) -> u64 {
    a.iter().zip(b).map(|(a, b)| b.iter().filter(|osd| !a.contains(osd)).count() as u64).sum()
}

/// Chi-square over expected counts.
fn chi_square(observed: &BTreeMap<u32, u64>, expected: &[f64]) -> f64 {
    let term = |(i, e): (usize, &f64)| {
        let o = observed.get(&(i as u32)).copied().unwrap_or(0) as f64;
        (o - e) * (o - e) / e
    };
    expected.iter().enumerate().filter(|(_, e)| **e > 0.0).map(term).sum()
}

const DOMAINS: [FailureDomain; 3] = [FailureDomain::Osd, FailureDomain::Host, FailureDomain::Rack];

#[test]
fn logarithm_is_right_at_every_value() {
    for h in 0..=u16::MAX {
        let want = 16.0 - (f64::from(h) + 1.0).log2();
        let got = minus_log2(h) as f64 / (1u64 << LOG_BITS) as f64;
        assert!((want - got).abs() < 1e-9, "{h}: {got} instead of {want}");
        assert!(h == 0 || minus_log2(h) < minus_log2(h - 1));
    }
    assert_eq!((minus_log2(0), minus_log2(u16::MAX)), (16 << LOG_BITS, 0));
}

#[test]
fn one_shard_follows_the_weights() {
    let weights = [1, 2, 3, 4, 0, 10].map(|w| w * WEIGHT_ONE / 2);
    let placed = placements(&map(&tree(&weights, 1)), 20_000, 1, FailureDomain::Osd);
    let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
    let expected = weights.map(|w| f64::from(w) / total * 20_000.0);
    let observed = load(&placed);
    assert_eq!(observed.get(&4), None, "an OSD of weight 0 is never chosen");
    // 4 degrees of freedom: beyond 23.5 with a chance of one in ten thousand; the seeds are fixed
    assert!(chi_square(&observed, &expected) < 23.5, "{observed:?}");
}

#[test]
fn equal_osds_get_equal_shares_in_every_domain() {
    for domain in DOMAINS {
        let placed = placements(&equal(24, 2), 4_000, 3, domain);
        let expected = vec![4_000.0 * 3.0 / 24.0; 24];
        // 23 degrees of freedom; beyond 58.6 with a chance of one in ten thousand
        assert!(chi_square(&load(&placed), &expected) < 58.6, "{domain:?}: {:?}", load(&placed));
    }
}

#[test]
fn every_position_is_as_likely_for_every_osd() {
    let placed = placements(&equal(3, 1), 9_000, 3, FailureDomain::Host);
    let first: Vec<_> = placed.iter().map(|p| p[..1].to_vec()).collect();
    assert!(chi_square(&load(&first), &[3_000.0; 3]) < 18.4, "{:?}", load(&first));
}

#[test]
fn a_tree_with_a_mistake_is_refused() {
    let mut twice = tree(&[1, 1], 1);
    twice[1].osd = OsdNumber(0);
    assert_eq!(Hierarchy::new(twice), Err(HierarchyError::Twice(OsdNumber(0))));
    let mut racks = tree(&[1, 1], 2);
    racks[1].rack = 7;
    assert_eq!(Hierarchy::new(racks), Err(HierarchyError::TwoRacks(OsdNumber(1))));
}

#[test]
fn kept_positions_move_only_what_is_new() {
    let osd = |n| Some(OsdNumber(n));
    let kept =
        keep_positions(&[OsdNumber(1), OsdNumber(2), OsdNumber(3)], &[osd(3), osd(4), osd(1)]);
    assert_eq!(kept, vec![osd(1), osd(4), osd(3)]);
    let kept = keep_positions(&[OsdNumber(1), OsdNumber(2)], &[osd(5), None]);
    assert_eq!(kept, vec![osd(5), None]);
    let kept = keep_positions(&[], &[osd(5), osd(6)]);
    assert_eq!(kept, vec![osd(5), osd(6)]);
}

/// The vectors, as they stand in the file: one line per PG.
fn golden_lines() -> String {
    let weights: Vec<u32> = (0..12).map(|i| WEIGHT_ONE / 2 * (1 + i % 4)).collect();
    let mut out = String::new();
    for (name, domain) in
        [("osd", FailureDomain::Osd), ("host", FailureDomain::Host), ("rack", FailureDomain::Rack)]
    {
        for (shards, out_osd) in [(3, None), (3, Some(5)), (6, None), (6, Some(0))] {
            let mut devices = tree(&weights, 2);
            devices.iter_mut().filter(|d| Some(d.osd.0) == out_osd).for_each(|d| d.is_in = false);
            let map = map(&devices);
            for pg in [0, 1, 2, 31, 1 << 32, u64::MAX] {
                let osds = select(&map, pg, shards, domain);
                let osds: Vec<String> =
                    osds.iter().map(|o| o.map_or("-".into(), |o| o.0.to_string())).collect();
                let out_osd = out_osd.map_or("-".into(), |o| o.to_string());
                out += &format!(
                    "{name} shards={shards} out={out_osd} pg={pg:#x}: {}\n",
                    osds.join(" ")
                );
            }
        }
    }
    out
}

/// A difference here means that existing data would be looked for in other places: undo the change.
#[test]
fn golden_vectors_stand() {
    let golden = include_str!("../../tests/golden/objects.txt");
    let lines = golden_lines();
    for (want, got) in golden.lines().zip(lines.lines()) {
        assert_eq!(want, got);
    }
    assert_eq!(golden, lines);
    assert_eq!(hash(&[1, 2, 3]), 0x6768_5002_fd44_a950, "the hash changed");
    assert_eq!(name_number("localhost"), 0xdb3f_0534_03ad_937a, "the hash of names changed");
}

/// Trees of up to 16 OSDs with uneven weights, some of them zero.
fn trees() -> impl Strategy<Value = Vec<Device>> {
    let weight = prop_oneof![1 => Just(0), 8 => 1..4 * WEIGHT_ONE];
    (prop::collection::vec(weight, 1..16), 1usize..4, any::<u16>()).prop_map(
        |(weights, per_host, out)| {
            let mut devices = tree(&weights, per_host);
            devices.iter_mut().enumerate().for_each(|(i, d)| d.is_in = out >> i & 3 != 3);
            devices
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_two_shards_share_a_domain_and_none_is_left_out(devices in trees(), pg: u64, shards in 0usize..7) {
        let map = map(&devices);
        for domain in DOMAINS {
            let chosen = select(&map, pg, shards, domain);
            prop_assert_eq!(chosen.len(), shards);
            prop_assert_eq!(&chosen, &select(&map, pg, shards, domain), "the same again");
            let filled: Vec<&Device> = chosen.iter().flatten()
                .map(|osd| devices.iter().find(|d| d.osd == *osd).expect("of the tree")).collect();
            prop_assert!(filled.iter().all(|d| d.is_in && d.weight > 0));
            let domains: BTreeSet<u64> = filled.iter().map(|d| d.domain(domain)).collect();
            prop_assert_eq!(domains.len(), filled.len());
            prop_assert_eq!(filled.len(), shards.min(map.domains(domain)));
        }
    }

    #[test]
    fn the_order_of_the_list_means_nothing(devices in trees(), pg: u64) {
        let mut turned = devices.clone();
        turned.reverse();
        prop_assert_eq!(select(&map(&devices), pg, 3, FailureDomain::Host), select(&map(&turned), pg, 3, FailureDomain::Host));
    }

    /// `indep`: an OSD that goes out leaves its position to a replacement, and all others keep
    /// theirs.
    #[test]
    fn positions_are_stable_when_an_osd_goes_out(weights in prop::collection::vec(1..4 * WEIGHT_ONE, 4..14), dead: prop::sample::Index) {
        let mut devices = tree(&weights, 2);
        let before = map(&devices);
        let dead = dead.index(devices.len());
        devices[dead].is_in = false;
        let after = map(&devices);
        for pg in 0..64 {
            for domain in DOMAINS {
                let (a, b) = (select(&before, pg, 3, domain), select(&after, pg, 3, domain));
                for (a, b) in a.iter().zip(&b) {
                    prop_assert!(a == b || *a == Some(OsdNumber(dead as u32)) || a.is_none());
                }
            }
        }
    }

    /// A new host takes its share; sets change by no more, and positions by little more.
    #[test]
    fn adding_a_host_moves_little(hosts in 4usize..9) {
        let (before, after) = (equal(hosts, 1), equal(hosts + 1, 1));
        let a = placements(&before, 1_000, 3, FailureDomain::Host);
        let b = placements(&after, 1_000, 3, FailureDomain::Host);
        let gained = load(&b)[&(hosts as u32)];
        prop_assert_eq!(arrived(&a, &b), gained, "only the new host receives data");
        prop_assert!(moved(&a, &b) <= gained * 2, "{} moved for {gained}", moved(&a, &b));
        let kept: Vec<_> = a.iter().zip(&b).map(|(a, b)| {
            keep_positions(&a.iter().flatten().copied().collect::<Vec<_>>(), b)
        }).collect();
        prop_assert_eq!(moved(&a, &kept), gained, "the least possible");
    }

    /// What a removed host held goes to others; nothing else changes hands.
    #[test]
    fn removing_a_host_moves_only_its_shards(hosts in 5usize..10, gone: prop::sample::Index) {
        let devices = tree(&vec![WEIGHT_ONE; hosts], 1);
        let gone = gone.index(hosts);
        let mut fewer = devices.clone();
        fewer.remove(gone);
        let a = placements(&map(&devices), 1_000, 3, FailureDomain::Host);
        let b = placements(&map(&fewer), 1_000, 3, FailureDomain::Host);
        let held = load(&a)[&(gone as u32)];
        prop_assert_eq!(arrived(&a, &b), held);
        prop_assert!(moved(&a, &b) <= held * 2, "{} moved for {held}", moved(&a, &b));
    }

    /// A heavier OSD only gains, a lighter one only loses.
    #[test]
    fn reweighting_moves_only_the_difference(which: prop::sample::Index, factor in 2u32..5) {
        let devices = tree(&[WEIGHT_ONE; 8], 1);
        let mut heavier = devices.clone();
        let which = which.index(8);
        heavier[which].weight *= factor;
        let a = placements(&map(&devices), 1_000, 3, FailureDomain::Osd);
        let b = placements(&map(&heavier), 1_000, 3, FailureDomain::Osd);
        let at = which as u32;
        prop_assert_eq!(arrived(&a, &b), load(&b)[&at] - load(&a)[&at]);
        prop_assert_eq!(arrived(&b, &a), arrived(&a, &b));
    }
}
