//! What no client waits for takes turns with clients on the core's thread.
//!
//! Contract: messages of class II are taken at once, and only counted here. What is of class III
//! waits, in the order in which it came, and is let through one by one:
//!
//! * beside clients, while it has credit: what clients were served earns class III its share by
//!   weight, in bytes and operations, as [`messenger::ClassQueue`] counts them. An entry may cost
//!   more than the credit; then there is a debt to be earned first.
//! * one entry in a turn of the worker's loop that brought no message of class II: the core would
//!   be idle. That costs nothing, and a debt is forgotten.
//!
//! So a client's message that has arrived waits for one entry of class III, not for all of them,
//! and class III is not starved: a turn brings a client's message, which earns it something, or it
//! brings none. With [`ClassOrder::Arrival`] nothing waits. The gate is pure; the core's task of
//! [`Core::let_through`] counts turns.

use super::{Core, Outlet};
use messenger::sync::oneshot;
use messenger::{
    CHARGED_BYTES_MAX, ClassMeter, ClassOrder, ClassTable, ClassWeights, OPERATION_COST,
    TrafficClass,
};
use std::collections::VecDeque;

/// Names of the operations that time how long entries wait; those of I and II never do.
const WAITS: [&str; 3] = ["core-queue-I", "core-queue-II", "core-queue-III"];

/// What entries of class III wait in.
#[derive(Debug)]
pub(super) struct ClassGate<T> {
    order: ClassOrder,
    waiting: VecDeque<(u64, T)>,
    /// Cost that class III may be served beside clients; below zero after an entry that cost more.
    credit: i64,
    /// A message of class II has come in this turn.
    client_came: bool,
    /// An entry was let through in this turn because no client's message came.
    gave_away: bool,
}

impl<T> ClassGate<T> {
    /// Nothing waits.
    pub fn new(order: ClassOrder) -> Self {
        Self { order, waiting: VecDeque::new(), credit: 0, client_came: false, gave_away: false }
    }

    /// Another order from now on, also for what waits.
    pub fn set_order(&mut self, order: ClassOrder) {
        self.order = order;
        self.credit = 0;
    }

    /// Does nothing have to wait now?
    pub fn is_open(&self) -> bool {
        self.order == ClassOrder::Arrival && self.waiting.is_empty()
    }

    /// True if no entry waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A message of class II is served, which moves so many bytes.
    pub fn client(&mut self, bytes: u64) {
        self.client_came = true;
        let ClassOrder::Shares(weights) = self.order else { return };
        if self.credit >= 0 && self.waiting.is_empty() {
            return; // class III saves nothing while it is idle
        }
        let earned = cost(bytes) * weight(&weights, TrafficClass::Background)
            / weight(&weights, TrafficClass::Client);
        let most = if self.waiting.is_empty() { 0 } else { CHARGED_BYTES_MAX as i64 };
        // What is less than one byte is one, or small weights would earn nothing.
        self.credit = (self.credit + earned.max(1)).min(most);
    }

    /// An entry of class III waits, which moves so many bytes.
    pub fn push(&mut self, bytes: u64, entry: T) {
        self.waiting.push_back((bytes, entry));
    }

    /// The next entry that is let through in this turn.
    pub fn pop(&mut self) -> Option<T> {
        let ClassOrder::Shares(_) = self.order else {
            return self.waiting.pop_front().map(|(_, entry)| entry);
        };
        if !self.client_came {
            if self.gave_away {
                return None;
            }
            let (_, entry) = self.waiting.pop_front()?;
            (self.gave_away, self.credit) = (true, self.credit.max(0));
            self.forget_credit();
            return Some(entry);
        }
        if self.credit <= 0 {
            return None;
        }
        let (bytes, entry) = self.waiting.pop_front()?;
        self.credit -= cost(bytes);
        self.forget_credit();
        Some(entry)
    }

    /// The turn is over.
    pub fn end_turn(&mut self) {
        (self.client_came, self.gave_away) = (false, false);
    }

    /// Takes everything that waits away.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, entry)| entry)
    }

    fn forget_credit(&mut self) {
        if self.waiting.is_empty() {
            self.credit = self.credit.min(0);
        }
    }
}

fn cost(bytes: u64) -> i64 {
    (bytes.min(CHARGED_BYTES_MAX) + OPERATION_COST) as i64
}

fn weight(weights: &ClassWeights, class: TrafficClass) -> i64 {
    i64::from(weights.of(class))
}

/// What waits on a core: something to do on its thread.
pub(super) type Gated = Box<dyn FnOnce()>;

/// The meter of a core.
pub(super) fn meter(classes: &ClassTable) -> ClassMeter {
    classes.meter("core", WAITS)
}

impl<O: Outlet> Core<O> {
    /// Changes [`CoreConfig::class_order`](super::CoreConfig::class_order), at once.
    pub fn set_class_order(&self, order: ClassOrder) {
        self.shared.gate.borrow_mut().set_order(order);
        self.shared.gated.notify_all();
    }

    /// A message is served at once.
    pub(super) fn serves(&self, class: TrafficClass, bytes: u64) {
        self.shared.class_meter.passed(class, bytes as usize);
        if class == TrafficClass::Client {
            self.shared.gate.borrow_mut().client(bytes);
        }
    }

