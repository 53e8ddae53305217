//! How often we may write.
//!
//! Whatever goes wrong (a webhook that changes every slice, two plugins that undo each other's work, a bug here), one
//! node must not become a load for the API server: thousands of nodes run the same code.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Writes in any minute. A 16-GPU node under dynamic MIG has 18 slices, so that a new generation still goes out in one go.
pub(super) const WRITES: usize = 18;

/// Dry runs in any minute: one finds out about most slices that follow.
pub(super) const DRY_RUNS: usize = 6;

/// That minute.
pub(super) const WINDOW: Duration = Duration::from_secs(60);

/// The times of the writes of the last minute.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    window: Duration,
    recent: VecDeque<Instant>,
}

// === impl Budget ===

impl Budget {
    /// For so many in any minute, whose length is [`WINDOW`] where time is real.
    pub(super) fn new(limit: usize, window: Duration) -> Self {
        Self { limit, window, recent: VecDeque::new() }
    }

    /// How long to wait before making this many writes in a row; zero when they may go out now. More than fit into one
    /// minute may start when next to nothing else was written in the last one.
    pub(super) fn wait_for(&mut self, writes: usize, now: Instant) -> Duration {
        while self.recent.front().is_some_and(|write| now.duration_since(*write) >= self.window) {
            self.recent.pop_front();
        }
        let excess = (self.recent.len() + writes.min(self.limit)).saturating_sub(self.limit);
        let Some(last) = excess.checked_sub(1).and_then(|index| self.recent.get(index)) else {
            return Duration::ZERO;
        };
        (*last + self.window).duration_since(now)
    }

    /// Takes note of a write, whether or not it succeeds.
    pub(super) fn spend(&mut self, now: Instant) {
        self.recent.push_back(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn no_minute_has_more_writes_than_the_limit() {
        let (start, mut budget) = (Instant::now(), Budget::new(WRITES, WINDOW));
        let mut now = start;
        let mut times = Vec::new();
        for _ in 0..100 {
            now += budget.wait_for(1, now);
            budget.spend(now);
            times.push(now);
        }
        for (index, time) in times.iter().enumerate() {
            let in_a_minute = times[index..].iter().take_while(|other| **other < *time + WINDOW).count();
            assert!(in_a_minute <= WRITES, "{in_a_minute} writes from write {index} on");
        }
    }

    #[test]
    fn writes_that_belong_together_wait_until_all_fit() {
        let (start, mut budget) = (Instant::now(), Budget::new(WRITES, WINDOW));
        (0..10).for_each(|second| budget.spend(after(start, second)));
        let now = after(start, 20);
        assert_eq!(budget.wait_for(8, now), Duration::ZERO);
        // Eleven fit when the third of the ten writes is a minute old.
        assert_eq!(budget.wait_for(11, now), after(start, 62) - now);
    }

    #[test]
    fn more_than_a_minutes_worth_starts_once_the_last_minute_was_quiet() {
        let (start, mut budget) = (Instant::now(), Budget::new(WRITES, WINDOW));
        assert_eq!(budget.wait_for(40, start), Duration::ZERO);
        budget.spend(start);
        assert_eq!(budget.wait_for(40, start), WINDOW);
        assert_eq!(budget.wait_for(40, start + WINDOW), Duration::ZERO);
    }
}
