//! Counters of a worker: declared once, with unit and counting rule, written by the worker alone,
//! read by anyone.
//!
//! Contract: an increment is a plain load and store, never a locked instruction; a reader may see a
//! value a moment old.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::telemetry::worker_time::TimeSpent;
use crate::telemetry::{Rule, Unit};
use crate::wire::frame::FrameError;

/// A counter with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(by), Relaxed);
    }

    fn raise(&self, to: u64) {
        self.0.store(self.0.load(Relaxed).max(to), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Largest number of events of each class of polls but the last, which has no bound.
pub const POLL_EVENTS_BOUNDS: [u64; 10] = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Classes of polls by the number of events that they returned.
pub const POLL_CLASSES: usize = POLL_EVENTS_BOUNDS.len() + 1;

fn poll_class(events: u64) -> usize {
    match events {
        0 => 0,
        _ => (1 + events.next_power_of_two().trailing_zeros() as usize).min(POLL_CLASSES - 1),
    }
}

/// A figure's name, unit, rule and description, and how to get it.
#[derive(Clone, Copy, Debug)]
pub struct WorkerFigure {
    /// Name in reports; metrics derive theirs from it.
    pub name: &'static str,
    /// What the number counts.
    pub unit: Unit,
    /// Does it only grow?
    pub rule: Rule,
    /// What it is, in words.
    pub help: &'static str,
    /// The figure of a worker.
    pub get: fn(&WorkerStats) -> u64,
}

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident: $unit:ident,)*; $(#[doc = $derived_doc:literal] $derived:ident: $derived_unit:ident $rule:ident,)*) => {
        /// Counters of one worker, as the worker writes them.
        #[derive(Debug, Default)]
        pub(crate) struct WorkerCounters {
            $(pub(crate) $name: Counter,)*
            pub(crate) frame_errors: [Counter; FrameError::REASONS],
            poll_classes: [Counter; POLL_CLASSES],
            events_max: Counter,
        }

        /// What one worker has done since it started.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct WorkerStats {
            $(#[doc = $doc] pub $name: u64,)*
            $(#[doc = $derived_doc] pub $derived: u64,)*
            /// Frames refused, by the reason at the same place in [`FrameError::NAMES`].
            pub frame_errors: [u64; FrameError::REASONS],
            /// Polls by the number of events that they returned, up to the bound at the same place
            /// in [`POLL_EVENTS_BOUNDS`]; the last class has none.
            pub poll_classes: [u64; POLL_CLASSES],
        }

        impl WorkerCounters {
            pub(crate) fn snapshot(&self) -> WorkerStats {
                WorkerStats {
                    $($name: self.$name.get(),)*
                    events_max: self.events_max.get(),
                    frame_errors: std::array::from_fn(|i| self.frame_errors[i].get()),
                    poll_classes: std::array::from_fn(|i| self.poll_classes[i].get()),
                    ..WorkerStats::default()
                }
            }
        }

        impl WorkerStats {
            /// Every figure of a worker, but those in arrays.
            pub const FIGURES: &'static [WorkerFigure] = &[
                $(WorkerFigure {
                    name: stringify!($name),
                    unit: Unit::$unit,
                    rule: Rule::Counter,
                    help: $doc,
                    get: |stats| stats.$name,
                },)*
                $(WorkerFigure {
                    name: stringify!($derived),
                    unit: Unit::$derived_unit,
                    rule: Rule::$rule,
                    help: $derived_doc,
                    get: |stats| stats.$derived,
                },)*
            ];

            /// What happened between an earlier reading and this one. Peaks stay those since the
            /// start.
            pub fn since(&self, earlier: &WorkerStats) -> WorkerStats {
                let less = |now: &[u64], then: &[u64], i: usize| now[i].saturating_sub(then[i]);
                WorkerStats {
                    $($name: self.$name.saturating_sub(earlier.$name),)*
                    $($derived: Rule::$rule.since(self.$derived, earlier.$derived),)*
                    frame_errors: std::array::from_fn(|i| less(&self.frame_errors, &earlier.frame_errors, i)),
                    poll_classes: std::array::from_fn(|i| less(&self.poll_classes, &earlier.poll_classes, i)),
                }
            }

            /// Adds another worker's figures to these.
            pub fn merge(&mut self, other: &WorkerStats) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
                $(self.$derived = Rule::$rule.merge(self.$derived, other.$derived);)*
                for (mine, theirs) in self.frame_errors.iter_mut().zip(&other.frame_errors) {
                    *mine = mine.saturating_add(*theirs);
                }
                for (mine, theirs) in self.poll_classes.iter_mut().zip(&other.poll_classes) {
                    *mine = mine.saturating_add(*theirs);
                }
            }
        }
    };
}

