//! What the kubelet's calls cost, and whether it knows us.

use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;
use tracing::{Span, debug};

/// Upper bounds in seconds: from a repeated prepare, which only reads a record, to beyond the kubelet's deadline of
/// 45 s, where health streams end up as well.
const BUCKETS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 45.0, 120.0];

/// Metrics of the servers. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    duration: Family<Answered, Histogram, fn() -> Histogram>,
    in_flight: Family<Called, Gauge>,
    registered: Gauge,
}

/// A call that is at work. Counted as it is dropped: as `Cancelled`, unless it was answered.
#[derive(Debug)]
pub(super) struct Call {
    metrics: Metrics,
    method: &'static str,
    started: Instant,
    code: Code,
    span: Span,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Called {
    grpc_method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    grpc_method: &'static str,
    grpc_code: String,
}

// === impl Metrics ===

impl Metrics {
    /// Metrics that `registry` knows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            in_flight: Family::default(),
            registered: Gauge::default(),
        };
        registry.register_with_unit(
            "grpc_server_duration",
            "Calls of the kubelet, by method and gRPC code; a health stream counts when it ends",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register("grpc_server_in_flight", "Calls at work, health streams too", metrics.in_flight.clone());
        registry.register(
            "kubelet_registered",
            "1 if the kubelet registered the plugin, 0 if not yet or if it refused it",
            metrics.registered.clone(),
        );
        metrics
    }

    /// Counts a call from now on.
    pub(super) fn call(&self, method: &'static str, span: Span) -> Call {
        self.in_flight.get_or_create(&Called { grpc_method: method }).inc();
        Call { metrics: self.clone(), method, started: Instant::now(), code: Code::Cancelled, span }
    }

    /// Keeps what the kubelet last said.
    pub(super) fn set_registered(&self, registered: bool) {
        self.registered.set(registered.into());
    }
}

// === impl Call ===

impl Call {
    /// The answer is known.
    pub(super) fn answered(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Self { metrics, method, started, code, span } = self;
        let seconds = started.elapsed().as_secs_f64();
        let grpc_code = format!("{code:?}");
        span.in_scope(|| debug!(code = grpc_code, seconds, "answered"));
        metrics.in_flight.get_or_create(&Called { grpc_method: method }).dec();
        metrics.duration.get_or_create(&Answered { grpc_method: method, grpc_code }).observe(seconds);
    }
}
