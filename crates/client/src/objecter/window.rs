//! What is on its way to one core of an OSD, bounded: the core keeps space for as much of every session, on its disk and in its journal
//! (see [`protocol::shard::SESSION_WINDOW_BYTES`]).
//!
//! Contract: single-threaded, no I/O. A write takes its part of the windows of all shards that it touches at once, before it is
//! numbered, and gives it back when it is reported. Whoever waits for one window holds no part of another. No part is given while the
//! core's journal is at its limit, by its last word ([`AckMessage::HOLD`](protocol::shard::AckMessage::HOLD)). So its journal takes all
//! that is on its way to it, beyond the limit, and never refuses a record for which another core waits, whose journal it would
//! keep from shrinking: journals that are full of each other's records cannot come to be.

use super::wait::Notify;
use protocol::shard::{SESSION_WINDOW_BYTES, space_taken};
use smallvec::SmallVec;
use std::cell::Cell;
use std::rc::Rc;

/// What one of so many workers may have on its way to a core: its part of the session's window.
pub(crate) fn window_bytes(workers: usize) -> u64 {
    SESSION_WINDOW_BYTES / workers as u64
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
}

impl Window {
    /// For so many bytes. A write that is larger has it alone.
    pub fn new(bytes_max: u64) -> Rc<Self> {
        Rc::new(Self { bytes_max, on_the_way: Cell::new(0), is_held: Cell::new(false), freed: Notify::default() })
    }

    /// The core's word: is its journal at its limit? A core that cannot be reached has none; it tells again when it can.
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
        !self.is_held.get() && (self.on_the_way.get() == 0 || self.on_the_way.get() + bytes <= self.bytes_max)
    }
}

/// Windows of the shards that a write touches.
pub(crate) type Windows = SmallVec<[Rc<Window>; 4]>;

/// A write's part of windows; given back on drop.
#[derive(Debug)]
pub(crate) struct OnTheWay {
    windows: Windows,
    bytes: u64,
}

impl OnTheWay {
    /// Waits until a write of so many fragment bytes has room in all windows, and takes it.
    pub async fn admit(windows: Windows, fragment_bytes: u64) -> Self {
        let bytes = space_taken(fragment_bytes);
        while let Some(full) = windows.iter().find(|window| !window.has_room_for(bytes)) {
            full.freed.changed(full.freed.version()).await;
        }
        windows.iter().for_each(|window| window.on_the_way.set(window.on_the_way.get() + bytes));
        Self { windows, bytes }
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
