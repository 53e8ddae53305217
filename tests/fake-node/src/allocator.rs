//! A scenario allocator: gives a ResourceClaim devices from the ResourceSlices of one node.
//!
//! ```text
//!  slices ── complete pools of the newest generation ──▶ devices, in order of (driver, pool), slice name, position
//!  claim, classes ── requests, selectors, constraints ──▶ search, first fit ──▶ status.allocation
//! ```
//!
//! It is no scheduler: it looks at one node and one claim, takes the first devices that fit and gives up after a number
//! of steps. It follows the rules of the real allocator where a driver can tell the difference: class selectors before
//! those of the request, an expression that fails aborts, configuration of the class before that of the claim, a claim
//! for all devices fails while a pool is being updated. All objects are JSON, shaped as `resource.k8s.io/v1`.
//!
//! Left out, with an error that says so: devices that can be allocated several times, and slices whose nodes are given by
//! selectors.

mod constraint;
mod counters;
mod model;
mod pools;
mod request;
mod result;
mod search;
mod template;

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::template::{InvalidTemplate, claim_from_template};

use self::constraint::Constraint;
use self::model::{Claim, Class, DeviceId, Slice};
use self::pools::Pools;
use self::request::Request;
use self::search::Search;
use crate::cel::{CelError, Environment};

/// The most devices that a claim can get (`AllocationResultsMaxSize`).
const MAX_RESULTS: usize = 32;

/// What there is to allocate from.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    /// The node on which the claim will be used.
    pub node: &'a str,
    /// All ResourceSlices, also those of other nodes.
    pub slices: &'a [Value],
    /// All DeviceClasses.
    pub classes: &'a [Value],
    /// All ResourceClaims: what they got is in use.
    pub claims: &'a [Value],
}

/// Why a claim gets nothing.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// An object is not what it should be.
    #[error("cannot read {kind} {name}: {source}")]
    Malformed {
        /// The kind of the object.
        kind: &'static str,
        /// Its name, if that could be read.
        name: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The claim has got its devices already.
    #[error("claim {0} is already allocated")]
    AlreadyAllocated(String),
    /// A request names a class that does not exist.
    #[error("request {request}: could not retrieve device class {class}")]
    UnknownClass {
        /// The request.
        request: String,
        /// The class.
        class: String,
    },
    /// A request or a constraint is not valid; the API server would have refused it.
    #[error("{subject}: {reason}")]
    Invalid {
        /// The request or constraint.
        subject: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A selector cannot be used at all.
    #[error("request {request}: selector {expression:?}: {source}")]
    Selector {
        /// The request.
        request: String,
        /// The expression.
        expression: String,
        /// Why not.
        source: Box<CelError>,
    },
    /// A selector failed on a device that was looked at. For the real scheduler that is the end too.
    #[error("request {request}: selector {expression:?} failed on device {device}: {source}")]
    Device {
        /// The request.
        request: String,
        /// The expression.
        expression: String,
        /// `driver/pool/device`.
        device: String,
        /// Why.
        source: Box<CelError>,
    },
    /// A request for all devices while not all slices of a pool are there.
    #[error("request {request}: asks for all devices, but resource pool {pool} is currently being updated")]
    PoolIncomplete {
        /// The request.
        request: String,
        /// `driver/pool`.
        pool: String,
    },
    /// A pool contradicts itself.
    #[error("pool {pool} is invalid: {reason}")]
    PoolInvalid {
        /// `driver/pool`.
        pool: String,
        /// How.
        reason: String,
    },
    /// More devices than a claim can hold.
    #[error("number of requested devices {0} exceeds the claim limit of {MAX_RESULTS}")]
    TooMany(usize),
    /// A device or slice needs something that is left out here.
    #[error("{0}: the scenario allocator cannot do that")]
    Unsupported(String),
    /// The search took too long.
    #[error("gave up after {0} steps; put the scarcest request first or write count: N instead of N requests")]
    TooHard(usize),
    /// There are no devices that fit.
    #[error("the devices of node {node} cannot satisfy claim {claim}")]
    Unsatisfiable {
        /// The node.
        node: String,
        /// The claim.
        claim: String,
    },
}

// === impl Cluster ===

impl Cluster<'_> {
    /// The `status.allocation` of a claim.
    pub fn allocate(&self, claim: &Value) -> Result<Value, AllocateError> {
        let claim: Claim = read("ResourceClaim", claim)?;
        if claim.status.allocation.is_some() {
            return Err(AllocateError::AlreadyAllocated(claim.metadata.name));
        }
        let classes = self.classes.iter().map(|class| read::<Class>("DeviceClass", class));
        let classes = classes.collect::<Result<Vec<_>, _>>()?;
        let slices = self.slices.iter().map(|slice| read::<Slice>("ResourceSlice", slice));
        let slices = slices.collect::<Result<Vec<_>, _>>()?;

        let cel = Environment::new().map_err(|error| AllocateError::Unsupported(error.to_string()))?;
        let spec = &claim.spec.devices;
        let requests = spec.requests.iter().map(|request| Request::new(request, &classes, &cel));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let constraints = spec.constraints.iter().enumerate().map(|(at, constraint)| Constraint::new(at, constraint));
        let constraints = constraints.collect::<Result<Vec<_>, _>>()?;
        let minimum = requests.iter().map(Request::minimum).sum();
        if minimum > MAX_RESULTS {
            return Err(AllocateError::TooMany(minimum));
        }

        let pools = Pools::gather(self.node, &slices)?;
        let in_use = self.in_use()?;
        let Some(chosen) = Search::new(&pools, &requests, &constraints, &in_use).run()? else {
            let (node, claim) = (self.node.to_owned(), claim.metadata.name);
            return Err(AllocateError::Unsatisfiable { node, claim });
        };
        if chosen.len() > MAX_RESULTS {
            return Err(AllocateError::TooMany(chosen.len()));
        }
        Ok(result::allocation(self.node, &claim.spec.devices, &requests, &chosen))
    }

    /// Devices that another claim has for itself.
    fn in_use(&self) -> Result<BTreeSet<DeviceId>, AllocateError> {
        let mut in_use = BTreeSet::new();
        for claim in self.claims {
            let claim: Claim = read("ResourceClaim", claim)?;
            let results = claim.status.allocation.into_iter().flat_map(|allocation| allocation.devices.results);
            in_use.extend(results.filter(|result| result.admin_access != Some(true)).map(|result| result.id));
        }
        Ok(in_use)
    }
}

fn read<T: DeserializeOwned>(kind: &'static str, object: &Value) -> Result<T, AllocateError> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    serde_json::from_value(object.clone()).map_err(|source| AllocateError::Malformed {
        kind,
        name: name.to_owned(),
        source,
    })
}
