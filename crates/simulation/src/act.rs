//! What can happen: one atomic step each.

use std::fmt;

/// Kinds of faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// A message is lost inside a connection, or an answer between daemons.
    Drop,
    /// A connection is reset; what was under way may arrive late, beside the new one.
    Reset,
    /// A process dies and the page cache stays; or the monitor or the metadata service restarts.
    Crash,
    /// One machine or all lose power.
    Power,
    /// A disk is lost for good.
    Lose,
    /// A live shard is marked down.
    Down,
    /// A live session expires.
    Zombie,
    /// A client dies.
    Client,
    /// A sync or a write fails, and the daemon serves nothing more until it is restarted; or a read
    /// does.
    Io,
    /// A disk is full for a while.
    Full,
    /// The clock of the monitor or of a client jumps.
    Clock,
    /// A sector that was written well reads wrong.
    Rot,
    /// Some cannot talk to the others for a while.
    Part,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Fault; 13] = [
        Fault::Drop,
        Fault::Reset,
        Fault::Crash,
        Fault::Power,
        Fault::Lose,
        Fault::Down,
        Fault::Zombie,
        Fault::Client,
        Fault::Io,
        Fault::Full,
        Fault::Clock,
        Fault::Rot,
        Fault::Part,
    ];
}

/// One atomic step. `s` is a session, `i` a node and so a shard, `o` an object; `v` decides of what
/// is left open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the fields are explained once, above")]
pub enum Act {
    /// The holds that a member keeps for returning shards end.
    HoldsEnd { i: usize },
    /// The next client mounts.
    Open,
    /// A client with nothing open unmounts.
    Close { s: usize },
    /// A session learns a newer map.
    Learn { s: usize, v: u32 },
    /// A session asks for the write lease of a file.
    Ask { s: usize, o: usize },
    /// A session asks for a read lease of a file.
    AskRead { s: usize, o: usize },
    /// A session gives a lease back.
    GiveBack { s: usize, o: usize },
    /// A session reads what its kernel has cached.
    ReadCached { s: usize, o: usize },
    /// A session asks the monitor to be kept alive.
    Renew { s: usize },
    /// Such a question arrives, or its answer.
    Renewal { n: usize },
    /// The metadata service takes a session's next request.
    MdsHear { s: usize },
    /// The metadata service takes a request of an earlier connection.
    MdsHearLate { s: usize },
    /// A session takes the metadata service's next message.
    MdsReply { s: usize },
    /// Time passes for the metadata service.
    MdsTick,
    /// The sizes of files whose writers died are found.
    MdsSizes,
    /// A session writes.
    Write { s: usize, o: usize, v: u32 },
    /// A session reads from the shards of `v`.
    Read { s: usize, o: usize, v: u32 },
    /// A session wants everything stable.
    Fsync { s: usize },
    /// Time passes for a session, up to its next deadline.
    Tick { s: usize },
    /// A shard takes a session's next message.
    Request { s: usize, i: usize },
    /// A shard takes a message of an earlier connection.
    LateRequest { s: usize, i: usize },
    /// A session takes a shard's next message.
    Reply { s: usize, i: usize },
    /// A session takes a message of an earlier connection.
    LateReply { s: usize, i: usize },
    /// A connection in which a message was lost ends.
    Timeout { s: usize, i: usize },
    /// A node's turn ends: the journal is flushed, answers leave, a wanted sync begins.
    Turn { i: usize },
    /// A node wants a sync as some time has passed.
    Sync { i: usize },
    /// A sync ends well.
    Synced { i: usize },
    /// A node applies records of an object.
    Apply { i: usize },
    /// A node begins to trim its journal.
    Trim { i: usize },
    /// The trim goes on after its sync.
    TrimOn { i: usize },
    /// A node's process starts, and boots at the monitor.
    Start { i: usize },
    /// A node learns a newer map.
    NodeLearn { i: usize, v: u32 },
    /// A node tells the monitor what it must hear.
    Tell { i: usize },
    /// The monitor takes the next message of a node.
    Hear { i: usize },
    /// The way back of a shard goes on.
    Way { i: usize },
    /// A member answers a question of returning shard `i`.
    Serve { i: usize },
    /// A member takes a question that nobody waits for any more.
    ServeLate { n: usize },
    /// The monitor asks about dead sessions.
    Coordinate,
    /// A node takes a question about a dead session.
    Question { n: usize },
    /// A node answers such a question, which its sync allows by now.
    Answer { i: usize },
    /// The monitor takes such an answer.
    HearAnswer { n: usize },
    /// Time passes for the monitor.
    MonitorTick,
    /// The metadata service learns the newest map.
    MdsLearn,
    /// A node that is silent, or live, is marked down.
    MarkDown { i: usize },
    /// A session that is silent, or live, expires.
    Expire { s: usize },
    /// A disk has space again.
    Freed { i: usize },
    /// A node reads its files to check them.
    Scrub { i: usize },
    /// A node goes on with the repair of a damaged sector.
    Mend { i: usize },
    /// All can talk to each other again.
    Healed,
    // ---- faults only
    /// A message is lost.
    Drop { s: usize, i: usize },
    /// An answer to a returning shard is lost.
    DropAnswer { i: usize },
    /// An answer to the coordinator is lost.
    DropHolding { n: usize },
    /// A connection is reset.
    Reset { s: usize, i: usize },
    /// A process dies.
    Crash { i: usize },
    /// The monitor restarts.
    MonitorRestart,
    /// A machine loses power.
    Power { i: usize, v: u32 },
    /// All machines lose power.
    PowerAll { v: u32 },
    /// A disk is lost.
    LoseDisk { i: usize },
    /// A client dies.
    ClientCrash { s: usize },
    /// A sync fails.
    SyncFails { i: usize, v: u32 },
    /// A disk is full.
    Fills { i: usize },
    /// The monitor stands still for a while.
    ClockJump,
    /// A client's clock jumps ahead.
    ClientClockJump { s: usize },
    /// A session's connection to the metadata service is lost.
    MdsReset { s: usize },
    /// The metadata service restarts; its machine may have lost its power.
    MdsRestart { v: u32 },
    /// A node's next write or read fails.
    IoFails { i: usize, v: u32 },
    /// Some cannot talk to the others.
    Part { v: u32 },
    /// A sector of a disk rots.
    Rot { i: usize, v: u32 },
}