counters! {
    /// Messages received and dispatched, replies included, duplicates not.
    messages_in: Count,
    /// Frames handed to sockets, messenger's own and resent ones included.
    frames_out: Count,
    /// Bytes read from sockets, and of data lent instead.
    bytes_in: Bytes,
    /// Bytes written to sockets, and of data lent instead.
    bytes_out: Bytes,
    /// Bytes of received data that the sender lent, in shared memory.
    lent_bytes_in: Bytes,
    /// Bytes of sent data that were lent, in shared memory.
    lent_bytes_out: Bytes,
    /// System calls that wrote to a socket.
    writes: Count,
    /// Returns from the reactor's poll.
    polls: Count,
    /// Readiness events those returned, the eventfd's not counted: `wakeups` counts what it tells.
    events: Count,
    /// Eventfd wake-ups that other threads sent.
    wakeups: Count,
    /// Tasks polled.
    task_polls: Count,
    /// Connections that came up for the first time or as a new incarnation, either end.
    connections_opened: Count,
    /// Connections that came back with their session.
    reconnects: Count,
    /// Sessions that lost their state, so that calls failed.
    resets: Count,
    /// Connections closed for good.
    connections_closed: Count,
    /// Frames received a second time after a reconnect, and dropped.
    duplicates: Count,
    /// Handshakes refused or broken off, garbage included.
    handshake_errors: Count,
    /// Times that the system had no socket for a connection that waited to be accepted.
    accept_errors: Count,
    /// Panics of tasks and message handlers, caught.
    panics: Count,
    /// Calls that ran into their deadline.
    deadlines: Count,
    ;
    /// Time since the worker was made.
    elapsed_ns: Nanoseconds Counter,
    /// Time not spent waiting in the reactor's poll; the rest of the elapsed time was idle.
    busy_ns: Nanoseconds Counter,
    /// Time on a CPU, by the thread's own clock, read every 20 ms at most while it runs.
    cpu_ns: Nanoseconds Counter,
    /// Most readiness events that one poll returned, the eventfd's not counted.
    events_max: Count Peak,
}

impl WorkerCounters {
    /// A poll returned.
    pub(crate) fn polled(&self, events: u64) {
        self.polls.add(1);
        self.events.add(events);
        self.poll_classes[poll_class(events)].add(1);
        self.events_max.raise(events);
    }
}

impl WorkerStats {
    pub(crate) fn with_time(self, spent: TimeSpent) -> WorkerStats {
        let TimeSpent { elapsed_ns, busy_ns, cpu_ns } = spent;
        WorkerStats { elapsed_ns, busy_ns, cpu_ns, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_add_up() {
        let counters = WorkerCounters::default();
        counters.messages_in.add(2);
        counters.frame_errors[3].add(1);
        counters.polled(3);
        counters.polled(1);
        let mut total = counters.snapshot();
        total.merge(&counters.snapshot());
        assert_eq!((total.messages_in, total.polls, total.events), (4, 4, 8));
        assert_eq!(total.frame_errors[3], 2);
        assert_eq!(total.events_max, 3, "a peak is not summed");
        let first = WorkerStats::FIGURES[0];
        assert_eq!((first.name, (first.get)(&total)), ("messages_in", 4));
        assert_eq!(total.since(&counters.snapshot()), counters.snapshot());
    }

    #[test]
    fn every_poll_is_in_the_class_of_its_bound() {
        for events in 0..2000 {
            let class = POLL_EVENTS_BOUNDS
                .iter()
                .position(|bound| events <= *bound)
                .unwrap_or(POLL_CLASSES - 1);
            assert_eq!(poll_class(events), class, "{events} events");
        }
    }

    #[test]
    fn descriptions_are_sentences() {
        for figure in WorkerStats::FIGURES {
            assert!(figure.help.trim().ends_with('.'), "{}", figure.name);
        }
    }
}
