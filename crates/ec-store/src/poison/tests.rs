//! Interleavings of syncs on a disk that fails, by `loom`; and a poison without turns, which must
//! be caught.

use super::*;
use loom::sync::atomic::AtomicBool as ModelledFlag;
use loom::sync::{Arc, Mutex as ModelledMutex};
use loom::thread;

impl Turn for ModelledMutex<()> {
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _turn = self.lock().expect("no panic");
        f()
    }
}

/// The canary: everyone syncs at the same time, and looks for a failure before and after.
#[derive(Default)]
struct NoTurns;

impl Turn for NoTurns {
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
}

impl Flag for ModelledFlag {
    fn load(&self, order: Ordering) -> bool {
        ModelledFlag::load(self, order)
    }

    fn store(&self, value: bool, order: Ordering) {
        ModelledFlag::store(self, value, order);
    }
}

pub(crate) type ModelledPoison = Poison<ModelledMutex<()>, ModelledFlag>;

pub(crate) fn modelled<T: Turn>(turn: T) -> Poison<T, ModelledFlag> {
    Poison { turn, has_failed: ModelledFlag::new(false) }
}

/// A disk that has lost pages and says so once, as Linux does.
struct Lossy(ModelledFlag);

impl Lossy {
    fn sync_data(&self) -> Result<(), &'static str> {
        if self.0.swap(false, Ordering::AcqRel) { Err("I/O error") } else { Ok(()) }
    }
}

/// Several threads sync what is lost already; none of them may think otherwise.
fn no_sync_succeeds<T: Turn + Send + Sync + 'static>(
    threads: u32,
    turn: impl Fn() -> T + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (poison, disk) = (Arc::new(modelled(turn())), Arc::new(Lossy(ModelledFlag::new(true))));
        let sync = |poison: &Poison<T, ModelledFlag>, disk: &Lossy| {
            poison.sync(|| Ok(Some(())), |()| disk.sync_data())
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let (poison, disk) = (Arc::clone(&poison), Arc::clone(&disk));
                thread::spawn(move || sync(&poison, &disk))
            })
            .collect();
        let mut results = vec![sync(&poison, &disk)];
        results.extend(others.into_iter().map(|thread| thread.join().expect("no panic")));
        assert!(results.iter().all(Result::is_err), "a sync succeeded for what is lost");
        let told =
            results.iter().filter(|result| matches!(result, Err(NotSynced::Failed(_)))).count();
        assert_eq!((told, poison.is_set()), (1, true));
    });
}

#[test]
fn no_sync_succeeds_beside_one_that_fails() {
    no_sync_succeeds(2, || ModelledMutex::new(()));
    no_sync_succeeds(3, || ModelledMutex::new(()));
}

#[test]
#[should_panic(expected = "succeeded for what is lost")]
fn the_model_finds_syncs_at_the_same_time() {
    no_sync_succeeds(2, || NoTurns);
}

#[test]
fn what_fails_before_the_sync_is_tried_again_and_what_fails_in_it_is_not() {
    let poison = super::Poison::<Mutex<()>, AtomicBool>::default();
    assert_eq!(
        poison.sync(|| Err::<Option<()>, _>("full"), |()| Ok(())),
        Err(NotSynced::Failed("full"))
    );
    assert_eq!(poison.sync(|| Ok::<Option<()>, &str>(None), |()| Err("not called")), Ok(()));
    let write_fails = |()| {
        poison.set();
        Ok::<(), &str>(())
    };
    assert_eq!(poison.sync(|| Ok(Some(())), write_fails), Err(NotSynced::Poisoned), "overtaken");
    assert_eq!(poison.sync(|| Ok::<_, &str>(Some(())), |()| Ok(())), Err(NotSynced::Poisoned));
}
