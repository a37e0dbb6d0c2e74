//! The service as clients see it: leases, exactly-once, restarts, deaths.

mod extremes;
mod flags;
mod locks;
mod names;
mod power;
mod unnamed;

use super::*;
use crate::acl::{Acl, Entry, Tag};
use crate::store::MemoryStore;
use protocol::namespace::{Caller, Grant, Held};
use protocol::{Epoch, PoolId};

const A: SessionId = SessionId::new(1);
const B: SessionId = SessionId::new(2);
const POOL: PoolId = PoolId::new(1);
/// What the clock says when a session is seen to be dead, in seconds.
const DEATH: i64 = 20;

/// A service with its clock and the clients' request numbers.
struct Rig {
    store: MemoryStore,
    service: Service<MemoryStore>,
    now: u64,
    numbers: HashMap<SessionId, u64>,
    token: u64,
    /// Of the map that the clients have.
    epoch: Epoch,
}

fn view(live: &[SessionId], dead: &[SessionId]) -> SessionView {
    let (live, dead) = (live.iter().copied().collect(), dead.iter().copied().collect());
    SessionView { live, dead, epoch: Epoch::new(3), last: SessionId::new(9) }
}

fn wall(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

impl Rig {
    fn new() -> Self {
        let store = MemoryStore::default();
        let service =
            Service::open(store.clone(), ServiceConfig::default(), wall(0)).expect("open");
        let mut rig = Self {
            store,
            service,
            now: 0,
            numbers: HashMap::new(),
            token: 0,
            epoch: Epoch::default(),
        };
        rig.sessions(&[A, B], &[]);
        rig
    }

    fn restart(&mut self) {
        self.service =
            Service::open(self.store.clone(), ServiceConfig::default(), wall(0)).expect("open");
        self.now = 0;
    }

    fn sessions(&mut self, live: &[SessionId], dead: &[SessionId]) -> Vec<Event> {
        self.service
            .sessions_changed(Duration::from_millis(self.now), wall(DEATH), view(live, dead))
            .expect("store works");
        self.turn()
    }

    fn turn(&mut self) -> Vec<Event> {
        self.service.leases().check_invariants();
        let events = self.service.finish_turn().expect("store works");
        if events.iter().any(|event| matches!(event, Event::Sync { .. })) {
            self.sync();
        }
        events
    }

    /// Brings what was committed to the disk.
    fn sync(&mut self) {
        self.service.sync().expect("store works");
    }

    /// The service is started again on a machine that has lost its power.
    fn lose_power(&mut self) {
        self.store.lose_power();
        self.restart();
        self.sessions(&[A, B], &[]);
    }

    /// Makes a file with a write lease; gives it with the token.
    fn write_new(&mut self, session: SessionId, name: &str) -> (Gfid, u64) {
        match self.call(session, create(name, Some(LeaseMode::Write))) {
            Reply::Opened { attr, grant: Some(grant) } => (attr.gfid, grant.token),
            other => panic!("{other:?}"),
        }
    }

    fn pass(&mut self, ms: u64) -> Vec<Event> {
        self.now += ms;
        self.service.tick(Duration::from_millis(self.now)).expect("store works");
        self.turn()
    }

    fn send(&mut self, session: SessionId, op: NamespaceOp) -> (u64, Vec<Event>) {
        let number = self.numbers.entry(session).or_default();
        *number += 1;
        let number = *number;
        (number, self.send_as(session, number, op))
    }

    fn send_as(&mut self, session: SessionId, number: u64, op: NamespaceOp) -> Vec<Event> {
        self.token += 1;
        let caller = Caller { uid: 0, gid: 0, now: wall(5) };
        let request = Request { session, number, answered: 0, epoch: self.epoch, caller, op };
        self.service
            .submit(Duration::from_millis(self.now), self.token, request)
            .expect("store works");
        self.turn()
    }

    fn call(&mut self, session: SessionId, op: NamespaceOp) -> Reply {
        let (_, events) = self.send(session, op);
        self.answer(&events)
    }

    /// The answer to the last request.
    fn answer(&self, events: &[Event]) -> Reply {
        let mut answers = events.iter().filter_map(|event| match event {
            Event::Reply { token, reply } | Event::Sync { token, reply }
                if *token == self.token =>
            {
                Some(reply.clone())
            }
            _ => None,
        });
        answers.next().unwrap_or_else(|| panic!("no answer among {events:?}"))
    }

    fn create(&mut self, session: SessionId, name: &str, open: Option<LeaseMode>) -> Attr {
        match self.call(session, create(name, open)) {
            Reply::Attr(attr) | Reply::Opened { attr, .. } => attr,
            other => panic!("{other:?}"),
        }
    }

    fn purges(&mut self) -> Vec<PurgeEntry> {
        self.service.purge_next(None, 100).expect("store works")
    }

    fn check(&self) {
        assert_eq!(self.service.namespace().verify().expect("store works"), Vec::<String>::new());
    }
}

fn create(name: &str, open: Option<LeaseMode>) -> NamespaceOp {
    NamespaceOp::Create {
        parent: Gfid::ROOT,
        name: name.into(),
        kind: FileKind::Regular,
        mode: 0o644,
        umask: 0,
        rdev: 0,
        target: vec![],
        pool: POOL,
        open,
    }
}

fn reclaim(held: Vec<Held>) -> NamespaceOp {
    NamespaceOp::Reclaim {
        held,
        locks: vec![],
        mount: false,
        since: u64::MAX,
        begun: 0,
        last: true,
    }
}

/// What a session holds of a file by a grant with that token.
fn held(gfid: Gfid, mode: LeaseMode, token: u64, open: bool) -> Held {
    Held { gfid, lease: Some((mode, token)), open }
}

fn unlink(name: &str) -> NamespaceOp {
    NamespaceOp::Unlink { parent: Gfid::ROOT, name: name.into(), gives: None }
}

fn lookup(name: &str) -> NamespaceOp {
    NamespaceOp::Lookup { parent: Gfid::ROOT, name: name.into() }
}

fn sized(size: u64) -> SetAttr {
    SetAttr { size: Some(size), mtime: Some(wall(77)), ..SetAttr::default() }
}

fn give_back(gfid: Gfid, keep: Option<LeaseMode>, set: SetAttr) -> NamespaceOp {
    NamespaceOp::ReturnLease { gfid, keep, set }
}

fn recalls(events: &[Event]) -> Vec<(SessionId, Option<LeaseMode>)> {
    let recall = |event: &Event| match event {
        Event::Recall { session, recall } => Some((*session, recall.keep)),
        _ => None,
    };
    events.iter().filter_map(recall).collect()
}

#[test]
fn a_grant_names_a_map_as_new_as_that_of_anybody_who_spoke() {
    let mut rig = Rig::new();
    let opened = |reply: Reply| match reply {
        Reply::Opened { attr, grant: Some(grant) } => (attr.gfid, grant),
        other => panic!("{other:?}"),
    };
    let (file, first) = opened(rig.call(A, create("file", Some(LeaseMode::Write))));
    assert_eq!(first.epoch, Epoch::new(3), "that of the service");
    // The writer has a map that has not come to the service yet.
    rig.epoch = Epoch::new(7);
    let returned = || NamespaceOp::ReturnLease { gfid: file, keep: None, set: SetAttr::default() };
    assert_eq!(rig.call(A, returned()), Reply::TryAgain);
    let newer = SessionView { epoch: Epoch::new(7), ..view(&[A, B], &[]) };
    rig.service
        .sessions_changed(Duration::from_millis(rig.now), wall(0), newer)
        .expect("store works");
    assert_eq!(rig.call(A, returned()), Reply::Done);
    rig.epoch = Epoch::new(3);
    let (_, second) = opened(rig.call(B, NamespaceOp::Open { gfid: file, lease: LeaseMode::Read }));
    assert_eq!(second.epoch, Epoch::new(7), "an older map may lead to a shard without the writes");
}

#[test]
fn what_a_session_says_of_epochs_counts_for_nobody_else() {
    let mut rig = Rig::new();
    for said in [Epoch::new(4), Epoch::new(1 << 32), Epoch::new(u64::MAX)] {
        rig.epoch = said;
        assert_eq!(rig.call(A, create("a", Some(LeaseMode::Write))), Reply::TryAgain);
    }
    rig.epoch = Epoch::default();
    let Reply::Opened { grant: Some(grant), .. } = rig.call(B, create("b", Some(LeaseMode::Write)))
    else {
        panic!("not opened")
    };
    assert_eq!(grant.epoch, Epoch::new(3));
}

#[test]
fn stat_by_another_session_sees_what_the_writer_wrote() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    for op in [NamespaceOp::GetAttr { gfid }, lookup("f")] {
        rig.call(A, NamespaceOp::Open { gfid, lease: LeaseMode::Write });
        let (_, events) = rig.send(B, op);
        assert_eq!(recalls(&events), [(A, Some(LeaseMode::Read))]);
        let waiting = rig.token;
        let (_, events) = rig.send(A, give_back(gfid, Some(LeaseMode::Read), sized(1234)));
        rig.token = waiting;
        assert!(
            matches!(rig.answer(&events), Reply::Attr(attr) if attr.size == 1234 && attr.mtime == wall(77))
        );
    }
    rig.check();
}

