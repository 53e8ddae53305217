//! The inventory against the mock NVML: every machine as its file describes it, and what goes wrong with NVML.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fake_node::host::{Host, HostBuilder};
use gpu_dra_plugin::device::attribute::{Form, Value};
use gpu_dra_plugin::device::{AddressingMode, Fabric, Gpu, LeftOut, Partitioning};
use gpu_dra_plugin::host::Roots;
use gpu_dra_plugin::inventory::{Discovery, Inventory, MigModes, NameMap, Views, discover};
use gpu_dra_plugin::nvml::gpu::ALL_EVERY;
use gpu_dra_plugin::nvml::{self, Code, Session};
use gpu_dra_plugin::slice::{Device, left_out, pool};
use tempfile::TempDir;
use topology::{Fault, LinkState, State, Topology};

/// Codes that no single query may turn into more than the loss of its fact.
const CODES: [u32; 7] = [3, 4, 15, 25, 28, 77, 999];

/// Longer than any call that ends at all.
const LONG: Duration = Duration::from_secs(60);

/// A machine, and the plugin's view of it.
struct Machine {
    host: Host,
    session: Session,
    /// The plugin's directory.
    plugin: TempDir,
    _directory: TempDir,
}

impl Machine {
    fn builtin(name: &str) -> Self {
        Self::new(Topology::builtin(name).unwrap())
    }

    fn new(topology: Topology) -> Self {
        Self::build(HostBuilder::new(topology, mock_library()))
    }

    fn without_symbols(name: &str, hidden: &'static [&str]) -> Self {
        let builder = HostBuilder::new(Topology::builtin(name).unwrap(), mock_library());
        Self::build(builder.transform_library(|library| mock_nvml::hide::hide_symbols(library, hidden).unwrap()))
    }

    fn build(builder: HostBuilder) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let host = builder.build(directory.path().join("node")).unwrap();
        let library = host.library();
        let session = Session::new(move || Some(library.clone()));
        Self { host, session, plugin: tempfile::tempdir().unwrap(), _directory: directory }
    }

    fn roots(&self) -> Roots {
        let [sys, proc, dev] = [self.host.sys(), self.host.proc(), self.host.dev()].map(PathBuf::from);
        Roots { sys, proc, dev, other_devs: vec![], placeholders: true }
    }

    fn names(&self) -> NameMap {
        NameMap::load(self.plugin.path()).unwrap()
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        self.host.node().update(change).unwrap();
    }

    fn fail(&self, faults: Vec<Fault>) {
        self.update(|state| state.faults = faults);
    }

    /// A first look.
    async fn try_discover(&self) -> Result<Discovery, nvml::Error> {
        let mut discovery = discover(&self.session, &self.roots(), &mut self.names(), &mut Arc::default()).await?;
        discovery.left_out.extend(left_out(Form::Scalar, &discovery.node));
        Ok(discovery)
    }

    async fn discover(&self) -> Discovery {
        self.try_discover().await.unwrap()
    }

    fn inventory(&self) -> (Inventory, Views) {
        let inventory = Inventory::new(self.session.clone(), self.roots(), self.names());
        let views = inventory.views();
        (inventory, views)
    }
}

/// Cargo puts the library of a dependency beside the test.
fn mock_library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libmock_nvml.so")
}

fn fault(call: &str, gpu: Option<usize>, code: u32) -> Fault {
    Fault { call: call.to_owned(), gpu, code: Some(code), ..Fault::default() }
}

fn by_uuid<'a>(discovery: &'a Discovery, uuid: &str) -> &'a Gpu {
    discovery.node.gpus.iter().find(|gpu| gpu.uuid.as_str() == uuid).unwrap()
}

fn devices(discovery: &Discovery) -> Vec<Device> {
    pool("node-a", &discovery.node).slices.into_iter().flat_map(|slice| slice.devices).collect()
}

/// Which devices share the value of an attribute.
fn groups(devices: &[Device], attribute: &str) -> Vec<Vec<String>> {
    let mut groups: Vec<(Value, Vec<String>)> = Vec::new();
    for device in devices {
        let value = &device.attributes[attribute];
        match groups.iter_mut().find(|(known, _)| known == value) {
            Some((_, names)) => names.push(device.name.to_string()),
            None => groups.push((value.clone(), vec![device.name.to_string()])),
        }
    }
    groups.into_iter().map(|(_, names)| names).collect()
}

