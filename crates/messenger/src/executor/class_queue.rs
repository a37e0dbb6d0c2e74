//! One queue for three traffic classes: weighted round robin by bytes and by operations.
//!
//! Each class is a FIFO with a balance of cost. An entry costs its bytes and [`OPERATION_COST`],
//! so that many small entries are not free. A class is served while its balance is above zero, and
//! pays afterwards, so its balance may fall below zero by less than one entry (surplus round
//! robin: deficit round robin that need not know the next entry's cost). When no class with
//! entries has balance left, a round begins: each gets its weight times [`COST_PER_WEIGHT`].
//!
//! Contract:
//! * The order within a class is the order of arrival.
//! * Two classes that both have entries all the time get shares by weight: what each was served,
//!   over what it gets in a round, differs by less than `2 + C/a + C/b`, where `C` is the largest
//!   cost of an entry, and `a` and `b` are what the two get in a round.
//! * An entry of class I that finds class I empty and with balance is the next one served,
//!   whatever lies in II and III. An idle class I keeps one round's balance for this. A class I
//!   that asks for more than its share has no such right for the rest of its round.
//! * A class with entries is served in every round that pays its debt: none is starved, class III
//!   as little as the others, because weights are at least 1.
//! * A class without entries gives its share away: `pop` returns an entry whenever there is one.
//!   II and III save no balance while idle. A debt stays, but not past the moment at which the
//!   whole queue is empty: nobody waits then.
//! * Memory follows what is queued: capacity that a burst left behind is given back.
//!
//! With [`ClassOrder::Arrival`] it is one FIFO instead, whatever the classes: what is measured
//! against. The order can change while entries wait.
//!
//! The queue bounds neither entries nor bytes; whoever pushes does. It has no clock, no thread and
//! no lock. The class is the caller's word: a daemon takes it from the kind of a message and the
//! role of its peer, not from a client's frame.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use crate::wire::frame::TrafficClass;

/// Number of traffic classes.
pub const CLASSES: usize = 3;
/// Largest weight of a class: above it, one round of a class would be longer than the longest
/// entry by so much that the others wait for no gain.
pub const CLASS_WEIGHT_MAX: u16 = 1000;
/// What an entry costs besides its bytes, in bytes: near what a disk could have moved in the time
/// that the handling of a request takes.
pub const OPERATION_COST: u64 = 4096;
/// What a class gets in a round for each unit of its weight, in bytes of cost.
pub const COST_PER_WEIGHT: u64 = 1024;
/// Bytes that one entry is charged for at most: above the largest frame, and far below where sums
/// overflow. An entry that claims more is charged this.
pub const CHARGED_BYTES_MAX: u64 = 64 << 20;
/// Entries that an idle class may keep memory for.
pub const IDLE_ENTRIES_MAX: usize = 64;

/// Shares of the classes, each from 1 to [`CLASS_WEIGHT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassWeights([u16; CLASSES]);

/// Why weights are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassWeightError {
    /// A class of weight 0 would never be served.
    #[error("the weight of class {0} is 0; it is 1 to {CLASS_WEIGHT_MAX}")]
    Zero(ClassName),
    /// Above [`CLASS_WEIGHT_MAX`].
    #[error("the weight of class {0} is above the maximum; it is 1 to {CLASS_WEIGHT_MAX}")]
    AboveMaximum(ClassName),
}

/// In which order a queue of several classes is served: the setting `ms_class_weights`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClassOrder {
    /// As entries arrived, whatever their class.
    #[default]
    Arrival,
    /// By weight.
    Shares(ClassWeights),
}

impl From<ClassWeights> for ClassOrder {
    fn from(weights: ClassWeights) -> ClassOrder {
        ClassOrder::Shares(weights)
    }
}

/// Why the text of an order is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassOrderError {
    /// Not of the form.
    #[error(
        "allowed are off and the weights of all three classes, as I=64,II=64,III=16, each 1 to \
         {CLASS_WEIGHT_MAX}"
    )]
    Form,
    /// A weight is out of range.
    #[error(transparent)]
    Weight(#[from] ClassWeightError),
}

impl FromStr for ClassOrder {
    type Err = ClassOrderError;

