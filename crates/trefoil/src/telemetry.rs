//! Where telemetry comes from: the daemons that the cluster map names, each asked over the
//! messenger, and the clients with a session, each asked by the monitor for us.
//!
//! Contract: all are asked side by side, [`ASKED_AT_ONCE`] at a time. Who does not answer in time
//! is named, and keeps nobody waiting for longer than that.

use crate::Cluster;
use crate::error::OperatorError;
use crate::monitor::call;
use messenger::{HistoryReport, TelemetryReport};
use protocol::monitor::{ClusterStatus, MonitorReply};
use protocol::{Kind, SessionId};
use serde::de::DeserializeOwned;

/// Targets that are asked at once: each takes a thread and a connection of this command.
const ASKED_AT_ONCE: usize = 16;

/// How a target is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// Not now.
    Down,
    /// It listens here.
    Addr(String),
    /// Through the monitor.
    Session(SessionId),
}

/// A daemon's role or a client, as an operator names it, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// "monitor", "mds", "osd.N", or "client.N" with the number of its session.
    pub name: String,
    /// What a client says that it is.
    title: Option<String>,
    way: Way,
}

impl Target {
    fn daemon(name: impl Into<String>, addr: Option<String>) -> Self {
        Self { name: name.into(), title: None, way: addr.map_or(Way::Down, Way::Addr) }
    }

    /// Where it listens; `None` while it is down.
    pub fn addr(&self) -> Option<&str> {
        match &self.way {
            Way::Addr(addr) => Some(addr),
            Way::Down | Way::Session(_) => None,
        }
    }

    /// Of a client.
    pub fn session(&self) -> Option<SessionId> {
        match self.way {
            Way::Session(session) => Some(session),
            Way::Down | Way::Addr(_) => None,
        }
    }
}

/// All roles of the cluster, in the order in which they are shown.
pub fn daemons(status: &ClusterStatus, monitor: &str) -> Vec<Target> {
    let monitor = Target::daemon("monitor", Some(monitor.to_owned()));
    let mds = Target::daemon("mds", status.mds.map(|addr| addr.to_string()));
    let osds = status.osds.iter().map(|osd| {
        let addr = osd.addr.filter(|_| osd.up).map(|addr| addr.to_string());
        Target::daemon(format!("osd.{}", osd.id.get()), addr)
    });
    [monitor, mds].into_iter().chain(osds).collect()
}

/// All roles, and all clients.
pub fn targets(status: &ClusterStatus, monitor: &str) -> Vec<Target> {
    let client = |(session, title): &(SessionId, String)| Target {
        name: format!("client.{}", session.get()),
        title: Some(title.clone()),
        way: Way::Session(*session),
    };
    daemons(status, monitor).into_iter().chain(status.clients.iter().map(client)).collect()
}

/// Those of `all` that are wanted, every one if none is named.
///
/// # Errors
/// [`OperatorError::NoTarget`] for a name that none has.
pub fn wanted(all: Vec<Target>, names: &[String]) -> Result<Vec<Target>, OperatorError> {
    if names.is_empty() {
        return Ok(all);
    }
    if let Some(name) = names.iter().find(|name| all.iter().all(|target| target.name != **name)) {
        let known: Vec<&str> = all.iter().map(|target| target.name.as_str()).collect();
        return Err(OperatorError::NoTarget { name: name.clone(), known: known.join(", ") });
    }
    Ok(all.into_iter().filter(|target| names.contains(&target.name)).collect())
}

/// What daemons and clients said, and who said nothing.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Reports: of each target one under its name, then those of its other runtimes, under names of
    /// their own.
    pub reports: Vec<TelemetryReport>,
    /// Names of the clients that answered, and what they say that they are.
    pub clients: Vec<(String, String)>,
    /// Names of targets without an answer, and why.
    pub silent: Vec<(String, String)>,
}

