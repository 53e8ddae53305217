//! The plugin manager: registers the plugins whose sockets appear and deregisters those whose sockets go.
//!
//! ```text
//!  plugins_registry ── Watcher, every 50 ms ──▶ sockets ── reconciler, every 1 s ──▶ one attempt a socket at a time:
//!     dial (10 s) → GetInfo (1 s) → validate → register → NotifyRegistrationStatus (5 s), on one connection
//! ```
//!
//! A failed attempt is made again with an exponential back-off for each socket.

use std::collections::BTreeMap;
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tracing::{debug, warn};

use super::plugins::Plugins;
use super::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use super::rules;
use super::watcher::{Generation, Watcher};
use super::wire::{self, Authority, Connection, go_error};
use super::{Options, changes::Changes};

/// How often the directory is looked at. Real time: it stands in for events.
const POLL: Duration = Duration::from_millis(50);

/// How often the reconciler runs.
const RECONCILE: Duration = Duration::from_secs(1);

/// How long the kubelet tries to dial a registrar.
const DIAL: Duration = Duration::from_secs(10);

/// The deadlines of the registrar's methods.
const GET_INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);

/// The first and the longest pause after a failed attempt; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(122);

/// The only type of plugin that this kubelet has a handler for.
const PLUGIN_TYPE: &str = "DRAPlugin";

/// The plugin manager of a running kubelet.
#[derive(Clone)]
pub(super) struct Registrar(Arc<Inner>);

struct Inner {
    options: Options,
    changes: Changes,
    plugins: Plugins,
    tasks: TaskTracker,
    stopping: CancellationToken,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    desired: BTreeMap<PathBuf, Generation>,
    registered: BTreeMap<PathBuf, Registered>,
    attempts: BTreeMap<PathBuf, Attempts>,
}

struct Registered {
    generation: Generation,
    driver: String,
    endpoint: PathBuf,
}

/// The attempts at a socket so far.
#[derive(Default)]
struct Attempts {
    running: bool,
    pause: Duration,
    not_before: Option<Instant>,
    error: Option<String>,
}

// === impl Registrar ===

impl Registrar {
    pub(super) fn start(
        options: Options,
        changes: Changes,
        plugins: Plugins,
        stopping: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        let inner = Arc::new(Inner { options, changes, plugins, tasks, stopping, state: Mutex::default() });
        let (watching, reconciling) = (Arc::clone(&inner), Arc::clone(&inner));
        inner.spawn(async move { watching.watch().await });
        inner.spawn(async move {
            loop {
                reconciling.reconcile();
                reconciling.options.clock.sleep(RECONCILE).await;
            }
        });
        Self(inner)
    }

    /// Why the last attempt at each socket failed, of those where it did.
    pub(super) fn errors(&self) -> BTreeMap<PathBuf, String> {
        let state = self.0.lock();
        let error = |(path, attempts): (&PathBuf, &Attempts)| Some((path.clone(), attempts.error.clone()?));
        state.attempts.iter().filter_map(error).collect()
    }
}

