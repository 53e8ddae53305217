//! A Kubernetes DRA kubelet plugin for NVIDIA GPUs.
//!
//! The plugin finds a node's GPUs through NVML, publishes them as ResourceSlices, serves the kubelet's DRA services, and
//! turns an allocated ResourceClaim into a CDI spec from which a container runtime starts the container.
//!
//! The house has floors; each imports only those below it. Folders marked EDGE talk to one outside system, everything
//! else is plain values and functions.
//!
//! ```text
//!  6  node        wires the parts, supervises, drains on SIGTERM
//!  5  kubelet     EDGE gRPC: registration, DRA, health stream
//!  4  prepare     the claim state machine: records on disk, locks
//!     cluster     EDGE Kubernetes API: claims, slices
//!  3  inventory   NVML + sysfs → devices; names that stay on their GPU
//!     claim       allocation → plan (pure)
//!     health      verdicts on devices (pure; nothing acts on them yet)
//!  2  nvml        EDGE NVML: the only unsafe code
//!     cdi         container device specs
//!     slice       devices → ResourceSlices (pure)
//!  1  device      GPUs, their NVLink topology, names and attributes (pure)
//!     host        EDGE file system: sysfs, procfs, devfs, driver root, atomic files
//!     args, metrics, http, causes
//! ```
//!
//! A claim goes kubelet → prepare → claim → cdi and host, and back. A device goes nvml and host → inventory → device →
//! slice → cluster.

pub mod args;
pub mod causes;
pub mod cdi;
pub mod claim;
pub mod cluster;
pub mod device;
pub mod health;
pub mod host;
pub mod http;
pub mod inventory;
pub mod kubelet;
pub mod metrics;
pub mod node;
pub mod nvml;
pub mod prepare;
pub mod slice;
