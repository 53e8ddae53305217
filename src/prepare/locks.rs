//! Who works on which claim and which GPU.
//!
//! Work on one claim excludes other work on that claim, and likewise for each GPU; everything else runs side by side.
//! Waiters sleep until it is their turn, in the order in which they came. Other plugin processes on the same directory are
//! excluded too, by [`siblings`](super::siblings), once it is somebody's turn here: without any, that is a system call.
//! One of them may hang, so their slots are asked for again and again: a wait takes no thread, and who waits may give up.
//!
//! Deadlock cannot happen because all locks are taken in one order, which is that of [`Slot`]: first a claim, then, once
//! its record or plan says which, its GPUs, then for each call of NVML the turn at one GPU.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::sleep;
use tracing::info;

use super::siblings::{LockError, Range, Siblings, Slot};
use crate::claim::ClaimUid;
use crate::device::GpuUuid;

/// Between questions whether another process is done, from and to: its work takes milliseconds.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// Locks by slot. A slot takes memory only while somebody holds it or waits for it.
#[derive(Debug, Clone)]
pub(super) struct Locks {
    siblings: Arc<Siblings>,
    slots: Arc<Mutex<HashMap<Slot, Arc<AsyncMutex<()>>>>>,
}

/// A slot that is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    locks: Locks,
    slot: Slot,
    /// Counts us among those who use it. `None` at the end.
    mutex: Option<Arc<AsyncMutex<()>>>,
    /// `None` while waiting for others in this process.
    guard: Option<OwnedMutexGuard<()>>,
    /// `None` while waiting for other processes.
    range: Option<Range>,
}

// === impl Locks ===

impl Locks {
    pub(super) fn new(siblings: Arc<Siblings>) -> Self {
        Self { siblings, slots: Arc::default() }
    }

    pub(super) async fn claim(&self, uid: &ClaimUid) -> Result<Held, LockError> {
        self.one(Slot::claim(uid)).await
    }

    pub(super) async fn gpus(&self, gpus: &BTreeSet<GpuUuid>) -> Result<Vec<Held>, LockError> {
        // In order, and each once.
        let slots: BTreeSet<_> = gpus.iter().map(Slot::gpu).collect();
        let mut held = Vec::with_capacity(slots.len());
        for slot in slots {
            held.push(self.one(slot).await?);
        }
        Ok(held)
    }

    /// The turn at a GPU in NVML. It goes with the call, and may be held long after who asked for it has given up.
    pub(super) async fn turn(&self, gpu: &GpuUuid) -> Result<Held, LockError> {
        self.one(Slot::turn(gpu)).await
    }

