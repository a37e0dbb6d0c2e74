//! Whether an OSD's next heartbeat leaves, decided without clock and I/O.
//!
//! Contract: a core that stands still (a disk that takes seconds for a write holds its thread) takes the OSD out of the
//! cluster after [`STUCK_MAX`], if the others can go on without it: then clients wait for that long and no longer. A sync
//! that does not end, for which only fsyncs wait at first, does so after [`SYNC_STUCK_MAX`]. It
//! returns by itself once all its cores have moved for a while, longer each time, so that a disk that is slow again and
//! again is not in again and again. If the others cannot go on, nothing is won by leaving, and it stays until it is
//! dead for all purposes ([`SILENCE_MAX`]). A process that stood still as a whole (SIGSTOP, a machine without time for
//! it) blames no disk.

use std::time::{Duration, Instant};

/// A core without a sign of life for so long is stuck: the grace that a silent OSD has.
const STUCK_MAX: Duration = Duration::from_secs(2);
/// A disk that has not ended the sync of a single file for so long is stuck. Longer: one that is only busy writes back in a
/// sync what it took in seconds.
const SYNC_STUCK_MAX: Duration = Duration::from_secs(5);
/// A core silent for so long takes its OSD down whether the others can go on or not. Long, since its PGs then wait.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Steps further apart than this mean that this process stood still; then cores get [`STUCK_MAX`] anew.
const STALL_MIN: Duration = Duration::from_secs(1);
/// How long all cores must have moved before the first return; doubles with each time away.
const REST: Duration = Duration::from_secs(2);
/// Doublings at most: two minutes.
const REST_DOUBLINGS_MAX: u32 = 6;
/// Well for so long after a return, the next time away counts as the first again.
const WELL_AFTER: Duration = Duration::from_secs(600);

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Send a heartbeat.
    Beat,
    /// Leave the cluster. Also while the monitor has not confirmed it.
    Leave,
    /// Nothing: the OSD is out.
    Away,
    /// Nothing: the OSD is as good as dead.
    Silent,
    /// Boot again.
    Return,
}

/// What is seen at a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signs {
    /// How long the core that is silent longest has been silent.
    pub silence: Duration,
    /// For how long the disk has not ended a sync, though asked to.
    pub sync_stall: Duration,
    /// Can every PG of this OSD go on without it?
    pub spare: bool,
}

impl Signs {
    fn are_of_a_stuck_core(self) -> bool {
        self.silence > STUCK_MAX || self.sync_stall > SYNC_STUCK_MAX
    }

