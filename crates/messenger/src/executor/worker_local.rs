//! Values that belong to one worker and never leave it, one of each type.
//!
//! Contract: for what the services of a worker share without locks, and what functions sent to the
//! worker must find there. Dropped with the worker, after its tasks.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// The values of one worker.
#[derive(Default)]
pub(crate) struct WorkerLocals(RefCell<HashMap<TypeId, Rc<dyn Any>>>);

impl WorkerLocals {
    pub(crate) fn set<T: 'static>(&self, value: Rc<T>) {
        let before = self.0.borrow_mut().insert(TypeId::of::<T>(), value);
        drop(before); // outside the borrow: its drop may look here
    }

    pub(crate) fn get<T: 'static>(&self) -> Option<Rc<T>> {
        let value = self.0.borrow().get(&TypeId::of::<T>()).cloned();
        value.and_then(|value| value.downcast().ok())
    }

    pub(crate) fn take<T: 'static>(&self) -> Option<Rc<T>> {
        let value = self.0.borrow_mut().remove(&TypeId::of::<T>());
        value.and_then(|value| value.downcast().ok())
    }

    /// Empties it, and gives what was there, to be dropped by the caller.
    pub(crate) fn drain(&self) -> Vec<Rc<dyn Any>> {
        self.0.borrow_mut().drain().map(|(_, value)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_of_each_type() {
        let locals = WorkerLocals::default();
        assert_eq!(locals.get::<u8>(), None);
        locals.set(Rc::new(1u8));
        locals.set(Rc::new("two"));
        locals.set(Rc::new(3u8));
        assert_eq!(locals.get::<u8>().as_deref(), Some(&3));
        assert_eq!(locals.take::<&str>().as_deref(), Some(&"two"));
        assert_eq!((locals.get::<&str>(), locals.drain().len()), (None, 1));
    }
}
