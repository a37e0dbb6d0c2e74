//! Interleavings of a file being made and its recall, by `loom`; and two wrong ways, which must be caught.

use super::*;
use loom::sync::atomic::AtomicU64 as Modelled;
use loom::sync::{Arc, Mutex};
use loom::thread;

impl Count for Modelled {
    fn load(&self, order: Ordering) -> u64 {
        Modelled::load(self, order)
    }

    fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
        Modelled::fetch_add(self, by, order)
    }

    fn fetch_sub(&self, by: u64, order: Ordering) -> u64 {
        Modelled::fetch_sub(self, by, order)
    }
}

/// A mount.
struct Mount {
    creations: Creations<Modelled>,
    /// The file, once it is known, and whether its lease is.
    table: Mutex<Option<bool>>,
}

impl Mount {
    /// The answer of the service arrives.
    fn created(&self, with_its_lease: bool) {
        let creation = Creation(&self.creations);
        if !with_its_lease {
            *self.table.lock().expect("no panic") = Some(false);
        }
        *self.table.lock().expect("no panic") = Some(true);
        drop(creation);
    }

    fn look(&self) -> Option<bool> {
        *self.table.lock().expect("no panic")
    }
}

/// The service has made a file and recalls its lease before this mount has seen the answer; `find` is tried twice.
fn a_recall_finds_the_lease(with_its_lease: bool, find: fn(&Mount) -> Found<bool>) {
    loom::model(move || {
        let mount = Arc::new(Mount { creations: Creations { under_way: Modelled::new(0) }, table: Mutex::new(None) });
        // It ends on another thread.
        std::mem::forget(mount.creations.begin());
        let creator = Arc::clone(&mount);
        let thread = thread::spawn(move || creator.created(with_its_lease));
        for _ in 0..2 {
            match find(&mount) {
                Found::Here(has_lease) => assert!(has_lease, "the lease counts as given back and comes later"),
                Found::Nowhere => panic!("the lease counts as given back and is there"),
                Found::MayCome => {}
            }
        }
        thread.join().expect("no panic");
        assert_eq!(find(&mount), Found::Here(true));
    });
}

#[test]
fn a_file_being_made_is_found_with_its_lease_or_waited_for() {
    a_recall_finds_the_lease(true, |mount| mount.creations.find(|| mount.look()));
}

#[test]
#[should_panic(expected = "given back and is there")]
fn the_model_finds_a_look_before_the_question() {
    a_recall_finds_the_lease(true, |mount| {
        let found = mount.look();
        mount.creations.find(|| found)
    });
}

#[test]
#[should_panic(expected = "given back and comes later")]
fn the_model_finds_a_file_that_is_known_before_its_lease() {
    a_recall_finds_the_lease(false, |mount| mount.creations.find(|| mount.look()));
}

#[test]
fn nothing_is_waited_for_when_nothing_is_being_made() {
    let creations = super::Creations::<AtomicU64>::default();
    assert_eq!(creations.find(|| None::<()>), Found::Nowhere);
    let creation = creations.begin();
    assert_eq!([creations.find(|| None), creations.find(|| Some(1))], [Found::MayCome, Found::Here(1)]);
    drop(creation);
    assert_eq!(creations.find(|| None::<()>), Found::Nowhere);
}
