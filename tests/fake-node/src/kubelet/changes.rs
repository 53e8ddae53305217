//! Lets scenarios wait for a state instead of sleeping until it is probably there.

use tokio::sync::watch;

/// Counts changes of anything that can be waited for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(watch::Sender<u64>);

// === impl Changes ===

impl Changes {
    /// Something changed: everyone who waits looks again. Call it after the change, without its lock held.
    pub(crate) fn notify(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// Waits until `look` finds what it looks for.
    pub(crate) async fn wait_for<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut changes = self.0.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(found) = look() {
                return found;
            }
            // Cannot fail: `self` holds the sender.
            let _ = changes.changed().await;
        }
    }
}
