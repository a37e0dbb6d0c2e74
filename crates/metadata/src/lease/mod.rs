//! Who may cache or write a file: opens and leases per file and session, as a state machine.
//!
//! Contract: no I/O and no clock; `now` is the time since any fixed moment and never goes back. One
//! session at most holds a file's write lease, and then nobody else holds any; otherwise many hold
//! read leases. A request that conflicts waits in the file's queue, first come first served, until
//! the holders have returned their leases or are gone; they are asked to ([`Action::Recall`],
//! repeated until answered). A dead session keeps its leases until [`Leases::release`] says that
//! its last writes are decided. What happens is told by [`Leases::take_actions`], in order: whoever
//! owns the machine must carry it out in that order.
//!
//! Leases on names and attributes, which many hold and one that changes something takes away, are
//! a machine of their own, [`names`].
//!
//! What a session may do with a lease that it was granted is decided on its own side, in
//! [`holder`].

pub mod holder;
pub mod names;
#[cfg(test)]
mod tests;

use protocol::namespace::LeaseMode;
use protocol::{Gfid, Rule, Rules, SessionId};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Limits of leases.
#[derive(Clone, Copy, Debug)]
pub struct LeaseConfig {
    /// A recall is repeated after this time without an answer: the connection may have been lost.
    pub recall_repeat: Duration,
    /// Files of one session with a lease or open. Above it the session is asked for leases on files
    /// it does not have open; at twice this number it gets no more. Bounds memory: about 200 bytes
    /// each.
    pub session_files_max: usize,
    /// The write protocol's rules that hold: all.
    pub rules: Rules,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            recall_repeat: Duration::from_secs(1),
            session_files_max: 100_000,
            rules: Rules::default(),
        }
    }
}

/// The owner's number for a request that waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// To hold a lease from now on.
    Hold(LeaseMode),
    /// That its attributes are current: nobody else holds the write lease at this moment.
    Current,
    /// That nobody else holds any lease at this moment, because the file is about to change.
    Alone,
}

/// Answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Go on.
    Ready,
    /// An action will say when.
    Wait,
    /// The session has too many files already.
    TooMany,
}

/// What the owner is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask a session to give its lease back, down to `keep`.
    Recall {
        /// Whom.
        session: SessionId,
        /// Of which file.
        gfid: Gfid,
        /// What it may keep.
        keep: Option<LeaseMode>,
    },
    /// A request that waited may go on; a lease that it wanted is held.
    Ready(Ticket),
    /// A request waited too long, or its session is dead.
    Expired(Ticket),
}

#[derive(Debug)]
struct Holder {
    session: SessionId,
    mode: LeaseMode,
    /// See [`Leases::token`].
    token: u64,
    /// What it was asked to keep at most, and when.
    recalled: Option<(Option<LeaseMode>, Duration)>,
    /// So says the store since the restart; the session has not said it.
    noted: bool,
}

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    session: SessionId,
    want: Want,
    deadline: Duration,
}

#[derive(Debug, Default)]
struct File {
    opens: Vec<SessionId>,
    holders: Vec<Holder>,
    waiters: VecDeque<Waiter>,
    /// Its size is being recovered: nothing is granted before this time.
    recovery: Option<Duration>,
}

impl File {
    fn held(&self, session: SessionId) -> Option<LeaseMode> {
        self.holders.iter().find(|h| h.session == session).map(|h| h.mode)
    }

    fn writer(&self) -> Option<SessionId> {
        self.holders.iter().find(|h| h.mode == LeaseMode::Write).map(|h| h.session)
    }

    fn concerns(&self, session: SessionId) -> bool {
        self.opens.contains(&session)
            || self.holders.iter().any(|h| h.session == session)
            || self.waiters.iter().any(|w| w.session == session)
    }

