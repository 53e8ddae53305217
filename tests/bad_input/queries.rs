//! One GPU, every query that the plugin makes about it, and every answer that it may get: against the mock NVML, in this
//! process, because a table of cases cannot wait for the plugin's next look.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, LazyLock};

use fake_node::api::{Gates, Kind, Part, Rules, validate};
use fake_node::host::{Host, HostBuilder};
use fake_node::release::Release;
use gpu_dra_plugin::cluster::slices::{Owner, desired};
use gpu_dra_plugin::device::LeftOut;
use gpu_dra_plugin::device::attribute::Value;
use gpu_dra_plugin::host::Roots;
use gpu_dra_plugin::inventory::{Discovery, NameMap, discover};
use gpu_dra_plugin::nvml::Session;
use gpu_dra_plugin::slice::{Device, pool};
use mock_nvml::hide::hide_symbols;
use tempfile::TempDir;
use topology::Topology;

use super::machine::{fault, mock_library};

/// The GPU that is asked in vain, by its index and its minor.
const GPU: usize = 2;

/// NOT_SUPPORTED, GPU_IS_LOST, two codes that are newer than most programs, and UNKNOWN.
const CODES: [u32; 5] = [3, 15, 25, 28, 999];

/// Without an answer to these a GPU cannot be used.
const IDENTITY: [&str; 4] =
    ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo"];

/// Nor can one that might be in MIG mode, unless it has none.
const MIG_MODE: &str = "nvmlDeviceGetMigMode";

/// What a GPU or a driver may not have: NOT_SUPPORTED is an ordinary answer, and not worth a word.
const FEATURES: [&str; 8] = [
    "nvmlDeviceGetAddressingMode",
    MIG_MODE,
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
];

/// Four GPUs that are linked to each other directly, of an architecture that does not say what its links are: everything
/// that can be asked about a GPU is asked.
static TOPOLOGY: LazyLock<Topology> = LazyLock::new(|| {
    let mut topology = Topology::builtin("hgx-a100-4gpu").unwrap();
    let mut board = topology.boards[&topology.gpus[GPU].board].clone();
    board.architecture = 77;
    topology.boards.insert("unknown".to_owned(), board);
    "unknown".clone_into(&mut topology.gpus[GPU].board);
    topology
});

/// A machine, and this process's view of it.
struct Bench {
    host: Host,
    session: Session,
    directory: TempDir,
}

// === impl Bench ===

impl Bench {
    fn new(topology: Topology) -> Self {
        Self::build(HostBuilder::new(topology, mock_library()))
    }

    fn build(builder: HostBuilder) -> Self {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let host = builder.build(directory.path().join("node")).unwrap();
        let library = host.library();
        Self { session: Session::new(move || Some(library.clone())), host, directory }
    }

    async fn discover(&self) -> Discovery {
        let [sys, proc, dev] = [self.host.sys(), self.host.proc(), self.host.dev()].map(Into::into);
        let roots = Roots { sys, proc, dev, other_devs: vec![], placeholders: true };
        let mut names = NameMap::load(self.directory.path()).unwrap();
        let discovery = discover(&self.session, &roots, &mut names, &mut Arc::default()).await.unwrap();
        check_slices(&discovery);
        discovery
    }

    /// The queries about single GPUs that a look makes, without version suffixes.
    async fn queries(&self) -> BTreeSet<String> {
        let log = self.host.node().calls_path();
        fs::write(&log, "").unwrap();
        self.discover().await;
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        let names = text.lines().map(|line| line.split(' ').next().unwrap());
        let of_one = names.filter(|name| name.starts_with("nvmlDevice") && !name.contains("GetCount"));
        of_one.map(|name| unversioned(name).to_owned()).collect()
    }
}

