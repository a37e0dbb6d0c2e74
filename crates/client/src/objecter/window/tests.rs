use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn admitted(windows: &[&Rc<Window>], bytes: u64) -> OnTheWay {
    let windows = windows.iter().map(|window| Rc::clone(window)).collect();
    let Poll::Ready(part) = poll(pin!(OnTheWay::admit(windows, bytes))) else {
        panic!("there is room")
    };
    part
}

#[test]
fn a_write_waits_for_every_window_and_holds_none_meanwhile() {
    let (wide, narrow) = (Window::new(1 << 20), Window::new(100_000));
    let first = admitted(&[&narrow], 50_000);
    let both = [&wide, &narrow].map(Rc::clone).into_iter().collect();
    let mut second = pin!(OnTheWay::admit(both, 50_000));
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(wide.on_the_way.get(), 0);
    drop(first);
    let Poll::Ready(second) = poll(second) else { panic!("the narrow window is free") };
    assert_eq!(wide.on_the_way.get(), space_taken(50_000));
    drop(second);
    assert_eq!((wide.on_the_way.get(), narrow.on_the_way.get()), (0, 0));
}

#[test]
fn no_write_begins_while_a_journal_is_at_its_limit() {
    let (window, other) = (Window::new(1 << 20), Window::new(1 << 20));
    let under_way = admitted(&[&window], 512);
    window.hold(true);
    let both = [&other, &window].map(Rc::clone).into_iter().collect();
    let mut next = pin!(OnTheWay::admit(both, 512));
    assert!(poll(next.as_mut()).is_pending());
    drop(under_way);
    assert!(poll(next.as_mut()).is_pending(), "room is not enough");
    drop(admitted(&[&other], 512));
    window.hold(false);
    assert!(poll(next).is_ready());
}

#[test]
fn those_who_wait_are_let_in_as_they_came() {
    let window = Window::new(150_000);
    let alone = || std::iter::once(Rc::clone(&window)).collect();
    let (first, second) = (admitted(&[&window], 45_000), admitted(&[&window], 45_000));
    let mut large = pin!(OnTheWay::admit(alone(), 80_000));
    let mut given_up = Box::pin(OnTheWay::admit(alone(), 40_000));
    let mut small = pin!(OnTheWay::admit(alone(), 40_000));
    assert!(poll(large.as_mut()).is_pending() && poll(given_up.as_mut()).is_pending());
    drop(first);
    assert!(poll(small.as_mut()).is_pending(), "there would be room, but others came first");
    drop(second);
    assert!(poll(small.as_mut()).is_pending());
    let Poll::Ready(large) = poll(large) else { panic!("it is the first") };
    drop(large);
    assert!(poll(small.as_mut()).is_pending(), "one is before it");
    drop(given_up);
    assert!(poll(small).is_ready());
}

#[test]
fn two_who_are_first_before_two_windows_do_not_wait_for_each_other() {
    let (a, b) = (Window::new(60_000), Window::new(60_000));
    let both = |first: &Rc<Window>, second: &Rc<Window>| {
        [first, second].map(Rc::clone).into_iter().collect::<Windows>()
    };
    let (in_a, in_b) = (admitted(&[&a], 45_000), admitted(&[&b], 45_000));
    let mut waits_in_a = pin!(OnTheWay::admit(both(&a, &b), 20_000));
    let mut waits_in_b = pin!(OnTheWay::admit(both(&b, &a), 20_000));
    assert!(poll(waits_in_a.as_mut()).is_pending() && poll(waits_in_b.as_mut()).is_pending());
    drop((in_a, in_b));
    assert!(poll(waits_in_a.as_mut()).is_ready() && poll(waits_in_b.as_mut()).is_ready());
}

#[test]
fn a_write_larger_than_the_window_has_it_alone() {
    let window = Window::new(10_000);
    let large = admitted(&[&window], 1 << 20);
    let mut next = pin!(OnTheWay::admit(std::iter::once(Rc::clone(&window)).collect(), 512));
    assert!(poll(next.as_mut()).is_pending());
    drop(large);
    assert!(poll(next).is_ready());
}