    /// Does this session have what it wants already, whoever else waits?
    fn has(&self, session: SessionId, want: Want) -> bool {
        // Who holds what is only noted may have had a later grant of it: he is given one with a
        // token of its own.
        let Some(holder) = self.holders.iter().find(|h| h.session == session && !h.noted) else {
            return false;
        };
        match want {
            Want::Current => true,
            Want::Alone => holder.mode == LeaseMode::Write,
            Want::Hold(mode) => {
                holder.mode >= mode
                    && holder.recalled.is_none_or(|(keep, _)| keep.is_some_and(|keep| keep >= mode))
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.opens.is_empty()
            && self.holders.is_empty()
            && self.waiters.is_empty()
            && self.recovery.is_none()
    }

    fn needs_time(&self) -> bool {
        !self.waiters.is_empty()
            || self.recovery.is_some()
            || self.holders.iter().any(|h| h.recalled.is_some())
    }
}

/// What a holder may keep when another session wants something; `None` when it may keep what it
/// has.
fn conflict(want: Want, held: LeaseMode) -> Option<Option<LeaseMode>> {
    match want {
        Want::Hold(LeaseMode::Write) | Want::Alone => Some(None),
        Want::Hold(LeaseMode::Read) | Want::Current => {
            (held == LeaseMode::Write).then_some(Some(LeaseMode::Read))
        }
    }
}

#[derive(Debug, Default)]
struct Session {
    files: BTreeSet<Gfid>,
    /// Where the search for a lease to ask back goes on.
    cursor: Gfid,
    fenced: bool,
}

/// What a session had when it ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Files that it had open or held a lease on.
    pub files: Vec<Gfid>,
    /// Files whose write lease it held.
    pub written: Vec<Gfid>,
}

/// All leases and opens.
#[derive(Debug, Default)]
pub struct Leases {
    config: LeaseConfig,
    files: HashMap<Gfid, File>,
    sessions: HashMap<SessionId, Session>,
    /// Files for which time matters.
    timed: BTreeSet<Gfid>,
    /// The last token given out.
    tokens: u64,
    actions: VecDeque<Action>,
}

impl Leases {
    /// No leases yet. Tokens begin above `tokens`, which must grow from one start of the service to
    /// the next.
    pub fn new(config: LeaseConfig, tokens: u64) -> Self {
        Self { config, tokens, ..Self::default() }
    }

    /// A request for a file; `ticket` names it if it must wait, until `deadline` at most.
    pub fn request(
        &mut self,
        now: Duration,
        deadline: Duration,
        (gfid, session): (Gfid, SessionId),
        want: Want,
        ticket: Ticket,
    ) -> Answer {
        let known = self.files.get(&gfid);
        if known.is_some_and(|file| file.has(session, want)) {
            return Answer::Ready;
        }
        if known.is_none() && !matches!(want, Want::Hold(_)) {
            return Answer::Ready;
        }
        let files = self.sessions.get(&session).map_or(0, |s| s.files.len());
        if matches!(want, Want::Hold(_)) && files >= 2 * self.config.session_files_max {
            return Answer::TooMany;
        }
        let file = self.files.entry(gfid).or_default();
        let waits = !file.waiters.is_empty()
            || file.recovery.is_some_and(|until| now < until)
            || file
                .holders
                .iter()
                .any(|h| h.session != session && conflict(want, h.mode).is_some());
        let answer = if waits {
            file.waiters.push_back(Waiter { ticket, session, want, deadline });
            Answer::Wait
        } else {
            grant(file, &mut self.tokens, session, want);
            Answer::Ready
        };
        self.index(gfid, session);
        self.settle(now, gfid);
        if matches!(want, Want::Hold(_)) {
            self.shed(now, session);
        }
        answer
    }

    /// The session has the file open. Opening twice is opening once.
    pub fn open(&mut self, gfid: Gfid, session: SessionId) {
        let file = self.files.entry(gfid).or_default();
        if !file.opens.contains(&session) {
            file.opens.push(session);
        }
        self.index(gfid, session);
    }

