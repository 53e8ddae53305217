//! A driver that is missing, wrong or unwell. The plugin registers whatever the driver does, publishes what is known,
//! says on `/readyz` what is missing, and picks up what comes later without a restart.

use std::fs;
use std::path::PathBuf;

use fake_node::api::Kind;
use fake_node::node::{DRIVER, NODE};
use fake_node::plugin::Plugin;
use tokio::task::JoinSet;
use topology::Topology;

use super::machine::{Machine, fault, mock_library, wait_for_readyz};

/// The machine of most tests.
const GPUS: usize = 4;

async fn machine() -> Machine {
    Machine::builtin("hgx-a100-4gpu").await
}

/// Something that is wrong when the plugin starts.
struct Case {
    name: &'static str,
    harm: fn(&Machine),
    /// What `/readyz` says of it.
    says: &'static [&'static str],
    /// How many devices are offered meanwhile; `None` is no slice at all.
    offered: Option<usize>,
    mend: fn(&Machine),
}

const CASES: [Case; 9] = [
    Case {
        name: "no driver at all",
        harm: |machine| fs::rename(libraries(machine), machine.node.dir().join("away")).unwrap(),
        says: &["wait nvml: cannot load NVML from libnvidia-ml.so.1: ", "Is the NVIDIA driver installed"],
        offered: None,
        mend: |machine| fs::rename(machine.node.dir().join("away"), libraries(machine)).unwrap(),
    },
    Case {
        name: "a library that is not NVML",
        harm: |machine| replace_library(machine, libc()),
        says: &["wait nvml: cannot load NVML from /", "it has no nvmlInit_v2"],
        offered: None,
        mend: |machine| replace_library(machine, mock_library()),
    },
    Case {
        name: "a file that is no library",
        harm: |machine| replace_library(machine, "/proc/self/environ".into()),
        says: &["wait nvml: cannot load NVML from /", "libnvidia-ml.so."],
        offered: None,
        mend: |machine| replace_library(machine, mock_library()),
    },
    Case {
        name: "library and kernel driver of different versions",
        harm: |machine| machine.fail(&[fault("nvmlInit", None, 18)]),
        says: &[
            "wait nvml: nvmlInit_v2 answered LIB_RM_VERSION_MISMATCH (18): the library and the loaded kernel driver are of \
             different versions",
        ],
        offered: None,
        mend: |machine| machine.fail(&[]),
    },
    Case {
        name: "a driver that cannot count its GPUs",
        harm: |machine| machine.fail(&[fault("nvmlDeviceGetCount", None, 999)]),
        says: &["wait nvml: nvmlDeviceGetCount_v2 answered UNKNOWN (999): the driver gives no reason"],
        offered: None,
        mend: |machine| machine.fail(&[]),
    },
    Case {
        name: "no GPU yet",
        harm: |machine| (0..GPUS).for_each(|gpu| set_absent(machine, gpu, true)),
        says: &["ok   nvml: 0 GPUs", "ok   slices: "],
        offered: Some(0),
        mend: |machine| (0..GPUS).for_each(|gpu| set_absent(machine, gpu, false)),
    },
    Case {
        name: "the device node of a GPU is missing",
        harm: |machine| machine.node.host.lose_node(2).unwrap(),
        says: &["ok   nvml: 4 GPUs", "ok   slices: "],
        offered: Some(GPUS - 1),
        mend: |machine| machine.node.host.restore_node(2).unwrap(),
    },
    Case {
        name: "a device node that all containers need is missing",
        harm: |machine| machine.node.host.remove_node("nvidia-uvm").unwrap(),
        says: &[
            "wait containers: the container would have no /dev/nvidia-uvm: the device node /",
            "/dev/nvidia-uvm does not exist",
        ],
        offered: Some(GPUS),
        mend: |machine| machine.node.host.add_node("nvidia-uvm", fake_node::host::UVM_MAJOR, 0).unwrap(),
    },
    Case {
        name: "a driver without CUDA",
        harm: |machine| fs::rename(cuda(machine), cuda(machine).with_extension("away")).unwrap(),
        says: &["wait containers: the container would have no CUDA: "],
        offered: Some(GPUS),
        mend: |machine| fs::rename(cuda(machine).with_extension("away"), cuda(machine)).unwrap(),
    },
];

// Each takes a look or two at the machine, which come every 5 to 10 s: all of them at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_at_the_start_is_told_by_readyz_and_picked_up_when_it_comes() {
    let mut cases = JoinSet::new();
    for case in CASES {
        cases.spawn(run(case));
    }
    while let Some(done) = cases.join_next().await {
        done.unwrap();
    }
}

async fn run(Case { name, harm, says, offered, mend }: Case) {
    let machine = machine().await;
    harm(&machine);
    let mut plugin = machine.start();
    machine.node.kubelet.wait_for_plugin(DRIVER).await;
    let whole: Vec<_> = says.iter().copied().chain(["ok   kubelet: registered"]).collect();
    let status = wait_for_readyz(&mut plugin, &whole).await;
    let unready = says.iter().any(|text| text.starts_with("wait"));
    assert_eq!(status == 503, unready, "{name}: {status}");
    match offered {
        Some(count) => machine.wait_for_devices(count).await,
        None => assert_eq!(machine.offered(), None, "{name}"),
    }
    mend(&machine);
    machine.wait_for_devices(GPUS).await;
    plugin.wait_until_ready().await.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(plugin.terminate().await.unwrap().success(), "{name}");
}

