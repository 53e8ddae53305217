//! Who works on which claim and which GPU.
//!
//! Work on one claim excludes other work on that claim, and likewise for each GPU; everything else runs side by side.
//! Waiters sleep until it is their turn, in the order in which they came.
//!
//! Deadlock cannot happen because all locks are taken in one order, which is that of [`Key`]: first a claim, then, once
//! its record or plan says which, its GPUs sorted by UUID.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::claim::ClaimUid;
use crate::device::GpuUuid;

/// What is locked. The order of the variants is the order of locking.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    Claim(ClaimUid),
    Gpu(GpuUuid),
}

/// Locks by key. A key takes memory only while somebody holds it or waits for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Locks {
    slots: Arc<Mutex<HashMap<Key, Arc<AsyncMutex<()>>>>>,
}

/// A key that is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    locks: Locks,
    key: Key,
    slot: Arc<AsyncMutex<()>>,
    /// `None` while waiting.
    guard: Option<OwnedMutexGuard<()>>,
}

// === impl Locks ===

impl Locks {
    pub(super) async fn claim(&self, uid: &ClaimUid) -> Held {
        self.one(Key::Claim(uid.clone())).await
    }

    pub(super) async fn gpus(&self, gpus: &BTreeSet<GpuUuid>) -> Vec<Held> {
        let mut held = Vec::with_capacity(gpus.len());
        for gpu in gpus {
            held.push(self.one(Key::Gpu(gpu.clone())).await);
        }
        held
    }

    async fn one(&self, key: Key) -> Held {
        let slot = Arc::clone(self.slots().entry(key.clone()).or_default());
        // Made before waiting: its drop tidies up also after a waiter that gave up.
        let mut held = Held { locks: self.clone(), key, slot, guard: None };
        held.guard = Some(Arc::clone(&held.slot).lock_owned().await);
        held
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Key, Arc<AsyncMutex<()>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Held ===

impl Drop for Held {
    fn drop(&mut self) {
        self.guard = None;
        let mut slots = self.locks.slots();
        // Ours and the map's: nobody else has the slot, and nobody can get it without the map.
        if Arc::strong_count(&self.slot) == 2 {
            slots.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    fn gpus(numbers: &[u32]) -> BTreeSet<GpuUuid> {
        numbers.iter().map(|number| crate::claim::example::mk_uuid(*number)).collect()
    }

    #[tokio::test]
    async fn one_key_has_one_holder_and_other_keys_are_free() {
        let locks = Locks::default();
        let held = locks.gpus(&gpus(&[0, 1])).await;
        assert!(locks.gpus(&gpus(&[1, 2])).now_or_never().is_none());
        assert!(locks.gpus(&gpus(&[2, 3])).now_or_never().is_some());
        drop(held);
        assert!(locks.gpus(&gpus(&[1, 2])).now_or_never().is_some());
    }

    #[tokio::test]
    async fn nothing_is_left_behind_by_holders_or_by_waiters_that_gave_up() {
        let locks = Locks::default();
        let gpu = gpus(&[0]);
        let held = locks.gpus(&gpu).await;
        let mut waiter = Box::pin(locks.gpus(&gpu));
        assert!((&mut waiter).now_or_never().is_none());
        drop(held);
        drop(waiter);
        assert!(locks.slots().is_empty());
    }

    #[tokio::test]
    async fn many_who_want_overlapping_sets_all_get_their_turn() {
        let locks = Locks::default();
        let work = (0..64_u32).map(|number| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let _held = locks.gpus(&gpus(&[number % 4, (number + 1) % 4, (number / 4) % 4])).await;
                tokio::task::yield_now().await;
            })
        });
        assert!(join_all(work).await.into_iter().all(|done| done.is_ok()));
        assert!(locks.slots().is_empty());
    }
}
