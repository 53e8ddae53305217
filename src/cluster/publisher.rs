//! Keeps the node's ResourceSlices in the API server as they should be.
//!
//! ```text
//!          ┌──────────────────────────────────────────────────────────────────────────┐
//!          ▼                                                                          │
//!        list ──▶ changes ──▶ none: accepted ──▶ watch from there ──▶ wanted changed ─┤
//!          ▲         │                           ▲   ├─ its time is up ───────────────┤ and the Node is read again
//!          │         │                           │   ├─ somebody touched a slice ─────┤ after a pause that grows
//!          │         │                           │   ├─ failed ───────────────────────┤ after a pause that grows
//!          │         │       after a short pause └───┴─ ended early ──────────────────┘ the first time, and then
//!          │         └─▶ delete, update, create ─┐                                      now and then
//!          └─────────────────────────────────────┘
//! ```
//!
//! Not every server keeps lists, counters and taints, and a slice without them can offer one GPU twice, or a sick one as
//! healthy. So a slice that has some goes to a server that is not known to keep them as a dry run first, which stores
//! nothing, and every answer to a write is compared with what was sent. What is lost changes what is wanted
//! ([`fallback`]), and the next look begins at once.
//!
//! Whenever a watch did not simply find something, the server may be another one: it is asked anew for the versions that it
//! serves, and what it was known to keep is asked for again before it is sent.
//!
//! During a rolling update two plugins publish one pool. Where they differ, the one that was started first gives way
//! ([`Started`]); it tries again only after minutes, and sooner if it wants something else or slices are gone.
//!
//! A pause ends early when something else is wanted, so that no taint waits; what the server itself asks for is kept.
//!
//! There is no cache to be stale: every decision is made on a list that is as new as the server has it, and a pool
//! counts as accepted when such a list shows nothing left to do. The watch only says when to look again, and starts
//! where the list ended: whatever it reports was done by somebody else.
//!
//! Nothing is withdrawn when the plugin stops; running pods keep their devices and the next plugin finds its slices.
//! They go with the Node, which owns them.

mod budget;
mod known;
mod metrics;
mod pauses;
mod report;
mod requests;
mod watching;

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Cluster;
use super::request::RequestError;
use super::slices::{self, Adopted, Change, Owner, Plan, Started};
use super::version::Version;
use crate::slice::fallback::{self, Extras};
use crate::slice::{Pool, Slice};
use budget::{Budget, DRY_RUNS, WINDOW, WRITES};
use known::Known;
pub use metrics::Metrics;
use metrics::{Outcome, Verb, Write};
use pauses::{AFTER_CUT, AFTER_DISTURBANCE, AFTER_ERROR, AFTER_SUPERSEDED, HARMLESS, Pauses, QUIET};
pub use report::Published;
use report::Report;
use requests::Listed;
use watching::{Cuts, Wake};

/// Publishes the pool of one node.
pub struct Publisher {
    cluster: Cluster,
    wanted: watch::Receiver<Option<Pool>>,
    report: Report,
    metrics: Metrics,
    writes: Budget,
    dry_runs: Budget,
    adopted: Adopted,
    known: Known,
    started: Started,
    /// The UID of the Node object when it was last looked up.
    node_uid: Option<String>,
}

/// How a look at the slices ended.
enum Look {
    /// Nothing is left to do.
    Settled { version: Version, resource_version: String, generation: u64 },
    /// Something was written; another look will tell.
    Written,
    /// The server does not keep all of it, so less is wanted.
    Lost,
    /// What there is to write would undo what a plugin wrote that was started later.
    Superseded { version: Version, resource_version: String },
    /// There is more to write than the budget allows now.
    Throttled(Duration),
}

