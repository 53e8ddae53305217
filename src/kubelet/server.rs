//! The two servers, from binding their sockets to taking them down.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::Server;
use tracing::{error, info, warn};

use super::Settings;
use super::authority::LocalAuthority;
use super::dra::Dra;
use super::health::{Health, HealthSnapshot};
use super::layers;
use super::metrics::Metrics;
use super::proto::dra_v1::dra_plugin_server::DraPluginServer as DraV1;
use super::proto::dra_v1beta1::dra_plugin_server::DraPluginServer as DraV1beta1;
use super::proto::health_v1::dra_resource_health_server::DraResourceHealthServer as HealthV1;
use super::proto::health_v1alpha1::dra_resource_health_server::DraResourceHealthServer as HealthV1alpha1;
use super::proto::registration::registration_server::RegistrationServer;
use super::registration::{Registration, RegistrationService};
use super::sockets::{self, Listener, SocketError, SocketFile, SocketPaths};

/// How long a call to the registrar may still take when it closes. Its calls answer from memory.
const REGISTRAR_GRACE: Duration = Duration::from_secs(1);

/// Pause after a failed accept, which out of file descriptors would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves prepare, unprepare and health. Dropping it removes the socket and waits for nothing;
/// [`close`](Self::close) waits for what is at work.
#[must_use = "dropping it stops the server"]
pub struct DraServer {
    serving: Serving,
    tasks: TaskTracker,
}

/// Serves registration. The kubelet deregisters the plugin when this is closed or dropped.
#[must_use = "dropping it stops the server"]
pub struct Registrar {
    serving: Serving,
    status: watch::Receiver<Registration>,
}

/// A server at work. Fields drop in this order: nobody new finds the socket, then the server stops.
struct Serving {
    path: PathBuf,
    file: Arc<Mutex<SocketFile>>,
    stop: DropGuard,
    task: JoinHandle<()>,
    /// Cancelled when the task ends, however that comes.
    ended: CancellationToken,
}

/// Starts the DRA server. The health stream sends what comes through `health`; see
/// [`HealthSnapshot`] and send one every 10 s at least.
pub async fn serve_dra(
    settings: &Settings,
    dra: Dra,
    health: watch::Receiver<Arc<HealthSnapshot>>,
    metrics: &Metrics,
) -> Result<DraServer, SocketError> {
    let path = SocketPaths::new(settings)?.dra;
    sockets::make_dir(&settings.plugin_dir)?;
    let stop = dra.stopping().clone();
    let health = Health::new(health, stop.clone());
    let tasks = dra.tasks().clone();
    let routes = Routes::new(DraV1::new(dra.clone()))
        .add_service(DraV1beta1::new(dra))
        .add_service(HealthV1::new(health.clone()))
        .add_service(HealthV1alpha1::new(health));
    let _turn = sockets::turn(&settings.plugin_dir).await?;
    Ok(DraServer { serving: Serving::start(&path, routes, metrics, stop).await?, tasks })
}

/// Starts the registrar: from now on the kubelet calls the DRA server.
pub async fn serve_registrar(
    settings: &Settings,
    dra: &DraServer,
    metrics: &Metrics,
) -> Result<Registrar, SocketError> {
    let path = SocketPaths::new(settings)?.registrar;
    if sockets::make_dir(&settings.registry_dir)? {
        warn!(
            path = %settings.registry_dir.display(),
            "made the kubelet's registry directory, which kubelets make themselves: does it use another --root-dir?"
        );
    }
    let endpoint = dra.endpoint();
    let endpoint = endpoint.to_str().ok_or_else(|| SocketError::Unspeakable { path: endpoint.to_owned() })?;
    let (last, status) = watch::channel(Registration::Waiting);
    let service = RegistrationService::new(&settings.driver, endpoint, last, metrics.clone());
    let routes = Routes::new(RegistrationServer::new(service));
    Ok(Registrar { serving: Serving::start(&path, routes, metrics, CancellationToken::new()).await?, status })
}

// === impl DraServer ===

impl DraServer {
    /// Where it listens.
    pub fn endpoint(&self) -> &Path {
        &self.serving.path
    }

