use super::*;
use crate::io::buffer::{PoolConfig, Pools};
use bytes::Bytes;
use proptest::prelude::*;

/// One end: what lends, and the pools whose buffers it lends.
struct End {
    lending: Arc<Shm>,
    pools: Pools,
}

impl End {
    fn new() -> End {
        let locks = LockTable::default();
        let lending = Shm::new(true, &locks);
        let config = PoolConfig { pools: 1, retained_bytes_max: 0 };
        End { pools: Pools::in_arena(config, lending.arena(), &locks), lending }
    }

    fn data(&self, len: usize, byte: u8) -> Bytes {
        self.pools.pool(0).copy_of(&vec![byte; len])
    }

    fn offer_to(&self, other: &End) -> (ShmSender, Arc<ShmReceiver>) {
        let (lender, offer) = self.lending.offer().expect("an offer");
        let fds = offer.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
        drop(offer);
        (lender, other.lending.accept(fds.into()).expect("accepted"))
    }
}

const LEN: usize = 3 * REGION_BYTES_MIN;

#[test]
fn what_is_lent_is_read_in_place_and_comes_back() {
    let (sender, receiver) = (End::new(), End::new());
    let (mut lender, borrower) = sender.offer_to(&receiver);
    let data = sender.data(LEN, 7);
    let loan = lender.lend(&data.slice(100..)).expect("lent");
    let borrowed = borrower.borrow(loan, LEN - 100).expect("borrowed");
    assert_eq!(borrowed, data.slice(100..));
    assert_ne!(borrowed.as_ptr(), data.slice(100..).as_ptr(), "mapped by itself");
    drop(data);
    let part = borrowed.slice(5..6);
    drop(borrowed);
    lender.take_back();
    assert!(lender.has_lent(), "a part is in use");
    // What is in use is not given to anybody else.
    let others: Vec<Bytes> = (0..4).map(|_| sender.data(LEN, 1)).collect();
    assert_eq!(part[0], 7);
    drop((part, others));
    lender.take_back();
    assert!(!lender.has_lent());
}

#[test]
fn small_data_and_data_from_elsewhere_is_copied() {
    let (sender, receiver) = (End::new(), End::new());
    let (mut lender, borrower) = sender.offer_to(&receiver);
    assert!(lender.lend(&sender.data(REGION_BYTES_MIN - 1, 1)).is_none());
    assert!(lender.lend(&Bytes::from(vec![1; LEN])).is_none());
    let loan = lender.lend(&sender.data(LEN, 1)).expect("lent");
    let borrowed = borrower.borrow(loan, LEN).expect("borrowed");
    let (mut onwards, _) = receiver.offer_to(&sender);
    assert!(onwards.lend(&borrowed).is_none(), "it lies in the arena of another");
}

#[test]
fn no_more_is_lent_than_may_be() {
    let (sender, receiver) = (End::new(), End::new());
    let (mut lender, borrower) = sender.offer_to(&receiver);
    let data = sender.data(8 << 20, 1);
    let mut loans: Vec<Bytes> = std::iter::from_fn(|| {
        lender.lend(&data).and_then(|loan| borrower.borrow(loan, data.len()))
    })
    .collect();
    assert_eq!(loans.len() * data.len(), REGION_BYTES_MAX);
    loans.truncate(1);
    lender.take_back();
    assert!(lender.lend(&data).is_some());
    // Nor more than there are slots.
    let small = sender.data(REGION_BYTES_MIN, 1);
    let (mut lender, _) = sender.offer_to(&receiver);
    assert_eq!(std::iter::from_fn(|| lender.lend(&small)).count(), SLOTS);
}

#[test]
fn what_a_lost_connection_lent_stays_until_nobody_reads_it() {
    for gives_back in [true, false] {
        let (sender, receiver) = (End::new(), End::new());
        let (mut lender, borrower) = sender.offer_to(&receiver);
        let loan = lender.lend(&sender.data(LEN, 7)).expect("lent");
        let borrowed = gives_back.then(|| borrower.borrow(loan, LEN).expect("borrowed"));
        drop(lender);
        sender.lending.sweep();
        assert_eq!(sender.lending.orphans.lock().len(), 1, "it may be read");
        let lifeline = (!gives_back).then_some(borrower);
        assert!(borrowed.is_none_or(|borrowed| borrowed.iter().all(|byte| *byte == 7)));
        drop(lifeline);
        sender.lending.sweep();
        assert_eq!(sender.lending.orphans.lock().len(), 0);
    }
}