fn numbers(groups: &[&[u32]]) -> Vec<Vec<String>> {
    groups.iter().map(|group| group.iter().map(|number| format!("gpu-{number}")).collect()).collect()
}

#[tokio::test]
async fn every_machine_is_found_as_its_file_describes_it() {
    for name in Topology::names() {
        let machine = Machine::builtin(name);
        let topology = machine.host.topology();
        let discovery = machine.discover().await;
        assert_eq!(discovery.node.driver.version.as_deref(), Some(topology.system.driver_version.as_str()), "{name}");
        assert_eq!(discovery.node.driver.cuda_version, Some(topology.system.cuda_version), "{name}");
        assert_eq!(discovery.node.gpus.len(), topology.gpus.len(), "{name}");
        for described in &topology.gpus {
            let board = topology.board(described);
            let gpu = by_uuid(&discovery, &described.uuid);
            assert_eq!(gpu.name.as_str(), format!("gpu-{}", described.minor), "{name}");
            assert_eq!((gpu.minor, gpu.pci.to_string()), (described.minor, described.bus_id.clone()), "{name}");
            assert_eq!(gpu.product_name.as_deref(), Some(board.product_name.as_str()), "{name}");
            assert_eq!(gpu.memory_bytes, Some(board.memory_mib << 20), "{name}");
            let capability = board.cuda_compute_capability.map(|part| u32::try_from(part).unwrap());
            assert_eq!(gpu.cuda_compute_capability, Some(capability.into()), "{name}");
            let mode = board.addressing_mode.map(|mode| match mode {
                topology::AddressingMode::None => AddressingMode::None,
                topology::AddressingMode::Hmm => AddressingMode::Hmm,
                topology::AddressingMode::Ats => AddressingMode::Ats,
            });
            assert_eq!(gpu.addressing_mode, mode, "{name}");
            assert_eq!((gpu.mig.capable, gpu.mig.enabled), (board.mig_capable, described.mig_enabled), "{name}");
            let up: u32 = described.nvlinks.iter().filter(|group| group.active).map(|group| group.count).sum();
            assert_eq!(gpu.links.len(), up as usize, "{name}");
            assert!(gpu.links.iter().all(|link| link.version == described.nvlink_version), "{name}");
            assert_eq!(gpu.place.pcie_root, described.pcie_root, "{name}");
            assert_eq!(gpu.place.numa_node, u32::try_from(described.numa_node).ok(), "{name}");
            assert_eq!(gpu.place.iommu_group, described.iommu_group, "{name}");
            assert!(gpu.brand.is_some() && gpu.architecture.is_some(), "{name}");
        }
        let hidden = topology.gpus.iter().filter(|gpu| gpu.pcie_root.is_none()).count();
        assert_eq!(discovery.left_out.len(), hidden, "{name}: {:?}", discovery.left_out);
        for device in devices(&discovery) {
            assert_ne!(device.attributes["model"], Value::String(String::new()), "{name}");
            assert!(device.capacity.contains_key("memory"), "{name}");
        }
    }
}

#[tokio::test]
async fn devices_that_share_an_nvlink_attribute_are_those_that_links_join() {
    let all = |count: u32| vec![(0..count).map(|number| format!("gpu-{number}")).collect::<Vec<_>>()];
    let alone = |count: u32| (0..count).map(|number| vec![format!("gpu-{number}")]).collect::<Vec<_>>();
    let neighbours = numbers(&[&[0, 1], &[2, 3], &[4, 5], &[6, 7]]);
    let bridged = numbers(&[&[0, 5], &[1, 2], &[3, 4], &[6, 7]]);
    let without_2 = numbers(&[&[0, 1, 3, 4, 5, 6, 7], &[2]]);
    let cases = [
        ("one-gpu", alone(1), alone(1)),
        ("dgx-a100-40gb", all(8), neighbours.clone()),
        ("dgx-h100", all(8), neighbours.clone()),
        ("hgx-h200", all(8), neighbours.clone()),
        ("ec2-p5", all(8), neighbours),
        ("gb200-tray", all(4), numbers(&[&[0, 1], &[2, 3]])),
        ("l40s-8gpu", alone(8), alone(8)),
        ("a100-and-t4", alone(2), alone(2)),
        ("hgx-a100-4gpu", all(4), numbers(&[&[0, 1], &[2, 3]])),
        ("a100-pcie-bridged-4gpu", numbers(&[&[0, 1], &[2, 3]]), numbers(&[&[0, 1], &[2, 3]])),
        ("h100-pcie-bridged-8gpu", bridged.clone(), bridged),
        ("hgx-b200-one-gpu-out-of-nvlink", without_2, numbers(&[&[0, 1], &[2], &[3], &[4, 5], &[6, 7]])),
    ];
    assert_eq!(cases.iter().map(|case| case.0).collect::<BTreeSet<_>>(), Topology::names().collect());
    for (name, domains, pairs) in cases {
        let devices = devices(&Machine::builtin(name).discover().await);
        assert_eq!(groups(&devices, "nvlinkDomain"), domains, "{name}");
        assert_eq!(groups(&devices, "nvlinkClique"), domains, "{name}");
        assert_eq!(groups(&devices, "nvlinkPair"), pairs, "{name}");
    }
}

