//! What the claim state machine counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counters of a [`Preparer`](super::Preparer). Cheap to clone; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub(super) prepared: Gauge,
    pub(super) failures: Family<Failure, Counter>,
}

/// The labels of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Failure {
    /// `prepare` or `unprepare`.
    pub(super) operation: &'static str,
    /// See [`Error::cause`](super::Error::cause); of claims that could not be read, what the reader says.
    pub(super) cause: &'static str,
}

// === impl Metrics ===

impl Metrics {
    /// Makes the metrics known to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("prepared_claims", "Claims whose devices containers can use", metrics.prepared.clone());
        registry.register(
            "claim_failures",
            "Claims that could not be read, prepared or unprepared, by cause",
            metrics.failures.clone(),
        );
        metrics
    }
}
