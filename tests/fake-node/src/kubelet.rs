//! A fake kubelet: registers DRA plugins, prepares and unprepares claims for pods, watches device health.
//!
//! ```text
//!             plugins_registry/*.sock                 DRA sockets
//!                      │                                  │
//!  scenario ──▶ Kubelet├─ registrar ─ register ─▶ plugins ┼─ connection, NodePrepare/UnprepareResources
//!   run_pod            │                            ▲     └─ health stream ─▶ health
//!   stop_pod           └─ pod workers ─▶ manager ───┘
//!   restart                                 └─▶ claim cache, checkpoint
//! ```
//!
//! It plays the kubelet of one [`Release`], with its rules, waits and texts; where it could be laxer than the real one,
//! that is a defect. It runs no containers: a pod is running once its claims are prepared. What it needs of the API
//! server it asks of a [`ClaimSource`].

mod authority;
mod changes;
mod claims;
mod clock;
mod health;
mod instance;
mod manager;
mod plugins;
mod pods;
pub mod proto;
mod registrar;
mod rules;
mod source;
mod watcher;
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

pub use self::claims::{PreparedClaim, PreparedDevice};
pub use self::clock::Clock;
pub use self::health::{DeviceHealth, Health};
pub use self::plugins::Plugin;
pub use self::pods::{Event, Phase, Pod, PodClaim, PodHandle};
pub use self::rules::Service;
pub use self::source::ClaimSource;
pub use self::wire::Authority;

use self::changes::Changes;
use self::claims::{Checkpoint, ClaimCache};
use self::health::HealthCache;
use self::manager::Manager;
use self::plugins::Plugins;
use self::pods::Pods;
use self::proto::v1;
use self::registrar::Registrar;
use self::wire::go_error;
use crate::release::Release;

/// How often the kubelet looks for claims that are prepared for pods which are gone.
const RECONCILE: Duration = Duration::from_secs(60);

/// How to run a fake kubelet.
#[derive(Clone)]
pub struct Options {
    /// Whose rules it follows.
    pub release: Release,
    /// Its root directory, `/var/lib/kubelet` on most nodes.
    pub root: PathBuf,
    /// The name of its node.
    pub node: String,
    /// The API server.
    pub claims: Arc<dyn ClaimSource>,
    /// The speed of its time.
    pub clock: Clock,
    /// What it says in `:authority` to DRA sockets, if not what the release does.
    pub dra_authority: Option<Authority>,
    /// The gate `ResourceHealthStatus`, if not as in the release.
    pub health: Option<bool>,
    /// The gate `DRAWorkloadResourceClaims`: whether a pod may use a claim that is reserved for its PodGroup. Off in all
    /// releases unless somebody switches it on, and unknown before 1.36.
    pub pod_groups: bool,
    /// Whether to refuse endpoints that later kubelets will refuse: not absolute, too long, outside the root.
    pub strict_endpoints: bool,
}

/// A running fake kubelet. Dropping it stops it too, without waiting.
pub struct Kubelet {
    options: Options,
    changes: Changes,
    checkpoint: Checkpoint,
    pods: Pods,
    process: Mutex<Process>,
}

/// A claim, as plugins are asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What ends when a kubelet stops and is made anew when it starts.
#[derive(Clone)]
struct Process {
    stopping: CancellationToken,
    tasks: TaskTracker,
    plugins: Plugins,
    registrar: Registrar,
    manager: Arc<Manager>,
    health: Arc<HealthCache>,
}

// === impl Options ===

impl Options {
    /// A kubelet as it runs by default.
    pub fn new(
        release: Release,
        root: impl Into<PathBuf>,
        node: impl Into<String>,
        claims: Arc<dyn ClaimSource>,
    ) -> Self {
        Self {
            release,
            root: root.into(),
            node: node.into(),
            claims,
            clock: Clock::REAL,
            dra_authority: None,
            health: None,
            pod_groups: false,
            strict_endpoints: false,
        }
    }
}

// === impl Kubelet ===

impl Kubelet {
    /// Starts. Creates `<root>/plugins_registry` if need be. Must be called in a tokio runtime.
    pub fn start(options: Options) -> Self {
        let changes = Changes::default();
        let (checkpoint, pods) = (Checkpoint::default(), Pods::new(changes.clone()));
        let process = Mutex::new(Process::start(&options, &changes, &checkpoint, &pods));
        Self { options, changes, checkpoint, pods, process }
    }

    /// Stops and starts again. Pods and the state file remain; connections, health and what is only in memory do not.
    pub async fn restart(&self) {
        self.stop().await;
        let process = Process::start(&self.options, &self.changes, &self.checkpoint, &self.pods);
        *self.lock() = process;
        self.changes.notify();
    }

    /// Stops: pods keep running and nothing is unprepared. Returns when all connections are closed.
    pub async fn stop(&self) {
        let Process { stopping, tasks, .. } = self.process();
        stopping.cancel();
        tasks.close();
        tasks.wait().await;
    }

    /// All registered plugins.
    pub fn plugins(&self) -> Vec<Plugin> {
        self.process().plugins.list()
    }

    /// Why the last attempt to register each socket failed, of those where it did.
    pub fn registration_errors(&self) -> BTreeMap<PathBuf, String> {
        self.process().registrar.errors()
    }

