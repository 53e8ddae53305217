//! A Kubernetes node without a GPU.
//!
//! ```text
//!  topology file ──▶ host      /sys /proc /dev, driver root with the mock NVML      (a directory)
//!                    api       the Kubernetes API, as much as nodes, slices and claims need    (HTTP on loopback)
//!                    kubelet   registers plugins, prepares and unprepares claims, watches health  (unix sockets)
//!                    plugin    the real binary, started on all of that
//! ```
//!
//! The fakes follow the rules of the kubelet and of the API server, not the habits of our driver: a fake that is laxer
//! than the real thing is a defect.

pub mod allocator;
pub mod api;
pub mod cel;
pub mod host;
mod http;
pub mod kubelet;
pub mod manifest;
pub mod node;
pub mod plugin;
pub mod release;
