//! Pods and their workers.
//!
//! ```text
//!            first try at once, next ones 60–90 s later
//!  Pending ─────────── all claims prepared ───────────▶ Running ── stop ──▶ Terminating ── unprepared ──▶ Terminated
//!     └───────────────────────── stop ─────────────────────────────────────▶     └── failed: again 10–15 s later
//! ```
//!
//! A pod that runs is never prepared again, not even after the kubelet restarted: only a new sandbox prepares.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Clock;
use super::changes::Changes;
use super::manager::Manager;

/// The kubelet's `syncFrequency`, spread by up to half of it: a failed prepare is no error of the pod's sync, so only
/// the next periodic sync tries again.
const SYNC: Duration = Duration::from_secs(60);

/// How long a pod worker waits after a failed unprepare, spread likewise.
const BACK_OFF: Duration = Duration::from_secs(10);

/// How much longer than that a wait may be.
const JITTER: f64 = 0.5;

/// A pod, as much as the DRA manager looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.resourceClaims`, with the names that the claims have got.
    pub claims: Vec<PodClaim>,
    /// Name of the PodGroup that it belongs to.
    pub group: Option<String>,
}

/// A claim that a pod refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodClaim {
    /// Name of the ResourceClaim.
    pub name: String,
    /// Whether it was made for the pod from a template; it must then be owned by the pod.
    pub from_template: bool,
}

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its claims are not prepared.
    Pending,
    /// Its containers run.
    Running,
    /// Its containers have ended; its claims are being taken back.
    Terminating,
    /// Nothing is left of it.
    Terminated,
    /// Its object was deleted by force: the kubelet's reconcile loop takes its claims back.
    Vanished,
}

/// An event of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// For machines.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// A pod that was given to the kubelet. It stays usable when the kubelet restarts.
#[derive(Debug, Clone)]
pub struct PodHandle {
    uid: String,
    pods: Pods,
}

/// All pods of the node; they survive a restart of the kubelet.
#[derive(Debug, Clone)]
pub(super) struct Pods {
    records: Arc<Mutex<BTreeMap<String, Record>>>,
    changes: Changes,
}

#[derive(Debug)]
struct Record {
    pod: Pod,
    phase: Phase,
    events: Vec<Event>,
    error: Option<String>,
    stop: CancellationToken,
}

// === impl Pod ===

impl Pod {
    /// A pod without claims.
    pub fn new(uid: impl Into<String>, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { uid: uid.into(), namespace: namespace.into(), name: name.into(), claims: Vec::new(), group: None }
    }

    /// The pod with one more claim that exists by itself.
    pub fn claim(mut self, name: impl Into<String>) -> Self {
        self.claims.push(PodClaim { name: name.into(), from_template: false });
        self
    }

    /// The pod with one more claim that was made for it from a template.
    pub fn template_claim(mut self, name: impl Into<String>) -> Self {
        self.claims.push(PodClaim { name: name.into(), from_template: true });
        self
    }
}

// === impl PodHandle ===

impl PodHandle {
    /// The pod's UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.read(|record| record.phase)
    }

    /// Its events so far, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.read(|record| record.events.clone())
    }

    /// Why the last prepare or unprepare failed, if it did. Failures to unprepare have no event.
    pub fn error(&self) -> Option<String> {
        self.read(|record| record.error.clone())
    }

    /// Waits until its claims are prepared; the error says why the pod ended before.
    pub async fn wait_prepared(&self) -> Result<(), String> {
        self.wait(|record| match record.phase {
            Phase::Pending => None,
            Phase::Running => Some(Ok(())),
            _ => Some(Err(format!("the pod ended before its claims were prepared: {:?}", record.error))),
        })
        .await
    }

    /// Waits for the next failure to prepare or unprepare, or for the one that it is stuck in, and returns its text.
    pub async fn wait_error(&self) -> String {
        self.wait(|record| record.error.clone()).await
    }

    /// Waits until nothing is left of it.
    pub async fn wait_terminated(&self) {
        self.wait(|record| (record.phase == Phase::Terminated).then_some(())).await;
    }

    async fn wait<T>(&self, look: impl Fn(&Record) -> Option<T>) -> T {
        self.pods.changes.wait_for(|| self.read(&look)).await
    }

    fn read<T>(&self, look: impl FnOnce(&Record) -> T) -> T {
        // A handle's record is never removed.
        look(&self.pods.lock()[&self.uid])
    }
}