/// Set by a wake-up.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

proptest! {
    /// Polled only when woken, and with parts given back in any order, every write has its turn.
    #[test]
    fn nobody_waits_for_ever(
        writes in prop::collection::vec((prop::collection::vec(0usize..4, 1..4), 500u64..90_000), 1..40),
        order in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let windows: Vec<_> = (0..4).map(|_| Window::new(100_000)).collect();
        let mut waiting: Vec<_> = writes
            .into_iter()
            .map(|(mut of, bytes)| {
                of.dedup();
                let windows: Windows = of.into_iter().map(|at| Rc::clone(&windows[at])).collect();
                (Box::pin(OnTheWay::admit(windows, bytes)), Arc::new(Woken(AtomicBool::new(true))))
            })
            .collect();
        let (mut parts, mut order) = (Vec::new(), order.into_iter().cycle());
        while !waiting.is_empty() || !parts.is_empty() {
            while let Some(at) = waiting.iter().position(|(_, woken)| woken.0.load(Relaxed)) {
                let (write, woken) = &mut waiting[at];
                woken.0.store(false, Relaxed);
                let waker = Waker::from(Arc::clone(woken));
                if let Poll::Ready(part) = write.as_mut().poll(&mut Context::from_waker(&waker)) {
                    parts.push(part);
                    drop(waiting.swap_remove(at));
                }
            }
            prop_assert!(!parts.is_empty() || waiting.is_empty(), "{} wait, and nothing is on its way", waiting.len());
            if !parts.is_empty() {
                let at = order.next().expect("a cycle").index(parts.len());
                drop(parts.swap_remove(at));
            }
        }
        prop_assert!(windows.iter().all(|window| window.on_the_way.get() == 0 && !window.has_line()));
    }
}

/// Cores with journals, and sessions that write to all of them, each core hearing of it in its own
/// time.
struct World {
    limit: usize,
    beyond: usize,
    /// By core; oldest first.
    journals: Vec<VecDeque<Record>>,
    holding: Vec<bool>,
    /// A record came to a journal that took no more.
    was_refused: bool,
    sessions: Vec<Session>,
}

/// Of a session, and its number there.
type Record = (usize, u64);

struct Session {
    windows: Vec<Rc<Window>>,
    last: u64,
    /// Not reported, oldest first.
    unreported: VecDeque<(u64, OnTheWay)>,
    cores: Vec<Path>,
}

/// Between a session and a core.
#[derive(Default)]
struct Path {
    way: VecDeque<u64>,
    /// The last record that the core has, and whether its journal is at its limit.
    acks: VecDeque<(u64, bool)>,
    taken: u64,
    acknowledged: u64,
}

const WRITE_BYTES: u64 = 512;
/// Writes that a session may have on its way.
const WINDOW: usize = 6;
const LIMIT: usize = 10;
const CORES: usize = 3;
const SESSIONS: usize = 5;

impl World {
    fn new(limit: usize, beyond: usize) -> Self {
        let session = |_| Session {
            windows: (0..CORES)
                .map(|_| Window::new(WINDOW as u64 * space_taken(WRITE_BYTES)))
                .collect(),
            last: 0,
            unreported: VecDeque::new(),
            cores: (0..CORES).map(|_| Path::default()).collect(),
        };
        Self {
            limit,
            beyond,
            journals: vec![VecDeque::new(); CORES],
            holding: vec![false; CORES],
            was_refused: false,
            sessions: (0..SESSIONS).map(session).collect(),
        }
    }

    fn is_at_limit(&self, core: usize) -> bool {
        self.journals[core].len() >= self.limit
    }

