//! Where code runs: workers with their tasks and timers, threads for what blocks, and what wakes
//! them.
//!
//! [`runtime`] starts and stops it all, [`worker`] is the loop, [`task`] and [`timer`] are what it
//! polls, [`mailbox`] is how other threads reach it. [`blocking`] runs jobs on I/O threads, as many
//! as [`pool_size`] counts; [`inline_predictor`] says whether a job is so short that it had better
//! run at once. [`worker_local`] keeps values of one worker. [`class_queue`] shares between traffic
//! classes.

pub(crate) mod blocking;
pub(crate) mod class_queue;
pub(crate) mod inline_predictor;
pub(crate) mod mailbox;
pub(crate) mod pool_size;
pub(crate) mod runtime;
pub(crate) mod task;
pub(crate) mod timer;
pub(crate) mod worker;
pub(crate) mod worker_local;
