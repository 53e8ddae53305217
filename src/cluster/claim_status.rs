//! What the status of a claim says of the devices that are prepared here: `status.devices` of a ResourceClaim.
//!
//! Whoever counts what a pod uses, or looks for the GPU behind a name, finds its UUID there. For a MIG device that was
//! made for its claim, no slice has one.
//!
//! ```text
//!  prepared ─────┐                 ┌─ a claim's newest state, at most 4 claims at once ─▶ apply to its status
//!                ├──▶ Queue ───────┤                                                        │
//!  unprepared ───┘      ▲          └─ not prepared (any more): our entries go               │
//!                       └────────── pause ◀── it may pass by itself, up to 10 times ◀───────┘
//! ```
//!
//! # Guarantees
//!
//! * Nobody waits for it: what is reported goes into a queue of bounded length, and whatever becomes of it fails nothing.
//! * Requests of one claim never overtake each other, so that its last state is what stays.
//! * Entries come by server-side apply, whose field manager is this driver on this node. Those of other drivers and
//!   nodes, the allocation and the reservations are never written, whatever we have read of them.
//! * A claim whose status is as it should be is not written. A condition keeps the time of its transition.

mod entries;
mod queue;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Method, StatusCode};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

pub use self::entries::DeviceStatus;
use self::queue::{Job, Queue};
use super::request::RequestError;
use super::{Cluster, is_name};
use crate::claim::{ClaimName, ClaimUid};

/// How many claims are written at once: more would only compete with claims that are to be read.
const AT_ONCE: usize = 4;

/// Between attempts, from and to; each is drawn out at random to at most double.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// After so many attempts, four to eight minutes, a status is given up. The claim's next prepare writes it.
const ATTEMPTS: usize = 10;

/// The longest name of a field manager, in bytes.
const MAX_MANAGER: usize = 128;

/// Takes what is to be written. Cheap to clone; all clones share one queue.
#[derive(Clone)]
pub struct ClaimStatuses {
    driver: Arc<str>,
    node: Arc<str>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    news: Notify,
}

/// Writes what is in the queue.
struct Writer<P> {
    cluster: Cluster,
    manager: String,
    shared: Arc<Shared>,
    is_prepared: P,
    /// Each of these is said once, and again when it was better meanwhile.
    forbidden: AtomicBool,
    dropped: AtomicBool,
}

// === impl ClaimStatuses ===

impl ClaimStatuses {
    /// The way in, and the task behind it, which runs until it is dropped. `is_prepared` tells, just before a claim is
    /// written, whether it still is prepared; it must not block.
    pub fn new<P>(cluster: Cluster, is_prepared: P) -> (Self, impl Future<Output = ()> + Send + use<P>)
    where
        P: Fn(&ClaimUid) -> bool + Send + Sync + 'static,
    {
        let shared = Arc::<Shared>::default();
        let statuses = Self {
            driver: cluster.driver.as_str().into(),
            node: cluster.node.as_str().into(),
            shared: Arc::clone(&shared),
        };
        let manager = field_manager(&cluster.driver, &cluster.node);
        let (forbidden, dropped) = Default::default();
        let writer = Writer { cluster, manager, shared, is_prepared, forbidden, dropped };
        (statuses, async move { writer.run().await })
    }

    /// A claim was prepared with these devices. `known` is what its status said of our devices when it was read.
    pub fn prepared(&self, name: &ClaimName, uid: &ClaimUid, known: &[Value], devices: &[DeviceStatus]) {
        let now = Timestamp::now();
        let entry = |device: &DeviceStatus| device.entry(&self.driver, &self.node, known, now);
        let (entries, right): (Vec<_>, Vec<_>) = devices.iter().map(entry).unzip();
        let is_right = right.into_iter().all(|right| right);
        self.report(name, uid, entries, is_right);
    }

    /// A claim is not prepared any more.
    pub fn unprepared(&self, name: &ClaimName, uid: &ClaimUid) {
        self.report(name, uid, Vec::new(), false);
    }

    fn report(&self, name: &ClaimName, uid: &ClaimUid, entries: Vec<Value>, is_right: bool) {
        // The kubelet names claims, and a path is built of these names.
        if !is_name(&name.namespace) || !is_name(&name.name) {
            return;
        }
        let mut queue = self.shared.queue();
        // What is right now is not what it will be when a removal is at work.
        if is_right && !queue.knows(uid) {
            return;
        }
        let job = Job { uid: uid.clone(), name: name.clone(), entries, due: Instant::now(), pauses: pauses() };
        if queue.put(job) {
            self.shared.news.notify_one();
        } else {
            debug!(claim.uid = %uid, claim = %name, "too many claims wait for their status to be written; left one out");
        }
    }
}