    /// What of them fell into the last `running`.
    fn within(self, running: Duration) -> Signs {
        Signs { silence: self.silence.min(running), sync_stall: self.sync_stall.min(running), ..self }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Rhythm {
    last_step: Instant,
    /// When this process last went on after it had stood still as a whole.
    went_on: Option<Instant>,
    /// Out; moving since when.
    away: Option<Instant>,
    returned: Option<Instant>,
    doublings: u32,
}

impl Rhythm {
    /// Begins in the cluster.
    pub fn new(now: Instant) -> Self {
        Self { last_step: now, went_on: None, away: None, returned: None, doublings: 0 }
    }

    /// The next step. `left`: the monitor knows that the OSD is out.
    pub fn step(&mut self, now: Instant, signs: Signs, left: bool) -> Step {
        if now.duration_since(self.last_step) > STALL_MIN {
            self.went_on = Some(now);
        }
        self.last_step = now;
        let running = self.went_on.map_or(Duration::MAX, |at| now.duration_since(at));
        if let Some(moving_since) = &mut self.away {
            if signs.are_of_a_stuck_core() {
                *moving_since = now;
            }
            let rest = REST * (1 << self.doublings.min(REST_DOUBLINGS_MAX));
            if now.duration_since(*moving_since) < rest {
                return if left { Step::Away } else { Step::Leave };
            }
            (self.away, self.returned, self.doublings) = (None, Some(now), self.doublings + 1);
            return Step::Return;
        }
        if self.returned.is_some_and(|at| now.duration_since(at) > WELL_AFTER) {
            (self.returned, self.doublings) = (None, 0);
        }
        match signs.within(running).are_of_a_stuck_core() {
            true if signs.spare => {
                self.away = Some(now);
                Step::Leave
            }
            true if signs.silence > SILENCE_MAX => Step::Silent,
            _ => Step::Beat,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(500);

    fn silent(millis: u64, spare: bool) -> Signs {
        Signs { silence: Duration::from_millis(millis), sync_stall: Duration::ZERO, spare }
    }

    fn syncing(millis: u64) -> Signs {
        Signs { silence: Duration::ZERO, sync_stall: Duration::from_millis(millis), spare: true }
    }

    /// Steps twice a second; silence as given for each.
    fn run(rhythm: &mut Rhythm, now: &mut Instant, silences: &[u64], spare: bool) -> Vec<Step> {
        let mut left = false;
        let step = |&millis: &u64| {
            *now += EVERY;
            let step = rhythm.step(*now, silent(millis, spare), left);
            left = matches!(step, Step::Leave | Step::Away);
            step
        };
        silences.iter().map(step).collect()
    }

    #[test]
    fn a_stuck_core_takes_its_osd_out_until_it_has_moved_for_a_while() {
        let mut now = Instant::now();
        let mut rhythm = Rhythm::new(now);
        let steps = run(&mut rhythm, &mut now, &[0, 900, 2_100, 2_600, 0, 0, 0, 0, 0], true);
        let out = [Step::Leave, Step::Away, Step::Away, Step::Away, Step::Away, Step::Return, Step::Beat];
        assert_eq!(steps[2..], out);
        assert_eq!(steps[..2], [Step::Beat; 2]);
    }

    #[test]
    fn each_time_away_is_longer_until_all_was_well_for_long() {
        let mut now = Instant::now();
        let mut rhythm = Rhythm::new(now);
        let mut away = || {
            let mut silences = vec![0; 600];
            silences[0] = 3_000;
            run(&mut rhythm, &mut now, &silences, true).iter().filter(|step| **step == Step::Away).count()
        };
        let times = [away(), away(), away()];
        assert!(times[0] < times[1] && times[1] < times[2], "{times:?}");
        let mut more = vec![];
        for _ in 0..8 {
            more.push(away());
        }
        assert_eq!(more[6], more[7], "bounded");
        run(&mut rhythm, &mut now, &vec![0; 1_300], true);
        let mut silences = vec![0; 20];
        silences[0] = 3_000;
        let again = run(&mut rhythm, &mut now, &silences, true);
        assert_eq!(again.iter().filter(|step| **step == Step::Away).count(), times[0]);
    }

    #[test]
    fn nobody_leaves_whom_the_others_need() {
        let mut now = Instant::now();
        let mut rhythm = Rhythm::new(now);
        let steps = run(&mut rhythm, &mut now, &[3_000, 9_000, 10_100, 0], false);
        assert_eq!(steps, [Step::Beat, Step::Beat, Step::Silent, Step::Beat]);
    }

    #[test]
    fn a_process_that_stood_still_blames_no_disk() {
        let mut now = Instant::now();
        let mut rhythm = Rhythm::new(now);
        run(&mut rhythm, &mut now, &[0, 0], true);
        now += Duration::from_secs(5);
        assert_eq!(run(&mut rhythm, &mut now, &[5_400, 100, 300], true), [Step::Beat; 3]);
    }

    #[test]
    fn leaving_is_told_until_it_was_heard() {
        let mut now = Instant::now();
        let mut rhythm = Rhythm::new(now);
        let signs = silent(3_000, true);
        for _ in 0..3 {
            now += EVERY;
            assert_eq!(rhythm.step(now, signs, false), Step::Leave);
        }
        now += EVERY;
        assert_eq!(rhythm.step(now, signs, true), Step::Away);
    }

    #[test]
    fn a_sync_that_does_not_end_takes_its_osd_out_too() {
        let mut now = Instant::now();
        let mut rhythm = Rhythm::new(now);
        let mut step = |millis, left| {
            now += EVERY;
            rhythm.step(now, syncing(millis), left)
        };
        assert_eq!([step(0, false), step(4_900, false)], [Step::Beat; 2], "one that is only slow does not");
        assert_eq!(step(5_100, false), Step::Leave);
        assert_eq!([step(60_000, true), step(0, true)], [Step::Away; 2]);
        // the process stands still in the middle of a sync
        now += Duration::from_secs(60);
        let mut rhythm = Rhythm::new(now);
        now += Duration::from_secs(8);
        assert_eq!(rhythm.step(now, syncing(8_000), false), Step::Beat);
        now += EVERY;
        assert_eq!(rhythm.step(now, syncing(8_500), false), Step::Beat);
    }
}
