//! What every role tells of itself to whoever asks over the messenger.

use bytes::Bytes;
use messenger::{Connection, Message, Worker};
use protocol::Kind;

/// Answers a [`Kind::Telemetry`] request with all that the worker's runtime has counted; false if the message is none.
pub(crate) fn answer(worker: &Worker, connection: &Connection, message: &Message) -> bool {
    let is_asked = Kind::from_u16(message.kind) == Some(Kind::Telemetry) && message.is_request();
    if is_asked {
        let report = protocol::encode(&worker.handle().stats());
        connection.reply(message, Kind::TelemetryReply.to_u16(), report, Bytes::new());
    }
    is_asked
}