/// Asks the named targets. One that was named must answer; of all, any may be silent.
///
/// # Errors
/// [`OperatorError::NoTarget`], [`OperatorError::Silent`], those of asking for the map.
pub fn ask(cluster: &Cluster, names: &[String]) -> Result<Answers, OperatorError> {
    let targets = wanted(targets(&cluster.status()?, &cluster.monitor), names)?;
    let mut answers = Answers::default();
    for batch in targets.chunks(ASKED_AT_ONCE) {
        for (target, answer) in batch.iter().zip(ask_at_once(cluster, batch)) {
            let name = target.name.clone();
            match answer {
                Ok(reports) => {
                    answers.clients.extend(target.title.clone().map(|title| (name.clone(), title)));
                    answers.reports.extend(named(name, reports));
                }
                Err(reason) if !names.is_empty() => {
                    return Err(OperatorError::Silent { name, reason });
                }
                Err(reason) => {
                    let title =
                        target.title.as_ref().map_or(String::new(), |title| format!(" ({title})"));
                    answers.silent.push((name + &title, reason));
                }
            }
        }
    }
    Ok(answers)
}

/// The first of a target's reports under its name: what a client's runtime calls itself is not how
/// it is asked for.
fn named(name: String, mut reports: Vec<TelemetryReport>) -> Vec<TelemetryReport> {
    if let Some(first) = reports.first_mut() {
        first.name = name;
    }
    reports
}

fn ask_at_once(cluster: &Cluster, targets: &[Target]) -> Vec<Result<Vec<TelemetryReport>, String>> {
    std::thread::scope(|scope| {
        let asking: Vec<_> =
            targets.iter().map(|target| scope.spawn(|| reports_of(cluster, &target.way))).collect();
        let told = asking.into_iter().map(|thread| thread.join());
        told.map(|answer| {
            answer.unwrap_or_else(|_| Err("the question ended in a panic".to_owned()))
        })
        .collect()
    })
}

/// What one target remembers, operation by operation.
///
/// # Errors
/// As [`ask`].
pub fn history(cluster: &Cluster, name: &str) -> Result<HistoryReport, OperatorError> {
    let target = wanted(targets(&cluster.status()?, &cluster.monitor), &[name.to_owned()])?;
    let silent = |reason| OperatorError::Silent { name: name.to_owned(), reason };
    let way = target.first().map_or(&Way::Down, |target| &target.way);
    answer_of(cluster, way, Kind::History, Kind::ClientHistory, Kind::HistoryReply).map_err(silent)
}

fn reports_of(cluster: &Cluster, way: &Way) -> Result<Vec<TelemetryReport>, String> {
    answer_of(cluster, way, Kind::Telemetry, Kind::ClientTelemetry, Kind::TelemetryReply)
}

/// Puts a question to a daemon, or through the monitor to a client.
fn answer_of<T: DeserializeOwned>(
    cluster: &Cluster,
    way: &Way,
    question: Kind,
    of_client: Kind,
    answer: Kind,
) -> Result<T, String> {
    let reply = match way {
        Way::Down => return Err("it is down".to_owned()),
        Way::Addr(addr) => call(addr, question, Default::default(), cluster.timeout)?,
        Way::Session(session) => {
            call(&cluster.monitor, of_client, protocol::encode(session), cluster.timeout)?
        }
    };
    if reply.kind == answer.to_u16() {
        return protocol::decode("telemetry", &reply.front).map_err(|error| error.to_string());
    }
    match protocol::decode("monitor reply", &reply.front) {
        Ok(MonitorReply::Refused(why)) => Err(why),
        _ => Err(format!("unexpected answer of kind {:#06x}", reply.kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_runtime_of_a_target_is_shown_and_the_first_is_the_target() {
        let report =
            |name: &str| TelemetryReport { name: name.into(), ..TelemetryReport::default() };
        let named = named("client.9".into(), vec![report("client"), report("client-other")]);
        assert_eq!(named, [report("client.9"), report("client-other")]);
    }

    #[test]
    fn roles_and_clients_have_names_and_unknown_ones_are_refused() {
        let status = crate::status::tests::sample();
        let all = targets(&status, "h:1");
        let names: Vec<&str> = all.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["monitor", "mds", "osd.0", "osd.1", "client.1", "client.9"]);
        assert_eq!(all[3].addr(), None, "osd.1 is down");
        assert_eq!(all[5].title.as_deref(), Some("fuse-client here /mnt"));
        let some = wanted(all.clone(), &["osd.0".into(), "mds".into()]).expect("known");
        assert_eq!(some, [all[1].clone(), all[2].clone()]);
        let error = wanted(all, &["osd.7".into()]).expect_err("unknown").to_string();
        assert!(
            error.contains("osd.7")
                && error.contains("monitor, mds, osd.0, osd.1, client.1, client.9"),
            "{error}"
        );
        assert_eq!(daemons(&status, "h:1").len(), 4, "clients have no settings");
    }
}
