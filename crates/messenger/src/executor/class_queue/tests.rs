use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const LARGEST_BYTES: usize = 100_000;

fn class() -> impl Strategy<Value = TrafficClass> {
    (0..CLASSES).prop_map(|index| TrafficClass::ALL[index])
}

fn weights() -> impl Strategy<Value = ClassWeights> {
    let one = 1..=CLASS_WEIGHT_MAX;
    (one.clone(), one.clone(), one).prop_map(|(i, ii, iii)| ClassWeights::new(i, ii, iii).unwrap())
}

fn order() -> impl Strategy<Value = ClassOrder> {
    prop_oneof![weights().prop_map(ClassOrder::Shares), Just(ClassOrder::Arrival)]
}

#[derive(Clone, Debug)]
enum Step {
    Push(TrafficClass, usize),
    Pop,
    Order(ClassOrder),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (class(), prop_oneof![9 => 0..LARGEST_BYTES, 1 => Just(usize::MAX)])
            .prop_map(|(class, bytes)| Step::Push(class, bytes)),
        5 => Just(Step::Pop),
        1 => order().prop_map(Step::Order),
    ]
}

/// Cost served to each class.
fn cost(queue: &ClassQueue<usize>, class: TrafficClass) -> f64 {
    let figures = queue.figures(class);
    (figures.served_bytes + figures.served * OPERATION_COST) as f64
}

proptest! {
    /// Whatever arrives in whatever order: nothing is lost, made up or overtaken within its class,
    /// an entry comes whenever there is one, and memory follows what is queued.
    #[test]
    fn each_class_is_a_queue_and_none_is_idle_beside_entries(
        start in order(),
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let mut queue = ClassQueue::new(start);
        let mut expected: [VecDeque<usize>; CLASSES] = Default::default();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(class, bytes) => {
                    queue.push(class, bytes, number);
                    expected[class.index()].push_back(number);
                }
                Step::Pop => match queue.pop() {
                    Some((class, entry)) => {
                        prop_assert_eq!(expected[class.index()].pop_front(), Some(entry));
                    }
                    None => prop_assert!(expected.iter().all(VecDeque::is_empty)),
                },
                Step::Order(order) => queue.set_order(order),
            }
            prop_assert_eq!(queue.len(), expected.iter().map(VecDeque::len).sum::<usize>());
        }
        while queue.pop().is_some() {}
        for lane in &queue.lanes {
            prop_assert_eq!(lane.figures.queued_bytes, 0);
            prop_assert!(lane.capacity() <= 2 * IDLE_ENTRIES_MAX);
        }
    }

    /// Classes that never run dry share by weight, within the module's bound, at every moment.
    #[test]
    fn shares_of_full_classes_follow_the_weights(
        weights in weights(),
        bytes in prop::collection::vec(prop::array::uniform3(0..LARGEST_BYTES), 1..40),
        full in prop::array::uniform3(any::<bool>()),
    ) {
        let classes = TrafficClass::ALL.into_iter();
        let full: Vec<_> = classes.filter(|class| full[class.index()]).collect();
        let mut queue = ClassQueue::new(weights);
        for _ in 0..20 {
            for bytes in &bytes {
                for class in &full {
                    queue.push(*class, bytes[class.index()], 0);
                }
            }
        }
        let largest = (LARGEST_BYTES as u64 + OPERATION_COST) as f64;
        while !full.is_empty() && full.iter().all(|class| queue.figures(*class).queued > 1) {
            queue.pop();
            for a in &full {
                for b in &full {
                    let in_round = |class: &TrafficClass| weights.round(class.index()) as f64;
                    let apart = cost(&queue, *a) / in_round(a) - cost(&queue, *b) / in_round(b);
                    let bound = 2.0 + largest / in_round(a) + largest / in_round(b);
                    prop_assert!(apart.abs() < bound, "{a:?} {b:?}: {apart} of {bound}");
                }
            }
        }
    }

    /// A heartbeat is next however much lies in II and III, and whatever was served before.
    #[test]
    fn a_message_of_an_idle_class_one_is_next(
        weights in weights(),
        queued in prop::collection::vec((any::<bool>(), 0..LARGEST_BYTES), 1..200),
        served in 0usize..100,
    ) {
        let mut queue = ClassQueue::new(weights);
        for (client, bytes) in &queued {
            let class = if *client { TrafficClass::Client } else { TrafficClass::Background };
            queue.push(class, *bytes, 0);
        }
        for _ in 0..served {
            queue.pop();
        }
        queue.push(TrafficClass::Control, LARGEST_BYTES, 1);
        prop_assert_eq!(queue.pop(), Some((TrafficClass::Control, 1)));
    }

    /// Class III is served within what the others get in the rounds that pay one entry of III.
    #[test]
    fn class_three_is_never_starved(weights in weights(), bytes in 0..LARGEST_BYTES) {
        let mut queue = ClassQueue::new(weights);
        let largest = (LARGEST_BYTES as u64 + OPERATION_COST) as i64;
        let round = |class: TrafficClass| weights.round(class.index());
        let rounds = 2 + largest / round(TrafficClass::Background);
        let others = [TrafficClass::Control, TrafficClass::Client];
        let limit: i64 = others.map(|class| rounds * round(class) + largest).iter().sum();
        queue.push(TrafficClass::Background, LARGEST_BYTES, 0);
        for _ in 0..3 {
            queue.push(TrafficClass::Background, LARGEST_BYTES, 0);
            let mut between = 0;
            loop {
                for class in others {
                    queue.push(class, bytes, 0);
                    queue.push(class, bytes, 0);
                }
                match queue.pop() {
                    Some((TrafficClass::Background, _)) => break,
                    _ => between += (bytes as u64 + OPERATION_COST) as i64,
                }
                prop_assert!(between <= limit, "{between} of {limit}");
            }
        }
    }
}

