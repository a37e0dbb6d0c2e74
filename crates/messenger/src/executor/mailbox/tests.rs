//! Interleavings of a worker that ends and those who post to it, with up to three preemptions, by
//! `loom`; and two wrong ways, which must be caught. The queue of the model promises less than the
//! real one: a look at it may miss what another thread has put there.

use super::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool as ModelledFlag, AtomicU32 as Modelled};
use loom::thread;

/// A queue of bits.
struct Bits(Modelled);

impl Queue<u32> for Bits {
    fn push(&self, bit: u32) {
        assert_eq!(self.0.fetch_or(bit, Ordering::Release) & bit, 0, "each bit is posted once");
    }

    fn pop(&self) -> Option<u32> {
        loop {
            let bits = self.0.load(Ordering::Acquire);
            let lowest = bits & bits.wrapping_neg();
            if lowest == 0 {
                return None;
            }
            if self.0.fetch_and(!lowest, Ordering::AcqRel) & lowest != 0 {
                return Some(lowest);
            }
        }
    }

    fn len(&self) -> usize {
        self.0.load(Ordering::Acquire).count_ones() as usize
    }

    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

type ModelledBox = Mailbox<u32, Bits, ModelledFlag>;

/// A mailbox as a worker and its visitors use it.
trait Letters: Send + Sync + 'static {
    fn new() -> Self;
    fn post(&self, bit: u32) -> bool;
    fn close(&self);
    fn inner(&self) -> &ModelledBox;
}

impl Letters for ModelledBox {
    fn new() -> Self {
        Mailbox {
            queue: Bits(Modelled::new(0)),
            sleep_flag: SleepFlag::default(),
            closed: ModelledFlag::new(false),
            items: PhantomData,
        }
    }

    fn post(&self, bit: u32) -> bool {
        Mailbox::post(self, bit, || {})
    }

    fn close(&self) {
        Mailbox::close(self);
    }

    fn inner(&self) -> &ModelledBox {
        self
    }
}

/// A canary: whoever posts looks only before whether the worker has ended.
struct Hasty(ModelledBox);

impl Letters for Hasty {
    fn new() -> Self {
        Hasty(Letters::new())
    }

    fn post(&self, bit: u32) -> bool {
        let is_open = !self.0.closed.load(Ordering::SeqCst);
        if is_open {
            self.0.queue.push(bit);
            self.0.sleep_flag.wake();
        }
        is_open
    }

    fn close(&self) {
        self.0.close();
    }

    fn inner(&self) -> &ModelledBox {
        &self.0
    }
}

/// A canary: the end only says so, without an exchange. (`loom` takes no sequentially consistent
/// operation for more than an acquiring or releasing one; with the order of those the real queue
/// would be seen all the same.)
struct Silent(ModelledBox);

impl Letters for Silent {
    fn new() -> Self {
        Silent(Letters::new())
    }

    fn post(&self, bit: u32) -> bool {
        Letters::post(&self.0, bit)
    }

    fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
    }

    fn inner(&self) -> &ModelledBox {
        &self.0
    }
}

/// So many threads post while the worker runs something and ends.
fn nothing_stays<L: Letters>(posters: u32) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let letters = Arc::new(L::new());
        let threads: Vec<_> = (0..posters)
            .map(|poster| {
                let letters = Arc::clone(&letters);
                thread::spawn(move || letters.post(1 << poster))
            })
            .collect();
        let run = letters.inner().pop().unwrap_or(0);
        letters.close();
        let mut dropped = 0;
        while let Some(bit) = letters.inner().pop() {
            dropped |= bit;
        }
        let mut accepted = 0;
        for (poster, thread) in threads.into_iter().enumerate() {
            accepted |= u32::from(thread.join().expect("no panic")) << poster;
        }
        assert_eq!(run & dropped, 0, "what was run is not dropped");
        assert!(
            letters.inner().is_empty(),
            "something stays in the queue of a worker that has ended"
        );
        assert!(!letters.post(1 << posters), "nothing is posted any more");
        // Without another who came too late, what was accepted and not run was dropped by the
        // worker.
        assert!(posters > 1 || accepted & !(run | dropped) == 0, "dropped by nobody");
    });
}

#[test]
fn what_is_posted_is_run_or_dropped() {
    nothing_stays::<ModelledBox>(1);
    nothing_stays::<ModelledBox>(2);
}

#[test]
#[should_panic(expected = "stays in the queue")]
fn the_model_finds_a_post_that_does_not_look_again() {
    nothing_stays::<Hasty>(1);
}

#[test]
#[should_panic(expected = "stays in the queue")]
fn the_model_finds_an_end_without_an_exchange() {
    nothing_stays::<Silent>(1);
}

#[test]
fn nothing_is_accepted_after_the_end() {
    let mailbox = super::Mailbox::<u32>::default();
    assert!(mailbox.prepare_to_sleep());
    let mut woken = 0;
    assert!(mailbox.post(1, || woken += 1) && mailbox.post(2, || woken += 1));
    assert_eq!(woken, 1, "the second finds it awake");
    assert!(!mailbox.prepare_to_sleep(), "there is something");
    mailbox.close();
    assert_eq!(
        (mailbox.len(), mailbox.pop(), mailbox.pop(), mailbox.pop()),
        (2, Some(1), Some(2), None)
    );
    assert!(!mailbox.post(3, || {}) && mailbox.is_empty());
}
