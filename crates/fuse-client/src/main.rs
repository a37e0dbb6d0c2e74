//! fuse-client
fn main() {}