#[test]
fn truncate_by_another_session_comes_after_the_writers_last_words() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    let (_, events) = rig.send(B, NamespaceOp::SetAttr { gfid, set: sized(10), sync: false });
    assert_eq!(recalls(&events), [(A, None)]);
    let waiting = rig.token;
    let (_, events) = rig.send(A, give_back(gfid, None, sized(999)));
    rig.token = waiting;
    assert!(matches!(rig.answer(&events), Reply::Attr(attr) if attr.size == 10));
    let listed = rig.call(A, NamespaceOp::ReadDir { gfid: Gfid::ROOT, after: vec![], limit: 10 });
    assert!(matches!(listed, Reply::Entries { entries, end: true } if entries[0].attr.size == 10));
}

#[test]
fn silent_writer_makes_the_other_ask_again() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    let op = NamespaceOp::Open { gfid, lease: LeaseMode::Write };
    let (number, _) = rig.send(B, op.clone());
    let events = rig.pass(4000);
    assert_eq!(rig.answer(&events), Reply::TryAgain);
    rig.send_as(B, number, op.clone());
    let first = rig.token;
    let events = rig.send_as(B, number, op); // the connection was lost: the same request again
    assert_eq!(events, [Event::Reply { token: first, reply: Reply::TryAgain }]);
    let waiting = rig.token;
    let (_, events) = rig.send(A, give_back(gfid, None, SetAttr::default()));
    rig.token = waiting;
    assert!(matches!(
        rig.answer(&events),
        Reply::Opened { grant: Some(Grant { mode: LeaseMode::Write, .. }), .. }
    ));
}