    /// Does something of class III when it is its turn, which may be now; drops it if the core has
    /// stopped.
    pub(super) fn in_turn(&self, bytes: u64, work: impl FnOnce() + 'static) {
        let (meter, class) = (&self.shared.class_meter, TrafficClass::Background);
        if self.shared.state.borrow().stopped {
            return;
        }
        if self.shared.gate.borrow().is_open() {
            meter.passed(class, bytes as usize);
            return work();
        }
        let (began, meter) = (meter.queued(class), meter.clone());
        let gated = move || {
            meter.served(class, bytes as usize, began);
            work();
        };
        self.shared.gate.borrow_mut().push(bytes, Box::new(gated));
        self.shared.gated.notify_all();
    }

    /// Waits until it is the turn of something of class III, or the core stops.
    pub(super) async fn background_turn(&self, bytes: u64) {
        if self.shared.gate.borrow().is_open() {
            self.shared.class_meter.passed(TrafficClass::Background, bytes as usize);
            return;
        }
        let (tx, rx) = oneshot();
        // Nobody to tell if the task was aborted; a core that stops tells nobody either.
        self.in_turn(bytes, move || {
            let _ = tx.send(());
        });
        let _ = rx.await;
    }

    /// Lets entries through, turn by turn, until the core stops.
    pub(super) async fn let_through(self) {
        loop {
            let notified = self.shared.gated.notified();
            if self.shared.state.borrow().stopped {
                let waiting: Vec<Gated> = self.shared.gate.borrow_mut().drain().collect();
                let class = TrafficClass::Background;
                waiting.iter().for_each(|_| self.shared.class_meter.dropped(class));
                return;
            }
            if self.shared.gate.borrow().is_empty() {
                notified.await;
                continue;
            }
            // Only clients' messages of the turn that begins now count: without any, one entry is
            // let through.
            self.shared.gate.borrow_mut().end_turn();
            self.shared.worker.yield_now().await;
            loop {
                let next = self.shared.gate.borrow_mut().pop();
                let Some(gated) = next else { break };
                // One that panics must not hold up the others for ever.
                self.shared.worker.catch("work of class III", gated);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(ii: u16, iii: u16) -> ClassOrder {
        ClassWeights::new(1, ii, iii).expect("in range").into()
    }

    #[test]
    fn without_clients_one_entry_passes_in_a_turn_and_costs_nothing() {
        let mut gate = ClassGate::new(shares(64, 16));
        (0..3).for_each(|number| gate.push(1 << 20, number));
        for number in 0..3 {
            assert_eq!((gate.pop(), gate.pop()), (Some(number), None), "then sockets have a look");
            gate.end_turn();
        }
        gate.push(1, 3);
        gate.client(0);
        assert_eq!(gate.pop(), Some(3), "no debt of what nobody else wanted");
    }

    #[test]
    fn in_the_order_of_arrival_nothing_waits() {
        let mut gate = ClassGate::new(ClassOrder::Arrival);
        assert!(gate.is_open());
        (0..3).for_each(|number| gate.push(1 << 20, number));
        gate.client(0);
        assert_eq!(
            [gate.pop(), gate.pop(), gate.pop(), gate.pop()],
            [Some(0), Some(1), Some(2), None]
        );
    }

    #[test]
    fn a_client_that_comes_makes_the_rest_wait_for_credit() {
        let mut gate = ClassGate::new(shares(64, 16));
        (0..10).for_each(|number| gate.push(1 << 20, number));
        gate.client(4096);
        assert_eq!(gate.pop(), Some(0), "it has earned a little");
        assert_eq!(gate.pop(), None, "and is in debt now");
        // It owes 1 MiB and an operation, less 2048; 8192 of a client earn 2048, above zero passes.
        let turns = (1..).find(|_| {
            gate.end_turn();
            gate.client(4096);
            gate.pop().is_some()
        });
        assert_eq!(turns, Some(514));
        gate.end_turn();
        assert_eq!(gate.pop(), Some(2), "a turn without clients is given away");
    }

    #[test]
    fn other_weights_hold_at_once() {
        let mut gate = ClassGate::new(shares(1000, 1));
        (0..3).for_each(|number| gate.push(1 << 20, number));
        gate.client(0);
        assert_eq!((gate.pop(), gate.pop()), (Some(0), None));
        gate.set_order(ClassOrder::Arrival);
        assert_eq!((gate.pop(), gate.pop()), (Some(1), Some(2)), "what waits is let through");
        assert!(gate.is_open());
    }

    proptest! {
        /// With clients in every turn, class III gets its share by weight, to an entry either way.
        #[test]
        fn the_share_follows_the_weights(
            (ii, iii) in (1u16..=1000, 1u16..=1000),
            client in 0u64..100_000,
            entry in 0u64..2_000_000,
        ) {
            let mut gate = ClassGate::new(shares(ii, iii));
            let (mut clients, mut background, mut turns) = (0i64, 0i64, 0i64);
            for _ in 0..2000 {
                while gate.waiting.len() < 2 {
                    gate.push(entry, ());
                }
                gate.end_turn();
                gate.client(client);
                clients += cost(client);
                turns += 1;
                while gate.pop().is_some() {
                    background += cost(entry);
                    gate.push(entry, ());
                }
            }
            let due = clients as f64 * f64::from(iii) / f64::from(ii);
            prop_assert!((background as f64) < due + (turns + cost(entry)) as f64);
            prop_assert!(background as f64 > due - turns as f64 - 1.0, "{background} of {due}");
        }
    }
}
