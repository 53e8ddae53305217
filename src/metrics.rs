//! The registry of all metrics. Each room owns its metrics and registers them; this one has those of the process.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// The prefix of all metrics, as in NVIDIA's driver.
const PREFIX: &str = "nvidia_dra";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    driver: String,
}

/// A registry with the metrics of the process: version, driver name, and start time.
pub fn registry(driver: &str) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    let build = Build { version: env!("CARGO_PKG_VERSION"), driver: driver.to_owned() };
    registry.register("build", "Version of the plugin, and the driver name that it serves", Info::new(build));
    let start = Gauge::<i64>::default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    start.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    registry.register_with_unit("start_time", "When the plugin started, in Unix time", Unit::Seconds, start);
    registry
}
