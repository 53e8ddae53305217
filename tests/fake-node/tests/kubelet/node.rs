//! A node for a test: a kubelet root in a temporary directory and an API server in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake_node::kubelet::{ClaimSource, Clock, Kubelet, Options};
use fake_node::release::Release;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use super::plugin::{Plugin, Setup, VERSIONS};

/// The driver of all test plugins.
pub(crate) const DRIVER: &str = "gpu.example.com";

/// How fast the kubelet's time runs: 60 s are 0.3 s.
const SCALE: f64 = 200.0;

/// How long a test waits before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The API server.
#[derive(Default)]
pub(crate) struct Api {
    claims: Mutex<BTreeMap<String, Value>>,
    /// The selectors of all deletions of ResourceSlices.
    pub(crate) wipes: watch::Sender<Vec<String>>,
}

pub(crate) struct Node {
    pub(crate) directory: TempDir,
    pub(crate) api: Arc<Api>,
    pub(crate) kubelet: Kubelet,
}

impl Api {
    /// An allocated claim that pods may use.
    pub(crate) fn add(&self, name: &str, uid: &str, pods: &[&str]) {
        let consumers: Vec<_> = pods.iter().map(|uid| json!({"resource": "pods", "uid": uid})).collect();
        self.set(
            name,
            json!({
                "metadata": {"namespace": "default", "name": name, "uid": uid},
                "status": {
                    "allocation": {"devices": {"results": [
                        {"request": "gpu", "driver": DRIVER, "pool": "node", "device": "gpu-0"},
                    ]}},
                    "reservedFor": consumers,
                },
            }),
        );
    }

    pub(crate) fn set(&self, name: &str, claim: Value) {
        self.claims.lock().unwrap().insert(name.to_owned(), claim);
    }

    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        change(self.claims.lock().unwrap().get_mut(name).unwrap());
    }

    /// Waits for a deletion of ResourceSlices after the first `seen`.
    pub(crate) async fn wait_for_wipe(&self, seen: usize) -> Vec<String> {
        self.wipes.subscribe().wait_for(|wipes| wipes.len() > seen).await.unwrap()[seen..].to_vec()
    }
}

impl ClaimSource for Api {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, String>> {
        assert_eq!(namespace, "default");
        Box::pin(async move { Ok(self.claims.lock().unwrap().get(name).cloned()) })
    }

    fn delete_slices<'a>(&'a self, node: &'a str, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>> {
        let selector = format!("{node} {}", driver.unwrap_or("*"));
        Box::pin(async move {
            self.wipes.send_modify(|wipes| wipes.push(selector));
            Ok(())
        })
    }
}

impl Node {
    /// Starts a fast kubelet.
    pub(crate) fn start(release: Release) -> Self {
        Self::start_with(release, |_| {})
    }

    pub(crate) fn start_with(release: Release, change: impl FnOnce(&mut Options)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let api = Arc::new(Api::default());
        let mut options = Options::new(release, directory.path(), "node", Arc::clone(&api) as Arc<dyn ClaimSource>);
        options.clock = Clock::scaled(SCALE);
        change(&mut options);
        Self { directory, api, kubelet: Kubelet::start(options) }
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// How to start a good plugin.
    pub(crate) fn setup<'a>(&'a self, name: &'a str) -> Setup<'a> {
        Setup { root: self.root(), name, versions: &VERSIONS, tolerant: true, health: true }
    }

    /// A good plugin, registered.
    pub(crate) async fn plugin(&self, name: &str) -> Plugin {
        let plugin = self.setup(name).start();
        self.wait_registered(&plugin).await;
        self.until(|_| plugin.calls().contains(&"registered".to_owned()).then_some(())).await;
        plugin
    }

    /// Waits for a state of the kubelet, but not for ever.
    pub(crate) async fn until<T>(&self, look: impl Fn(&Kubelet) -> Option<T>) -> T {
        tokio::time::timeout(PATIENCE, self.kubelet.wait_until(look)).await.expect("the state never came")
    }

    pub(crate) async fn wait_registered(&self, plugin: &Plugin) {
        self.until(|kubelet| {
            kubelet.plugins().into_iter().find(|p| p.endpoint == plugin.endpoint && p.connected).map(drop)
        })
        .await;
    }

    pub(crate) async fn wait_gone(&self, plugin: &Plugin) {
        self.until(|kubelet| kubelet.plugins().iter().all(|p| p.endpoint != plugin.endpoint).then_some(())).await;
    }

    pub(crate) async fn wait_registration_error(&self, plugin: &Plugin) -> String {
        self.until(|kubelet| kubelet.registration_errors().remove(&plugin.registrar)).await
    }
}