    fn begin(&mut self, session: usize) -> bool {
        let session = &mut self.sessions[session];
        let windows = session.windows.iter().map(Rc::clone).collect();
        let Poll::Ready(part) = poll(pin!(OnTheWay::admit(windows, WRITE_BYTES))) else {
            return false;
        };
        session.last += 1;
        session.unreported.push_back((session.last, part));
        session.cores.iter_mut().for_each(|path| path.way.push_back(session.last));
        true
    }

    /// False: nothing is on its way, or the journal is full.
    fn take(&mut self, session: usize, core: usize) -> bool {
        let path = &mut self.sessions[session].cores[core];
        let Some(&seq) = path.way.front() else { return false };
        if self.journals[core].len() == self.limit + self.beyond {
            self.was_refused = true;
            return false;
        }
        path.way.pop_front();
        path.taken = seq;
        self.journals[core].push_back((session, seq));
        let is_at_limit = self.is_at_limit(core);
        self.holding[core] |= is_at_limit;
        self.sessions[session].cores[core].acks.push_back((seq, is_at_limit));
        true
    }

    fn hear(&mut self, session: usize, core: usize) -> bool {
        let Session { windows, unreported, cores, .. } = &mut self.sessions[session];
        let Some((seq, is_at_limit)) = cores[core].acks.pop_front() else { return false };
        windows[core].hold(is_at_limit);
        cores[core].acknowledged = seq;
        let reported = cores.iter().map(|path| path.acknowledged).min().expect("there are cores");
        unreported.retain(|(seq, _)| *seq > reported);
        true
    }

    /// The oldest record goes if every core has it.
    fn trim(&mut self, core: usize) -> bool {
        let everywhere = |(session, seq): &Record| {
            self.sessions[*session].cores.iter().all(|path| path.taken >= *seq)
        };
        if !self.journals[core].front().is_some_and(everywhere) {
            return false;
        }
        self.journals[core].pop_front();
        if self.holding[core] && !self.is_at_limit(core) {
            self.holding[core] = false;
            for session in &mut self.sessions {
                let path = &mut session.cores[core];
                path.acks.push_back((path.taken, false));
            }
        }
        true
    }

    /// Everything that can happen happens, but for new writes. True: then nothing is left anywhere.
    fn comes_to_rest(&mut self) -> bool {
        let each = || (0..SESSIONS).flat_map(|session| (0..CORES).map(move |core| (session, core)));
        loop {
            let mut moved = false;
            for (session, core) in each() {
                moved |= self.take(session, core) | self.hear(session, core) | self.trim(core);
            }
            if !moved {
                return self.journals.iter().all(VecDeque::is_empty);
            }
        }
    }

    fn act(&mut self, what: u8, session: usize, core: usize) {
        let _moved = match what {
            0..=3 => self.begin(session),
            4..=6 => self.take(session, core),
            7 => self.hear(session, core),
            _ => self.trim(core),
        };
    }
}

fn acts() -> impl Strategy<Value = Vec<(u8, usize, usize)>> {
    prop::collection::vec((0u8..9, 0..SESSIONS, 0..CORES), 1..400)
}

proptest! {
    #[test]
    fn journals_never_wait_for_each_other(acts in acts()) {
        let mut world = World::new(LIMIT, SESSIONS * WINDOW);
        for (what, session, core) in acts {
            world.act(what, session, core);
        }
        prop_assert!(world.comes_to_rest(), "records wait for each other");
        prop_assert!(!world.was_refused);
        for session in 0..SESSIONS {
            prop_assert!(world.begin(session), "a session was never told that it may write again");
        }
    }
}

/// What holds and the room beyond the limit are for.
#[test]
fn without_room_for_what_is_on_its_way_they_would_wait_for_each_other() {
    let mut world = World::new(LIMIT, 0);
    // each core hears of other sessions first
    for (core, first) in [0, 2].into_iter().enumerate() {
        for session in [first, first + 1] {
            (0..WINDOW).for_each(|_| _ = world.begin(session));
            (0..WINDOW).for_each(|_| _ = world.take(session, core));
        }
    }
    assert!(!world.comes_to_rest() && world.was_refused);
}
