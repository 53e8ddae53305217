//! Claims for parts of GPUs, and for whole GPUs beside them: the real binary on machines whose GPUs it partitions, or an
//! administrator does.
//!
//! Nothing here looks inside: what counts are answers, objects of the API server, records, specs, and what NVML has.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helpers"
)]

#[path = "../support/node.rs"]
mod node;

mod ampere;
mod crashes;
mod dynamic;
mod failures;
mod fixed;
mod foreign;
mod outliving;
mod scene;
mod sequences;
