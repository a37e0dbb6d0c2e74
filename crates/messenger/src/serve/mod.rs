//! Accepting connections ([`listener`]) and what handles their messages ([`service`]).

pub(crate) mod listener;
pub(crate) mod service;
