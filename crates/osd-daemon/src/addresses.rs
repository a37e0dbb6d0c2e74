//! From addresses as they are configured to those that sockets take: names are looked up.
//!
//! Contract: done once, when a process starts. A resolver that does not know a name, or a monitor
//! with several addresses none of which answers, may come up a little later, as after a power cut:
//! both are tried again for [`WAIT_MAX`]. Of several monitors those that run elsewhere are looked
//! up when they are dialled, and again after a failure.

use crate::config::{Config, MDS_PORT, Monitors, OSD_PORT, OsdPlace, Role};
use messenger::address::{HostPort, HostPorts, first_that_listens};
use protocol::MONITOR_PORT;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::time::{Duration, Instant};

/// How long a name may be unknown: as long as a storage daemon waits for the monitor.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// A name that cannot be found.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {address}: {source}; is the name in /etc/hosts or DNS?")]
pub struct AddressError {
    key: &'static str,
    address: String,
    source: std::io::Error,
}

/// The addresses of a process's roles. Port 0 stands for one that is free or, where others are
/// told, for the one that was taken.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Where the monitor is reached, if it is the only one or runs here.
    pub monitor: SocketAddr,
    /// Where each of several monitors is, in the order in which they are dialled from here.
    pub dialled: Option<HostPorts>,
    /// Where it listens, if it runs here.
    pub monitor_listen: SocketAddr,
    /// Where all monitors are reached, and which one runs here, if they are several and one does.
    pub quorum: Option<(Vec<SocketAddr>, u16)>,
    /// Where the metadata service listens, if it runs here.
    pub mds_listen: SocketAddr,
    /// Where others reach it, if that is another address.
    pub mds_advertise: Option<SocketAddr>,
    /// The storage daemons that run here.
    pub osds: Vec<OsdAddresses>,
}

/// The addresses of a storage daemon.
#[derive(Clone, Debug)]
pub struct OsdAddresses {
    /// Its number.
    pub id: u32,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where others reach it, if that is another address.
    pub advertise: Option<SocketAddr>,
}

/// Looks names up, on the calling thread. Setting `cancel` ends the waiting.
///
/// # Errors
/// [`AddressError`] for the first name that stays unknown.
pub fn find(config: &Config, cancel: &AtomicBool) -> Result<Addresses, AddressError> {
    let lookup = Lookup { until: Instant::now() + WAIT_MAX, cancel };
    let (monitor, several) = match &config.monitors {
        Some(several @ Monitors { own: None, .. }) => (None, Some(several)),
        several => {
            let found = lookup.all("monitor_addr", &config.monitor_addr, MONITOR_PORT)?;
            let runs_here = config.roles.contains(&Role::Monitor);
            let monitor = if runs_here { found[0] } else { lookup.listening(&found) };
            (Some(monitor), several.as_ref())
        }
    };
    let dialled = several.and_then(|several| HostPorts::new(several.dialled()).ok());
    let monitor = monitor.unwrap_or(SocketAddr::from(([127, 0, 0, 1], MONITOR_PORT)));
    let unless = |role, address: SocketAddr| (!config.roles.contains(&role)).then_some(address);
    let monitor_listen = match unless(Role::Monitor, monitor) {
        Some(unused) => unused,
        None => lookup.told("monitor_listen", &config.monitor_listen, monitor.port())?,
    };
    let quorum = match &config.monitors {
        Some(Monitors { list, own: Some(own) }) => {
            let found = list.iter().map(|address| lookup.told("monitors", address, MONITOR_PORT));
            Some((found.collect::<Result<Vec<_>, AddressError>>()?, *own))
        }
        _ => None,
    };
    let nowhere = SocketAddr::from(([127, 0, 0, 1], MDS_PORT));
    let mds_listen = match unless(Role::Mds, nowhere) {
        Some(unused) => unused,
        None => lookup.told("mds_listen", &config.mds_listen, MDS_PORT)?,
    };
    let mds_advertise = config.mds_advertise.as_ref().filter(|_| config.roles.contains(&Role::Mds));
    let mds_advertise =
        mds_advertise.map(|address| lookup.told("mds_advertise", address, 0)).transpose()?;
    let osd = |OsdPlace { id, listen, advertise }: &OsdPlace| {
        Ok(OsdAddresses {
            id: *id,
            listen: lookup.told("osd_listen", listen, OSD_PORT)?,
            advertise: advertise
                .as_ref()
                .map(|address| lookup.told("osd_advertise", address, 0))
                .transpose()?,
        })
    };
    let osds = config.osds.iter().map(osd).collect::<Result<_, AddressError>>()?;
    Ok(Addresses { monitor, dialled, monitor_listen, quorum, mds_listen, mds_advertise, osds })
}