#[test]
fn a_burst_of_class_one_does_not_shut_out_the_others() {
    let mut queue = ClassQueue::new(ClassWeights::default());
    for _ in 0..1000 {
        queue.push(TrafficClass::Control, 1000, 0);
        queue.push(TrafficClass::Background, 1000, 0);
    }
    for _ in 0..500 {
        queue.pop();
    }
    // 64 of 80 parts of 500, give or take the round that is not over: 13 entries of class I.
    let control = queue.figures(TrafficClass::Control).served;
    assert!((387..=413).contains(&control), "{control}");
    assert_eq!(queue.figures(TrafficClass::Background).served, 500 - control);
}

#[test]
fn a_class_alone_gets_everything_and_saves_nothing() {
    let mut queue = ClassQueue::new(ClassWeights::default());
    for number in 0..1000 {
        queue.push(TrafficClass::Background, 4096, number);
    }
    for number in 0..900 {
        assert_eq!(queue.pop(), Some((TrafficClass::Background, number)));
    }
    for number in 0..1000 {
        queue.push(TrafficClass::Client, 4096, number);
    }
    for _ in 0..50 {
        queue.pop();
    }
    let client = queue.figures(TrafficClass::Client).served;
    assert!((38..=42).contains(&client), "64 of 80, not what it did not ask for: {client}");
}

#[test]
fn weights_that_cannot_be_are_refused_with_the_range() {
    let refused = |i, ii, iii| ClassWeights::new(i, ii, iii).unwrap_err().to_string();
    assert_eq!(refused(1, 1, 0), "the weight of class III (background) is 0; it is 1 to 1000");
    assert_eq!(
        refused(1001, 1, 1),
        "the weight of class I (control) is above the maximum; it is 1 to 1000"
    );
    let weights = ClassWeights::new(1, 2, 1000).unwrap();
    assert_eq!(TrafficClass::ALL.map(|class| weights.of(class)), [1, 2, 1000]);
}

#[test]
fn without_weights_it_is_one_queue_and_classes_mean_nothing() {
    let mut queue = ClassQueue::new(ClassOrder::Arrival);
    let classes = [TrafficClass::Background, TrafficClass::Client, TrafficClass::Control];
    for number in 0..30 {
        queue.push(classes[number % 3], number * 10_000, number);
    }
    for number in 0..20 {
        assert_eq!(queue.pop(), Some((classes[number % 3], number)));
    }
    queue.set_order(ClassWeights::default());
    assert_eq!(queue.pop(), Some((TrafficClass::Control, 20)), "class I is next");
}

#[test]
fn the_text_of_an_order_is_read_as_it_is_shown() {
    for text in ["off", "I=64,II=64,III=16", "I=1,II=1000,III=7"] {
        assert_eq!(text.parse::<ClassOrder>().expect(text).to_string(), text);
    }
    let shuffled = "III=16, I=64 ,II=64".parse::<ClassOrder>();
    assert_eq!(shuffled, Ok(ClassWeights::default().into()), "in any order, with blanks");
    for text in ["", "on", "64,64,16", "I=64,II=64", "I=64,II=64,II=1,III=1", "I=64,II=64,III=-1"] {
        assert_eq!(text.parse::<ClassOrder>(), Err(ClassOrderError::Form), "{text}");
    }
    let refused = |text: &str| text.parse::<ClassOrder>().expect_err(text).to_string();
    assert!(refused("I=64,II=64,III=0").contains("class III (background) is 0; it is 1 to 1000"));
    let most = "99999999999999999999";
    assert!(refused(&format!("I=1,II={most},III=1")).contains("class II (client) is above"));
    assert!(refused("4").contains("allowed are off and"));
}
