//! A small DRA plugin in this process, whose answers a test chooses.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use fake_node::kubelet::proto::registration::registration_server::{Registration, RegistrationServer};
use fake_node::kubelet::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use fake_node::kubelet::proto::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use fake_node::kubelet::proto::{health_v1, health_v1alpha1, v1, v1beta1};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

/// All that a good plugin lists.
pub(crate) const VERSIONS: [&str; 4] =
    ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

/// What to say about a claim that is to be prepared.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// One device.
    Device,
    /// An error for this claim.
    Error(&'static str),
    /// Nothing, although it was asked for.
    Missing,
    /// One device, and one for a claim that nobody asked for.
    Unasked,
    /// An error for the whole call.
    Fail(&'static str),
}

/// What a plugin is asked and what it answers.
#[derive(Debug)]
pub(crate) struct Behaviour {
    pub(crate) driver: String,
    pub(crate) endpoint: String,
    pub(crate) versions: Vec<String>,
    pub(crate) info_delay: Duration,
    pub(crate) notify_fails: bool,
    /// How long a prepare takes.
    pub(crate) prepare_delay: Duration,
    /// Answers to the next prepares; when there are none left, a device.
    pub(crate) answers: VecDeque<Answer>,
    /// Errors for the next unprepares.
    pub(crate) unprepare_errors: VecDeque<&'static str>,
    /// What the health stream says; `None` ends it.
    pub(crate) health: watch::Sender<Option<health_v1::NodeWatchResourcesResponse>>,
    /// What was called, in order.
    pub(crate) calls: Vec<String>,
    /// Connections to the registrar so far.
    pub(crate) registrar_connections: usize,
}

/// How to start a plugin.
pub(crate) struct Setup<'a> {
    pub(crate) root: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) versions: &'a [&'a str],
    /// Whether to accept the kubelet's authority; stock tonic does not.
    pub(crate) tolerant: bool,
    /// Whether to serve health at all.
    pub(crate) health: bool,
}

/// A running plugin in a runtime of its own, so that it can be killed with all its connections.
pub(crate) struct Plugin {
    pub(crate) behaviour: Arc<Mutex<Behaviour>>,
    pub(crate) registrar: PathBuf,
    pub(crate) endpoint: PathBuf,
    runtime: Option<Runtime>,
}

#[derive(Clone)]
struct Service(Arc<Mutex<Behaviour>>);

/// Replaces the percent-encoded path by a host name of the same length where the client sends it.
struct Tolerant {
    stream: UnixStream,
    path: Vec<u8>,
    read: Vec<u8>,
}

impl Setup<'_> {
    pub(crate) fn start(self) -> Plugin {
        self.start_with(|_| {})
    }

    /// Starts a plugin that behaves otherwise from its first moment on.
    pub(crate) fn start_with(self, change: impl FnOnce(&mut Behaviour)) -> Plugin {
        let registrar = self.root.join(format!("plugins_registry/{}-reg.sock", self.name));
        let endpoint = self.root.join(format!("plugins/{}.sock", self.name));
        std::fs::create_dir_all(endpoint.parent().unwrap()).unwrap();
        std::fs::create_dir_all(registrar.parent().unwrap()).unwrap();
        let mut behaviour = Behaviour {
            driver: "gpu.example.com".into(),
            endpoint: endpoint.display().to_string(),
            versions: self.versions.iter().map(ToString::to_string).collect(),
            info_delay: Duration::ZERO,
            notify_fails: false,
            prepare_delay: Duration::ZERO,
            answers: VecDeque::new(),
            unprepare_errors: VecDeque::new(),
            health: watch::Sender::new(None),
            calls: Vec::new(),
            registrar_connections: 0,
        };
        change(&mut behaviour);
        let behaviour = Arc::new(Mutex::new(behaviour));
        let mut plugin = Plugin { behaviour, registrar, endpoint, runtime: None };
        plugin.serve(self.tolerant, self.health);
        plugin
    }
}

