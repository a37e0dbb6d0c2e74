//! What a worker's reactor watches: listeners, sockets in their handshake, attachments at
//! connections.
//!
//! Contract: a source is taken out of its slot while it runs, so that the code of the crate's
//! users, called from it, may add sources and mark others for flushing. Readiness is
//! edge-triggered: a source drains its socket, or asks to be run again in the next turn once its
//! budget is spent, so that none starves another.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use mio::Token;
use mio::event::Event;
use slab::Slab;

use crate::executor::worker::Worker;
use crate::mapping::shared_connection::Attachment;
use crate::serve::listener::{Acceptor, Greeting};
use crate::serve::service::Service;

/// Bytes read from a socket at once, besides data segments that go straight to their buffer. Small,
/// because what is read here of a large data segment is copied once more.
pub(crate) const SCRATCH_BYTES: usize = 32 << 10;

/// Why a source is run: one or more reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Causes(u32);

impl Causes {
    pub(crate) const NONE: Causes = Causes(0);
    /// The socket may have bytes.
    pub(crate) const READABLE: Causes = Causes(1);
    /// The socket may have room.
    pub(crate) const WRITABLE: Causes = Causes(1 << 1);
    /// The peer has ended its direction, or the socket failed.
    pub(crate) const CLOSED: Causes = Causes(1 << 2);
    /// The source asked to go on in this turn.
    pub(crate) const REQUEUED: Causes = Causes(1 << 3);
    /// Its timer is due.
    pub(crate) const TIMER: Causes = Causes(1 << 4);
    /// There may be something to send.
    pub(crate) const FLUSH: Causes = Causes(1 << 5);
    /// Whatever there may be to do, short of an end that nobody has seen.
    pub(crate) const ALL: Causes = Causes(0b11_1011);

    /// True if at least one of these reasons is there.
    pub(crate) fn has(self, reasons: Causes) -> bool {
        self.0 & reasons.0 != 0
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    pub(crate) fn from_bits(bits: u32) -> Causes {
        Causes(bits)
    }

    fn when(self, so: bool) -> Causes {
        if so { self } else { Causes::NONE }
    }
}

impl std::ops::BitOr for Causes {
    type Output = Causes;

    fn bitor(self, other: Causes) -> Causes {
        Causes(self.0 | other.0)
    }
}

/// What becomes of a source after it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It stays, and wants to be run at the time given, if any.
    Keep(Option<Instant>),
    /// As `Keep`, and wants to be run again in the next turn.
    Again(Option<Instant>),
    /// It is done.
    Remove,
}

/// One watched thing.
pub(crate) enum Source {
    Listener(Acceptor),
    Greeting(Greeting),
    Connection(Box<Attachment>),
}

struct Slot {
    /// Absent while it runs.
    source: Option<Source>,
    timer_at: Option<Instant>,
    requeued: bool,
    /// Removed while it ran.
    doomed: bool,
}

/// All sources of one worker.
pub(crate) struct Sources {
    slots: RefCell<Slab<Slot>>,
    timers: RefCell<BinaryHeap<Reverse<(Instant, usize)>>>,
    requeued: RefCell<Vec<usize>>,
    /// Services of listeners, by the listener's number.
    pub(crate) services: RefCell<HashMap<u64, Rc<dyn Service>>>,
    /// Bytes just read; initialised once, so that reading into it needs no zeroing.
    pub(crate) scratch: RefCell<Vec<u8>>,
}

impl Default for Sources {
    fn default() -> Sources {
        Sources {
            slots: RefCell::default(),
            timers: RefCell::default(),
            requeued: RefCell::default(),
            services: RefCell::default(),
            scratch: RefCell::new(vec![0; SCRATCH_BYTES]),
        }
    }
}

/// The token of a slot; zero is the eventfd's.
pub(crate) fn token(slot: usize) -> Token {
    Token(slot + 1)
}

impl Sources {
    /// Adds a source, made with knowledge of its slot.
    pub(crate) fn insert(&self, make: impl FnOnce(usize) -> Source) -> usize {
        let mut slots = self.slots.borrow_mut();
        let entry = slots.vacant_entry();
        let slot = entry.key();
        entry.insert(Slot {
            source: Some(make(slot)),
            timer_at: None,
            requeued: false,
            doomed: false,
        });
        slot
    }

    /// Removes a source; one that is running goes when it returns.
    pub(crate) fn remove(&self, slot: usize) -> Option<Source> {
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(slot) {
            Some(entry) if entry.source.is_some() => slots.remove(slot).source,
            Some(entry) => {
                entry.doomed = true;
                None
            }
            None => None,
        }
    }