#[tokio::test]
async fn a_driver_that_fails_later_takes_nothing_back_and_claims_can_still_go() {
    let machine = machine().await;
    let mut plugin = machine.start_ready().await;
    let [held, waiting] = [("held", "gpu-0"), ("waiting", "gpu-1")].map(|(name, gpu)| machine.claim(name, &[gpu]));
    machine.prepare_one(&held).await.unwrap();
    machine.node.api.forget_requests();

    machine.fail(&[fault("nvmlDeviceGetCount", None, 18)]);
    let said = "wait nvml: nvmlDeviceGetCount_v2 answered LIB_RM_VERSION_MISMATCH (18)";
    assert_eq!(wait_for_readyz(&mut plugin, &[said]).await, 503);
    assert_eq!(machine.offered().unwrap().len(), GPUS, "not known is not none");
    let written = machine.node.api.writes().iter().any(|write| write.kind == Some(Kind::ResourceSlice));
    assert!(!written, "nothing is written of what is not known");
    machine.unprepare_one(&held).await.unwrap();
    machine.prepare_one(&waiting).await.unwrap();

    machine.fail(&[]);
    plugin.wait_until_ready().await.unwrap();
    let log = plugin.log().unwrap();
    for said in ["cannot read the GPUs", "closed the NVML library", "NVML answers again"] {
        assert_eq!(log.matches(said).count(), 1, "{log}");
    }
}

#[tokio::test]
async fn a_gpu_of_which_little_is_known_is_offered_with_that_and_one_that_is_lost_is_not() {
    let mut topology = Topology::builtin("dgx-h100").unwrap();
    let strange = "NVIDIA Graphics Device ".to_owned() + &"x".repeat(96 - 23);
    // A board of its own for GPU 3.
    let board_of_3 = topology.gpus[3].board.clone();
    let mut board = topology.boards[&board_of_3].clone();
    (board.product_name, board.brand, board.architecture) = (strange, 18, 77);
    topology.boards.insert("strange".to_owned(), board);
    topology.gpus[3].board = "strange".to_owned();
    let uuids: Vec<_> = topology.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let machine = Machine::new(topology).await;
    machine.fail(&[fault("*", Some(5), 15)]);

    let mut plugin = machine.start_ready().await;
    let devices = machine.node.devices();
    let names: Vec<_> = devices.iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-6", "gpu-7"]);
    let string = |at: usize, name: &str| devices[at]["attributes"][name]["string"].as_str().unwrap().to_owned();
    for name in ["brand", "architecture", "model"] {
        assert_eq!(string(3, name), "");
        assert_ne!(string(2, name), "");
    }
    assert_eq!(string(3, "productName").len(), 64);
    assert_eq!(string(3, "nvlinkDomain"), string(2, "nvlinkDomain"), "its links are known");

    let expected = [
        (format!("the brand of {}", uuids[3]), "nvmlDeviceGetBrand on GPU 3 answered 18, which is not a brand"),
        (format!("the architecture of {}", uuids[3]), "nvmlDeviceGetArchitecture on GPU 3 answered 77"),
        ("the end of the attribute productName of gpu-3".to_owned(), "more than the 64 bytes"),
        (
            "GPU 5".to_owned(),
            "nvmlDeviceGetHandleByIndex_v2 on GPU 5 answered GPU_IS_LOST (15): the GPU fell off the bus",
        ),
    ];
    let log = plugin.log().unwrap();
    let left_out: Vec<_> = log.lines().filter(|line| line.contains(" left out ") && line.contains(" WARN ")).collect();
    assert_eq!(left_out.len(), expected.len(), "{log}");
    for (what, why) in expected {
        let said = left_out.iter().filter(|line| line.contains(&format!("what={what:?}")) && line.contains(why));
        assert_eq!(said.count(), 1, "{what}: {why} is not in:\n{log}");
    }

    machine.fail(&[]);
    machine.wait_for_devices(8).await;
    let again = plugin.wait_for_log("no longer left out").await.unwrap();
    assert!(again.contains("what=\"GPU 5\""), "{again}");
    let said = plugin.log().unwrap().lines().filter(|line| line.contains(" left out ")).count();
    assert_eq!(said, 4 + 1, "what stays left out is said once");

    // Its name was kept for it.
    let claim = machine.claim("a", &["gpu-5", "gpu-3"]);
    machine.prepare_one(&claim).await.unwrap();
    assert_eq!(machine.node.devices()[5]["name"], "gpu-5");
    assert_eq!(machine.node.slices()[0]["spec"]["pool"]["name"], NODE);
    drop::<Plugin>(plugin);
}

fn set_absent(machine: &Machine, gpu: usize, absent: bool) {
    machine.node.host.node().update(|state| state.gpus.entry(gpu).or_default().absent = absent).unwrap();
}

fn libraries(machine: &Machine) -> PathBuf {
    machine.node.host.library().parent().unwrap().to_owned()
}

fn cuda(machine: &Machine) -> PathBuf {
    libraries(machine).join(format!("libcuda.so.{}", machine.node.host.driver_version()))
}

/// Puts another file in the place of the NVML library, as an installer does: under a new inode.
fn replace_library(machine: &Machine, content: PathBuf) {
    let path = libraries(machine).join(format!("libnvidia-ml.so.{}", machine.node.host.driver_version()));
    let new = path.with_extension("new");
    fs::write(&new, fs::read(content).unwrap()).unwrap();
    fs::rename(new, path).unwrap();
}

/// The C library that this process runs with: a library that is certainly there, and not NVML.
fn libc() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| Some(line[line.find('/')?..].to_owned()));
    paths.map(PathBuf::from).find(|path| path.file_name().is_some_and(|name| name == "libc.so.6")).unwrap()
}