/// What the API server would refuse.
fn check_slices(discovery: &Discovery) {
    let owner = Owner { driver: "gpu.nvidia.com".into(), node: "node-a".into(), node_uid: "1".into() };
    let gates = Gates::new(Release::V1_36);
    let rules = Rules { release: Release::V1_36, gates: &gates, admin_namespace: false };
    for mut slice in desired(&pool("node-a", &discovery.node), &owner) {
        slice["metadata"]["name"] = "a".into();
        slice["spec"]["pool"]["generation"] = 1.into();
        assert_eq!(validate(Kind::ResourceSlice, &slice, None, Part::Main, rules), [], "{slice:#}");
    }
}

fn unversioned(name: &str) -> &str {
    name.rsplit_once("_v").map_or(name, |(name, _)| name)
}

fn devices(discovery: &Discovery) -> Vec<Device> {
    pool("node-a", &discovery.node).slices.into_iter().flat_map(|slice| slice.devices).collect()
}

fn is_about_neighbours(attribute: &str) -> bool {
    ["nvlinkDomain", "nvlinkClique", "nvlinkPair"].contains(&attribute)
}

/// The others are as they were. Which GPUs share an NVLink domain may change with one that is not known.
fn assert_unharmed(device: &Device, before: &Device, case: &str) {
    let without = |device: &Device| {
        let mut device = device.clone();
        device.attributes.retain(|name, _| !is_about_neighbours(name));
        device
    };
    assert_eq!(without(device), without(before), "{case}");
    assert!(device.attributes.keys().eq(before.attributes.keys()), "{case}");
}

/// Whatever is still said of the device is what was said before, or that it is not known.
fn assert_no_invention(device: &Device, before: &Device, case: &str) {
    for (name, value) in &device.attributes {
        let unknown = match value {
            Value::String(text) => text.is_empty() || is_about_neighbours(name),
            Value::Int(number) => *number == 0,
            Value::Bool(fact) => !fact,
            Value::Version(_) | Value::Ints(_) | Value::Strings(_) => false,
        };
        assert!(unknown || before.attributes.get(name) == Some(value), "{case}: {name} is {value:?}");
    }
    assert!(device.capacity.iter().all(|(name, value)| before.capacity.get(name) == Some(value)), "{case}");
}

fn is_about(note: &LeftOut, uuid: &str) -> bool {
    note.what.contains(uuid) || note.what == format!("GPU {GPU}")
}

#[tokio::test]
async fn any_query_of_one_gpu_may_fail_with_any_code_at_the_cost_of_that_gpu_alone() {
    let bench = Bench::new(TOPOLOGY.clone());
    let uuid = TOPOLOGY.gpus[GPU].uuid.as_str();
    let healthy = bench.discover().await;
    let (before, known) = (devices(&healthy), healthy.left_out);
    let mut queries = bench.queries().await;
    queries.insert("nvmlDeviceGetGpuFabricInfo".to_owned());
    assert!(queries.len() >= 17 && IDENTITY.iter().all(|query| queries.contains(*query)), "{queries:?}");

    for query in &queries {
        for code in CODES {
            let case = format!("{query} answers {code}");
            bench.host.node().update(|state| state.faults = vec![fault(query, Some(GPU), code)]).unwrap();
            let Discovery { node, left_out, unseen } = bench.discover().await;
            let after = devices(&Discovery { node, unseen, left_out: Vec::new() });
            let (ours, others): (Vec<_>, Vec<_>) = after.iter().partition(|device| device.name.as_str() == "gpu-2");
            assert_eq!(others.len(), 3, "{case}");
            for device in others {
                let same = before.iter().find(|known| known.name == device.name).unwrap();
                assert_unharmed(device, same, &case);
            }
            let usable = !IDENTITY.contains(&query.as_str()) && (query != MIG_MODE || code == 3);
            assert_eq!(ours.len(), usize::from(usable), "{case}");
            for device in ours {
                assert_no_invention(device, &before[GPU], &case);
            }
            // An older version of the same query may have answered.
            let answered = query == "nvmlDeviceGetGpuFabricInfo" || (query.ends_with("FabricInfoV") && code == 25);
            let absent = code == 3 && FEATURES.contains(&query.as_str());
            let new: Vec<_> = left_out.iter().filter(|note| !known.contains(note)).collect();
            assert_eq!(new.is_empty(), absent || answered, "{case}: {left_out:?}");
            for note in new {
                let says = |text: &str| note.why.contains(text);
                assert!(is_about(note, uuid) && says(query) && says(&code.to_string()), "{case}: {note:?}");
            }
        }
    }
}

