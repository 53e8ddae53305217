//! Both servers on real sockets, with a small client; and what tests of the single files share.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::pending;
use http::uri::PathAndQuery;
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use super::proto::{dra_v1, dra_v1beta1, health_v1, health_v1alpha1};
use super::*;

pub(super) const DRIVER: &str = "gpu.nvidia.com";
pub(super) const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
pub(super) const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
pub(super) const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
pub(super) const UNPREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
const PREPARE_V1BETA1: &str = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources";

/// Until a test that waits for something gives up on it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A kubelet's directories, the health channel and the metrics.
pub(super) struct Node {
    _root: TempDir,
    pub(super) settings: Settings,
    pub(super) health: watch::Sender<Arc<HealthSnapshot>>,
    pub(super) registry: Registry,
    pub(super) metrics: Metrics,
}

impl Node {
    pub(super) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut registry = Registry::default();
        Self {
            settings: Settings::under(root.path(), DRIVER),
            _root: root,
            health: watch::channel(Arc::default()).0,
            metrics: Metrics::register(&mut registry),
            registry,
        }
    }

    pub(super) async fn serve_dra(&self, dra: Dra) -> DraServer {
        serve_dra(&self.settings, dra, self.health.subscribe(), &self.metrics).await.unwrap()
    }

    pub(super) async fn serve_registrar(&self, dra: &DraServer) -> Registrar {
        serve_registrar(&self.settings, dra, &self.metrics).await.unwrap()
    }

    pub(super) fn registrar_path(&self) -> PathBuf {
        self.settings.registry_dir.join(format!("{DRIVER}-reg.sock"))
    }
}

/// Prepares nothing.
pub(super) fn idle() -> Dra {
    Dra::from_work(|_, _, _| async { Ok(Vec::new()) }.boxed(), |_, _, _| async { Ok(()) }.boxed())
}

/// Never gets done; says on the channel when it begins.
pub(super) fn hung() -> (Dra, mpsc::UnboundedReceiver<()>) {
    let (begun, begins) = mpsc::unbounded_channel();
    let prepare = move |_, _, _| {
        let _ = begun.send(());
        pending().boxed()
    };
    (Dra::from_work(prepare, |_, _, _| pending().boxed()), begins)
}

pub(super) async fn connect(path: &Path) -> Channel {
    Endpoint::from_shared(format!("unix:{}", path.display())).unwrap().connect().await.unwrap()
}

pub(super) async fn call<Q, A>(channel: &Channel, method: &'static str, request: Request<Q>) -> Result<A, Status>
where
    Q: prost::Message + Send + 'static,
    A: prost::Message + Default + Send + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let codec = ProstCodec::default();
    Ok(grpc.unary(request, PathAndQuery::from_static(method), codec).await?.into_inner())
}

pub(super) async fn stream<A>(channel: &Channel, method: &'static str) -> Result<Streaming<A>, Status>
where
    A: prost::Message + Default + Send + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<(), A>::default();
    Ok(grpc.server_streaming(Request::new(()), PathAndQuery::from_static(method), codec).await?.into_inner())
}

pub(super) fn prepare_request(uids: &[&str]) -> dra_v1::NodePrepareResourcesRequest {
    let claim = |uid: &&str| dra_v1::Claim {
        namespace: "default".to_owned(),
        uid: (*uid).to_owned(),
        name: format!("claim-of-{uid}"),
    };
    dra_v1::NodePrepareResourcesRequest { claims: uids.iter().map(claim).collect() }
}

#[tokio::test]
async fn a_second_instance_moves_in_only_when_the_first_is_gone() {
    let node = Node::new();
    node.settings.move_in().await.unwrap();
    let dra = node.serve_dra(idle()).await;
    assert!(matches!(node.settings.move_in().await, Err(SocketError::InUse { .. })));
    drop(dra);
    node.settings.move_in().await.unwrap();
}

#[tokio::test]
async fn the_registrar_says_who_we_are_and_where_the_dra_socket_answers() {
    let node = Node::new();
    let dra = node.serve_dra(idle()).await;
    let registrar = node.serve_registrar(&dra).await;

    let kubelet = connect(&node.registrar_path()).await;
    let info: PluginInfo = call(&kubelet, GET_INFO, Request::new(InfoRequest {})).await.unwrap();
    assert_eq!(info.r#type, "DRAPlugin");
    assert_eq!(info.name, DRIVER);
    assert_eq!(
        info.supported_versions,
        ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
    );

    let kubelet = connect(Path::new(&info.endpoint)).await;
    let answer: dra_v1::NodePrepareResourcesResponse =
        call(&kubelet, PREPARE, Request::new(prepare_request(&[]))).await.unwrap();
    assert!(answer.claims.is_empty());
    let answer: dra_v1beta1::NodePrepareResourcesResponse =
        call(&kubelet, PREPARE_V1BETA1, Request::new(dra_v1beta1::NodePrepareResourcesRequest { claims: Vec::new() }))
            .await
            .unwrap();
    assert!(answer.claims.is_empty());

    registrar.close().await;
    dra.close(PATIENCE).await;
}

#[tokio::test]
async fn the_last_word_of_the_kubelet_is_kept() {
    let node = Node::new();
    let dra = node.serve_dra(idle()).await;
    let registrar = node.serve_registrar(&dra).await;
    let mut status = registrar.status();
    assert_eq!(*status.borrow_and_update(), Registration::Waiting);

    let kubelet = connect(&node.registrar_path()).await;
    let notify = async |plugin_registered, error: &str| {
        let status = RegistrationStatus { plugin_registered, error: error.to_owned() };
        call::<_, RegistrationStatusResponse>(&kubelet, NOTIFY, Request::new(status)).await
    };
    let refused = notify(false, "RegisterPlugin error -- no").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unknown);
    assert_eq!(*status.borrow_and_update(), Registration::Refused("RegisterPlugin error -- no".to_owned()));
    notify(true, "").await.unwrap();
    assert_eq!(*status.borrow_and_update(), Registration::Registered);
}

