//! What arrives for the owner, and the services that bring it.

use crate::admin::{Fixed, LiveConfig};
use crate::inbox::OwnerEvent;
use cluster::ClusterMap;
use messenger::sync::Sender;
use messenger::{CloseReason, Connection, Message, ReplyTo, Service, Worker};
use metadata::store::Persist;
use metadata::{PurgeEntry, SizeRecovery, StoreError};
use protocol::namespace::{Answer, Reply, Request};
use protocol::{Gfid, Kind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Something for the owner.
pub(super) enum Event {
    /// A request, and where its answer goes.
    Request { connection: Connection, reply_to: ReplyTo, request: Request },
    /// A connection is closed for good.
    Closed { connection: u64 },
    /// The monitor has a new map.
    Map(Box<ClusterMap>),
    /// What was committed before the sync began is on disk, or not; how long that took if it was
    /// little.
    Synced { persister: Box<dyn Persist>, result: Result<(), StoreError>, took: Option<Duration> },
    /// The data worker asks for files to purge, behind this one.
    NextPurges { after: Option<Gfid>, limit: usize, answer: Sender<Vec<PurgeEntry>> },
    /// The data worker asks for files whose size is to be recovered.
    NextSizes { after: Option<Gfid>, limit: usize, answer: Sender<Vec<SizeRecovery>> },
    /// A file's objects are deleted.
    Purged(Gfid),
    /// A file's data ends here.
    SizeRecovered { gfid: Gfid, end: u64 },
    /// Time passes.
    Tick,
    /// The end.
    Stop,
}

impl OwnerEvent for Event {
    const TICK: Self = Event::Tick;

    fn is_stop(&self) -> bool {
        matches!(self, Event::Stop)
    }
}

/// The owner's queue.
pub(super) type Inbox = crate::inbox::Inbox<Event>;

/// The service of one worker.
pub(super) fn service(inbox: Arc<Inbox>, live: Arc<LiveConfig>) -> Rc<dyn Service> {
    Rc::new(Forward { inbox, live })
}

struct Forward {
    inbox: Arc<Inbox>,
    live: Arc<LiveConfig>,
}

impl Service for Forward {
    fn on_message(&self, worker: &Worker, connection: &Connection, message: Message) {
        if messenger::telemetry::answer(worker, connection, &message) {
            return;
        }
        if message.kind == Kind::Admin.to_u16() && message.is_request() {
            return self.live.serve(&Fixed, connection, &message);
        }
        if Kind::from_u16(message.kind) != Some(Kind::Namespace) || !message.is_request() {
            tracing::warn!(peer = %connection.peer(), kind = message.kind, "not for a metadata service: connection closed");
            connection.close();
            return;
        }
        match protocol::decode::<Request>("namespace request", &message.front) {
            Ok(request) => {
                let (connection, reply_to) = (connection.clone(), message.reply_to());
                let asked = connection.clone();
                self.inbox.push(Event::Request { connection, reply_to, request });
                if self.inbox.is_stopped() {
                    // Nobody answers here any more.
                    asked.close();
                }
            }
            Err(error) => {
                tracing::warn!(peer = %connection.peer(), %error, "request refused");
                let reply = protocol::encode(&Answer::bare(Reply::Errno(EPROTO)));
                connection.reply(
                    &message,
                    Kind::NamespaceReply.to_u16(),
                    reply,
                    Default::default(),
                );
            }
        }
    }

    fn on_close(&self, _worker: &Worker, connection: &Connection, _reason: &CloseReason) {
        self.inbox.push(Event::Closed { connection: connection.id() });
    }
}

/// Protocol error, as POSIX numbers it on Linux.
const EPROTO: i32 = rustix::io::Errno::PROTO.raw_os_error();