/// What is remembered of watches from one look to the next.
struct Watches {
    cuts: Cuts,
    /// After watches that broke.
    pauses: Pauses,
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
        let (report, accepted) = Report::new(metrics.clone(), [(); 3].map(|()| cluster.node_events("Publish")));
        let window = cluster.clock.real(WINDOW);
        let this = Self {
            known: Known::new(cluster.clock),
            cluster,
            wanted,
            report,
            metrics,
            writes: Budget::new(WRITES, window),
            dry_runs: Budget::new(DRY_RUNS, window),
            adopted: Adopted::default(),
            started: Started::now(),
            node_uid: None,
        };
        (this, accepted)
    }

    /// Runs until the sender of the wanted pool is gone. May be dropped at any time: the next one continues.
    pub async fn run(self) {
        let overdue = self.report.overdue();
        tokio::select! { () = self.work() => {}, () = overdue => {} }
    }

    async fn work(mut self) {
        let clock = self.cluster.clock;
        let pauses = |range: [Duration; 2]| Pauses::new(range.map(|pause| clock.real(pause)));
        let mut errors = pauses(AFTER_ERROR);
        let mut disturbances = pauses(AFTER_DISTURBANCE);
        let mut supersessions = pauses(AFTER_SUPERSEDED);
        let mut watches = Watches { cuts: Cuts::default(), pauses: pauses(AFTER_CUT) };
        // Whether this very pool was written, or somebody else was faster, and it was not found settled since.
        let (mut just_written, mut just_raced) = (false, false);
        // Whether this very pool was there or written, so that a change to it may be what a later plugin wants; and how
        // long that one then has its way.
        let (mut was_there, mut yields_until) = (false, None);
        // Whether our slices were touched, by somebody who may mean no harm.
        let mut touched = false;
        while let Ok(changed) = self.wanted.has_changed() {
            just_written &= !changed;
            was_there &= !changed;
            yields_until = yields_until.filter(|_| was_there);
            let wanted = self.wanted.borrow_and_update().clone();
            let Some(pool) = wanted else {
                let _ = self.wanted.clone().changed().await;
                continue;
            };
            self.report.wanted(changed);
            let may_yield = was_there && yields_until.is_none_or(|until| Instant::now() < until);
            let (version, resource_version) = match self.look(&pool, may_yield).await {
                Ok(Look::Settled { version, resource_version, generation }) => {
                    (just_written, just_raced) = (false, false);
                    (was_there, yields_until) = (true, None);
                    errors = pauses(AFTER_ERROR);
                    if std::mem::take(&mut touched) {
                        disturbances = pauses(AFTER_DISTURBANCE);
                    }
                    self.report.accepted(generation);
                    (version, resource_version)
                }
                Ok(Look::Written) => {
                    touched = false;
                    // What was written a moment ago should be right now. If not, somebody is at it.
                    if just_written {
                        self.report.contested().await;
                        disturbances.pause(&self.wanted).await;
                    }
                    just_written = true;
                    (was_there, yields_until) = (true, None);
                    continue;
                }
                Ok(Look::Lost) => {
                    just_written = false;
                    continue;
                }
                Ok(Look::Superseded { version, resource_version }) => {
                    (just_written, touched) = (false, false);
                    yields_until.get_or_insert_with(|| {
                        tracing::info!("leaving this node's ResourceSlices to a plugin that was started later");
                        Instant::now() + supersessions.next()
                    });
                    (version, resource_version)
                }
                Ok(Look::Throttled(pause)) => {
                    just_written = false;
                    self.report.throttled(pause).await;
                    pauses::pause(pause, &self.wanted).await;
                    continue;
                }
                Err(error) if error.is_race() && !just_written && !just_raced => {
                    just_raced = true;
                    disturbances.pause(&self.wanted).await;
                    continue;
                }
                Err(error) => {
                    self.report.failed(&error).await;
                    errors.pause_after(&error, &self.wanted).await;
                    continue;
                }
            };
            let start = Instant::now();
            let watch = self.watch(version, resource_version, &mut watches);
            let wake = match yields_until {
                Some(until) => timeout_at(until, watch).await.unwrap_or(Wake::Expired),
                None => watch.await,
            };
            if start.elapsed() >= clock.real(QUIET) {
                disturbances = pauses(AFTER_DISTURBANCE);
                if yields_until.is_none() {
                    supersessions = pauses(AFTER_SUPERSEDED);
                }
            }
            if let Wake::Disturbed = wake {
                touched = start.elapsed() >= clock.real(HARMLESS);
                disturbances.pause(&self.wanted).await;
            }
        }
    }

    /// Watches until there is a reason to look again, through as many watches as that takes.
    async fn watch(&mut self, version: Version, mut resource_version: String, watches: &mut Watches) -> Wake {
        let clock = self.cluster.clock;
        loop {
            let start = Instant::now();
            let wake = watching::wait(&self.cluster, self.wanted.clone(), version, &mut resource_version).await;
            // That watches break every now and then is no reason to look away for longer and longer.
            if start.elapsed() >= clock.real(AFTER_ERROR[1]) {
                watches.pauses = Pauses::new(AFTER_CUT.map(|pause| clock.real(pause)));
            }
            match wake {
                Ok(Wake::Ended) => {
                    self.known.watch_ended();
                    watches.pauses.pause(&self.wanted).await;
                    if !watches.cuts.count() && matches!(self.wanted.has_changed(), Ok(false)) {
                        continue;
                    }
                }
                // The Node too is looked at from time to time. Created anew it has another UID, and the cluster is about
                // to delete what belonged to the old one.
                Ok(Wake::Expired) => {
                    self.node_uid = None;
                    self.known.watch_expired();
                    watches.cuts = Cuts::default();
                }
                Ok(wake) => return wake,
                Err(error) => {
                    // The slices were right a moment ago; whether they still are is for the next look to say.
                    tracing::warn!(error = &error as &dyn std::error::Error, "the watch of ResourceSlices broke");
                    self.known.watch_ended();
                    watches.pauses.pause_after(&error, &self.wanted).await;
                }
            }
            self.cluster.negotiated.forget(version);
            return Wake::Ended;
        }
    }

    /// Compares what is there with what should be, and writes the difference.
    async fn look(&mut self, wanted: &Pool, may_yield: bool) -> Result<Look, RequestError> {
        self.adopted.keep(wanted.slices.len());
        self.count_altered();
        let listed = self.cluster.list_slices().await?;
        self.known.speaks(listed.version);
        let (pool, plan) = loop {
            let pool = fallback::without(wanted, self.known.lost());
            let mut plan = self.plan(&pool, &listed.slices).await?;
            let driver = &self.cluster.driver;
            if may_yield && self.started.is_superseded_in(driver, &plan.changes, &listed.slices) {
                let Listed { version, resource_version, .. } = listed;
                return Ok(Look::Superseded { version, resource_version });
            }
            self.started.sign(driver, &mut plan.changes);
            match self.ask(listed.version, &pool, &plan.changes).await? {
                None => break (pool, plan),
                Some(Look::Lost) => {}
                Some(look) => return Ok(look),
            }
        };
        let outcome = self.write_all(&pool, &listed, plan).await?;
        if !matches!(outcome, Look::Lost) {
            let reduced = Extras::of_pool(wanted) & self.known.lost();
            self.report.reduced(reduced, &fallback::withdrawn(wanted, &pool)).await;
        }
        self.report.altered(&self.adopted.altered()).await;
        Ok(outcome)
    }

    /// Asks what the server would make of slices with extras that it is not known to keep: a dry run stores nothing. A
    /// look ends with what stands against writing them.
    async fn ask(&mut self, version: Version, pool: &Pool, changes: &[Change]) -> Result<Option<Look>, RequestError> {
        for change in changes {
            let Some(slice) = change.slice_of(pool).filter(|slice| self.known.is_new(slice)) else { continue };
            let pause = self.dry_runs.wait_for(1, Instant::now());
            if !pause.is_zero() {
                return Ok(Some(Look::Throttled(pause)));
            }
            self.dry_runs.spend(Instant::now());
            let is_loss = match self.cluster.send_change(version, change, true).await {
                Ok(answer) => self.known.answered(slice, slices::lost(change.body(), &answer)),
                Err(error) if self.known.loses(known::refused(slice, &error)) => true,
                // An admission webhook knows no dry runs. It refuses the others as well, and the writes will tell.
                Err(error) if error.code() == Some(StatusCode::BAD_REQUEST) => {
                    self.known.dry_run_refused();
                    return Ok(None);
                }
                Err(error) if error.is_unfit() => false, // The write will meet it as well.
                Err(error) => return Err(error),
            };
            if is_loss {
                return Ok(Some(Look::Lost));
            }
        }
        Ok(None)
    }

    async fn write_all(&mut self, pool: &Pool, listed: &Listed, plan: Plan) -> Result<Look, RequestError> {
        let Plan { generation, changes } = plan;
        if changes.is_empty() {
            let resource_version = listed.resource_version.clone();
            return Ok(Look::Settled { version: listed.version, resource_version, generation });
        }
        let pause = self.writes.wait_for(changes.len(), Instant::now());
        if !pause.is_zero() {
            return Ok(Look::Throttled(pause));
        }
        for change in changes {
            let pause = self.writes.wait_for(1, Instant::now());
            if !pause.is_zero() {
                return Ok(Look::Throttled(pause));
            }
            if self.write(listed.version, &change, change.slice_of(pool)).await? {
                return Ok(Look::Lost);
            }
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

    /// True if the server does not keep all extras of the slice.
    async fn write(&mut self, version: Version, change: &Change, slice: Option<&Slice>) -> Result<bool, RequestError> {
        self.writes.spend(Instant::now());
        let result = self.cluster.send_change(version, change, false).await;
        let verb = Verb::of(change);
        let gone = verb == Verb::delete && result.as_ref().is_err_and(RequestError::is_object_missing);
        let outcome = if gone { Outcome::ok } else { Outcome::of(&result) };
        self.metrics.writes.get_or_create(&Write { verb, result: outcome }).inc();
        if gone {
            return Ok(false);
        }
        let answer = match (result, slice) {
            (Err(error), Some(slice)) if self.known.loses(known::refused(slice, &error)) => return Ok(true),
            (result, _) => result?,
        };
        let name = answer["metadata"]["name"].as_str().unwrap_or_default();
        tracing::info!(?verb, slice = name, %version, "wrote a ResourceSlice");
        let (Some(index), Some(slice)) = (change.index(), slice) else { return Ok(false) };
        if self.known.answered(slice, slices::lost(change.body(), &answer)) {
            return Ok(true);
        }
        self.adopted.compare(index, change.body(), &answer);
        self.count_altered();
        Ok(false)
    }

    fn count_altered(&self) {
        self.metrics.altered.set(i64::try_from(self.adopted.count()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests;
