//! The device health service, v1 and v1alpha1 from one implementation.
//!
//! The kubelet keeps one stream open, shows what it hears in the status of pods, and treats a device that was not
//! reported for 30 s as unknown. So the producer of snapshots sends one every 10 s or sooner, changed or not, and each
//! is one message here. The stream makes up nothing of its own: when the producer hangs, the stream falls silent and
//! the kubelet comes to the right conclusion.
//!
//! A stream that ends clears all that the kubelet knew of our devices, so a new one begins with a full snapshot. The
//! kubelet never ends a stream by itself: they end with `stop`, or shutdown would wait for ever.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::proto::{health_v1, health_v1alpha1};

/// After how many seconds without a repeat the kubelet shall no longer believe us: its own default, three times the
/// producer's period.
const TIMEOUT_SECONDS: i64 = 30;

/// Longest message in bytes; the kubelet cuts what is longer, without regard for characters.
const MAX_MESSAGE: usize = 1024;

/// What is known of all devices at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthSnapshot {
    /// Only devices that were really looked at: what is missing becomes unknown.
    pub devices: Vec<DeviceHealth>,
}

/// What is known of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The pool it is published in.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// Whether it works.
    pub verdict: Verdict,
    /// Why, for people; may be empty. Sent as ASCII of at most 1024 bytes.
    pub message: String,
    /// When it was looked at.
    pub updated: SystemTime,
}

/// Whether a device works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Healthy,
    /// It does not.
    Unhealthy,
    /// Nobody can tell.
    Unknown,
}

/// The services.
#[derive(Debug, Clone)]
pub(super) struct Health {
    snapshots: watch::Receiver<Arc<HealthSnapshot>>,
    stop: CancellationToken,
}

// === impl Health ===

impl Health {
    /// Streams `snapshots` until `stop`.
    pub(super) fn new(snapshots: watch::Receiver<Arc<HealthSnapshot>>, stop: CancellationToken) -> Self {
        Self { snapshots, stop }
    }

    /// The present snapshot, and then every new one. A client that reads slowly misses those in between.
    fn stream<T>(&self) -> BoxStream<'static, Result<T, Status>>
    where
        T: FromIterator<DeviceHealth> + Send + 'static,
    {
        WatchStream::new(self.snapshots.clone())
            .map(|snapshot| Ok(snapshot.devices.iter().cloned().collect()))
            .take_until(self.stop.clone().cancelled_owned())
            .boxed()
    }
}

/// Implements one version of the service; their messages are the same.
macro_rules! serve {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_resource_health_server::DraResourceHealth for Health {
            type NodeWatchResourcesStream = BoxStream<'static, Result<$version::NodeWatchResourcesResponse, Status>>;

            async fn node_watch_resources(
                &self,
                _: Request<$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                Ok(Response::new(self.stream()))
            }
        }

        impl FromIterator<DeviceHealth> for $version::NodeWatchResourcesResponse {
            fn from_iter<I: IntoIterator<Item = DeviceHealth>>(devices: I) -> Self {
                let device = |device: DeviceHealth| $version::DeviceHealth {
                    health: match device.verdict {
                        Verdict::Healthy => $version::HealthStatus::Healthy,
                        Verdict::Unhealthy => $version::HealthStatus::Unhealthy,
                        Verdict::Unknown => $version::HealthStatus::Unknown,
                    }
                    .into(),
                    last_updated_time: unix_seconds(device.updated),
                    health_check_timeout_seconds: TIMEOUT_SECONDS,
                    message: ascii(&device.message),
                    device: Some($version::DeviceIdentifier { pool_name: device.pool, device_name: device.device }),
                };
                Self { devices: devices.into_iter().map(device).collect() }
            }
        }
    };
}

serve!(health_v1);
serve!(health_v1alpha1);

/// A clock before 1970 counts as 1970.
fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// What can be sent of a message: other characters become `?`.
fn ascii(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests;
