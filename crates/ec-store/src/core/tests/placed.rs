//! Writes of whole slots, placed beside the old bytes: killed amid all that follows, opened again
//! with other settings.

use super::bench::{Bench, FRAGMENT, SLOT, config, object};
use super::{SECTOR, on_worker, wait_for_empty_journals};
use messenger::Worker;
use protocol::shard::Op;
use std::time::Duration;

/// Slots that these tests write to.
const SLOTS: usize = 6;

/// A bench with one object that has bytes everywhere, and nothing in the journals.
async fn filled(worker: &Worker, random: &mut fastrand::Rng) -> Bench {
    let mut bench = Bench::new(worker, config()).await;
    bench.write(object(1), Op::Write, 0..FRAGMENT, random);
    bench.settle(true).await;
    wait_for_empty_journals(&mut bench).await;
    hold_trims(&bench);
    bench
}

/// From now on nothing leaves the journals by itself.
fn hold_trims(bench: &Bench) {
    bench.cores.iter().flatten().for_each(|core| core.shared.state.borrow_mut().last_trim = None);
}

/// One sector of a slot: through the journal.
fn write_small(bench: &mut Bench, slot: usize, random: &mut fastrand::Rng) {
    let at = slot * SLOT + random.usize(0..SLOT / SECTOR) * SECTOR;
    bench.write(object(1), Op::Write, at..at + SECTOR, random);
}

/// Whole slots. Guards against tests that place nothing.
async fn write_placed(bench: &mut Bench, slot: usize, count: usize, random: &mut fastrand::Rng) {
    let before = placed_bytes(bench);
    bench.write(object(1), Op::Write, slot * SLOT..(slot + count) * SLOT, random);
    bench.settle(false).await;
    assert_eq!(placed_bytes(bench), before + (3 * count * SLOT) as u64, "it is not placed");
}

fn placed_bytes(bench: &Bench) -> u64 {
    bench.cores.iter().flatten().map(|core| core.shared.state.borrow().store.placed_bytes()).sum()
}

async fn apply(bench: &Bench) {
    for core in bench.cores.clone().iter().flatten() {
        core.apply().await;
    }
}

async fn sync_everything(bench: &Bench) {
    for core in bench.cores.clone().iter().flatten() {
        core.sync(true).await.expect("synced");
    }
}

fn restart(bench: &mut Bench) {
    (0..3).for_each(|i| bench.kill(i));
    (0..3).for_each(|i| bench.open(i));
    bench.set_view(&[0, 1, 2], &[]);
}

async fn check(bench: &mut Bench) {
    bench.check(0, 1).await;
    bench.check(1, 2).await;
}

/// What is in the journals is served, applied again, and then is in the files.
async fn check_across_restarts(bench: &mut Bench) {
    restart(bench);
    check(bench).await;
    bench.settle(true).await;
    wait_for_empty_journals(bench).await;
    check(bench).await;
    restart(bench);
    check(bench).await;
}

#[test]
fn a_small_write_below_a_placed_one_stays_below_it_when_both_are_applied_again() {
    on_worker(|worker| async move {
        for seed in 0..6 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bench = filled(&worker, &mut random).await;
            for slot in 0..SLOTS {
                if seed % 3 == 1 {
                    write_placed(&mut bench, slot, 1, &mut random).await;
                }
                write_small(&mut bench, slot, &mut random);
                if random.bool() {
                    bench.settle(true).await;
                    apply(&bench).await;
                }
                write_placed(&mut bench, slot, 1 + slot % 2, &mut random).await;
                if seed % 3 == 2 {
                    write_small(&mut bench, slot, &mut random);
                }
            }
            bench.settle(true).await;
            apply(&bench).await;
            sync_everything(&bench).await;
            check(&mut bench).await;
            check_across_restarts(&mut bench).await;
        }
    });
}

