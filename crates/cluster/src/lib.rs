//! The cluster map and the control plane.
#![forbid(unsafe_code)]

pub mod map;

pub use map::{ClusterMap, Osd, Pg, Pool, SessionState};