#[test]
fn resent_requests_happen_once_also_across_a_restart() {
    let mut rig = Rig::new();
    let (number, events) = rig.send(A, create("f", None));
    let first = rig.answer(&events);
    let events = rig.send_as(A, number, create("f", None));
    assert_eq!(rig.answer(&events), first);
    let rename = NamespaceOp::Rename {
        parent: Gfid::ROOT,
        name: b"f".to_vec(),
        new_parent: Gfid::ROOT,
        new_name: b"g".to_vec(),
        mode: Default::default(),
    };
    let (renamed, events) = rig.send(A, rename.clone());
    assert_eq!(rig.answer(&events), Reply::Done);
    rig.restart();
    rig.sessions(&[A, B], &[]);
    for (number, op, want) in [(number, create("f", None), first), (renamed, rename, Reply::Done)] {
        let events = rig.send_as(A, number, op);
        assert_eq!(rig.answer(&events), want);
    }
    assert_eq!(rig.call(A, lookup("f")), Reply::Errno(libc::ENOENT));
    rig.check();
}

#[test]
fn answers_go_when_the_session_has_them_or_is_gone() {
    let mut rig = Rig::new();
    rig.create(A, "warm", None);
    rig.create(B, "up", None);
    let before = rig.store.len();
    for i in 0..50 {
        let name = i.to_string();
        rig.create(A, &name, None);
        assert_eq!(rig.call(A, unlink(&name)), Reply::Done);
    }
    for entry in rig.purges() {
        rig.service.purged(entry.gfid).expect("store works");
    }
    rig.turn();
    assert_eq!(rig.store.len(), before + 100);
    let caller = Caller { uid: 0, gid: 0, now: wall(5) };
    let number = rig.numbers[&A];
    let request = Request {
        session: A,
        number: number + 1,
        answered: number,
        epoch: Epoch::default(),
        caller,
        op: NamespaceOp::StatFs,
    };
    rig.service.submit(Duration::ZERO, 0, request).expect("store works");
    rig.turn();
    assert_eq!(rig.store.len(), before - 1);
    rig.sessions(&[A], &[]);
    assert_eq!(rig.store.len(), before - 3, "the session and its answer");
}