#[tokio::test]
async fn one_failing_query_costs_its_fact_and_says_so() {
    type Lose = fn(&mut Gpu);
    let machine = Machine::builtin("dgx-h100");
    let healthy = machine.discover().await;
    let facts: [(&str, Lose); 5] = [
        ("nvmlDeviceGetName", |gpu| gpu.product_name = None),
        ("nvmlDeviceGetBrand", |gpu| gpu.brand = None),
        ("nvmlDeviceGetArchitecture", |gpu| gpu.architecture = None),
        ("nvmlDeviceGetCudaComputeCapability", |gpu| gpu.cuda_compute_capability = None),
        // MIG profiles are named after it.
        ("nvmlDeviceGetMemoryInfo", |gpu| (gpu.memory_bytes, gpu.mig.profiles) = (None, Vec::new())),
    ];
    for (call, lose) in facts {
        for code in CODES {
            machine.fail(vec![fault(call, Some(3), code)]);
            let discovery = machine.discover().await;
            let mut expected = healthy.node.clone();
            lose(&mut expected.gpus[3]);
            assert_eq!(discovery.node, expected, "{call} answers {code}");
            let [LeftOut { what, why }] = &discovery.left_out[..] else { panic!("{:?}", discovery.left_out) };
            assert!(what.ends_with(expected.gpus[3].uuid.as_str()), "{what}");
            assert!(why.contains(call) && why.contains("GPU 3") && why.contains(&code.to_string()), "{why}");
            assert_eq!(devices(&discovery).len(), 8);
        }
    }
}

#[tokio::test]
async fn a_failing_query_of_a_feature_is_told_and_a_missing_feature_is_not() {
    let machine = Machine::builtin("dgx-h100");
    for call in ["AddressingMode", "GpuFabricInfo", "NvLinkState", "NvLinkRemoteDeviceType"] {
        for code in CODES {
            let call = format!("nvmlDeviceGet{call}");
            machine.fail(vec![fault(&call, Some(3), code), fault(&format!("{call}V"), Some(3), code)]);
            let discovery = machine.discover().await;
            assert_eq!(discovery.node.gpus.len(), 8, "{call} answers {code}");
            let absent = code == 3 && !call.ends_with("Type");
            assert_eq!(
                discovery.left_out.len(),
                usize::from(!absent),
                "{call} answers {code}: {:?}",
                discovery.left_out
            );
        }
    }
}

#[tokio::test]
async fn a_gpu_without_identity_is_left_out_and_the_others_stay() {
    let machine = Machine::builtin("dgx-h100");
    for call in ["HandleByIndex", "UUID", "MinorNumber", "PciInfo"] {
        for code in CODES {
            machine.fail(vec![fault(&format!("nvmlDeviceGet{call}"), Some(3), code)]);
            let discovery = machine.discover().await;
            let names: Vec<_> = devices(&discovery).iter().map(|device| device.name.to_string()).collect();
            assert_eq!(names, ["gpu-0", "gpu-1", "gpu-2", "gpu-4", "gpu-5", "gpu-6", "gpu-7"], "{call} answers {code}");
            let [LeftOut { what, why }] = &discovery.left_out[..] else { panic!("{:?}", discovery.left_out) };
            assert_eq!(what, "GPU 3");
            assert!(why.contains(call), "{why}");
        }
    }
}

