//! The slices of a node, as the real binary publishes them, and whatever an API server, a kubelet or a person may do to
//! them, on a machine without a GPU.
//!
//! What takes minutes or hours is in `scaled`, where the plugin's own time runs faster. What depends on exact times (limits
//! of writes in any minute, the requests of a day) is tried in the tests of the publisher itself, where time can fly.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helpers"
)]

#[path = "../support/node.rs"]
mod node;

// Begun first, because it takes a minute: tests run in the order of their names.
mod credentials;
mod layout;
mod outage;
mod overlap;
mod partitions;
mod proxy;
mod reduced;
mod repair;
mod scaled;
mod scene;
mod telling;
mod versions;
