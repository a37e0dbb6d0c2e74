//! Where telemetry comes from: the daemons that the cluster map names, each asked over the messenger.

use crate::Cluster;
use crate::error::OperatorError;
use crate::monitor::call;
use messenger::TelemetryReport;
use protocol::Kind;
use protocol::monitor::ClusterStatus;

/// A daemon's role, as an operator names it, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// "monitor", "mds" or "osd.N".
    pub name: String,
    /// `None` while it is down.
    pub addr: Option<String>,
}

/// All roles of the cluster, in the order in which they are shown.
pub fn targets(status: &ClusterStatus, monitor: &str) -> Vec<Target> {
    let monitor = Target { name: "monitor".into(), addr: Some(monitor.to_owned()) };
    let mds = Target { name: "mds".into(), addr: status.mds.map(|addr| addr.to_string()) };
    let osds = status.osds.iter().map(|osd| Target {
        name: format!("osd.{}", osd.id.get()),
        addr: osd.addr.filter(|_| osd.up).map(|addr| addr.to_string()),
    });
    [monitor, mds].into_iter().chain(osds).collect()
}

/// Those of `all` that are wanted, every one if none is named.
///
/// # Errors
/// [`OperatorError::NoTarget`] for a name that no role has.
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

/// What daemons said, and who said nothing.
#[derive(Debug, Default)]
pub struct Answers {
    /// Reports under the names of their targets.
    pub reports: Vec<TelemetryReport>,
    /// Names of targets without an answer, and why.
    pub silent: Vec<(String, String)>,
}

/// Asks the named daemons. One that was named must answer; of all, at least one.
///
/// # Errors
/// [`OperatorError::NoTarget`], [`OperatorError::Silent`], those of asking for the map.
pub fn ask(cluster: &Cluster, names: &[String]) -> Result<Answers, OperatorError> {
    let targets = wanted(targets(&cluster.status()?, &cluster.monitor), names)?;
    let mut answers = Answers::default();
    for target in targets {
        let answer = match &target.addr {
            None => Err("it is down".to_owned()),
            Some(addr) => report_of(cluster, addr),
        };
        match answer {
            Ok(report) => answers.reports.push(TelemetryReport { name: target.name, ..report }),
            Err(reason) if !names.is_empty() => return Err(OperatorError::Silent { name: target.name, reason }),
            Err(reason) => answers.silent.push((target.name, reason)),
        }
    }
    Ok(answers)
}

fn report_of(cluster: &Cluster, addr: &str) -> Result<TelemetryReport, String> {
    let reply = call(addr, Kind::Telemetry, Default::default(), cluster.timeout)?;
    protocol::decode("telemetry reply", &reply.front).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_names_and_unknown_ones_are_refused() {
        let status = crate::status::tests::sample();
        let all = targets(&status, "h:1");
        let names: Vec<&str> = all.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["monitor", "mds", "osd.0", "osd.1"]);
        assert_eq!(all[3].addr, None, "osd.1 is down");
        let some = wanted(all.clone(), &["osd.0".into(), "mds".into()]).expect("known");
        assert_eq!(some, [all[1].clone(), all[2].clone()]);
        let error = wanted(all, &["osd.7".into()]).expect_err("unknown").to_string();
        assert!(error.contains("osd.7") && error.contains("monitor, mds, osd.0, osd.1"), "{error}");
    }
}