#[test]
fn what_is_lent_outlives_the_lender() {
    let (sender, receiver) = (End::new(), End::new());
    let (mut lender, borrower) = sender.offer_to(&receiver);
    let loan = lender.lend(&sender.data(LEN, 7)).expect("lent");
    let borrowed = borrower.borrow(loan, LEN).expect("borrowed");
    drop((lender, sender));
    assert!(borrowed.iter().all(|byte| *byte == 7));
}

#[test]
fn ended_connections_that_left_much_keep_new_ones_from_lending() {
    let (sender, receiver) = (End::new(), End::new());
    let data = sender.data(8 << 20, 1);
    let (mut lender, borrower) = sender.offer_to(&receiver);
    while lender.lend(&data).is_some() {}
    drop(lender);
    assert!(sender.lending.offer().is_err());
    drop(borrower);
    sender.lending.sweep();
    assert!(sender.lending.offer().is_ok());
}

#[test]
fn a_loan_outside_of_what_was_offered_is_refused() {
    let (sender, receiver) = (End::new(), End::new());
    let (mut lender, borrower) = sender.offer_to(&receiver);
    let loan = lender.lend(&sender.data(LEN, 7)).expect("lent");
    let end = arena::ARENA_BYTES as u64;
    for (at, slot, len) in
        [(end, 0, 1), (u64::MAX, 0, 1), (end - 1, 0, 2), (0, SLOTS as u32, 1), (0, u32::MAX, 1)]
    {
        assert!(borrower.borrow(RegionLease { at, slot }, len).is_none(), "{at} {slot} {len}");
    }
    assert!(borrower.borrow(RegionLease { at: end - 1, slot: loan.slot }, 1).is_some());
}

#[test]
fn an_offer_that_is_none_is_refused() {
    let (sender, receiver) = (End::new(), End::new());
    let (_, offer) = sender.lending.offer().expect("an offer");
    let copies = || offer.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
    let file = || OwnedFd::from(tempfile());
    let [arena, slots, lifeline] = copies();
    assert!(receiver.lending.accept(vec![arena, slots]).is_err(), "one is missing");
    let [arena, slots, _] = copies();
    assert!(receiver.lending.accept(vec![slots, arena, lifeline]).is_err(), "in another order");
    let [_, slots, lifeline] = copies();
    assert!(
        receiver.lending.accept(vec![file(), slots, lifeline]).is_err(),
        "a file that could shrink"
    );
    assert!(receiver.lending.accept(copies().into()).is_ok());
}

fn tempfile() -> std::fs::File {
    std::fs::File::open("/proc/self/exe").expect("this program")
}

#[test]
fn an_arena_is_mapped_once_for_all_connections() {
    let (sender, receiver) = (End::new(), End::new());
    let both = [sender.offer_to(&receiver), sender.offer_to(&receiver)];
    assert_eq!(receiver.lending.imports.lock().len(), 1);
    drop(both);
    let _other = End::new().offer_to(&receiver);
    assert_eq!(receiver.lending.imports.lock().len(), 1, "one that nobody uses is forgotten");
}

#[test]
fn without_an_arena_nothing_is_offered() {
    let lending = Shm::new(false, &LockTable::default());
    assert!(lending.offer().is_err());
    assert!(lending.arena().is_none());
}

proptest! {
    #[test]
    fn a_damaged_loan_is_noticed(at in any::<u64>(), slot in any::<u32>(), byte in 0..LEASE_BYTES, bit in 0u8..8) {
        let mut out = BytesMut::new();
        RegionLease { at, slot }.put(&mut out);
        let mut bytes: [u8; LEASE_BYTES] = out[..].try_into().expect("its length");
        prop_assert_eq!(RegionLease::get(&bytes), Some(RegionLease { at, slot }));
        bytes[byte] ^= 1u8 << bit;
        prop_assert_eq!(RegionLease::get(&bytes), None);
    }
}
