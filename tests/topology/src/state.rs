//! What happened to the machine since it started: the part of it that a test changes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Gpu;
use crate::mig::Instances;

/// Everything that can differ from the [`Topology`](crate::Topology). The default is a healthy machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// Driver version to report instead of the topology's; a library that was loaded before answers
    /// LIB_RM_VERSION_MISMATCH (18) from then on, as the real one does.
    pub driver_version: Option<String>,
    /// What goes wrong, first match first.
    pub faults: Vec<Fault>,
    /// Per GPU, by index.
    pub gpus: BTreeMap<usize, GpuState>,
}

/// A call that fails, is slow, never returns, or is the last one of its process.
///
/// It sleeps, hangs, dies and answers, in this order, as far as it is told to. For example, the plugin's third call that
/// creates a GPU instance creates it, and the plugin never learns of it:
///
/// ```json
/// { "call": "nvmlDeviceCreateGpuInstanceWithPlacement", "after": 2, "kill": true, "late": true }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// NVML function name without a version suffix matches all its versions; `*` matches every call.
    pub call: String,
    /// Only calls about this GPU, by index; absent means all.
    pub gpu: Option<usize>,
    /// `nvmlReturn_t` to answer with; absent means the call succeeds after its delay.
    pub code: Option<u32>,
    /// Milliseconds to sleep first.
    pub delay_ms: u64,
    /// Never return while this fault is in the state file.
    pub hang: bool,
    /// Kill the calling process with SIGKILL.
    pub kill: bool,
    /// Bite when the call has done its work, just before it returns, instead of before it does anything.
    pub late: bool,
    /// How many matching calls of a process pass before the fault bites.
    pub after: u64,
    /// How often it bites in a process; absent means for ever.
    pub times: Option<u64>,
}

/// What can change about one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuState {
    /// Fallen off the bus: calls about it answer GPU_IS_LOST (15). Still enumerated.
    pub lost: bool,
    /// Not enumerated at all, as after a reboot without it.
    pub absent: bool,
    /// `nvmlComputeMode_t`.
    pub compute_mode: Option<u32>,
    /// Persistence mode.
    pub persistence: Option<bool>,
    /// MIG mode now.
    pub mig_enabled: Option<bool>,
    /// MIG mode after the next reset.
    pub mig_pending: Option<bool>,
    /// MIG instances. They follow the rules as long as they are created through [`NodeDir`](crate::NodeDir) or NVML.
    pub mig: Instances,
    /// Links that differ from the topology, by link number.
    pub links: BTreeMap<u32, LinkState>,
    /// Fabric registration that differs from the topology.
    pub fabric: Option<crate::Fabric>,
    /// `nvmlDeviceGetFieldValues` answers, by field id, for example 230 (recovery action).
    pub fields: BTreeMap<u32, u64>,
    /// Uncorrectable ECC errors since start.
    pub ecc_uncorrectable: u64,
    /// Correctable ECC errors since start.
    pub ecc_correctable: u64,
    /// A row remap waits for a reset.
    pub row_remap_pending: bool,
    /// A row could not be remapped.
    pub row_remap_failed: bool,
    /// Names of calls that answer NOT_SUPPORTED on this GPU.
    pub unsupported: BTreeSet<String>,
}

/// The state of one NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Trained.
    Up,
    /// Not trained.
    Down,
}

/// One event for `nvmlEventSetWait`, a line of `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// GPU by index.
    pub gpu: usize,
    /// `nvmlEventType*` bit: 1 single-bit ECC, 2 double-bit ECC, 8 XID, 0x8000 recovery action.
    pub event_type: u64,
    /// The XID for type 8, else 0.
    pub data: u64,
    /// GPU instance, `0xFFFF_FFFF` for the whole GPU.
    pub gpu_instance: u32,
    /// Compute instance, `0xFFFF_FFFF` for the whole GPU instance.
    pub compute_instance: u32,
}

// === impl GpuState ===

impl GpuState {
    /// Whether MIG mode is on.
    pub fn mig_on(&self, gpu: &Gpu) -> bool {
        self.mig_enabled.unwrap_or(gpu.mig_enabled)
    }
}

// === impl Event ===

impl Event {
    /// The id that stands for "the whole GPU" or "the whole GPU instance".
    pub const WHOLE: u32 = u32::MAX;
    /// `nvmlEventTypeXidCriticalError`.
    pub const XID: u64 = 8;

    /// Reads a line of `events.jsonl`.
    pub fn parse(line: &str) -> Result<Self, crate::Error> {
        serde_json::from_str(line).map_err(crate::Error::Parse)
    }

    /// An XID of a whole GPU.
    pub fn xid(gpu: usize, xid: u64) -> Self {
        Self { gpu, event_type: Self::XID, data: xid, gpu_instance: Self::WHOLE, compute_instance: Self::WHOLE }
    }
}
