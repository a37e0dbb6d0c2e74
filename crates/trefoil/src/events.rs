//! `trefoil events`: what happened in the cluster of late.

use crate::Cluster;
use crate::error::OperatorError;
use crate::output;
use crate::status::health;
use protocol::monitor::{ClusterEvent, Health, MonitorReply, MonitorRequest};
use std::time::Duration;

/// How often new ones are asked for.
const EVERY: Duration = Duration::from_secs(1);

/// What to show.
#[derive(clap::Args)]
pub struct EventsArgs {
    /// Go on with what happens from now on, until interrupted
    #[arg(short, long)]
    follow: bool,
}

/// Shows what the monitor remembers, oldest first.
///
/// # Errors
/// Those of the cluster, while following only at the beginning; a closed pipe.
pub fn run(cluster: &Cluster, args: &EventsArgs) -> Result<(), OperatorError> {
    let mut last = show(ask(cluster, 0)?, 0)?;
    if !args.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(EVERY);
        match ask(cluster, last) {
            Ok(events) => last = show(events, last)?,
            // The monitor may be restarting: that is when one wants to go on looking.
            Err(OperatorError::Unreachable { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

fn ask(cluster: &Cluster, after: u64) -> Result<Vec<ClusterEvent>, OperatorError> {
    match cluster.ask(&MonitorRequest::Events { after })? {
        MonitorReply::Events(events) => Ok(events),
        other => Err(OperatorError::unexpected(&other)),
    }
}

/// Prints them; the number of the last.
fn show(events: Vec<ClusterEvent>, last: u64) -> Result<u64, OperatorError> {
    for event in &events {
        output::line(&line(event))?;
    }
    Ok(events.last().map_or(last, |event| event.number))
}

fn line(event: &ClusterEvent) -> String {
    let age = format!("{} ago", crate::table::period(event.age_secs));
    let severity = if event.severity == Health::Ok { "" } else { health(event.severity) };
    format!("{age:>14}  {severity:8}  {}", event.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_how_bad_and_what() {
        let event = |severity| ClusterEvent {
            number: 1,
            age_secs: 12,
            severity,
            what: "osd.2 was stopped".into(),
        };
        assert_eq!(line(&event(Health::Degraded)), "      12 s ago  degraded  osd.2 was stopped");
        assert_eq!(line(&event(Health::Ok)), "      12 s ago            osd.2 was stopped");
    }
}
