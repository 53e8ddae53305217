//! A fake node with the plugin on it, and the kubelet's end of its DRA socket.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use fake_node::kubelet::proto::v1;
use fake_node::node::{DRIVER, NODE, Node, Settings};
use fake_node::plugin::Plugin;
use hyper_util::rt::TokioIo;
use prost::Message;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use topology::Topology;
use tower::service_fn;

/// A namespace in which claims may have admin access.
const MONITORING: &str = "monitoring";

/// What nodes are made of.
pub(crate) struct Setup {
    plugin: PathBuf,
    library: PathBuf,
    directory: PathBuf,
}

/// A node with the plugin at work.
pub(crate) struct BenchNode {
    node: Node,
    pub(crate) plugin: Plugin,
    pub(crate) dra: Connection,
    _directory: TempDir,
}

/// A connection to a unix socket that speaks gRPC.
#[derive(Clone)]
pub(crate) struct Connection(Grpc<Channel>);

// === impl Setup ===

impl Setup {
    pub(crate) fn new(plugin: PathBuf, directory: PathBuf) -> anyhow::Result<Self> {
        let here = std::env::current_exe().context("cannot tell where this program is")?;
        // Cargo puts the library of a dependency beside the benchmark.
        let library = here.with_file_name(Settings::LIBRARY);
        for file in [&plugin, &library] {
            ensure!(file.is_file(), "{} is missing: run hack/bench", file.display());
        }
        Ok(Self { plugin, library, directory })
    }

    /// An empty directory on the file system that is measured. Sockets are bound in it, so its path is short.
    pub(crate) fn temporary(&self) -> anyhow::Result<TempDir> {
        let made = tempfile::Builder::new().prefix("bench-").tempdir_in(&self.directory);
        made.with_context(|| format!("cannot make a directory in {}", self.directory.display()))
    }

    /// A cluster and a kubelet on a machine, without the plugin.
    pub(crate) async fn machine(&self, topology: Topology) -> anyhow::Result<(Node, TempDir)> {
        let directory = self.temporary()?;
        let defaults = Settings::new(topology, Path::new(""));
        let settings = Settings { plugin: self.plugin.clone(), library: self.library.clone(), ..defaults };
        let node = Node::start(settings, directory.path()).await?;
        node.create(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": MONITORING, "labels": {"resource.kubernetes.io/admin-access": "true"}},
        }))?;
        Ok((node, directory))
    }

    /// A machine of 8 GPUs, with the plugin ready.
    pub(crate) async fn node(&self) -> anyhow::Result<BenchNode> {
        self.node_of(Topology::builtin("dgx-h100")?).await
    }

    /// As [`node`](Self::node), on another machine.
    pub(crate) async fn node_of(&self, topology: Topology) -> anyhow::Result<BenchNode> {
        self.node_with(topology, &[]).await
    }

    /// As [`node_of`](Self::node_of), with more arguments for the plugin.
    pub(crate) async fn node_with(&self, topology: Topology, arguments: &[&str]) -> anyhow::Result<BenchNode> {
        let (node, directory) = self.machine(topology).await?;
        let mut settings = node.plugin_settings();
        settings.args.extend(arguments.iter().copied().map(str::to_owned));
        let mut plugin = Plugin::start(&settings)?;
        plugin.wait_until_ready().await?;
        let dra = Connection::dial(&node.plugin_dir().join("dra.sock")).await?;
        Ok(BenchNode { node, plugin, dra, _directory: directory })
    }
}

// === impl BenchNode ===

impl BenchNode {
    /// A claim that was allocated a whole GPU.
    pub(crate) fn claim(&self, name: &str, device: &str) -> anyhow::Result<v1::Claim> {
        allocated_claim(&self.node, "default", name, device)
    }

    /// A claim with admin access, which goes beside all others on the GPU.
    pub(crate) fn admin_claim(&self, name: &str, device: &str) -> anyhow::Result<v1::Claim> {
        allocated_claim(&self.node, MONITORING, name, device)
    }

    /// Claims with admin access, spread over the GPUs.
    pub(crate) fn admin_claims(&self, name: &str, count: usize) -> anyhow::Result<Vec<v1::Claim>> {
        let gpus = self.node.devices().len();
        (0..count)
            .map(|number| self.admin_claim(&format!("{name}-{number}"), &format!("gpu-{}", number % gpus)))
            .collect()
    }
}

impl Deref for BenchNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

fn allocated_claim(node: &Node, namespace: &str, name: &str, device: &str) -> anyhow::Result<v1::Claim> {
    let admin = namespace == MONITORING;
    let mut claim = node.create(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "adminAccess": admin}},
        ]}},
    }))?;
    claim["status"]["allocation"] = json!({"devices": {"results": [
        {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device, "adminAccess": admin},
    ]}});
    claim["status"]["reservedFor"] = json!([{"resource": "pods", "name": "nobody", "uid": "nobody"}]);
    let claim =
        node.api.update_status(claim).map_err(|failure| anyhow::anyhow!("cannot allocate a claim: {failure}"))?;
    let uid = claim["metadata"]["uid"].as_str().context("the API server gives UIDs")?;
    Ok(v1::Claim { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() })
}

// === impl Connection ===

impl Connection {
    pub(crate) async fn dial(socket: &Path) -> anyhow::Result<Self> {
        let path = socket.to_owned();
        let connector = service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
        Ok(Self(Grpc::new(channel.with_context(|| format!("cannot dial {}", socket.display()))?)))
    }

    /// Has one claim prepared.
    pub(crate) async fn prepare(&self, claim: &v1::Claim) -> anyhow::Result<v1::NodePrepareResourcesResponse> {
        let request = v1::NodePrepareResourcesRequest { claims: vec![claim.clone()] };
        let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
        let answer: v1::NodePrepareResourcesResponse = self.call(path, request).await?;
        match answer.claims.get(&claim.uid) {
            Some(entry) if entry.error.is_empty() => Ok(answer),
            Some(entry) => bail!("the claim was not prepared: {}", entry.error),
            None => bail!("the claim was not answered"),
        }
    }

    /// Has one claim unprepared.
    pub(crate) async fn unprepare(&self, claim: &v1::Claim) -> anyhow::Result<()> {
        let request = v1::NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
        let answer: v1::NodeUnprepareResourcesResponse = self.call(path, request).await?;
        match answer.claims.get(&claim.uid) {
            Some(entry) if entry.error.is_empty() => Ok(()),
            Some(entry) => bail!("the claim was not unprepared: {}", entry.error),
            None => bail!("the claim was not answered"),
        }
    }

    /// Any other method.
    pub(crate) async fn call<Q, A>(&self, path: &'static str, request: Q) -> anyhow::Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.0.clone();
        grpc.ready().await.context("the connection is gone")?;
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(tonic::Request::new(request), path, ProstCodec::default()).await?;
        Ok(answer.into_inner())
    }
}

/// How long something takes.
pub(crate) async fn timed<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    work.await?;
    Ok(start.elapsed())
}