    /// The session has closed the file; its lease stays.
    pub fn close(&mut self, gfid: Gfid, session: SessionId) {
        if let Some(file) = self.files.get_mut(&gfid) {
            file.opens.retain(|&s| s != session);
            self.index(gfid, session);
            self.drop_if_idle(gfid);
        }
    }

    /// A new file: the session that made it holds the lease at once.
    pub fn grant_new(&mut self, now: Duration, gfid: Gfid, session: SessionId, mode: LeaseMode) {
        let file = self.files.entry(gfid).or_default();
        assert!(file.holders.iter().all(|h| h.session == session), "a new file has another holder");
        grant(file, &mut self.tokens, session, Want::Hold(mode));
        self.index(gfid, session);
        self.shed(now, session);
    }

    /// The session gives its lease back, down to `keep`. Returns what it held; `None` means that
    /// nothing changes.
    pub fn returned(
        &mut self,
        now: Duration,
        gfid: Gfid,
        session: SessionId,
        keep: Option<LeaseMode>,
    ) -> Option<LeaseMode> {
        let file = self.files.get_mut(&gfid)?;
        let at = file.holders.iter().position(|h| h.session == session)?;
        let holder = &mut file.holders[at];
        let held = holder.mode;
        match keep {
            None => drop(file.holders.swap_remove(at)),
            Some(mode) => {
                holder.mode = held.min(mode);
                holder.recalled =
                    holder.recalled.filter(|(allowed, _)| Some(holder.mode) > *allowed);
            }
        }
        self.index(gfid, session);
        self.settle(now, gfid);
        Some(held)
    }

    /// After a restart: the store says that this session holds the write lease, by a grant with
    /// this token.
    pub fn restore_writer(&mut self, gfid: Gfid, session: SessionId, token: u64) {
        let file = self.files.entry(gfid).or_default();
        file.holders.push(Holder {
            session,
            mode: LeaseMode::Write,
            token,
            recalled: None,
            noted: true,
        });
        self.index(gfid, session);
    }

    /// After a restart: the session says that it holds a lease, by a grant with this token. The
    /// store knows of write leases, but as they were when the machine last had power: grants and
    /// returns of the time before may be lost. So of leases that exclude each other the one that
    /// was granted last counts, for it was granted when the others had been returned; whose claim
    /// does not count is asked for what he believes to have. `late`: others may have been granted
    /// leases and have returned them since the restart, so that one which is not known counts no
    /// more. True if the claim counts.
    pub fn reclaim(
        &mut self,
        now: Duration,
        (gfid, session): (Gfid, SessionId),
        (mode, token): (LeaseMode, u64),
        late: bool,
    ) -> bool {
        // A claim beyond what was ever given out would win over everybody's: it is none.
        let is_invented = token > self.tokens;
        let file = self.files.entry(gfid).or_default();
        let excludes = |h: &Holder| h.session != session && h.mode.max(mode) == LeaseMode::Write;
        let is_newer = |h: &Holder| excludes(h) && (late || h.token > token);
        let is_lost = late && file.held(session).is_none();
        let counts = !is_invented && !is_lost && !file.holders.iter().any(is_newer);
        let mut others = Vec::new();
        if !counts {
            others.push(session);
        } else {
            others.extend(file.holders.extract_if(.., |h| excludes(h)).map(|h| h.session));
            match file.holders.iter_mut().find(|h| h.session == session) {
                // A grant of which the session has not heard.
                Some(holder) if holder.token > token => {}
                Some(holder) => {
                    holder.mode = if holder.token == token { holder.mode.min(mode) } else { mode };
                    (holder.token, holder.noted) = (token, false);
                }
                None => {
                    file.holders.push(Holder { session, mode, token, recalled: None, noted: false })
                }
            }
        }
        for other in others {
            self.actions.push_back(Action::Recall { session: other, gfid, keep: None });
            self.index(gfid, other);
        }
        self.index(gfid, session);
        self.settle(now, gfid);
        self.drop_if_idle(gfid);
        counts
    }

