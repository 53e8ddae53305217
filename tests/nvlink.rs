//! The NVLink attributes while links die and return and fabrics train, from the mock NVML to the slices.
//!
//! One plugin looks at one machine again and again; nothing is ever started anew.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use fake_node::host::{Host, HostBuilder};
use gpu_dra_plugin::device::attribute::{self, Form, Value};
use gpu_dra_plugin::host::Roots;
use gpu_dra_plugin::inventory::{Current, Inventory, NameMap};
use gpu_dra_plugin::nvml::Session;
use gpu_dra_plugin::slice::{Pool, pool};
use tempfile::TempDir;
use topology::{Fabric, GpuState, LinkState, Topology};

const GROUPS: [&str; 3] = ["nvlinkDomain", "nvlinkClique", "nvlinkPair"];

/// `nvmlGpuFabricState_t`
const IN_PROGRESS: u8 = 2;
const COMPLETED: u8 = 3;

const NO_CLUSTER: &str = "00000000-0000-0000-0000-000000000000";

/// A machine, and a plugin that keeps looking at it.
struct Machine {
    host: Host,
    inventory: Inventory,
    current: Current,
    _directory: TempDir,
}

impl Machine {
    fn builtin(name: &str) -> Self {
        Self::new(Topology::builtin(name).unwrap())
    }

    fn new(topology: Topology) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Cargo puts the library of a dependency beside the test.
        let library = std::env::current_exe().unwrap().with_file_name("libmock_nvml.so");
        let host = HostBuilder::new(topology, library).build(directory.path().join("node")).unwrap();
        let [sys, proc, dev] = [host.sys(), host.proc(), host.dev()].map(PathBuf::from);
        let library = host.library();
        let session = Session::new(move || Some(library.clone()));
        let names = NameMap::load(directory.path()).unwrap();
        let inventory =
            Inventory::new(session, Roots { sys, proc, dev, other_devs: vec![], placeholders: true }, names);
        let current = inventory.views().current;
        Self { host, inventory, current, _directory: directory }
    }

    fn gpus(&self) -> usize {
        self.host.topology().gpus.len()
    }

    /// Changes some GPUs, by NVML index.
    fn update(&self, gpus: impl IntoIterator<Item = usize>, change: impl Fn(&mut GpuState)) {
        let change = |state: &mut topology::State| {
            gpus.into_iter().for_each(|gpu| change(state.gpus.entry(gpu).or_default()));
        };
        self.host.node().update(change).unwrap();
    }

    fn set_fabric(&self, gpus: impl IntoIterator<Item = usize>, fabric: &Fabric) {
        self.update(gpus, |gpu| gpu.fabric = Some(fabric.clone()));
    }

    /// Everything as the topology file has it.
    fn heal(&self) {
        self.host.node().update(|state| state.gpus.clear()).unwrap();
    }

    /// What is published after the next look.
    async fn pool(&mut self) -> Pool {
        assert!(self.inventory.look().await);
        pool("node-a", self.current.borrow().as_ref().unwrap())
    }

    /// Attributes by NVML index, also of GPUs that are not published.
    async fn attributes(&mut self) -> Vec<BTreeMap<&'static str, Value>> {
        assert!(self.inventory.look().await);
        let node = self.current.borrow().clone().unwrap();
        let all = attribute::of_node(&node, Form::Scalar);
        let of = |gpu: &topology::Gpu| {
            let at = node.gpus.iter().position(|known| known.uuid.as_str() == gpu.uuid).unwrap();
            all[at].values.clone()
        };
        self.host.topology().gpus.iter().map(of).collect()
    }

    /// The GPUs that share the value of an attribute with another, by NVML index.
    async fn groups(&mut self, attribute: &str) -> Vec<Vec<usize>> {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, attributes) in self.attributes().await.iter().enumerate() {
            groups.entry(format!("{:?}", attributes[attribute])).or_default().push(index);
        }
        let mut groups: Vec<_> = groups.into_values().filter(|group| group.len() > 1).collect();
        groups.sort();
        groups
    }

    /// No group attribute of this GPU has a value that another GPU has.
    async fn assert_alone(&mut self, gpu: usize, why: &str) {
        let attributes = self.attributes().await;
        for group in GROUPS {
            assert_eq!(attributes[gpu][group], attributes[gpu]["uuid"], "{why}: {group}");
            let others = attributes.iter().enumerate().filter(|(index, _)| *index != gpu);
            for (index, other) in others {
                assert_ne!(attributes[gpu][group], other[group], "{why}: {group} of {gpu} and {index}");
            }
        }
    }
}

/// A topology whose GPUs are others: the same machine once more.
fn twin(name: &str) -> Topology {
    let mut topology = Topology::builtin(name).unwrap();
    for gpu in &mut topology.gpus {
        gpu.uuid = gpu
            .uuid
            .chars()
            .map(|c| {
                if c == 'f' {
                    '0'
                } else if c == '0' {
                    'f'
                } else {
                    c
                }
            })
            .collect();
    }
    topology
}