#[test]
fn a_session_that_says_it_has_every_answer_gets_no_more() {
    let mut rig = Rig::new();
    rig.create(A, "f", None);
    let caller = Caller { uid: 0, gid: 0, now: wall(5) };
    let request = Request {
        session: A,
        number: u64::MAX,
        answered: u64::MAX,
        epoch: Epoch::default(),
        caller,
        op: NamespaceOp::StatFs,
    };
    rig.token += 1;
    rig.service.submit(Duration::ZERO, rig.token, request).expect("store works");
    let events = rig.turn();
    assert_eq!(rig.answer(&events), Reply::Errno(libc::EINVAL));
    assert_eq!(rig.call(A, lookup("f")), Reply::Errno(libc::EINVAL));
    assert!(matches!(rig.call(B, lookup("f")), Reply::Attr(_)));
}

#[test]
fn open_file_outlives_its_name_until_the_last_close() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    rig.call(A, give_back(gfid, None, sized(100)));
    rig.call(B, NamespaceOp::Open { gfid, lease: LeaseMode::Read });
    assert_eq!(rig.call(B, unlink("f")), Reply::Done);
    assert_eq!(rig.call(A, NamespaceOp::Close { gfid }), Reply::Done);
    assert!(
        matches!(rig.call(B, NamespaceOp::GetAttr { gfid }), Reply::Attr(attr) if attr.nlink == 0)
    );
    assert_eq!(rig.purges(), []);
    rig.check();
    rig.call(B, NamespaceOp::Close { gfid });
    assert_eq!(rig.purges(), [PurgeEntry { gfid, pool: POOL, size: 100, probe: false }]);
    rig.service.purged(gfid).expect("store works");
    rig.turn();
    assert_eq!(rig.purges(), []);
    rig.check();
}

#[test]
fn a_writer_is_asked_for_its_changes_before_another_mount_makes_one() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    let chmod = |mode| NamespaceOp::SetAttr {
        gfid,
        set: SetAttr { mode: Some(mode), ..SetAttr::default() },
        sync: false,
    };
    assert!(
        matches!(rig.call(A, chmod(0o640)), Reply::Attr(attr) if attr.mode == 0o640),
        "its own"
    );
    let (_, events) = rig.send(B, chmod(0o600));
    assert_eq!(recalls(&events), [(A, Some(LeaseMode::Read))]);
    assert!(matches!(rig.call(A, chmod(0o644)), Reply::Attr(_)), "told in time");
    rig.call(A, give_back(gfid, Some(LeaseMode::Read), sized(5)));
    assert!(
        matches!(rig.call(A, NamespaceOp::GetAttr { gfid }), Reply::Attr(attr) if attr.mode == 0o600)
    );
    rig.check();
}

#[test]
fn a_writer_is_asked_before_another_mount_sets_an_acl() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    let entries =
        [(Tag::UserObj, 6), (Tag::User(7), 4), (Tag::GroupObj, 0), (Tag::Mask, 4), (Tag::Other, 0)];
    let acl = Acl::new(entries.map(|(tag, permissions)| Entry { tag, permissions }).to_vec())
        .expect("well-formed");
    let (name, value) = (ACL_ACCESS.to_vec(), acl.encode());
    let (_, events) =
        rig.send(B, NamespaceOp::SetXattr { gfid, name, value, create: None, kill_sgid: false });
    assert_eq!(
        recalls(&events),
        [(A, Some(LeaseMode::Read))],
        "it may know a mode that the service does not"
    );
    let kept = SetAttr { mode: Some(0o666), ..sized(5) };
    rig.call(A, give_back(gfid, Some(LeaseMode::Read), kept));
    assert!(
        matches!(rig.call(A, NamespaceOp::GetAttr { gfid }), Reply::Attr(attr) if attr.mode == 0o640)
    );
    rig.check();
}