    /// Runs `f` on the source in `slot`, unless it is running already or gone.
    pub(crate) fn with(
        &self,
        worker: &Worker,
        slot: usize,
        f: impl FnOnce(&mut Source, &Worker) -> Next,
    ) {
        let taken = self.slots.borrow_mut().get_mut(slot).and_then(|entry| entry.source.take());
        let Some(mut source) = taken else { return };
        let next = f(&mut source, worker);
        let mut slots = self.slots.borrow_mut();
        let doomed = slots[slot].doomed;
        let at = match next {
            Next::Keep(at) if !doomed => at,
            Next::Again(at) if !doomed => {
                if !std::mem::replace(&mut slots[slot].requeued, true) {
                    self.requeued.borrow_mut().push(slot);
                }
                at
            }
            Next::Keep(_) | Next::Again(_) | Next::Remove => {
                slots.remove(slot);
                drop(slots);
                drop(source);
                return;
            }
        };
        slots[slot].source = Some(source);
        if let Some(at) = at
            && slots[slot].timer_at.is_none_or(|set| at < set)
        {
            slots[slot].timer_at = Some(at);
            self.timers.borrow_mut().push(Reverse((at, slot)));
        }
    }

    /// The service that a listener has here.
    pub(crate) fn service(&self, listener: u64) -> Option<Rc<dyn Service>> {
        self.services.borrow().get(&listener).cloned()
    }

    /// Removes the attachment with this mark, unless the slot is another's by now.
    pub(crate) fn remove_seat(&self, slot: usize, gone: &Arc<AtomicBool>) {
        let slots = self.slots.borrow();
        let found = slots.get(slot).and_then(|entry| entry.source.as_ref());
        let is_it = matches!(found, Some(Source::Connection(attachment)) if attachment.is(gone));
        drop(slots);
        if is_it {
            drop(self.remove(slot));
        }
    }

    /// Runs the source in `slot`, if there is one.
    pub(crate) fn run(&self, worker: &Worker, slot: usize, causes: Causes) {
        self.with(worker, slot, |source, worker| match source {
            Source::Listener(acceptor) => acceptor.run(worker),
            Source::Greeting(greeting) => greeting.run(worker, causes),
            Source::Connection(attachment) => attachment.run(worker, causes),
        });
    }

    pub(crate) fn ready(&self, worker: &Worker, event: &Event) {
        let failed = event.is_error();
        let causes = Causes::READABLE.when(event.is_readable() || failed)
            | Causes::WRITABLE.when(event.is_writable() || failed)
            | Causes::CLOSED.when(event.is_read_closed() || failed);
        self.run(worker, event.token().0 - 1, causes);
    }

    pub(crate) fn flush(&self, worker: &Worker, slot: usize) {
        self.run(worker, slot, Causes::FLUSH);
    }

    pub(crate) fn has_requeued(&self) -> bool {
        !self.requeued.borrow().is_empty()
    }

    pub(crate) fn run_requeued(&self, worker: &Worker) {
        let requeued = std::mem::take(&mut *self.requeued.borrow_mut());
        for slot in requeued {
            if let Some(entry) = self.slots.borrow_mut().get_mut(slot) {
                entry.requeued = false;
            }
            self.run(worker, slot, Causes::REQUEUED);
            worker.flush_if_much();
        }
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.borrow().peek().map(|Reverse((at, _))| *at)
    }

    pub(crate) fn fire_timers(&self, worker: &Worker, now: Instant) {
        loop {
            let due = {
                let mut timers = self.timers.borrow_mut();
                match timers.peek() {
                    Some(Reverse((at, _))) if *at <= now => timers.pop(),
                    _ => None,
                }
            };
            let Some(Reverse((at, slot))) = due else { return };
            let valid = self.slots.borrow_mut().get_mut(slot).is_some_and(|entry| {
                let valid = entry.timer_at == Some(at);
                if valid {
                    entry.timer_at = None;
                }
                valid
            });
            if valid {
                self.run(worker, slot, Causes::TIMER);
            }
        }
    }

    fn all_slots(&self) -> Vec<usize> {
        self.slots.borrow().iter().map(|(slot, _)| slot).collect()
    }

    /// Stops accepting and asks connecting sides to say goodbye.
    pub(crate) fn begin_shutdown(&self, worker: &Worker) {
        for slot in self.all_slots() {
            self.with(worker, slot, |source, worker| match source {
                Source::Listener(_) | Source::Greeting(_) => Next::Remove,
                Source::Connection(attachment) => attachment.begin_shutdown(worker),
            });
        }
    }

    /// True once no connection has anything left to send.
    pub(crate) fn is_drained(&self) -> bool {
        self.slots.borrow().iter().all(|(_, slot)| match &slot.source {
            Some(Source::Connection(attachment)) => attachment.is_drained(),
            _ => true,
        })
    }

    /// Closes every connection, as the worker ends.
    pub(crate) fn close_all(&self, worker: &Worker) {
        for slot in self.all_slots() {
            self.with(worker, slot, |source, worker| {
                if let Source::Connection(attachment) = source {
                    attachment.close(worker);
                }
                Next::Remove
            });
        }
    }

    /// Drops services, which may hold clones of the worker.
    pub(crate) fn clear(&self) {
        let services = std::mem::take(&mut *self.services.borrow_mut());
        drop(services);
    }
}