/// What others are told who listens at `taken`: that, or what was configured, with its port.
pub fn advertised(configured: Option<SocketAddr>, taken: SocketAddr) -> SocketAddr {
    match configured {
        None => taken,
        Some(address) if address.port() == 0 => SocketAddr::new(address.ip(), taken.port()),
        Some(address) => address,
    }
}

struct Lookup<'a> {
    until: Instant,
    cancel: &'a AtomicBool,
}

impl Lookup<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until || self.cancel.load(Acquire)
    }

    /// All addresses of a name.
    fn all(
        &self,
        key: &'static str,
        address: &HostPort,
        port: u16,
    ) -> Result<Vec<SocketAddr>, AddressError> {
        let mut is_first = true;
        loop {
            match address.resolve(port) {
                Ok(found) => return Ok(found),
                Err(source) if self.is_over() => {
                    return Err(AddressError { key, address: address.to_string(), source });
                }
                Err(error) if is_first => {
                    tracing::warn!(key, %address, %error, "cannot be found; tried again for {} s", WAIT_MAX.as_secs());
                }
                Err(_) => {}
            }
            is_first = false;
            std::thread::sleep(PAUSE);
        }
    }

    /// The first address of a name that others are told, or that is listened on.
    fn told(
        &self,
        key: &'static str,
        address: &HostPort,
        port: u16,
    ) -> Result<SocketAddr, AddressError> {
        let found = self.all(key, address, port)?[0];
        if address.is_name() && found.ip().is_loopback() && address.host() != "localhost" {
            let ip = found.ip();
            tracing::warn!(key, %address, %ip, "that name is a loopback address here (see /etc/hosts): other machines cannot reach it");
        }
        Ok(found)
    }

    /// That of several addresses which listens; the first if none does in time.
    fn listening(&self, addresses: &[SocketAddr]) -> SocketAddr {
        loop {
            match first_that_listens(addresses) {
                Ok(addr) => return addr,
                Err(error) if self.is_over() => {
                    tracing::warn!(%error, ?addresses, "the monitor listens at none of these");
                    return addresses[0];
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn found(words: &[(&str, &str)]) -> Addresses {
        let set = |settings: Settings, (key, value): &(&str, &str)| {
            Settings::from_words(key, value).expect(key).or(settings)
        };
        let config =
            Config::new(words.iter().fold(Settings::default(), set)).expect("a configuration");
        find(&config, &AtomicBool::new(true)).expect("all can be found")
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect(text)
    }

    #[test]
    fn ports_that_are_not_said_are_the_usual_ones() {
        let all = found(&[("monitor_addr", "127.0.0.1"), ("osd_count", "4")]);
        assert_eq!(
            (all.monitor, all.monitor_listen),
            (addr("127.0.0.1:7400"), addr("127.0.0.1:7400"))
        );
        assert_eq!((all.mds_listen, all.mds_advertise), (addr("127.0.0.1:7401"), None));
        assert_eq!(
            all.osds.iter().map(|osd| osd.listen.port()).collect::<Vec<_>>(),
            [7410, 7411, 7412, 7413]
        );
    }

    #[test]
    fn what_listens_everywhere_is_told_as_it_is_reached() {
        let all = found(&[
            ("monitor_addr", "10.0.0.1:7000"),
            ("monitor_listen", "0.0.0.0"),
            ("mds_listen", "0.0.0.0:7001"),
            ("mds_advertise", "10.0.0.1"),
            ("osd_id", "2"),
            ("osd_listen", "0.0.0.0"),
            ("osd_advertise", "10.0.0.2"),
        ]);
        assert_eq!(
            (all.monitor, all.monitor_listen),
            (addr("10.0.0.1:7000"), addr("0.0.0.0:7000"))
        );
        assert_eq!(advertised(all.mds_advertise, all.mds_listen), addr("10.0.0.1:7001"));
        assert_eq!(all.osds[0].listen, addr("0.0.0.0:7412"));
        assert_eq!(advertised(all.osds[0].advertise, all.osds[0].listen), addr("10.0.0.2:7412"));
        let several = found(&[("osd_listen", "0.0.0.0:8000"), ("osd_advertise", "10.0.0.2:9000")]);
        let told: Vec<_> =
            several.osds.iter().map(|osd| advertised(osd.advertise, osd.listen)).collect();
        assert_eq!(told, ["10.0.0.2:9000", "10.0.0.2:9001", "10.0.0.2:9002"].map(addr));
    }

    #[test]
    fn names_are_looked_up() {
        let all = found(&[("monitor_addr", "localhost"), ("osd_listen", "localhost:0")]);
        assert!(all.monitor.ip().is_loopback() && all.osds[1].listen.ip().is_loopback());
        assert_eq!((all.monitor.port(), all.osds[1].listen.port()), (7400, 0));
    }
}