#[tokio::test]
async fn a_gpu_that_is_lost_before_or_during_the_look_is_left_out() {
    let machine = Machine::builtin("dgx-h100");
    machine.update(|state| state.gpus.entry(5).or_default().lost = true);
    let discovery = machine.discover().await;
    assert_eq!(discovery.node.gpus.len(), 7);
    assert!(discovery.left_out[0].why.contains("GPU_IS_LOST (15)"), "{:?}", discovery.left_out);

    machine.update(|state| state.gpus.clear());
    let lost = Fault { after: 3, ..fault("*", Some(5), 15) };
    machine.fail(vec![lost]);
    let discovery = machine.discover().await;
    assert_eq!(discovery.node.gpus.len(), 7);
    assert_eq!(discovery.left_out.len(), 1, "facts of a GPU that is not published are no news");
}

#[tokio::test]
async fn values_that_this_program_does_not_know_cost_their_attribute() {
    let mut topology = Topology::builtin("dgx-h100").unwrap();
    for board in topology.boards.values_mut() {
        board.brand = 18;
        board.architecture = 77;
        board.product_name = format!("NVIDIA Graphics Device {}", "x".repeat(96));
    }
    let machine = Machine::new(topology);
    let discovery = machine.discover().await;
    for device in devices(&discovery) {
        for name in ["brand", "architecture", "model"] {
            assert_eq!(device.attributes[name], Value::String(String::new()));
        }
        assert_eq!(
            device.attributes["nvlinkVersion"],
            Value::Int(4),
            "the links say it where the architecture does not"
        );
        let Value::String(name) = &device.attributes["productName"] else { panic!("not a string") };
        assert!(name.len() == 64 && name.starts_with("NVIDIA Graphics Device"));
    }
    assert_eq!(discovery.left_out.len(), 8 * 3, "brand, architecture and the end of the name of each GPU");
}

#[tokio::test]
async fn functions_that_an_older_driver_lacks_are_done_without() {
    let hidden = &[
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlSystemGetCudaDriverVersion_v2",
    ];
    let machine = Machine::without_symbols("gb200-tray", hidden);
    let discovery = machine.discover().await;
    assert_eq!(discovery.left_out, []);
    assert_eq!(discovery.node.driver.cuda_version, Some(machine.host.topology().system.cuda_version));
    for gpu in &discovery.node.gpus {
        assert_eq!(gpu.addressing_mode, None);
        assert!(gpu.memory_bytes.is_some());
        let fabric = Fabric { cluster: "00000001-0000-0000-0000-000000000001".to_owned(), clique: 2 };
        assert_eq!(gpu.fabric, Some(fabric));
    }
}

#[tokio::test]
async fn a_library_without_shutdown_is_refused_rather_than_panicked_on() {
    let machine = Machine::without_symbols("one-gpu", &["nvmlShutdown"]);
    let error = machine.try_discover().await.unwrap_err();
    assert!(matches!(&error, nvml::Error::Library { reason, .. } if reason == "it has no nvmlShutdown"), "{error}");
}

#[tokio::test]
async fn a_machine_whose_gpus_are_all_gone_publishes_one_empty_slice() {
    let machine = Machine::builtin("dgx-h100");
    machine.update(|state| (0..8).for_each(|gpu| state.gpus.entry(gpu).or_default().absent = true));
    let discovery = machine.discover().await;
    assert_eq!(discovery.node.gpus, []);
    assert_eq!(pool("node-a", &discovery.node).slices.len(), 1);
}

#[tokio::test]
async fn a_driver_that_is_not_loaded_yet_is_tried_again() {
    let machine = Machine::builtin("dgx-h100");
    let (mut inventory, Views { current, mut failure, .. }) = machine.inventory();
    machine.fail(vec![fault("nvmlInit", None, 9)]);
    assert!(!inventory.look().await);
    assert!(current.borrow().is_none() && failure.borrow().as_ref().unwrap().contains("DRIVER_NOT_LOADED (9)"));
    machine.fail(vec![]);
    assert!(inventory.look().await);
    assert_eq!(current.borrow().as_ref().unwrap().gpus.len(), 8);
    assert_eq!(*failure.borrow_and_update(), None);
    assert!(inventory.look().await);
    assert!(!failure.has_changed().unwrap(), "a look that succeeds as the last one did is no news");
}

