//! Whether an OSD's next heartbeat leaves, decided without clock and I/O.
//!
//! Contract: a core that stands still (a disk that takes seconds for a write holds its thread)
//! takes the OSD out of the cluster after [`STUCK_MAX`], if the others can go on without it: then
//! clients wait for that long and no longer. So does a disk whose syncs are late, for which only
//! fsyncs wait, if the others' are not. It returns by itself once all its cores have moved for a
//! while, longer each time, so that a disk that is slow again and again is not in again and again.
//! If the others cannot go on, nothing is won by leaving, and it stays until it is dead for all
//! purposes ([`SILENCE_MAX`]). A process that stood still as a whole (SIGSTOP, a machine without
//! time for it) blames no disk.
//!
//! **Late syncs.** A disk that takes seconds for every sync never stands still for long, and would
//! hold up every fsync for ever. The length of a sync alone says little, for a disk that is well is
//! busy for seconds with what was written in seconds: it may take longer by what it has to do
//! ([`allowed`]). And what load explains, be it that of somebody else on the same disk, the others
//! have as well: an OSD leaves only if most of them sync much faster ([`lags`]): [`MUCH`] times as
//! fast where one sync is late, twice where the one before was late too, or where it has lasted for
//! the grace once more. One that does not end takes its OSD out after [`SYNC_STUCK_MAX`], however
//! fast the others are.

use ec_store::core::SyncSeen;
use std::time::{Duration, Instant};

/// A core without a sign of life for so long is stuck: the grace that a silent OSD has.
const STUCK_MAX: Duration = Duration::from_secs(2);
/// A disk that has not ended the sync of a single file for so long is stuck. Longer: one that is
/// only busy writes back in a sync what it took in seconds.
const SYNC_STUCK_MAX: Duration = Duration::from_secs(5);
/// What a disk that is well writes at least, in bytes per second, when it is told to sync.
const SYNC_RATE: u64 = 64 << 20;
/// What it takes at most for one more file: several seeks, and a commit of the file system.
const SYNC_FILE: Duration = Duration::from_millis(100);
/// Two slow syncs that took longer than this from begin to end had something between them.
const ROW_MAX: Duration = Duration::from_secs(20);
/// Slow syncs that ended so long ago say nothing of now. Longer than between two heartbeats.
const ROW_FRESH: Duration = Duration::from_secs(3);
/// How many times as fast the others must sync, at least, where one late sync is all that speaks
/// against a disk.
const MUCH: u64 = 4;
/// And where there is more.
const MORE: u64 = 2;
/// What others are told of syncs goes so far back.
const LATE: Duration = Duration::from_secs(10);
/// A core silent for so long takes its OSD down whether the others can go on or not. Long, since
/// its PGs then wait.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Steps further apart than this mean that this process stood still; then cores get [`STUCK_MAX`]
/// anew.
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
    /// For how long syncs have been slow: see [`Slow`].
    pub slow_for: Duration,
    /// See [`lags`]. Counts only with `slow_for`.
    pub lags: bool,
    /// Can every PG of this OSD go on without it?
    pub spare: bool,
}

impl Signs {
    fn are_of_a_stuck_core(self) -> bool {
        self.silence > STUCK_MAX || self.sync_stall > SYNC_STUCK_MAX
    }

    fn are_of_a_slow_disk(self) -> bool {
        !self.slow_for.is_zero()
    }

    /// What of them fell into the last `running`.
    fn within(self, running: Duration) -> Signs {
        let slow_for = if self.slow_for < running { self.slow_for } else { Duration::ZERO };
        Signs {
            silence: self.silence.min(running),
            sync_stall: self.sync_stall.min(running),
            slow_for,
            ..self
        }
    }
}

/// What a sync may take: the grace, and what its files and bytes explain.
fn allowed(sync: &SyncSeen) -> Duration {
    let files = u32::try_from(sync.files.saturating_sub(1)).unwrap_or(u32::MAX);
    STUCK_MAX
        + SYNC_FILE.saturating_mul(files)
        + Duration::from_millis(sync.bytes.saturating_mul(1_000) / SYNC_RATE)
}

/// Syncs of a core that took longer than is [`allowed`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Slow {
    /// For how long they have been slow; zero: they are not.
    pub lasting: Duration,
    /// How many times as fast the others must be, at least, for the disk to be to blame.
    pub than: u64,
}