    /// The session is dead: what it has open is closed, what it waits for expires, its leases stay.
    /// Returns the files that it had open.
    pub fn fence(&mut self, now: Duration, session: SessionId) -> Vec<Gfid> {
        let entry = self.sessions.entry(session).or_default();
        entry.fenced = true;
        let files: Vec<Gfid> = entry.files.iter().copied().collect();
        let mut closed = Vec::new();
        for gfid in files {
            let Some(file) = self.files.get_mut(&gfid) else { continue };
            if file.opens.contains(&session) {
                file.opens.retain(|&s| s != session);
                closed.push(gfid);
            }
            let gone = file
                .waiters
                .iter()
                .filter(|w| w.session == session)
                .map(|w| Action::Expired(w.ticket));
            self.actions.extend(gone);
            file.waiters.retain(|w| w.session != session);
            // Rule: GrantResolved - what a dead session held stays held until its last writes are
            // decided.
            if !self.config.rules.on(Rule::GrantResolved) {
                file.holders.retain(|h| h.session != session);
            }
            self.index(gfid, session);
            self.settle(now, gfid);
        }
        closed
    }

    /// The session is gone and its last writes are decided: its leases are free. For a file that it
    /// was writing the owner starts a recovery before anything else ([`Leases::recover`]), so
    /// nothing is granted by this call.
    pub fn release(&mut self, now: Duration, session: SessionId) -> Released {
        let closed = self.fence(now, session);
        let mut released = Released { files: closed, written: Vec::new() };
        let files = self.sessions.remove(&session).map(|s| s.files).unwrap_or_default();
        for gfid in files {
            let Some(file) = self.files.get_mut(&gfid) else { continue };
            released.files.push(gfid);
            if file.writer() == Some(session) {
                released.written.push(gfid);
            }
            file.holders.retain(|h| h.session != session);
        }
        released.files.sort_unstable();
        released.files.dedup();
        released
    }

    /// Nothing is granted on the file before `until`, or [`Leases::recovered`].
    pub fn recover(&mut self, gfid: Gfid, until: Duration) {
        self.files.entry(gfid).or_default().recovery = Some(until);
        self.timed.insert(gfid);
    }

    /// The file's size is known again.
    pub fn recovered(&mut self, now: Duration, gfid: Gfid) {
        if let Some(file) = self.files.get_mut(&gfid) {
            file.recovery = None;
        }
        self.settle(now, gfid);
    }

    /// Asks every holder for its lease, down to `keep`.
    pub fn recall(&mut self, now: Duration, gfid: Gfid, keep: Option<LeaseMode>) {
        let Some(file) = self.files.get_mut(&gfid) else { return };
        for holder in file.holders.iter_mut().filter(|h| Some(h.mode) > keep) {
            ask(&mut self.actions, &self.sessions, now, gfid, holder, keep);
        }
        self.settle(now, gfid);
    }

    /// The file is gone: so are its leases. What waits goes on, to find that out.
    pub fn forget(&mut self, gfid: Gfid) {
        let Some(file) = self.files.remove(&gfid) else { return };
        self.timed.remove(&gfid);
        self.actions.extend(file.waiters.iter().map(|w| Action::Ready(w.ticket)));
        let concerned = file
            .holders
            .iter()
            .map(|h| h.session)
            .chain(file.opens)
            .chain(file.waiters.iter().map(|w| w.session));
        for session in concerned {
            self.index(gfid, session);
        }
    }

