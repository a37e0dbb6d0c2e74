//! Interleavings of a core that places what it has and one that adds up, by `loom`; and the other
//! order of looking, which must be caught.

use super::*;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64 as Modelled;
use loom::thread;

impl Count for Modelled {
    fn load(&self, order: Ordering) -> u64 {
        Modelled::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Modelled::store(self, value, order);
    }

    fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
        Modelled::fetch_add(self, by, order)
    }
}

/// One core takes a record and places it and one from before, and another adds up meanwhile by
/// `taken`.
fn nothing_is_left_out(taken: fn(&Usage<Modelled>) -> u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let core =
            |unplaced| CoreUse { written: Modelled::new(0), unplaced: Modelled::new(unplaced) };
        let usage = Arc::new(Usage::new([core(10), core(0)].into_iter()));
        let other = Arc::clone(&usage);
        let thread = thread::spawn(move || {
            other.journalled(0, 1, 5);
            other.wrote(0, 10);
            other.placed(0, 5);
            other.wrote(0, 5);
            other.placed(0, 0);
        });
        let (first, second) = (taken(&usage), taken(&usage));
        assert!(first >= 10 && second >= 10, "bytes are neither waiting nor written");
        thread.join().expect("no panic");
        assert_eq!(taken(&usage), 16);
    });
}

#[test]
fn what_is_placed_meanwhile_is_not_left_out() {
    nothing_is_left_out(|usage| usage.taken_since(0));
}

#[test]
#[should_panic(expected = "neither waiting nor written")]
fn the_model_finds_the_other_order_of_looking() {
    nothing_is_left_out(|usage| usage.written() + usage.unplaced());
}
