//! By example, and against one owner-and-mode per byte.

use super::*;
use proptest::prelude::*;
use protocol::lock::LockOwner;
use protocol::namespace::LeaseMode::{self, Read, Write};
use std::collections::BTreeMap;

const F: Gfid = Gfid::new(7);
const G: Gfid = Gfid::new(8);
const NOW: Duration = Duration::from_secs(1);

fn holder(session: u64, owner: u64) -> Holder {
    Holder { session: SessionId::new(session), owner: LockOwner(owner) }
}

fn lock(start: u64, last: u64, mode: LeaseMode) -> RangeLock {
    RangeLock { range: ByteRange { start, last }, mode, pid: 1 }
}

fn ranges(locks: &Locks, gfid: Gfid, of: Holder) -> Vec<(u64, u64, LeaseMode)> {
    let held = locks.table().of(gfid).iter().filter(|held| held.holder == of);
    let mut all: Vec<_> =
        held.map(|h| (h.lock.range.start, h.lock.range.last, h.lock.mode)).collect();
    all.sort_by_key(|(start, ..)| *start);
    all
}

#[test]
fn locks_of_one_holder_split_and_merge() {
    let (mut locks, a) = (Locks::default(), holder(1, 1));
    locks.set(F, a, lock(0, 99, Write));
    locks.set(F, a, lock(40, 59, Read));
    assert_eq!(ranges(&locks, F, a), [(0, 39, Write), (40, 59, Read), (60, 99, Write)]);
    locks.set(F, a, lock(40, 59, Write));
    assert_eq!(ranges(&locks, F, a), [(0, 99, Write)]);
    locks.clear(F, a, ByteRange { start: 10, last: 19 });
    assert_eq!(ranges(&locks, F, a), [(0, 9, Write), (20, 99, Write)]);
    locks.clear(F, a, ByteRange::ALL);
    assert!(!locks.table().holds_any(a));
    locks.check_invariants();
}

#[test]
fn waits_are_served_in_turn_and_readers_do_not_pass_a_writer() {
    let mut locks = Locks::default();
    let [a, b, c, d] = [1, 2, 3, 4].map(|session| holder(session, 1));
    assert_eq!(locks.set(F, a, lock(0, 9, Read)), Answer::Held);
    assert_eq!(locks.wait(NOW, F, b, lock(0, 9, Write), WaitId(1)), Answer::Busy);
    assert_eq!(
        locks.wait(NOW, F, c, lock(5, 5, Read), WaitId(1)),
        Answer::Busy,
        "behind the writer"
    );
    assert_eq!(locks.set(F, d, lock(5, 5, Read)), Answer::Held, "a try passes");
    locks.clear(F, a, ByteRange::ALL);
    assert_eq!(locks.take_granted(), []);
    locks.clear(F, d, ByteRange::ALL);
    assert_eq!(locks.take_granted(), [(b.session, WaitId(1))]);
    assert_eq!(
        locks.wait(NOW, F, b, lock(0, 9, Write), WaitId(1)),
        Answer::Held,
        "asked again, it says so"
    );
    locks.close(F, b);
    assert_eq!(locks.take_granted(), [(c.session, WaitId(1))]);
    locks.check_invariants();
}

#[test]
fn who_holds_a_lock_does_not_stand_in_line_behind_who_waits_for_it() {
    let mut locks = Locks::default();
    let (a, b) = (holder(1, 1), holder(2, 1));
    locks.set(F, a, lock(0, 9, Read));
    assert_eq!(locks.wait(NOW, F, b, lock(0, 19, Write), WaitId(1)), Answer::Busy);
    assert_eq!(locks.wait(NOW, F, a, lock(10, 19, Read), WaitId(2)), Answer::Held);
}

#[test]
fn a_circle_is_a_deadlock_also_over_files_and_mounts() {
    let mut locks = Locks::default();
    let [a, b, c] = [1, 2, 3].map(|session| holder(session, 1));
    locks.set(F, a, lock(0, 0, Write));
    locks.set(F, b, lock(1, 1, Write));
    locks.set(G, c, lock(0, 0, Write));
    assert_eq!(locks.wait(NOW, F, a, lock(1, 1, Write), WaitId(1)), Answer::Busy);
    assert_eq!(locks.wait(NOW, G, b, lock(0, 0, Read), WaitId(1)), Answer::Busy);
    assert_eq!(locks.wait(NOW, F, c, lock(0, 0, Read), WaitId(1)), Answer::Deadlock);
    assert_eq!(locks.wait(NOW, F, c, lock(2, 2, Read), WaitId(1)), Answer::Held);
    locks.clear(G, c, ByteRange::ALL);
    assert_eq!(locks.take_granted(), [(b.session, WaitId(1))]);
    locks.check_invariants();
}

#[test]
fn a_wait_given_up_is_never_granted() {
    let mut locks = Locks::default();
    let [a, b, c] = [1, 2, 3].map(|session| holder(session, 1));
    locks.set(F, a, lock(0, 9, Write));
    locks.wait(NOW, F, b, lock(0, 9, Write), WaitId(1));
    locks.wait(NOW, F, c, lock(0, 9, Write), WaitId(1));
    assert!(locks.cancel(F, b.session, WaitId(1)));
    assert!(!locks.cancel(F, b.session, WaitId(1)));
    locks.tick(NOW + LocksConfig::default().wait_keep);
    locks.clear(F, a, ByteRange::ALL);
    assert_eq!(locks.take_granted(), [], "nobody asked for the other again");
    assert!(locks.table().of(F).is_empty());
}