#[tokio::test]
async fn where_a_link_leads_is_asked_once_for_as_long_as_it_is_up() {
    let machine = Machine::builtin("dgx-h100");
    let (mut inventory, Views { current, .. }) = machine.inventory();
    assert!(inventory.look().await);
    let first = current.borrow().clone();
    let log = machine.host.node().calls_path();
    fs::write(&log, "").unwrap();
    let asked = || fs::read_to_string(&log).unwrap().matches("nvmlDeviceGetNvLinkRemoteDeviceType").count();
    assert!(inventory.look().await);
    assert_eq!((asked(), current.borrow().clone()), (0, first.clone()));

    machine.update(|state| state.gpus.entry(0).or_default().links = [(3, LinkState::Down)].into());
    assert!(inventory.look().await);
    machine.update(|state| state.gpus.clear());
    assert!(inventory.look().await);
    assert_eq!((asked(), current.borrow().clone()), (1, first));
}

#[tokio::test]
async fn what_lasts_is_asked_for_now_and_then_and_after_anything_that_went_wrong() {
    let lasting = [
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetName 0",
        "nvmlDeviceGetBrand 0",
        "nvmlDeviceGetArchitecture 0",
        "nvmlDeviceGetCudaComputeCapability 0",
        "nvmlDeviceGetAddressingMode 0",
    ];
    let changing = ["nvmlDeviceGetUUID 0", "nvmlDeviceGetMemoryInfo_v2 0", "nvmlDeviceGetMigMode 0"];
    let mut machine = Machine::builtin("dgx-h100");
    let (mut inventory, Views { current, .. }) = machine.inventory();
    let log = machine.host.node().calls_path();
    // Whether a look that succeeds, or not, asks for all that lasts; none asks for a part of it.
    let mut asks = async |succeeds| {
        fs::write(&log, "").unwrap();
        assert_eq!(inventory.look().await, succeeds);
        let log = fs::read_to_string(&log).unwrap();
        let asked = |calls: &[&str]| calls.iter().filter(|call| log.lines().any(|line| line == **call)).count();
        assert_eq!(asked(&changing), if succeeds { changing.len() } else { 0 });
        match asked(&lasting) {
            0 => false,
            all if all == lasting.len() => true,
            _ => panic!("{log}"),
        }
    };
    assert!(asks(true).await);
    let first = current.borrow().clone();
    for _ in 0..2 {
        for _ in 1..ALL_EVERY {
            assert!(!asks(true).await);
        }
        assert!(asks(true).await);
    }
    assert!(!asks(true).await);

    machine.fail(vec![fault("nvmlDeviceGetMigMode", Some(3), 999)]);
    assert!(!asks(true).await);
    machine.fail(vec![]);
    assert!(asks(true).await, "a query has failed");
    assert!(!asks(true).await);

    machine.fail(vec![fault("nvmlDeviceGetCount", None, 999)]);
    assert!(!asks(false).await);
    machine.fail(vec![]);
    assert!(asks(true).await, "a look has failed");
    assert!(!asks(true).await);
    assert_eq!(*current.borrow(), first);

    machine.host.upgrade_driver("590.44.01").unwrap();
    assert!(!asks(false).await);
    assert!(asks(true).await, "it is another driver's");
    assert!(!asks(true).await);
}

#[tokio::test]
async fn numbers_that_are_no_links_are_asked_about_no_more_often_than_what_lasts() {
    for (name, links) in [("dgx-h100", 8 * 18), ("one-gpu", 12), ("l40s-8gpu", 0)] {
        let machine = Machine::builtin(name);
        let (mut inventory, _) = machine.inventory();
        let log = machine.host.node().calls_path();
        let mut asked = Vec::new();
        for _ in 0..=ALL_EVERY {
            fs::write(&log, "").unwrap();
            assert!(inventory.look().await);
            asked.push(fs::read_to_string(&log).unwrap().matches("nvmlDeviceGetNvLinkState").count());
        }
        let all = 36 * machine.host.topology().gpus.len();
        assert_eq!((asked[0], asked[ALL_EVERY as usize]), (all, all), "{name}");
        assert!(asked[1..ALL_EVERY as usize].iter().all(|count| *count == links), "{name}: {asked:?}");
    }
}

