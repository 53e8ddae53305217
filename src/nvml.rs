//! EDGE to NVML, the driver's management library. The only unsafe code.
//!
//! ```text
//!  inventory ──▶ session   one loaded library, calls on threads of their own with a deadline, reload after an upgrade
//!                   │
//!                   ▼
//!                  gpu     every GPU's facts, each on its own: one that fails costs itself
//!                   │
//!                   ▼
//!        link, mig, fabric   parts of that
//!                   │
//!                   ▼
//!                  raw     calls that nvml-wrapper gets wrong or does not have, as plain numbers
//! ```
//!
//! What NVML answers is data, never a reason to panic: return codes that are newer than we are, enum values without a
//! name, strings that are not UTF-8, functions that this driver does not have.

pub mod error;
pub mod events;
mod fabric;
pub mod gpu;
mod link;
mod mig;
mod notes;
pub mod partition;
pub mod probe;
mod raw;
pub mod session;

pub use error::{Code, Error};
pub use nvml_wrapper::Nvml;
pub use session::Session;
