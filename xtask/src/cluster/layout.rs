//! What a cluster directory holds, kept in DIR/cluster.json: processes, ports, code. No process is
//! touched here.
//!
//! ```text
//! DIR/cluster.json          this
//! DIR/conf/<name>.toml      configuration, written at every start
//! DIR/data/<name>/          data
//! DIR/log/<name>.log        stdout and stderr, appended
//! DIR/pid/<name>            pid while it should run
//! ```

use crate::error::{Context, Outcome, ensure, fail};
use crate::netns::{self, Net};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What is wanted of a new cluster.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Where everything goes.
    pub dir: PathBuf,
    /// Number of storage daemons.
    pub osds: u32,
    /// Data shards of the first pool.
    pub k: u8,
    /// Parity shards of the first pool.
    pub m: u8,
    /// Mount here.
    pub mount: Option<PathBuf>,
    /// Everything in one daemon process, as without a configuration.
    pub one_process: bool,
    /// Further lines of every daemon's configuration.
    pub settings: Vec<String>,
    /// Options of the mount, as of `mount -o`.
    pub mount_options: String,
    /// Prefix of a network in which each process has a namespace of its own; see [`crate::netns`].
    pub net: Option<String>,
    /// Where ports are looked for, without such a network.
    pub ports: Range<u16>,
}

/// Below those that the system gives to outgoing connections: one of those could take a dead
/// daemon's port before it returns.
pub const PORTS: Range<u16> = 10_000..30_000;

impl Spec {
    /// The default cluster: three storage daemons, 2+1, not mounted.
    pub fn new(dir: &Path) -> Spec {
        let dir = dir.to_path_buf();
        let (settings, mount_options) = (Vec::new(), String::new());
        Spec {
            dir,
            osds: 3,
            k: 2,
            m: 1,
            mount: None,
            one_process: false,
            settings,
            mount_options,
            net: None,
            ports: PORTS,
        }
    }
}

/// A cluster as it was laid out; see the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Where the monitor listens.
    pub monitor: SocketAddr,
    /// Where the metadata service listens.
    pub mds: SocketAddr,
    /// Where the storage daemons listen, by id.
    pub osds: Vec<SocketAddr>,
    /// Data shards of the first pool.
    pub k: u8,
    /// Parity shards of the first pool.
    pub m: u8,
    /// Mount point.
    pub mount: Option<PathBuf>,
    /// Everything in one daemon process.
    pub one_process: bool,
    /// Further lines of configuration.
    pub settings: Vec<String>,
    /// Options of the mount.
    #[serde(default)]
    pub mount_options: String,
    /// Prefix of its network, if it has one of its own.
    #[serde(default)]
    pub net: Option<String>,
    /// Directory of the binaries.
    pub binaries: PathBuf,
}

/// Port of every daemon that has an address of its own.
const NET_PORT: u16 = 7400;
/// The client's process among the names.
pub const MOUNT: &str = "mount";
/// The one daemon of a one-process cluster.
pub const ALL: &str = "all";

impl Layout {
    /// Chooses ports that are free now.
    ///
    /// # Errors
    /// When the numbers do not fit each other, or no port is free.
    pub fn new(spec: &Spec, binaries: &Path) -> Outcome<Layout> {
        let shards = u32::from(spec.k) + u32::from(spec.m);
        ensure!(
            spec.k >= 1 && shards <= 16,
            "--k {} --m {}: k from 1, k + m to 16",
            spec.k,
            spec.m
        );
        ensure!(
            spec.osds >= shards,
            "--osds {}: {}+{} needs at least {shards}",
            spec.osds,
            spec.k,
            spec.m
        );
        ensure!(spec.osds <= 100, "--osds {}: at most 100 on one machine", spec.osds);
        let mut ports = match spec.net {
            Some(_) => (0..spec.osds as u8 + 2)
                .map(|place| SocketAddr::from((netns::address(place), NET_PORT)))
                .collect(),
            None => free_ports(spec.osds as usize + 2, &spec.ports)?,
        };
        let osds = ports.split_off(2);
        Ok(Layout {
            monitor: ports[0],
            mds: ports[1],
            osds,
            k: spec.k,
            m: spec.m,
            mount: spec.mount.clone(),
            one_process: spec.one_process,
            settings: spec.settings.clone(),
            mount_options: spec.mount_options.clone(),
            net: spec.net.clone(),
            binaries: binaries.to_path_buf(),
        })
    }

    /// The layout kept in a directory, if there is one.
    ///
    /// # Errors
    /// When the file is there and cannot be understood.
    pub fn load(dir: &Path) -> Outcome<Option<Layout>> {
        let path = dir.join("cluster.json");
        match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .doing(|| format!("cannot read {}", path.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => fail(format!("cannot read {}: {e}", path.display())),
        }
    }

    /// Keeps it in a directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, dir: &Path) -> Outcome {
        let text = serde_json::to_string_pretty(self).doing(|| "cannot encode cluster.json")?;
        std::fs::write(dir.join("cluster.json"), text)
            .doing(|| format!("cannot write in {}", dir.display()))
    }

