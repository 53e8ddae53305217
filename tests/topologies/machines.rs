//! The plugin on each machine: what it publishes, and every example from its claim to its end.

use std::collections::BTreeSet;

use fake_node::allocator::AllocateError;
use fake_node::api::{Kind, Request, Verb};
use fake_node::node::{NodeError, Workload};
use fake_node::release::Release;
use topology::Topology;

use crate::examples::{self, Device, Example, Offer};
use crate::node::{self, TestNode, terminate, within};
use crate::{container, golden};

/// One test each, so that they run side by side and one that fails does not hide the others.
macro_rules! machines {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                works($name, Release::V1_36).await;
            }
        )*

        #[test]
        fn every_machine_is_tried() {
            assert_eq!(BTreeSet::from([$($name),*]), Topology::names().collect());
        }
    };
}

machines! {
    one_gpu: "one-gpu",
    dgx_a100_40gb: "dgx-a100-40gb",
    dgx_h100: "dgx-h100",
    hgx_h200: "hgx-h200",
    ec2_p5: "ec2-p5",
    gb200_tray: "gb200-tray",
    l40s_8gpu: "l40s-8gpu",
    a100_and_t4: "a100-and-t4",
    hgx_a100_4gpu: "hgx-a100-4gpu",
    a100_pcie_bridged_4gpu: "a100-pcie-bridged-4gpu",
    h100_pcie_bridged_8gpu: "h100-pcie-bridged-8gpu",
    hgx_b200_one_gpu_out_of_nvlink: "hgx-b200-one-gpu-out-of-nvlink",
}

#[tokio::test]
async fn the_slices_and_claims_are_the_same_on_every_release() {
    for release in Release::ALL {
        works("a100-pcie-bridged-4gpu", release).await;
    }
}

/// Publishes what the golden file says, and runs or refuses each example as the machine's links demand.
async fn works(name: &'static str, release: Release) {
    let node = node::Machine::new(name).release(release).start().await;
    let plugin = node.ready_plugin().await;
    node.until_registered().await;

    assert_eq!(version_of_writes(&node), newest_version(release), "{release}");
    golden::assert_published(name, node.slices());
    let offer = Offer::whole(node.host.topology());
    for example in examples::ALL.iter().filter(|example| example.since <= release) {
        within(example.name, run(&node, &offer, example)).await;
    }
    terminate(plugin).await;
}

/// The newest version of resource.k8s.io that a release serves.
fn newest_version(release: Release) -> &'static str {
    match release {
        Release::V1_32 => "v1beta1",
        Release::V1_33 => "v1beta2",
        _ => "v1",
    }
}

/// In which version slices were created.
fn version_of_writes(node: &TestNode) -> String {
    let creates = |request: &Request| request.kind == Some(Kind::ResourceSlice) && request.verb == Some(Verb::Create);
    let request = node.api.requests().into_iter().find(creates).unwrap();
    request.path.split('/').nth(3).unwrap().to_owned()
}

/// Runs an example from its claim to its end, or sees it stay pending, as what is on offer demands.
pub(crate) async fn run(node: &TestNode, offer: &Offer<'_>, example: &Example) {
    let what = format!("{} on {}", example.name, offer.machine.description);
    match node.run_prepared_pod(&example.manifest(), example.name).await {
        Ok(workload) => {
            let devices = allocated(node, offer.machine, &workload);
            assert!((example.is_satisfied_by)(offer, &devices), "{what} got {:?}", workload.devices());
            let container = container::inject(&node.host.cdi_dir(), cdi_ids(node, &workload));
            assert_eq!(container::nodes(&container), nodes(node, &workload, &devices), "{what}");
            node.end_pod(workload).await.unwrap();
        }
        Err(NodeError::Allocate(AllocateError::Unsatisfiable { .. })) => {
            assert!(!(example.can_run_on)(offer), "{what} got nothing");
        }
        Err(error) => panic!("{what}: {error:?}"),
    }
    assert!(node.specs().is_empty() && node.records().is_empty(), "{what} leaves something behind");
}

/// The devices that a pod's claims were allocated.
fn allocated<'a>(node: &TestNode, machine: &'a Topology, workload: &Workload) -> Vec<Device<'a>> {
    let published = node.devices();
    let device = |name: &String| {
        let device = published.iter().find(|device| device["name"] == **name).unwrap();
        let uuid = &device["attributes"]["parentUUID"]["string"];
        let gpu = machine.gpus.iter().position(|gpu| *uuid == *gpu.uuid).unwrap();
        let table = || machine.mig_table(machine.board(&machine.gpus[gpu])).unwrap();
        (gpu, place(name).map(|(profile, _)| table().profile(profile).unwrap()))
    };
    workload.devices().iter().map(device).collect()
}

/// The id of the profile and the first memory slice, with which names of parts end.
fn place(device: &str) -> Option<(u32, u32)> {
    let (_, part) = device.split_once("-mig-")?;
    let mut numbers = part.rsplit('-').map(|number| number.parse().unwrap());
    let (start, profile) = (numbers.next()?, numbers.next()?);
    Some((profile, start))
}

/// The device nodes that a container with these devices has.
fn nodes(node: &TestNode, workload: &Workload, devices: &[Device<'_>]) -> BTreeSet<container::Node> {
    let state = node.host.node().state().unwrap();
    let mut nodes = container::control_nodes();
    for ((gpu, _), name) in devices.iter().zip(workload.devices()) {
        let minor = node.host.topology().gpus[*gpu].minor;
        nodes.insert(container::gpu_node(minor));
        if let Some(place) = place(&name) {
            let mut instances = state.gpus[gpu].mig.gpu_instances.iter();
            let instance = instances.find(|instance| (instance.profile, instance.placement.start) == place);
            nodes.extend(container::capability_nodes(node.host.proc(), minor, instance.expect("the part exists")));
        }
    }
    nodes
}

/// What the container runtime is told to give to a pod.
fn cdi_ids(node: &TestNode, workload: &Workload) -> Vec<String> {
    workload.claim_uids().iter().flat_map(|uid| node.cdi_ids(uid)).collect()
}