    /// `off`, or each class once with its weight, in any order: `I=64,II=64,III=16`.
    fn from_str(text: &str) -> Result<ClassOrder, ClassOrderError> {
        if text == "off" {
            return Ok(ClassOrder::Arrival);
        }
        let mut weights = [None; CLASSES];
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').ok_or(ClassOrderError::Form)?;
            let index = TrafficClass::ALL.iter().position(|class| class.numeral() == name.trim());
            let place = &mut weights[index.ok_or(ClassOrderError::Form)?];
            let weight = weight.trim();
            if place.is_some() || weight.is_empty() || !weight.bytes().all(|b| b.is_ascii_digit()) {
                return Err(ClassOrderError::Form);
            }
            // What is too large for the type is too large.
            *place = Some(weight.parse().unwrap_or(u64::MAX));
        }
        let [Some(i), Some(ii), Some(iii)] = weights else { return Err(ClassOrderError::Form) };
        let narrow = |weight: u64| u16::try_from(weight).unwrap_or(u16::MAX);
        Ok(ClassWeights::new(narrow(i), narrow(ii), narrow(iii))?.into())
    }
}

impl fmt::Display for ClassOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClassOrder::Arrival => f.write_str("off"),
            ClassOrder::Shares(ClassWeights([i, ii, iii])) => {
                write!(f, "I={i},II={ii},III={iii}")
            }
        }
    }
}

/// A class as operators read it: `I (control)`, `II (client)`, `III (background)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassName(pub TrafficClass);

impl fmt::Display for ClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            TrafficClass::Control => "I (control)",
            TrafficClass::Client => "II (client)",
            TrafficClass::Background => "III (background)",
        })
    }
}

impl ClassWeights {
    /// Weights of the classes I, II and III. Fails if one is 0 or above [`CLASS_WEIGHT_MAX`].
    pub fn new(i: u16, ii: u16, iii: u16) -> Result<ClassWeights, ClassWeightError> {
        let weights = [i, ii, iii];
        for (class, weight) in TrafficClass::ALL.into_iter().zip(weights) {
            match weight {
                0 => return Err(ClassWeightError::Zero(ClassName(class))),
                1..=CLASS_WEIGHT_MAX => {}
                _ => return Err(ClassWeightError::AboveMaximum(ClassName(class))),
            }
        }
        Ok(ClassWeights(weights))
    }

    /// Weight of a class.
    pub fn of(&self, class: TrafficClass) -> u16 {
        self.0[class.index()]
    }

    /// What a class gets in a round, in bytes of cost.
    fn round(&self, lane: usize) -> i64 {
        (u64::from(self.0[lane]) * COST_PER_WEIGHT) as i64
    }
}

impl Default for ClassWeights {
    /// 64, 64 and 16: of a disk or core that is never idle, rebuilding gets a ninth beside a full I
    /// and II, and a fifth beside a full II.
    fn default() -> ClassWeights {
        ClassWeights([64, 64, 16])
    }
}

/// What one class has in the queue, and what it got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassFigures {
    /// Entries that wait.
    pub queued: u64,
    /// Bytes of entries that wait, as charged.
    pub queued_bytes: u64,
    /// Entries served since the queue was made.
    pub served: u64,
    /// Bytes served since the queue was made, as charged.
    pub served_bytes: u64,
}

/// The queue. See the module for what it promises.
#[derive(Debug)]
pub struct ClassQueue<T> {
    order: ClassOrder,
    lanes: [Lane<T>; CLASSES],
    /// Number of the next entry.
    arrival: u64,
}

#[derive(Debug)]
struct Entry<T> {
    /// Its number among the entries of all classes.
    arrival: u64,
    /// Bytes that it is charged for.
    bytes: u64,
    value: T,
}

#[derive(Debug)]
struct Lane<T> {
    entries: VecDeque<Entry<T>>,
    /// Cost that may still be served in this round; below zero after an entry that cost more.
    balance: i64,
    figures: ClassFigures,
}

impl<T> ClassQueue<T> {
    /// An empty queue.
    pub fn new(order: impl Into<ClassOrder>) -> ClassQueue<T> {
        let figures = ClassFigures::default();
        let lane = |_| Lane { entries: VecDeque::new(), balance: 0, figures };
        let mut queue = ClassQueue { order: order.into(), lanes: [0, 1, 2].map(lane), arrival: 0 };
        queue.forget_balances();
        queue
    }

    /// Another order from now on. Nothing that is queued is lost, and each class keeps its own.
    pub fn set_order(&mut self, order: impl Into<ClassOrder>) {
        let before = std::mem::replace(&mut self.order, order.into());
        match (before, self.order) {
            (ClassOrder::Shares(_), ClassOrder::Shares(weights)) if !self.is_empty() => {
                for (index, lane) in self.lanes.iter_mut().enumerate() {
                    lane.balance = lane.balance.min(weights.round(index));
                }
            }
            _ => self.forget_balances(),
        }
        self.check_invariants();
    }

