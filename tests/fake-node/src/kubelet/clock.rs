//! How fast the fake kubelet's time runs.
//!
//! The kubelet's own waits are long (a failed prepare costs a pod 60–90 s), so tests run them faster. What a plugin must
//! meet by its own clock, which nobody speeds up, stays real unless a test asks otherwise: RPC deadlines and the age at
//! which a health report is stale.

use std::time::Duration;

/// The speed of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clock {
    /// How many of the kubelet's seconds pass in a real second; 1.0 is real time, 20.0 turns 60 s into 3 s.
    pub scale: f64,
    /// Whether RPC deadlines and health timeouts run at that speed too.
    pub scale_deadlines: bool,
}

// === impl Clock ===

impl Clock {
    /// Real time.
    pub const REAL: Self = Self { scale: 1.0, scale_deadlines: false };

    /// Time that runs `scale` times as fast, but for deadlines.
    pub fn scaled(scale: f64) -> Self {
        Self { scale, ..Self::REAL }
    }

    /// How long a wait of the kubelet takes in real time.
    pub(crate) fn wait(self, of: Duration) -> Duration {
        of.div_f64(self.scale)
    }

    /// How long in real time a plugin has.
    pub(crate) fn deadline(self, of: Duration) -> Duration {
        if self.scale_deadlines { self.wait(of) } else { of }
    }

    /// Waits.
    pub(crate) async fn sleep(self, wait: Duration) {
        tokio::time::sleep(self.wait(wait)).await;
    }

    /// Waits for `base` and up to `factor` of it more, as the kubelet does to spread load.
    pub(crate) async fn sleep_jittered(self, base: Duration, factor: f64) {
        self.sleep(base.mul_f64(1.0 + factor * fraction())).await;
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::REAL
    }
}

/// A number in 0..1 that differs from call to call. Spreading needs no better source than the hasher's random keys.
fn fraction() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    f64::from(u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_shrink_and_deadlines_only_on_demand() {
        let clock = Clock::scaled(20.0);
        assert_eq!(clock.wait(Duration::from_secs(60)), Duration::from_secs(3));
        assert_eq!(clock.deadline(Duration::from_secs(1)), Duration::from_secs(1));
        let clock = Clock { scale_deadlines: true, ..clock };
        assert_eq!(clock.deadline(Duration::from_secs(1)), Duration::from_millis(50));
    }

    #[test]
    fn spreading_stays_within_its_factor() {
        assert!((0..100).map(|_| fraction()).all(|f| (0.0..=1.0).contains(&f)));
    }
}
