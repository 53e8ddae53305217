//! The real binary through everything that happens to it on a node, on a machine without a GPU.
//!
//! Nothing here looks inside: what counts are calls, sockets, files, objects of the API server, and exit codes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helpers"
)]

#[path = "../support/node.rs"]
mod node;

mod claims;
mod cluster;
mod driver;
mod gone;
mod health;
mod kill;
mod observation;
mod open_metrics;
mod registration;
mod restart;
mod shutdown;
mod upgrade;
mod waiting;
