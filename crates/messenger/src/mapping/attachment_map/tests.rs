//! Interleavings of an attachment that moves and those who have something for the connection, with
//! up to three preemptions, by `loom`; and a move that looks too early, which must be caught.

use super::*;
use crate::sync::sleep_flag::Flag;
use crate::sync::wake_once::WakeOnce;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool as ModelledFlag, AtomicUsize as Modelled};
use loom::thread;

impl Word for Modelled {
    fn load(&self, order: Ordering) -> usize {
        Modelled::load(self, order)
    }

    fn store(&self, value: usize, order: Ordering) {
        Modelled::store(self, value, order);
    }
}

/// A connection whose only attachment moves from worker 0 to worker 1.
struct Moving {
    wake_once: WakeOnce<ModelledFlag>,
    attachment_map: AttachmentMap<Modelled>,
    /// What is to be sent, as bits.
    frames: Modelled,
    /// The new attachment was told. Whatever the old one is told is lost.
    told: ModelledFlag,
}

impl Moving {
    fn new() -> Arc<Moving> {
        let slots = [Modelled::new(7), Modelled::new(NO_SLOT)].into();
        Arc::new(Moving {
            wake_once: WakeOnce::default(),
            attachment_map: AttachmentMap { home: Modelled::new(0), slots },
            frames: Modelled::new(0),
            told: ModelledFlag::new(false),
        })
    }

    fn send(&self, bit: usize) {
        self.frames.fetch_or(bit, Ordering::Release);
        if self.wake_once.give() && self.attachment_map.slot(self.attachment_map.home()) == Some(9)
        {
            self.told.store(true, Ordering::Release);
        }
    }

    fn flush(&self) -> usize {
        self.wake_once.take();
        self.frames.load(Ordering::Acquire)
    }

    fn set(&self) {
        self.attachment_map.set([(1, 9)].into_iter(), [0].into_iter());
    }
}

/// So many threads send while the attachment moves; in the end all frames must have been seen.
fn nothing_is_sent_to_nowhere(senders: usize, says_first: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let moving = Moving::new();
        let threads: Vec<_> = (0..senders)
            .map(|sender| {
                let moving = Arc::clone(&moving);
                thread::spawn(move || moving.send(1 << sender))
            })
            .collect();
        let mut sent = if says_first { 0 } else { moving.flush() };
        moving.set();
        if says_first {
            sent = moving.flush();
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        if Flag::load(&moving.told, Ordering::Acquire) {
            sent |= moving.flush();
        }
        assert_eq!(sent, (1 << senders) - 1, "a frame waits where no seat is");
    });
}

#[test]
fn whoever_sends_while_a_seat_moves_is_heard() {
    nothing_is_sent_to_nowhere(1, true);
    nothing_is_sent_to_nowhere(2, true);
}

#[test]
#[should_panic(expected = "waits where no seat is")]
fn the_model_finds_a_move_that_looks_too_early() {
    nothing_is_sent_to_nowhere(1, false);
}

#[test]
fn seats_come_and_go() {
    let attachment_map = super::AttachmentMap::<AtomicUsize>::new(1, 3);
    assert_eq!((attachment_map.home(), attachment_map.slot(1)), (1, None));
    attachment_map.set([(2, 5), (0, 4)].into_iter(), [1].into_iter());
    assert_eq!(attachment_map.home(), 2);
    assert_eq!([0, 1, 2].map(|worker| attachment_map.slot(worker)), [Some(4), None, Some(5)]);
    attachment_map.set([].into_iter(), [0, 2].into_iter());
    assert_eq!([0, 1, 2].map(|worker| attachment_map.slot(worker)), [None; 3]);
}