/// How slow the syncs of a core are, given the last two: since the first began, if both were late,
/// else since the last did. That need not have ended.
pub(super) fn slow(syncs: &[Option<SyncSeen>; 2], now: Instant) -> Slow {
    let [first, Some(last)] = syncs else { return Slow::default() };
    let is_fresh = last.ended.is_none_or(|at| now.saturating_duration_since(at) <= ROW_FRESH);
    let late_by =
        |sync: &SyncSeen| sync.took(now).checked_sub(allowed(sync)).filter(|late| !late.is_zero());
    let Some(late) = late_by(last).filter(|_| is_fresh) else { return Slow::default() };
    let since = |sync: &SyncSeen| now.saturating_duration_since(sync.began);
    match first.filter(|first| late_by(first).is_some() && since(first) <= ROW_MAX) {
        Some(first) => Slow { lasting: since(&first), than: MORE },
        None => Slow { lasting: since(last), than: if late > STUCK_MAX { MORE } else { MUCH } },
    }
}

/// The longest of a core's last two syncs, if it is not long ago.
pub(super) fn longest_of_late(syncs: &[Option<SyncSeen>; 2], now: Instant) -> Duration {
    let of_late =
        |sync: &&SyncSeen| sync.ended.is_none_or(|at| now.saturating_duration_since(at) <= LATE);
    syncs.iter().flatten().filter(of_late).map(|sync| sync.took(now)).max().unwrap_or_default()
}

