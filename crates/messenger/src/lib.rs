//! A small async runtime on mio: workers, connections, frames, traffic classes, timers, calls and replies.
