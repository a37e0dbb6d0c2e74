//! A few walks of replicated logs with every build; the many are `cargo xtask sim`'s.

use protocol::Rules;
use simulation::quorum::walk;

#[test]
fn no_invariant_of_a_replicated_log_breaks() {
    let run = walk(Rules::default(), 1..400, false, |_| true);
    if let Some(found) = &run.found {
        let from = found.story.len().saturating_sub(60);
        panic!("{} (seed {})\n{}", found.what, found.seed, found.story[from..].join("\n"));
    }
    println!("{:#?}", run.covered);
    assert_eq!(run.covered["at rest"], 399);
}

#[test]
fn a_seed_gives_the_same_walk_of_replicated_logs() {
    let of = |seed: u64| walk(Rules::default(), seed..seed + 5, false, |_| true).covered;
    assert_eq!(of(40), of(40));
}
