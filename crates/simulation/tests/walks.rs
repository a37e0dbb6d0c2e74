//! A few walks with every build, so that a change that breaks the protocol or the simulator is seen
//! at once; the many are `cargo xtask sim`'s.

use protocol::Rules;
use simulation::walk::{Found, shrink};
use simulation::{Focus, walk};

fn explain(focus: Focus, found: &Found) -> String {
    let (short, story) = shrink(Rules::default(), &[], focus, found);
    format!(
        "{}\n{}\nagain: cargo xtask sim --seed {} --seeds 1 --focus {focus:?}",
        short.what,
        story.join("\n"),
        found.seed
    )
}

#[test]
fn no_invariant_breaks() {
    for focus in Focus::ALL {
        let run = walk(Rules::default(), focus, 1..60, false, |_| true);
        assert_eq!(
            run.walks,
            59,
            "{}",
            run.found.as_ref().map_or_else(String::new, |found| explain(focus, found))
        );
        assert!(run.covered["clean end"] == 59 && run.steps > 5_000, "{:?}", run.covered);
    }
}

#[test]
fn a_seed_gives_the_same_walk() {
    let of = |seed: u64| {
        let run = walk(Rules::default(), Focus::Any, seed..seed + 5, false, |_| true);
        (run.steps, run.covered)
    };
    assert_eq!(of(40), of(40));
}
