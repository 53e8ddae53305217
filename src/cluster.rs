//! EDGE to the Kubernetes API: claims come in, slices and the status of claims go out.
//!
//! ```text
//!            kubelet's call                                       what the node has
//!                  │                                                      │ watch::Receiver<Option<Pool>>
//!          Cluster::claim ──┐                                    Publisher::run ──▶ watch::Receiver<Published>
//!                  │        │                                             │
//!               claims      │  version: which resource.k8s.io?    slices: desired, changes (pure)
//!           JSON ─▶ Claim   │  wire: v1 ◀─▶ v1beta1 (pure)                │
//!                           ▼                                             ├──▶ node_events: what people should know
//!                        request: one bounded call, one error ◀───────────┘
//!                           │
//!                        client: kubeconfig or service account, TLS, no retries
//! ```
//!
//! Nothing here needs the API server at start: the first call finds out which versions it speaks. What it answers is
//! checked like any other input.

mod claim_status;
mod claims;
mod client;
mod clock;
mod node_events;
pub mod publisher;
mod request;
pub mod slices;
mod version;
pub mod wire;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(fuzzing)]
pub mod fuzz;

use std::path::PathBuf;

pub use claim_status::{ClaimStatuses, DeviceStatus};
pub use claims::ClaimError;
pub use client::ConnectError;
pub use clock::Clock;
pub use node_events::NodeEvents;
pub use publisher::{Metrics, Published, Publisher};
pub use request::{Refusal, RequestError};
pub use version::Version;

use request::Requests;
use version::Negotiated;

/// Where the API server is, and who we are in the cluster.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to reach the API server; `None` takes the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The driver's name, as claims and slices spell it.
    pub driver: String,
    /// The name of this node's Node object.
    pub node: String,
    /// How fast time runs.
    pub clock: Clock,
}

/// A connection to the API server. Cheap to clone; all clones share connections and the negotiated version.
#[derive(Clone)]
pub struct Cluster {
    requests: Requests,
    negotiated: Negotiated,
    driver: String,
    node: String,
    clock: Clock,
}

// === impl Cluster ===

impl Cluster {
    /// Reads settings and credentials. Makes no request: the API server may be down.
    pub async fn connect(settings: &Settings) -> Result<Self, ConnectError> {
        for (what, text) in [("driver", &settings.driver), ("node", &settings.node)] {
            if !is_name(text) {
                return Err(ConnectError::Name { what, text: text.clone() });
            }
        }
        let client = client::client(settings.kubeconfig.as_deref()).await?;
        Ok(Self { clock: settings.clock, ..Self::new(client, &settings.driver, &settings.node) })
    }

    fn new(client: kube::Client, driver: &str, node: &str) -> Self {
        Self {
            requests: Requests::new(client),
            negotiated: Negotiated::default(),
            driver: driver.to_owned(),
            node: node.to_owned(),
            clock: Clock::REAL,
        }
    }
}

/// Whether a text has only characters of DNS subdomains, so that it can stand in a path and in a selector.
fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    (1..=253).contains(&text.len()) && text.bytes().all(plain) && !matches!(text, "." | "..")
}
