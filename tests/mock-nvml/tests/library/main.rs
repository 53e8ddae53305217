//! The mock as programs see it: a shared library, loaded through `nvml-wrapper` as the plugin loads the real one.
//!
//! Each test loads a copy of its own, so that tests in one process do not share a library's state.

#![allow(unsafe_code, reason = "some calls exist only in the raw bindings")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot set up its machine has failed")]

mod events;
mod faults;
mod hide;
mod identity;
mod lifecycle;
mod machine;
mod mig;
mod nvlink;
mod processes;