#[tokio::test]
async fn an_instance_that_an_administrator_makes_is_news_and_a_gpu_of_the_plugin_stays_whole() {
    let machine = Machine::builtin("dgx-h100");
    let (mut inventory, Views { current, .. }) = machine.inventory();
    let modes = MigModes::of(machine.plugin.path(), machine.host.boot_id().unwrap());
    inventory.partitions("h100".parse().unwrap(), modes.clone());
    let node = || current.borrow().clone().unwrap();
    assert!(inventory.look().await);
    assert!(node().gpus.iter().all(|gpu| gpu.partitioning == Partitioning::Dynamic { whole: true }));

    let uuid = &machine.host.topology().gpus[2].uuid;
    let of_2 = || node().gpus.iter().find(|gpu| gpu.uuid.as_str() == uuid).cloned().unwrap();
    machine.host.node().switch_mig(2, true).unwrap();
    assert!(inventory.look().await);
    assert_eq!(of_2().partitioning, Partitioning::Dynamic { whole: false }, "an administrator's");
    modes.add(&of_2().uuid).unwrap();
    let made = machine.host.node().create_instance(2, 19, Some(3)).unwrap();
    assert!(inventory.look().await);
    assert_eq!(of_2().partitioning, Partitioning::Dynamic { whole: true });
    assert_eq!(of_2().mig.instances[0].compute[0].uuid.as_str(), made.uuid);
}

