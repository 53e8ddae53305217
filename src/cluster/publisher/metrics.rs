//! What the publisher counts.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::cluster::request::RequestError;
use crate::cluster::slices::Change;
use crate::slice::fallback::Extras;

/// Metrics of slices. Cheap to clone; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub(super) writes: Family<Write, Counter>,
    pub(super) accepted_generation: Gauge,
    pub(super) accepted_seconds: Gauge<f64, AtomicU64>,
    pub(super) altered: Gauge,
    pub(super) reduced: Family<Reduced, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Write {
    pub(super) verb: Verb,
    pub(super) result: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Reduced {
    pub(super) without: Extra,
}

/// What a server may not keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the names are the label values")]
pub(super) enum Extra {
    lists,
    counters,
    taints,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the names are the label values")]
pub(super) enum Verb {
    create,
    update,
    delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the names are the label values")]
pub(super) enum Outcome {
    /// Stored.
    ok,
    /// Somebody else was faster.
    conflict,
    /// The server says no, and will say so again.
    refused,
    /// No answer, or one that asks for patience.
    failed,
}

// === impl Metrics ===

impl Metrics {
    /// Creates the metrics in a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "slice_writes",
            "Requests that create, update or delete ResourceSlices of this node",
            metrics.writes.clone(),
        );
        registry.register(
            "slice_accepted_generation",
            "Generation of this node's pool that the API server accepted last",
            metrics.accepted_generation.clone(),
        );
        registry.register(
            "slice_accepted_timestamp_seconds",
            "When the API server was last seen to have this node's pool as wanted, in Unix time",
            metrics.accepted_seconds.clone(),
        );
        registry.register(
            "slices_altered",
            "ResourceSlices of this node that the API server does not store as sent",
            metrics.altered.clone(),
        );
        registry.register(
            "slices_reduced",
            "1 while ResourceSlices of this node are published without what the API server does not keep",
            metrics.reduced.clone(),
        );
        metrics.reduce(Extras::NONE);
        metrics
    }

    /// Sets what slices are published without.
    pub(super) fn reduce(&self, without: Extras) {
        let Extras { lists, counters, taints } = without;
        for (without, is_lost) in [(Extra::lists, lists), (Extra::counters, counters), (Extra::taints, taints)] {
            self.reduced.get_or_create(&Reduced { without }).set(is_lost.into());
        }
    }
}

// === impl Verb ===

impl Verb {
    pub(super) fn of(change: &Change) -> Self {
        match change {
            Change::Delete { .. } => Self::delete,
            Change::Update { .. } => Self::update,
            Change::Create { .. } => Self::create,
        }
    }
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn of<T>(result: &Result<T, RequestError>) -> Self {
        match result {
            Ok(_) => Self::ok,
            Err(error) if error.code() == Some(http::StatusCode::CONFLICT) => Self::conflict,
            Err(error) if error.is_transient() => Self::failed,
            Err(_) => Self::refused,
        }
    }
}
