//! Is there anybody?

use super::link::DIAL_MAX;
use messenger::address::HostPorts;
use protocol::MONITOR_PORT;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

/// Says at once when nothing listens at any of the addresses: a session would go on trying. `None`
/// if something does, or may. Blocks, for `wait` at most, or for less per address if there are
/// several.
pub fn nobody_listens(monitors: &HostPorts, wait: Duration) -> Option<String> {
    let wait = if monitors.only().is_some() { wait } else { wait.min(DIAL_MAX) };
    let mut refused = Vec::new();
    for address in monitors.as_slice() {
        // A name that is not known is told by the session.
        for addr in address.resolve(MONITOR_PORT).ok()? {
            match TcpStream::connect_timeout(&addr, wait).err() {
                Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    refused.push(error.to_string());
                }
                _ => return None,
            }
        }
    }
    refused.pop().map(|error| format!("{error}: nothing listens there"))
}