// === impl Inner ===

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move { stopping.run_until_cancelled(task).await });
    }

    async fn watch(&self) {
        let directory = self.options.root.join("plugins_registry");
        if let Err(error) = fs::create_dir_all(&directory) {
            warn!(directory = %directory.display(), %error, "cannot create the plugin registry");
        }
        let mut watcher = Watcher::default();
        loop {
            let desired = watcher.scan(&directory);
            self.lock().desired = desired;
            tokio::time::sleep(POLL).await;
        }
    }

    /// Deregisters what went or was created anew, then starts attempts at what is not registered. What was deregistered
    /// is attempted the next time.
    fn reconcile(self: &Arc<Self>) {
        let mut state = self.lock();
        let State { desired, registered, attempts } = &mut *state;
        attempts.retain(|path, attempts| attempts.running || desired.contains_key(path));
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = mem::take(registered)
            .into_iter()
            .partition(|(path, registered)| desired.get(path) == Some(&registered.generation));
        *registered = kept;
        let mut due = Vec::new();
        for (path, generation) in desired.iter() {
            let attempts = attempts.entry(path.clone()).or_default();
            let waits = attempts.running || attempts.not_before.is_some_and(|at| Instant::now() < at);
            if !waits && !gone.contains_key(path) && !registered.contains_key(path) {
                attempts.running = true;
                due.push((path.clone(), *generation));
            }
        }
        drop(state);

        for registered in gone.into_values() {
            self.plugins.deregister(&registered.driver, &registered.endpoint);
        }
        for (path, generation) in due {
            let inner = Arc::clone(self);
            self.spawn(async move {
                let result = inner.register(&path, generation).await;
                inner.finish(&path, result);
            });
        }
    }

    fn finish(&self, path: &Path, result: Result<(), String>) {
        let mut state = self.lock();
        let attempts = state.attempts.entry(path.to_owned()).or_default();
        attempts.running = false;
        match result {
            Ok(()) => *attempts = Attempts::default(),
            Err(error) => {
                debug!(socket = %path.display(), %error, "registration failed");
                attempts.pause = (attempts.pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE);
                attempts.not_before = Some(Instant::now() + self.options.clock.wait(attempts.pause));
                attempts.error = Some(error);
            }
        }
        drop(state);
        self.changes.notify();
    }

    /// One attempt. The connection is closed at its end, whatever came of it.
    async fn register(&self, socket: &Path, generation: Generation) -> Result<(), String> {
        let shown = socket.display();
        let connection = self
            .dial(socket)
            .await
            .map_err(|error| format!("RegisterPlugin error -- dial failed at socket {shown}, err: {error}"))?;
        let channel = connection.channel.clone();
        let info = self.get_info(channel.clone()).await.map_err(|error| {
            format!(
                "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {shown}, err: {error}"
            )
        })?;

        let PluginInfo { r#type, name: driver, endpoint, supported_versions } = info;
        if r#type != PLUGIN_TYPE {
            let error = format!("no handler registered for plugin type: {type} at socket {shown}");
            return self.refuse(channel, error).await;
        }
        let endpoint = if endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(endpoint) };
        if let Err(error) = self.plugins.validate(&driver, &endpoint, &supported_versions) {
            return self.refuse(channel, format!("plugin validation failed with err: {error}")).await;
        }
        // From here on the socket counts as registered, even if the next step fails: that is not tried again.
        let registered = Registered { generation, driver: driver.clone(), endpoint: endpoint.clone() };
        self.lock().registered.insert(socket.to_owned(), registered);
        if let Err(error) = self.plugins.register(&driver, &endpoint, supported_versions) {
            return self.refuse(channel, format!("plugin registration failed with err: {error}")).await;
        }
        let notified = self.notify(channel, String::new()).await;
        if notified.is_err() && rules::failed_notify_deregisters(self.options.release) {
            self.lock().registered.remove(socket);
            self.plugins.deregister(&driver, &endpoint);
        }
        notified.map_err(|error| {
            format!("RegisterPlugin error -- failed to send registration status at socket {shown}, err: {error}")
        })
    }

    /// Like grpc-go's blocking dial, tries until the deadline.
    async fn dial(&self, socket: &Path) -> Result<Connection, String> {
        let deadline = Instant::now() + self.options.clock.deadline(DIAL);
        loop {
            match tokio::time::timeout_at(deadline, Connection::dial(socket, Authority::Path)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) if Instant::now() + POLL >= deadline || !socket.exists() => {
                    return Err(error.to_string());
                }
                Ok(Err(_)) => tokio::time::sleep(POLL).await,
                Err(_) => {
                    return Err(format!("failed to dial socket {}, err: context deadline exceeded", socket.display()));
                }
            }
        }
    }

    async fn get_info(&self, channel: Channel) -> Result<PluginInfo, String> {
        let limit = self.options.clock.deadline(GET_INFO);
        let path = PathAndQuery::from_static("/pluginregistration.Registration/GetInfo");
        wire::unary(channel, path, InfoRequest {}, limit).await.map_err(|status| go_error(&status))
    }

    /// Tells the plugin why it is not registered. Always an error: the attempt failed.
    async fn refuse(&self, channel: Channel, error: String) -> Result<(), String> {
        let error = format!("RegisterPlugin error -- {error}");
        if let Err(failed) = self.notify(channel, error.clone()).await {
            debug!(error = %failed, "the plugin did not take its refusal");
        }
        Err(error)
    }

    async fn notify(&self, channel: Channel, error: String) -> Result<(), String> {
        let limit = self.options.clock.deadline(NOTIFY);
        let path = PathAndQuery::from_static("/pluginregistration.Registration/NotifyRegistrationStatus");
        let status = RegistrationStatus { plugin_registered: error.is_empty(), error };
        let answer: Result<RegistrationStatusResponse, _> = wire::unary(channel, path, status, limit).await;
        answer.map(drop).map_err(|status| go_error(&status))
    }
}
