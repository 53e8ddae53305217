//! What is written when the machine changes, and what is not written.

use fake_node::api::{ApiServer, Verb};
use serde_json::Value;
use topology::{Fault, Gpu, Topology};

use crate::node::Machine;
use crate::scene::{Scene, generation, name, readiness, slice_count, uid};

/// So many that they do not fit into one slice.
const MANY: u32 = 70;

/// A machine with [`MANY`] GPUs.
fn many_gpus() -> Topology {
    let mut topology = Topology::builtin("one-gpu").unwrap();
    let [gpu] = topology.gpus.clone().try_into().unwrap();
    let numbered = |number: u32| Gpu {
        uuid: format!("GPU-00000000-0000-0000-0000-{number:012}"),
        minor: number,
        bus_id: format!("0001:{number:02x}:00.0"),
        ..Gpu::clone(&gpu)
    };
    topology.gpus = (0..MANY).map(numbered).collect();
    topology
}

fn devices(slice: &Value) -> usize {
    slice["spec"]["devices"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_change_of_several_slices_is_a_new_generation_with_one_count() {
    let scene = Scene::of(Machine::of(many_gpus())).await;
    let _plugin = scene.ready_plugin().await;
    let slices = scene.node.slices();
    assert_eq!(slices.iter().map(devices).collect::<Vec<_>>(), [64, 6]);
    assert!(name(&slices[0]).starts_with("00000-") && name(&slices[1]).starts_with("00001-"));
    assert!(slices.iter().all(|slice| (generation(slice), slice_count(slice)) == (1, 2)));

    // Another GPU moves up into the first slice.
    scene.lose([0]);
    scene.until_devices(69).await;
    let moved = scene.node.slices();
    assert_eq!(moved.iter().map(devices).collect::<Vec<_>>(), [64, 5]);
    assert!(moved.iter().all(|slice| (generation(slice), slice_count(slice)) == (2, 2)), "{moved:?}");
    assert_eq!((scene.count(Verb::Create), scene.count(Verb::Update)), (2, 2));

    // The second slice goes, and what remains says that it is all.
    scene.lose(1..=5);
    let one = |_: &ApiServer| {
        let [slice] = scene.node.slices().try_into().ok()?;
        (slice_count(&slice) == 1 && devices(&slice) == 64).then_some(slice)
    };
    let slice = scene.until("one slice", one).await;
    assert_eq!(uid(&slice), uid(&slices[0]));
}

#[tokio::test]
async fn as_long_as_nothing_is_known_nothing_is_published_and_nothing_withdrawn() {
    let (scene, plugin) = Scene::ready("one-gpu").await;
    let slice = scene.slice();
    plugin.kill().await.unwrap();
    scene.api().forget_requests();

    let broken = Fault { call: "nvmlInit".to_owned(), code: Some(9), ..Fault::default() };
    scene.node.set_nvml_faults(vec![broken]);
    let mut plugin = scene.node.registered_plugin().await;
    plugin.wait_for_log("cannot read the GPUs").await.unwrap();
    let (ready, line) = readiness(&mut plugin).await;
    assert!(!ready && line == "wait slices: not published: the node's devices are not known yet", "{line}");
    assert_eq!(scene.slice(), slice);

    scene.node.set_nvml_faults(Vec::new());
    plugin.wait_until_ready().await.unwrap();
    assert_eq!(scene.slice(), slice);
    assert_eq!(scene.api().writes().len(), 0, "{:?}", scene.api().writes());
}

#[tokio::test]
async fn a_node_without_gpus_publishes_one_empty_slice() {
    let scene = Scene::new("one-gpu").await;
    scene.lose([0]);
    let _plugin = scene.ready_plugin().await;
    let slice = scene.slice();
    assert_eq!((generation(&slice), slice_count(&slice), devices(&slice)), (1, 1, 0));
}
