//! Addresses as people write them: a host name or an IP address, with or without a port.
//!
//! Contract: [`HostPort`] only checks the form; names are looked up when it is used
//! ([`HostPort::resolve`]), on the calling thread, which may take seconds. A name may have several
//! addresses; [`first_that_listens`] says which of them serves. [`HostPorts`] is a list of them,
//! for a service that runs on several machines.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

/// Bytes of a host name at most, as in DNS.
const NAME_BYTES_MAX: usize = 253;
/// Addresses in a list, at most: more than a cluster has monitors.
pub const HOST_PORTS_MAX: usize = 16;
/// How long one of several addresses may take to accept a connection before the next is tried.
const PROBE_WAIT: Duration = Duration::from_secs(2);

/// `HOST` or `HOST:PORT`; HOST is a name, an IPv4 address, or an IPv6 address, in brackets where a
/// port follows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort {
    host: String,
    port: Option<u16>,
}

/// A text that is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not an address: give HOST or HOST:PORT, with an IPv6 address in brackets")]
pub struct NotAnAddress(String);

impl HostPort {
    /// The host as it was written, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, if one was written.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The same host with this port.
    #[must_use]
    pub fn with_port(&self, port: u16) -> HostPort {
        HostPort { host: self.host.clone(), port: Some(port) }
    }

    /// Is it `0.0.0.0` or `[::]`: every address of this machine, and none that another could dial?
    pub fn is_unspecified(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
    }

    /// Is the host a name, and not an IP address?
    pub fn is_name(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }

    /// All its addresses, at least one. Asks the system's resolver if the host is a name.
    ///
    /// # Errors
    /// What the resolver says.
    pub fn resolve(&self, default_port: u16) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> =
            (self.host.as_str(), self.port.unwrap_or(default_port)).to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(found)
    }
}

impl FromStr for HostPort {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<HostPort, NotAnAddress> {
        let wrong = || NotAnAddress(text.chars().take(NAME_BYTES_MAX).collect());
        let number = |port: &str| match port.bytes().all(|byte| byte.is_ascii_digit()) {
            true => port.parse::<u16>().map_err(|_| wrong()),
            false => Err(wrong()),
        };
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(HostPort { host: text.to_owned(), port: None });
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            host.parse::<Ipv6Addr>().map_err(|_| wrong())?;
            let port = match port.strip_prefix(':') {
                Some(port) => Some(number(port)?),
                None if port.is_empty() => None,
                None => return Err(wrong()),
            };
            return Ok(HostPort { host: host.to_owned(), port });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(number(port)?)),
            None => (text, None),
        };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_host = (1..=NAME_BYTES_MAX).contains(&host.len()) && host.bytes().all(fits);
        if is_host { Ok(HostPort { host: host.to_owned(), port }) } else { Err(wrong()) }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

impl TryFrom<String> for HostPort {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<HostPort, NotAnAddress> {
        text.parse()
    }
}

impl From<HostPort> for String {
    fn from(address: HostPort) -> String {
        address.to_string()
    }
}

impl From<SocketAddr> for HostPort {
    fn from(addr: SocketAddr) -> HostPort {
        HostPort { host: addr.ip().to_string(), port: Some(addr.port()) }
    }
}

/// One to [`HOST_PORTS_MAX`] addresses of one service, each once, in the order in which they are
/// tried. Written with commas between them, or as a list where the format has lists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "OneOrMany", into = "OneOrMany")]
pub struct HostPorts(Vec<HostPort>);

/// A text that is no list of addresses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotAddresses {
    /// One of them is none.
    #[error(transparent)]
    One(#[from] NotAnAddress),
    /// There is none.
    #[error("no address is given: give HOST or HOST:PORT, several with commas between them")]
    Empty,
    /// There are too many.
    #[error("{0} addresses are given, and {HOST_PORTS_MAX} are the most")]
    TooMany(usize),
}

/// As configuration files have it: a text with commas, or a list of texts.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl HostPorts {
    /// The addresses, in order; at least one.
    pub fn as_slice(&self) -> &[HostPort] {
        &self.0
    }

    /// The first one.
    pub fn first(&self) -> &HostPort {
        &self.0[0]
    }

    /// The only one, if there is one only.
    pub fn only(&self) -> Option<&HostPort> {
        match &self.0[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Where the only one is, if there is one only, and nothing has to be looked up for it.
    pub fn only_addr(&self) -> Option<SocketAddr> {
        let only = self.only()?;
        Some(SocketAddr::new(only.host.parse().ok()?, only.port?))
    }

    /// The list of these.
    ///
    /// # Errors
    /// There is none, or there are more than [`HOST_PORTS_MAX`].
    pub fn new(addresses: impl IntoIterator<Item = HostPort>) -> Result<HostPorts, NotAddresses> {
        let mut list: Vec<HostPort> = Vec::new();
        for address in addresses {
            if !list.contains(&address) {
                list.push(address);
            }
        }
        match list.len() {
            0 => Err(NotAddresses::Empty),
            1..=HOST_PORTS_MAX => Ok(HostPorts(list)),
            many => Err(NotAddresses::TooMany(many)),
        }
    }
}

impl FromStr for HostPorts {
    type Err = NotAddresses;

    fn from_str(text: &str) -> Result<HostPorts, NotAddresses> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let found = words.map(str::parse).collect::<Result<Vec<_>, NotAnAddress>>()?;
        HostPorts::new(found)
    }
}

