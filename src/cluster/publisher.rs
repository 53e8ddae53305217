//! Keeps the node's ResourceSlices in the API server as they should be.
//!
//! ```text
//!          ┌──────────────────────────────────────────────────────────────────────────┐
//!          ▼                                                                          │
//!        list ──▶ changes ──▶ none: accepted ──▶ watch from there ──▶ wanted changed ─┤
//!          ▲         │                               ├─ its time is up ───────────────┤ and the Node is read again
//!          │         │                               ├─ somebody touched a slice ─────┤ after a pause that grows
//!          │         └─▶ delete, update, create ─┐   └─ ended early, failed ──────────┤ after a pause that grows
//!          └─────────────────────────────────────┘                                      and versions are asked for
//! ```
//!
//! There is no cache to be stale: every decision is made on a list that is as new as the server has it, and a pool
//! counts as accepted when such a list shows nothing left to do. The watch only says when to look again, and starts
//! where the list ended: whatever it reports was done by somebody else.
//!
//! Nothing is withdrawn when the plugin stops; running pods keep their devices and the next plugin finds its slices.
//! They go with the Node, which owns them.

mod budget;
mod metrics;
mod report;

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use http::Method;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::request::{Events, RequestError};
use super::slices::{self, Adopted, Change, Owner, Plan};
use super::version::Version;
use super::{Cluster, wire};
use crate::slice::Pool;
use budget::Budget;
pub use metrics::Metrics;
use metrics::{Outcome, Verb, Write};
pub use report::Published;
use report::Report;

/// Before another look after an error, from and to; each is drawn out at random to at most double.
const AFTER_ERROR: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Before another look after somebody touched our slices. A kubelet that wipes them does so one by one, so a moment's
/// patience spares a round; one that wipes them again and again is not fought.
const AFTER_DISTURBANCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// A watch without an event for so long means that whoever disturbed us has stopped.
const QUIET: Duration = Duration::from_secs(60);

/// How long a watch lasts, drawn anew each time so that the nodes of a cluster do not list all at once. Listing again
/// after that also finds what a stalled watch did not report.
const WATCH_SECONDS: [u64; 2] = [240, 360];

/// What the server may be early or late with ending a watch. One that ends it before that is going down, maybe for an
/// upgrade, and is asked anew for the versions that it serves; one that does not end it has stalled.
const WATCH_SLACK: u64 = 15;

/// The longest that a server may tell us to wait. It is asked seldom enough by then.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

type Pauses = <ExponentialBuilder as BackoffBuilder>::Backoff;

/// Publishes the pool of one node.
pub struct Publisher {
    cluster: Cluster,
    wanted: watch::Receiver<Option<Pool>>,
    report: Report,
    metrics: Metrics,
    budget: Budget,
    adopted: Adopted,
    /// The UID of the Node object when it was last looked up.
    node_uid: Option<String>,
}

/// How a look at the slices ended.
enum Look {
    /// Nothing is left to do.
    Settled { version: Version, resource_version: String, generation: u64 },
    /// Something was written; another look will tell.
    Written,
    /// There is more to write than the budget allows now.
    Throttled(Duration),
}

/// Why a watch ended.
enum Wake {
    WantedChanged,
    /// Somebody touched our slices.
    Disturbed,
    /// Its time was up.
    Expired,
    /// The server ended it before.
    Ended,
}

/// A list of slices, in the shape of `v1`.
struct Listed {
    version: Version,
    resource_version: String,
    slices: Vec<Value>,
}

// === impl Publisher ===

impl Publisher {
    /// Prepares to publish what `wanted` holds: `None` as long as it is not known what the node has; then nothing is
    /// published and nothing withdrawn. The receiver tells what the API server has accepted.
    pub fn new(
        cluster: Cluster,
        wanted: watch::Receiver<Option<Pool>>,
        metrics: Metrics,
    ) -> (Self, watch::Receiver<Published>) {
        let (report, accepted) = Report::new(metrics.clone(), cluster.node_events("Publish"));
        let this = Self {
            cluster,
            wanted,
            report,
            metrics,
            budget: Budget::default(),
            adopted: Adopted::default(),
            node_uid: None,
        };
        (this, accepted)
    }