    /// Adds an entry behind those of its class. `bytes` is what it will move, in bytes.
    pub fn push(&mut self, class: TrafficClass, bytes: usize, value: T) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).min(CHARGED_BYTES_MAX);
        let lane = &mut self.lanes[class.index()];
        lane.entries.push_back(Entry { arrival: self.arrival, bytes, value });
        lane.figures.queued += 1;
        lane.figures.queued_bytes += bytes;
        self.arrival += 1;
    }

    /// The next entry, with its class; `None` only if the queue is empty.
    pub fn pop(&mut self) -> Option<(TrafficClass, T)> {
        if self.is_empty() {
            return None;
        }
        let index = match self.order {
            ClassOrder::Arrival => self.first_come(),
            ClassOrder::Shares(weights) => self.first_with_balance().unwrap_or_else(|| {
                self.begin_rounds(weights);
                self.first_with_balance().expect("rounds are begun until a class has balance")
            }),
        };
        let is_shared = self.order != ClassOrder::Arrival;
        let lane = &mut self.lanes[index];
        let Entry { bytes, value, .. } = lane.entries.pop_front().expect("it was chosen for them");
        lane.figures.queued -= 1;
        lane.figures.queued_bytes -= bytes;
        lane.figures.served += 1;
        lane.figures.served_bytes += bytes;
        if is_shared {
            lane.balance -= (bytes + OPERATION_COST) as i64;
            if lane.entries.is_empty() && index != TrafficClass::Control.index() {
                lane.balance = lane.balance.min(0);
            }
        }
        lane.give_back_memory();
        if self.is_empty() {
            self.forget_balances();
        }
        self.check_invariants();
        Some((TrafficClass::ALL[index], value))
    }

    /// True if no entry waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.entries.is_empty())
    }

    /// Entries that wait, of all classes.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.entries.len()).sum()
    }

    /// Depth and service of a class.
    pub fn figures(&self, class: TrafficClass) -> ClassFigures {
        self.lanes[class.index()].figures
    }

    fn first_come(&self) -> usize {
        let first = |(index, lane): (usize, &Lane<T>)| Some((lane.entries.front()?.arrival, index));
        let firsts = self.lanes.iter().enumerate().filter_map(first);
        firsts.min().expect("not called while empty").1
    }

    fn first_with_balance(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| !lane.entries.is_empty() && lane.balance > 0)
    }

    /// Begins as many rounds at once as the first class with entries needs to be served.
    fn begin_rounds(&mut self, weights: ClassWeights) {
        // Balances of classes with entries are at or below zero here; `1 - balance` over what a
        // round gives, rounded up, makes one positive.
        let needed = |(index, lane): (usize, &Lane<T>)| {
            let round = weights.round(index);
            (round - lane.balance) / round
        };
        let waiting = self.lanes.iter().enumerate().filter(|(_, lane)| !lane.entries.is_empty());
        let rounds = waiting.map(needed).min().unwrap_or(0);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.balance += rounds * weights.round(index);
            if lane.entries.is_empty() {
                lane.balance = lane.balance.min(weights.kept_idle(index));
            }
        }
    }

    fn forget_balances(&mut self) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.balance = match self.order {
                ClassOrder::Arrival => 0,
                ClassOrder::Shares(weights) => weights.kept_idle(index),
            };
        }
    }

    fn check_invariants(&self) {
        for (index, lane) in self.lanes.iter().enumerate() {
            assert_eq!(lane.figures.queued, lane.entries.len() as u64, "entries are counted");
            let most = match self.order {
                ClassOrder::Arrival => 0,
                ClassOrder::Shares(weights) => weights.round(index),
            };
            assert!(lane.balance <= most, "no class saves more than a round");
            let debt_max = (CHARGED_BYTES_MAX + OPERATION_COST) as i64;
            assert!(lane.balance > -debt_max, "a debt is one entry's");
        }
    }
}

impl ClassWeights {
    /// Balance that a class may have without entries: class I one round, so that it is next.
    fn kept_idle(&self, lane: usize) -> i64 {
        if lane == TrafficClass::Control.index() { self.round(lane) } else { 0 }
    }
}

impl<T> Lane<T> {
    fn give_back_memory(&mut self) {
        let (entries, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > IDLE_ENTRIES_MAX && entries < capacity / 4 {
            self.entries.shrink_to((2 * entries).max(IDLE_ENTRIES_MAX));
        }
    }

    #[cfg(test)]
    fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}

#[cfg(test)]
mod tests;
