//! How long to wait before another look.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::cluster::request::RequestError;

/// After an error, from and to; each is drawn out at random to at most double.
pub(super) const AFTER_ERROR: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// After somebody touched our slices. A kubelet that wipes them does so one by one, so a moment's patience spares a
/// round; one that wipes them again and again is not fought.
pub(super) const AFTER_DISTURBANCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// After a watch that the server ended early, if it was a long one. Whatever happens meanwhile is seen by the next one, so
/// this is short of the 5 s in which slices come back, and long enough that watches which are cut every minute are
/// opened less than once a minute.
pub(super) const AFTER_CUT: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(30)];

/// After a plugin that was started later has changed our slices: much longer than the two run side by side. If that one
/// is gone without having been replaced, we publish again after that.
pub(super) const AFTER_SUPERSEDED: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(3600)];

/// A watch without an event for so long means that whoever disturbed us has stopped.
pub(super) const QUIET: Duration = Duration::from_secs(60);

/// Who touches our slices at most so often, and leaves nothing to repair, is no reason to be slow with the next repair.
pub(super) const HARMLESS: Duration = Duration::from_secs(5);

/// The longest that a server may tell us to wait. It is asked seldom enough by then.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Pauses that grow and do not run out.
pub(super) struct Pauses(<ExponentialBuilder as BackoffBuilder>::Backoff);

// === impl Pauses ===

impl Pauses {
    pub(super) fn new([min, max]: [Duration; 2]) -> Self {
        let pauses = ExponentialBuilder::new().with_min_delay(min).with_max_delay(max).with_jitter();
        Self(pauses.without_max_times().build())
    }

    /// Waits for the next one.
    pub(super) async fn pause<T>(&mut self, wanted: &watch::Receiver<T>) {
        pause(self.next(), wanted).await;
    }

    /// The same, but as long as the server asks for in any case.
    pub(super) async fn pause_after<T>(&mut self, error: &RequestError, wanted: &watch::Receiver<T>) {
        let asked = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
        let rest = self.next().saturating_sub(asked);
        sleep(asked).await;
        pause(rest, wanted).await;
    }

    /// How long it is.
    pub(super) fn next(&mut self) -> Duration {
        self.0.next().unwrap_or(AFTER_ERROR[1])
    }
}

/// Waits, but not while something else is wanted. That it is wanted is left for the next look to find.
pub(super) async fn pause<T>(pause: Duration, wanted: &watch::Receiver<T>) {
    let _ = timeout(pause, wanted.clone().changed()).await;
}
