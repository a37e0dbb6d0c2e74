//! With which walks an invariant breaks when a rule is off.

use crate::walk::{Focus, Run, walk};
use protocol::{Rule, Rules};

/// Where to look for a rule.
#[derive(Clone, Copy, Debug)]
pub enum Canary {
    /// An invariant breaks within a few walks from this seed on. Should it not, as the code has changed, all focuses are
    /// searched.
    Breaks(Focus, u64),
    /// None does, for this reason.
    Exempt(&'static str),
}

/// Of a rule that pays in the model, and whose walk has not been found here.
const NOT_FOUND: &str =
    "not shown: it breaks an invariant in the model, and no walk of this simulator was found yet that does";

/// Walks that are tried from the first seed on.
const WALKS: u64 = 20;
/// Walks that are tried in each focus, if those were of no use.
const WALKS_MAX: u64 = 4000;
/// Of those, how many before the next focus has its turn.
const WALKS_AT_ONCE: u64 = 250;

/// Looks for an invariant that breaks under these rules.
pub fn search(rules: Rules, focus: Focus, seed: u64) -> (Focus, Run) {
    let run = walk(rules, focus, seed..seed + WALKS, true, |_| true);
    if run.found.is_some() {
        return (focus, run);
    }
    let mut stuck = None;
    for from in (1..WALKS_MAX).step_by(WALKS_AT_ONCE as usize) {
        for focus in Focus::ALL {
            let run = walk(rules, focus, from..from + WALKS_AT_ONCE, true, |_| true);
            match &run.found {
                Some(found) if found.what.starts_with("progress") => stuck = stuck.or(Some((focus, run))),
                Some(_) => return (focus, run),
                None => {}
            }
        }
        if stuck.is_some() {
            break;
        }
    }
    stuck.unwrap_or((focus, run))
}

/// The canary of a rule.
pub const fn canary(rule: Rule) -> Canary {
    use Canary::{Breaks, Exempt};
    match rule {
        Rule::AckAll => Breaks(Focus::Mixed, 76),
        Rule::ReportPrefix => Breaks(Focus::Mixed, 201),
        Rule::ReportAgain => {
            Exempt("silent in the model, too: what was reported is held again before later writes can pass it")
        }
        Rule::AckJoiner => Exempt(NOT_FOUND),
        Rule::StableDurable => Breaks(Focus::Small, 35),
        Rule::StableJoiner => Breaks(Focus::Small, 101),
        Rule::ResetMarks => Breaks(Focus::Stale, 142),
        Rule::ReplyAid => Exempt(NOT_FOUND),
        Rule::KeepUntilStable => Breaks(Focus::Mixed, 58),
        Rule::ReleaseStable => Breaks(Focus::Handover, 941),
        Rule::ReadAttempt => Breaks(Focus::Mixed, 54),
        Rule::ReadAfter => Breaks(Focus::Mixed, 104),
        Rule::ReadClock => Breaks(Focus::Stale, 371),
        Rule::GrantEpoch => Breaks(Focus::Stale, 901),
        Rule::EpochCheck => Breaks(Focus::Mixed, 188),
        Rule::Fence => Exempt(
            "a defence: the end of a dead session fences it at every member, and epochs keep it out of all others",
        ),
        Rule::RequestAid => {
            Exempt("a defence: what an older attach sent is there already, or is kept out by the records before it")
        }
        Rule::Pred => Breaks(Focus::Mixed, 42),
        Rule::ApplyStable => Breaks(Focus::Mixed, 13),
        Rule::ApplyOrder => Breaks(Focus::Mixed, 3),
        Rule::RestartSync => Breaks(Focus::Small, 1095),
        Rule::TrimSynced => Breaks(Focus::Mixed, 1),
        Rule::TrimOrder => Breaks(Focus::Mixed, 1),
        Rule::DirtyTrim => Breaks(Focus::Mixed, 3),
        Rule::DirtyDurable => Breaks(Focus::Mixed, 123),
        Rule::DirtyUntrimmed => Breaks(Focus::Mixed, 49),
        Rule::DirectSync => Breaks(Focus::Small, 51),
        Rule::DirectCrc => Breaks(Focus::Mixed, 155),
        Rule::DirectOnce => Breaks(Focus::Mixed, 3),
        Rule::DirectSettle => Breaks(Focus::Small, 124),
        Rule::DirectHole => Breaks(Focus::Mixed, 54),
        Rule::DirectJoin => Breaks(Focus::Mixed, 145),
        Rule::IssOnly => Breaks(Focus::Mixed, 88),
        Rule::IssFloor => Breaks(Focus::Mixed, 3),
        Rule::Activate => Breaks(Focus::Takeover, 88),
        Rule::ActiveOnly => Breaks(Focus::Mixed, 96),
        Rule::LostLeaves => Breaks(Focus::Mixed, 88),
        Rule::BootEpoch => Breaks(Focus::Mixed, 88),
        Rule::BlankCheck => Breaks(Focus::Mixed, 14),
        Rule::ExpireEpoch => Exempt(NOT_FOUND),
        Rule::GrantResolved => Breaks(Focus::Takeover, 4),
        Rule::RecoverIss => Exempt(NOT_FOUND),
        Rule::RecoverAll => Breaks(Focus::Mixed, 13),
        Rule::RecoverSync => Breaks(Focus::Joining, 776),
        Rule::RecoverTouch => Breaks(Focus::Mixed, 13),
        Rule::RecoverGap => Breaks(Focus::Small, 58),
        Rule::DecideDurable => Breaks(Focus::Small, 409),
        Rule::DecideAll => Breaks(Focus::Mixed, 101),
        Rule::JoinDrop => Breaks(Focus::Return, 216),
        Rule::JoinKeep => Breaks(Focus::Absent, 156),
        Rule::JoinAttached => Breaks(Focus::Small, 127),
        Rule::JoinOwed => Exempt(NOT_FOUND),
        Rule::JoinBegun => Breaks(Focus::Return, 156),
        Rule::JoinNeed => Breaks(Focus::Mixed, 19),
        Rule::JoinMark => Exempt(NOT_FOUND),
        Rule::JoinCut => Breaks(Focus::Takeover, 179),
        Rule::JoinApplyWait => Exempt(
            "a defence: no rebuild may overwrite an applied record that the pieces lack, and pieces are asked of no older cut",
        ),
        Rule::JoinFloor => Breaks(Focus::Mixed, 23),
        Rule::ReportSynced => Exempt(NOT_FOUND),
        Rule::ReportSame => Breaks(Focus::Mixed, 159),
        Rule::JoinSync => Exempt(
            "a defence: an object that was rebuilt is reported, and for that synced, before the shard asks to join",
        ),
        Rule::JoinCas => Breaks(Focus::Small, 2550),
        Rule::JoinClosed => Exempt(NOT_FOUND),
    }
}