// === impl Pods ===

impl Pods {
    pub(super) fn new(changes: Changes) -> Self {
        Self { records: Arc::default(), changes }
    }

    pub(super) fn add(&self, pod: Pod) -> PodHandle {
        let uid = pod.uid.clone();
        let record =
            Record { pod, phase: Phase::Pending, events: Vec::new(), error: None, stop: CancellationToken::new() };
        self.lock().insert(uid.clone(), record);
        self.changes.notify();
        PodHandle { uid, pods: self.clone() }
    }

    /// Asks the worker of a pod to end it.
    pub(super) fn stop(&self, uid: &str) {
        if let Some(record) = self.lock().get(uid) {
            record.stop.cancel();
        }
    }

    /// Ends a pod without its worker.
    pub(super) fn vanish(&self, uid: &str) {
        self.update(uid, |record| {
            record.phase = Phase::Vanished;
            record.stop.cancel();
        });
    }

    /// Pods that a worker must look after.
    pub(super) fn active(&self) -> BTreeSet<String> {
        let is_active = |record: &Record| !matches!(record.phase, Phase::Terminated | Phase::Vanished);
        self.lock().iter().filter(|(_, record)| is_active(record)).map(|(uid, _)| uid.clone()).collect()
    }

    /// The worker of one pod. Returns when the pod is gone; drop it to stop with the kubelet.
    pub(super) async fn work(self, uid: String, manager: Arc<Manager>, clock: Clock) {
        let Some((pod, stop)) = self.lock().get(&uid).map(|record| (record.pod.clone(), record.stop.clone())) else {
            return;
        };
        loop {
            let phase = self.lock().get(&uid).map_or(Phase::Terminated, |record| record.phase);
            match phase {
                // Stopping a pod cancels whatever its worker does.
                Phase::Pending => {
                    if stop.run_until_cancelled(self.prepare(&pod, &manager, clock)).await.is_none() {
                        self.advance(&uid, Phase::Pending, Phase::Terminating);
                    }
                }
                Phase::Running => {
                    stop.cancelled().await;
                    self.advance(&uid, Phase::Running, Phase::Terminating);
                }
                Phase::Terminating => match manager.unprepare(&uid).await {
                    Ok(()) => self.advance(&uid, Phase::Terminating, Phase::Terminated),
                    Err(error) => {
                        self.update(&uid, |record| record.error = Some(error));
                        clock.sleep_jittered(BACK_OFF, JITTER).await;
                    }
                },
                Phase::Terminated | Phase::Vanished => return,
            }
        }
    }

    async fn prepare(&self, pod: &Pod, manager: &Manager, clock: Clock) {
        while let Err(error) = manager.prepare(pod).await {
            self.update(&pod.uid, |record| {
                let message = format!("Failed to prepare dynamic resources: {error}");
                record.events.push(Event { reason: "FailedPrepareDynamicResources", message });
                record.error = Some(error);
            });
            clock.sleep_jittered(SYNC, JITTER).await;
        }
        self.advance(&pod.uid, Phase::Pending, Phase::Running);
    }

    /// Takes a pod from one phase to the next, unless it vanished in the meantime.
    fn advance(&self, uid: &str, from: Phase, to: Phase) {
        self.update(uid, |record| {
            if record.phase == from {
                record.phase = to;
                record.error = None;
            }
        });
    }

    fn update(&self, uid: &str, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.lock().get_mut(uid) {
            change(record);
        }
        self.changes.notify();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
