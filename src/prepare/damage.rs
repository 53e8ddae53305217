//! Records that cannot be used because they could not be read, kept until somebody takes note of them.
//!
//! Whoever finds one is on the way of a call of the kubelet and tells nobody but the log; whoever tells people may have
//! to wait for the API server.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::causes::with_causes;
use crate::device::GpuUuid;

/// A record that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRecord {
    /// Where it is now: where it was moved to, or where it always was if it cannot even be read.
    pub file: PathBuf,
    /// Why it could not be used.
    pub reason: String,
    /// The GPUs that it names: nobody else is given them until its claim is unprepared. If there are none, a GPU may be in
    /// use of which nobody knows.
    pub gpus: BTreeSet<GpuUuid>,
}

/// Those that nobody has taken note of.
#[derive(Debug, Default)]
pub(super) struct Damage {
    unnoted: Mutex<Vec<DamagedRecord>>,
    news: Notify,
}

// === impl Damage ===

impl Damage {
    /// A record is now here, and names these GPUs.
    pub(super) fn add(&self, file: &Path, why: &(dyn Error + 'static), gpus: BTreeSet<GpuUuid>) {
        let record = DamagedRecord { file: file.to_owned(), reason: with_causes(why), gpus };
        self.unnoted.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        self.news.notify_one();
    }

    /// Waits until there are some, and hands them over.
    pub(super) async fn take(&self) -> Vec<DamagedRecord> {
        loop {
            let unnoted = std::mem::take(&mut *self.unnoted.lock().unwrap_or_else(PoisonError::into_inner));
            if !unnoted.is_empty() {
                return unnoted;
            }
            self.news.notified().await;
        }
    }
}
