//! What arrives for the owner: one queue from the services on all workers, the monitor, the data worker and the clock.
//!
//! Contract: any thread pushes, one task takes. Nothing pushes more than its connection may have in flight, so the
//! queue is bounded by the connections' own limits.

use cluster::ClusterMap;
use messenger::sync::{ContentionMutex, Sender};
use messenger::{CloseReason, Connection, Message, ReplyTo, Service, Worker};
use metadata::store::Persist;
use metadata::{PurgeEntry, SizeRecovery, StoreError};
use protocol::namespace::{Reply, Request};
use protocol::{Gfid, Kind};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// How often the owner looks at its deadlines: a small part of the shortest, the repetition of a recall.
const TICK_EVERY: Duration = Duration::from_millis(100);

/// Something for the owner.
pub(super) enum Event {
    /// A request, and where its answer goes.
    Request { connection: Connection, reply_to: ReplyTo, request: Request },
    /// A connection is closed for good.
    Closed { connection: u64 },
    /// The monitor has a new map.
    Map(Box<ClusterMap>),
    /// What was committed before the sync began is on disk, or not.
    Synced { persister: Box<dyn Persist>, result: Result<(), StoreError> },
    /// The data worker asks for files to purge.
    NextPurges { limit: usize, answer: Sender<Vec<PurgeEntry>> },
    /// The data worker asks for files whose size is to be recovered.
    NextSizes { limit: usize, answer: Sender<Vec<SizeRecovery>> },
    /// A file's objects are deleted.
    Purged(Gfid),
    /// A file's data ends here.
    SizeRecovered { gfid: Gfid, end: u64 },
    /// Time passes.
    Tick,
    /// The end.
    Stop,
}

/// The queue.
pub(super) struct Inbox {
    began: Instant,
    queue: ContentionMutex<Queue>,
}

#[derive(Default)]
struct Queue {
    events: Vec<(Duration, Event)>,
    waker: Option<Waker>,
    stopped: bool,
}

impl Inbox {
    /// An empty queue; its clock begins at zero.
    pub fn new() -> Self {
        Self { began: Instant::now(), queue: ContentionMutex::new("mds inbox", Queue::default()) }
    }

    /// Adds an event, with the time of its arrival. Does nothing after [`Event::Stop`].
    pub fn push(&self, event: Event) {
        let mut queue = self.queue.lock();
        if queue.stopped {
            return;
        }
        queue.stopped = matches!(event, Event::Stop);
        let at = self.began.elapsed(); // read under the lock: times in the queue never go back
        queue.events.push((at, event));
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// All that has arrived; waits for something.
    pub async fn take(&self) -> Vec<(Duration, Event)> {
        poll_fn(|cx| {
            let mut queue = self.queue.lock();
            if queue.events.is_empty() {
                queue.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(std::mem::take(&mut queue.events))
        })
        .await
    }

    /// Has the end been pushed?
    pub fn is_stopped(&self) -> bool {
        self.queue.lock().stopped
    }
}

/// Pushes ticks until the end.
pub(super) async fn tick(worker: Worker, inbox: Arc<Inbox>) {
    while !inbox.is_stopped() {
        worker.sleep(TICK_EVERY).await;
        inbox.push(Event::Tick);
    }
}

/// The service of one worker.
pub(super) fn service(inbox: Arc<Inbox>) -> Rc<dyn Service> {
    Rc::new(Forward { inbox })
}

struct Forward {
    inbox: Arc<Inbox>,
}

impl Service for Forward {
    fn on_message(&self, _worker: &Worker, connection: &Connection, message: Message) {
        if Kind::from_u16(message.kind) != Some(Kind::Namespace) || !message.is_request() {
            tracing::warn!(peer = %connection.peer(), kind = message.kind, "not for a metadata service: connection closed");
            connection.close();
            return;
        }
        match protocol::decode::<Request>("namespace request", &message.front) {
            Ok(request) => {
                let (connection, reply_to) = (connection.clone(), message.reply_to());
                self.inbox.push(Event::Request { connection, reply_to, request });
            }
            Err(error) => {
                tracing::warn!(peer = %connection.peer(), %error, "request refused");
                let reply = protocol::encode(&Reply::Errno(EPROTO));
                connection.reply(&message, Kind::NamespaceReply.to_u16(), reply, Default::default());
            }
        }
    }

    fn on_close(&self, _worker: &Worker, connection: &Connection, _reason: &CloseReason) {
        self.inbox.push(Event::Closed { connection: connection.id() });
    }
}

/// Protocol error, as POSIX numbers it on Linux.
const EPROTO: i32 = rustix::io::Errno::PROTO.raw_os_error();