    /// Runs until the sender of the wanted pool is gone. May be dropped at any time: the next one continues.
    pub async fn run(mut self) {
        let mut errors = pauses(AFTER_ERROR);
        let mut broken_watches = pauses(AFTER_ERROR);
        let mut disturbances = pauses(AFTER_DISTURBANCE);
        // Whether this very pool was written, or somebody else was faster, and it was not found settled since.
        let (mut just_written, mut just_raced) = (false, false);
        while let Ok(changed) = self.wanted.has_changed() {
            just_written &= !changed;
            let wanted = self.wanted.borrow_and_update().clone();
            let Some(pool) = wanted else {
                let _ = self.wanted.changed().await;
                continue;
            };
            self.report.wanted();
            let (version, resource_version) = match self.look(&pool).await {
                Ok(Look::Settled { version, resource_version, generation }) => {
                    (just_written, just_raced) = (false, false);
                    errors = pauses(AFTER_ERROR);
                    self.report.accepted(generation);
                    (version, resource_version)
                }
                Ok(Look::Written) => {
                    // What was written a moment ago should be right now. If not, somebody is at it.
                    if just_written {
                        self.report.contested().await;
                        sleep(next(&mut disturbances)).await;
                    }
                    just_written = true;
                    continue;
                }
                Ok(Look::Throttled(pause)) => {
                    just_written = false;
                    self.report.throttled(pause).await;
                    sleep(pause).await;
                    continue;
                }
                Err(error) if error.is_race() && !just_written && !just_raced => {
                    just_raced = true;
                    sleep(next(&mut disturbances)).await;
                    continue;
                }
                Err(error) => {
                    self.report.failed(&error).await;
                    sleep(pause_after(&error, &mut errors)).await;
                    continue;
                }
            };
            let start = Instant::now();
            let wake = self.watch(version, &resource_version).await;
            if start.elapsed() >= QUIET {
                disturbances = pauses(AFTER_DISTURBANCE);
            }
            // That watches break every now and then is no reason to look away for longer and longer.
            if start.elapsed() >= AFTER_ERROR[1] {
                broken_watches = pauses(AFTER_ERROR);
            }
            match wake {
                Ok(Wake::WantedChanged) => {}
                Ok(Wake::Disturbed) => sleep(next(&mut disturbances)).await,
                // The Node too is looked at from time to time. Created anew it has another UID, and the cluster is about
                // to delete what belonged to the old one.
                Ok(Wake::Expired) => self.node_uid = None,
                Ok(Wake::Ended) => {
                    self.cluster.negotiated.forget(version);
                    sleep(next(&mut broken_watches)).await;
                }
                Err(error) => {
                    // The slices were right a moment ago; whether they still are is for the next look to say.
                    tracing::warn!(error = &error as &dyn std::error::Error, "the watch of ResourceSlices broke");
                    self.cluster.negotiated.forget(version);
                    sleep(pause_after(&error, &mut broken_watches)).await;
                }
            }
        }
    }

    /// Compares what is there with what should be, and writes the difference.
    async fn look(&mut self, pool: &Pool) -> Result<Look, RequestError> {
        self.adopted.keep(pool.slices.len());
        self.count_altered();
        let listed = self.list().await?;
        let plan = self.plan(pool, &listed.slices).await?;
        if plan.changes.is_empty() {
            let Listed { version, resource_version, .. } = listed;
            return Ok(Look::Settled { version, resource_version, generation: plan.generation });
        }
        let pause = self.budget.wait_for(plan.changes.len(), Instant::now());
        if !pause.is_zero() {
            return Ok(Look::Throttled(pause));
        }
        for change in plan.changes {
            if !self.budget.wait_for(1, Instant::now()).is_zero() {
                break;
            }
            self.write(listed.version, change).await?;
        }
        Ok(Look::Written)
    }

    /// Nothing is written for a node that was looked up long ago: it may have been created anew, and the cluster
    /// deletes slices whose owner has another UID.
    async fn plan(&mut self, pool: &Pool, existing: &[Value]) -> Result<Plan, RequestError> {
        if let Some(uid) = &self.node_uid {
            let plan = self.plan_as(uid, pool, existing);
            if plan.changes.is_empty() {
                return Ok(plan);
            }
        }
        let uid = self.cluster.node_uid().await?;
        let plan = self.plan_as(&uid, pool, existing);
        self.node_uid = Some(uid);
        Ok(plan)
    }

    fn plan_as(&self, node_uid: &str, pool: &Pool, existing: &[Value]) -> Plan {
        let Cluster { driver, node, .. } = &self.cluster;
        let owner = Owner { driver: driver.clone(), node: node.clone(), node_uid: node_uid.to_owned() };
        slices::changes(existing, &slices::desired(pool, &owner), &self.adopted)
    }

    async fn list(&self) -> Result<Listed, RequestError> {
        let version = self.cluster.negotiated.get(&self.cluster.requests).await?;
        let path = version.path(&format!("resourceslices?{}", self.cluster.selector()));
        let mut list = self.served(version, self.cluster.requests.get(&path).await)?;
        let resource_version = list["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let Value::Array(items) = list["items"].take() else {
            return Err(RequestError::Missing("list of items"));
        };
        // What stands between us and the server may not know the selector, and what is not ours must not be deleted.
        let is_ours = |slice: &Value| {
            slice["spec"]["driver"] == *self.cluster.driver && slice["spec"]["nodeName"] == *self.cluster.node
        };
        let slices = items.into_iter().map(|item| wire::from_wire(version, item)).filter(is_ours);
        Ok(Listed {
            version,
            resource_version: resource_version.ok_or(RequestError::Missing("resource version"))?,
            slices: slices.collect(),
        })
    }