    /// Time passes: waiters expire, recalls are repeated, recoveries end. Call it a few times a
    /// second.
    pub fn tick(&mut self, now: Duration) {
        let due: Vec<Gfid> = self.timed.iter().copied().collect();
        for gfid in due {
            let Some(file) = self.files.get_mut(&gfid) else { continue };
            let late = |w: &Waiter| w.deadline <= now;
            let expired: Vec<SessionId> =
                file.waiters.iter().filter(|w| late(w)).map(|w| w.session).collect();
            self.actions
                .extend(file.waiters.iter().filter(|w| late(w)).map(|w| Action::Expired(w.ticket)));
            file.waiters.retain(|w| !late(w));
            for holder in &mut file.holders {
                if let Some((keep, asked)) = holder.recalled
                    && now >= asked + self.config.recall_repeat
                {
                    holder.recalled = None;
                    ask(&mut self.actions, &self.sessions, now, gfid, holder, keep);
                }
            }
            for session in expired {
                self.index(gfid, session);
            }
            self.settle(now, gfid);
        }
    }

    /// Has something been decided that the owner has not carried out?
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> VecDeque<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Must the file outlive its last link? True while it is open or somebody may still write it.
    pub fn in_use(&self, gfid: Gfid) -> bool {
        self.files.get(&gfid).is_some_and(|file| !file.opens.is_empty() || file.writer().is_some())
    }

    /// Would it be in use without this session's lease?
    pub fn in_use_beside(&self, gfid: Gfid, session: SessionId) -> bool {
        self.files.get(&gfid).is_some_and(|file| {
            !file.opens.is_empty() || file.writer().is_some_and(|writer| writer != session)
        })
    }

    /// Does any session have it open?
    pub fn is_open(&self, gfid: Gfid) -> bool {
        self.files.get(&gfid).is_some_and(|file| !file.opens.is_empty())
    }

    /// Who holds the write lease.
    pub fn writer(&self, gfid: Gfid) -> Option<SessionId> {
        self.files.get(&gfid).and_then(File::writer)
    }

    /// What a session holds.
    pub fn held(&self, gfid: Gfid, session: SessionId) -> Option<LeaseMode> {
        self.files.get(&gfid).and_then(|file| file.held(session))
    }

    /// The fencing token of what a session holds: greater than that of every grant before it.
    pub fn token(&self, gfid: Gfid, session: SessionId) -> Option<u64> {
        let file = self.files.get(&gfid)?;
        file.holders.iter().find(|h| h.session == session).map(|h| h.token)
    }

    /// Files with a lease, open or request.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Is there no lease, open or request at all?
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Grants what can be granted from the front of the file's queue, and asks for what stands in
    /// the way.
    pub fn settle(&mut self, now: Duration, gfid: Gfid) {
        let Some(file) = self.files.get_mut(&gfid) else { return };
        file.recovery = file.recovery.filter(|&until| now < until);
        while let (Some(front), None) = (file.waiters.front(), file.recovery) {
            let (session, want, ticket) = (front.session, front.want, front.ticket);
            let mut free = true;
            for holder in file.holders.iter_mut().filter(|h| h.session != session) {
                if let Some(keep) = conflict(want, holder.mode) {
                    free = false;
                    ask(&mut self.actions, &self.sessions, now, gfid, holder, keep);
                }
            }
            if !free {
                break;
            }
            file.waiters.pop_front();
            grant(file, &mut self.tokens, session, want);
            self.actions.push_back(Action::Ready(ticket));
            // Others of its requests that have what they want by now wait for nobody: the lease may
            // not go back before they end.
            let waiters = std::mem::take(&mut file.waiters);
            for waiter in waiters {
                if waiter.session == session && file.has(session, waiter.want) {
                    self.actions.push_back(Action::Ready(waiter.ticket));
                } else {
                    file.waiters.push_back(waiter);
                }
            }
            if !file.concerns(session)
                && let Some(entry) = self.sessions.get_mut(&session)
            {
                entry.files.remove(&gfid);
            }
        }
        if file.needs_time() {
            self.timed.insert(gfid);
        } else {
            self.timed.remove(&gfid);
        }
        self.drop_if_idle(gfid);
    }

    fn drop_if_idle(&mut self, gfid: Gfid) {
        if self.files.get(&gfid).is_some_and(File::is_idle) {
            self.files.remove(&gfid);
            self.timed.remove(&gfid);
        }
    }

