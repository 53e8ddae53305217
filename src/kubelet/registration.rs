//! The Registration service: tells the kubelet who we are, and hears whether it took us.
//!
//! The kubelet gives `GetInfo` one second, so it answers from memory. It starts again from scratch, with a back-off,
//! whenever something fails, and whenever it restarts itself.

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use super::Metrics;
use super::proto::registration::registration_server;
use super::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// What makes the kubelet's plugin watcher hand us to its DRA manager.
const PLUGIN_TYPE: &str = "DRAPlugin";

/// The services at the endpoint. Kubelets since 1.34 take the first DRA entry that they know, so v1 must come first or
/// share ids are lost; older ones want v1beta1 to be there.
const SUPPORTED_VERSIONS: [&str; 4] =
    ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

/// What the kubelet last said of us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// Nothing yet.
    Waiting,
    /// It will call us.
    Registered,
    /// It will not, and says why; it tries again.
    Refused(String),
}

/// The service.
pub(super) struct RegistrationService {
    info: PluginInfo,
    last: watch::Sender<Registration>,
    metrics: Metrics,
}

// === impl RegistrationService ===

impl RegistrationService {
    /// A service that sends kubelets to `endpoint` and keeps in `last` what they say.
    pub(super) fn new(driver: &str, endpoint: &str, last: watch::Sender<Registration>, metrics: Metrics) -> Self {
        let info = PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: driver.to_owned(),
            endpoint: endpoint.to_owned(),
            supported_versions: SUPPORTED_VERSIONS.map(str::to_owned).to_vec(),
        };
        Self { info, last, metrics }
    }
}

#[tonic::async_trait]
impl registration_server::Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    /// A refusal is answered with an error, as Go plugins do. Success never is: kubelets since 1.36 take that for a
    /// plugin that does not want to be registered.
    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        self.metrics.set_registered(plugin_registered);
        if plugin_registered {
            self.last.send_replace(Registration::Registered);
            info!(driver = self.info.name, endpoint = self.info.endpoint, "the kubelet registered the plugin");
            return Ok(Response::new(RegistrationStatusResponse {}));
        }
        let refused = Registration::Refused(error.clone());
        // It tries again and again: one line for each reason.
        if self.last.send_replace(refused.clone()) != refused {
            warn!(driver = self.info.name, error, "the kubelet refused the plugin and will try again");
        }
        Err(Status::unknown(format!("the plugin was not registered: {error}")))
    }
}