#[test]
fn unlinked_file_is_not_purged_while_it_may_still_be_written() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    rig.call(A, NamespaceOp::Close { gfid });
    let (_, events) = rig.send(B, unlink("f"));
    assert_eq!(recalls(&events), [(A, None)]);
    assert_eq!(rig.purges(), []);
    rig.call(A, give_back(gfid, None, sized(5)));
    assert_eq!(rig.purges(), [PurgeEntry { gfid, pool: POOL, size: 5, probe: false }]);
    rig.check();
}

fn unlink_giving(name: &str, gfid: Gfid) -> NamespaceOp {
    NamespaceOp::Unlink { parent: Gfid::ROOT, name: name.into(), gives: Some(gfid) }
}

#[test]
fn a_lease_that_is_given_back_with_the_last_name_need_not_be_asked_for() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    rig.call(A, NamespaceOp::SetAttr { gfid, set: sized(7), sync: false });
    rig.call(A, NamespaceOp::Close { gfid });
    let (number, events) = rig.send(A, unlink_giving("f", gfid));
    assert_eq!((rig.answer(&events), recalls(&events)), (Reply::Done, vec![]));
    assert_eq!(rig.purges(), [PurgeEntry { gfid, pool: POOL, size: 7, probe: false }]);
    assert!(rig.service.leases().is_empty());
    assert_eq!(rig.service.namespace().retained().expect("store works").writers, []);
    let events = rig.send_as(A, number, unlink_giving("f", gfid));
    assert_eq!(rig.answer(&events), Reply::Done, "asked again");
    rig.check();
}

#[test]
fn a_lease_given_back_with_a_name_goes_only_if_the_name_does() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    rig.call(A, NamespaceOp::Close { gfid });
    assert_eq!(rig.call(A, unlink_giving("g", gfid)), Reply::Errno(libc::ENOENT));
    assert_eq!(rig.service.leases().writer(gfid), Some(A));
    rig.call(A, NamespaceOp::Link { gfid, parent: Gfid::ROOT, name: b"g".to_vec() });
    assert_eq!(rig.call(A, unlink_giving("g", gfid)), Reply::Done);
    assert_eq!(rig.service.leases().writer(gfid), None);
    assert!(matches!(rig.call(B, lookup("f")), Reply::Attr(attr) if attr.nlink == 1));
    assert_eq!(rig.purges(), []);
    rig.check();
}

#[test]
fn a_file_that_others_have_open_outlives_a_lease_given_back_with_its_name() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    rig.call(A, NamespaceOp::Close { gfid });
    rig.call(A, give_back(gfid, Some(LeaseMode::Read), sized(9)));
    rig.call(B, NamespaceOp::Open { gfid, lease: LeaseMode::Read });
    assert_eq!(rig.call(A, unlink_giving("f", gfid)), Reply::Done);
    assert_eq!((rig.service.leases().held(gfid, A), rig.purges()), (None, vec![]));
    rig.check();
    rig.call(B, NamespaceOp::Close { gfid });
    assert_eq!(rig.purges(), [PurgeEntry { gfid, pool: POOL, size: 9, probe: false }]);
    rig.check();
}

#[test]
fn dead_writers_file_waits_for_resolution_and_size() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    rig.sessions(&[B], &[A]);
    let (_, events) = rig.send(B, NamespaceOp::Open { gfid, lease: LeaseMode::Write });
    assert_eq!(events, []);
    assert_eq!(
        rig.send_as(A, 90, lookup("f")),
        [Event::Reply { token: rig.token, reply: Reply::Fenced }]
    );
    rig.token -= 1;
    assert_eq!(rig.sessions(&[B], &[]), []);
    let recovery = rig.service.size_recovery_next(None, 10).expect("store works");
    assert_eq!(recovery, [SizeRecovery { gfid, pool: POOL, size: 0 }]);
    rig.service.size_recovered(Duration::ZERO, gfid, 4096, wall(6)).expect("store works");
    let events = rig.turn();
    assert!(matches!(rig.answer(&events), Reply::Opened { attr, .. } if attr.size == 4096));
    assert_eq!(rig.service.size_recovery_next(None, 10).expect("store works"), []);
    rig.check();
}

