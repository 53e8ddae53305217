//! EDGE to the kubelet: gRPC over two unix sockets.
//!
//! The kubelet finds the plugin by the registrar socket, learns from it where the DRA socket is, and calls that one for
//! every claim of a pod that starts or ends.
//!
//! ```text
//!            <root>/plugins_registry/<driver>-reg.sock          registration   who we are, were we taken
//!  kubelet ─┤                                                ┌─ dra            prepare, unprepare (v1, v1beta1)
//!            <root>/plugins/<driver>/dra.sock ───────────────┴─ health         stream of verdicts (v1, v1alpha1)
//!
//!  a byte:  socket → authority (`:authority` made acceptable) → h2 → layers (span, metrics, deadline) → a service above
//! ```
//!
//! Order matters. The DRA socket serves before the registrar socket exists, because the kubelet dials it the moment it
//! has read the registrar's answer; [`serve_registrar`] therefore asks for the [`DraServer`]. On the way out the
//! registrar goes first, so that the kubelet does not choose an instance that is dying:
//!
//! ```text
//!  let dra = kubelet::serve_dra(&settings, kubelet::Dra::new(cluster, preparer, statuses), health, &metrics).await?;
//!  let registrar = kubelet::serve_registrar(&settings, &dra, &metrics).await?;
//!  …
//!  registrar.close().await;
//!  dra.close(grace).await;
//! ```
//!
//! Who may call: there is no authentication in this protocol, and who reaches a socket may prepare claims. Both sockets
//! have mode 0600 and lie in directories that only root may enter (0750, the kubelet makes its own the same way), so
//! the kubelet and other root processes of the node can connect, and nobody else.

mod authority;
mod dra;
#[cfg(fuzzing)]
pub mod fuzz;
mod health;
mod layers;
mod metrics;
mod proto;
mod registration;
mod server;
mod sockets;

use std::path::{Path, PathBuf};

pub use dra::Dra;
pub use health::{DeviceHealth, HealthSnapshot, Verdict};
pub use metrics::Metrics;
pub use registration::Registration;
pub use server::{DraServer, Registrar, serve_dra, serve_registrar};
pub use sockets::SocketError;

/// Where this instance meets the kubelet.
///
/// The directories must be the same inside the plugin's container and on the host: the kubelet is told paths, and
/// resolves them on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The driver name, for example `gpu.nvidia.com`.
    pub driver: String,
    /// The directory that the kubelet watches for registrar sockets. Absolute.
    pub registry_dir: PathBuf,
    /// The directory that belongs to this driver alone. Absolute; kubelets after 1.37 want it under their root.
    pub plugin_dir: PathBuf,
    /// The plugin's pod, if two instances are to serve side by side: it tells their sockets apart.
    pub pod_uid: Option<String>,
}

// === impl Settings ===

impl Settings {
    /// The directories that a kubelet with this root directory (its flag `--root-dir`) has, for an instance that is
    /// alone on its node.
    pub fn under(kubelet_root: &Path, driver: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            registry_dir: kubelet_root.join("plugins_registry"),
            plugin_dir: kubelet_root.join("plugins").join(driver),
            pod_uid: None,
        }
    }

    /// Makes the plugin's own directory, for root alone, where it is missing, and removes the sockets of instances that
    /// were killed. Fails where another instance serves under the same name.
    pub async fn move_in(&self) -> Result<(), SocketError> {
        sockets::make_dir(&self.plugin_dir)?;
        sockets::remove_dead(self).await
    }
}

#[cfg(test)]
mod tests;
