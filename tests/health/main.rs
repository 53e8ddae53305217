//! Health against the mock NVML: what the driver reports by itself, what a probe reads, and what both add up to. And that
//! `docs/health.md` is what the code says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod events;
mod machine;
mod page;
mod probe;
mod sequence;