#[tokio::test]
async fn an_upgraded_driver_is_opened_anew_without_a_restart() {
    let mut machine = Machine::builtin("dgx-h100");
    let before = machine.discover().await;
    machine.host.upgrade_driver("590.44.01").unwrap();
    let stale = machine.try_discover().await.unwrap_err();
    assert_eq!(stale.code(), Some(Code::LIB_RM_VERSION_MISMATCH));
    let after = machine.discover().await;
    assert_eq!(after.node.driver.version.as_deref(), Some("590.44.01"));
    assert_eq!(after.node.gpus, before.node.gpus);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_hang_take_a_bounded_number_of_threads_and_hold_nobody_up() {
    let machine = Machine::builtin("one-gpu");
    machine.discover().await;
    let log = machine.host.node().calls_path();
    fs::write(&log, "").unwrap();
    let hang = Fault { call: "nvmlDeviceGetCount".to_owned(), hang: true, ..Fault::default() };
    machine.fail(vec![hang]);
    let count = |within| machine.session.call("count the GPUs", within, |nvml| Ok(nvml.device_count().unwrap_or(0)));
    for _ in 0..20 {
        let error = count(Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(error, nvml::Error::Deadline { .. }), "{error}");
    }
    // Each thread that hangs has entered it once.
    let asked = fs::read_to_string(&log).unwrap().matches("nvmlDeviceGetCount").count();
    assert_eq!(asked, 8);
    machine.fail(vec![]);
    assert_eq!(count(LONG).await.unwrap(), 1, "threads that come back are used again");
}

#[tokio::test]
async fn a_call_that_panics_is_an_error_and_takes_nothing_with_it() {
    let machine = Machine::builtin("one-gpu");
    let error = machine.session.call("count the GPUs", LONG, |_| -> Result<(), _> { panic!("a defect") }).await;
    assert!(matches!(error, Err(nvml::Error::Lost { act: "count the GPUs", .. })));
    assert_eq!(machine.discover().await.node.gpus.len(), 1);
}

#[tokio::test]
async fn what_changes_is_published_once_and_a_failed_look_changes_nothing() {
    let machine = Machine::builtin("dgx-a100-40gb");
    let (mut inventory, Views { mut current, .. }) = machine.inventory();
    assert!(inventory.look().await);
    assert!(current.has_changed().unwrap());
    let before = current.borrow_and_update().clone();
    assert!(inventory.look().await);
    assert!(!current.has_changed().unwrap(), "an unchanged machine is no news");

    machine.fail(vec![fault("nvmlDeviceGetCount", None, 999)]);
    assert!(!inventory.look().await);
    assert!(!current.has_changed().unwrap() && *current.borrow() == before, "not known is not none");

    machine.fail(vec![]);
    let links = (0..12).map(|link| (link, LinkState::Down)).collect();
    machine.update(|state| state.gpus.entry(0).or_default().links = links);
    assert!(inventory.look().await);
    let after = current.borrow_and_update().clone().unwrap();
    assert_eq!(after.gpus.iter().filter(|gpu| gpu.links.is_empty()).count(), 1);
}

#[tokio::test]
async fn a_query_that_fails_now_and_then_changes_nothing() {
    for name in ["dgx-h100", "a100-pcie-bridged-4gpu", "gb200-tray"] {
        let machine = Machine::builtin(name);
        let (mut inventory, Views { mut current, .. }) = machine.inventory();
        assert!(inventory.look().await);
        current.mark_unchanged();
        let calls = [
            "SystemGetDriverVersion",
            "SystemGetCudaDriverVersion",
            "DeviceGetName",
            "DeviceGetBrand",
            "DeviceGetArchitecture",
            "DeviceGetCudaComputeCapability",
            "DeviceGetMemoryInfo",
            "DeviceGetAddressingMode",
            "DeviceGetMigMode",
            "DeviceGetGpuFabricInfo",
            "DeviceGetGpuFabricInfoV",
            "DeviceGetNvLinkState",
            "DeviceGetNvLinkVersion",
            "DeviceGetNvLinkRemoteDeviceType",
            "DeviceGetNvLinkRemotePciInfo",
        ];
        for code in [15, 25, 999] {
            let failing: Vec<_> = calls.iter().map(|call| fault(&format!("nvml{call}"), None, code)).collect();
            machine.fail(failing);
            // The second failing look knows no more than the first left to it.
            for _ in 0..2 {
                assert!(inventory.look().await);
                assert!(!current.has_changed().unwrap(), "{name}: {code} changes {:?}", current.borrow());
            }
            machine.fail(vec![]);
            assert!(inventory.look().await);
            assert!(!current.has_changed().unwrap(), "{name}: the end of {code} is a change");
        }
    }
}

#[tokio::test]
async fn nodes_and_places_that_cannot_be_looked_at_now_stay_what_they_were() {
    let machine = Machine::builtin("dgx-a100-40gb");
    let (mut inventory, Views { mut current, .. }) = machine.inventory();
    assert!(inventory.look().await);
    current.mark_unchanged();
    // Without the table of majors no node can be looked at, without the bus no place.
    let hidden = [machine.host.proc().join("devices"), machine.host.sys().join("bus/pci/devices")];
    for path in &hidden {
        fs::rename(path, path.with_extension("hidden")).unwrap();
    }
    assert!(inventory.look().await);
    assert!(!current.has_changed().unwrap(), "{:?}", current.borrow());
    for path in &hidden {
        fs::rename(path.with_extension("hidden"), path).unwrap();
    }
    machine.host.lose_node(3).unwrap();
    assert!(inventory.look().await);
    assert_eq!(current.borrow().as_ref().unwrap().gpus.iter().filter(|gpu| gpu.has_node).count(), 7);
}

#[tokio::test]
async fn until_there_is_any_device_node_nothing_is_known() {
    let machine = Machine::builtin("hgx-a100-4gpu");
    let count = machine.host.topology().gpus.len();
    for minor in 0..count {
        machine.host.lose_node(minor.try_into().unwrap()).unwrap();
    }
    let (mut inventory, Views { current, failure, .. }) = machine.inventory();
    assert!(!inventory.look().await);
    assert!(current.borrow().is_none());
    assert_eq!(failure.borrow().as_deref(), Some("no GPU has a device node yet"));
}

#[tokio::test]
async fn a_link_that_cannot_be_read_stays_what_it_was_and_one_that_goes_down_does_not() {
    let machine = Machine::builtin("a100-pcie-bridged-4gpu");
    let (mut inventory, Views { current, .. }) = machine.inventory();
    let links = || current.borrow().as_ref().unwrap().gpus.iter().map(|gpu| gpu.links.len()).collect::<Vec<_>>();
    machine.update(|state| state.gpus.entry(0).or_default().links = [(2, LinkState::Down)].into());
    assert!(inventory.look().await);
    assert_eq!(links(), [11, 12, 12, 12]);

    // Links 1 and 2 of the first GPU fail, of which one is down; link 3 goes down meanwhile.
    let state = fault("nvmlDeviceGetNvLinkState", Some(0), 999);
    machine.fail(vec![Fault { after: 1, times: Some(2), ..state }]);
    let down = [(2, LinkState::Down), (3, LinkState::Down)];
    machine.update(|state| state.gpus.entry(0).or_default().links = down.into());
    assert!(inventory.look().await);
    assert_eq!(links(), [10, 12, 12, 12]);
}

#[tokio::test]
async fn a_fact_that_is_no_longer_supported_goes() {
    let machine = Machine::builtin("dgx-h100");
    let (mut inventory, Views { current, .. }) = machine.inventory();
    assert!(inventory.look().await);
    machine.fail(vec![fault("nvmlDeviceGetBrand", Some(3), 3), fault("nvmlDeviceGetAddressingMode", Some(3), 3)]);
    for _ in 0..ALL_EVERY {
        assert!(inventory.look().await);
    }
    let gpu = current.borrow().as_ref().unwrap().gpus[3].clone();
    assert_eq!((gpu.brand, gpu.addressing_mode), (None, None));
}

#[tokio::test]
async fn a_fabric_that_finishes_training_changes_the_domain() {
    let machine = Machine::builtin("gb200-tray");
    let described = machine.host.topology().gpus[1].fabric.clone().unwrap();
    let training = topology::Fabric { state: 2, ..described };
    machine.update(|state| state.gpus.entry(1).or_default().fabric = Some(training));
    let domains = |discovery: &Discovery| groups(&devices(discovery), "nvlinkDomain");
    assert_eq!(domains(&machine.discover().await), numbers(&[&[0, 2, 3], &[1]]));
    machine.update(|state| state.gpus.clear());
    assert_eq!(domains(&machine.discover().await), numbers(&[&[0, 1, 2, 3]]));
}

#[tokio::test]
async fn a_gpu_in_mig_mode_is_known_but_not_offered() {
    let machine = Machine::builtin("dgx-h100");
    machine.update(|state| state.gpus.entry(2).or_default().mig_enabled = Some(true));
    let discovery = machine.discover().await;
    assert_eq!(discovery.node.gpus.len(), 8);
    assert!(!devices(&discovery).iter().any(|device| device.name.as_str() == "gpu-2"));
    let [LeftOut { what, why }] = &discovery.left_out[..] else { panic!("{:?}", discovery.left_out) };
    assert!(what.starts_with("gpu-2 (GPU-") && why.contains("MIG mode"), "{what}: {why}");
}

#[tokio::test]
async fn a_gpu_whose_mig_mode_was_never_read_is_left_out() {
    let machine = Machine::builtin("dgx-h100");
    machine.update(|state| state.gpus.entry(2).or_default().mig_enabled = Some(true));
    for code in CODES {
        machine.fail(vec![fault("nvmlDeviceGetMigMode", Some(2), code)]);
        let discovery = machine.discover().await;
        if code == 3 {
            assert_eq!((discovery.node.gpus.len(), discovery.left_out), (8, vec![]), "a GPU without MIG is whole");
            continue;
        }
        assert_eq!(discovery.node.gpus.len(), 7, "{code}");
        let [LeftOut { what, why }] = &discovery.left_out[..] else { panic!("{:?}", discovery.left_out) };
        assert!(what == "GPU 2" && why.contains("nvmlDeviceGetMigMode"), "{what}: {why}");
    }
    let machine = Machine::without_symbols("one-gpu", &["nvmlDeviceGetMigMode"]);
    assert_eq!(devices(&machine.discover().await).len(), 1, "a driver that is older than MIG has none");
}

#[tokio::test]
async fn a_gpu_stays_in_mig_mode_while_its_mode_cannot_be_read() {
    let machine = Machine::builtin("dgx-h100");
    let (mut inventory, Views { mut current, .. }) = machine.inventory();
    let enabled = |on: bool| machine.update(|state| state.gpus.entry(2).or_default().mig_enabled = Some(on));
    for on in [true, false] {
        enabled(on);
        machine.fail(vec![]);
        assert!(inventory.look().await);
        current.mark_unchanged();
        // What is true meanwhile cannot be seen.
        enabled(!on);
        machine.fail(vec![fault("nvmlDeviceGetMigMode", Some(2), 999)]);
        for _ in 0..2 {
            assert!(inventory.look().await);
            assert!(!current.has_changed().unwrap());
        }
        assert_eq!(current.borrow().as_ref().unwrap().gpus[2].mig.enabled, on);
    }
}

#[tokio::test]
async fn names_stay_on_their_gpus_when_minors_swap_across_a_reboot() {
    let first = Machine::builtin("dgx-h100");
    let before = first.discover().await;
    let mut swapped = first.host.topology().clone();
    (swapped.gpus[0].minor, swapped.gpus[7].minor) = (7, 0);
    let second = Machine { plugin: first.plugin, ..Machine::new(swapped) };
    for gpu in second.discover().await.node.gpus {
        assert_eq!(gpu.name, by_uuid(&before, gpu.uuid.as_str()).name);
    }
}
