//! Whether each device works, and what is done about one that does not: pure.
//!
//! ```text
//!  nvml::events ─▶ reading ─▶ Event ──┐                       ┌─▶ taints of the slice
//!                                     ├─▶ Ledger ─▶ Verdict ──┼─▶ the kubelet's health stream
//!  nvml::probe  ─▶ reading ─▶ Outcome ┘      ▲                └─▶ message for Events, label for metrics
//!                                         Policy
//! ```
//!
//! Events only make a verdict worse, and only a probe makes it better: a harmless event after a fatal one changes nothing,
//! and a GPU that works again comes back by itself. Of several causes the worst decides, and all are kept.

pub mod cause;
pub mod ledger;
pub mod policy;
pub mod reading;
#[cfg(test)]
mod tests;
pub mod verdict;
pub mod xid;

pub use cause::{Action, Cause, Kind};
pub use ledger::{Event, Fabric, Ledger, Outcome, Place, Reach, Reading, Recovery};
pub use policy::{Policy, Response, Rule};
pub use verdict::{Finding, Level, Verdict};
pub use xid::Xid;
