//! A registered plugin: the connection to its DRA socket and the calls on it.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::proto::v1;
use super::rules::{self, Service};
use super::wire::{self, Authority, Connection};
use super::{Clock, changes::Changes};
use crate::release::Release;

/// The deadline of NodePrepareResources and NodeUnprepareResources.
const CALL: Duration = Duration::from_secs(45);

/// How long grpc-go waits after a first connect that failed.
const FIRST_RECONNECT: Duration = Duration::from_secs(1);

/// How much longer it waits each time, and at most.
const RECONNECT_FACTOR: f64 = 1.6;
const MAX_RECONNECT: Duration = Duration::from_secs(120);

/// One process of a driver.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) driver: String,
    pub(super) endpoint: PathBuf,
    pub(super) service: Service,
    pub(super) versions: Vec<String>,
    pub(super) release: Release,
    pub(super) clock: Clock,
    pub(super) authority: Authority,
    /// Cancelled when the plugin is deregistered, which closes its connection and fails its calls.
    pub(super) gone: CancellationToken,
    pub(super) link: watch::Sender<Link>,
}

/// The connection, as grpc-go's channel states.
#[derive(Debug, Clone)]
pub(super) enum Link {
    /// Calls wait.
    Connecting,
    Connected(Channel),
    /// Calls fail at once.
    Failed(String),
}

// === impl Instance ===

impl Instance {
    pub(super) fn is_connected(&self) -> bool {
        matches!(*self.link.borrow(), Link::Connected(_))
    }

    /// Keeps a connection open until the plugin is deregistered; tells of every change.
    pub(super) async fn keep_connected(&self, changes: &Changes, tell: impl Fn()) {
        let set = |link| {
            self.link.send_replace(link);
            tell();
            changes.notify();
        };
        self.gone.run_until_cancelled(self.connect_again_and_again(&set)).await;
        set(Link::Failed("grpc: the client connection is closing".to_owned()));
    }

    async fn connect_again_and_again(&self, set: &impl Fn(Link)) {
        let mut delay = FIRST_RECONNECT;
        loop {
            match Connection::dial(&self.endpoint, self.authority).await {
                Ok(connection) => {
                    delay = FIRST_RECONNECT;
                    set(Link::Connected(connection.channel.clone()));
                    connection.ended().await;
                    set(Link::Connecting);
                }
                Err(error) => {
                    set(Link::Failed(format!("connection error: desc = {error}")));
                    self.clock.sleep(delay).await;
                    delay = delay.mul_f64(RECONNECT_FACTOR).min(MAX_RECONNECT);
                }
            }
        }
    }

    /// The connection for a call: waits while it is being made, fails where it could not be.
    pub(super) async fn channel(&self) -> Result<Channel, Status> {
        let mut link = self.link.subscribe();
        let settled = link.wait_for(|link| !matches!(link, Link::Connecting)).await;
        match settled.as_deref() {
            Ok(Link::Connected(channel)) => Ok(channel.clone()),
            Ok(Link::Failed(error)) => Err(Status::unavailable(error.clone())),
            Ok(Link::Connecting) | Err(_) => Err(Status::unavailable("the connection is gone")),
        }
    }

    /// NodePrepareResources.
    pub(super) async fn prepare(&self, claims: Vec<v1::Claim>) -> Result<v1::NodePrepareResourcesResponse, Status> {
        // The messages of all versions are those of v1 but for a field that the others do not have.
        let request = v1::NodePrepareResourcesRequest { claims };
        let mut response: v1::NodePrepareResourcesResponse = self.call(self.service.prepare_path(), request).await?;
        if !rules::reads_share_id(self.release, self.service) {
            response.claims.values_mut().flat_map(|claim| &mut claim.devices).for_each(|device| device.share_id = None);
        }
        Ok(response)
    }

    /// NodeUnprepareResources.
    pub(super) async fn unprepare(&self, claims: Vec<v1::Claim>) -> Result<v1::NodeUnprepareResourcesResponse, Status> {
        self.call(self.service.unprepare_path(), v1::NodeUnprepareResourcesRequest { claims }).await
    }

    async fn call<Q, A>(&self, path: PathAndQuery, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let limit = self.clock.deadline(CALL);
        let call = async { wire::unary(self.channel().await?, path, request, limit).await };
        self.gone
            .run_until_cancelled(call)
            .await
            .unwrap_or_else(|| Err(Status::cancelled("grpc: the client connection is closing")))
    }
}
