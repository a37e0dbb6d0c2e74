//! Several monitors: which they are, and which one this process is.
//!
//! Contract: pure. The list is the same for all, in one order: a monitor is known by its place.

use super::{ConfigError, Role, Settings, reachable, value};
use messenger::address::HostPort;
use protocol::quorum::MONITORS_MAX;

/// Several monitors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Monitors {
    /// Where each is reached.
    pub list: Vec<HostPort>,
    /// The one that this process runs, if it runs one.
    pub own: Option<u16>,
}

impl Monitors {
    /// Where the other roles of this process dial: its own monitor first.
    pub fn dialled(&self) -> Vec<HostPort> {
        let mut list = self.list.clone();
        list.rotate_left(usize::from(self.own.unwrap_or(0)));
        list
    }
}

/// What the settings say; `None`: there is one monitor.
pub(super) fn of(s: &Settings, roles: &[Role]) -> Result<Option<Monitors>, ConfigError> {
    let list = s.monitors.clone().unwrap_or_default();
    let all = list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if list.is_empty() {
        return match s.monitor_id {
            None => Ok(None),
            Some(id) => {
                let allowed = "it is a place in `monitors`, which is not set".to_owned();
                Err(value("monitor_id", &id, allowed))
            }
        };
    }
    if ![3, MONITORS_MAX].contains(&list.len()) {
        let allowed = format!(
            "a cluster has one monitor, without this setting, or 3 or {MONITORS_MAX}: with two, the loss of either would \
             stop both"
        );
        return Err(value("monitors", &all, allowed));
    }
    if let Some(twice) = (1..list.len()).find(|at| list[..*at].contains(&list[*at])) {
        return Err(value("monitors", &all, format!("{} is in it twice", list[twice])));
    }
    for address in &list {
        reachable("monitors", address, "monitor_listen may be 0.0.0.0")?;
    }
    let own = if roles.contains(&Role::Monitor) { Some(own_place(s, &list)?) } else { None };
    Ok(Some(Monitors { list, own }))
}

fn own_place(s: &Settings, list: &[HostPort]) -> Result<u16, ConfigError> {
    if let Some(id) = s.monitor_id {
        return if usize::from(id) < list.len() {
            Ok(id)
        } else {
            Err(value("monitor_id", &id, format!("`monitors` has 0 to {}", list.len() - 1)))
        };
    }
    let named = [&s.monitor_listen, &s.monitor_addr];
    let place = named.into_iter().flatten().find_map(|own| list.iter().position(|a| a == own));
    place.map(|place| place as u16).ok_or_else(|| {
        let allowed =
            "which of `monitors` this process runs: its place in the list, counted from 0"
                .to_owned();
        value("monitor_id", &"not set", allowed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn monitors(toml: &str) -> Result<Option<Monitors>, String> {
        let settings = Settings::from_toml(toml).expect("the right keys");
        Config::new(settings).map(|c| c.monitors).map_err(|error| error.to_string())
    }

    #[test]
    fn a_monitor_finds_its_place() {
        let list = "monitors = [\"a\", \"b:7000\", \"10.0.0.3\"]\n";
        let own = |rest: &str| monitors(&format!("{list}{rest}")).map(|m| m.expect("several").own);
        assert_eq!(own("monitor_id = 2"), Ok(Some(2)));
        assert_eq!(own("monitor_listen = \"b:7000\""), Ok(Some(1)));
        assert_eq!(own("monitor_addr = \"10.0.0.3\""), Ok(Some(2)));
        assert_eq!(own("roles = [\"osd\"]"), Ok(None));
        assert_eq!(monitors(""), Ok(None));
        for (bad, why) in [
            (format!("{list}monitor_id = 3"), "0 to 2"),
            (list.to_owned(), "counted from 0"),
            ("monitor_id = 1".to_owned(), "not set"),
            ("monitors = [\"a\", \"b\"]\nmonitor_id = 0".to_owned(), "with two"),
            ("monitors = [\"a\", \"b\", \"a\"]\nmonitor_id = 0".to_owned(), "twice"),
            ("monitors = [\"a\", \"b\", \"0.0.0.0\"]\nmonitor_id = 0".to_owned(), "0.0.0.0"),
        ] {
            let error = monitors(&bad).expect_err(&bad);
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