fn values(attributes: &[BTreeMap<&'static str, Value>], attribute: &str) -> BTreeSet<String> {
    attributes.iter().map(|gpu| format!("{:?}", gpu[attribute])).collect()
}

#[tokio::test]
async fn gpus_leave_their_groups_when_links_die_and_join_them_when_links_return() {
    for name in ["dgx-a100-40gb", "dgx-h100", "a100-pcie-bridged-4gpu", "gb200-tray"] {
        let mut machine = Machine::builtin(name);
        let sound = machine.pool().await;
        let links = |count: u32| (0..count).map(|link| (link, LinkState::Down)).collect::<BTreeMap<_, _>>();

        machine.update([1], |gpu| gpu.links = links(36));
        machine.assert_alone(1, name).await;
        let dead = machine.attributes().await;
        assert_eq!((&dead[1]["nvlinkLinks"], &dead[1]["nvlinkVersion"]), (&Value::Int(0), &Value::Int(0)), "{name}");

        machine.update([1], |gpu| gpu.links = links(2));
        let fewer = machine.attributes().await;
        let (Value::Int(fewer), Value::Int(all)) = (&fewer[1]["nvlinkLinks"], &fewer[0]["nvlinkLinks"]) else {
            panic!("no number of links on {name}");
        };
        assert_eq!(fewer + 2, *all, "{name}");
        machine.heal();
        assert_eq!(machine.pool().await, sound, "{name}");
    }
}

#[tokio::test]
async fn a_gpu_with_some_of_its_links_stays_in_its_groups() {
    let mut machine = Machine::builtin("dgx-h100");
    let domain = machine.groups("nvlinkDomain").await;
    machine.update([3], |gpu| gpu.links = (0..17).map(|link| (link, LinkState::Down)).collect());
    assert_eq!(machine.groups("nvlinkDomain").await, domain);
    assert_eq!(machine.groups("nvlinkClique").await, domain);
}

#[tokio::test]
async fn a_fabric_that_trains_at_start_is_published_at_once_and_corrected_later() {
    for name in ["gb200-tray", "dgx-h100"] {
        let mut machine = Machine::builtin(name);
        let gpus = machine.gpus();
        let trained = machine.host.topology().gpus[0].fabric.clone().unwrap();
        let training = Fabric { state: IN_PROGRESS, ..trained.clone() };
        machine.set_fabric(0..gpus, &training);
        assert_eq!(machine.pool().await.slices[0].devices.len(), gpus, "{name}");
        for gpu in 0..gpus {
            machine.assert_alone(gpu, name).await;
        }

        machine.set_fabric(0..2, &trained);
        assert_eq!(
            machine.groups("nvlinkDomain").await,
            [[0, 1]],
            "{name}: links to a GPU that still trains carry nothing"
        );
        machine.heal();
        let all: Vec<_> = (0..gpus).collect();
        assert_eq!(machine.groups("nvlinkDomain").await, [&all[..]], "{name}");
        assert_eq!(machine.groups("nvlinkClique").await, [&all[..]], "{name}");
    }
}

#[tokio::test]
async fn a_fabric_gives_its_name_only_when_registration_is_complete_and_successful_and_has_an_identity() {
    let cluster = "00000001-0000-0000-0000-000000000001";
    let cases = [
        (0, 0, cluster, false),
        (1, 0, cluster, false),
        (IN_PROGRESS, 0, cluster, false),
        (COMPLETED, 999, cluster, false),
        (COMPLETED, 0, NO_CLUSTER, false),
        (COMPLETED, 0, cluster, true),
    ];
    let mut machine = Machine::builtin("gb200-tray");
    for (state, status, cluster_uuid, named) in cases {
        let fabric = Fabric { state, status, cluster_uuid: cluster_uuid.to_owned(), clique_id: 2 };
        machine.set_fabric(0..4, &fabric);
        let expected = Value::String(format!("{cluster}.2"));
        for attributes in machine.attributes().await {
            for group in ["nvlinkDomain", "nvlinkClique"] {
                assert_eq!(attributes[group] == expected, named, "{group} of {fabric:?}");
            }
        }
    }
}

#[tokio::test]
async fn two_nodes_share_a_value_only_on_a_fabric_that_spans_them() {
    for name in ["dgx-a100-40gb", "dgx-h100", "a100-pcie-bridged-4gpu", "l40s-8gpu", "gb200-tray"] {
        let one = Machine::builtin(name).attributes().await;
        let other = Machine::new(twin(name)).attributes().await;
        for group in GROUPS {
            let spans = name == "gb200-tray" && group != "nvlinkPair";
            let (one, other) = (values(&one, group), values(&other, group));
            assert_eq!(one.intersection(&other).count(), usize::from(spans), "{name}: {group}");
        }
    }
}

#[tokio::test]
async fn a_gpu_in_mig_mode_has_values_of_its_own() {
    for name in ["dgx-a100-40gb", "dgx-h100", "a100-pcie-bridged-4gpu", "gb200-tray"] {
        let mut machine = Machine::builtin(name);
        let sound = machine.pool().await;
        machine.update([1], |gpu| gpu.mig_enabled = Some(true));
        machine.assert_alone(1, name).await;
        machine.heal();
        assert_eq!(machine.pool().await, sound, "{name}");
    }
}
