//! What an administrator does to the GPUs of a machine, under the rules of the driver.

use std::fs;
use std::path::Path;

use crate::mig::{GpuInstance, Instances, Placement, Refusal, Table};
use crate::node_dir::file;
use crate::{Board, Error, Gpu, GpuState, NodeDir, State, Topology};

/// A new random UUID with every read.
const KERNEL_UUID: &str = "/proc/sys/kernel/random/uuid";

/// `NVML_DEVICE_ARCH_HOPPER`: from here on MIG mode needs no reset, and does not outlive a boot.
const HOPPER: u32 = 9;

/// A GPU instance with one compute instance that fills it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigDevice {
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    pub compute_instance: u32,
    /// `MIG-` and a UUID.
    pub uuid: String,
}

/// When a new MIG mode comes into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switched {
    /// It has.
    Now,
    /// With the next reset.
    AfterReset,
}

// === impl GpuState ===

impl GpuState {
    /// Switches MIG mode on or off: at once from Hopper on, where instances must be gone first, and else with the next
    /// reset.
    pub fn switch_mig(&mut self, board: &Board, gpu: &Gpu, on: bool) -> Result<Switched, Refusal> {
        if !board.mig_capable {
            return Err(Refusal::NotCapable);
        }
        if board.architecture < HOPPER && on != self.mig_on(gpu) {
            self.mig_pending = Some(on);
            return Ok(Switched::AfterReset);
        }
        if !on && self.mig_on(gpu) && !self.mig.gpu_instances.is_empty() {
            return Err(Refusal::InUse);
        }
        self.mig_enabled = Some(on);
        self.mig_pending = None;
        Ok(Switched::Now)
    }
}

// === impl NodeDir ===

impl NodeDir {
    /// Switches MIG mode: `nvidia-smi -i <gpu> -mig 1`.
    pub fn switch_mig(&self, gpu: usize, on: bool) -> Result<Switched, Error> {
        let topology = self.topology()?;
        let facts = topology.gpus.get(gpu).ok_or(Error::Mig(Refusal::NotCapable))?;
        let switch =
            |state: &mut State| state.gpus.entry(gpu).or_default().switch_mig(topology.board(facts), facts, on);
        self.update(switch)?.map_err(Error::Mig)
    }

    /// Creates a GPU instance and the compute instance that fills it: `nvidia-smi mig -i <gpu> -cgi <profile>:<start> -C`.
    /// The profile is an id, the start a memory slice; without one the driver chooses.
    pub fn create_instance(&self, gpu: usize, profile: u32, start: Option<u32>) -> Result<MigDevice, Error> {
        let topology = self.topology()?;
        let uuid = mig_uuid()?;
        let created = self.update(|state| {
            let (table, instances) = on(&topology, state, gpu)?;
            let known = table.profile(profile).ok_or(Refusal::NoProfile)?;
            let filling = table.compute_profiles(known).into_iter().find(|p| p.slices == known.slices);
            let filling = filling.ok_or(Refusal::NoProfile)?;
            let at = start.map(|start| Placement { start, size: known.size });
            let gpu_instance = instances.create(table, profile, at)?;
            let compute_instance = instances.create_compute(table, gpu_instance, filling.id, None, uuid.clone())?;
            Ok(MigDevice { gpu_instance, compute_instance, uuid })
        })?;
        created.map_err(Error::Mig)
    }

    /// Destroys a GPU instance and the compute instances in it: `nvidia-smi mig -dci`, then `-dgi`.
    pub fn destroy_instance(&self, gpu: usize, gpu_instance: u32) -> Result<(), Error> {
        let topology = self.topology()?;
        let destroyed = self.update(|state| {
            let (_, instances) = on(&topology, state, gpu)?;
            let inside: Vec<_> = instances.gpu_instance(gpu_instance).into_iter().flat_map(compute_ids).collect();
            inside.into_iter().try_for_each(|id| instances.destroy_compute(gpu_instance, id))?;
            instances.destroy(gpu_instance)
        })?;
        destroyed.map_err(Error::Mig)
    }