impl fmt::Display for HostPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, address) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

impl From<HostPort> for HostPorts {
    fn from(address: HostPort) -> HostPorts {
        HostPorts(vec![address])
    }
}

impl From<SocketAddr> for HostPorts {
    fn from(addr: SocketAddr) -> HostPorts {
        HostPort::from(addr).into()
    }
}

impl TryFrom<OneOrMany> for HostPorts {
    type Error = NotAddresses;

    fn try_from(written: OneOrMany) -> Result<HostPorts, NotAddresses> {
        match written {
            OneOrMany::One(text) => text.parse(),
            OneOrMany::Many(texts) => texts.join(",").parse(),
        }
    }
}

impl From<HostPorts> for OneOrMany {
    fn from(addresses: HostPorts) -> OneOrMany {
        OneOrMany::One(addresses.to_string())
    }
}

/// The first address that accepts a connection; each is given 2 s. A single one is not tried: who
/// dials it will see.
///
/// # Errors
/// What the last one said, if none does.
pub fn first_that_listens(addresses: &[SocketAddr]) -> io::Result<SocketAddr> {
    if let [only] = addresses {
        return Ok(*only);
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for addr in addresses {
        match TcpStream::connect_timeout(addr, PROBE_WAIT) {
            Ok(_) => return Ok(*addr),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;

    #[test]
    fn every_form_is_understood_and_told_as_it_is_written() {
        for (text, host, port) in [
            ("node1", "node1", None),
            ("node1.example.org:7400", "node1.example.org", Some(7400)),
            ("127.0.0.1", "127.0.0.1", None),
            ("10.0.0.1:0", "10.0.0.1", Some(0)),
            ("::1", "::1", None),
            ("[fe80::1]:65535", "fe80::1", Some(65535)),
        ] {
            let address: HostPort = text.parse().expect(text);
            assert_eq!(
                (address.host(), address.port(), address.to_string().as_str()),
                (host, port, text)
            );
        }
        assert_eq!("[::1]".parse::<HostPort>().map(|a| a.to_string()), Ok("::1".to_owned()));
        for text in [
            "",
            ":7400",
            "a:b",
            "a:70000",
            "a:",
            "a:+1",
            "a b",
            "[::1",
            "[::1]7400",
            "[a]:1",
            "a/b",
            "::1:x",
        ] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_port_is_taken_where_none_is_written() {
        let resolve = |text: &str| {
            text.parse::<HostPort>().expect(text).resolve(7400).expect("no name is asked for")
        };
        assert_eq!(resolve("127.0.0.1"), ["127.0.0.1:7400".parse().expect("an address")]);
        assert_eq!(resolve("[::1]:9"), ["[::1]:9".parse().expect("an address")]);
        let unspecified = |text: &str| text.parse::<HostPort>().expect(text).is_unspecified();
        assert_eq!(
            ["0.0.0.0", "[::]:1", "0.0.0.0:7411", "10.0.0.1", "node1"].map(unspecified),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn a_list_is_written_with_commas_and_holds_each_once() {
        let list = |text: &str| text.parse::<HostPorts>();
        let three = list("node1, node2:7000,,[::1]:1,node1").expect("a list");
        assert_eq!(three.to_string(), "node1,node2:7000,[::1]:1");
        assert_eq!((three.as_slice().len(), three.only()), (3, None));
        assert_eq!(list("node1").expect("one").only().map(HostPort::host), Some("node1"));
        assert_eq!(list(" , "), Err(NotAddresses::Empty));
        assert!(matches!(list("node1,a:b"), Err(NotAddresses::One(_))));
        let many: Vec<String> = (0..17).map(|i| format!("node{i}")).collect();
        assert_eq!(list(&many.join(",")), Err(NotAddresses::TooMany(17)));
    }

    #[test]
    fn of_several_addresses_the_one_that_listens_is_taken() {
        let [gone, there] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [closed, open] =
            [&gone, &there].map(|listener| listener.local_addr().expect("it listens"));
        drop(gone);
        assert_eq!(first_that_listens(&[closed, open]).expect("one listens"), open);
        assert!(first_that_listens(&[closed, closed]).is_err());
        assert_eq!(first_that_listens(&[closed]).expect("not tried"), closed);
    }

    proptest! {
        #[test]
        fn what_is_understood_is_told_the_same(text in "[a-z0-9:.\\[\\]-]{0,20}|\\PC{0,20}") {
            if let Ok(address) = text.parse::<HostPort>() {
                prop_assert_eq!(address.to_string().parse::<HostPort>(), Ok(address));
            }
        }
    }
}
