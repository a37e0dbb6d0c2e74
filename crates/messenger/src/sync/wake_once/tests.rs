//! Interleavings of those who have something and the one who is told, with up to three preemptions,
//! by `loom`; and two wrong ways, which must be caught.

use super::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool as ModelledFlag, AtomicU32 as Modelled};
use loom::thread;

/// A notice as its two sides use it.
trait Board: Default + Send + Sync + 'static {
    fn give(&self) -> bool;
    fn take(&self);
}

impl Default for WakeOnce<ModelledFlag> {
    fn default() -> Self {
        WakeOnce { is_given: ModelledFlag::new(false) }
    }
}

impl Board for WakeOnce<ModelledFlag> {
    fn give(&self) -> bool {
        WakeOnce::give(self)
    }

    fn take(&self) {
        WakeOnce::take(self);
    }
}

/// A canary: it is written when it is taken, not exchanged, so that the look may come before.
#[derive(Default)]
struct Written(WakeOnce<ModelledFlag>);

impl Board for Written {
    fn give(&self) -> bool {
        self.0.give()
    }

    fn take(&self) {
        self.0.is_given.store(false, Ordering::Release);
    }
}

/// A task, or a connection, that is in the run queue of its worker or not.
#[derive(Default)]
struct Room<B> {
    board: B,
    /// What was ever put there, as bits: for a task what its futures wait for, for a connection
    /// what it has to send, and that it is not full any more.
    given: Modelled,
    /// How often it stands in the run queue.
    queued: Modelled,
}

impl<B: Board> Room<B> {
    fn give(&self, bit: u32) {
        self.given.fetch_or(bit, Ordering::Release);
        if self.board.give() {
            assert_eq!(self.queued.fetch_add(1, Ordering::Release), 0, "told twice");
        }
    }

    /// The worker runs what is in its queue, if it is there; gives what it saw.
    fn run(&self, takes_first: bool) -> u32 {
        if self.queued.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.queued.fetch_sub(1, Ordering::AcqRel);
        if takes_first {
            self.board.take();
        }
        let seen = self.given.load(Ordering::Acquire);
        if !takes_first {
            self.board.take();
        }
        seen
    }
}

/// So many threads have something for a task that is queued already; in the end all of it must have
/// been seen.
fn nothing_is_overlooked<B: Board>(givers: u32, takes_first: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let room = Arc::new(Room::<B>::default());
        room.give(1);
        let threads: Vec<_> = (1..=givers)
            .map(|giver| {
                let room = Arc::clone(&room);
                thread::spawn(move || room.give(1 << giver))
            })
            .collect();
        let mut seen = room.run(takes_first) | room.run(takes_first);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        seen |= room.run(takes_first);
        assert_eq!(room.queued.load(Ordering::Acquire), 0, "it is run as often as it was queued");
        assert_eq!(seen, (1 << (givers + 1)) - 1, "something was there and nobody looked");
    });
}

#[test]
fn whoever_is_not_the_first_is_seen_all_the_same() {
    nothing_is_overlooked::<WakeOnce<ModelledFlag>>(1, true);
    nothing_is_overlooked::<WakeOnce<ModelledFlag>>(2, true);
}

#[test]
#[should_panic(expected = "nobody looked")]
fn the_model_finds_a_notice_that_is_written_when_taken() {
    nothing_is_overlooked::<Written>(1, true);
}

#[test]
#[should_panic(expected = "nobody looked")]
fn the_model_finds_a_notice_that_is_taken_after_the_look() {
    nothing_is_overlooked::<WakeOnce<ModelledFlag>>(1, false);
}

#[test]
fn one_of_several_tells() {
    let wake_once = super::WakeOnce::<AtomicBool>::default();
    assert_eq!([wake_once.give(), wake_once.give()], [true, false]);
    wake_once.take();
    assert_eq!([wake_once.give(), wake_once.give()], [true, false]);
}