    /// Has processes use a MIG device, and no others; none lets it go.
    pub fn occupy(&self, gpu: usize, gpu_instance: u32, compute_instance: u32, pids: &[u32]) -> Result<(), Error> {
        let topology = self.topology()?;
        let occupied = self.update(|state| {
            let (_, instances) = on(&topology, state, gpu)?;
            let mut all = instances.gpu_instances.iter_mut().filter(|gi| gi.id == gpu_instance);
            let mut inside = all.next().into_iter().flat_map(|gi| &mut gi.compute_instances);
            let device = inside.find(|ci| ci.id == compute_instance).ok_or(Refusal::NoInstance)?;
            pids.clone_into(&mut device.pids);
            Ok(())
        })?;
        occupied.map_err(Error::Mig)
    }

    /// Resets a GPU, or does with it what a reset does: the pending MIG mode comes into force, all instances are gone,
    /// and with them what a reset mends.
    pub fn reset(&self, gpu: usize) -> Result<(), Error> {
        self.update(|state| {
            let gpu = state.gpus.entry(gpu).or_default();
            gpu.mig_enabled = gpu.mig_pending.take().or(gpu.mig_enabled);
            gpu.mig.gpu_instances.clear();
            gpu.row_remap_pending = false;
        })
    }

    /// What a new boot does to MIG: instances are gone everywhere, the mode stays on boards before Hopper only.
    pub fn forget_instances(&self) -> Result<(), Error> {
        let topology = self.topology()?;
        self.update(|state| {
            for (&index, gpu) in &mut state.gpus {
                let keeps = |facts| topology.board(facts).architecture < HOPPER;
                let mode = gpu.mig_pending.take().or(gpu.mig_enabled);
                gpu.mig_enabled = mode.filter(|_| topology.gpus.get(index).is_some_and(keeps));
                gpu.mig.gpu_instances.clear();
            }
        })
    }
}

/// A UUID for a new compute instance: `MIG-`, and sixteen random bytes that say they are of version 5, as real ones do.
pub fn mig_uuid() -> Result<String, Error> {
    let path = Path::new(KERNEL_UUID);
    let mut uuid = fs::read_to_string(path).map_err(file("read", path))?.trim().to_owned();
    uuid.replace_range(14..15, "5");
    Ok(format!("MIG-{uuid}"))
}

fn on<'a>(topology: &'a Topology, state: &'a mut State, gpu: usize) -> Result<(&'a Table, &'a mut Instances), Refusal> {
    let facts = topology.gpus.get(gpu).ok_or(Refusal::NotCapable)?;
    let table = topology.mig_table(topology.board(facts)).ok_or(Refusal::NotCapable)?;
    let state = state.gpus.entry(gpu).or_default();
    if state.mig_on(facts) { Ok((table, &mut state.mig)) } else { Err(Refusal::Off) }
}

