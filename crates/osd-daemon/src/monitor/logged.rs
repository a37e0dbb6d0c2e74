//! The monitor's state in a replicated log: today a group of one voter.
//!
//! Contract: a [`ControlPlane`]. A save appends what changed since the last one
//! ([`cluster::StateDelta`]) and returns when that is committed, which with one voter is when it is
//! synced; from time to time the whole state is a snapshot, and the log before it goes. A directory
//! of format 3 becomes the group's first snapshot; its `state` stays as `state.format3`, and
//! `state` then says that the state is elsewhere, so that an older program refuses the directory.
//!
//! | in the monitor's directory | what |
//! |---|---|
//! | `lock` | as before: one monitor at a time |
//! | `replicas/` | a directory of `consensus_log` with group 0; snapshots are [`MonitorState`] in postcard |
//! | `state` | format 4: nothing but the header |

use crate::random::random_u128;
use bytes::Bytes;
use cluster::{ControlError, ControlPlane, Embedded, MonitorState, StateDelta};
use consensus::{
    Config, GroupId, Host, INCARNATION_MAX, NodeId, Outcome, Output, Persist, Recovered, ReplicaId,
    Role, TICK, Voters,
};
use consensus_log::{LogConfig, LogStore};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The monitor's group.
const GROUP: GroupId = GroupId(0);
/// Bytes of changes after which the whole state is written: they are in memory until then.
const SNAPSHOT_AFTER_BYTES: usize = 1 << 20;
/// What to do about a log that is not whole.
const RESTORE: &str = "restore the monitor's directory from the disk that had it";
/// Ticks in which the only voter is elected for certain.
const ELECTION_TICKS: u32 = 100;
const LOG: LogConfig = LogConfig { segment_bytes: 16 << 20, bytes_max: 64 << 20 };

/// The state in a log.
pub(super) struct Logged {
    dir: PathBuf,
    /// Holds the lock, and knows older formats.
    old: Embedded,
    /// Absent before the first save, and after a failure of the disk until the log is opened again.
    group: Option<Group>,
}

struct Group {
    host: Host,
    store: LogStore,
    /// As committed.
    state: MonitorState,
    /// To be kept; what a full disk did not take stays.
    unkept: Vec<Persist>,
    /// Of all changes since the last snapshot.
    change_bytes: usize,
}

impl Logged {
    /// Opens the directory, makes it if need be, and locks it.
    ///
    /// # Errors
    /// When it cannot be read, or another monitor uses it.
    pub fn open(dir: &Path) -> Result<Self, ControlError> {
        Ok(Self { dir: dir.join("replicas"), old: Embedded::open(dir)?, group: None })
    }

    /// The group as the disk has it; none if there is none.
    fn group(&mut self) -> Result<Option<&mut Group>, ControlError> {
        if self.group.is_none() && LogStore::replica_in(&self.dir).map_err(failed)?.is_some() {
            // a creation may have ended before this
            self.old.retire()?;
            self.group = Some(Group::open(&self.dir)?);
        }
        Ok(self.group.as_mut())
    }

    /// Makes the group, with this as its first state.
    fn begin(&mut self, state: &MonitorState) -> Result<(), ControlError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let incarnation = u64::try_from(since).unwrap_or(u64::MAX).clamp(1, INCARNATION_MAX);
        let replica = ReplicaId::new(NodeId(0), incarnation).expect("it was clamped");
        let first = Recovered::first(GROUP, Voters::of([replica]), protocol::encode(state));
        self.old.forget_retired()?;
        LogStore::create(&self.dir, replica, &[first], LOG).map_err(failed)?;
        self.group().map(drop)
    }
}

impl ControlPlane for Logged {
    fn load(&mut self) -> Result<Option<MonitorState>, ControlError> {
        if let Some(group) = self.group()? {
            return Ok(Some(group.state.clone()));
        }
        let state = self.old.load()?;
        if let Some(state) = &state {
            tracing::info!(dir = %self.dir.display(), "the monitor's state goes into a log");
            self.begin(state)?;
        }
        Ok(state)
    }

