//! What is on its way to one core of an OSD, bounded: the core keeps space for as much of every
//! session, on its disk and in its journal (see [`protocol::shard::SESSION_WINDOW_BYTES`]).
//!
//! Contract: single-threaded, no I/O. A write takes its part of the windows of all shards that it
//! touches at once, before it is numbered, and gives it back when it is reported. Whoever waits for
//! one window holds no part of another. No part is given while the core's journal is at its limit,
//! by its last word ([`AckMessage::HOLD`](protocol::shard::AckMessage::HOLD)). So its journal takes
//! all that is on its way to it, beyond the limit, and never refuses a record for which another
//! core waits, whose journal it would keep from shrinking: journals that are full of each other's
//! records cannot come to be. Those who wait for one window stand in line.

use super::wait::Notify;
use ec_store::pg::Space;
use protocol::shard::{SESSION_WINDOW_BYTES, space_taken};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// What a worker has on its way to a core, at most: more keeps no core busier, and leaves the
/// caches of the processors before it is sent, received and written.
const WORKER_WINDOW_BYTES: u64 = 4 << 20;

/// What one of so many workers may have on its way to a core: its part of the session's window.
pub(crate) fn window_bytes(workers: usize) -> u64 {
    WORKER_WINDOW_BYTES.min(SESSION_WINDOW_BYTES / workers as u64)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    /// In the unit of [`space_taken`].
    bytes_max: u64,
    on_the_way: Cell<u64>,
    /// The core's journal is at its limit.
    is_held: Cell<bool>,
    freed: Notify,
    /// Numbers of those who wait for it, the first one first.
    line: RefCell<VecDeque<u64>>,
    last_number: Cell<u64>,
}

impl Window {
    /// For so many bytes. A write that is larger has it alone.
    pub fn new(bytes_max: u64) -> Rc<Self> {
        Rc::new(Self {
            bytes_max,
            on_the_way: Cell::new(0),
            is_held: Cell::new(false),
            freed: Notify::default(),
            line: RefCell::default(),
            last_number: Cell::new(0),
        })
    }

    /// The core's word: is its journal at its limit? A core that cannot be reached has none; it
    /// tells again when it can.
    pub fn hold(&self, is_held: bool) {
        if self.is_held.replace(is_held) && !is_held {
            self.freed.notify();
        }
    }

    /// Will the core say that its journal has room again?
    pub fn is_held(&self) -> bool {
        self.is_held.get()
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        !self.is_held.get()
            && (self.on_the_way.get() == 0 || self.on_the_way.get() + bytes <= self.bytes_max)
    }

    fn has_line(&self) -> bool {
        !self.line.borrow().is_empty()
    }

    fn stand_in_line(self: &Rc<Self>) -> Place {
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        self.line.borrow_mut().push_back(number);
        Place { window: Rc::clone(self), number }
    }
}

/// A place in the line before a window; given up on drop.
#[derive(Debug)]
struct Place {
    window: Rc<Window>,
    number: u64,
}

impl Place {
    fn is_first(&self) -> bool {
        self.window.line.borrow().front() == Some(&self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.window.line.borrow_mut().retain(|number| *number != self.number);
        self.window.freed.notify();
    }
}

/// Windows of the shards that a write touches.
pub(crate) type Windows = SmallVec<[Rc<Window>; 4]>;

/// A write's part of windows; given back on drop.
#[derive(Debug)]
pub(crate) struct OnTheWay {
    windows: Windows,
    bytes: u64,
    space: Space,
}

impl OnTheWay {
    /// Waits until a write of so many fragment bytes has room in all windows, and takes it. It
    /// stands in line before one window at a time, the one that has no room, so that nobody waits
    /// who wants others only. Whose turn has come in one line needs only room before the other
    /// windows: so of two who are first in two lines neither waits for the other.
    pub async fn admit(mut windows: Windows, fragment_bytes: u64) -> Self {
        // In one order for all, so that those who want the same windows stand in one line.
        windows.sort_unstable_by_key(Rc::as_ptr);
        let bytes = space_taken(fragment_bytes);
        let mut place: Option<Place> = None;
        loop {
            let blocking = match &place {
                Some(place) if !place.is_first() => Some(&place.window),
                Some(_) => windows.iter().find(|window| !window.has_room_for(bytes)),
                None => {
                    windows.iter().find(|window| !window.has_room_for(bytes) || window.has_line())
                }
            };
            let Some(window) = blocking.cloned() else { break };
            if place.as_ref().is_none_or(|place| !Rc::ptr_eq(&place.window, &window)) {
                place = Some(window.stand_in_line());
            }
            window.freed.changed(window.freed.version()).await;
        }
        windows.iter().for_each(|window| window.on_the_way.set(window.on_the_way.get() + bytes));
        Self { windows, bytes, space: Space::OfDisk }
    }

    /// The range that is written has its space.
    pub fn in_reserved_space(self) -> Self {
        let mut this = self;
        this.space = Space::Reserved;
        this
    }

    /// Where its space is to come from.
    pub fn space(&self) -> Space {
        self.space
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        for window in &self.windows {
            window.on_the_way.set(window.on_the_way.get() - self.bytes);
            window.freed.notify();
        }
    }
}

#[cfg(test)]
mod tests;
