//! Interleavings of a worker and those who have something for it, with up to three preemptions, by
//! `loom`; and two wrong ways, which must be caught.

use super::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool as ModelledFlag, AtomicU32 as Modelled};
use loom::thread;

impl Flag for ModelledFlag {
    fn load(&self, order: Ordering) -> bool {
        ModelledFlag::load(self, order)
    }

    fn store(&self, value: bool, order: Ordering) {
        ModelledFlag::store(self, value, order);
    }

    fn swap(&self, value: bool, order: Ordering) -> bool {
        ModelledFlag::swap(self, value, order)
    }
}

/// A sleep flag as a worker and its visitors use it.
trait Bed: Default + Send + Sync + 'static {
    fn prepare_to_sleep(&self);
    fn stay_awake(&self);
    fn wake(&self) -> bool;
}

impl Default for SleepFlag<ModelledFlag> {
    fn default() -> Self {
        SleepFlag { is_asleep: ModelledFlag::new(false) }
    }
}

impl Bed for SleepFlag<ModelledFlag> {
    fn prepare_to_sleep(&self) {
        SleepFlag::prepare_to_sleep(self);
    }

    fn stay_awake(&self) {
        SleepFlag::stay_awake(self);
    }

    fn wake(&self) -> bool {
        SleepFlag::wake(self)
    }
}

/// A canary: the flag is written and read, not exchanged, so that neither needs to see what the
/// other did.
#[derive(Default)]
struct Unordered(SleepFlag<ModelledFlag>);

impl Bed for Unordered {
    fn prepare_to_sleep(&self) {
        self.0.is_asleep.store(true, Ordering::Release);
    }

    fn stay_awake(&self) {
        self.0.is_asleep.store(false, Ordering::Release);
    }

    fn wake(&self) -> bool {
        self.0.is_asleep.load(Ordering::Acquire)
    }
}

/// A worker's queue and the descriptor that it waits on.
struct Room<B> {
    bed: B,
    /// What was ever put there, as bits.
    given: Modelled,
    /// Who made the descriptor ready, as bits.
    woken: Modelled,
}

impl<B: Bed> Room<B> {
    fn give(&self, bit: u32) {
        self.given.fetch_or(bit, Ordering::Release);
        if self.bed.wake() {
            self.woken.fetch_or(bit, Ordering::Release);
        }
    }

    /// Works until it waits for the descriptor. Gives what it had seen by then. `looks_again`: as
    /// the contract wants.
    fn work_until_asleep(&self, looks_again: bool) -> u32 {
        let mut done = 0;
        loop {
            done |= self.given.load(Ordering::Acquire);
            self.bed.prepare_to_sleep();
            let is_new = || self.given.load(Ordering::Acquire) & !done != 0;
            if !(looks_again && is_new()) {
                return done;
            }
            self.bed.stay_awake();
        }
    }
}

/// So many threads have something for one worker, which must see it or be woken.
fn nothing_lies_there<B: Bed>(givers: u32, looks_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let room =
            Arc::new(Room { bed: B::default(), given: Modelled::new(0), woken: Modelled::new(0) });
        let threads: Vec<_> = (0..givers)
            .map(|giver| {
                let room = Arc::clone(&room);
                thread::spawn(move || room.give(1 << giver))
            })
            .collect();
        let seen = room.work_until_asleep(looks_again);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let (given, woken) =
            (room.given.load(Ordering::Acquire), room.woken.load(Ordering::Acquire));
        assert!(seen == given || woken != 0, "the worker sleeps on what is there");
    });
}

#[test]
fn a_worker_never_sleeps_on_what_is_there() {
    nothing_lies_there::<SleepFlag<ModelledFlag>>(1, true);
    nothing_lies_there::<SleepFlag<ModelledFlag>>(2, true);
}

#[test]
#[should_panic(expected = "sleeps on what is there")]
fn the_model_finds_a_flag_that_is_not_exchanged() {
    nothing_lies_there::<Unordered>(1, true);
}

#[test]
#[should_panic(expected = "sleeps on what is there")]
fn the_model_finds_a_worker_that_does_not_look_again() {
    nothing_lies_there::<SleepFlag<ModelledFlag>>(1, false);
}

#[test]
fn one_of_several_is_told_to_wake_it() {
    let sleep_flag = super::SleepFlag::<AtomicBool>::default();
    assert!(!sleep_flag.wake(), "it is awake");
    sleep_flag.prepare_to_sleep();
    assert_eq!([sleep_flag.wake(), sleep_flag.wake()], [true, false]);
    sleep_flag.prepare_to_sleep();
    sleep_flag.stay_awake();
    assert!(!sleep_flag.wake(), "it got up by itself");
}
