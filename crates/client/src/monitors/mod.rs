//! Finding the monitors of a cluster, and asking the one that leads.
//!
//! * [`list`]: which address is dialled next, pure.
//! * [`link`]: [`MonitorLink`], one connection to whichever monitor answers, moved to another one
//!   when it is silent, refuses or does not lead.
//! * [`listens`]: whether anybody is there at all.
//! * [`repeat`]: which requests may be sent again when it is not known what became of them.
//!
//! Contract: a cluster with one monitor at one address costs one connection and no message beyond
//! those that are asked for.

pub mod link;
pub mod list;
mod listens;
pub mod repeat;

pub use link::{LinkConfig, LinkError, MonitorEvents, MonitorLink};
pub use list::{MONITORS_MAX, Monitors, Next};
pub use listens::nobody_listens;
pub use repeat::may_repeat;
