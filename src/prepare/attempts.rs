//! Which prepares are under way, so that an unprepare can call them off.
//!
//! The kubelet drops a prepare that it no longer wants, because the pod was deleted or because it took too long, and asks
//! for unprepare instead. The work of the dropped call goes on meanwhile, and may be waiting: for the API server, for
//! NVML, for another claim's GPU. If it went on after the unprepare, it would prepare a claim that nobody unprepares any
//! more, and its GPU would be taken for ever.
//!
//! ```text
//!  prepare    begin ─── waits ──────┬───────── lock ─ called off? ─ work
//!                                   └ called off: ends
//!  unprepare              call_off ─ lock ─ work
//! ```

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::claim::ClaimUid;

/// Prepares by claim. A claim takes memory only while one is under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts {
    claims: Arc<Mutex<HashMap<ClaimUid, UnderWay>>>,
}

#[derive(Debug, Default)]
struct UnderWay {
    count: usize,
    /// Of those that nobody has called off yet.
    call_off: CancellationToken,
}

/// One prepare under way, until this is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    attempts: Attempts,
    uid: ClaimUid,
    called_off: CancellationToken,
}

// === impl Attempts ===

impl Attempts {
    pub(super) fn begin(&self, uid: &ClaimUid) -> Ticket {
        let mut claims = self.claims();
        let under_way = claims.entry(uid.clone()).or_default();
        under_way.count += 1;
        Ticket { attempts: self.clone(), uid: uid.clone(), called_off: under_way.call_off.clone() }
    }

    /// Calls off all that have begun.
    pub(super) fn call_off(&self, uid: &ClaimUid) {
        if let Some(under_way) = self.claims().get_mut(uid) {
            // Those that begin from now on get another one.
            mem::take(&mut under_way.call_off).cancel();
        }
    }

    /// Whether a prepare of the claim is under way.
    pub(super) fn is_under_way(&self, uid: &ClaimUid) -> bool {
        self.claims().contains_key(uid)
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimUid, UnderWay>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ticket ===

impl Ticket {
    pub(super) fn is_called_off(&self) -> bool {
        self.called_off.is_cancelled()
    }

    /// Waits for that.
    pub(super) async fn called_off(&self) {
        self.called_off.cancelled().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut claims = self.attempts.claims();
        if let Some(under_way) = claims.get_mut(&self.uid) {
            under_way.count -= 1;
            if under_way.count == 0 {
                claims.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::claim::example::mk_uid;

    #[test]
    fn what_has_begun_is_called_off_and_what_begins_later_is_not() {
        let (attempts, uid) = (Attempts::default(), mk_uid("a"));
        attempts.call_off(&uid);
        let first = attempts.begin(&uid);
        let other = attempts.begin(&mk_uid("b"));
        assert!(!first.is_called_off());
        attempts.call_off(&uid);
        let second = attempts.begin(&uid);
        assert!(first.is_called_off() && !second.is_called_off() && !other.is_called_off());
        drop(first);
        assert!(!second.is_called_off());
    }

    #[tokio::test]
    async fn whoever_waits_hears_of_it() {
        let (attempts, uid) = (Attempts::default(), mk_uid("a"));
        let ticket = attempts.begin(&uid);
        let mut waiting = Box::pin(ticket.called_off());
        assert!((&mut waiting).now_or_never().is_none());
        attempts.call_off(&uid);
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn nothing_is_kept_of_what_has_ended() {
        let (attempts, uid) = (Attempts::default(), mk_uid("a"));
        let tickets = [attempts.begin(&uid), attempts.begin(&uid)];
        attempts.call_off(&uid);
        drop(tickets);
        assert!(attempts.claims().is_empty());
    }
}
