//! See the crate.
