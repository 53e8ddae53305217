//! Machines with GPUs in parts: every example runs exactly where what it asks for is on offer, and every GPU is in the end as
//! it was found.

use fake_node::plugin::Plugin;
use topology::mig::GpuInstance;

use crate::examples::{self, Offer};
use crate::machines::run;
use crate::node::{TestNode, terminate, within};

/// `NVML_DEVICE_ARCH_HOPPER`: since then MIG mode is switched without a reset.
const HOPPER: u32 = 9;

/// Who divides GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// An administrator: the first GPU that can be divided, into a 4g at the front and a 3g behind it.
    Admin,
    /// The plugin: every GPU that can be divided without a reset, and the first of those that an administrator has to have
    /// put in MIG mode for it.
    Plugin,
}

/// One test each, so that they run side by side and one that fails does not hide the others.
macro_rules! divided {
    ($($test:ident: $name:literal, $by:expr;)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                works($name, $by).await;
            }
        )*
    };
}

divided! {
    an_a100_by_an_administrator: "one-gpu", By::Admin;
    eight_a100_by_an_administrator: "dgx-a100-40gb", By::Admin;
    eight_h100_by_an_administrator: "dgx-h100", By::Admin;
    eight_b200_by_an_administrator: "hgx-b200-one-gpu-out-of-nvlink", By::Admin;
    an_a100_by_the_plugin: "one-gpu", By::Plugin;
    eight_a100_by_the_plugin: "dgx-a100-40gb", By::Plugin;
    an_a100_beside_a_t4_by_the_plugin: "a100-and-t4", By::Plugin;
    eight_h100_by_the_plugin: "dgx-h100", By::Plugin;
    eight_h200_by_the_plugin: "hgx-h200", By::Plugin;
    eight_b200_by_the_plugin: "hgx-b200-one-gpu-out-of-nvlink", By::Plugin;
    four_gb200_by_the_plugin: "gb200-tray", By::Plugin;
    eight_l40s_that_cannot_be_divided: "l40s-8gpu", By::Plugin;
}

async fn works(name: &'static str, by: By) {
    let node = TestNode::start(name).await;
    let offer = divide(&node, by);
    let found = divisions(&node);
    let mut settings = node.plugin_settings();
    if by == By::Plugin {
        settings.args.push("--dynamic-mig=all".to_owned());
    }
    let mut plugin = Plugin::start(&settings).unwrap();
    plugin.wait_until_ready().await.unwrap();
    node.until_registered().await;
    for example in &examples::ALL {
        within(example.name, run(&node, &offer, example)).await;
        assert_eq!(divisions(&node), found, "{} leaves {name} otherwise than it found it", example.name);
    }
    terminate(plugin).await;
}

/// Does what an administrator has to do before the plugin starts, and answers what is on offer then.
fn divide(node: &TestNode, by: By) -> Offer<'_> {
    let machine = node.host.topology();
    let mut offer = Offer::whole(machine);
    let table = |gpu: usize| machine.mig_table(machine.board(&machine.gpus[gpu]));
    let resetless = |gpu: usize| machine.board(&machine.gpus[gpu]).architecture >= HOPPER;
    let mut divisible = (0..machine.gpus.len()).filter_map(|gpu| Some((gpu, table(gpu)?)));
    if by == By::Plugin && divisible.clone().any(|(gpu, _)| resetless(gpu)) {
        offer.parts = divisible.flat_map(|(gpu, table)| table.profiles.iter().map(move |part| (gpu, part))).collect();
        return offer;
    }
    let Some((first, table)) = divisible.next() else { return offer };
    node.host.node().update(|state| state.gpus.entry(first).or_default().mig_enabled = Some(true)).unwrap();
    offer.whole.retain(|gpu| *gpu != first);
    let mut parts: Vec<_> = table.profiles.iter().collect();
    if by == By::Admin {
        parts.retain(|part| matches!(part.slices, 3 | 4));
        for part in &parts {
            let start = if part.slices == 4 { 0 } else { 4 };
            node.host.node().create_instance(first, part.id, Some(start)).unwrap();
        }
    }
    offer.parts = parts.into_iter().map(|part| (first, part)).collect();
    offer
}

/// MIG mode and instances of each GPU, as the driver has them.
fn divisions(node: &TestNode) -> Vec<(bool, Vec<GpuInstance>)> {
    let state = node.host.node().state().unwrap();
    let gpus: &Vec<_> = &node.host.topology().gpus;
    let now = |index: usize| state.gpus.get(&index).cloned().unwrap_or_default();
    gpus.iter().enumerate().map(|(index, gpu)| (now(index).mig_on(gpu), now(index).mig.gpu_instances)).collect()
}
