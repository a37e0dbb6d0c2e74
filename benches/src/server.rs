//! The server of a run: answers reads, writes and pings, and takes as long as the scenario says.
//!
//! Contract: in blocking mode a message costs its worker time in two parts, one inside the handler,
//! where the messenger holds the connection's lock if the mapping has one, and one in a task
//! afterwards. Time is slept in pieces of a millisecond or more, and oversleeping is taken off the
//! next piece: on average, and at any load of the machine, a worker is taken up for as long as the
//! scenario says.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use messenger::{Connection, Message, Service, TrafficClass, Worker};

use crate::scenario::ServiceTimes;

/// Time that is owed before it is slept: far above the kernel's timer slack of 50 us.
const SLEEP_MIN_NS: i64 = 1_000_000;
/// Kind of every reply.
const REPLY: u16 = 16;

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Reply with so many bytes.
    Read(u32),
    /// Carries so many bytes.
    Write(u32),
    /// Carries nothing, wants nothing.
    Ping,
}

impl Request {
    /// The message; `data` is at least as long as any block.
    pub(crate) fn message(self, data: &Bytes) -> Message {
        let (kind, front, data) = match self {
            Request::Read(bytes) => (1, Bytes::copy_from_slice(&bytes.to_le_bytes()), Bytes::new()),
            Request::Write(bytes) => (2, Bytes::new(), data.slice(..bytes as usize)),
            Request::Ping => (3, Bytes::new(), Bytes::new()),
        };
        Message::new(TrafficClass::Client, kind, front, data)
    }

    /// `None` for a message that is none of ours.
    fn parse(message: &Message) -> Option<Request> {
        match message.kind {
            1 => Some(Request::Read(u32::from_le_bytes(message.front[..].try_into().ok()?))),
            2 => u32::try_from(message.data.len()).ok().map(Request::Write),
            3 => Some(Request::Ping),
            _ => None,
        }
    }

    /// Bytes of data received and sent.
    fn bytes(self) -> (u64, u64) {
        match self {
            Request::Read(bytes) => (0, bytes.into()),
            Request::Write(bytes) => (bytes.into(), 0),
            Request::Ping => (0, 0),
        }
    }
}

/// What the handlers of one worker have done.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Bytes of data, both directions.
    pub(crate) bytes: AtomicU64,
    /// Messages, pings included.
    pub(crate) messages: AtomicU64,
    /// Service time in nanoseconds, as the scenario says.
    pub(crate) busy_ns: AtomicU64,
}

impl Work {
    /// A message was answered that carried so many bytes of data in both directions.
    fn done(&self, bytes: u64) {
        self.messages.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// So much service time has passed.
    fn busy(&self, ns: i64) {
        self.busy_ns.fetch_add(ns.unsigned_abs(), Relaxed);
    }
}

/// Makes the service of each worker.
pub(crate) fn factory(
    times: Option<ServiceTimes>,
    work: Arc<Vec<Work>>,
    data: Bytes,
) -> impl Fn(&Worker) -> Rc<dyn Service> {
    move |_| {
        Rc::new(Server {
            times,
            work: Arc::clone(&work),
            data: data.clone(),
            locked: Debt::default(),
            free: Rc::new(Debt::default()),
        })
    }
}

struct Server {
    times: Option<ServiceTimes>,
    work: Arc<Vec<Work>>,
    data: Bytes,
    locked: Debt,
    free: Rc<Debt>,
}

impl Service for Server {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        let Some(request) = Request::parse(&message) else { return };
        let (bytes_in, bytes_out) = request.bytes();
        let reply = match request {
            Request::Read(bytes) => self.data.slice(..bytes as usize),
            Request::Write(_) | Request::Ping => Bytes::new(),
        };
        let work = Arc::clone(&self.work);
        let index = worker.index();
        let Some(times) = self.times else {
            work[index].done(bytes_in + bytes_out);
            connection.reply(&message, REPLY, Bytes::new(), reply);
            return;
        };
        let (locked_ns, free_ns) = (times.locked_ns(bytes_in, bytes_out), times.free_ns(bytes_out));
        let to = message.reply_to();
        drop(message);
        self.locked.pay(locked_ns);
        work[index].busy(locked_ns);
        let (free, connection) = (Rc::clone(&self.free), connection.clone());
        worker.spawn(async move {
            free.pay(free_ns);
            work[index].busy(free_ns);
            work[index].done(bytes_in + bytes_out);
            connection.reply_to(to, Message::new(TrafficClass::Client, REPLY, Bytes::new(), reply));
        });
    }
}

/// Time owed by a thread, in nanoseconds; negative after oversleeping.
#[derive(Debug, Default)]
pub(crate) struct Debt(Cell<i64>);

impl Debt {
    /// Owes more, and sleeps once it is worth a sleep.
    pub(crate) fn pay(&self, ns: i64) {
        let owed = self.0.get() + ns;
        if owed < SLEEP_MIN_NS {
            self.0.set(owed);
            return;
        }
        let begin = Instant::now();
        std::thread::sleep(Duration::from_nanos(owed.unsigned_abs()));
        let slept = i64::try_from(begin.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.0.set(owed - slept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_their_message() {
        let data = Bytes::from(vec![1; 100]);
        for request in [Request::Read(70), Request::Write(100), Request::Ping] {
            assert_eq!(Request::parse(&request.message(&data)), Some(request));
        }
        let other = Message::new(TrafficClass::Client, 9, Bytes::new(), Bytes::new());
        assert_eq!(Request::parse(&other), None);
    }

    #[test]
    fn small_debts_wait_and_large_ones_are_paid() {
        let debt = Debt::default();
        debt.pay(SLEEP_MIN_NS / 2);
        assert_eq!(debt.0.get(), SLEEP_MIN_NS / 2);
        let begin = Instant::now();
        debt.pay(SLEEP_MIN_NS);
        assert!(begin.elapsed() >= Duration::from_nanos(SLEEP_MIN_NS.unsigned_abs()));
        assert!(debt.0.get() <= 0, "what was slept is no longer owed");
    }
}
