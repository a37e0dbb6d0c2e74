//! The rules of the write protocol, as its executable model has them, and of replicated logs, by
//! name, each with a switch for the simulator.
//!
//! Contract: in every program [`Rules`] has no size and [`Rules::on`] is the constant `true`, so
//! that a rule costs nothing. Only with the feature `rule-switches`, which no program may have, a
//! rule can be turned off: the simulator then shows that an invariant breaks without it.

/// Declares the rules with their names.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rule of the write protocol, or of replicated logs.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// All of them, in the model's order.
            pub const ALL: &'static [Rule] = &[$(Rule::$name,)*];

            /// Its name, as the model, the code's comments and the documents have it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Rule::$name => stringify!($name),)*
                }
            }
        }
    };
}

rules! {
    /// A write is reported only when every touched writer (in-sync or joining) has acknowledged it.
    AckAll,
    /// Writes of one session on one PG are reported in order, never past an unacknowledged one.
    ReportPrefix,
    /// What was reported and is not stable must be held again in a new attach before later writes
    /// are reported.
    ReportAgain,
    /// A joining shard's acknowledgement is needed too.
    AckJoiner,
    /// Stable counts durable marks, not acknowledgements.
    StableDurable,
    /// Stable needs the joining shard's durable mark too.
    StableJoiner,
    /// Acknowledged and durable marks of a shard are forgotten at every new attach.
    ResetMarks,
    /// A reply counts only for the attach it belongs to.
    ReplyAid,
    /// The session keeps every write until it is stable and resends what a shard lost.
    KeepUntilStable,
    /// A lease is given back only when the session's writes on that file are stable.
    ReleaseStable,
    /// A read is started over on all its shards when one of them is attached anew.
    ReadAttempt,
    /// A read names the last write sent before it, and the shard checks that it has it.
    ReadAfter,
    /// No read is started after the lease ran out on the client's own clock.
    ReadClock,
    /// A lease is used only with a map at least as new as the grant.
    GrantEpoch,
    /// A grant names a map at least as new as that of any session which spoke to the service
    /// before: a request is carried out only once the service has a map as new as the session's.
    GrantHeard,
    /// A shard takes messages of its own epoch only, and attaches end with the epoch.
    EpochCheck,
    /// A shard takes nothing from a session that it knows to be dead.
    Fence,
    /// A shard takes nothing from an older attach than the last.
    RequestAid,
    /// A record is accepted only when the record before it on this shard is there.
    Pred,
    /// Only records at or below stable are applied to fragment files.
    ApplyStable,
    /// Records of one object are applied in journal order.
    ApplyOrder,
    /// What a restart finds in the journal counts as durable only after a new sync.
    RestartSync,
    /// A record leaves the journal only after the fragment file holding it is synced.
    TrimSynced,
    /// The journal is trimmed from its oldest end only.
    TrimOrder,
    /// Trimming a record marks its object dirty for every shard outside the in-sync set.
    DirtyTrim,
    /// That mark is durable before the record is trimmed.
    DirtyDurable,
    /// Every object with an untrimmed record counts as dirty for a returning shard.
    DirtyUntrimmed,
    /// A shard whose dirty list was cut short misses every object that a member or it holds.
    DirtyCut,
    /// That the list was cut short is forgotten only when the shard has noted all that it misses,
    /// durably.
    DirtyNoted,
    /// The data of a direct write is synced before its record counts as durable.
    DirectSync,
    /// A direct record whose bytes fail the checksum at restart ends the journal there.
    DirectCrc,
    /// Space covered by any journalled record is not never-written.
    DirectOnce,
    /// Nothing is applied over a direct record that is still in the journal.
    DirectSettle,
    /// Direct bytes are visible through their record only, until it is applied.
    DirectHole,
    /// A joining shard makes no direct writes.
    DirectJoin,
    /// Bytes are placed only where no journalled record takes bytes away, or has direct ones.
    PlaceOver,
    /// A place is not taken while a record in the journal names it, or has moved a slot away from
    /// it.
    PlaceKeep,
    /// A write that is applied again leaves a slot that a later record of the journal placed as
    /// that record left it.
    PlaceAhead,
    /// Only members of the in-sync set may make the PG active.
    IssOnly,
    /// The in-sync set never shrinks below k members.
    IssFloor,
    /// A smaller in-sync set takes effect only when all its members have answered in the new epoch.
    Activate,
    /// No client message is taken in an epoch before all proposed members have answered.
    ActiveOnly,
    /// A member that lost power leaves the in-sync set when k others did not.
    LostLeaves,
    /// Every restart of a shard makes a new epoch.
    BootEpoch,
    /// A replaced disk is recognised and starts outside the in-sync set with everything dirty.
    BlankCheck,
    /// The expiry of a session makes a new epoch.
    ExpireEpoch,
    /// A dead holder's lease is granted again only when its session is resolved.
    GrantResolved,
    /// Only in-sync members take part in the decision.
    RecoverIss,
    /// And all of them do: one that does not answer must leave the in-sync set first.
    RecoverAll,
    /// A member syncs its journal before it reports what it has.
    RecoverSync,
    /// A record is kept only if every in-sync shard it touches has it.
    RecoverTouch,
    /// A number that nobody knows ends the prefix.
    RecoverGap,
    /// The decision is durable on a member before it is acknowledged.
    DecideDurable,
    /// A session is resolved only when all in-sync members have acknowledged the decision.
    DecideAll,
    /// A returning shard drops what lies beyond the in-sync set's (or the session's) stable mark.
    JoinDrop,
    /// A returning shard keeps (and applies) its records at or below that mark.
    JoinKeep,
    /// Every live session with unresolved records attaches to the joining shard first; dead ones
    /// are resolved first.
    JoinAttached,
    /// The shard joins only when it has what each session had reported before it attached.
    JoinOwed,
    /// The list of objects to rebuild is durable on the returning shard before one is overwritten.
    JoinBegun,
    /// It joins only when every dirty object is rebuilt.
    JoinNeed,
    /// An object is read for rebuilding only where stable is known up to the joining shard's start.
    JoinMark,
    /// The k pieces read for rebuilding must be of one cut (max last-applied <= min applied-up-to).
    JoinCut,
    /// A joining shard applies nothing to an object before it is rebuilt.
    JoinApplyWait,
    /// Records dropped by rebuilding raise the shard's decided floor, durably.
    JoinFloor,
    /// An object is reported rebuilt only when file and journal are synced.
    ReportSynced,
    /// The report clears the dirty mark only if nothing of the object was trimmed since its piece
    /// was read.
    ReportSame,
    /// A shard syncs everything before it joins.
    JoinSync,
    /// It joins only in the epoch in which it became ready.
    JoinCas,
    /// It takes over the list of resolved sessions with their cuts.
    JoinClosed,
    /// Only what a majority holds on its disks, and this replica too, is given out or told to
    /// anybody.
    CommitPublish,
    /// What a leader answers without an entry is answered after a round with a majority that began
    /// after the question came.
    ConfirmRenew,
    /// After a start a replica neither votes nor stands for one longest election timeout, unless it
    /// is the only voter or all voters say that they have just started, too.
    BootQuiet,
    /// A replica that lost promises returns as another one, which learns everything before it
    /// votes.
    NewIdentity,
    /// Term, vote and entries are synced before the message leaves that depends on them.
    HardSync,
    /// A log is cut only behind a snapshot that is synced under its name.
    SnapOrder,
}