    fn save(&mut self, state: &MonitorState) -> Result<(), ControlError> {
        let Some(group) = self.group()? else { return self.begin(state) };
        let result = group.save(state);
        if group.store.is_poisoned() {
            self.group = None;
        }
        result
    }
}

impl Group {
    fn open(dir: &Path) -> Result<Self, ControlError> {
        let (store, mut recovered) = LogStore::open(dir, &[GROUP], LOG).map_err(failed)?;
        let bad = |what: String| failed(format!("{}: {what}: {RESTORE}", dir.display()));
        let snapshot =
            recovered[0].snapshot.as_ref().ok_or_else(|| bad("it has no state".into()))?;
        let state = decode(&snapshot.data).map_err(bad)?;
        let boot = (random_u128() as u64).max(1);
        let config = Config {
            replica: store.replica(),
            peers: vec![],
            boot,
            seed: boot,
            rules: Default::default(),
        };
        let host =
            Host::open(config, vec![recovered.swap_remove(0)], Duration::ZERO).map_err(failed)?;
        let mut group = Self { host, store, state, unkept: Vec::new(), change_bytes: 0 };
        // nobody else votes, so its election need not wait for time to pass
        for tick in 1..=ELECTION_TICKS {
            group.host.tick(TICK * tick);
            group.run()?;
            if matches!(
                group.host.status(GROUP).map(|status| status.role),
                Some(Role::Leader { .. })
            ) {
                group.state.check_invariants().map_err(bad)?;
                // a start begins a segment: without this they would be as many as there were starts
                if let Err(error) = group.snapshot() {
                    tracing::warn!(%error, "the monitor's state is not written whole, tried again with the next change");
                }
                return Ok(group);
            }
        }
        Err(bad("its only voter is another replica".into()))
    }

    fn save(&mut self, state: &MonitorState) -> Result<(), ControlError> {
        // what an earlier save could not keep comes first
        self.run()?;
        if state.map.epoch == self.state.map.epoch {
            return Ok(());
        }
        let delta = Bytes::from(StateDelta::between(&self.state, state).encode());
        let ticket = self.host.propose(GROUP, delta).map_err(failed)?;
        let committed = self
            .run()?
            .into_iter()
            .any(|settled| matches!(settled, (t, Outcome::Committed(_)) if t == ticket));
        if !committed || self.state.map.epoch != state.map.epoch {
            return Err(failed("a change was not committed"));
        }
        if self.change_bytes > SNAPSHOT_AFTER_BYTES { self.snapshot() } else { Ok(()) }
    }

    /// Writes the whole state; the log before it goes.
    fn snapshot(&mut self) -> Result<(), ControlError> {
        let applied = self.host.status(GROUP).map_or(0, |status| status.applied);
        if self.host.snapshot(GROUP, applied, protocol::encode(&self.state)) {
            self.change_bytes = 0;
            self.run()?;
        }
        Ok(())
    }

    /// Carries out all that the host wants. What was settled.
    fn run(&mut self) -> Result<Vec<(consensus::Ticket, Outcome)>, ControlError> {
        let mut settled = Vec::new();
        loop {
            let outputs: Vec<_> = self.host.outputs().collect();
            for output in outputs {
                match output {
                    Output::Persist(persist) => self.unkept.push(persist),
                    Output::Committed { entries, .. } => {
                        for entry in entries {
                            self.change_bytes += entry.data.len();
                            let delta = StateDelta::decode(&entry.data).map_err(failed)?;
                            delta.apply(&mut self.state).map_err(failed)?;
                        }
                    }
                    Output::Settled { ticket, outcome } => settled.push((ticket, outcome)),
                    Output::Send { .. }
                    | Output::Restored { .. }
                    | Output::SnapshotWanted { .. }
                    | Output::Role { .. } => {}
                }
            }
            let Some(last) = self.unkept.last().map(|persist| persist.number) else {
                return Ok(settled);
            };
            self.store.keep(&self.unkept).map_err(failed)?;
            self.unkept.clear();
            self.host.persisted(last, Duration::ZERO);
        }
    }
}