#[tokio::test]
async fn the_registrar_goes_first_and_leaves_the_dra_socket_at_work() {
    let node = Node::new();
    let dra = node.serve_dra(idle()).await;
    let endpoint = dra.endpoint().to_owned();
    assert!(endpoint.exists() && !node.registrar_path().exists(), "the registrar comes last");
    let registrar = node.serve_registrar(&dra).await;
    let kubelet = connect(&endpoint).await;

    registrar.close().await;
    assert!(!node.registrar_path().exists());
    let _: dra_v1::NodePrepareResourcesResponse =
        call(&kubelet, PREPARE, Request::new(prepare_request(&["a"]))).await.unwrap();

    dra.close(PATIENCE).await;
    assert!(!endpoint.exists());
}

#[tokio::test]
async fn an_idle_peer_does_not_keep_the_registrar_open() {
    let node = Node::new();
    let dra = node.serve_dra(idle()).await;
    let registrar = node.serve_registrar(&dra).await;
    // It connects and never says a word, not even in HTTP/2.
    let _peer = tokio::net::UnixStream::connect(node.registrar_path()).await.unwrap();
    timeout(PATIENCE, registrar.close()).await.expect("it closes all the same");
}

#[tokio::test]
async fn an_open_health_stream_does_not_hold_up_the_end() {
    let node = Node::new();
    let dra = node.serve_dra(idle()).await;
    let kubelet = connect(dra.endpoint()).await;
    let mut v1: Streaming<health_v1::NodeWatchResourcesResponse> =
        stream(&kubelet, "/v1.DRAResourceHealth/NodeWatchResources").await.unwrap();
    let mut v1alpha1: Streaming<health_v1alpha1::NodeWatchResourcesResponse> =
        stream(&kubelet, "/v1alpha1.DRAResourceHealth/NodeWatchResources").await.unwrap();
    v1.message().await.unwrap().expect("a snapshot at once");
    v1alpha1.message().await.unwrap().expect("a snapshot at once");

    let ever = Duration::from_secs(3600);
    timeout(PATIENCE, dra.close(ever)).await.expect("it closes although the kubelet keeps its streams open");
    assert_eq!(v1.message().await.unwrap(), None);
    assert_eq!(v1alpha1.message().await.unwrap(), None);
}

#[tokio::test]
async fn a_hung_prepare_is_left_behind_when_the_grace_is_over() {
    let node = Node::new();
    let (dra, mut begins) = hung();
    let dra = node.serve_dra(dra).await;
    let endpoint = dra.endpoint().to_owned();
    let kubelet = connect(&endpoint).await;
    let calling = tokio::spawn(async move {
        call::<_, dra_v1::NodePrepareResourcesResponse>(&kubelet, PREPARE, Request::new(prepare_request(&["a"]))).await
    });
    begins.recv().await.unwrap();

    timeout(PATIENCE, dra.close(Duration::from_millis(10))).await.expect("it closes although a claim hangs");
    assert!(!endpoint.exists());
    calling.abort();
}

#[tokio::test]
async fn work_that_outlives_its_call_is_waited_for() {
    let node = Node::new();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (done, mut ends) = mpsc::unbounded_channel();
    let (go, gate) = watch::channel(false);
    let prepare = move |_, _, _| {
        let (begun, done, mut gate) = (begun.clone(), done.clone(), gate.clone());
        async move {
            begun.send(()).unwrap();
            gate.wait_for(|open| *open).await.unwrap();
            done.send(()).unwrap();
            Ok(Vec::new())
        }
        .boxed()
    };
    let dra = node.serve_dra(Dra::from_work(prepare, |_, _, _| async { Ok(()) }.boxed())).await;
    let kubelet = connect(dra.endpoint()).await;
    let calling = tokio::spawn(async move {
        call::<_, dra_v1::NodePrepareResourcesResponse>(&kubelet, PREPARE, Request::new(prepare_request(&["a"]))).await
    });
    begins.recv().await.unwrap();
    calling.abort();
    assert!(calling.await.unwrap_err().is_cancelled());

    let mut closing = std::pin::pin!(dra.close(PATIENCE));
    assert!(futures::poll!(&mut closing).is_pending(), "the claim is at work");
    assert!(ends.try_recv().is_err());
    go.send(true).unwrap();
    closing.await;
    ends.try_recv().expect("the claim was done before the server was");
}

#[tokio::test]
async fn the_sockets_of_two_pods_do_not_get_into_each_others_way() {
    let old = Node::new();
    let settings = |uid: &str| Settings { pod_uid: Some(uid.to_owned()), ..old.settings.clone() };
    let mut closing = Vec::new();
    for uid in ["4f1c0f5e-0000", "4f1c0f5e-1111"] {
        let settings = settings(uid);
        let dra = serve_dra(&settings, idle(), old.health.subscribe(), &old.metrics).await.unwrap();
        closing.push((serve_registrar(&settings, &dra, &old.metrics).await.unwrap(), dra));
    }
    let sockets = || std::fs::read_dir(&old.settings.registry_dir).unwrap().count();
    assert_eq!(sockets(), 2);
    for (registrar, dra) in closing {
        registrar.close().await;
        dra.close(PATIENCE).await;
    }
    assert_eq!(sockets(), 0);
}
