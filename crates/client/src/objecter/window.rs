//! What is on its way to one core of an OSD, bounded: the core keeps space for as much of every session (see
//! [`protocol::shard::SESSION_WINDOW_BYTES`]).
//!
//! Contract: single-threaded, no I/O. A write takes its part of the windows of all shards that it touches at once, before it is
//! numbered, and gives it back when it is reported. Whoever waits for one window holds no part of another.

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
    freed: Notify,
}

impl Window {
    /// For so many bytes. A write that is larger has it alone.
    pub fn new(bytes_max: u64) -> Rc<Self> {
        Rc::new(Self { bytes_max, on_the_way: Cell::new(0), freed: Notify::default() })
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        self.on_the_way.get() == 0 || self.on_the_way.get() + bytes <= self.bytes_max
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
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn admitted(windows: &[&Rc<Window>], bytes: u64) -> OnTheWay {
        let windows = windows.iter().map(|window| Rc::clone(window)).collect();
        let Poll::Ready(part) = poll(pin!(OnTheWay::admit(windows, bytes))) else { panic!("there is room") };
        part
    }

    #[test]
    fn a_write_waits_for_every_window_and_holds_none_meanwhile() {
        let (wide, narrow) = (Window::new(1 << 20), Window::new(100_000));
        let first = admitted(&[&narrow], 50_000);
        let both = [&wide, &narrow].map(Rc::clone).into_iter().collect();
        let mut second = pin!(OnTheWay::admit(both, 50_000));
        assert!(poll(second.as_mut()).is_pending());
        assert_eq!(wide.on_the_way.get(), 0);
        drop(first);
        let Poll::Ready(second) = poll(second) else { panic!("the narrow window is free") };
        assert_eq!(wide.on_the_way.get(), space_taken(50_000));
        drop(second);
        assert_eq!((wide.on_the_way.get(), narrow.on_the_way.get()), (0, 0));
    }

    #[test]
    fn a_write_larger_than_the_window_has_it_alone() {
        let window = Window::new(10_000);
        let large = admitted(&[&window], 1 << 20);
        let mut next = pin!(OnTheWay::admit(std::iter::once(Rc::clone(&window)).collect(), 512));
        assert!(poll(next.as_mut()).is_pending());
        drop(large);
        assert!(poll(next).is_ready());
    }
}
