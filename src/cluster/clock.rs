//! How fast our own time runs.
//!
//! What keeps slices right works in minutes and hours: a stalled watch, an outage, limits of writes per minute. A test
//! with the real binary, sockets and a server of its own cannot wait for these and can have them pass faster. What others
//! decide stays as it is: how long a request may take, what a server asks for, how old a token gets.

use std::num::NonZeroU32;
use std::time::Duration;

/// The speed of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    scale: NonZeroU32,
}

// === impl Clock ===

impl Clock {
    /// One second a second.
    pub const REAL: Self = Self { scale: NonZeroU32::MIN };

    /// So many seconds a second.
    pub fn scaled(scale: NonZeroU32) -> Self {
        Self { scale }
    }

    /// How long it really takes.
    pub(super) fn real(self, duration: Duration) -> Duration {
        duration / self.scale.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_real_unless_somebody_wants_it_faster() {
        let hour = Duration::from_secs(3600);
        assert_eq!(Clock::REAL.real(hour), hour);
        assert_eq!(Clock::scaled(NonZeroU32::new(60).unwrap()).real(hour), Duration::from_secs(60));
    }
}
