//! With which walks an invariant breaks when a rule is off.

use crate::focus::Focus;
use crate::quorum;
use crate::walk::{Found, Run, breaks_again, walk};
use protocol::{Rule, Rules};
use std::ops::Range;

/// Where to look for a rule.
#[derive(Clone, Copy, Debug)]
pub enum Canary {
    /// An invariant breaks within a few walks from this seed on. Should it not, as the code has
    /// changed, all focuses are searched.
    Breaks(Focus, u64),
    /// Another rule does the same work: with both off an invariant breaks in some walk from this
    /// seed on, and in the same history with either of them on none does.
    Covered {
        /// The other rule.
        by: Rule,
        /// Where to look.
        focus: Focus,
        /// From where on.
        seed: u64,
    },
    /// A rule of replicated logs: an invariant breaks in [`crate::quorum`] within a few walks from
    /// this seed on. Should it not, all seeds are searched.
    Quorum(u64),
}

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
                Some(found) if found.what.starts_with("progress") => {
                    stuck = stuck.or(Some((focus, run)))
                }
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

/// Looks for an invariant of replicated logs that breaks under these rules.
pub fn search_quorum(rules: Rules, seed: u64) -> quorum::Run {
    let run = quorum::walk(rules, seed..seed + WALKS, true, |_| true);
    if run.found.is_some() { run } else { quorum::walk(rules, 1..WALKS_MAX, true, |_| true) }
}

/// Looks for a history that breaks an invariant without both of two rules, and does not with either
/// one of them. `both`: without the two; `each`: without one of them.
pub fn search_pair(both: Rules, each: [Rules; 2], focus: Focus, seed: u64) -> (Focus, Run) {
    let firsts = std::iter::once((focus, seed..seed + WALKS));
    let ranges = (1..WALKS_MAX).step_by(WALKS_AT_ONCE as usize);
    let others =
        ranges.flat_map(|from| Focus::ALL.map(|focus| (focus, from..from + WALKS_AT_ONCE)));
    let mut last = Run::default();
    for (focus, seeds) in firsts.chain(others) {
        last = walk_pair(both, each, focus, seeds);
        if last.found.is_some() {
            return (focus, last);
        }
    }
    (focus, last)
}

/// [`search_pair`] in these walks.
pub fn walk_pair(both: Rules, each: [Rules; 2], focus: Focus, seeds: Range<u64>) -> Run {
    let mut run = Run::default();
    for seed in seeds {
        let one = walk(both, focus, seed..seed + 1, false, |_| true);
        run.walks += 1;
        let only_both = |found: &Found| {
            breaks_again(both, focus, found)
                && !each.iter().any(|rules| breaks_again(*rules, focus, found))
        };
        if let Some(found) = one.found.filter(only_both) {
            run.found = Some(found);
            break;
        }
    }
    run
}

