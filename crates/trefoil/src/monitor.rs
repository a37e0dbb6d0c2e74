//! One question to the monitor or another daemon. No session is opened, so that asking changes
//! nothing.

use crate::error::OperatorError;
use bytes::Bytes;
use messenger::address::{HostPort, NotAnAddress, first_that_listens};
use messenger::sync::{ContentionMutex, block_on};
use messenger::{
    CallError, ConnectConfig, Connection, Message, Runtime, RuntimeConfig, Service, StateEvent,
    TrafficClass, Worker,
};
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::scrub::{ScrubReply, ScrubRequest};
use protocol::{ClusterId, Kind, MONITOR_PORT, OsdId};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Asks, and waits for the answer.
///
/// # Errors
/// [`OperatorError::Unreachable`]: at once when the connection is refused, else when the time is
/// over.
pub fn ask(
    monitor: &str,
    request: &MonitorRequest,
    timeout: Duration,
) -> Result<MonitorReply, OperatorError> {
    let unreachable =
        |reason: String| OperatorError::Unreachable { monitor: monitor.to_owned(), reason };
    let reply =
        call(monitor, Kind::Monitor, protocol::encode(request), timeout).map_err(unreachable)?;
    protocol::decode("monitor reply", &reply.front).map_err(|e| unreachable(e.to_string()))
}

/// Asks a storage daemon about scrubbing, and waits for the answer.
///
/// # Errors
/// [`OperatorError::Refused`] when it does not answer.
pub fn ask_osd(
    osd: OsdId,
    addr: SocketAddr,
    request: &ScrubRequest,
    timeout: Duration,
) -> Result<ScrubReply, OperatorError> {
    let silent = |reason: String| {
        OperatorError::Refused(format!("{osd} at {addr} does not answer: {reason}"))
    };
    let reply =
        call(&addr.to_string(), Kind::Scrub, protocol::encode(request), timeout).map_err(silent)?;
    protocol::decode("scrub reply", &reply.front).map_err(|e| silent(e.to_string()))
}

/// One call to a daemon, over a connection of its own.
///
/// # Errors
/// Why there is no answer, in words.
pub fn call(addr: &str, kind: Kind, front: Bytes, timeout: Duration) -> Result<Message, String> {
    let address: HostPort = addr.parse().map_err(|e: NotAnAddress| e.to_string())?;
    let addresses = address.resolve(MONITOR_PORT).map_err(|e| e.to_string())?;
    let address = first_that_listens(&addresses).map_err(|e| e.to_string())?;
    let runtime = Runtime::start(RuntimeConfig::new("trefoil", 1)).map_err(|e| e.to_string())?;
    let problem = Arc::new(ContentionMutex::new(runtime.handle().locks(), "problem", None));
    let service = GiveUp { problem: Arc::clone(&problem) };
    let config = ConnectConfig::new(address, ClusterId::default(), "trefoil");
    let connection =
        runtime.handle().connect(0, config, move |_| Rc::new(service) as Rc<dyn Service>);
    let message = Message::new(TrafficClass::Control, kind.to_u16(), front, Bytes::new());
    let answer = block_on(connection.call(message, timeout));
    connection.close();
    runtime.shutdown();
    let why = |error| match (problem.lock().take(), error) {
        (Some(problem), _) => problem,
        (None, CallError::Closed) if kind == Kind::Monitor => {
            "what listens there closed the connection: it is no monitor".to_owned()
        }
        (None, error) => error.to_string(),
    };
    answer.map_err(why)
}

/// Gives up at the first failure instead of reconnecting: an operator wants to know.
struct GiveUp {
    problem: Arc<ContentionMutex<Option<String>>>,
}

impl Service for GiveUp {
    fn on_message(&self, _worker: &Worker, _connection: &Connection, _message: Message) {}

    fn on_state(&self, _worker: &Worker, connection: &Connection, event: &StateEvent) {
        let reason = match event {
            StateEvent::Down { reason } => reason.clone(),
            StateEvent::Refused(refusal) => refusal.to_string(),
            StateEvent::Up { .. } | StateEvent::Reset => return,
        };
        self.problem.lock().get_or_insert(reason);
        connection.close();
    }
}