    async fn one(&self, slot: Slot) -> Result<Held, LockError> {
        let mutex = Arc::clone(self.slots().entry(slot).or_default());
        // Made before waiting: its drop tidies up also after a waiter that gave up.
        let mut held = Held { locks: self.clone(), slot, mutex: Some(Arc::clone(&mutex)), guard: None, range: None };
        held.guard = Some(mutex.lock_owned().await);
        held.range = self.siblings.try_lock(slot)?;
        if held.range.is_none() {
            info!("waiting for another plugin process, which is at work on the same claim or GPU");
        }
        let [min, max] = PAUSES;
        let mut pauses = ExponentialBuilder::new().with_min_delay(min).with_max_delay(max).without_max_times().build();
        while held.range.is_none() {
            sleep(pauses.next().unwrap_or(max)).await;
            held.range = self.siblings.try_lock(slot)?;
        }
        Ok(held)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Slot, Arc<AsyncMutex<()>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Held ===

impl Drop for Held {
    fn drop(&mut self) {
        // Other processes first: who comes next here must not find it locked by us.
        self.range = None;
        self.guard = None;
        let mut slots = self.locks.slots();
        // Within the lock, or two that end at once would each leave it to the other.
        self.mutex = None;
        // The map's: nobody else has the mutex, and nobody can get it without the map.
        if slots.get(&self.slot).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            slots.remove(&self.slot);
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

    /// Those of the processes on one directory.
    fn processes<const N: usize>() -> (tempfile::TempDir, [Locks; N]) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let locks = std::array::from_fn(|_| Locks::new(Siblings::open(&path).unwrap()));
        (directory, locks)
    }

    #[tokio::test]
    async fn one_key_has_one_holder_and_other_keys_are_free() {
        let (_directory, [locks]) = processes();
        let held = locks.gpus(&gpus(&[0, 1])).await.unwrap();
        let both = gpus(&[0, 1]);
        assert!(locks.gpus(&both).now_or_never().is_none());
        let free = gpus(&[2, 3]);
        assert!(locks.gpus(&free).now_or_never().is_some());
        drop(held);
        assert!(locks.gpus(&both).now_or_never().is_some());
    }

    #[tokio::test]
    async fn nothing_is_left_behind_by_holders_or_by_waiters_that_gave_up() {
        let (_directory, [locks]) = processes();
        let gpu = gpus(&[0]);
        let held = locks.gpus(&gpu).await.unwrap();
        let mut waiter = Box::pin(locks.gpus(&gpu));
        assert!((&mut waiter).now_or_never().is_none());
        drop(held);
        drop(waiter);
        assert!(locks.slots().is_empty());
    }

    #[tokio::test]
    async fn what_another_process_holds_is_waited_for() {
        let (_directory, [ours, others]) = processes();
        let held = others.gpus(&gpus(&[0, 1])).await.unwrap();
        assert!(ours.gpus(&gpus(&[2, 3])).now_or_never().is_some());
        let wanted = gpus(&[1, 2]);
        let mut waiter = Box::pin(ours.gpus(&wanted));
        assert!((&mut waiter).now_or_never().is_none());
        drop(held);
        let got = waiter.await.unwrap();
        assert!(others.gpus(&gpus(&[1])).now_or_never().is_none());
        drop(got);
    }

    #[tokio::test]
    async fn a_waiter_that_gave_up_takes_nothing_from_those_behind_it() {
        let (_directory, [ours, others, third]) = processes();
        let gpu = gpus(&[0]);
        let held = others.gpus(&gpu).await.unwrap();
        let mut gives_up = Box::pin(ours.gpus(&gpu));
        assert!((&mut gives_up).now_or_never().is_none());
        drop(gives_up);
        let mut behind = Box::pin(ours.gpus(&gpu));
        assert!((&mut behind).now_or_never().is_none());
        drop(held);
        let got = behind.await.unwrap();
        assert!(third.siblings.try_lock(Slot::gpu(gpu.first().unwrap())).unwrap().is_none());
        drop(got);
        let slot = Slot::gpu(gpu.first().unwrap());
        assert!(third.siblings.try_lock(slot).unwrap().is_some());
        assert!(ours.slots().is_empty());
    }

    #[test]
    fn waiting_for_another_process_takes_no_thread() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.max_blocking_threads(2).enable_time();
        runtime.start_paused(true).build().unwrap().block_on(async {
            let (_directory, [ours, hung]) = processes();
            let held = hung.gpus(&gpus(&[0, 1, 2, 3])).await.unwrap();
            let mut waiters = tokio::task::JoinSet::new();
            for gpu in 0..4 {
                let ours = ours.clone();
                waiters.spawn(async move { ours.gpus(&gpus(&[gpu])).await.map(drop) });
            }
            sleep(Duration::from_secs(60)).await;
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            assert_eq!(waiters.len(), 4);
            assert!(waiters.try_join_next().is_none(), "they wait");
            drop(held);
            while let Some(done) = waiters.join_next().await {
                done.unwrap().unwrap();
            }
        });
    }

    #[tokio::test]
    async fn many_who_want_overlapping_sets_all_get_their_turn() {
        let (_directory, processes) = processes::<3>();
        let work = (0..96_u32).map(|number| {
            let locks = processes[number as usize % 3].clone();
            tokio::spawn(async move {
                let _held = locks.gpus(&gpus(&[number % 4, (number + 1) % 4, (number / 4) % 4])).await.unwrap();
                tokio::task::yield_now().await;
            })
        });
        assert!(join_all(work).await.into_iter().all(|done| done.is_ok()));
        assert!(processes.iter().all(|locks| locks.slots().is_empty()));
    }
}