fn compute_ids(instance: &GpuInstance) -> Vec<u32> {
    instance.compute_instances.iter().map(|ci| ci.id).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{CapabilityNodes, HostFiles};

    /// A machine with MIG mode on everywhere, and files that follow.
    fn machine(name: &str) -> (tempfile::TempDir, NodeDir) {
        let temp = tempfile::tempdir().unwrap();
        let mut topology = Topology::builtin(name).unwrap();
        topology.gpus.iter_mut().for_each(|gpu| gpu.mig_enabled = true);
        let node = NodeDir::create(temp.path().join("nvml"), &topology).unwrap();
        let [proc, dev, smi] = ["../proc", "../dev", "../smi"].map(PathBuf::from);
        let nodes = CapabilityNodes::Placeholders;
        node.set_host_files(&HostFiles { proc, dev, smi, major: 237, nodes }).unwrap();
        (temp, node)
    }

    fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> Refusal {
        match result {
            Err(Error::Mig(refusal)) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn files_come_and_go_with_the_instances() {
        let (temp, node) = machine("dgx-h100");
        let created = node.create_instance(1, 9, Some(4)).unwrap();
        assert_eq!((created.gpu_instance, created.compute_instance), (2, 0));
        let read = |path: &str| fs::read_to_string(temp.path().join(path)).unwrap();
        let gi = "proc/driver/nvidia/capabilities/gpu1/mig/gi2";
        let access = "DeviceFileMinor: 156\nDeviceFileMode: 292\nDeviceFileModify: 1\n";
        assert_eq!(read(&format!("{gi}/access")), access);
        assert_eq!(read(&format!("{gi}/ci0/access")), access.replace("156", "157"));
        assert_eq!(read("dev/nvidia-caps/nvidia-cap157"), "c 237:157\n");

        let listed = format!("  MIG 3g.40gb         Device  0: (UUID: {})\n", created.uuid);
        assert_eq!(read("smi/mig-1"), listed);

        node.destroy_instance(1, 2).unwrap();
        assert_eq!(read("smi/mig-1"), "");
        assert!(!temp.path().join(gi).exists());
        assert!(fs::read_dir(temp.path().join("dev/nvidia-caps")).unwrap().next().is_none());
        node.create_instance(1, 0, None).unwrap();
        node.reset(1).unwrap();
        assert!(node.state().unwrap().gpus[&1].mig.gpu_instances.is_empty());
        assert!(!temp.path().join("proc/driver/nvidia/capabilities/gpu1/mig/gi0").exists());
    }

    #[test]
    fn a_machine_whose_tools_make_no_nodes_has_access_files_alone() {
        let (temp, node) = machine("dgx-h100");
        let files = node.host_files().unwrap().unwrap();
        node.set_host_files(&HostFiles { nodes: CapabilityNodes::None, ..files }).unwrap();
        node.create_instance(0, 19, None).unwrap();
        assert!(temp.path().join("proc/driver/nvidia/capabilities/gpu0/mig/gi13/ci0/access").exists());
        assert!(!temp.path().join("dev/nvidia-caps/nvidia-cap120").exists());
    }

    #[test]
    fn the_administrator_is_refused_what_the_driver_refuses() {
        let (_temp, node) = machine("a100-and-t4");
        assert_eq!(refusal(node.create_instance(1, 19, None)), Refusal::NotCapable, "a T4");
        assert_eq!(refusal(node.switch_mig(1, true)), Refusal::NotCapable, "a T4");
        assert_eq!(refusal(node.create_instance(2, 19, None)), Refusal::NotCapable, "there is none");
        assert_eq!(refusal(node.create_instance(0, 47, None)), Refusal::NoProfile);
        assert_eq!(refusal(node.create_instance(0, 9, Some(2))), Refusal::NoPlacement);
        node.create_instance(0, 5, Some(0)).unwrap();
        assert_eq!(refusal(node.create_instance(0, 19, Some(3))), Refusal::NoRoom);
        assert_eq!(refusal(node.destroy_instance(0, 9)), Refusal::NoInstance);
        node.update(|state| state.gpus.get_mut(&0).unwrap().mig_enabled = Some(false)).unwrap();
        assert_eq!(refusal(node.create_instance(0, 19, None)), Refusal::Off);
        assert_eq!(node.state().unwrap().gpus[&0].mig.gpu_instances, [], "instances die with the mode");
    }

    #[test]
    fn hopper_switches_at_once_if_empty_and_ampere_with_a_reset() {
        let (_temp, node) = machine("dgx-h100");
        let created = node.create_instance(0, 19, None).unwrap();
        assert_eq!(refusal(node.switch_mig(0, false)), Refusal::InUse);
        node.destroy_instance(0, created.gpu_instance).unwrap();
        assert_eq!(node.switch_mig(0, false).unwrap(), Switched::Now);
        assert_eq!(refusal(node.create_instance(0, 19, None)), Refusal::Off);

        let (_temp, node) = machine("dgx-a100-40gb");
        node.create_instance(0, 19, None).unwrap();
        assert_eq!(node.switch_mig(0, false).unwrap(), Switched::AfterReset);
        node.create_instance(0, 19, None).unwrap();
        node.reset(0).unwrap();
        assert_eq!(refusal(node.create_instance(0, 19, None)), Refusal::Off);
    }

    #[test]
    fn only_ampere_remembers_its_mode_over_a_boot() {
        for (name, kept) in [("dgx-a100-40gb", Some(true)), ("dgx-h100", None)] {
            let (_temp, node) = machine(name);
            node.update(|state| state.gpus.entry(0).or_default().mig_enabled = Some(true)).unwrap();
            node.create_instance(0, 19, None).unwrap();
            node.forget_instances().unwrap();
            let gpu = &node.state().unwrap().gpus[&0];
            assert_eq!((gpu.mig_enabled, gpu.mig.gpu_instances.len()), (kept, 0), "{name}");
        }
    }

    #[test]
    fn every_instance_gets_a_uuid_of_its_own_of_version_five() {
        let (first, second) = (mig_uuid().unwrap(), mig_uuid().unwrap());
        assert_ne!(first, second);
        assert_eq!((first.len(), &first[..4], &first[18..19]), (40, "MIG-", "5"), "{first}");
    }
}