/// Do most of the others sync so many times as fast, at least? Given the longest sync of late of
/// each; 0: none, so it says nothing.
pub(super) fn lags(than: u64, mine_ms: u64, others_ms: impl Iterator<Item = u64>) -> bool {
    let (mut others, mut faster) = (0, 0);
    for other_ms in others_ms.filter(|other_ms| *other_ms > 0) {
        others += 1;
        faster += usize::from(other_ms <= mine_ms / than);
    }
    faster * 2 > others
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
            if signs.are_of_a_stuck_core() || signs.are_of_a_slow_disk() {
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
        let recent = signs.within(running);
        match recent.are_of_a_stuck_core() || recent.are_of_a_slow_disk() && signs.lags {
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
    const WELL: Signs = Signs {
        silence: Duration::ZERO,
        sync_stall: Duration::ZERO,
        slow_for: Duration::ZERO,
        lags: false,
        spare: true,
    };

    fn silent(millis: u64, spare: bool) -> Signs {
        Signs { silence: Duration::from_millis(millis), spare, ..WELL }
    }

    fn syncing(millis: u64) -> Signs {
        Signs { sync_stall: Duration::from_millis(millis), ..WELL }
    }

    fn late(millis: u64) -> Signs {
        Signs { slow_for: Duration::from_millis(millis), lags: true, ..WELL }
    }

    /// Two syncs of a core, each as (began, ended), in milliseconds.
    fn syncs(
        begin: Instant,
        times: [(u64, Option<u64>); 2],
        files: usize,
        bytes: u64,
    ) -> [Option<SyncSeen>; 2] {
        let at = |millis| begin + Duration::from_millis(millis);
        times.map(|(began, ended)| {
            Some(SyncSeen { began: at(began), ended: ended.map(at), files, bytes })
        })
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
        let out =
            [Step::Leave, Step::Away, Step::Away, Step::Away, Step::Away, Step::Return, Step::Beat];
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
            run(&mut rhythm, &mut now, &silences, true)
                .iter()
                .filter(|step| **step == Step::Away)
                .count()
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
        assert_eq!(
            [step(0, false), step(4_900, false)],
            [Step::Beat; 2],
            "one that is only slow does not"
        );
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
    #[test]
    fn a_late_sync_is_of_a_slow_disk_and_two_are_the_more() {
        let begin = Instant::now();
        let slow_at = |millis: u64, times| {
            let now = begin + Duration::from_millis(millis);
            let slow = slow(&syncs(begin, times, 1, 1 << 20), now);
            (slow.lasting.as_millis(), slow.than)
        };
        assert_eq!(slow_at(6_100, [(0, Some(3_000)), (3_050, Some(6_050))]), (6_100, MORE));
        assert_eq!(
            slow_at(5_200, [(0, Some(3_000)), (3_050, None)]),
            (5_200, MORE),
            "the second need not end"
        );
        assert_eq!(slow_at(5_000, [(0, Some(3_000)), (3_050, None)]), (0, 0), "not slow yet");
        assert_eq!(slow_at(3_200, [(0, Some(3_000)), (3_050, Some(3_100))]), (0, 0), "well again");
        assert_eq!(slow_at(5_900, [(0, Some(1_900)), (2_000, None)]), (3_900, MUCH), "it alone");
        assert_eq!(
            slow_at(6_100, [(0, Some(1_900)), (2_000, None)]),
            (4_100, MORE),
            "as long as two"
        );
        assert_eq!(slow_at(9_100, [(0, Some(3_000)), (3_050, Some(6_050))]), (0, 0), "over");
        assert_eq!(
            slow_at(43_100, [(0, Some(3_000)), (40_000, Some(43_050))]),
            (3_100, MUCH),
            "far apart"
        );
        assert_eq!(slow(&[None; 2], begin), Slow::default());
    }

    #[test]
    fn what_a_sync_has_to_do_explains_its_length() {
        let begin = Instant::now();
        let now = begin + Duration::from_secs(8);
        let both = |files, bytes| {
            slow(&syncs(begin, [(0, Some(4_000)), (4_000, Some(8_000))], files, bytes), now).lasting
        };
        assert!(!both(1, 0).is_zero());
        assert!(!both(10, 32 << 20).is_zero(), "a little more");
        assert!(
            both(1, 200 << 20).is_zero(),
            "a disk that is busy with what was written in seconds"
        );
        assert!(both(100, 0).is_zero(), "a trim");
        assert!(both(usize::MAX, u64::MAX).is_zero());
    }

    #[test]
    fn what_is_told_of_syncs_is_of_late() {
        let begin = Instant::now();
        let seen = syncs(begin, [(0, Some(3_000)), (3_050, Some(3_150))], 1, 0);
        let longest =
            |seconds| longest_of_late(&seen, begin + Duration::from_secs(seconds)).as_millis();
        assert_eq!([longest(4), longest(13), longest(14)], [3_000, 3_000, 0]);
        assert_eq!(longest_of_late(&[None; 2], begin), Duration::ZERO);
    }

    #[test]
    fn only_one_that_is_slower_than_most_lags() {
        let lags = |mine, others: &[u64]| super::lags(MORE, mine, others.iter().copied());
        assert!(lags(3_000, &[20, 1]) && lags(3_000, &[20, 2_900, 100]));
        assert!(
            !lags(3_000, &[2_500, 2_900, 0, 0, 0]),
            "those that have nothing to sync do not count"
        );
        assert!(!lags(3_000, &[2_500, 20]), "not most");
        assert!(!lags(3_000, &[2_500, 2_900]), "a disk for all");
        assert!(!lags(3_000, &[]), "nobody to compare with");
        assert!(
            lags(2_100, &[900, 1]) && !super::lags(MUCH, 2_100, [900, 1].into_iter()),
            "faster, but not much"
        );
    }

    #[test]
    fn a_slow_disk_takes_its_osd_out_if_it_lags() {
        let mut now = Instant::now();
        let mut rhythm = Rhythm::new(now);
        let mut step = |signs, left| {
            now += EVERY;
            rhythm.step(now, signs, left)
        };
        assert_eq!(step(Signs { lags: false, ..late(6_000) }, false), Step::Beat, "all are slow");
        assert_eq!(
            step(Signs { spare: false, ..late(6_000) }, false),
            Step::Beat,
            "the others need it"
        );
        assert_eq!(step(late(6_000), false), Step::Leave);
        // away: nobody is asked any more how fast the others are
        assert_eq!(step(Signs { lags: false, ..late(7_000) }, true), Step::Away);
        let mut steps = vec![];
        for _ in 0..5 {
            steps.push(step(WELL, true));
        }
        assert_eq!(steps, [Step::Away, Step::Away, Step::Away, Step::Return, Step::Beat]);
        // a process that stood still in the middle of both syncs
        now += Duration::from_secs(4);
        assert_eq!(rhythm.step(now, late(8_000), false), Step::Beat);
        now += EVERY;
        assert_eq!(rhythm.step(now, late(8_500), false), Step::Beat);
    }
}
