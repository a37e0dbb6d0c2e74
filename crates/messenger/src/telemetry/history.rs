//! The last operations of a runtime, one by one, to see what a load consists of and what hangs:
//! GlusterFS's "event history".
//!
//! Contract: an operation is two events, its beginning and its end, as in GlusterFS, written by the
//! threads that see them. The last [`EVENTS_MAX`] are kept, so at least half as many operations;
//! those that have not ended are among them as long as that. Nothing is kept and no clock is read
//! with [`HistoryMode::Off`].
//!
//! [`HistoryMode::Locked`] puts all threads behind one lock, "operation history" in the lock table;
//! [`HistoryMode::LockFree`] costs them an atomic operation or two. Reading a lock-free history
//! takes the events out and puts them back: those that happen meanwhile may displace some of the
//! oldest.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crossbeam::queue::ArrayQueue;
use serde::{Deserialize, Serialize};

use crate::sync::contention_mutex::{ContentionMutex, LockTable};

/// Events kept: those of 1,024 operations, as many as GlusterFS keeps.
pub const EVENTS_MAX: usize = 2048;

/// Which operations are remembered, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum HistoryMode {
    /// None.
    #[default]
    Off,
    /// The last ones, under one lock.
    Locked,
    /// The last ones, in a queue without a lock.
    LockFree,
}

impl HistoryMode {
    /// Every mode with its name in configuration.
    pub const ALL: [(&'static str, HistoryMode); 3] = [
        ("off", HistoryMode::Off),
        ("locked", HistoryMode::Locked),
        ("lock-free", HistoryMode::LockFree),
    ];
}

impl fmt::Display for HistoryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            Self::ALL.iter().find(|(_, mode)| mode == self).map_or("unknown", |(name, _)| name);
        f.write_str(name)
    }
}

/// No mode has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose off, locked or lock-free")]
pub struct UnknownHistoryMode;

impl FromStr for HistoryMode {
    type Err = UnknownHistoryMode;

    fn from_str(text: &str) -> Result<Self, UnknownHistoryMode> {
        Self::ALL
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, mode)| *mode)
            .ok_or(UnknownHistoryMode)
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEnd {
    /// Nanoseconds from its beginning.
    pub duration_ns: u64,
    /// 0: it succeeded.
    pub errno: i32,
}

/// An operation that is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Its number, from 1 in the order of beginning.
    pub id: u64,
    /// What it did.
    pub operation: Cow<'static, str>,
    /// The file that it was for.
    pub inode: u64,
    /// When it began: nanoseconds since the runtime started.
    pub start_ns: u64,
    /// `None`: it had not ended.
    pub end: Option<HistoryEnd>,
}

/// A history at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// Whether anything is remembered.
    pub mode: HistoryMode,
    /// The moment: nanoseconds since the runtime started.
    pub now_ns: u64,
    /// In the order of beginning.
    pub entries: Vec<HistoryEntry>,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    id: u64,
    operation: &'static str,
    inode: u64,
    start_ns: u64,
    end: Option<HistoryEnd>,
}

#[derive(Debug)]
enum Ring {
    Locked(ContentionMutex<VecDeque<Event>>),
    LockFree {
        // Boxed: it is padded to cache lines.
        events: Box<ArrayQueue<Event>>,
        /// Held by a reader: of two, each would see a part.
        reading: ContentionMutex<()>,
    },
}

impl Ring {
    fn push(&self, event: Event) {
        match self {
            Ring::Locked(events) => {
                let mut events = events.lock();
                if events.len() == EVENTS_MAX {
                    events.pop_front();
                }
                events.push_back(event);
            }
            Ring::LockFree { events, .. } => {
                let _ = events.force_push(event);
            }
        }
    }

    fn events(&self) -> Vec<Event> {
        match self {
            Ring::Locked(events) => events.lock().iter().copied().collect(),
            Ring::LockFree { events, reading } => {
                let _reading = reading.lock();
                let taken: Vec<Event> =
                    std::iter::from_fn(|| events.pop()).take(EVENTS_MAX).collect();
                // The oldest are those that find no room any more; a few of the others may miss
                // theirs to a writer.
                let room = EVENTS_MAX.saturating_sub(events.len()).min(taken.len());
                for event in &taken[taken.len() - room..] {
                    let _ = events.push(*event);
                }
                taken
            }
        }
    }
}

#[derive(Debug)]
struct Kept {
    mode: HistoryMode,
    began: Instant,
    next: AtomicU64,
    ring: Ring,
}

impl Kept {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The history of a runtime. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// `None`: off.
    kept: Option<Arc<Kept>>,
}

impl History {
    /// An empty one; times count from `began`.
    pub fn new(mode: HistoryMode, began: Instant, locks: &LockTable) -> History {
        let ring = match mode {
            HistoryMode::Off => return History::default(),
            HistoryMode::Locked => Ring::Locked(ContentionMutex::new(
                locks,
                "operation history",
                VecDeque::with_capacity(EVENTS_MAX),
            )),
            HistoryMode::LockFree => Ring::LockFree {
                events: Box::new(ArrayQueue::new(EVENTS_MAX)),
                reading: ContentionMutex::new(locks, "operation history readers", ()),
            },
        };
        History { kept: Some(Arc::new(Kept { mode, began, next: AtomicU64::new(1), ring })) }
    }