// === impl Shared ===

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Writer ===

impl<P: Fn(&ClaimUid) -> bool> Writer<P> {
    async fn run(self) {
        let mut flights = FuturesUnordered::new();
        loop {
            let is_free = flights.len() < AT_ONCE;
            let job = if is_free { self.shared.queue().take(Instant::now()) } else { None };
            if let Some(mut job) = job {
                if !(self.is_prepared)(&job.uid) {
                    job.entries.clear();
                }
                flights.push(async {
                    let again = self.write(&job).await;
                    (job, again)
                });
                continue;
            }
            let due = self.shared.queue().next_due();
            tokio::select! {
                Some((job, again)) = flights.next() => self.shared.queue().landed(job, again),
                () = self.shared.news.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if is_free && due.is_some() => {}
            }
        }
    }

    /// Writes the status of a claim. Answers when to try again, if that may help: at the earliest after so long.
    async fn write(&self, job: &Job) -> Option<Duration> {
        let Job { uid, name, entries, .. } = job;
        let error = match self.apply(job).await {
            Ok(claim) => {
                self.forbidden.store(false, Ordering::Relaxed);
                let dropped = !entries::are_in(&claim, entries);
                if !self.dropped.swap(dropped, Ordering::Relaxed) && dropped {
                    warn!(
                        "the API server does not keep what claims' status says of devices: the feature gate \
                         DRAResourceClaimDeviceStatus is off"
                    );
                }
                return None;
            }
            Err(error) => error,
        };
        match error.code() {
            // Gone, and its status with it.
            Some(StatusCode::NOT_FOUND) if error.is_object_missing() => None,
            Some(StatusCode::FORBIDDEN) => {
                if !self.forbidden.swap(true, Ordering::Relaxed) {
                    let driver = &self.cluster.driver;
                    warn!(
                        %error,
                        "the API server does not allow to write claims' status; grant the driver patch on \
                         resourceclaims/status and, for Kubernetes 1.36 and newer, associated-node:patch on \
                         resourceclaims/driver {driver}"
                    );
                }
                None
            }
            // Credentials are read again while we run; a race is lost to whoever wrote the claim meanwhile.
            Some(StatusCode::UNAUTHORIZED | StatusCode::CONFLICT) => Some(Duration::ZERO),
            // The version is negotiated anew.
            _ if error.is_transient() || error.is_path_missing() => Some(error.retry_after().unwrap_or_default()),
            _ => {
                warn!(claim.uid = %uid, claim = %name, %error, "cannot write the status of the claim's devices");
                None
            }
        }
    }

    /// Makes our entries of the claim these and no others; the claim as it is then.
    async fn apply(&self, job: &Job) -> Result<Value, RequestError> {
        let Job { uid, name: ClaimName { namespace, name }, entries, .. } = job;
        let Cluster { requests, negotiated, .. } = &self.cluster;
        let version = negotiated.get(requests).await?;
        let mut claim = json!({
            "apiVersion": version.api_version(), "kind": "ResourceClaim",
            // Another claim of that name is left alone.
            "metadata": {"name": name, "uid": uid.as_str()},
        });
        // A manager that applies nothing leaves nothing behind, not even itself.
        if !entries.is_empty() {
            claim["status"] = json!({"devices": entries});
        }
        let path =
            format!("namespaces/{namespace}/resourceclaims/{name}/status?fieldManager={}&force=true", self.manager);
        let answer = requests.send(Method::PATCH, &version.path(&path), Some(&claim)).await;
        if answer.as_ref().is_err_and(RequestError::is_path_missing) {
            negotiated.forget(version);
        }
        answer
    }
}

fn pauses() -> ExponentialBackoff {
    let [min, max] = PAUSES;
    let backoff = ExponentialBuilder::new().with_min_delay(min).with_max_delay(max).with_jitter();
    backoff.with_max_times(ATTEMPTS - 1).build()
}

/// Of one driver on one node: each removes what it has applied itself.
fn field_manager(driver: &str, node: &str) -> String {
    let name = format!("{driver}/{node}");
    if name.len() <= MAX_MANAGER {
        return name;
    }
    format!("{driver}/{}", BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(node)))
}

#[cfg(test)]
mod tests;
