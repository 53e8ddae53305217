//! A Kubernetes API server, as much of it as nodes, slices and claims need.
//!
//! ```text
//!  kubectl, kube-rs ──HTTP──▶ serve ─▶ reading, watching ─▶ codec ─▶ store
//!                               │  └─▶ writing ─▶ codec ─▶ registry ─▶ admit, validate ─▶ store
//!                               └─▶ faults: what a scenario breaks, and the log of requests
//!  scenario ──ApiServer───────────────▶ the same registry: objects from Rust pass the same rules
//! ```
//!
//! It speaks for one played [`Release`]: that release's versions, fields, gates, limits and messages. It follows the
//! API's rules, not our driver's habits. What it leaves out, on purpose:
//!
//! * bodies in YAML or protobuf (`kubectl create namespace` sends that; `kubectl create -f` does not), and aggregated
//!   discovery, for which clients have a fallback;
//! * CEL selectors are not compiled, pods are stored without validation and deleted without a grace period;
//! * lists at an exact older revision answer 410;
//! * who may do what: every request is allowed, of anybody whose token is accepted if tokens are asked for at all.
//!
//! The garbage collector is exact and immediate: an object all of whose owners are gone goes in the same step.

mod admit;
mod apply;
mod codec;
mod convert;
mod discovery;
mod failure;
mod faults;
mod fieldset;
mod gates;
mod ids;
mod kind;
mod patch;
mod quantity;
mod reading;
mod registry;
mod route;
mod schema;
mod selector;
mod serve;
mod store;
mod table;
mod validate;
mod watching;
mod webhook;
mod writing;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::apply::Manager;
use self::codec::{Codec, FieldValidation};
use self::discovery::Discovery;
pub use self::failure::{Failure, FieldError, Problem};
use self::faults::Faults;
pub use self::faults::{FailureRule, Matching, Request, Stall};
pub use self::gates::{Gate, GateError, Gates};
pub use self::kind::{Group, GroupVersion, Kind, Version};
use self::registry::{Preconditions, Registry, Write};
pub use self::route::Verb;
use self::serve::Shared;
use self::store::{Key, Store};
pub use self::validate::{Part, Rules, validate};
use self::webhook::Webhooks;
use crate::release::Release;

/// Field manager, and author, of what scenarios write from Rust.
const MANAGER: &str = "fake-node";
/// The namespaces of a new cluster.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// The release to play.
    pub release: Release,
    /// Its feature gates.
    pub gates: Gates,
    /// The served versions of resource.k8s.io, most preferred first. Empty: the group does not exist.
    pub versions: Vec<Version>,
    /// The port on 127.0.0.1; zero picks a free one.
    pub port: u16,
    /// The node that exists from the start.
    pub node_name: String,
    /// Its UID; made up if `None`.
    pub node_uid: Option<String>,
}

