//! trefoil
fn main() {}
