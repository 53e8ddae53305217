//! The DRA service, v1 and v1beta1 from one implementation.
//!
//! ```text
//!  request ──▶ each claim once ──▶ a task per claim ──▶ an entry for every UID asked for
//!                                  begin, read the claim live (at most 8 at once), prepare it
//! ```
//!
//! # Guarantees
//!
//! * Every UID of a request has exactly one entry in the answer and there are no others; the kubelet fails the pod
//!   otherwise. What goes wrong with a claim stands in its entry and hurts no other claim.
//! * A claim's work runs in a task of its own. gRPC drops a call when the kubelet's deadline (45 s) passes or its
//!   connection breaks; the task goes on, and the kubelet's next try finds what it left.
//! * No claims is a success without work: probes ask that.
//! * An unprepare calls off the prepares that the kubelet gave up before it on the same connection, see below.
//! * When the plugin stops, a claim that still waits for anything is given up: nothing was done for it, and an API server
//!   that does not answer must not hold up the successor.
//! * Every failure is counted, also that of a claim without a UID and that of a task that panics.
//!
//! # Calls that were given up
//!
//! Each call is a task of the server's, and these run in any order: an unprepare may come to its turn before the prepare
//! that the kubelet gave up just before. That prepare must then do nothing, because nobody would unprepare it any more.
//! So a call first begins all its claims, then lets the server look whether it was given up, which ends it, and only then
//! works. If the prepare was given up before it began, that look finds it. If it was given up afterwards, the unprepare,
//! which comes later still, finds that it has begun and calls it off.
//!
//! What nobody can put in order are calls on different connections, when one breaks between a prepare and an unprepare.
//! There, a prepare that comes too late is refused if its claim, as it is read live, is gone or reserved for nobody. What
//! gets through all the same is held until the claim is gone from the API server, and released by the plugin then.
//!
//! Error texts reach the events of the pod as they are; the log has their causes too. What came of a claim is logged
//! here and nowhere below.

use std::collections::HashMap;
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};
use tracing::{Instrument, error_span, info, warn};

use super::proto::{dra_v1, dra_v1beta1};
use crate::causes::with_causes;
use crate::claim::{ClaimName, ClaimUid};
use crate::cluster::{ClaimStatuses, Cluster, DeviceStatus};
use crate::prepare::{self, PreparedDevice, Preparer};

/// How many claims of one call are read at once. Pods have a few claims; this spares the API server one that has many. It
/// bounds a call and not the plugin, so that claims that hang never stop another pod, and not what comes after reading,
/// so that claims that wait for a GPU do not use up the time of the others.
const READS_AT_ONCE: usize = 8;

/// For an entry whose task died. The panic itself is in the log.
const PANICKED: &str = "the GPU plugin failed while it worked on this claim; its log on the node says why";

/// The services. Cheap to clone; all clones share their tasks.
#[derive(Clone)]
pub struct Dra {
    prepare: Work<Vec<PreparedDevice>>,
    unprepare: Work<()>,
    metrics: prepare::Metrics,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

/// What is done with one claim. Called in the order in which the kubelet asks; the rest is in the future.
type Work<T> = Arc<dyn Fn(ClaimName, ClaimUid, Reads) -> BoxFuture<'static, Result<T, Failure>> + Send + Sync>;

/// Permits to read claims, of one call.
pub(super) type Reads = Arc<Semaphore>;

/// Why nothing came of a claim.
pub(super) struct Failure {
    /// For the pod's events.
    message: String,
    /// What is behind it, for the log.
    causes: Option<String>,
}

/// A claim as the kubelet names it.
struct Named {
    uid: String,
    name: ClaimName,
}

// === impl Dra ===

impl Dra {
    /// Reads claims from `cluster` and has them prepared by `preparer`. What came of them is told to `statuses`.
    pub fn new(cluster: Cluster, preparer: Preparer, statuses: ClaimStatuses) -> Self {
        let (unpreparer, metrics, ready) = (preparer.clone(), preparer.metrics().clone(), statuses.clone());
        let dra = Self::from_work(
            move |name, uid, reads| {
                let (cluster, attempt, statuses) = (cluster.clone(), preparer.begin(&uid), ready.clone());
                async move {
                    let read = async {
                        let _permit = reads.acquire().await;
                        cluster.claim(&name, &uid, attempt.read_by()).await
                    };
                    let read = attempt.read(read).await;
                    match read.map_err(Failure::new)? {
                        Ok(claim) => {
                            let known = claim.statuses.clone();
                            let devices = attempt.prepare(claim).await.map_err(Failure::new)?;
                            let of_each: Vec<_> = devices.iter().map(DeviceStatus::from).collect();
                            statuses.prepared(&name, &uid, &known, &of_each);
                            Ok(devices)
                        }
                        Err(error) => {
                            attempt.give_up(error.cause());
                            Err(Failure::new(error))
                        }
                    }
                }
                .boxed()
            },
            move |name, uid, _| {
                let (unprepare, statuses) = (unpreparer.unprepare(&uid), statuses.clone());
                async move {
                    unprepare.await.map_err(Failure::new)?;
                    statuses.unprepared(&name, &uid);
                    Ok(())
                }
                .boxed()
            },
        );
        Self { metrics, ..dra }
    }

