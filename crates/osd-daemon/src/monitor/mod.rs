//! The role monitor.