fn written(rig: &mut Rig, gfid: Gfid, mtime: Timestamp, times_follow: bool) {
    let set = SetAttr {
        size: Some(4),
        mtime: Some(mtime),
        ctime: Some(mtime),
        times_follow,
        ..SetAttr::default()
    };
    rig.call(A, NamespaceOp::SetAttr { gfid, set, sync: false });
}

/// Modification and change time once session A is dead, closed files and all.
fn times_after_death(rig: &mut Rig, gfid: Gfid) -> (Timestamp, Timestamp) {
    rig.sessions(&[B], &[A]);
    rig.sessions(&[B], &[]);
    rig.service.size_recovered(Duration::ZERO, gfid, 4, wall(30)).expect("store works");
    let Reply::Attr(attr) = rig.call(B, NamespaceOp::GetAttr { gfid }) else {
        panic!("no such file")
    };
    rig.check();
    (attr.mtime, attr.ctime)
}

#[test]
fn times_that_were_to_follow_are_those_of_the_death_also_after_a_restart() {
    for restarts in [false, true] {
        let mut rig = Rig::new();
        let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
        written(&mut rig, gfid, wall(7), true);
        rig.call(
            A,
            NamespaceOp::SetAttr {
                gfid,
                set: SetAttr { mode: Some(0o600), ..SetAttr::default() },
                sync: false,
            },
        );
        let term = rig.service.alone_term();
        if restarts {
            rig.restart();
        }
        assert_eq!(times_after_death(&mut rig, gfid), (wall(DEATH), wall(DEATH)));
        assert_ne!(rig.service.alone_term(), term, "whoever knows older times forgets them");
    }
}

#[test]
fn a_death_moves_no_times_that_were_told_and_none_back() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    written(&mut rig, gfid, wall(7), true);
    written(&mut rig, gfid, wall(8), false);
    assert_eq!(times_after_death(&mut rig, gfid), (wall(8), wall(8)));
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    written(&mut rig, gfid, wall(DEATH + 1), true);
    assert_eq!(
        times_after_death(&mut rig, gfid),
        (wall(DEATH + 1), wall(DEATH + 1)),
        "its clock is ahead"
    );
}

#[test]
fn times_follow_only_a_writer_and_a_ctime_does_not_go_back() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    written(&mut rig, gfid, wall(2), false);
    rig.call(A, give_back(gfid, Some(LeaseMode::Read), SetAttr::default()));
    let set = SetAttr {
        mtime: Some(wall(3)),
        ctime: Some(wall(3)),
        times_follow: true,
        ..SetAttr::default()
    };
    rig.call(A, NamespaceOp::SetAttr { gfid, set, sync: false });
    rig.call(A, NamespaceOp::Open { gfid, lease: LeaseMode::Write });
    let times = times_after_death(&mut rig, gfid);
    let moved = Timestamp { nanos: 2, ..wall(5) };
    assert_eq!(
        times,
        (wall(3), moved),
        "created at 5, which the writer did not know, and changed twice since"
    );
}

#[test]
fn a_told_ctime_moves_on_into_the_next_second() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    written(&mut rig, gfid, Timestamp { nanos: 999_999_999, ..wall(7) }, false);
    written(&mut rig, gfid, wall(6), false);
    written(&mut rig, gfid, wall(6), false);
    let Reply::Attr(attr) = rig.call(A, NamespaceOp::GetAttr { gfid }) else {
        panic!("no such file")
    };
    assert_eq!(
        (attr.mtime, attr.ctime),
        (wall(6), wall(8)),
        "once: the last telling changed nothing"
    );
}

#[test]
fn size_that_cannot_be_recovered_holds_nobody_for_long_and_is_probed_at_the_end() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    rig.sessions(&[B], &[]);
    rig.send(B, NamespaceOp::Open { gfid, lease: LeaseMode::Write });
    let events = rig.pass(3000);
    assert!(matches!(rig.answer(&events), Reply::Opened { .. }));
    rig.service.size_recovered(Duration::ZERO, gfid, 4096, wall(6)).expect("store works");
    assert!(
        matches!(rig.call(B, NamespaceOp::GetAttr { gfid }), Reply::Attr(attr) if attr.size == 0)
    );
    rig.call(B, unlink("f"));
    rig.call(B, NamespaceOp::Close { gfid });
    rig.call(B, give_back(gfid, None, SetAttr::default()));
    assert!(rig.purges()[0].probe, "there may be data beyond the size");
    rig.check();
}