    async fn write(&mut self, version: Version, change: Change) -> Result<(), RequestError> {
        let path = |name: &str| version.path(&format!("resourceslices/{name}"));
        let (verb, method, path, index, object) = match change {
            Change::Delete { name, options } => (Verb::delete, Method::DELETE, path(&name), None, options),
            Change::Update { name, index, object } => (Verb::update, Method::PUT, path(&name), Some(index), object),
            Change::Create { index, object } => {
                (Verb::create, Method::POST, version.path("resourceslices"), Some(index), object)
            }
        };
        let body = if index.is_some() { wire::to_wire(version, object.clone()) } else { object.clone() };
        self.budget.spend(Instant::now());
        let result = self.cluster.requests.send(method, &path, Some(&body)).await;
        let gone = verb == Verb::delete && result.as_ref().is_err_and(RequestError::is_object_missing);
        let outcome = if gone { Outcome::ok } else { Outcome::of(&result) };
        self.metrics.writes.get_or_create(&Write { verb, result: outcome }).inc();
        if gone {
            return Ok(());
        }
        let answer = wire::from_wire(version, self.served(version, result)?);
        let name = answer["metadata"]["name"].as_str().unwrap_or_default();
        tracing::info!(?verb, slice = name, path, "wrote a ResourceSlice");
        if let Some(index) = index {
            let altered: Vec<_> = self.adopted.compare(index, &object, &answer).into_iter().collect();
            self.count_altered();
            if !altered.is_empty() {
                self.report.altered(name, &altered).await;
            }
        }
        Ok(())
    }

    fn count_altered(&self) {
        self.metrics.altered.set(i64::try_from(self.adopted.count()).unwrap_or(i64::MAX));
    }

    /// Waits until there is a reason to look again.
    async fn watch(&mut self, version: Version, resource_version: &str) -> Result<Wake, RequestError> {
        let [min, max] = WATCH_SECONDS;
        let seconds = min + random() % (max - min);
        let selector = self.cluster.selector();
        let path = version.path(&format!(
            "resourceslices?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}\
             &resourceVersion={resource_version}&{selector}"
        ));
        let start = Instant::now();
        let [early, late] = [seconds.saturating_sub(WATCH_SLACK), seconds + WATCH_SLACK].map(Duration::from_secs);
        let opened = tokio::select! {
            _ = self.wanted.changed() => return Ok(Wake::WantedChanged),
            opened = self.cluster.requests.watch(&path) => opened,
        };
        let mut events = self.served(version, opened)?;
        tokio::select! {
            _ = self.wanted.changed() => Ok(Wake::WantedChanged),
            disturbed = timeout_at(start + late, disturbed(&mut events)) => match disturbed {
                Ok(Ok(true)) => Ok(Wake::Disturbed),
                Ok(Ok(false)) if start.elapsed() < early => Ok(Wake::Ended),
                Ok(Ok(false)) | Err(_) => Ok(Wake::Expired),
                Ok(Err(error)) => Err(error),
            },
        }
    }

    /// Forgets the version that was negotiated when the server turns out not to serve it any more.
    fn served<T>(&self, version: Version, result: Result<T, RequestError>) -> Result<T, RequestError> {
        if result.as_ref().is_err_and(RequestError::is_path_missing) {
            self.cluster.negotiated.forget(version);
        }
        result
    }
}

// === impl Cluster ===

impl Cluster {
    /// What selects this driver's slices of this node. Without the node, every plugin would watch the whole cluster.
    fn selector(&self) -> String {
        format!("fieldSelector=spec.nodeName%3D{},spec.driver%3D{}", self.node, self.driver)
    }

    async fn node_uid(&self) -> Result<String, RequestError> {
        let node = self.requests.get(&format!("/api/v1/nodes/{}", self.node)).await?;
        node["metadata"]["uid"].as_str().map(str::to_owned).ok_or(RequestError::Missing("UID of the node"))
    }
}

/// Reads until an event says that a slice has changed; false when the watch has ended before.
async fn disturbed(events: &mut Events) -> Result<bool, RequestError> {
    while let Some(event) = events.next().await? {
        if event["type"] != "BOOKMARK" {
            return Ok(true);
        }
    }
    Ok(false)
}

fn pauses([min, max]: [Duration; 2]) -> Pauses {
    ExponentialBuilder::new().with_min_delay(min).with_max_delay(max).with_jitter().without_max_times().build()
}

fn pause_after(error: &RequestError, pauses: &mut Pauses) -> Duration {
    next(pauses).max(error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER))
}

fn next(pauses: &mut Pauses) -> Duration {
    // They do not run out.
    pauses.next().unwrap_or(AFTER_ERROR[1])
}

/// A number that differs from node to node and from time to time; the standard library seeds its hashers so.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests;