/// A running server. Clones are handles to the same one; it ends with the last of them.
#[derive(Debug, Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
    running: Arc<Running>,
}

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The port is taken, or there is no loopback.
    #[error("cannot listen on {address} for the fake API server")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kubeconfig could not be written.
    #[error("cannot write the kubeconfig of the fake API server to {path}")]
    Kubeconfig {
        /// Where.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The task that accepts connections, while there is one.
#[derive(Debug, Default)]
struct Running(Mutex<Option<JoinHandle<()>>>);

// === impl Options ===

impl Options {
    /// A release as it is by default, with one node.
    pub fn new(release: Release, node_name: impl Into<String>) -> Self {
        let (gates, versions) = (Gates::new(release), Version::served(release));
        Self { release, gates, versions, port: 0, node_name: node_name.into(), node_uid: None }
    }
}

// === impl ApiServer: life ===

impl ApiServer {
    /// Starts a server with its built-in objects.
    pub async fn start(options: Options) -> Result<Self, ApiError> {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, options.port))).await?;
        let address = listener
            .local_addr()
            .map_err(|source| ApiError::Listen { address: ([127, 0, 0, 1], options.port).into(), source })?;
        let registry = Registry {
            store: Store::new(),
            release: options.release,
            gates: options.gates,
            webhooks: Webhooks::default(),
        };
        let discovery = Discovery { release: options.release, versions: options.versions };
        let shared = Shared {
            registry: Arc::new(registry),
            discovery: RwLock::new(discovery),
            faults: Faults::default(),
            cut: watch::Sender::new(0),
            tokens: RwLock::default(),
            address,
        };
        let server = Self { shared: Arc::new(shared), running: Arc::default() };
        server.furnish(&options.node_name, options.node_uid.as_deref());
        server.running.set(tokio::spawn(serve::serve(listener, Arc::clone(&server.shared))));
        Ok(server)
    }

    fn furnish(&self, node_name: &str, node_uid: Option<&str>) {
        for name in NAMESPACES {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name,
                "labels": {"kubernetes.io/metadata.name": name}}});
            // Built-in names are valid and free.
            drop(self.create(namespace));
        }
        self.put_node(node_name, node_uid);
    }

    /// Ends the server as a crash would: the port is closed, connections are cut in the middle. Objects stay.
    pub async fn stop(&self) {
        let running = self.running.take();
        if let Some(running) = running {
            running.abort();
            drop(running.await);
        }
    }

    /// Starts a stopped server again, on the same port.
    pub async fn restart(&self) -> Result<(), ApiError> {
        self.stop().await;
        let listener = listen(self.shared.address).await?;
        self.running.set(tokio::spawn(serve::serve(listener, Arc::clone(&self.shared))));
        Ok(())
    }

    /// Serves other versions of resource.k8s.io from now on; none takes the group away. Running watches go on: an upgrade
    /// stops the server before and restarts it after that.
    pub fn serve_versions(&self, versions: &[Version]) {
        versions.clone_into(&mut self.shared.discovery.write().unwrap_or_else(PoisonError::into_inner).versions);
    }

    /// `http://127.0.0.1:<port>`
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The played release.
    pub fn release(&self) -> Release {
        self.shared.registry.release
    }

    /// A kubeconfig for this server.
    pub fn kubeconfig(&self) -> String {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake-node",
            "clusters": [{"name": "fake-node", "cluster": {"server": self.url()}}],
            "users": [{"name": "fake-node", "user": {}}],
            "contexts": [{"name": "fake-node",
                "context": {"cluster": "fake-node", "user": "fake-node", "namespace": "default"}}],
        });
        format!("{config:#}\n")
    }

    /// Writes the kubeconfig to a file.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<(), ApiError> {
        std::fs::write(path, self.kubeconfig())
            .map_err(|source| ApiError::Kubeconfig { path: path.display().to_string(), source })
    }
}

// === impl ApiServer: objects ===

/// Objects are in the shape of v1 here, whatever versions are served. `namespace` is empty outside namespaces.
impl ApiServer {
    /// An object, if it exists.
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        self.shared.registry.get(&key(kind, namespace, name)).ok().map(|object| Value::clone(&object))
    }

    /// All objects of a kind, in the order of namespace and name.
    pub fn list(&self, kind: Kind) -> Vec<Value> {
        self.shared.registry.store.lock().list(kind, None).map(|(_, object)| Value::clone(object)).collect()
    }

    /// Creates the object that `object` says it is, as a POST would.
    pub fn create(&self, object: Value) -> Result<Value, Failure> {
        let (kind, object) = self.read(object)?;
        let namespace = text(&object, "namespace");
        let created = self.shared.registry.create(kind, &namespace, object, &write(kind, Part::Main))?;
        Ok(Value::clone(&created))
    }

    /// Replaces an object, as a PUT would. Its `resourceVersion` is checked if it has one.
    pub fn update(&self, object: Value) -> Result<Value, Failure> {
        self.replace(object, Part::Main)
    }

    /// Replaces the status of an object, as a PUT to its status would.
    pub fn update_status(&self, object: Value) -> Result<Value, Failure> {
        self.replace(object, Part::Status)
    }

    fn replace(&self, object: Value, part: Part) -> Result<Value, Failure> {
        let (kind, object) = self.read(object)?;
        let key = key(kind, &text(&object, "namespace"), &text(&object, "name"));
        let stored = self.shared.registry.modify(&key, &write(kind, part), |_| Ok(object))?;
        Ok(Value::clone(&stored))
    }

    /// Deletes an object. One with finalizers is only marked.
    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<(), Failure> {
        self.shared.registry.delete(&key(kind, namespace, name), &Preconditions::default(), false).map(drop)
    }

    /// Deletes a node, which takes what it owns with it, and registers it again under a new UID, which is returned.
    pub fn recreate_node(&self, name: &str) -> Result<String, Failure> {
        self.delete(Kind::Node, "", name)?;
        Ok(self.put_node(name, None))
    }

    fn put_node(&self, name: &str, uid: Option<&str>) -> String {
        let uid = uid.map_or_else(ids::uid, str::to_owned);
        let now = ids::now();
        let version = format!("v{}.0", self.release());
        let mut node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "uid": uid, "creationTimestamp": now,
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            "status": {
                "nodeInfo": {"kubeletVersion": version, "kubeProxyVersion": version, "operatingSystem": "linux",
                    "architecture": "amd64", "containerRuntimeVersion": "fake://0", "machineID": "", "systemUUID": "",
                    "bootID": "", "kernelVersion": "", "osImage": ""},
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                    "lastHeartbeatTime": now, "lastTransitionTime": now}]}});
        schema::compact(&mut node, schema::of(Kind::Node));
        self.shared.registry.store.lock().put(key(Kind::Node, "", name), node);
        self.shared.registry.store.announce();
        uid
    }

    /// Waits until `look` finds what it looks for. It looks again after every write and every request.
    pub async fn until<T>(&self, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let mut revised = self.shared.registry.store.subscribe();
        let mut arrivals = self.shared.faults.subscribe();
        loop {
            revised.borrow_and_update();
            arrivals.borrow_and_update();
            if let Some(found) = look(self) {
                return found;
            }
            // The senders live as long as this handle.
            tokio::select! {
                _ = revised.changed() => {}
                _ = arrivals.changed() => {}
            }
        }
    }

    fn read(&self, object: Value) -> Result<(Kind, Value), Failure> {
        let field = |name: &str| object[name].as_str().unwrap_or_default();
        let Some((kind, version)) = Kind::of(field("apiVersion"), field("kind")) else {
            let why = format!("no kind {:?} is registered for version {:?}", field("kind"), field("apiVersion"));
            return Err(Failure::injected(400, why));
        };
        let codec = Codec { kind, version, release: self.release() };
        codec.read(object, FieldValidation::Strict).map(|(object, _)| (kind, object))
    }
}

