//! Parts of a GPU, behind handles that die with them.

use nvml_wrapper_sys::bindings::{nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlReturn_t};
use topology::mig::{ComputeInstance, GpuInstance, Instances, Profile, Refusal, Table};

use crate::call::{Device, about};
use crate::code::{Answer, Code};
use crate::handle::{self, Instance};
use crate::node::Node;

/// A call about a GPU instance.
pub(crate) struct GpuPart<'a> {
    pub(crate) gpu: Device<'a>,
    pub(crate) instance: GpuInstance,
}

/// A call about a compute instance.
pub(crate) struct ComputePart<'a> {
    pub(crate) gpu: Device<'a>,
    pub(crate) parent: GpuInstance,
    pub(crate) instance: ComputeInstance,
}

/// A call about a GPU or a MIG device.
pub(crate) enum Either<'a> {
    Gpu(Device<'a>),
    Mig(ComputePart<'a>),
}

// === impl Code ===

impl From<Refusal> for Code {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotCapable | Refusal::Off | Refusal::NoProfile => Self::NOT_SUPPORTED,
            Refusal::NoPlacement | Refusal::NoInstance => Self::INVALID_ARGUMENT,
            Refusal::NoRoom => Self::INSUFFICIENT_RESOURCES,
            Refusal::InUse => Self::IN_USE,
        }
    }
}

// === impl Device ===

impl Device<'_> {
    /// What the board can be partitioned into, whether MIG mode is on or off.
    pub(crate) fn table(&self) -> Answer<&Table> {
        self.call.node.topology.mig_table(self.board).ok_or(Code::NOT_SUPPORTED)
    }

    /// Whether MIG mode is on.
    pub(crate) fn mig_on(&self) -> bool {
        self.state.mig_on(self.facts)
    }

    /// What exists on the GPU; NOT_SUPPORTED with MIG mode off.
    pub(crate) fn instances(&self) -> Answer<&Instances> {
        if self.mig_on() { Ok(&self.state.mig) } else { Err(Code::NOT_SUPPORTED) }
    }

    /// Creates or destroys an instance, for all processes, on what exists at this very moment.
    pub(crate) fn alter<T>(&self, act: impl FnOnce(&Table, &mut Instances) -> Result<T, Refusal>) -> Answer<T> {
        let table = self.table()?;
        let on = |state: &mut topology::GpuState| {
            if state.mig_on(self.facts) { act(table, &mut state.mig) } else { Err(Refusal::Off) }
        };
        Ok(self.change(on)??)
    }

    pub(crate) fn instance(&self, birth: u32) -> Instance {
        Instance { gpu: self.index, birth }
    }
}

// === impl GpuPart ===

impl GpuPart<'_> {
    /// The profile of the GPU instance.
    pub(crate) fn profile(&self) -> Answer<&Profile> {
        self.gpu.table()?.profile(self.instance.profile).ok_or(Code::UNKNOWN)
    }
}

// === impl ComputePart ===

impl<'a> ComputePart<'a> {
    /// The profile of the GPU instance around it.
    pub(crate) fn profile(&self) -> Answer<&Profile> {
        self.gpu.table()?.profile(self.parent.profile).ok_or(Code::UNKNOWN)
    }

    fn find(gpu: Device<'a>, birth: u32) -> Answer<Self> {
        let live = gpu.instances().ok().and_then(|all| all.devices().find(|(_, ci)| ci.birth == birth));
        let (parent, instance) = live.map(|(gi, ci)| (gi.clone(), ci.clone())).ok_or(Code::INVALID_ARGUMENT)?;
        Ok(Self { gpu, parent, instance })
    }
}

// === impl Either ===

impl<'a> Either<'a> {
    /// The GPU, or that which the MIG device is a part of.
    pub(crate) fn gpu(&self) -> &Device<'a> {
        match self {
            Self::Gpu(gpu) | Self::Mig(ComputePart { gpu, .. }) => gpu,
        }
    }

    /// The MIG device; INVALID_ARGUMENT for a GPU.
    pub(crate) fn mig(&self) -> Answer<&ComputePart<'a>> {
        if let Self::Mig(device) = self { Ok(device) } else { Err(Code::INVALID_ARGUMENT) }
    }
}

/// An entry point whose first argument is a GPU. A MIG device is not one.
pub(crate) fn device(
    name: &'static str,
    device: nvmlDevice_t,
    body: impl FnOnce(&Device<'_>) -> Answer,
) -> nvmlReturn_t {
    either(name, device, |either| match either {
        Either::Gpu(gpu) => body(gpu),
        Either::Mig(_) => Err(Code::NOT_SUPPORTED),
    })
}

/// An entry point whose first argument is a GPU or a MIG device.
pub(crate) fn either(
    name: &'static str,
    device: nvmlDevice_t,
    body: impl FnOnce(&Either<'_>) -> Answer,
) -> nvmlReturn_t {
    let instance = Instance::of_mig_device(device);
    let find = |node: &Node| instance.map_or_else(|| handle::gpu(node, device), |mig| visible(node, mig));
    about(name, find, |gpu| {
        body(&match instance {
            None => Either::Gpu(gpu),
            Some(mig) => Either::Mig(ComputePart::find(gpu, mig.birth)?),
        })
    })
}

/// An entry point whose first argument is a GPU instance.
pub(crate) fn gpu_instance(
    name: &'static str,
    handle: nvmlGpuInstance_t,
    body: impl FnOnce(&GpuPart<'_>) -> Answer,
) -> nvmlReturn_t {
    let instance = Instance::of_gpu_instance(handle);
    about(
        name,
        |node| visible(node, instance?),
        |gpu| {
            let birth = instance.map(|instance| instance.birth);
            let all = gpu.instances().map_or(&[][..], |all| &all.gpu_instances);
            let live = all.iter().find(|gi| Some(gi.birth) == birth).cloned();
            body(&GpuPart { instance: live.ok_or(Code::INVALID_ARGUMENT)?, gpu })
        },
    )
}

/// An entry point whose first argument is a compute instance.
pub(crate) fn compute_instance(
    name: &'static str,
    handle: nvmlComputeInstance_t,
    body: impl FnOnce(&ComputePart<'_>) -> Answer,
) -> nvmlReturn_t {
    let instance = Instance::of_compute_instance(handle);
    about(
        name,
        |node| visible(node, instance?),
        |gpu| {
            let birth = instance.ok_or(Code::INVALID_ARGUMENT)?.birth;
            body(&ComputePart::find(gpu, birth)?)
        },
    )
}

fn visible(node: &Node, instance: Instance) -> Option<usize> {
    node.visible.contains(&instance.gpu).then_some(instance.gpu)
}