impl Act {
    /// Something that a program begins, or that a slow network still brings: without any, walks
    /// come to rest.
    pub fn is_new(&self) -> bool {
        matches!(
            self,
            Act::Write { .. }
                | Act::Read { .. }
                | Act::ReadCached { .. }
                | Act::Ask { .. }
                | Act::AskRead { .. }
                | Act::Open
                | Act::Close { .. }
                | Act::LateRequest { .. }
                | Act::LateReply { .. }
                | Act::ServeLate { .. }
        )
    }

    /// Fills in what was left open.
    #[must_use]
    pub fn with(mut self, draw: u32) -> Self {
        match &mut self {
            Act::Learn { v, .. }
            | Act::Write { v, .. }
            | Act::NodeLearn { v, .. }
            | Act::Power { v, .. }
            | Act::PowerAll { v }
            | Act::SyncFails { v, .. }
            | Act::IoFails { v, .. }
            | Act::Part { v }
            | Act::MdsRestart { v }
            | Act::Rot { v, .. } => *v = draw,
            _ => {}
        }
        self
    }

    /// Is this the same step but for what was left open?
    pub fn is_like(self, other: Self) -> bool {
        self.with(0) == other.with(0)
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Request { s, i } => write!(f, "shard {i} takes session {s}'s next message"),
            Act::LateRequest { s, i } => write!(f, "shard {i} takes a late message of session {s}"),
            Act::Reply { s, i } => write!(f, "session {s} takes shard {i}'s next message"),
            Act::LateReply { s, i } => write!(f, "session {s} takes a late message of shard {i}"),
            Act::HoldsEnd { i } => write!(f, "shard {i} lets go of what it holds"),
            Act::Turn { i } => write!(f, "node {i} flushes and answers"),
            Act::NodeLearn { i, .. } => write!(f, "node {i} learns a map"),
            Act::Hear { i } => write!(f, "the monitor takes node {i}'s next message"),
            Act::Way { i } => write!(f, "shard {i} goes on with its return"),
            Act::Serve { i } => write!(f, "a member answers returning shard {i}"),
            other => write!(f, "{other:?}"),
        }
    }
}

impl Fault {
    /// The name of its counter.
    pub const fn counted(self) -> &'static str {
        match self {
            Fault::Drop => "fault: a message is lost",
            Fault::Reset => "fault: a connection is reset",
            Fault::Crash => "fault: a process dies",
            Fault::Power => "fault: power is lost",
            Fault::Lose => "fault: a disk is lost",
            Fault::Down => "fault: a live node is marked down",
            Fault::Zombie => "fault: a live session expires",
            Fault::Client => "fault: a client dies",
            Fault::Io => "fault: a sync, a write or a read fails",
            Fault::Full => "fault: a disk is full",
            Fault::Clock => "fault: a clock jumps",
            Fault::Rot => "fault: a sector rots",
            Fault::Part => "fault: the network falls apart",
        }
    }
}