// === impl ApiServer: controls ===

impl ApiServer {
    /// Fails requests.
    pub fn fail(&self, rule: FailureRule) {
        self.shared.faults.fail(rule);
    }

    /// Takes back all failure rules.
    pub fn clear_failures(&self) {
        self.shared.faults.clear();
    }

    /// Accepts requests without answering them, until the returned value is dropped; then they are served.
    pub fn stall(&self, requests: Matching) -> Stall {
        self.shared.faults.stall(requests)
    }

    /// Serves only requests with one of these bearer tokens from now on, as with `--anonymous-auth=false`. Running watches
    /// go on. The fake kubelet has no token.
    pub fn accept_tokens(&self, tokens: &[&str]) {
        let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
        *self.shared.tokens.write().unwrap_or_else(PoisonError::into_inner) = Some(tokens);
    }

    /// Installs an admission webhook that changes objects of a kind, in the shape of v1, before they are checked.
    pub fn mutate(&self, kind: Kind, mutation: impl Fn(&mut Value) + Send + Sync + 'static) {
        self.shared.registry.webhooks.install(kind, Box::new(mutation));
    }

    /// Ends all running watches in order; clients watch again from where they were.
    pub fn drop_watches(&self) {
        self.shared.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Makes every resource version seen so far too old: watches from there get 410, and lists that were asked for in
    /// parts cannot go on. Running watches are not disturbed.
    pub fn compact(&self) {
        self.shared.registry.store.compact();
    }

    /// Ends all running watches, and has their clients find that they are too far behind to go on.
    pub fn expire_watches(&self) {
        self.compact();
        self.drop_watches();
    }

    /// All requests since the start or the last [`Self::forget_requests`], oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.faults.log()
    }

    /// How many of these requests there were.
    pub fn count(&self, requests: &Matching) -> usize {
        self.requests().iter().filter(|request| requests.matches(request)).count()
    }

    /// The requests that would have changed something.
    pub fn writes(&self) -> Vec<Request> {
        self.requests().into_iter().filter(Request::is_write).collect()
    }

    /// Empties the log of requests.
    pub fn forget_requests(&self) {
        self.shared.faults.forget();
    }
}

// === impl Running ===

impl Running {
    fn set(&self, task: JoinHandle<()>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    fn take(&self) -> Option<JoinHandle<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = self.take() {
            task.abort();
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ApiError> {
    TcpListener::bind(address).await.map_err(|source| ApiError::Listen { address, source })
}

fn key(kind: Kind, namespace: &str, name: &str) -> Key {
    Key { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}

fn text(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap_or_default().to_owned()
}

fn write(kind: Kind, part: Part) -> Write<'static> {
    let api_version = match kind.group() {
        Group::Core | Group::Events => "v1",
        Group::Resource => "resource.k8s.io/v1",
    };
    let subresource = (part == Part::Status).then_some("status");
    Write { manager: Manager { name: MANAGER, api_version, subresource }, part, dry_run: false }
}