#[test]
fn small_and_placed_writes_survive_killed_processes_in_any_order() {
    on_worker(|worker| async move {
        let mut seen = 0;
        for seed in 0..12 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bench = filled(&worker, &mut random).await;
            for _ in 0..4 {
                for _ in 0..random.usize(3..16) {
                    let slot = random.usize(0..SLOTS);
                    match random.u8(0..12) {
                        0..5 => write_small(&mut bench, slot, &mut random),
                        5..10 => {
                            let slots = slot * SLOT..(slot + random.usize(1..3)) * SLOT;
                            bench.write(object(1), Op::Write, slots, &mut random);
                        }
                        10 => bench.write(
                            object(1),
                            Op::Punch,
                            slot * SLOT..slot * SLOT + SECTOR,
                            &mut random,
                        ),
                        _ => bench.write(
                            object(1),
                            Op::Truncate,
                            slot * SLOT..(slot + 1) * SLOT,
                            &mut random,
                        ),
                    }
                    match random.u8(0..8) {
                        0 => {
                            bench.settle(true).await;
                            apply(&bench).await;
                            sync_everything(&bench).await;
                        }
                        1 => apply(&bench).await,
                        2 => bench.turn().await,
                        _ => {}
                    }
                }
                bench.settle(random.bool()).await;
                if random.bool() {
                    apply(&bench).await;
                }
                if random.bool() {
                    sync_everything(&bench).await;
                }
                seen += placed_bytes(&bench);
                restart(&mut bench);
                check(&mut bench).await;
            }
            check_across_restarts(&mut bench).await;
        }
        assert!(seen > 0, "nothing was placed");
    });
}

#[test]
fn placed_writes_are_served_after_the_size_of_slots_was_changed() {
    on_worker(|worker| async move {
        for (seed, (slot_bytes, is_applied)) in
            (0..).zip([(0, false), (0, true), (2048, false), (2048, true)])
        {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bench = filled(&worker, &mut random).await;
            for slot in 0..SLOTS {
                write_placed(&mut bench, slot, 1, &mut random).await;
            }
            // Never written before: placed where its slots are.
            bench.write(object(2), Op::Write, 0..FRAGMENT, &mut random);
            bench.settle(true).await;
            if is_applied {
                apply(&bench).await;
                sync_everything(&bench).await;
            }
            let placed = placed_bytes(&bench);
            bench.config.fragment.fragment_slot_bytes = slot_bytes;
            restart(&mut bench);
            assert_eq!(placed_bytes(&bench), placed, "records were dropped");
            check(&mut bench).await;
            // The file keeps its slots, or gets others, and takes writes of all sizes.
            for slot in 0..SLOTS {
                let start = slot / 2 * 2 * SLOT;
                bench.write(
                    object(1 + slot as u64 % 2),
                    Op::Write,
                    start..start + 2 * SLOT,
                    &mut random,
                );
                write_small(&mut bench, slot, &mut random);
                bench.write(object(1), Op::Write, slot * SLOT..(slot + 1) * SLOT, &mut random);
            }
            bench.settle(true).await;
            check(&mut bench).await;
            check_across_restarts(&mut bench).await;
            bench.config = config();
            check_across_restarts(&mut bench).await;
        }
    });
}

#[test]
fn a_place_that_a_slot_has_left_is_not_taken_while_an_older_write_may_be_done_there_again() {
    on_worker(|worker| async move {
        let mut random = fastrand::Rng::with_seed(5);
        let mut bench = filled(&worker, &mut random).await;
        write_small(&mut bench, 0, &mut random);
        bench.settle(true).await;
        apply(&bench).await;
        write_placed(&mut bench, 0, 1, &mut random).await;
        bench.settle(true).await;
        apply(&bench).await;
        // From now on nothing brings the map to the file, as if the kill came at once.
        for core in bench.cores.iter().flatten() {
            core.set_journal_sync_interval(Duration::from_secs(3600));
        }
        for slot in 1..SLOTS {
            write_placed(&mut bench, slot, 1, &mut random).await;
        }
        restart(&mut bench);
        check(&mut bench).await;
        bench.settle(true).await;
        wait_for_empty_journals(&mut bench).await;
        check(&mut bench).await;
    });
}
