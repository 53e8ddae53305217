//! A node with the plugin under test, and what a test asks of the two.

use fake_node::api::{ApiServer, Failure, FailureRule, Kind, Matching, Request, Verb};
use fake_node::node::{DRIVER, NODE};
use fake_node::plugin::Plugin;
use serde_json::Value;
use topology::GpuState;

use crate::node::{Machine, TestNode, within};

/// A node, seen through its API server.
pub(crate) struct Scene {
    pub(crate) node: TestNode,
}

// === impl Scene ===

impl Scene {
    /// Starts everything but the plugin.
    pub(crate) async fn new(topology: &'static str) -> Self {
        Self::of(Machine::new(topology)).await
    }

    pub(crate) async fn of(machine: Machine) -> Self {
        Self { node: machine.start().await }
    }

    /// Starts the plugin too, and waits until it is ready and watches its slices.
    pub(crate) async fn ready(topology: &'static str) -> (Self, Plugin) {
        let scene = Self::new(topology).await;
        let plugin = scene.ready_plugin().await;
        (scene, plugin)
    }

    pub(crate) async fn ready_plugin(&self) -> Plugin {
        self.ready_plugin_with(&[]).await
    }

    /// The same with more arguments.
    pub(crate) async fn ready_plugin_with(&self, args: &[&str]) -> Plugin {
        let mut settings = self.node.plugin_settings();
        settings.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        let mut plugin = Plugin::start(&settings).unwrap();
        plugin.wait_until_ready().await.unwrap();
        self.until("it watches", |api| (api.count(&watches()) > 0).then_some(())).await;
        plugin
    }

    pub(crate) fn api(&self) -> &ApiServer {
        &self.node.api
    }

    /// Waits for something that shows in the API server.
    pub(crate) async fn until<T>(&self, what: &str, look: impl FnMut(&ApiServer) -> Option<T>) -> T {
        within(what, self.node.api.until(look)).await
    }

    /// Waits until the plugin's slices show so many devices.
    pub(crate) async fn until_devices(&self, count: usize) {
        let look = |_: &ApiServer| (self.node.devices().len() == count && !self.node.slices().is_empty()).then_some(());
        self.until(&format!("{count} devices"), look).await;
    }

    /// Waits until there is a slice other than this one, and gives it.
    pub(crate) async fn until_replaced(&self, slice: &Value) -> Value {
        let other = |_: &ApiServer| self.node.slices().into_iter().find(|other| uid(other) != uid(slice));
        self.until("a new slice", other).await
    }

    /// The only slice.
    pub(crate) fn slice(&self) -> Value {
        let [slice] = self.node.slices().try_into().unwrap();
        slice
    }

    pub(crate) fn delete(&self, slice: &Value) {
        self.api().delete(Kind::ResourceSlice, "", name(slice)).unwrap();
    }

    /// Has GPUs fall off the bus. A running plugin sees it when it looks again, within ten seconds.
    pub(crate) fn lose(&self, gpus: impl IntoIterator<Item = usize>) {
        let lost = || GpuState { lost: true, ..GpuState::default() };
        let gpus = gpus.into_iter().map(|gpu| (gpu, lost()));
        self.node.host.node().update(|machine| machine.gpus.extend(gpus)).unwrap();
    }

    /// Fails requests of the plugin about slices from now on.
    pub(crate) fn fail(&self, verb: Verb, code: u16, times: Option<usize>) {
        let failure = Failure { retry_after: (code == 429).then_some(1), ..Failure::injected(code, "not now") };
        let requests = Matching::any().verb(verb).kind(Kind::ResourceSlice);
        self.api().fail(FailureRule { requests, failure, times });
    }

    /// How many requests of a kind there were for slices.
    pub(crate) fn count(&self, verb: Verb) -> usize {
        self.api().count(&Matching::any().verb(verb).kind(Kind::ResourceSlice))
    }

    /// How often the plugin wrote a slice; dry runs are no writes. The kubelet wipes slices too.
    pub(crate) fn writes(&self) -> usize {
        let is_ours =
            |write: &Request| write.kind == Some(Kind::ResourceSlice) && write.user_agent.starts_with("gpu-dra");
        self.api().writes().iter().filter(|write| is_ours(write)).count()
    }

    /// Events about the node with this reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<Value> {
        let about = |event: &Value| event["reason"] == reason && event["involvedObject"]["name"] == NODE;
        self.api().list(Kind::Event).into_iter().filter(about).collect()
    }
}

/// Requests that watch slices.
pub(crate) fn watches() -> Matching {
    Matching::any().verb(Verb::Watch).kind(Kind::ResourceSlice)
}

/// The line of `/readyz` about slices, and whether all is ready.
pub(crate) async fn readiness(plugin: &mut Plugin) -> (bool, String) {
    let (status, text) = plugin.get("/readyz").await.unwrap();
    let line = text.lines().find(|line| line.contains(" slices: ")).expect("slices are a condition");
    (status == 200, line.to_owned())
}

/// The value of a metric of the plugin as text, empty if there is none; the name may end in labels.
pub(crate) async fn metric(plugin: &mut Plugin, name: &str) -> String {
    let (_, text) = plugin.get("/metrics").await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("nvidia_dra_{name} ")));
    line.unwrap_or_default().to_owned()
}

pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

pub(crate) fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

pub(crate) fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

pub(crate) fn generation(slice: &Value) -> u64 {
    assert_eq!(slice["spec"]["driver"], DRIVER);
    slice["spec"]["pool"]["generation"].as_u64().unwrap()
}

pub(crate) fn slice_count(slice: &Value) -> u64 {
    slice["spec"]["pool"]["resourceSliceCount"].as_u64().unwrap()
}

pub(crate) fn owner_uid(slice: &Value) -> &str {
    slice["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap()
}