    /// An operation begins. It ends when what is returned is dropped.
    pub fn begin(&self, operation: &'static str, inode: u64) -> Recording {
        let Some(kept) = &self.kept else { return Recording(None) };
        let (id, start_ns) = (kept.next.fetch_add(1, Relaxed), kept.now_ns());
        let event = Event { id, operation, inode, start_ns, end: None };
        kept.ring.push(event);
        Recording(Some(Running { kept: Arc::clone(kept), event, errno: 0 }))
    }

    /// What is remembered now.
    pub fn report(&self) -> HistoryReport {
        let Some(kept) = &self.kept else { return HistoryReport::default() };
        let mut entries: BTreeMap<u64, HistoryEntry> = BTreeMap::new();
        for Event { id, operation, inode, start_ns, end } in kept.ring.events() {
            let operation = Cow::Borrowed(operation);
            let entry =
                entries.entry(id).or_insert(HistoryEntry { id, operation, inode, start_ns, end });
            entry.end = entry.end.or(end);
        }
        HistoryReport {
            mode: kept.mode,
            now_ns: kept.now_ns(),
            entries: entries.into_values().collect(),
        }
    }
}

/// An operation under way, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the operation"]
pub struct Recording(Option<Running>);

#[derive(Debug)]
struct Running {
    kept: Arc<Kept>,
    event: Event,
    errno: i32,
}

impl Recording {
    /// It failed, unless `errno` is 0.
    pub fn answered(&mut self, errno: i32) {
        if let Some(running) = &mut self.0 {
            running.errno = errno;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let duration_ns = self.kept.now_ns().saturating_sub(self.event.start_ns);
        self.kept
            .ring
            .push(Event { end: Some(HistoryEnd { duration_ns, errno: self.errno }), ..self.event });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histories() -> Vec<History> {
        let history = |mode| History::new(mode, Instant::now(), &LockTable::default());
        [HistoryMode::Locked, HistoryMode::LockFree].map(history).to_vec()
    }

    #[test]
    fn operations_are_remembered_with_their_ends() {
        for history in histories() {
            let mut failed = history.begin("read", 7);
            failed.answered(5);
            drop(failed);
            let under_way = history.begin("write", 8);
            // Reading changes nothing.
            assert_eq!(history.report().entries, history.report().entries);
            let entries = history.report().entries;
            let seen: Vec<_> = entries
                .iter()
                .map(|e| (e.id, &*e.operation, e.inode, e.end.map(|e| e.errno)))
                .collect();
            assert_eq!(seen, [(1, "read", 7, Some(5)), (2, "write", 8, None)]);
            drop(under_way);
            assert_eq!(history.report().entries[1].end.map(|end| end.errno), Some(0));
            assert!(
                history
                    .report()
                    .entries
                    .iter()
                    .all(|entry| entry.start_ns <= history.report().now_ns)
            );
        }
    }

    #[test]
    fn the_newest_are_kept() {
        for history in histories() {
            let operations = EVENTS_MAX as u64;
            (0..operations).for_each(|inode| drop(history.begin("read", inode)));
            let entries = history.report().entries;
            assert_eq!(entries.len(), EVENTS_MAX / 2);
            assert_eq!(entries.last().map(|entry| entry.id), Some(operations));
            assert!(entries.iter().all(|entry| entry.end.is_some()));
        }
    }

    #[test]
    fn threads_and_readers_at_once_lose_no_more_than_there_is_no_room_for() {
        for history in histories() {
            std::thread::scope(|scope| {
                for inode in 0..4 {
                    let history = history.clone();
                    scope
                        .spawn(move || (0..2000).for_each(|_| drop(history.begin("write", inode))));
                }
                for _ in 0..50 {
                    let entries = history.report().entries;
                    assert!(entries.len() <= EVENTS_MAX);
                    assert!(entries.windows(2).all(|pair| pair[0].id < pair[1].id));
                }
            });
            (0..10).for_each(|_| drop(history.begin("read", 9)));
            let entries = history.report().entries;
            assert_eq!(entries.iter().filter(|entry| entry.inode == 9).count(), 10);
            assert_eq!(entries.last().map(|entry| entry.id), Some(8010));
        }
    }

    #[test]
    fn off_remembers_nothing_and_names_are_understood() {
        let history = History::new(HistoryMode::Off, Instant::now(), &LockTable::default());
        drop(history.begin("read", 1));
        assert_eq!(history.report(), HistoryReport::default());
        for (name, mode) in HistoryMode::ALL {
            assert_eq!((name.parse(), mode.to_string().as_str()), (Ok(mode), name));
        }
        assert!("on".parse::<HistoryMode>().is_err());
    }
}
