//! What is still to be written: of each claim the newest state. Knows neither clock nor API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backon::ExponentialBackoff;
use serde_json::Value;
use tokio::time::Instant;

use crate::claim::{ClaimName, ClaimUid};

/// How many claims may wait. A node has some hundred pods.
const MAX_WAITING: usize = 1024;

/// A state of a claim, until it is written.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) uid: ClaimUid,
    pub(super) name: ClaimName,
    /// Our entries; none removes them.
    pub(super) entries: Vec<Value>,
    /// When to write it.
    pub(super) due: Instant,
    /// Before the attempts that are left.
    pub(super) pauses: ExponentialBackoff,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<ClaimUid, Job>,
    /// Claims that are being written. What comes for one of them waits until that is over.
    in_flight: BTreeSet<ClaimUid>,
}

// === impl Queue ===

impl Queue {
    /// Whether anything is to be written, or being written, for the claim.
    pub(super) fn knows(&self, uid: &ClaimUid) -> bool {
        self.waiting.contains_key(uid) || self.in_flight.contains(uid)
    }

    /// Takes a claim's newest state in place of any other. Whether there was room.
    pub(super) fn put(&mut self, job: Job) -> bool {
        let has_room = self.waiting.len() < MAX_WAITING || self.waiting.contains_key(&job.uid);
        if has_room {
            self.waiting.insert(job.uid.clone(), job);
        }
        has_room
    }

    /// What is to be written now, the longest due first. It must come back by [`landed`](Self::landed).
    pub(super) fn take(&mut self, now: Instant) -> Option<Job> {
        let uid = self.first().filter(|job| job.due <= now)?.uid.clone();
        self.in_flight.insert(uid.clone());
        self.waiting.remove(&uid)
    }

    /// When something is to be written.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.first().map(|job| job.due)
    }

    /// A request has ended. `again` tells that it may help to make it once more, after that time at the earliest.
    pub(super) fn landed(&mut self, mut job: Job, again: Option<Duration>) {
        self.in_flight.remove(&job.uid);
        let Some(again) = again else { return };
        if self.waiting.contains_key(&job.uid) {
            return;
        }
        let Some(pause) = job.pauses.next() else {
            let Job { uid, name, .. } = &job;
            tracing::warn!(claim.uid = %uid, claim = %name, "gave up writing the status of the claim's devices");
            return;
        };
        job.due = Instant::now() + pause.max(again);
        self.put(job);
    }

    fn first(&self) -> Option<&Job> {
        let is_free = |job: &&Job| !self.in_flight.contains(&job.uid);
        self.waiting.values().filter(is_free).min_by_key(|job| job.due)
    }
}

#[cfg(test)]
mod tests {
    use backon::{BackoffBuilder, ExponentialBuilder};
    use serde_json::json;

    use super::*;
    use crate::claim::example::mk_uid;

    fn job(uid: &str, state: u32, due: Instant) -> Job {
        Job {
            uid: mk_uid(uid),
            name: ClaimName { namespace: "team".to_owned(), name: uid.to_owned() },
            entries: vec![json!(state)],
            due,
            pauses: ExponentialBuilder::new().with_min_delay(Duration::from_secs(1)).with_max_times(1).build(),
        }
    }

    fn taken(queue: &mut Queue, now: Instant) -> Option<(String, Value)> {
        queue.take(now).map(|job| (job.uid.to_string(), job.entries[0].clone()))
    }

    #[tokio::test(start_paused = true)]
    async fn of_each_claim_the_newest_state_is_written_and_never_two_at_once() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        assert!(queue.put(job("a", 1, now)) && queue.put(job("a", 2, now)) && queue.put(job("b", 1, now)));
        let first = queue.take(now).unwrap();
        assert_eq!((first.uid.as_str(), &first.entries[0]), ("a", &json!(2)));
        queue.put(job("a", 3, now));
        assert_eq!(taken(&mut queue, now), Some(("b".to_owned(), json!(1))));
        assert_eq!((taken(&mut queue, now), queue.next_due()), (None, None), "a is still being written");
        // That it failed is no matter any more.
        queue.landed(first, Some(Duration::ZERO));
        assert_eq!(taken(&mut queue, now), Some(("a".to_owned(), json!(3))));
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_tried_again_after_a_pause_and_not_for_ever() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.put(job("a", 1, now));
        let first = queue.take(now).unwrap();
        assert!(queue.knows(&first.uid));
        queue.landed(first, Some(Duration::from_secs(30)));
        assert_eq!((taken(&mut queue, now), queue.next_due()), (None, Some(now + Duration::from_secs(30))));
        let second = queue.take(now + Duration::from_secs(30)).unwrap();
        let uid = second.uid.clone();
        queue.landed(second, Some(Duration::ZERO));
        assert!(!queue.knows(&uid));
    }

    #[tokio::test(start_paused = true)]
    async fn it_has_an_end_but_those_that_wait_are_still_brought_up_to_date() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for number in 0..MAX_WAITING {
            assert!(queue.put(job(&number.to_string(), 1, now)));
        }
        assert!(!queue.put(job("late", 1, now)));
        assert!(queue.put(job("7", 2, now)));
    }
}
