//! Interleavings of writes and syncs of one file, with up to three preemptions, by `loom`; and a
//! sync that counts too much, which must be caught.

use super::*;
use crate::poison::tests::{ModelledPoison, modelled};
use loom::sync::atomic::AtomicU64 as Modelled;
use loom::sync::{Arc, Mutex};
use loom::thread;

impl Count for Modelled {
    fn load(&self, order: Ordering) -> u64 {
        Modelled::load(self, order)
    }

    fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
        Modelled::fetch_add(self, by, order)
    }

    fn fetch_max(&self, to: u64, order: Ordering) -> u64 {
        Modelled::fetch_max(self, to, order)
    }

    fn take_off(&self, by: u64, order: Ordering) {
        let _ = self.fetch_update(order, order, |now| Some(now.saturating_sub(by)));
    }
}

/// When a sync says what it counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// As the contract wants.
    Before,
    /// When the disk is done.
    After,
}

/// A file whose changes are bits.
struct File {
    counts: Counts,
    lock: Mutex<()>,
    changes: Changes<Modelled>,
    poison: ModelledPoison,
    /// What the kernel has, and what the disk has of it.
    cached: Modelled,
    durable: Modelled,
}

impl File {
    fn new(counts: Counts) -> Self {
        let changes = Changes {
            noted: Modelled::new(0),
            synced: Modelled::new(0),
            unsynced_bytes: Modelled::new(0),
        };
        let (cached, durable) = (Modelled::new(0), Modelled::new(0));
        Self {
            counts,
            lock: Mutex::new(()),
            changes,
            poison: modelled(Mutex::new(())),
            cached,
            durable,
        }
    }

    fn write(&self, bit: u64) {
        let _lock = self.lock.lock().expect("no panic");
        self.changes.note(1);
        self.cached.store(self.cached.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
    }

    fn upto(&self) -> Upto {
        let _lock = self.lock.lock().expect("no panic");
        self.changes.upto()
    }

    fn sync(&self) {
        let begin = || Ok::<_, ()>(self.changes.is_dirty().then(|| self.upto()));
        let synced = self.poison.sync(begin, |upto| {
            self.durable.store(self.cached.load(Ordering::Relaxed), Ordering::Relaxed);
            self.changes.synced(if self.counts == Counts::Before { upto } else { self.upto() });
            Ok(())
        });
        assert_eq!(synced, Ok(()), "this disk does not fail");
    }

    fn has(&self, bits: u64) -> bool {
        self.durable.load(Ordering::Relaxed) & bits == bits
    }
}

/// One writes and syncs, another writes while that may be under way and syncs if `both`.
fn what_is_clean_is_durable(counts: Counts, both: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let file = Arc::new(File::new(counts));
        let other = Arc::clone(&file);
        let thread = thread::spawn(move || {
            other.write(1);
            if both {
                other.sync();
                assert!(other.has(1), "a sync makes durable what was there before it");
            }
        });
        file.write(2);
        file.sync();
        assert!(file.has(2), "a sync makes durable what was there before it");
        thread.join().expect("no panic");
        assert!(file.changes.is_dirty() || file.has(3), "clean, and not durable");
        assert!(!both || !file.changes.is_dirty(), "everything was synced");
        let unsynced = if file.changes.is_dirty() { 1 } else { 0 };
        assert_eq!(file.changes.unsynced_bytes(), unsynced, "a byte for each change");
    });
}

#[test]
fn a_sync_counts_what_was_done_before_it() {
    what_is_clean_is_durable(Counts::Before, false);
    what_is_clean_is_durable(Counts::Before, true);
}

#[test]
#[should_panic(expected = "clean, and not durable")]
fn the_model_finds_a_sync_that_counts_what_came_meanwhile() {
    what_is_clean_is_durable(Counts::After, false);
}
