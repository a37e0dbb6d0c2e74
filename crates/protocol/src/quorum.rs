//! Talk among monitors, and what others are told of them.
//!
//! Contract: values. The log itself travels as frames of the crate `consensus`, opaque here. A
//! monitor is named by its place in the list of monitors, which all of them have in one order.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Monitors of a cluster, at most. More decide more slowly and survive no more of what happens.
pub const MONITORS_MAX: usize = 5;

/// What a monitor says first on a connection to another one, and what that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorHello {
    /// Its place in the list of monitors.
    pub node: u16,
    /// Monitors in its list.
    pub count: u16,
    /// Is the connection for what is large? Heartbeats have one of their own.
    pub bulk: bool,
    /// The random number of a directory that never held a log; `None` if it does, or did.
    pub nonce: Option<u128>,
    /// Those of the directories in which the cluster began, in the order of the list; empty if it
    /// does not know them.
    pub birth: Vec<u128>,
}

/// The monitors of a cluster that has several, as one of them sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumStatus {
    /// The newest leadership that it knows.
    pub term: u64,
    /// Which one leads, if one does.
    pub leader: Option<u16>,
    /// Which one says so.
    pub told_by: u16,
    /// All of them, in the order of the list.
    pub monitors: Vec<MonitorStatus>,
}

/// One of several monitors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorStatus {
    /// Where it is reached.
    pub addr: SocketAddr,
    /// Does the one that tells hear of it?
    pub up: bool,
    /// Does it decide? One that begins on a new disk does not until it has been told everything.
    pub votes: bool,
}
