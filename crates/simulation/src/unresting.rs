//! A writer that does not rest beside shards that return.
//!
//! Contract: the least favourable order of what may happen without a fault: between any two steps
//! of a way back the writer overwrites what it has, its write becomes stable, and the members apply
//! it and trim their journals. All shards must be in sync again all the same.

use crate::act::Act;
use crate::world::{Check, N, World};
use fastrand::Rng;
use protocol::ShardSet;
use protocol::namespace::LeaseMode;

/// Steps of ways back in which all shards must be in sync: without a writer they take some fifty,
/// and a hundred more for each object that is written meanwhile.
const WAY_STEPS_MAX: usize = 800;
/// Steps between two of them, at most: what is repeated for as long as nobody answers would not
/// end.
const OTHER_STEPS_MAX: usize = 400;

/// Steps of ways back after which a hold is over, as after `HOLD_MAX` of the product: more than
/// an object takes.
const HOLD_STEPS_MAX: usize = 120;

/// A step of a way back?
fn is_of_way(act: &Act) -> bool {
    matches!(act, Act::Way { .. } | Act::Serve { .. })
}

/// What happens by itself between two steps of a way back, and comes to an end. A hold lasts longer
/// than a question and its answer.
fn is_other(act: &Act) -> bool {
    !is_of_way(act) && !act.is_new() && !matches!(act, Act::GiveBack { .. } | Act::HoldsEnd { .. })
}

/// What is possible without an end.
fn is_repeated(act: &Act) -> bool {
    matches!(act, Act::Tick { .. } | Act::Renew { .. } | Act::MdsTick | Act::MonitorTick)
}

/// The writer goes on until all shards are in sync. Nothing happens if no session may write.
///
/// # Errors
/// An invariant's name, and how it broke.
pub fn write_on(
    world: &mut World,
    rng: &mut Rng,
    acts: &mut Vec<Act>,
    trace: &mut Vec<Act>,
) -> Check {
    for steps in 1..=WAY_STEPS_MAX {
        if steps % HOLD_STEPS_MAX == 0 {
            world.acts(acts);
            acts.retain(|act| matches!(act, Act::HoldsEnd { .. }));
            for act in std::mem::take(acts) {
                step(world, act, trace)?;
            }
        }
        for _ in 0..OTHER_STEPS_MAX {
            world.acts(acts);
            acts.retain(is_other);
            let stable = world.clients.iter().all(|client| client.stable == client.writes);
            if acts.iter().all(is_repeated) && stable && world.map().view.active {
                break;
            }
            let Some(act) = pick(rng, acts) else { break };
            step(world, act.with(rng.u32(..)), trace)?;
        }
        let writer = (0..world.clients.len()).find(|s| world.may_use(*s, 0, LeaseMode::Write));
        let Some(s) = writer.filter(|s| world.is_live(*s)) else { return Ok(()) };
        let view = world.map().view;
        if view.active && view.in_sync == ShardSet::first(N as u8) {
            world.cover("all shards are back beside a writer that does not rest");
            return Ok(());
        }
        world.acts(acts);
        acts.retain(is_of_way);
        if let Some(act) = pick(rng, acts) {
            step(world, act, trace)?;
        }
        step(world, Act::Write { s, o: 0, v: rng.u32(..) }, trace)?;
        step(world, Act::Fsync { s }, trace)?;
    }
    Err(format!("progress: a writer that does not rest keeps a shard away: {}", world.standing()))
}

fn pick(rng: &mut Rng, acts: &[Act]) -> Option<Act> {
    (!acts.is_empty()).then(|| acts[rng.usize(0..acts.len())])
}

fn step(world: &mut World, act: Act, trace: &mut Vec<Act>) -> Check {
    trace.push(act);
    world.step(act)
}
