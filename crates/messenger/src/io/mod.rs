//! Sockets and memory: addresses as people write them ([`address`]), readiness ([`reactor`],
//! [`busy_poll`]), byte streams that may carry descriptors ([`stream`]), and buffers that are used
//! again ([`buffer`]).

pub mod address;
pub mod buffer;
pub(crate) mod busy_poll;
pub(crate) mod reactor;
pub(crate) mod stream;