    /// Brings the session's list of files up to date for one file.
    fn index(&mut self, gfid: Gfid, session: SessionId) {
        let concerned = self.files.get(&gfid).is_some_and(|file| file.concerns(session));
        let entry = self.sessions.entry(session).or_default();
        if concerned {
            entry.files.insert(gfid);
        } else {
            entry.files.remove(&gfid);
            if entry.files.is_empty() && !entry.fenced {
                self.sessions.remove(&session);
            }
        }
    }

    /// Asks a session with too many files for the lease of one that it does not have open.
    fn shed(&mut self, now: Duration, session: SessionId) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        if entry.files.len() <= self.config.session_files_max {
            return;
        }
        let rest = entry.files.range(entry.cursor..).chain(entry.files.range(..entry.cursor));
        let idle =
            |gfid: &&Gfid| self.files.get(gfid).is_some_and(|file| !file.opens.contains(&session));
        let Some(gfid) = rest.take(64).find(idle).copied() else {
            let next = entry.files.range(entry.cursor..).nth(64).copied();
            entry.cursor = next.unwrap_or_default();
            return;
        };
        entry.cursor = Gfid::new(gfid.get().wrapping_add(1));
        let holder = self
            .files
            .get_mut(&gfid)
            .and_then(|f| f.holders.iter_mut().find(|h| h.session == session));
        if let Some(holder) = holder {
            ask(&mut self.actions, &self.sessions, now, gfid, holder, None);
            self.timed.insert(gfid);
        }
    }

    /// Checks what must always hold.
    ///
    /// # Panics
    /// When it does not.
    pub fn check_invariants(&self) {
        for (gfid, file) in &self.files {
            let writers = file.holders.iter().filter(|h| h.mode == LeaseMode::Write).count();
            assert!(writers == 0 || file.holders.len() == 1, "{gfid}: a writer is not alone");
            assert!(!file.is_idle(), "{gfid}: kept for nothing");
            assert!(
                !file.needs_time() || self.timed.contains(gfid),
                "{gfid}: nobody watches the time"
            );
            let sessions = file.opens.iter().copied().chain(file.holders.iter().map(|h| h.session));
            for session in sessions.chain(file.waiters.iter().map(|w| w.session)) {
                assert!(
                    self.sessions.get(&session).is_some_and(|s| s.files.contains(gfid)),
                    "{gfid}: not indexed"
                );
            }
        }
        for (session, entry) in &self.sessions {
            for gfid in &entry.files {
                assert!(
                    self.files.get(gfid).is_some_and(|f| f.concerns(*session)),
                    "{session}: stale {gfid}"
                );
            }
        }
    }
}

/// Lets a session hold what it wants; each grant takes a token of its own.
fn grant(file: &mut File, tokens: &mut u64, session: SessionId, want: Want) {
    let Want::Hold(mode) = want else { return };
    *tokens += 1;
    let token = *tokens;
    match file.holders.iter_mut().find(|h| h.session == session) {
        Some(holder) => {
            holder.mode = holder.mode.max(mode);
            (holder.token, holder.noted) = (token, false);
            holder.recalled = None; // what was asked for is moot: the queue that asked has been served
        }
        None => file.holders.push(Holder { session, mode, token, recalled: None, noted: false }),
    }
}

/// Asks a holder for its lease unless it was asked for as much already. A dead one is not asked.
fn ask(
    actions: &mut VecDeque<Action>,
    sessions: &HashMap<SessionId, Session>,
    now: Duration,
    gfid: Gfid,
    holder: &mut Holder,
    keep: Option<LeaseMode>,
) {
    if holder.recalled.is_some_and(|(asked, _)| asked <= keep) {
        return;
    }
    holder.recalled = Some((keep, now));
    if !sessions.get(&holder.session).is_some_and(|s| s.fenced) {
        actions.push_back(Action::Recall { session: holder.session, gfid, keep });
    }
}
