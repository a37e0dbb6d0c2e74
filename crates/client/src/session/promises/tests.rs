//! Interleavings of promises, the end of a session and those who count on it, by `loom`; and two
//! wrong ways, which must be caught.

use super::*;
use loom::sync::atomic::AtomicU64 as Modelled;
use loom::sync::{Arc, Mutex};
use loom::thread;

impl Word for Modelled {
    fn load(&self, order: Ordering) -> u64 {
        Modelled::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Modelled::store(self, value, order);
    }

    fn fetch_max(&self, to: u64, order: Ordering) -> u64 {
        Modelled::fetch_max(self, to, order)
    }
}

const SESSION: SessionId = SessionId::new(1);

/// A client with a session that was promised something in term 1.
struct Client {
    standing: Mutex<Standing>,
    promises: Promises<Modelled>,
}

impl Client {
    fn new() -> Arc<Self> {
        let promises = Promises {
            lives_until: Modelled::new(50),
            alone_until: Modelled::new(50),
            names_until: Modelled::new(50),
            term: Modelled::new(1),
        };
        Arc::new(Self {
            standing: Mutex::new(Standing { session: SESSION, fenced: false }),
            promises,
        })
    }

    fn locked<R>(&self, f: impl FnOnce(&mut Standing, &Promises<Modelled>) -> R) -> R {
        f(&mut self.standing.lock().expect("no panic"), &self.promises)
    }
}

fn model() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model
}

/// A session is renewed by `renew` and promised to be alone while it is declared dead.
fn a_dead_session_has_no_promises(renew: fn(&Client)) {
    model().check(move || {
        let client = Client::new();
        let (renewed, promised) = (Arc::clone(&client), Arc::clone(&client));
        let threads = [
            thread::spawn(move || renew(&renewed)),
            thread::spawn(move || {
                promised
                    .locked(|standing, promises| promises.told(standing, SESSION, (100, 100), 1))
            }),
        ];
        assert!(client.locked(|standing, promises| promises.fenced(standing, SESSION)));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let (alone, names, _) = client.promises.told_in();
        let left = (client.promises.lives_until(), alone, names);
        assert_eq!(left, (0, 0, 0), "a promise outlives its session");
    });
}

#[test]
fn a_promise_that_comes_late_revives_nothing() {
    a_dead_session_has_no_promises(|client| {
        client.locked(|standing, promises| promises.renewed(standing, SESSION, 100))
    });
}

#[test]
#[should_panic(expected = "outlives its session")]
fn the_model_finds_a_renewal_that_does_not_look() {
    a_dead_session_has_no_promises(|client| {
        client.promises.lives_until.store(100, Ordering::Release)
    });
}

/// The session is promised to be alone in term 2, while somebody looks by `look`.
fn a_new_promise_is_of_the_new_term(look: fn(&Promises<Modelled>) -> (u64, u64, u64)) {
    model().check(move || {
        let client = Client::new();
        let promised = Arc::clone(&client);
        let thread = thread::spawn(move || {
            promised.locked(|standing, promises| promises.told(standing, SESSION, (100, 100), 2))
        });
        let (alone, names, term) = look(&client.promises);
        assert!(
            (alone <= 50 && names <= 50) || term == 2,
            "the promise of a term counts for the one before"
        );
        thread.join().expect("no panic");
        assert_eq!(look(&client.promises), (100, 100, 2));
    });
}

#[test]
fn whoever_sees_a_promise_sees_its_term() {
    a_new_promise_is_of_the_new_term(Promises::told_in);
}

#[test]
#[should_panic(expected = "counts for the one before")]
fn the_model_finds_a_look_at_the_term_first() {
    a_new_promise_is_of_the_new_term(|promises| {
        let term = promises.term.load(Ordering::Acquire);
        let names = promises.names_until.load(Ordering::Acquire);
        (promises.alone_until(), names, term)
    });
}

#[test]
fn promises_are_for_the_session_that_there_is() {
    let (promises, mut standing) = (super::Promises::<AtomicU64>::default(), Standing::default());
    let next = SessionId::new(2);
    promises.opened(&mut standing, SESSION, 10);
    promises.told(&standing, SESSION, (20, 25), 3);
    assert_eq!((promises.lives_until(), promises.told_in()), (10, (20, 25, 3)));
    promises.told(&standing, SESSION, (99, 99), 2);
    assert_eq!(promises.told_in(), (20, 25, 3), "of a term before");
    assert!(!promises.fenced(&mut standing, next));
    assert!(promises.fenced(&mut standing, SESSION) && !promises.fenced(&mut standing, SESSION));
    assert_eq!((promises.lives_until(), promises.told_in()), (0, (0, 0, 3)));
    promises.opened(&mut standing, next, 30);
    promises.renewed(&standing, SESSION, 99);
    promises.told(&standing, SESSION, (99, 99), 4);
    assert_eq!((promises.lives_until(), promises.told_in()), (30, (0, 0, 3)));
    promises.told(&standing, next, (0, 50), 4);
    promises.told(&standing, next, (0, 40), 4);
    assert_eq!(promises.told_in(), (0, 50, 4));
    promises.told(&standing, next, (0, 0), 5);
    assert_eq!(
        promises.told_in(),
        (0, 0, 5),
        "leases of a service that was started anew are its own"
    );
}
