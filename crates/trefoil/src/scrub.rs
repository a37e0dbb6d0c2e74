//! `trefoil scrub`: starts scrubs, shows how far they are and what they found, and repairs what
//! needs a decision.

use crate::error::OperatorError;
use crate::{Cluster, monitor, output, table};
use clap::{Args, Subcommand};
use protocol::scrub::{PgScrub, ScrubFinding, ScrubReply, ScrubRequest, ScrubStatus};
use protocol::{OsdId, PgId, PoolId, ShardIndex};
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

/// How often a scrub that is waited for is looked at.
const POLL: Duration = Duration::from_millis(300);
/// An object's repair may wait for journals to be trimmed, and then moves all of it.
const REPAIR_MAX: Duration = Duration::from_secs(120);

/// What to scrub, or what else to do.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ScrubArgs {
    #[command(subcommand)]
    command: Option<ScrubCommand>,
    /// Compare shards with each other, beside checking each one's checksums
    #[arg(long)]
    deep: bool,
    /// Only this placement group, as in `1.1f`
    #[arg(long, value_parser = parse_pg, conflicts_with = "osd")]
    pg: Option<PgId>,
    /// Only placement groups whose scrubs this storage daemon leads
    #[arg(long, value_parser = parse_osd)]
    osd: Option<OsdId>,
    /// Wait until all of it is done
    #[arg(long)]
    wait: bool,
}

/// What else to do.
#[derive(Subcommand)]
enum ScrubCommand {
    /// When placement groups were scrubbed last, and what is under way
    Status,
    /// Objects whose shards do not match and that were not repaired
    List,
    /// Rebuilds one shard of such an object from the others
    Repair {
        /// The object, as `list` shows it
        object: String,
        /// The storage daemon whose shard is wrong
        #[arg(long, value_parser = parse_osd, value_name = "OSD")]
        distrust: OsdId,
    },
}

/// "1.1f", as PGs are shown.
fn parse_pg(text: &str) -> Result<PgId, String> {
    let parsed = text.split_once('.').and_then(|(pool, number)| {
        Some(PgId {
            pool: PoolId::new(pool.parse().ok()?),
            number: u32::from_str_radix(number, 16).ok()?,
        })
    });
    parsed.ok_or_else(|| "a placement group is POOL.NUMBER, the number in hexadecimal: 1.1f".into())
}

/// "osd.3" or "3".
pub fn parse_osd(text: &str) -> Result<OsdId, String> {
    let number = text.strip_prefix("osd.").unwrap_or(text);
    number.parse().map(OsdId::new).map_err(|_| "a storage daemon is osd.N or N".into())
}

/// Does it.
///
/// # Errors
/// The cluster's, and findings that do not exist.
pub fn run(cluster: &Cluster, args: &ScrubArgs) -> Result<(), OperatorError> {
    match &args.command {
        None => start(cluster, args),
        Some(ScrubCommand::Status) => output::text(&status_text(&statuses(cluster)?)),
        Some(ScrubCommand::List) => output::text(&findings_text(&statuses(cluster)?)),
        Some(ScrubCommand::Repair { object, distrust }) => repair(cluster, object, *distrust),
    }
}

/// The storage daemons that are up.
fn up(cluster: &Cluster) -> Result<Vec<(OsdId, SocketAddr)>, OperatorError> {
    let osds = cluster.status()?.osds;
    Ok(osds.iter().filter(|osd| osd.up).filter_map(|osd| Some((osd.id, osd.addr?))).collect())
}

fn status_of(
    cluster: &Cluster,
    osd: OsdId,
    addr: SocketAddr,
) -> Result<ScrubStatus, OperatorError> {
    match monitor::ask_osd(osd, addr, &ScrubRequest::Status, cluster.timeout)? {
        ScrubReply::Status(status) => Ok(status),
        other => Err(unexpected(other)),
    }
}

type Statuses = Vec<((OsdId, SocketAddr), ScrubStatus)>;

fn statuses(cluster: &Cluster) -> Result<Statuses, OperatorError> {
    up(cluster)?
        .into_iter()
        .map(|(osd, addr)| Ok(((osd, addr), status_of(cluster, osd, addr)?)))
        .collect()
}

fn unexpected(reply: ScrubReply) -> OperatorError {
    match reply {
        ScrubReply::Refused(why) => OperatorError::Refused(why),
        other => OperatorError::Refused(format!("an unexpected answer: {other:?}")),
    }
}

fn start(cluster: &Cluster, args: &ScrubArgs) -> Result<(), OperatorError> {
    let request = ScrubRequest::Start { pg: args.pg, deep: args.deep };
    let mut started = Vec::new();
    for (osd, addr) in
        up(cluster)?.into_iter().filter(|(osd, _)| args.osd.is_none_or(|only| only == *osd))
    {
        match monitor::ask_osd(osd, addr, &request, cluster.timeout)? {
            ScrubReply::Started { pgs, at_secs } => {
                started.push(Started { osd, addr, pgs, at_secs })
            }
            other => return Err(unexpected(other)),
        }
    }
    let count: usize = started.iter().map(|s| s.pgs.len()).sum();
    if count == 0 {
        return Err(OperatorError::Refused("no active placement group to scrub there".into()));
    }
    let kind = if args.deep { "deep" } else { "light" };
    output::line(&format!("{kind} scrub of {count} placement groups"))?;
    if !args.wait {
        return Ok(());
    }
    started.iter().try_for_each(|started| wait(cluster, started, args.deep))?;
    output::text(&findings_text(&statuses(cluster)?))
}