impl Plugin {
    fn serve(&mut self, tolerant: bool, health: bool) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = Service(Arc::clone(&self.behaviour));
        let dra = Server::builder()
            .add_service(DraPluginServer::new(service.clone()))
            .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(service.clone()))
            .add_optional_service(
                health.then(|| health_v1::dra_resource_health_server::DraResourceHealthServer::new(service.clone())),
            )
            .add_optional_service(
                health.then(|| {
                    health_v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(service.clone())
                }),
            );
        let registrar = Server::builder().add_service(RegistrationServer::new(service.clone()));

        let guard = runtime.enter();
        let dra_sockets = UnixListenerStream::new(UnixListener::bind(&self.endpoint).unwrap());
        let sockets = UnixListenerStream::new(UnixListener::bind(&self.registrar).unwrap());
        drop(guard);
        let count = move |socket: &UnixStream| {
            let _ = socket;
            service.lock().registrar_connections += 1;
        };
        if tolerant {
            let (dra_path, path) = (self.endpoint.clone(), self.registrar.clone());
            runtime.spawn(dra.serve_with_incoming(dra_sockets.map_ok(move |s| Tolerant::new(s, &dra_path))));
            let sockets = sockets.inspect_ok(count).map_ok(move |s| Tolerant::new(s, &path));
            runtime.spawn(registrar.serve_with_incoming(sockets));
        } else {
            runtime.spawn(dra.serve_with_incoming(dra_sockets));
            runtime.spawn(registrar.serve_with_incoming(sockets.inspect_ok(count)));
        }
        self.runtime = Some(runtime);
    }

    pub(crate) fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap()
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.behaviour().calls.clone()
    }

    /// Dies with all connections; its sockets stay.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Removes its registrar socket.
    pub(crate) fn unlink_registrar(&self) {
        std::fs::remove_file(&self.registrar).unwrap();
    }

    /// Starts again after it was killed, with new sockets.
    pub(crate) fn start_again(&mut self) {
        let _ = std::fs::remove_file(&self.endpoint);
        let _ = std::fs::remove_file(&self.registrar);
        self.serve(true, true);
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, Behaviour> {
        self.0.lock().unwrap()
    }
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let delay = self.lock().info_delay;
        tokio::time::sleep(delay).await;
        let behaviour = self.lock();
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".into(),
            name: behaviour.driver.clone(),
            endpoint: behaviour.endpoint.clone(),
            supported_versions: behaviour.versions.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        let mut behaviour = self.lock();
        behaviour.calls.push(if plugin_registered { "registered".to_owned() } else { error });
        if behaviour.notify_fails {
            return Err(Status::unknown("I do not want to be registered"));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        let delay = self.lock().prepare_delay;
        tokio::time::sleep(delay).await;
        let mut behaviour = self.lock();
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            behaviour.calls.push(format!("prepare {}", claim.uid));
            let device = v1::Device {
                request_names: vec!["gpu".into()],
                pool_name: "node".into(),
                device_name: "gpu-0".into(),
                cdi_device_ids: vec![format!("example.com/gpu={}", claim.uid)],
                share_id: Some("share".into()),
            };
            let prepared = v1::NodePrepareResourceResponse { devices: vec![device], error: String::new() };
            match behaviour.answers.pop_front().unwrap_or(Answer::Device) {
                Answer::Device => _ = claims.insert(claim.uid, prepared),
                Answer::Error(error) => {
                    let failed = v1::NodePrepareResourceResponse { devices: Vec::new(), error: error.into() };
                    claims.insert(claim.uid, failed);
                }
                Answer::Missing => {}
                Answer::Unasked => {
                    claims.insert("unasked".into(), prepared);
                }
                Answer::Fail(error) => return Err(Status::unknown(error)),
            }
        }
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        let mut behaviour = self.lock();
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            behaviour.calls.push(format!("unprepare {}", claim.uid));
            let error = behaviour.unprepare_errors.pop_front().unwrap_or_default().into();
            claims.insert(claim.uid, v1::NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims }))
    }
}

/// The same messages over the wire; only the test needs to be told.
#[tonic::async_trait]
impl v1beta1::dra_plugin_server::DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<v1beta1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodePrepareResourcesResponse>, Status> {
        let answer = DraPlugin::node_prepare_resources(self, Request::new(reencode(&request.into_inner()))).await?;
        Ok(Response::new(reencode(&answer.into_inner())))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1beta1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodeUnprepareResourcesResponse>, Status> {
        let answer = DraPlugin::node_unprepare_resources(self, Request::new(reencode(&request.into_inner()))).await?;
        Ok(Response::new(reencode(&answer.into_inner())))
    }
}

fn reencode<A: prost::Message + Default>(message: &impl prost::Message) -> A {
    A::decode(message.encode_to_vec().as_slice()).unwrap()
}

#[tonic::async_trait]
impl health_v1::dra_resource_health_server::DraResourceHealth for Service {
    type NodeWatchResourcesStream = BoxStream<'static, Result<health_v1::NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<health_v1::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut behaviour = self.lock();
        behaviour.calls.push("watch v1".into());
        let reports = WatchStream::new(behaviour.health.subscribe());
        Ok(Response::new(reports.take_while(|r| std::future::ready(r.is_some())).map(|r| Ok(r.unwrap())).boxed()))
    }
}

#[tonic::async_trait]
impl health_v1alpha1::dra_resource_health_server::DraResourceHealth for Service {
    type NodeWatchResourcesStream = BoxStream<'static, Result<health_v1alpha1::NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<health_v1alpha1::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut behaviour = self.lock();
        behaviour.calls.push("watch v1alpha1".into());
        let reports = WatchStream::new(behaviour.health.subscribe());
        let reports = reports.take_while(|report| std::future::ready(report.is_some()));
        Ok(Response::new(reports.map(|report| Ok(reencode(&report.unwrap()))).boxed()))
    }
}

impl Tolerant {
    fn new(stream: UnixStream, path: &Path) -> Self {
        let path = path.display().to_string().replace('/', "%2F").into_bytes();
        Self { stream, path, read: Vec::new() }
    }

    /// How many of the bytes that were read cannot be the start of a path that is not yet there.
    fn settled(&self) -> usize {
        (0..self.read.len()).find(|&at| self.path.starts_with(&self.read[at..])).unwrap_or(self.read.len())
    }
}

impl AsyncRead for Tolerant {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if let Some(at) = this.read.windows(this.path.len()).position(|window| window == this.path) {
                this.read[at..at + this.path.len()].fill(b'a');
            }
            let settled = this.settled().min(buf.remaining());
            if settled > 0 {
                buf.put_slice(&this.read[..settled]);
                this.read.drain(..settled);
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; 1024];
            let mut chunk = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.read.extend_from_slice(chunk.filled());
        }
    }
}

impl AsyncWrite for Tolerant {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl Connected for Tolerant {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