    /// What [`close`](Self::close) waits for, beside the calls themselves: work that must not be cut off midway.
    pub fn tasks(&self) -> TaskTracker {
        self.tasks.clone()
    }

    /// Waits until it does not serve any more, which without [`close`](Self::close) means that something went wrong.
    pub async fn ended(&self) {
        self.serving.ended.cancelled().await;
    }

    /// Ends health streams, takes no more calls, waits up to `grace` for those at work, and removes the socket.
    ///
    /// Work that is not done by then goes on until the process ends; whatever it was at is on record, and the next
    /// instance picks it up.
    pub async fn close(self, grace: Duration) {
        let Self { serving, tasks } = self;
        tasks.close();
        if !serving.close(grace, tasks.wait()).await {
            warn!(claims = tasks.len(), "calls of the kubelet are still at work after {grace:?}; leaving them");
        }
    }
}

// === impl Registrar ===

impl Registrar {
    /// What the kubelet last said, and when it says something else.
    pub fn status(&self) -> watch::Receiver<Registration> {
        self.status.clone()
    }

    /// As [`DraServer::ended`].
    pub async fn ended(&self) {
        self.serving.ended.cancelled().await;
    }

    /// Removes the socket first: the kubelet deregisters this instance and chooses no dying one.
    pub async fn close(self) {
        let Serving { path: _, file, stop, task, ended: _ } = self.serving;
        drop(file);
        drop(stop);
        // A peer that does not hang up is not worth waiting for.
        let _ = timeout(REGISTRAR_GRACE, task).await;
    }
}

// === impl Serving ===

impl Serving {
    async fn start(
        path: &Path,
        routes: Routes,
        metrics: &Metrics,
        stop: CancellationToken,
    ) -> Result<Self, SocketError> {
        let (listener, file) = Listener::new(path).await?;
        let server = Server::builder().layer(layers::layer(metrics.clone())).serve_with_incoming_shutdown(
            routes.prepare(),
            connections(listener),
            stop.clone().cancelled_owned(),
        );
        let ended = CancellationToken::new();
        // Goes with the task, also if that panics.
        let end = ended.clone().drop_guard();
        let task = tokio::spawn(async move {
            let _end = end;
            if let Err(error) = server.await {
                error!(error = &error as &dyn std::error::Error, "a server for the kubelet ended");
            }
        });
        info!(path = %path.display(), "listening");
        Ok(Self { path: path.to_owned(), file, stop: stop.drop_guard(), task, ended })
    }

    /// Stops accepting, waits for open calls and then for `rest`; whether both ended within `grace`.
    async fn close(self, grace: Duration, rest: impl Future<Output = ()>) -> bool {
        let Self { path: _, file, stop, task, ended: _ } = self;
        drop(stop);
        let ended = timeout(grace, async {
            let _ = task.await;
            rest.await;
        })
        .await
        .is_ok();
        drop(file);
        ended
    }
}

/// What comes in on a socket. Never fails: an accept that does is tried again.
fn connections(listener: Listener) -> BoxStream<'static, io::Result<LocalAuthority<UnixStream>>> {
    stream::unfold(listener, async |mut listener| {
        loop {
            match listener.accept().await {
                Ok(stream) => return Some((Ok(LocalAuthority::new(stream)), listener)),
                Err(error) => {
                    warn!(%error, "cannot accept a connection of the kubelet; trying again");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::kubelet::tests::{Node, PATIENCE, idle};

    #[tokio::test]
    async fn the_end_of_a_server_that_nobody_closed_is_seen() {
        let node = Node::new();
        let dra = node.serve_dra(idle()).await;
        let registrar = node.serve_registrar(&dra).await;
        assert!(dra.ended().now_or_never().is_none() && registrar.ended().now_or_never().is_none());

        dra.serving.task.abort();
        timeout(PATIENCE, dra.ended()).await.expect("the DRA server has ended");
        assert!(registrar.ended().now_or_never().is_none(), "the registrar has not");
        registrar.serving.task.abort();
        timeout(PATIENCE, registrar.ended()).await.expect("the registrar has ended");
        // What is left of them can still be closed.
        registrar.close().await;
        dra.close(PATIENCE).await;
    }
}