/// The canary of a rule.
pub const fn canary(rule: Rule) -> Canary {
    use Canary::{Breaks, Covered, Quorum};
    match rule {
        Rule::AckAll => Breaks(Focus::Mixed, 76),
        Rule::ReportPrefix => Breaks(Focus::Return, 192),
        Rule::ReportAgain => Breaks(Focus::Blackout, 11851),
        Rule::AckJoiner => Breaks(Focus::Owing, 388),
        Rule::StableDurable => Breaks(Focus::Mixed, 29),
        Rule::StableJoiner => Breaks(Focus::Small, 5),
        Rule::ResetMarks => Breaks(Focus::Stale, 6),
        Rule::ReplyAid => Breaks(Focus::Blackout, 245),
        Rule::KeepUntilStable => Breaks(Focus::Small, 37),
        Rule::ReleaseStable => Breaks(Focus::Handover, 707),
        Rule::ReadAttempt => Breaks(Focus::Mixed, 1),
        Rule::ReadAfter => Breaks(Focus::Mixed, 42),
        Rule::ReadClock => Breaks(Focus::Cached, 126),
        Rule::GrantEpoch => Breaks(Focus::Stale, 16),
        Rule::GrantHeard => Breaks(Focus::Stale, 98),
        Rule::EpochCheck => Breaks(Focus::Return, 309),
        Rule::Fence => Covered { by: Rule::ExpireEpoch, focus: Focus::Takeover, seed: 160 },
        Rule::RequestAid => Covered { by: Rule::Pred, focus: Focus::Network, seed: 764 },
        Rule::Pred => Breaks(Focus::Mixed, 3),
        Rule::ApplyStable => Breaks(Focus::Mixed, 19),
        Rule::ApplyOrder => Breaks(Focus::Mixed, 3),
        Rule::RestartSync => Breaks(Focus::Small, 128020),
        Rule::TrimSynced => Breaks(Focus::Mixed, 2),
        Rule::TrimOrder => Breaks(Focus::Mixed, 2),
        Rule::DirtyTrim => Breaks(Focus::Mixed, 53),
        Rule::DirtyDurable => Breaks(Focus::Small, 133),
        Rule::DirtyUntrimmed => Breaks(Focus::Mixed, 61),
        Rule::DirtyCut => Breaks(Focus::Forgetful, 49),
        Rule::DirtyNoted => Breaks(Focus::Forgetful, 96),
        Rule::DirectSync => Breaks(Focus::Small, 97),
        Rule::DirectCrc => Breaks(Focus::Mixed, 29),
        Rule::DirectOnce => Breaks(Focus::Mixed, 5),
        Rule::DirectSettle => Breaks(Focus::Joining, 124),
        Rule::DirectHole => Breaks(Focus::Mixed, 38),
        Rule::DirectJoin => Breaks(Focus::Mixed, 28),
        Rule::PlaceOver => Breaks(Focus::Placed, 186),
        Rule::PlaceKeep => Breaks(Focus::Placed, 42),
        Rule::PlaceAhead => Breaks(Focus::Placed, 201576),
        Rule::IssOnly => Breaks(Focus::Mixed, 159),
        Rule::IssFloor => Breaks(Focus::Mixed, 3),
        Rule::Activate => Breaks(Focus::Mixed, 29),
        Rule::ActiveOnly => Breaks(Focus::Mixed, 5),
        Rule::LostLeaves => Breaks(Focus::Joining, 88),
        Rule::BootEpoch => Breaks(Focus::Mixed, 13),
        Rule::BlankCheck => Breaks(Focus::Mixed, 13),
        Rule::ExpireEpoch => Breaks(Focus::Owing, 987),
        Rule::GrantResolved => Breaks(Focus::Takeover, 10),
        Rule::RecoverIss => Breaks(Focus::Owing, 52),
        Rule::RecoverAll => Breaks(Focus::Mixed, 19),
        Rule::RecoverSync => Breaks(Focus::Joining, 463),
        Rule::RecoverTouch => Breaks(Focus::Mixed, 22),
        Rule::RecoverGap => Breaks(Focus::Mixed, 49),
        Rule::DecideDurable => Breaks(Focus::Joining, 336),
        Rule::DecideAll => Breaks(Focus::Mixed, 182),
        Rule::JoinDrop => Breaks(Focus::Forgetful, 140),
        Rule::JoinKeep => Breaks(Focus::Small, 226),
        Rule::JoinAttached => Breaks(Focus::Mixed, 61),
        Rule::JoinOwed => Breaks(Focus::Owing, 100),
        Rule::JoinBegun => Breaks(Focus::Mixed, 55),
        Rule::JoinNeed => Breaks(Focus::Mixed, 53),
        Rule::JoinMark => Breaks(Focus::Joining, 224),
        Rule::JoinCut => Breaks(Focus::Forgetful, 2),
        Rule::JoinApplyWait => Covered { by: Rule::ApplyStable, focus: Focus::Joining, seed: 159 },
        Rule::JoinFloor => Breaks(Focus::Network, 49),
        Rule::ReportSynced => Breaks(Focus::Rebuilt, 40),
        Rule::ReportSame => Breaks(Focus::Mixed, 67),
        Rule::JoinSync => Covered { by: Rule::ReportSynced, focus: Focus::Mixed, seed: 13 },
        Rule::JoinCas => Breaks(Focus::Takeover, 31727),
        Rule::JoinClosed => Covered { by: Rule::JoinDrop, focus: Focus::Small, seed: 198 },
        Rule::CommitPublish => Quorum(1),
        Rule::ConfirmRenew => Quorum(340),
        Rule::BootQuiet => Quorum(3117),
        Rule::NewIdentity => Quorum(1379),
        Rule::HardSync => Quorum(861),
        Rule::SnapOrder => Quorum(143),
    }
}
