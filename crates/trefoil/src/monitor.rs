//! One question to the monitor. No session is opened, so that asking changes nothing.

use crate::error::OperatorError;
use bytes::Bytes;
use messenger::sync::block_on;
use messenger::{
    ConnectConfig, Connection, Message, Runtime, RuntimeConfig, Service, StateEvent, TrafficClass, Worker,
};
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::{ClusterId, Kind};
use std::net::ToSocketAddrs;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Asks, and waits for the answer.
///
/// # Errors
/// [`OperatorError::Unreachable`]: at once when the connection is refused, else when the time is over.
pub fn ask(monitor: &str, request: &MonitorRequest, timeout: Duration) -> Result<MonitorReply, OperatorError> {
    let unreachable = |reason: String| OperatorError::Unreachable { monitor: monitor.to_owned(), reason };
    let mut addresses = monitor.to_socket_addrs().map_err(|e| unreachable(e.to_string()))?;
    let address = addresses.next().ok_or_else(|| unreachable("the name has no address".into()))?;
    let runtime = Runtime::start(RuntimeConfig::new("trefoil", 1)).map_err(|e| unreachable(e.to_string()))?;
    let problem = Arc::new(Mutex::new(None));
    let service = GiveUp { problem: Arc::clone(&problem) };
    let config = ConnectConfig::new(address, ClusterId::default(), "trefoil");
    let connection = runtime.handle().connect(0, config, move |_| Rc::new(service) as Rc<dyn Service>);
    let front = protocol::encode(request);
    let message = Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front, Bytes::new());
    let answer = block_on(connection.call(message, timeout));
    connection.close();
    runtime.shutdown();
    let reply = answer.map_err(|error| {
        let seen = problem.lock().unwrap_or_else(PoisonError::into_inner).take();
        unreachable(seen.unwrap_or_else(|| error.to_string()))
    })?;
    protocol::decode("monitor reply", &reply.front).map_err(|e| unreachable(e.to_string()))
}

/// Gives up at the first failure instead of reconnecting: an operator wants to know.
struct GiveUp {
    problem: Arc<Mutex<Option<String>>>,
}

impl Service for GiveUp {
    fn on_message(&self, _worker: &Worker, _connection: &Connection, _message: Message) {}

    fn on_state(&self, _worker: &Worker, connection: &Connection, event: &StateEvent) {
        let reason = match event {
            StateEvent::Down { reason } => reason.clone(),
            StateEvent::Refused(refusal) => refusal.to_string(),
            StateEvent::Up { .. } | StateEvent::Reset => return,
        };
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        connection.close();
    }
}
