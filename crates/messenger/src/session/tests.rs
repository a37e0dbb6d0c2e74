use super::*;
use crate::wire::frame::TrafficClass;
use bytes::Bytes;
use proptest::prelude::*;

fn message(number: u64) -> Message {
    Message::new(
        TrafficClass::Client,
        1,
        Bytes::copy_from_slice(&number.to_le_bytes()),
        Bytes::new(),
    )
}

fn number(message: &Message) -> u64 {
    u64::from_le_bytes(message.front[..].try_into().expect("eight bytes"))
}

/// What travels: number, acknowledgement, content (none: an acknowledgement by itself).
type Wire = VecDeque<(u64, u64, Option<u64>)>;

struct End {
    session: Session,
    queued: u64,
    delivered: Vec<u64>,
    /// Bytes sent and not yet received, which a lost TCP connection takes with it.
    wire: Wire,
}

impl End {
    fn new() -> End {
        End { session: Session::default(), queued: 0, delivered: Vec::new(), wire: Wire::new() }
    }

    fn transmit(&mut self) {
        let ack = self.session.received();
        if let Some((seq, message)) = self.session.next_to_send() {
            let content = number(message);
            self.session.take_ack();
            self.wire.push_back((seq, ack, Some(content)));
        } else if self.session.ack_due().is_some() {
            let ack = self.session.take_ack();
            self.wire.push_back((0, ack, None));
        }
    }

    fn receive(&mut self, from: &mut Wire, now: Instant) {
        let Some((seq, ack, content)) = from.pop_front() else { return };
        match content {
            None => self.session.acknowledge(ack).expect("sane"),
            Some(content) => {
                let arrival = self
                    .session
                    .arrive(seq, ack, 64, now, &SessionConfig::default())
                    .expect("sane");
                if arrival == Arrival::New {
                    self.delivered.push(content);
                }
            }
        }
        self.session.check_invariants();
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Queue(bool),
    Transmit(bool),
    Receive(bool),
    /// TCP is lost with what is on it, and made again.
    Cut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(Step::Queue),
        8 => any::<bool>().prop_map(Step::Transmit),
        8 => any::<bool>().prop_map(Step::Receive),
        1 => Just(Step::Cut),
    ];
    proptest::collection::vec(step, 0..400)
}

fn cut(a: &mut End, b: &mut End) {
    a.wire.clear();
    b.wire.clear();
    a.session.lost();
    b.session.lost();
    let (a_received, b_received) = (a.session.received(), b.session.received());
    a.session.resume(b_received).expect("resumable");
    b.session.resume(a_received).expect("resumable");
}

proptest! {
    #[test]
    fn nothing_is_lost_or_doubled_whenever_tcp_is(steps in steps()) {
        let now = Instant::now();
        let (mut a, mut b) = (End::new(), End::new());
        for step in steps {
            let (end, other) = match step {
                Step::Queue(false) | Step::Transmit(false) | Step::Receive(false) => (&mut a, &mut b),
                _ => (&mut b, &mut a),
            };
            match step {
                Step::Queue(_) => {
                    end.queued += 1;
                    let content = end.queued;
                    end.session.enqueue(message(content));
                }
                Step::Transmit(_) => end.transmit(),
                Step::Receive(_) => end.receive(&mut other.wire, now),
                Step::Cut => cut(&mut a, &mut b),
            }
        }
        for _ in 0..2000 {
            a.transmit();
            b.transmit();
            a.receive(&mut b.wire, now);
            b.receive(&mut a.wire, now);
        }
        prop_assert_eq!(&b.delivered, &(1..=a.queued).collect::<Vec<_>>());
        prop_assert_eq!(&a.delivered, &(1..=b.queued).collect::<Vec<_>>());
        for end in [&a, &b] {
            prop_assert!(!end.session.has_unacknowledged() && !end.session.has_unsent());
            prop_assert_eq!((end.session.in_flight_bytes(), end.session.unsent_bytes()), (0, 0));
        }
    }
}

#[test]
fn gaps_and_false_acknowledgements_are_errors() {
    let (now, config) = (Instant::now(), SessionConfig::default());
    let mut session = Session::default();
    assert_eq!(
        session.arrive(2, 0, 10, now, &config),
        Err(FrameError::Sequence { expected: 1, got: 2 })
    );
    assert_eq!(
        session.arrive(1, 1, 10, now, &config),
        Err(FrameError::Sequence { expected: 0, got: 1 })
    );
    session.enqueue(message(1));
    assert!(session.acknowledge(1).is_err(), "queued, but not sent");
    assert!(session.next_to_send().is_some());
    assert!(session.acknowledge(1).is_ok());
    assert!(session.resume(0).is_err(), "the peer forgot what it had acknowledged");
    assert!(session.resume(2).is_err(), "the peer has what was never sent");
    assert!(session.resume(1).is_ok());
}

#[test]
fn acknowledgements_are_due_by_count_bytes_and_time() {
    let (now, config) = (Instant::now(), SessionConfig::default());
    let mut session = Session::default();
    session.arrive(1, 0, 10, now, &config).expect("in order");
    assert_eq!(session.ack_due(), Some(now + config.ack_after));
    session.arrive(2, 0, config.ack_bytes, now, &config).expect("in order");
    assert_eq!(session.ack_due(), Some(now));
    assert_eq!(session.take_ack(), 2);
    assert_eq!(session.ack_due(), None);
    for seq in 3..3 + u64::from(config.ack_frames) {
        session.arrive(seq, 0, 1, now, &config).expect("in order");
    }
    assert_eq!(session.ack_due(), Some(now));
    session.take_ack();
    assert_eq!(session.arrive(1, 0, 1, now, &config), Ok(Arrival::Duplicate));
    assert_eq!(session.ack_due(), Some(now), "the peer does not know that it arrived");
}
