//! What people, disks, drivers and API servers get wrong, and what the plugin makes of it.
//!
//! The rule is the same everywhere: a mistake costs itself and nothing else, and whoever has to do something about it is
//! told in words where they look anyway: standard error, `/readyz`, the log, the events of the pod.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "the helpers of tests are tests")]

mod claims;
mod command_line;
mod damage;
mod disk;
mod driver;
mod liar;
mod machine;
mod queries;
mod start;
