//! Records that were moved aside because they could not be read, kept until somebody takes note of them.
//!
//! Whoever finds one is on the way of a call of the kubelet and tells nobody but the log; whoever tells people may have
//! to wait for the API server.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::causes::with_causes;

/// A record that was moved aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRecord {
    /// Where it is now.
    pub file: PathBuf,
    /// Why it could not be used.
    pub reason: String,
}

/// Those that nobody has taken note of.
#[derive(Debug, Default)]
pub(super) struct Damage {
    unnoted: Mutex<Vec<DamagedRecord>>,
    news: Notify,
}

// === impl Damage ===

impl Damage {
    /// A record is now here.
    pub(super) fn add(&self, file: &Path, why: &(dyn Error + 'static)) {
        let record = DamagedRecord { file: file.to_owned(), reason: with_causes(why) };
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