#[tokio::test]
async fn any_query_may_be_missing_in_the_library() {
    let plain = Bench::new(TOPOLOGY.clone());
    let before = devices(&plain.discover().await);
    for query in plain.queries().await {
        let builder = HostBuilder::new(TOPOLOGY.clone(), mock_library()).transform_library({
            let versions = ["", "_v2", "_v3"].map(|version| format!("{query}{version}"));
            move |library| {
                // Few queries have all these versions, and all have one.
                let hidden = versions.iter().filter(|name| hide_symbols(library, &[name.as_str()]).is_ok());
                assert_ne!(hidden.count(), 0, "{versions:?}");
            }
        });
        let bench = Bench::build(builder);
        let discovery = bench.discover().await;
        let after = devices(&discovery);
        if IDENTITY.contains(&query.as_str()) {
            assert_eq!(after, [], "{query}");
            assert_eq!(discovery.left_out.len(), before.len(), "{query}: {:?}", discovery.left_out);
        } else {
            assert_eq!(after.len(), before.len(), "{query}");
            after.iter().zip(&before).for_each(|(device, before)| assert_no_invention(device, before, &query));
        }
        let says = |note: &LeftOut| note.why.starts_with(&format!("the NVML library has no {query}"));
        assert!(FEATURES.contains(&query.as_str()) || discovery.left_out.iter().any(says), "{query}");
    }
}

#[tokio::test]
async fn values_that_nobody_expects_cost_their_attribute_and_never_the_slice() {
    type Change = fn(&mut Topology);
    /// A change, and the attributes of `gpu-2` that it makes unknown.
    const CASES: [(Change, &[&str]); 9] = [
        (|topology| board(topology).brand = 17, &["brand"]),
        (|topology| board(topology).brand = 4711, &["brand"]),
        (|topology| board(topology).architecture = 0, &["architecture"]),
        (|topology| board(topology).product_name = String::new(), &["productName", "model"]),
        (|topology| board(topology).product_name = "x".repeat(96), &["model"]),
        (|topology| board(topology).product_name = "\u{fc}\u{1f600}".repeat(16), &["model"]),
        (|topology| board(topology).product_name = "NVIDIA \u{7}\n\"A100\\".to_owned(), &[]),
        (|topology| topology.system.driver_version = "580.105.08-rc1".to_owned(), &["driverVersion"]),
        (|topology| topology.system.driver_version = "615.023".to_owned(), &[]),
    ];
    let mut healthy = Topology::builtin("hgx-a100-4gpu").unwrap();
    let common = healthy.boards[&healthy.gpus[GPU].board].clone();
    healthy.boards.insert("of its own".to_owned(), common);
    healthy.gpus[GPU].board = "of its own".to_owned();
    for (number, (change, unknown)) in CASES.into_iter().enumerate() {
        let mut topology = healthy.clone();
        change(&mut topology);
        let discovery = Bench::new(topology).discover().await;
        let devices = devices(&discovery);
        assert_eq!(devices.len(), 4, "case {number}");
        for name in unknown {
            let value = devices[GPU].attributes.get(name);
            assert!(
                value.is_none_or(|value| *value == Value::String(String::new())),
                "case {number}: {name} is {value:?}"
            );
        }
    }
}

fn board(topology: &mut Topology) -> &mut topology::Board {
    topology.boards.get_mut("of its own").unwrap()
}
