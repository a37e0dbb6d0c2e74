//! What arrives for the owner: one queue from the services on all workers, and the clock.
//!
//! Contract: any thread pushes, one task takes. Nothing pushes more than its connection may have in flight, so the
//! queue is bounded by the connections' own limits.

use messenger::sync::ContentionMutex;
use messenger::{CloseReason, Connection, Message, ReplyTo, Service, Worker};
use protocol::Kind;
use protocol::monitor::{MonitorReply, MonitorRequest, ResolveReply};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// How often the owner looks at its deadlines: a small part of the shortest, the heartbeats' grace.
const TICK_EVERY: Duration = Duration::from_millis(100);

/// Something for the owner.
#[derive(Debug)]
pub(super) enum Event {
    /// A request, and where its answer goes.
    Request { connection: Connection, reply_to: ReplyTo, request: MonitorRequest },
    /// A connection is closed for good.
    Closed { connection: u64 },
    /// What became of a question to an OSD.
    Resolved { ticket: u64, reply: Option<ResolveReply> },
    /// Time passes.
    Tick,
    /// The end.
    Stop,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Inbox {
    began: Instant,
    queue: ContentionMutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    events: Vec<(Duration, Event)>,
    waker: Option<Waker>,
    stopped: bool,
}

impl Inbox {
    /// An empty queue; its clock begins at zero.
    pub fn new() -> Self {
        Self { began: Instant::now(), queue: ContentionMutex::new("monitor inbox", Queue::default()) }
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

    fn is_stopped(&self) -> bool {
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
        if Kind::from_u16(message.kind) != Some(Kind::Monitor) || !message.is_request() {
            tracing::warn!(peer = %connection.peer(), kind = message.kind, "not for a monitor: connection closed");
            connection.close();
            return;
        }
        match protocol::decode::<MonitorRequest>("monitor request", &message.front) {
            Ok(request) => {
                let (connection, reply_to) = (connection.clone(), message.reply_to());
                self.inbox.push(Event::Request { connection, reply_to, request });
            }
            Err(error) => {
                let reply = MonitorReply::Refused(error.to_string());
                connection.reply(&message, Kind::MonitorReply.to_u16(), protocol::encode(&reply), Default::default());
            }
        }
    }

    fn on_close(&self, _worker: &Worker, connection: &Connection, _reason: &CloseReason) {
        self.inbox.push(Event::Closed { connection: connection.id() });
    }
}