fn decode(data: &[u8]) -> Result<MonitorState, String> {
    let state: MonitorState =
        protocol::decode("monitor's state", data).map_err(|error| error.to_string())?;
    state.check_invariants()?;
    Ok(state)
}

fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> ControlError {
    ControlError::Log(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ExpectedOsd, PoolSpec, SessionState, create_cluster};
    use protocol::{ClusterId, Epoch, SessionId};
    use std::fs;

    fn first() -> MonitorState {
        let pool = PoolSpec::new("data", 2, 1, 512, 32).expect("a profile");
        create_cluster(ClusterId::new(1), &ExpectedOsd::first(4), &pool).expect("enough OSDs")
    }

    /// A session with a name of so many bytes, in the next epoch.
    fn more(state: &mut MonitorState, name_bytes: usize) {
        let (epoch, session) =
            (state.map.epoch.get() + 1, SessionId::new(state.map.last_session.get() + 1));
        (state.map.epoch, state.map.last_session) = (Epoch::new(epoch), session);
        state.map.sessions.insert(session, SessionState::Live);
        state.session_names.insert(session, "n".repeat(name_bytes));
    }

    fn open(dir: &Path) -> Result<(Logged, Option<MonitorState>), ControlError> {
        let mut logged = Logged::open(dir)?;
        let state = logged.load()?;
        Ok((logged, state))
    }

    #[test]
    fn what_was_saved_is_loaded_whole_or_as_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut logged, none) = open(dir.path()).expect("opened");
        assert_eq!(none, None);
        let mut state = first();
        logged.save(&state).expect("saved");
        for round in 0..3 {
            // across checksums of the whole, and across snapshots
            for _ in 0..200 {
                more(&mut state, 20 + 4000 * round);
                logged.save(&state).expect("saved");
            }
            drop(logged);
            let found;
            (logged, found) = open(dir.path()).expect("opened again");
            assert_eq!(found.as_ref(), Some(&state), "round {round}");
        }
        for _ in 0..10 {
            drop(logged);
            (logged, _) = open(dir.path()).expect("opened again");
            more(&mut state, 20);
            logged.save(&state).expect("saved");
        }
        let files = fs::read_dir(dir.path().join("replicas/log")).expect("a directory").count();
        assert!(files <= 5, "{files} files after as many starts");
        // nothing new is nothing written
        logged.save(&state).expect("saved");
        let refused = Logged::open(dir.path()).map(drop);
        assert!(matches!(refused, Err(ControlError::InUse { .. })), "{refused:?}");
    }

    #[test]
    fn a_directory_of_format_3_becomes_a_log_wherever_that_is_cut_short() {
        let mut state = first();
        more(&mut state, 10);
        for cut in ["before", "without its replica file", "not retired", "linked", "after"] {
            let dir = tempfile::tempdir().expect("a directory");
            Embedded::open(dir.path()).and_then(|mut old| old.save(&state)).expect("saved");
            let [file, last] = ["state", "state.format3"].map(|name| dir.path().join(name));
            let old = fs::read(&file).expect("a file");
            if cut != "before" {
                drop(open(dir.path()).expect("opened"));
                assert_eq!(fs::read(&last).expect("it stays"), old);
            }
            if cut == "without its replica file" {
                fs::remove_file(dir.path().join("replicas/replica")).expect("removed");
            }
            if cut != "before" && cut != "after" {
                fs::rename(&last, &file).expect("renamed");
            }
            if cut == "linked" {
                fs::hard_link(&file, &last).expect("linked");
            }
            let (mut logged, found) =
                open(dir.path()).unwrap_or_else(|error| panic!("{cut}: {error}"));
            assert_eq!(found.as_ref(), Some(&state), "{cut}");
            let mut next = state.clone();
            more(&mut next, 10);
            logged.save(&next).expect("saved");
            drop(logged);
            assert_eq!(open(dir.path()).expect("opened").1, Some(next), "{cut}");
            let refused = Embedded::open(dir.path()).and_then(|mut old| old.load());
            assert!(matches!(refused, Err(ControlError::Log(_))), "{cut}: {refused:?}");
        }
    }

    #[test]
    fn what_the_disk_refuses_is_saved_when_it_takes_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut logged, _) = open(dir.path()).expect("opened");
        let mut state = first();
        logged.save(&state).expect("saved");
        drop(logged);
        // no file can be made under this name
        let taken = dir.path().join("replicas/snapshot.0.new");
        fs::create_dir(&taken).expect("made");
        let (mut logged, found) = open(dir.path()).expect("it starts all the same");
        assert_eq!(found.as_ref(), Some(&state));
        for _ in 0..3 {
            more(&mut state, 10);
            let refused = logged.save(&state);
            assert!(matches!(refused, Err(ControlError::Log(_))), "{refused:?}");
        }
        fs::remove_dir(&taken).expect("removed");
        more(&mut state, 10);
        logged.save(&state).expect("saved, with what was refused before");
        drop(logged);
        assert_eq!(open(dir.path()).expect("opened").1, Some(state));
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut logged, _) = open(dir.path()).expect("opened");
        logged.save(&first()).expect("saved");
        drop(logged);
        // the log is gone
        fs::rename(dir.path().join("replicas"), dir.path().join("elsewhere")).expect("renamed");
        let refused = open(dir.path()).map(|(_, state)| state);
        assert!(matches!(refused, Err(ControlError::Log(_))), "{refused:?}");
        fs::rename(dir.path().join("elsewhere"), dir.path().join("replicas")).expect("renamed");
        assert_eq!(open(dir.path()).expect("opened").1, Some(first()));
        // an older state is put back beside it
        let other = tempfile::tempdir().expect("a directory");
        Embedded::open(other.path()).and_then(|mut old| old.save(&first())).expect("saved");
        for name in ["state", "state.format3"] {
            fs::copy(other.path().join("state"), dir.path().join(name)).expect("copied");
        }
        let refused = open(dir.path()).map(|(_, state)| state);
        assert!(matches!(refused, Err(ControlError::Log(_))), "{refused:?}");
        // the log is lost, and the operator goes back to the old state, knowing what that means
        fs::remove_dir_all(dir.path().join("replicas")).expect("removed");
        assert_eq!(open(dir.path()).expect("opened").1, Some(first()));
        // a byte of it differs
        let snapshot = other.path().join("replicas/snapshot.0");
        drop(open(other.path()).expect("opened"));
        let mut bytes = fs::read(&snapshot).expect("a file");
        bytes[40] ^= 1;
        fs::write(&snapshot, bytes).expect("written");
        let refused = open(other.path()).map(|(_, state)| state);
        assert!(matches!(refused, Err(ControlError::Log(_))), "{refused:?}");
    }

    #[test]
    #[ignore = "tells times: cargo test -p osd-daemon --lib logged -- --ignored --nocapture"]
    fn how_long_saves_take() {
        for pgs in [32, 4096] {
            let pool = PoolSpec::new("data", 2, 1, 512, pgs).expect("a profile");
            let state = create_cluster(ClusterId::new(1), &ExpectedOsd::first(64), &pool)
                .expect("enough OSDs");
            let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
            let mut planes: [Box<dyn ControlPlane>; 2] = [
                Box::new(Embedded::open(dirs[0].path()).expect("opened")),
                Box::new(Logged::open(dirs[1].path()).expect("opened")),
            ];
            for (plane, name) in planes.iter_mut().zip(["whole", "change"]) {
                let mut state = state.clone();
                plane.save(&state).expect("saved");
                let begin = std::time::Instant::now();
                for _ in 0..300 {
                    more(&mut state, 10);
                    plane.save(&state).expect("saved");
                }
                println!("{pgs} PGs, {name}: {:?} each", begin.elapsed() / 300);
            }
        }
    }
}