    /// Names of its daemons in the order of starting, without the mount.
    pub fn daemons(&self) -> Vec<String> {
        if self.one_process {
            return vec![ALL.into()];
        }
        let osds = (0..self.osds.len()).map(osd_name);
        std::iter::once("monitor".into()).chain(osds).chain(std::iter::once("mds".into())).collect()
    }

    /// Its network, if it has one of its own.
    pub fn net(&self) -> Option<Net> {
        self.net.as_deref().map(Net::new)
    }

    /// Every process with its address in that network, the mount included.
    pub fn endpoints(&self) -> Vec<(String, IpAddr)> {
        let osds = self.osds.iter().enumerate().map(|(id, addr)| (osd_name(id), addr.ip()));
        let services =
            [("monitor".to_owned(), self.monitor.ip()), ("mds".to_owned(), self.mds.ip())];
        let mount = (MOUNT.to_owned(), IpAddr::from(netns::address(self.osds.len() as u8 + 2)));
        services.into_iter().chain(osds).chain([mount]).collect()
    }

    /// The configuration file of a daemon.
    ///
    /// # Errors
    /// When there is no daemon of that name.
    pub fn config(&self, name: &str, dir: &Path) -> Outcome<String> {
        let mut lines = match name {
            ALL => vec![format!("osd_listen = \"{}\"", self.osds[0])],
            "monitor" => vec!["roles = [\"monitor\"]".into()],
            "mds" => vec!["roles = [\"mds\"]".into()],
            _ => {
                let Some((id, addr)) = self.osd(name) else {
                    return fail(format!(
                        "no process `{name}` here; there are: {}",
                        self.daemons().join(", ")
                    ));
                };
                vec![
                    "roles = [\"osd\"]".into(),
                    format!("osd_id = {id}"),
                    format!("osd_listen = \"{addr}\""),
                    // As if each had a machine of its own: the failure domain.
                    format!("host = \"host-{id}\""),
                ]
            }
        };
        lines.push(format!("data_dir = {:?}", dir.join("data").join(name).display().to_string()));
        lines.push(format!("monitor_addr = \"{}\"", self.monitor));
        lines.push(format!("mds_listen = \"{}\"", self.mds));
        lines.push(format!("osd_count = {}", self.osds.len()));
        lines.push(format!("pool_k = {}\npool_m = {}", self.k, self.m));
        lines.extend(self.settings.iter().cloned());
        Ok(lines.join("\n") + "\n")
    }

    fn osd(&self, name: &str) -> Option<(usize, SocketAddr)> {
        let id: usize = name.strip_prefix("osd-")?.parse().ok()?;
        Some((id, *self.osds.get(id)?))
    }
}

/// Name of a storage daemon's process.
pub fn osd_name(id: usize) -> String {
    format!("osd-{id}")
}

/// Consecutive free ports on the loopback, of these.
pub fn free_ports(count: usize, of: &Range<u16>) -> Outcome<Vec<SocketAddr>> {
    for _ in 0..200 {
        let first = fastrand::u16(of.start..of.end - count as u16);
        let wanted: Vec<_> =
            (first..).take(count).map(|p| SocketAddr::from((Ipv4Addr::LOCALHOST, p))).collect();
        // All held at once, then let go together.
        let held: Vec<_> = wanted.iter().map_while(|a| TcpListener::bind(a).ok()).collect();
        if held.len() == count {
            return Ok(wanted);
        }
    }
    fail(format!(
        "no {count} consecutive free ports between {} and {} on 127.0.0.1",
        of.start, of.end
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&Spec::new(dir.path()), Path::new("/bin")).unwrap();
        layout.save(dir.path()).unwrap();
        assert_eq!(Layout::load(dir.path()).unwrap(), Some(layout));
    }

    #[test]
    fn every_daemon_has_a_configuration_that_parses() {
        let dir = tempfile::tempdir().unwrap();
        for one_process in [false, true] {
            let spec = Spec { one_process, ..Spec::new(dir.path()) };
            let layout = Layout::new(&spec, Path::new("/bin")).unwrap();
            for name in layout.daemons() {
                let table: toml::Table = layout.config(&name, dir.path()).unwrap().parse().unwrap();
                assert_eq!(table["osd_count"].as_integer(), Some(3));
            }
            assert!(layout.config("osd-7", dir.path()).is_err());
        }
    }

    #[test]
    fn too_few_daemons_are_refused() {
        let spec = Spec { osds: 2, ..Spec::new(Path::new("/nowhere")) };
        assert!(Layout::new(&spec, Path::new("/bin")).is_err());
    }
}
