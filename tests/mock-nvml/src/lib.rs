//! `libnvidia-ml.so.1` without a GPU: the NVML C ABI, answered from a topology file.
//!
//! ```text
//!  program ──dlopen──▶ entry points     one per function of nvml.h, declared with the macros of `call`
//!                        │  call        log line, faults, driver check, handle check; no panic crosses the ABI
//!                        ▼
//!                      session ─▶ node  topology.json read at init, state.json read again when it changed
//!                        │
//!                        ├─ system device pci memory affinity nvlink fabric health fields sensors       answers
//!                        ├─ mig gpu_instance compute_instance processes    over the rules of `topology::mig`
//!                        ├─ events      event sets over events.jsonl
//!                        └─ stubs       every other function: NOT_SUPPORTED            (generated from nvml.h)
//! ```
//!
//! **Which machine.** The node directory is `$MOCK_NVML_DIR`, else a directory or symlink called `mock-nvml` beside the
//! library file itself. Without one `nvmlInit` answers DRIVER_NOT_LOADED (9), as on a machine without the driver.
//!
//! **Stricter than convenient on purpose.** Codes follow `nvml.h`: calls before init are UNINITIALIZED (1), bad handles
//! and null pointers INVALID_ARGUMENT (2), wrong version words ARGUMENT_VERSION_MISMATCH (25), short buffers
//! INSUFFICIENT_SIZE (7). A library stays with the driver version it first saw: when the version changes, every call
//! answers LIB_RM_VERSION_MISMATCH (18) until the program has unloaded the library and loaded it again, as with the
//! real one. Only permissions are laxer: setters do not ask for root, because the fake node runs as any user, but for the
//! right to write the state file (NO_PERMISSION, 4), which a container with the driver root mounted read-only lacks.
//!
//! **MIG.** Instances are part of the state, so all processes of the node have the same ones, and their handles are the
//! same numbers everywhere. A handle dies with its instance (INVALID_ARGUMENT, 2); one created at the same place later has
//! another handle, and a MIG device another UUID. The files of an instance are in the host tree, where there is one, before
//! the call that created it returns.
//!
//! **Unloadable.** The library starts no threads and registers no thread-local destructors, so `dlclose` really unloads
//! it and a replaced file is seen by the next `dlopen`.

#![allow(unsafe_code, reason = "a C ABI takes raw pointers; `call` states the contract that all entry points rely on")]
#![allow(non_snake_case, reason = "exported names are those of nvml.h")]
#![allow(clippy::missing_safety_doc, reason = "the contract of every exported function is its prototype in nvml.h")]

mod affinity;
mod call;
mod code;
mod compute_instance;
mod device;
mod events;
mod fabric;
mod fault;
mod fields;
mod gpu_instance;
mod handle;
mod health;
pub mod hide;
mod memory;
mod mig;
mod node;
mod nvlink;
mod out;
mod part;
mod pci;
mod processes;
mod report;
mod sensors;
mod session;
#[cfg(test)]
mod signatures;
mod stubs;
mod system;
mod watch;
