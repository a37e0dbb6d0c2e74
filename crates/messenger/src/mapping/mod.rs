//! Which workers serve a connection: [`shared_connection`] is a connection with all that are
//! attached to it, [`attachment_map`] says where each has it, and [`rebalance`] moves it as the
//! mapping decides.

pub(crate) mod attachment_map;
pub(crate) mod rebalance;
pub(crate) mod shared_connection;