#[test]
fn restart_waits_for_those_that_were_there() {
    let mut rig = Rig::new();
    let (written, token) = rig.write_new(A, "w");
    let orphan = rig.create(A, "o", Some(LeaseMode::Read)).gfid;
    rig.create(B, "b", None);
    rig.call(A, unlink("o"));
    rig.restart();
    assert_eq!(rig.call(B, lookup("b")), Reply::TryAgain, "no map yet");
    rig.sessions(&[A, B], &[]);
    assert_eq!(rig.call(B, unlink("w")), Reply::TryAgain);
    assert!(matches!(rig.call(B, reclaim(vec![])), Reply::Kept { .. }));
    assert_eq!(rig.call(B, unlink("w")), Reply::TryAgain);
    let held = vec![
        held(written, LeaseMode::Write, token, true),
        held(orphan, LeaseMode::Read, token + 1, true),
    ];
    assert!(matches!(rig.call(A, reclaim(held)), Reply::Kept { .. }));
    assert!(!rig.service.in_grace());
    assert!(matches!(rig.call(A, NamespaceOp::GetAttr { gfid: orphan }), Reply::Attr(_)));
    let (_, events) = rig.send(B, NamespaceOp::Open { gfid: written, lease: LeaseMode::Read });
    assert_eq!(recalls(&events), [(A, Some(LeaseMode::Read))]);
    rig.check();
}

#[test]
fn restart_does_not_wait_for_the_dead_and_reaps_their_orphans() {
    let mut rig = Rig::new();
    let orphan = rig.create(A, "o", Some(LeaseMode::Read)).gfid;
    rig.call(A, unlink("o"));
    rig.restart();
    rig.sessions(&[B], &[]);
    assert!(!rig.service.in_grace());
    assert_eq!(rig.purges().iter().map(|p| p.gfid).collect::<Vec<_>>(), [orphan]);
    rig.check();
}

#[test]
fn resent_create_takes_its_lease_again_after_a_restart() {
    let mut rig = Rig::new();
    let op = create("f", Some(LeaseMode::Write));
    let (number, events) = rig.send(A, op.clone());
    let Reply::Opened { attr, grant: Some(first) } = rig.answer(&events) else {
        panic!("{events:?}")
    };
    rig.restart();
    rig.sessions(&[A, B], &[]);
    rig.call(A, reclaim(vec![]));
    let events = rig.send_as(A, number, op);
    let Reply::Opened { attr: again, grant: Some(grant) } = rig.answer(&events) else {
        panic!("{events:?}")
    };
    assert_eq!((again, grant.mode), (attr, LeaseMode::Write));
    assert!(grant.token > first.token, "fencing tokens grow over a restart");
    assert_eq!(rig.service.leases().writer(attr.gfid), Some(A));
    assert!(rig.service.leases().is_open(attr.gfid));
}

#[test]
fn full_disk_refuses_growth_only() {
    let mut rig = Rig::new();
    rig.create(A, "f", None);
    rig.service.set_full(true);
    assert_eq!(rig.call(A, create("g", None)), Reply::Errno(libc::ENOSPC));
    assert_eq!(rig.call(A, unlink("f")), Reply::Done);
    rig.service.set_full(false);
    rig.create(A, "g", None);
}

#[test]
fn attributes_may_be_set_and_synced_in_one_request() {
    let mut rig = Rig::new();
    let gfid = rig.create(A, "f", Some(LeaseMode::Write)).gfid;
    let op = NamespaceOp::SetAttr { gfid, set: sized(10), sync: true };
    let synced = |rig: &Rig, events: &[Event]| match events {
        [Event::Sync { token, reply: Reply::Attr(attr) }] => *token == rig.token && attr.size == 10,
        _ => false,
    };
    let (number, events) = rig.send(A, op.clone());
    assert!(synced(&rig, &events), "{events:?}");
    let events = rig.send_as(A, number, op); // the connection was lost: perhaps before the sync
    assert!(synced(&rig, &events), "{events:?}");
    let missing = NamespaceOp::SetAttr { gfid: Gfid::of_inode(999), set: sized(10), sync: true };
    assert!(matches!(rig.call(A, missing), Reply::Errno(_)), "nothing to wait for");
    rig.check();
}
