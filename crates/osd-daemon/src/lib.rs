//! The storage daemon: the roles `osd`, `monitor` and `mds`, in one process or apart.
//!
//! A role is a function `start` that takes a plain configuration struct and returns a handle with a
//! clean `stop`. Nothing is global: a test starts a whole cluster, or several, in one process.
//!
//! Knows nothing of FUSE. Start reading at `roles::start`.

mod addresses;
pub mod admin;
pub mod config;
mod data_client;
mod inbox;
pub mod mds;
pub mod monitor;
pub mod osd;
mod random;
mod readiness;
pub mod roles;
mod supervisor;
mod traffic;