    /// Does whatever the two functions do.
    pub(super) fn from_work(
        prepare: impl Fn(ClaimName, ClaimUid, Reads) -> BoxFuture<'static, Result<Vec<PreparedDevice>, Failure>>
        + Send
        + Sync
        + 'static,
        unprepare: impl Fn(ClaimName, ClaimUid, Reads) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            prepare: Arc::new(prepare),
            unprepare: Arc::new(unprepare),
            metrics: prepare::Metrics::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
        }
    }

    /// The tasks that are at work.
    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// To be cancelled when the plugin stops.
    pub(super) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    async fn prepare(&self, claims: Vec<Named>) -> HashMap<String, Result<Vec<PreparedDevice>, String>> {
        self.each(claims, "prepare", &self.prepare).await
    }

    async fn unprepare(&self, claims: Vec<Named>) -> HashMap<String, Result<(), String>> {
        self.each(claims, "unprepare", &self.unprepare).await
    }

    /// Works on every claim, and answers for every UID.
    async fn each<T: Send + 'static>(
        &self,
        claims: Vec<Named>,
        act: &'static str,
        work: &Work<T>,
    ) -> HashMap<String, Result<T, String>> {
        let reads = Arc::new(Semaphore::new(READS_AT_ONCE));
        let mut begun = HashMap::new();
        for Named { uid, name } in claims {
            begun.entry(uid).or_insert_with_key(|uid| {
                let span = error_span!("claim", claim.uid = %uid, claim = %name);
                (span, ClaimUid::parse(uid).map(|uid| work(name, uid, Arc::clone(&reads))))
            });
        }
        // A call that the kubelet has given up ends here, see the module.
        yield_now().await;
        // Nothing is awaited before the last task is spawned, so a call that is dropped later loses none.
        let mut running = Vec::with_capacity(begun.len());
        for (uid, (span, work)) in begun {
            let metrics = self.metrics.clone();
            let task = async move {
                let outcome = match work {
                    Ok(work) => AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
                        metrics.failed(act, "internal");
                        Err(Failure::panicked())
                    }),
                    Err(error) => {
                        metrics.failed(act, "kubelet");
                        Err(Failure::new(error))
                    }
                };
                match &outcome {
                    Ok(_) => info!("claim {act}d"),
                    // A field that is None is left out.
                    Err(Failure { message, causes }) => warn!(error = message, causes, "cannot {act} the claim"),
                }
                outcome.map_err(|failure| failure.message)
            };
            running.push((uid, self.tasks.spawn(task.instrument(span))));
        }
        let mut answers = HashMap::with_capacity(running.len());
        for (uid, task) in running {
            // A task that ends without an answer has no work in it any more: what panics in the work is caught there.
            answers.insert(uid, task.await.unwrap_or_else(|_| Err(PANICKED.to_owned())));
        }
        answers
    }
}

/// Implements one version of the service. Their messages differ in the share id alone, which only v1 has.
macro_rules! serve {
    ($version:ident $(, $share_id:ident)?) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for Dra {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter().map(Named::from).collect();
                let entry = |outcome: Result<Vec<PreparedDevice>, String>| match outcome {
                    Ok(devices) => $version::NodePrepareResourceResponse {
                        devices: devices.into_iter().map($version::Device::from).collect(),
                        error: String::new(),
                    },
                    Err(error) => $version::NodePrepareResourceResponse { devices: Vec::new(), error },
                };
                let answers = self.prepare(claims).await;
                Ok(Response::new($version::NodePrepareResourcesResponse {
                    claims: answers.into_iter().map(|(uid, outcome)| (uid, entry(outcome))).collect(),
                }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter().map(Named::from).collect();
                let entry = |outcome: Result<(), String>| $version::NodeUnprepareResourceResponse {
                    error: outcome.err().unwrap_or_default(),
                };
                let answers = self.unprepare(claims).await;
                Ok(Response::new($version::NodeUnprepareResourcesResponse {
                    claims: answers.into_iter().map(|(uid, outcome)| (uid, entry(outcome))).collect(),
                }))
            }
        }

        impl From<$version::Claim> for Named {
            fn from(claim: $version::Claim) -> Self {
                let $version::Claim { namespace, uid, name } = claim;
                Self { uid, name: ClaimName { namespace, name } }
            }
        }

        impl From<PreparedDevice> for $version::Device {
            fn from(device: PreparedDevice) -> Self {
                Self {
                    request_names: device.requests,
                    pool_name: device.pool,
                    device_name: device.device,
                    cdi_device_ids: device.cdi_ids,
                    $($share_id: device.share_id,)?
                }
            }
        }
    };
}

serve!(dra_v1, share_id);
serve!(dra_v1beta1);

// === impl DeviceStatus ===

impl From<&PreparedDevice> for DeviceStatus {
    fn from(prepared: &PreparedDevice) -> Self {
        let PreparedDevice { pool, device, share_id, gpu, mig, requests: _, cdi_ids: _ } = prepared.clone();
        Self { pool, device, share_id, gpu, mig }
    }
}

// === impl Failure ===

impl Failure {
    fn new(error: impl Error) -> Self {
        Self { message: error.to_string(), causes: error.source().map(with_causes) }
    }

    fn panicked() -> Self {
        Self { message: PANICKED.to_owned(), causes: None }
    }
}

#[cfg(test)]
mod tests;
