//! Measures how long jobs take. It times one of many jobs at a time, so it costs next to nothing.

use base::{Duration, Time};

/// Times one job at a time, and keeps a moving average.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch {
    /// The job that is timed, and when it began.
    running: Option<(u64, Time)>,
    mean: Duration,
    /// When a job last ended, timed or not.
    ended: Time,
    /// A timed job has ended since the last call of `ask`.
    news: bool,
}

impl Stopwatch {
    /// A job begins. It is timed if no other one is.
    #[inline]
    pub(crate) fn begins(&mut self, now: Time, job: u64) {
        if self.running.is_none() {
            self.running = Some((job, now));
        }
    }

    /// A job ended.
    #[inline]
    pub(crate) fn ends(&mut self, now: Time, job: u64) {
        self.ended = now;
        if let Some((_, since)) = self.running.take_if(|(timed, _)| *timed == job) {
            self.mean = smooth(self.mean, now.since(since));
            self.news = true;
        }
    }

    /// Returns the moving average, or the age of the timed job if that is longer. `None`: no job
    /// was timed since the last call.
    pub(crate) fn ask(&mut self, now: Time) -> Option<Duration> {
        let age = self.running.map_or(Duration::ZERO, |(_, since)| now.since(since));
        let news = core::mem::take(&mut self.news) || self.running.is_some();
        news.then(|| self.mean.max(age))
    }

    /// Returns for how long no job at all has ended while one is timed. A device that works ends
    /// some jobs, however many wait for each other.
    pub(crate) fn stalled_for(&self, now: Time) -> Duration {
        self.running.map_or(Duration::ZERO, |(_, since)| now.since(since.max(self.ended)))
    }
}

/// Returns the average after one more value, which counts a quarter.
pub(crate) fn smooth(mean: Duration, value: Duration) -> Duration {
    mean - mean / 4 + value / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_device_stalls_only_while_nothing_ends() {
        let s = |n: u64| Time(n * 1_000_000_000);
        let secs = Duration::from_secs;
        let mut watch = Stopwatch::default();
        assert_eq!(watch.stalled_for(s(9)), Duration::ZERO, "nothing is to be done");
        (0..100).for_each(|n| watch.begins(s(10), n));
        for n in 1..20 {
            watch.ends(s(10 + n), n);
            assert_eq!(watch.stalled_for(s(11 + n)), secs(1));
        }
        assert_eq!(watch.ask(s(30)), Some(secs(20)), "the first one is behind others");
        assert_eq!(watch.stalled_for(s(41)), secs(12));
        watch.ends(s(42), 0);
        assert_eq!(watch.stalled_for(s(60)), Duration::ZERO);
        watch.begins(s(60), 100);
        assert_eq!(watch.stalled_for(s(61)), secs(1), "it had nothing to do before");
    }

    #[test]
    fn one_job_is_timed_at_a_time_and_a_hanging_one_is_reported() {
        let ms = |n: u64| Time(n * 1_000_000);
        let mut watch = Stopwatch::default();
        assert_eq!(watch.ask(ms(0)), None);
        watch.begins(ms(0), 1);
        watch.begins(ms(1), 2);
        watch.ends(ms(3), 2);
        assert_eq!(watch.ask(ms(4)), Some(Duration::from_millis(4)), "1 has not ended");
        watch.ends(ms(40), 1);
        assert_eq!(watch.ask(ms(50)), Some(Duration::from_millis(10)), "one value counts little");
        assert_eq!(watch.ask(ms(60)), None, "nothing new");
        for n in 0..40 {
            watch.begins(ms(100 + n * 100), n);
            watch.ends(ms(180 + n * 100), n);
        }
        let mean = watch.ask(ms(9000)).unwrap();
        assert!(
            (Duration::from_millis(79)..=Duration::from_millis(80)).contains(&mean),
            "{mean:?}"
        );
    }
}
