//! What the real binary writes to the status of the claims that it prepares, beside what others write there, and what
//! becomes of pods when it may not or cannot.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helpers"
)]

#[path = "../support/node.rs"]
mod node;

mod others;
mod refusals;
mod scene;
mod written;
