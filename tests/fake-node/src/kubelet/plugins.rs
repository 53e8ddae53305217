//! The DRA plugin manager: which plugins of which drivers are registered, and which of them is used.
//!
//! ```text
//!  registrar ── register, deregister ──▶ Plugins ── one Instance per plugin ──▶ connection, health stream
//!                                           └── no usable instance of a driver ──▶ wipe its ResourceSlices after 30 s
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Code;
use tracing::{debug, info};

use super::health::{self, HealthCache};
use super::instance::{Instance, Link};
use super::rules::{self, Instances, Service};
use super::{Options, changes::Changes};

/// How long the plugins of a driver may be away before its ResourceSlices are deleted.
const WIPING_DELAY: Duration = Duration::from_secs(30);

/// The first and the longest pause between attempts to delete ResourceSlices, how pauses grow and spread, and how many
/// attempts there are.
const FIRST_WIPE_RETRY: Duration = Duration::from_secs(1);
const MAX_WIPE_RETRY: Duration = Duration::from_secs(300);
const WIPE_RETRY_FACTOR: f64 = 2.0;
const WIPE_RETRY_JITTER: f64 = 0.2;
const WIPE_ATTEMPTS: u32 = 100;

/// The usable bytes of `sun_path`.
const MAX_SOCKET_PATH: usize = 107;

/// A registered plugin, as a scenario sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// The driver name.
    pub driver: String,
    /// Its DRA socket.
    pub endpoint: PathBuf,
    /// The service that the kubelet calls there.
    pub service: Service,
    /// All that it lists.
    pub supported_versions: Vec<String>,
    /// Whether the connection to the DRA socket is open.
    pub connected: bool,
}

/// All plugins of a running kubelet.
#[derive(Clone)]
pub(super) struct Plugins(Arc<Inner>);

struct Inner {
    options: Options,
    changes: Changes,
    health: Arc<HealthCache>,
    /// Cancelled when the kubelet stops.
    stopping: CancellationToken,
    tasks: TaskTracker,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In the order in which they were added.
    instances: BTreeMap<String, Vec<Arc<Instance>>>,
    /// Drivers whose slices will be or have been wiped; an entry stays until the driver is usable again.
    wipes: BTreeMap<String, CancellationToken>,
}

// === impl Plugins ===

impl Plugins {
    /// Starts with no plugin, and with the deletion of all ResourceSlices of the node: no driver is usable yet.
    pub(super) fn start(
        options: Options,
        changes: Changes,
        health: Arc<HealthCache>,
        stopping: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        let plugins = Self(Arc::new(Inner { options, changes, health, stopping, tasks, state: Mutex::default() }));
        let inner = Arc::clone(&plugins.0);
        plugins.0.spawn(async move { inner.wipe(None).await });
        plugins
    }

    /// Checks what a plugin says of itself.
    pub(super) fn validate(&self, driver: &str, endpoint: &Path, versions: &[String]) -> Result<Service, String> {
        let options = &self.0.options;
        if options.strict_endpoints {
            check_endpoint(&options.root, endpoint)?;
        }
        rules::choose_service(options.release, versions).map_err(|error| {
            let endpoint = endpoint.display();
            format!("invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: {error}")
        })
    }

    /// Adds a plugin.
    pub(super) fn register(&self, driver: &str, endpoint: &Path, versions: Vec<String>) -> Result<(), String> {
        let service = self.validate(driver, endpoint, &versions)?;
        let Inner { options, stopping, .. } = &*self.0;
        let kind = rules::instances(options.release);
        let mut state = self.0.lock();
        let instances = state.instances.entry(driver.to_owned()).or_default();
        if kind == Instances::Replaced {
            instances.drain(..).for_each(|old| old.gone.cancel());
        } else if instances.iter().any(|old| old.endpoint == endpoint) {
            let endpoint = endpoint.display();
            return Err(format!("endpoint {endpoint} already registered for DRA driver plugin {driver}"));
        }
        let instance = Arc::new(Instance {
            driver: driver.to_owned(),
            endpoint: endpoint.to_owned(),
            service,
            versions,
            release: options.release,
            clock: options.clock,
            authority: options.dra_authority.unwrap_or_else(|| rules::dra_authority(options.release)),
            gone: stopping.child_token(),
            link: watch::Sender::new(Link::Connecting),
        });
        instances.push(Arc::clone(&instance));
        drop(state);

        info!(driver, endpoint = %endpoint.display(), %service, "registered a DRA plugin");
        self.0.start_health(&instance);
        let inner = Arc::clone(&self.0);
        self.0.spawn(async move { instance.keep_connected(&inner.changes, || inner.sync(&instance.driver)).await });
        self.0.sync(driver);
        self.0.changes.notify();
        Ok(())
    }

    /// Removes the plugin of a driver at an endpoint; on releases that know one plugin for a driver, whichever it is.
    pub(super) fn deregister(&self, driver: &str, endpoint: &Path) {
        let any = rules::instances(self.0.options.release) == Instances::Replaced;
        let mut state = self.0.lock();
        let Some(instances) = state.instances.get_mut(driver) else { return };
        let Some(at) = instances.iter().position(|instance| any || instance.endpoint == endpoint) else { return };
        instances.remove(at).gone.cancel();
        if instances.is_empty() {
            state.instances.remove(driver);
        }
        drop(state);
        info!(driver, endpoint = %endpoint.display(), "deregistered a DRA plugin");
        self.0.sync(driver);
        self.0.changes.notify();
    }

