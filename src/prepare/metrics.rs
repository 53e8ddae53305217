//! What the claim state machine counts.
//!
//! `claim_failures` has two labels. `operation` is `prepare` or `unprepare`; `cause` says whose turn it is to do something:
//!
//! | `cause` | what failed |
//! |---|---|
//! | `claim` | the claim or its allocation is not what can be prepared: for its author, or for the pod's |
//! | `in_use` | another claim, or an earlier allocation of this one, still holds a GPU |
//! | `at_work` | another plugin process, or an earlier call, holds the claim or a GPU and does not end |
//! | `incomplete` | a GPU, a device node or a part of the driver is missing on the node |
//! | `nvml` | NVML did not make or destroy a part of a GPU |
//! | `not_ready` | NVML has not answered since the start |
//! | `files` | a record or a CDI spec could not be read or written |
//! | `api_server` | the API server did not answer, or does not allow it |
//! | `called_off` | the kubelet unprepared the claim meanwhile; nobody has to do anything |
//! | `stopping` | the plugin stopped first; the next one does it |
//! | `kubelet` | what was asked for is not a claim UID |
//! | `internal` | a defect of this driver; the log has it |

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
    /// From [`Error::cause`](super::Error::cause); of claims that could not be read, what the reader says.
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

    /// Counts a claim that nothing came of; `cause` is one of those above.
    pub fn failed(&self, operation: &'static str, cause: &'static str) {
        self.failures.get_or_create(&Failure { operation, cause }).inc();
    }
}
