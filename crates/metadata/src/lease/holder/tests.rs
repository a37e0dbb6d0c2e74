use super::*;

const LIVE: Moment =
    Moment { now: Duration::from_secs(1), until: Duration::from_secs(9), epoch: Epoch::new(5) };

fn grant(mode: LeaseMode, token: u64) -> Grant {
    Grant { mode, token, epoch: Epoch::new(5) }
}

fn holding(mode: LeaseMode) -> Holder {
    let mut holder = Holder::default();
    let ticket = holder.ask();
    assert!(holder.granted(ticket, grant(mode, 1)));
    holder
}

#[test]
fn nothing_begins_after_the_end_or_with_an_older_map() {
    let holder = holding(LeaseMode::Read);
    let read = Some(LeaseMode::Read);
    assert_eq!(holder.permits(read, LIVE), Permit::Go);
    assert_eq!(holder.permits(Some(LeaseMode::Write), LIVE), Permit::NotHeld);
    assert_eq!(holder.permits(read, Moment { now: LIVE.until, ..LIVE }), Permit::Expired);
    assert_eq!(
        holder.permits(read, Moment { epoch: Epoch::new(4), ..LIVE }),
        Permit::OldMap(Epoch::new(5))
    );
    assert_eq!(
        holder.permits(None, Moment { now: LIVE.until, ..LIVE }),
        Permit::Go,
        "what needs no lease goes on"
    );
}

#[test]
fn a_grant_of_an_older_lease_is_void() {
    let mut holder = holding(LeaseMode::Write);
    let ticket = holder.ask();
    assert!(holder.granted(ticket, grant(LeaseMode::Write, 7)));
    holder.fenced();
    let ticket = holder.ask();
    assert!(!holder.granted(ticket, grant(LeaseMode::Write, 6)));
    assert_eq!((holder.mode(), holder.token()), (None, 7));
    let ticket = holder.ask();
    assert!(holder.granted(ticket, grant(LeaseMode::Read, 8)));
}

#[test]
fn a_recall_voids_the_grant_under_way() {
    let mut holder = Holder::default();
    let ticket = holder.ask();
    assert_eq!(holder.recall(None), RecallStep::Answer);
    assert!(!holder.granted(ticket, grant(LeaseMode::Write, 1)));
    assert_eq!(holder.mode(), None);
}

#[test]
fn writes_begun_after_a_sync_are_not_covered_by_it() {
    let mut holder = holding(LeaseMode::Write);
    holder.write_begins();
    let mark = holder.sync_begins();
    holder.write_begins();
    holder.synced(mark);
    assert!(!holder.may_return(None));
    let late = holder.sync_begins();
    holder.synced(late);
    holder.synced(mark);
    assert!(holder.may_return(None), "an older sync that ends later takes nothing back");
    assert_eq!(holder.recall(Some(LeaseMode::Read)), RecallStep::Begin);
    assert_eq!(holder.recall(None), RecallStep::Merged);
    holder.gave_back(Some(LeaseMode::Read));
    assert_eq!(
        holder.recalled(Some(Some(LeaseMode::Read))),
        Some(None),
        "the second recall asks for more"
    );
    holder.gave_back(None);
    assert_eq!(holder.mode(), None);
}

#[test]
#[should_panic(expected = "not stable")]
fn a_write_lease_does_not_go_with_unstable_writes() {
    let mut holder = holding(LeaseMode::Write);
    holder.write_begins();
    assert_eq!(holder.recall(None), RecallStep::Begin);
    holder.gave_back(None);
}

#[test]
fn a_close_that_was_not_told_is_told_again() {
    let mut holder = holding(LeaseMode::Read);
    let ticket = holder.begin_close().expect("open at the service");
    assert!(!holder.is_open() && holder.begin_close().is_none());
    holder.close_done(ticket, false);
    let ticket = holder.begin_close().expect("still open at the service");
    holder.close_done(ticket, true);
    assert!(!holder.may_be_open() && holder.begin_close().is_none());
}
