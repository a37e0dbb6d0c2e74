//! osd-daemon
fn main() {}
