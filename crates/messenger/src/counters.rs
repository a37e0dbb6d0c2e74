//! Counters of a worker: declared once, with unit and counting rule, written by the worker alone, read by anyone.
//!
//! Contract: an increment is a plain load and store, never a locked instruction; a reader may see a value a moment old.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::frame::FrameError;

/// A counter with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(by), Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one worker, as the worker writes them.
        #[derive(Debug, Default)]
        pub(crate) struct WorkerCounters {
            $(pub(crate) $name: Counter,)*
            pub(crate) frame_errors: [Counter; FrameError::REASONS],
        }

        /// What one worker has done since it started.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct WorkerStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Frames refused, by the reason at the same place in [`FrameError::NAMES`].
            pub frame_errors: [u64; FrameError::REASONS],
        }

        impl WorkerCounters {
            pub(crate) fn snapshot(&self) -> WorkerStats {
                WorkerStats {
                    $($name: self.$name.get(),)*
                    frame_errors: std::array::from_fn(|i| self.frame_errors[i].get()),
                }
            }
        }

        impl WorkerStats {
            /// Adds another worker's figures to these.
            pub fn merge(&mut self, other: &WorkerStats) {
                $(self.$name += other.$name;)*
                for (mine, theirs) in self.frame_errors.iter_mut().zip(&other.frame_errors) {
                    *mine += theirs;
                }
            }

            /// Names and values, for printing and metrics.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Messages received and dispatched, replies included, duplicates not.
    messages_in,
    /// Frames handed to sockets, messenger's own and resent ones included.
    frames_out,
    /// Bytes read from sockets.
    bytes_in,
    /// Bytes written to sockets.
    bytes_out,
    /// System calls that wrote to a socket.
    writes,
    /// Returns from the reactor's poll.
    polls,
    /// Readiness events those returned.
    events,
    /// Eventfd wake-ups that other threads sent.
    wakeups,
    /// Tasks polled.
    task_polls,
    /// Connections that came up for the first time or as a new incarnation, either end.
    connections_opened,
    /// Connections that came back with their session.
    reconnects,
    /// Sessions that lost their state, so that calls failed.
    resets,
    /// Connections closed for good.
    connections_closed,
    /// Frames received a second time after a reconnect, and dropped.
    duplicates,
    /// Handshakes refused or broken off, garbage included.
    handshake_errors,
    /// Panics of tasks and message handlers, caught.
    panics,
    /// Calls that ran into their deadline.
    deadlines,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_add_up() {
        let counters = WorkerCounters::default();
        counters.messages_in.add(2);
        counters.frame_errors[3].add(1);
        let mut total = counters.snapshot();
        total.merge(&counters.snapshot());
        assert_eq!(total.messages_in, 4);
        assert_eq!(total.frame_errors[3], 2);
        assert_eq!(total.named()[0], ("messages_in", 4));
    }
}
