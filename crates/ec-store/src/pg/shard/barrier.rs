//! What must be durable before a step of a shard's owner may follow.
//!
//! Contract: pure. Whoever owns a [`super::PgShard`] asks here before it tells anybody what it has
//! done; the answer is a rule of the protocol in each case.

use protocol::{Rule, Rules};

/// What is to be synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Barrier {
    /// Nothing.
    Nothing,
    /// The data of direct writes, and the journal as it was flushed last.
    Journal,
    /// Everything that was applied to fragment files, and the journal.
    Everything,
}

/// What is about to follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A member tells the coordinator what it holds of a dead session.
    TellHolding,
    /// A member acknowledges the decision about a dead session.
    TellDecided,
    /// The checkpoint that lets applied records go is written.
    WriteCheckpoint,
    /// The records that a checkpoint lets go leave the journal.
    Trim,
    /// A returning shard overwrites the first object.
    Rebuild,
    /// A returning shard tells members that objects are rebuilt.
    ReportRebuilt,
    /// A returning shard asks to be in sync.
    Join,
}

impl Step {
    /// What must be synced first.
    pub fn barrier(self, rules: Rules) -> Barrier {
        let (rule, barrier) = match self {
            Step::TellHolding => (Rule::RecoverSync, Barrier::Journal),
            Step::TellDecided => (Rule::DecideDurable, Barrier::Journal),
            Step::WriteCheckpoint => (Rule::TrimSynced, Barrier::Everything),
            Step::Trim => (Rule::DirtyDurable, Barrier::Journal),
            Step::Rebuild => (Rule::JoinBegun, Barrier::Journal),
            Step::ReportRebuilt => (Rule::ReportSynced, Barrier::Everything),
            Step::Join => (Rule::JoinSync, Barrier::Everything),
        };
        if rules.on(rule) { barrier } else { Barrier::Nothing }
    }
}