    /// Waits until a plugin of the driver is registered and connected.
    pub async fn wait_for_plugin(&self, driver: &str) -> Plugin {
        self.wait_until(|kubelet| {
            kubelet.plugins().into_iter().find(|plugin| plugin.driver == driver && plugin.connected)
        })
        .await
    }

    /// Waits until `look` finds what it looks for. It is called again whenever something changed.
    pub async fn wait_until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        self.changes.wait_for(|| look(self)).await
    }

    /// Gives the kubelet a pod to run.
    pub fn run_pod(&self, pod: Pod) -> PodHandle {
        let handle = self.pods.add(pod);
        self.process().work(&self.options, &self.pods, handle.uid().to_owned());
        handle
    }

    /// Ends a pod and takes its claims back, as after a graceful deletion. Wait for it with the pod's handle.
    pub fn stop_pod(&self, pod: &PodHandle) {
        self.pods.stop(pod.uid());
    }

    /// Lets a pod vanish, as after a deletion by force: its claims are taken back by the loop that runs every 60 s.
    pub fn vanish_pod(&self, pod: &PodHandle) {
        self.pods.vanish(pod.uid());
    }

    /// What is prepared or may be, as the pod resources API lists it.
    pub fn prepared_claims(&self) -> Vec<PreparedClaim> {
        self.process().manager.list()
    }

    /// What is prepared of one claim.
    pub fn prepared_claim(&self, namespace: &str, name: &str) -> Option<PreparedClaim> {
        self.prepared_claims().into_iter().find(|claim| claim.namespace == namespace && claim.name == name)
    }

    /// What the kubelet thinks of a device.
    pub fn health(&self, driver: &str, pool: &str, device: &str) -> DeviceHealth {
        self.process().health.get(driver, pool, device, Instant::now())
    }

    /// Calls NodePrepareResources once, past the claim cache and without any check of the answer.
    ///
    /// Returns what the plugin says of each claim, by UID; the error is that of the call.
    pub async fn prepare_once(
        &self,
        driver: &str,
        claims: &[ClaimRef],
    ) -> Result<BTreeMap<String, Result<Vec<PreparedDevice>, String>>, String> {
        let plugin = self.process().plugins.get(driver)?;
        let answer = plugin.prepare(claims.iter().map(ClaimRef::request).collect()).await;
        let claims = answer.map_err(|status| go_error(&status))?.claims;
        let result = |result: v1::NodePrepareResourceResponse| match result.error {
            error if error.is_empty() => {
                Ok(result.devices.into_iter().map(|device| PreparedDevice::of(driver, device)).collect())
            }
            error => Err(error),
        };
        Ok(claims.into_iter().map(|(uid, claim)| (uid, result(claim))).collect())
    }

    /// Calls NodeUnprepareResources once, past the claim cache and without any check of the answer.
    pub async fn unprepare_once(
        &self,
        driver: &str,
        claims: &[ClaimRef],
    ) -> Result<BTreeMap<String, Result<(), String>>, String> {
        let plugin = self.process().plugins.get(driver)?;
        let answer = plugin.unprepare(claims.iter().map(ClaimRef::request).collect()).await;
        let claims = answer.map_err(|status| go_error(&status))?.claims;
        let result = |error: String| if error.is_empty() { Ok(()) } else { Err(error) };
        Ok(claims.into_iter().map(|(uid, claim)| (uid, result(claim.error))).collect())
    }

    fn process(&self) -> Process {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.lock().stopping.cancel();
    }
}

// === impl ClaimRef ===

impl ClaimRef {
    /// Names a claim.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, uid: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    fn request(&self) -> v1::Claim {
        v1::Claim { namespace: self.namespace.clone(), uid: self.uid.clone(), name: self.name.clone() }
    }
}

// === impl Process ===

impl Process {
    fn start(options: &Options, changes: &Changes, checkpoint: &Checkpoint, pods: &Pods) -> Self {
        let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
        let health = Arc::new(HealthCache::new(options.release, options.clock, changes.clone()));
        let plugins =
            Plugins::start(options.clone(), changes.clone(), Arc::clone(&health), stopping.clone(), tasks.clone());
        let registrar =
            Registrar::start(options.clone(), changes.clone(), plugins.clone(), stopping.clone(), tasks.clone());
        let manager = Arc::new(Manager {
            options: options.clone(),
            changes: changes.clone(),
            plugins: plugins.clone(),
            cache: Mutex::new(ClaimCache::load(Arc::clone(checkpoint))),
        });
        let process = Self { stopping, tasks, plugins, registrar, manager, health };
        for uid in pods.active() {
            process.work(options, pods, uid);
        }
        process.reconcile(options.clock, pods.clone());
        process
    }

    fn work(&self, options: &Options, pods: &Pods, uid: String) {
        self.spawn(pods.clone().work(uid, Arc::clone(&self.manager), options.clock));
    }

    /// Takes back what is prepared for pods that are gone, every 60 s.
    fn reconcile(&self, clock: Clock, pods: Pods) {
        let manager = Arc::clone(&self.manager);
        self.spawn(async move {
            loop {
                clock.sleep(RECONCILE).await;
                let active = pods.active();
                let gone = manager.cache().pods().into_iter().filter(|pod| !active.contains(pod)).collect::<Vec<_>>();
                for pod in gone {
                    if let Err(error) = manager.unprepare(&pod).await {
                        debug!(pod, %error, "could not take back the claims of a pod that is gone, trying again");
                    }
                }
            }
        });
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move { stopping.run_until_cancelled(task).await });
    }
}
