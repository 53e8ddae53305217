//! The fake kubelet against a plugin that is served by tonic in the same process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "the helpers of tests are tests")]

mod health;
mod node;
mod plugin;
mod pods;
mod registration;
