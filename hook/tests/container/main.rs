//! The hook on real file trees: what it makes of a container, and what a container cannot make of it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod compat;
mod hostile;
mod links;
mod loader;
mod params;
mod program;
mod scene;