    /// The plugin to call for a driver. One that is not connected is better than none.
    pub(super) fn get(&self, driver: &str) -> Result<Arc<Instance>, String> {
        let state = self.0.lock();
        let instances = state.instances.get(driver).map_or(&[][..], Vec::as_slice);
        let prefer_connected = rules::instances(self.0.options.release) == Instances::Connected;
        let connected = instances.iter().rev().find(|instance| prefer_connected && instance.is_connected());
        let chosen = connected.or(instances.last()).cloned();
        chosen.ok_or_else(|| format!("DRA driver {driver} is not registered"))
    }

    pub(super) fn list(&self) -> Vec<Plugin> {
        let plugin = |instance: &Arc<Instance>| Plugin {
            driver: instance.driver.clone(),
            endpoint: instance.endpoint.clone(),
            service: instance.service,
            supported_versions: instance.versions.clone(),
            connected: instance.is_connected(),
        };
        self.0.lock().instances.values().flatten().map(plugin).collect()
    }
}

// === impl Inner ===

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something until the kubelet stops. What ends by itself then must be spawned on `tasks` instead.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Looks whether a driver became usable or ceased to be, and cancels or plans the wiping of its slices.
    fn sync(self: &Arc<Self>, driver: &str) {
        if self.stopping.is_cancelled() {
            return;
        }
        let kind = rules::instances(self.options.release);
        let mut state = self.lock();
        let instances = state.instances.get(driver).map_or(&[][..], Vec::as_slice);
        let usable = instances.iter().any(|instance| kind != Instances::Connected || instance.is_connected());
        if usable {
            if let Some(wipe) = state.wipes.remove(driver) {
                wipe.cancel();
            }
            return;
        }
        if state.wipes.contains_key(driver) {
            return;
        }
        let cancelled = self.stopping.child_token();
        state.wipes.insert(driver.to_owned(), cancelled.clone());
        drop(state);

        let delay = if kind == Instances::Replaced { Duration::ZERO } else { WIPING_DELAY };
        let (inner, driver) = (Arc::clone(self), driver.to_owned());
        self.spawn(async move {
            if cancelled.run_until_cancelled(inner.options.clock.sleep(delay)).await.is_some() {
                inner.wipe(Some(&driver)).await;
            }
        });
    }

    /// Deletes ResourceSlices of the node, again and again until the API server has done it.
    async fn wipe(&self, driver: Option<&str>) {
        let wiping = async {
            let mut pause = FIRST_WIPE_RETRY;
            for _ in 0..WIPE_ATTEMPTS {
                match self.options.claims.delete_slices(&self.options.node, driver).await {
                    Ok(()) => return info!(driver, "deleted ResourceSlices of the node"),
                    Err(error) => debug!(driver, %error, "could not delete ResourceSlices, trying again"),
                }
                self.options.clock.sleep_jittered(pause, WIPE_RETRY_JITTER).await;
                pause = pause.mul_f64(WIPE_RETRY_FACTOR).min(MAX_WIPE_RETRY);
            }
        };
        self.stopping.run_until_cancelled(wiping).await;
    }

    /// Keeps a health stream open if this release and the plugin have one.
    fn start_health(&self, instance: &Arc<Instance>) {
        let Options { release, clock, health, .. } = self.options;
        if !health.unwrap_or_else(|| rules::health_by_default(release)) {
            return;
        }
        let Some(service) = rules::choose_health_service(release, &instance.versions) else { return };
        let (cache, instance) = (Arc::clone(&self.health), Arc::clone(instance));
        self.spawn(async move {
            let watching = async {
                loop {
                    let status = match instance.channel().await {
                        Ok(channel) => health::watch(&cache, &instance.driver, service, channel).await,
                        Err(status) => status,
                    };
                    debug!(driver = instance.driver, %status, "the health stream ended");
                    if status.code() == Code::Unimplemented && rules::unimplemented_health_ends(release) {
                        return;
                    }
                    clock.sleep(health::REOPEN).await;
                }
            };
            instance.gone.run_until_cancelled(watching).await;
            cache.clear(&instance.driver);
        });
    }
}

/// What kubelets newer than those played here will demand of an endpoint.
fn check_endpoint(root: &Path, endpoint: &Path) -> Result<(), String> {
    let shown = endpoint.display();
    if !endpoint.is_absolute() {
        Err(format!("endpoint {shown} is not an absolute path"))
    } else if endpoint.as_os_str().len() > MAX_SOCKET_PATH {
        Err(format!("endpoint {shown} is longer than {MAX_SOCKET_PATH} bytes"))
    } else if !endpoint.starts_with(root) {
        Err(format!("endpoint {shown} is not inside the kubelet root {}", root.display()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_endpoints_are_absolute_short_and_inside_the_root() {
        let root = Path::new("/var/lib/kubelet");
        assert_eq!(check_endpoint(root, Path::new("/var/lib/kubelet/plugins/d/dra.sock")), Ok(()));
        for endpoint in ["plugins/d/dra.sock", "/run/dra.sock", &format!("/var/lib/kubelet/{}", "x".repeat(91))] {
            assert!(check_endpoint(root, Path::new(endpoint)).is_err(), "{endpoint}");
        }
    }
}
