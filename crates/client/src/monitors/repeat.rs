//! Which requests to a monitor may be sent again, to the same one or to another, when nobody knows
//! whether they were carried out.
//!
//! A monitor that answers `NotLeader` has done nothing, so that any request goes on to the leader.
//! What a lost connection, or silence, does to a request is unknown; a second one then does this:
//!
//! | request | a second one |
//! |---|---|
//! | `Subscribe`, `Status`, `Events` | only reads |
//! | `Boot` | one more epoch, as for one more start; the map names the same address and disk |
//! | `Leave` | nothing: the OSD is down. One that came back meanwhile sees it and boots again |
//! | `Heartbeat`, `MdsHeartbeat`, `MdsReport` | says again what is so |
//! | `Peered`, `AskJoin`, `Join` | name the PG's epoch; refused, or passed over, in another one |
//! | `OpenSession` | a second session: the first holds nothing and dies of its time to live |
//! | `RenewSession` | one more renewal |
//! | `CloseSession`, `EvictSession` | nothing: the session is not there any more |
//! | `MdsUp` | the same announcement; refused to another namespace, as the first one |
//! | `ReplaceOsd` | the same consent; refused if the OSD is up by then |
//! | `CreatePool` | **refused: the name is taken** |
//! | `RenamePool` | **refused: no pool has the old name** |
//!
//! The last two would tell an operator of a failure that was none: they are sent once, and whoever
//! asked is told that it is not known whether it was done.

use protocol::monitor::MonitorRequest;

/// May it be sent again? See the module.
pub fn may_repeat(request: &MonitorRequest) -> bool {
    match request {
        MonitorRequest::CreatePool { .. } | MonitorRequest::RenamePool { .. } => false,
        MonitorRequest::Subscribe
        | MonitorRequest::Boot { .. }
        | MonitorRequest::Leave { .. }
        | MonitorRequest::Heartbeat { .. }
        | MonitorRequest::Peered { .. }
        | MonitorRequest::AskJoin { .. }
        | MonitorRequest::Join { .. }
        | MonitorRequest::OpenSession { .. }
        | MonitorRequest::RenewSession { .. }
        | MonitorRequest::CloseSession { .. }
        | MonitorRequest::Status
        | MonitorRequest::MdsUp { .. }
        | MonitorRequest::ReplaceOsd { .. }
        | MonitorRequest::MdsReport(_)
        | MonitorRequest::MdsHeartbeat { .. }
        | MonitorRequest::Events { .. }
        | MonitorRequest::EvictSession { .. } => true,
    }
}