/// What one storage daemon scrubs.
struct Started {
    osd: OsdId,
    addr: SocketAddr,
    pgs: Vec<PgId>,
    at_secs: u64,
}

fn wait(cluster: &Cluster, started: &Started, deep: bool) -> Result<(), OperatorError> {
    loop {
        let status = status_of(cluster, started.osd, started.addr)?;
        let busy = |pg: &PgId| status.running == Some(*pg) || status.waiting.contains(pg);
        if started.pgs.iter().any(busy) {
            std::thread::sleep(POLL);
            continue;
        }
        let last = |pg: &PgScrub| if deep { pg.deep_secs } else { pg.light_secs };
        let done =
            |pg: &PgId| status.pgs.iter().any(|of| of.pg == *pg && last(of) >= started.at_secs);
        return match started.pgs.iter().find(|pg| !done(pg)) {
            None => Ok(()),
            Some(pg) => Err(OperatorError::Refused(format!(
                "pg {pg} changed its leader meanwhile: scrub it again"
            ))),
        };
    }
}

fn repair(cluster: &Cluster, object: &str, distrust: OsdId) -> Result<(), OperatorError> {
    let all = statuses(cluster)?;
    let found = all.iter().find_map(|(at, status)| {
        Some((*at, status.findings.iter().find(|finding| finding.object.to_string() == object)?))
    });
    let Some(((osd, addr), finding)) = found else {
        return Err(OperatorError::NoObject(object.to_owned()));
    };
    let Some(shard) = finding.acting.iter().position(|of| *of == distrust) else {
        return Err(OperatorError::Refused(format!(
            "{distrust} holds no shard of {object}: {}",
            places(finding)
        )));
    };
    let shard = ShardIndex::new(u8::try_from(shard).unwrap_or(u8::MAX));
    let request = ScrubRequest::Repair { pg: finding.pg, object: finding.object, shard };
    match monitor::ask_osd(osd, addr, &request, cluster.timeout.max(REPAIR_MAX))? {
        ScrubReply::Repaired => {
            output::line(&format!("{object}: the shard on {distrust} was rebuilt from the others"))
        }
        other => Err(unexpected(other)),
    }
}

/// "osd.0, osd.2".
fn places(finding: &ScrubFinding) -> String {
    finding.acting.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn status_text(all: &Statuses) -> String {
    let mut out = String::new();
    for ((osd, _), status) in all {
        let running = status.running.map_or_else(|| "idle".into(), |pg| format!("scrubs pg {pg}"));
        let totals = status.totals;
        let line = format!(
            "{osd}: {running}, {} waiting; since its start {} placement groups, {} objects, {}, {} found, {} repaired, {} skipped",
            status.waiting.len(),
            totals.pgs,
            totals.objects,
            table::bytes(totals.bytes),
            totals.found,
            totals.repaired,
            totals.skipped
        );
        writeln!(out, "{line}").expect("a string takes everything");
        for pg in &status.pgs {
            let (light, deep) = (time(pg.light_secs), time(pg.deep_secs));
            writeln!(out, "  pg {:8} light {light}  deep {deep}", pg.pg.to_string())
                .expect("a string takes everything");
        }
    }
    out
}

fn time(secs: u64) -> String {
    if secs == 0 { "never".into() } else { table::time(i64::try_from(secs).unwrap_or(i64::MAX), 0) }
}

fn findings_text(all: &Statuses) -> String {
    let findings: Vec<&ScrubFinding> =
        all.iter().flat_map(|(_, status)| &status.findings).collect();
    if findings.is_empty() {
        return "nothing open\n".into();
    }
    let mut out = String::new();
    for finding in findings {
        let wrong: Vec<String> = finding
            .wrong
            .iter()
            .filter_map(|shard| finding.acting.get(usize::from(shard.get())))
            .map(ToString::to_string)
            .collect();
        let verdict = match wrong.is_empty() {
            true => "which shard is wrong is not decided".into(),
            false => format!("wrong on {}, and could not be repaired yet", wrong.join(", ")),
        };
        let ScrubFinding { pg, object, offset, length, .. } = finding;
        writeln!(
            out,
            "{object}  pg {pg} on {}: bytes {offset}+{length} of the fragments do not match; {verdict}",
            places(finding)
        )
        .expect("a string takes everything");
    }
    out += "`trefoil scrub repair OBJECT --distrust osd.N` rebuilds the shard on osd.N from the others\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pgs_and_osds() {
        let pg = PgId { pool: PoolId::new(3), number: 0x1f };
        assert_eq!(parse_pg(&pg.to_string()), Ok(pg));
        assert!(parse_pg("1").is_err() && parse_pg("1.x").is_err() && parse_pg(".1").is_err());
        assert_eq!(parse_osd("osd.7"), Ok(OsdId::new(7)));
        assert_eq!(parse_osd("7"), Ok(OsdId::new(7)));
        assert!(parse_osd("osd-7").is_err());
    }
}
