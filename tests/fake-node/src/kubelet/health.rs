//! Device health: the stream that the kubelet keeps open to a plugin, and what it remembers of it.
//!
//! The kubelet trusts its own clock: a report is as old as its receipt, and one that is not repeated within the time
//! the plugin named becomes unknown, which is noticed when somebody asks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use super::proto::health_v1::{HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use super::rules::{self, HealthService};
use super::wire;
use super::{Clock, changes::Changes};
use crate::release::Release;

/// How long the kubelet waits before it opens a stream again.
pub(super) const REOPEN: Duration = Duration::from_secs(5);

/// After what time without a report a device is unknown, if the plugin named none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest message that the kubelet keeps, in bytes; it cuts longer ones.
const MAX_MESSAGE: usize = 1024;

/// What the kubelet thinks of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Never reported, reported as such, or reported too long ago.
    Unknown,
    /// The plugin vouches for it.
    Healthy,
    /// Broken.
    Unhealthy,
}

/// Health as it shows up in a pod's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The verdict.
    pub health: Health,
    /// The plugin's explanation, if the release knows it.
    pub message: String,
}

#[derive(Debug, Clone)]
struct Report {
    health: DeviceHealth,
    received: Instant,
    timeout: Duration,
}

/// By driver, and by pool and device.
type Reports = BTreeMap<String, BTreeMap<(String, String), Report>>;

/// What all plugins reported.
#[derive(Debug)]
pub(crate) struct HealthCache {
    release: Release,
    clock: Clock,
    changes: Changes,
    reports: Mutex<Reports>,
}

// === impl HealthCache ===

impl HealthCache {
    pub(crate) fn new(release: Release, clock: Clock, changes: Changes) -> Self {
        Self { release, clock, changes, reports: Mutex::default() }
    }

    /// What the kubelet would write into a pod's status at `now`.
    pub(crate) fn get(&self, driver: &str, pool: &str, device: &str, now: Instant) -> DeviceHealth {
        let key = (pool.to_owned(), device.to_owned());
        match self.lock().get(driver).and_then(|devices| devices.get(&key)) {
            Some(report) if now - report.received <= report.timeout => report.health.clone(),
            _ => DeviceHealth { health: Health::Unknown, message: String::new() },
        }
    }

    /// Takes over a message. Devices that it does not name keep their state until it is stale.
    pub(crate) fn update(&self, driver: &str, message: NodeWatchResourcesResponse, received: Instant) {
        let mut reports = self.lock();
        let devices = reports.entry(driver.to_owned()).or_default();
        for reported in message.devices {
            let health = match reported.health() {
                HealthStatus::Healthy => Health::Healthy,
                HealthStatus::Unhealthy => Health::Unhealthy,
                HealthStatus::Unknown => Health::Unknown,
            };
            let message = if rules::reads_health_message(self.release) { cut(reported.message) } else { String::new() };
            let named = u64::try_from(reported.health_check_timeout_seconds).unwrap_or_default();
            let timeout = match named {
                1.. if rules::reads_health_timeout(self.release) => Duration::from_secs(named),
                _ => DEFAULT_TIMEOUT,
            };
            let Some(device) = reported.device else { continue };
            let report =
                Report { health: DeviceHealth { health, message }, received, timeout: self.clock.deadline(timeout) };
            devices.insert((device.pool_name, device.device_name), report);
        }
        drop(reports);
        self.changes.notify();
    }

    /// Forgets a driver, as the kubelet does when a stream ends for whatever reason.
    pub(crate) fn clear(&self, driver: &str) {
        self.lock().remove(driver);
        self.changes.notify();
    }

    fn lock(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one stream to its end.
pub(super) async fn watch(
    cache: &HealthCache,
    driver: &str,
    service: HealthService,
    channel: tonic::transport::Channel,
) -> Status {
    // v1 and v1alpha1 have the same fields, so one set of messages reads both.
    let request = NodeWatchResourcesRequest {};
    let ended = match wire::stream::<_, NodeWatchResourcesResponse>(channel, service.watch_path(), request).await {
        Err(status) => status,
        Ok(mut stream) => loop {
            match stream.message().await {
                Ok(Some(message)) => cache.update(driver, message, Instant::now()),
                Ok(None) => break Status::new(Code::Ok, "the plugin ended the stream"),
                Err(status) => break status,
            }
        },
    };
    cache.clear(driver);
    ended
}

fn cut(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    // The kubelet cuts bytes, whatever character that hits.
    format!("{}...", String::from_utf8_lossy(&message.as_bytes()[..MAX_MESSAGE - 3]))
}

#[cfg(test)]
mod tests {
    use super::super::proto::health_v1::{self, DeviceIdentifier};
    use super::*;

    fn report(device: &str, health: HealthStatus, timeout: i64, message: &str) -> NodeWatchResourcesResponse {
        NodeWatchResourcesResponse {
            devices: vec![health_v1::DeviceHealth {
                device: Some(DeviceIdentifier { pool_name: "pool".into(), device_name: device.into() }),
                health: health.into(),
                // Long ago by the plugin's clock, which the kubelet does not care about.
                last_updated_time: 1,
                health_check_timeout_seconds: timeout,
                message: message.into(),
            }],
        }
    }

    fn cache(release: Release) -> HealthCache {
        HealthCache::new(release, Clock::REAL, Changes::default())
    }

    #[test]
    fn a_report_that_is_not_repeated_decays_to_unknown() {
        let cache = cache(Release::V1_36);
        let start = Instant::now();
        cache.update("d", report("gpu-0", HealthStatus::Healthy, 0, ""), start);
        cache.update("d", report("gpu-1", HealthStatus::Unhealthy, 60, "Xid 79"), start);

        let at = |device, seconds| cache.get("d", "pool", device, start + Duration::from_secs(seconds));
        assert_eq!(at("gpu-0", 30).health, Health::Healthy);
        assert_eq!(at("gpu-0", 31).health, Health::Unknown);
        assert_eq!(at("gpu-1", 31), DeviceHealth { health: Health::Unhealthy, message: "Xid 79".into() });
        cache.clear("d");
        assert_eq!(at("gpu-1", 31).health, Health::Unknown);
    }

    #[test]
    fn releases_ignore_fields_that_they_do_not_know() {
        let cache = cache(Release::V1_34);
        let start = Instant::now();
        cache.update("d", report("gpu-0", HealthStatus::Healthy, 60, "fine"), start);
        assert_eq!(cache.get("d", "pool", "gpu-0", start).message, "");
        assert_eq!(cache.get("d", "pool", "gpu-0", start + Duration::from_secs(31)).health, Health::Unknown);
    }

    #[test]
    fn long_messages_are_cut() {
        assert_eq!(cut("x".repeat(1024)).len(), 1024);
        let message = cut("x".repeat(1025));
        assert_eq!((message.len(), message.ends_with("x...")), (1024, true));
    }
}