#[test]
fn a_dead_session_keeps_its_locks_until_it_is_resolved() {
    let mut locks = Locks::default();
    let (a, b) = (holder(1, 1), holder(2, 1));
    locks.set(F, a, lock(0, 9, Write));
    locks.wait(NOW, F, b, lock(0, 9, Write), WaitId(1));
    locks.fence(a.session);
    assert_eq!(locks.take_granted(), []);
    locks.end_session(a.session);
    assert_eq!(locks.take_granted(), [(b.session, WaitId(1))]);
    assert!(!locks.reclaim(F, a, lock(3, 3, Read)), "too late");
    locks.forget(F);
    locks.check_invariants();
}

/// One step of the random walk.
#[derive(Clone, Debug)]
enum Step {
    Set(RangeLock),
    Wait(RangeLock),
    Clear(ByteRange),
    Close,
    End,
}

fn steps() -> impl Strategy<Value = Vec<(u64, u64, Step)>> {
    let range = (0u64..12, 0u64..6).prop_map(|(start, len)| ByteRange { start, last: start + len });
    let any_lock = (range.clone(), any::<bool>()).prop_map(|(range, write)| RangeLock {
        range,
        mode: if write { Write } else { Read },
        pid: 1,
    });
    let step = prop_oneof![
        4 => any_lock.clone().prop_map(Step::Set),
        4 => any_lock.prop_map(Step::Wait),
        4 => range.prop_map(Step::Clear),
        1 => Just(Step::Close),
        1 => Just(Step::End),
    ];
    prop::collection::vec((0u64..3, 0u64..2, step), 1..60)
}

/// One mode per byte and holder.
type Bytes = BTreeMap<(Holder, u64), LeaseMode>;

fn paint(bytes: &mut Bytes, who: Holder, range: ByteRange, mode: Option<LeaseMode>) {
    for at in range.start..=range.last.min(63) {
        match mode {
            Some(mode) => drop(bytes.insert((who, at), mode)),
            None => drop(bytes.remove(&(who, at))),
        }
    }
}

fn free(bytes: &Bytes, who: Holder, lock: &RangeLock) -> bool {
    let clash = |((other, at), mode): (&(Holder, u64), &LeaseMode)| {
        *other != who
            && (lock.range.start..=lock.range.last).contains(at)
            && (*mode == Write || lock.mode == Write)
    };
    !bytes.iter().any(clash)
}

proptest! {
    #[test]
    fn as_one_mode_per_byte(steps in steps()) {
        let mut locks = Locks::default();
        let mut bytes = Bytes::new();
        let mut waiting: Vec<(WaitId, Holder, RangeLock)> = Vec::new();
        for (number, (session, owner, step)) in steps.into_iter().enumerate() {
            let who = holder(session, owner);
            match step {
                Step::Set(lock) => {
                    let expected = if free(&bytes, who, &lock) { Answer::Held } else { Answer::Busy };
                    prop_assert_eq!(locks.set(F, who, lock), expected);
                    if expected == Answer::Held {
                        paint(&mut bytes, who, lock.range, Some(lock.mode));
                    }
                }
                Step::Wait(lock) => match locks.wait(NOW, F, who, lock, WaitId(number as u64)) {
                    Answer::Held => {
                        prop_assert!(free(&bytes, who, &lock));
                        paint(&mut bytes, who, lock.range, Some(lock.mode));
                    }
                    Answer::Busy => waiting.push((WaitId(number as u64), who, lock)),
                    Answer::Deadlock => prop_assert!(!free(&bytes, who, &lock)),
                    Answer::TooMany => prop_assert!(false, "far from it"),
                },
                Step::Clear(range) => {
                    locks.clear(F, who, range);
                    paint(&mut bytes, who, range, None);
                }
                Step::Close => {
                    locks.close(F, who);
                    paint(&mut bytes, who, ByteRange::ALL, None);
                    waiting.retain(|(_, other, _)| *other != who);
                }
                Step::End => {
                    locks.end_session(who.session);
                    bytes.retain(|(other, _), _| other.session != who.session);
                    waiting.retain(|(_, other, _)| other.session != who.session);
                }
            }
            for (_, id) in locks.take_granted() {
                let at = waiting.iter().position(|(waiting, ..)| *waiting == id).expect("granted what waits");
                let (_, who, lock) = waiting.remove(at);
                prop_assert!(free(&bytes, who, &lock), "granted against another's lock");
                paint(&mut bytes, who, lock.range, Some(lock.mode));
            }
            locks.check_invariants();
            let held: usize = locks.table().of(F).iter().map(|h| (h.lock.range.last - h.lock.range.start + 1) as usize).sum();
            prop_assert_eq!(held, bytes.len());
            for ((who, at), mode) in &bytes {
                let has = |h: &&Held| h.holder == *who && h.lock.mode == *mode && (h.lock.range.start..=h.lock.range.last).contains(at);
                prop_assert!(locks.table().of(F).iter().any(|h| has(&h)));
            }
        }
        // Whoever is left waits for someone: no circle, and nothing forgotten, once all holders let
        // go.
        for who in (0..3).flat_map(|session| (0..2).map(move |owner| holder(session, owner))) {
            locks.clear(F, who, ByteRange::ALL);
        }
        let mut granted = locks.take_granted();
        while let Some((_, id)) = granted.pop() {
            let at = waiting.iter().position(|(waiting, ..)| *waiting == id).expect("granted what waits");
            let (_, who, _) = waiting.remove(at);
            locks.clear(F, who, ByteRange::ALL);
            granted.extend(locks.take_granted());
        }
        prop_assert!(waiting.is_empty());
    }
}