impl Rule {
    /// The rule of this name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.iter().copied().find(|rule| rule.name() == name)
    }
}

/// Which rules hold: all of them, but in the simulator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// One bit for each rule that is off.
    #[cfg(feature = "rule-switches")]
    off: u128,
}

impl Rules {
    /// Does the rule hold?
    #[cfg(not(feature = "rule-switches"))]
    #[inline(always)]
    pub const fn on(self, rule: Rule) -> bool {
        let _ = rule;
        true
    }

    /// Does the rule hold?
    #[cfg(feature = "rule-switches")]
    pub const fn on(self, rule: Rule) -> bool {
        self.off >> rule as u32 & 1 == 0
    }

    /// All rules but this one, too.
    #[cfg(feature = "rule-switches")]
    #[must_use]
    pub const fn without(self, rule: Rule) -> Self {
        Self { off: self.off | 1 << rule as u32 }
    }

    /// Do all rules hold?
    #[cfg(feature = "rule-switches")]
    pub const fn is_whole(self) -> bool {
        self.off == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_found_by_name() {
        assert_eq!(Rule::named("JoinCut"), Some(Rule::JoinCut));
        assert_eq!(Rule::named("joincut"), None);
        assert!(Rule::ALL.iter().all(|rule| Rule::named(rule.name()) == Some(*rule)));
    }

    #[cfg(not(feature = "rule-switches"))]
    #[test]
    fn a_program_has_every_rule_for_nothing() {
        assert_eq!(size_of::<Rules>(), 0);
        assert!(Rule::ALL.iter().all(|rule| Rules::default().on(*rule)));
    }
}
