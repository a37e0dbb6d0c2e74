//! The client against daemons that live in the test: what it does with bytes, faults and lost
//! answers.

mod fake;
mod io;
mod namespace;
