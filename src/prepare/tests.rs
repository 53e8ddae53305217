mod crashes;
mod golden;
mod records;
mod sequences;
mod siblings;
mod soundness;
mod specs;
mod waiting;

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::record::{Record, State};
use super::*;
use crate::cdi::example::{Machine as Host, read_as_runtime};
use crate::claim::example::{POOL, mk_claim, mk_node, mk_uid, mk_uuid};
use crate::device::Node;
use crate::host::driver_root::example::shared_object;

const BOOT: &str = "6f2c0c5e-0000-4000-8000-000000000001";
const NEXT_BOOT: &str = "6f2c0c5e-0000-4000-8000-000000000002";

/// A node with a disk, on which plugin processes come and go.
struct Disk {
    host: Host,
    inventory: watch::Sender<Option<Arc<Node>>>,
    looked: watch::Sender<Option<SystemTime>>,
    failure: watch::Sender<Option<String>>,
    boot: &'static str,
}

// === impl Disk ===

impl Disk {
    /// Two GPUs.
    fn new() -> Self {
        Self {
            host: Host::new(),
            inventory: watch::Sender::new(Some(Arc::new(mk_node(2)))),
            looked: watch::Sender::new(None),
            failure: watch::Sender::new(None),
            boot: BOOT,
        }
    }

    fn see(&self, node: Node) {
        self.inventory.send_replace(Some(Arc::new(node)));
    }

    fn gpus(&self) -> Gpus {
        Gpus::without_nvml(self.views())
    }

    fn views(&self) -> Views {
        Views {
            current: self.inventory.subscribe(),
            looked: self.looked.subscribe(),
            failure: self.failure.subscribe(),
        }
    }

    /// Starts the plugin. An earlier one may have been dropped at any point.
    async fn start(&self) -> Preparer {
        self.start_with(Metrics::default()).await
    }

    async fn start_with(&self, metrics: Metrics) -> Preparer {
        Preparer::open(self.settings(), self.gpus(), metrics).await.unwrap()
    }

    fn settings(&self) -> Settings {
        Settings {
            claims_dir: self.host.state("claims"),
            cdi_dir: self.host.state("cdi"),
            cdi_kind: cdi::Kind::claims_of("gpu.nvidia.com").unwrap(),
            sources: self.host.sources(),
            pool: POOL.to_owned(),
            boot_id: self.boot.to_owned(),
        }
    }

    /// Starts it with nothing but the task that keeps specs right, which a test runs step by step.
    async fn start_keeper(&self) -> Keeper {
        Keeper::new(self.start().await.shared)
    }

    fn record_path(&self, uid: &str) -> PathBuf {
        self.host.state("claims").join(format!("{uid}.json"))
    }

    fn spec_path(&self, uid: &str) -> PathBuf {
        self.host.state("cdi").join(format!("k8s.gpu.nvidia.com-claim_{uid}.json"))
    }

    fn record(&self, uid: &str) -> Value {
        serde_json::from_slice(&fs::read(self.record_path(uid)).unwrap()).unwrap()
    }

    fn edit_record(&self, uid: &str, edit: impl FnOnce(&mut Value)) {
        let mut record = self.record(uid);
        edit(&mut record);
        fs::write(self.record_path(uid), record.to_string()).unwrap();
    }

    /// Names of the files of claims and specs, without directories and without what processes that overlap leave each
    /// other.
    fn files(&self) -> Vec<String> {
        let mut names = self.files_and_notices();
        names.retain(|name| !name.ends_with(".unprepared"));
        names
    }

    fn files_and_notices(&self) -> Vec<String> {
        let mut names = Vec::new();
        for directory in ["claims", "cdi"] {
            for entry in fs::read_dir(self.host.state(directory)).into_iter().flatten() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    names.push(format!("{directory}/{}", entry.file_name().into_string().unwrap()));
                }
            }
        }
        names.sort();
        names
    }

    fn majors_of_uvm(&self, uid: &str) -> Vec<i64> {
        let spec: Value = serde_json::from_slice(&fs::read(self.spec_path(uid)).unwrap()).unwrap();
        let nodes = spec["containerEdits"]["deviceNodes"].as_array().unwrap();
        let uvm = nodes.iter().filter(|node| node["path"].as_str().unwrap().starts_with("/dev/nvidia-uvm"));
        uvm.map(|node| node["major"].as_i64().unwrap()).collect()
    }

    fn minors_in_spec(&self, uid: &str) -> Vec<i64> {
        let spec = read_as_runtime(&self.spec_path(uid));
        let devices = spec.get_devices().into_values();
        devices.map(|device| device.edits().container_edits.device_nodes.unwrap()[0].minor.unwrap()).collect()
    }
}

fn mk_claim_a() -> Claim {
    mk_claim("a", &[("main", "gpu-0")])
}

fn mk_claim_b() -> Claim {
    mk_claim("b", &[("main", "gpu-1")])
}

fn ids(devices: &[PreparedDevice]) -> Vec<&str> {
    devices.iter().flat_map(|device| &device.cdi_ids).map(String::as_str).collect()
}

#[tokio::test]
async fn a_claim_comes_and_goes_and_leaves_nothing() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let devices = preparer.prepare(mk_claim("a", &[("one", "gpu-1"), ("two/big", "gpu-0")])).await.unwrap();
    let expected = |request: &str, device: &str, gpu: u32| PreparedDevice {
        requests: vec![request.to_owned()],
        pool: POOL.to_owned(),
        device: device.to_owned(),
        cdi_ids: vec![format!("k8s.gpu.nvidia.com/claim=a-{device}")],
        share_id: None,
        gpu: mk_uuid(gpu),
        mig: None,
    };
    assert_eq!(devices, [expected("one", "gpu-1", 1), expected("two", "gpu-0", 0)]);
    let spec = read_as_runtime(&disk.spec_path("a"));
    assert!(spec.get_device("a-gpu-0").is_some() && spec.get_device("a-gpu-1").is_some());
    assert_eq!(disk.record("a")["state"], "PrepareCompleted");

    preparer.unprepare(&mk_uid("a")).await.unwrap();
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[tokio::test]
async fn the_names_that_claims_know_gpus_by_outlive_the_process() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_b()).await.unwrap();
    let preparer = disk.start().await;
    assert_eq!(preparer.names(), [(DeviceName::gpu(1), mk_uuid(1))]);
    preparer.unprepare(&mk_uid("b")).await.unwrap();
    assert_eq!(preparer.names(), []);
}

#[tokio::test]
async fn a_repeat_answers_the_same_and_writes_nothing() {
    let disk = Disk::new();
    let first = disk.start().await.prepare(mk_claim_a()).await.unwrap();
    let written = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let before = (written(&disk.record_path("a")), written(&disk.spec_path("a")));
    let again = disk.start().await.prepare(mk_claim_a()).await.unwrap();
    assert_eq!(first, again);
    assert_eq!(before, (written(&disk.record_path("a")), written(&disk.spec_path("a"))));
}

#[tokio::test]
async fn a_repeat_needs_no_inventory() {
    let disk = Disk::new();
    let first = disk.start().await.prepare(mk_claim_a()).await.unwrap();
    disk.inventory.send_replace(None);
    assert_eq!(disk.start().await.prepare(mk_claim_a()).await.unwrap(), first);
}

#[tokio::test]
async fn what_was_half_done_is_taken_back_at_start() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    disk.edit_record("a", |record| record["state"] = json!("PrepareStarted"));
    let preparer = disk.start().await;
    assert_eq!(disk.files(), Vec::<String>::new());
    // And holds its GPU no longer.
    preparer.prepare(mk_claim("b", &[("main", "gpu-0")])).await.unwrap();
}

#[tokio::test]
async fn a_half_done_claim_can_be_prepared_and_unprepared() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    for with_spec in [true, false] {
        preparer.prepare(mk_claim_a()).await.unwrap();
        disk.edit_record("a", |record| record["state"] = json!("PrepareStarted"));
        if !with_spec {
            fs::remove_file(disk.spec_path("a")).unwrap();
        }
        preparer.prepare(mk_claim_a()).await.unwrap();
        assert_eq!(disk.record("a")["state"], "PrepareCompleted");
        read_as_runtime(&disk.spec_path("a"));

        disk.edit_record("a", |record| record["state"] = json!("PrepareStarted"));
        preparer.unprepare(&mk_uid("a")).await.unwrap();
        assert_eq!(disk.files(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_prepare_leaves_nothing_and_succeeds_once_the_cause_is_gone() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let node = disk.host.dev().join("nvidia0");
    fs::remove_file(&node).unwrap();
    let message = preparer.prepare(mk_claim_a()).await.unwrap_err().to_string();
    let expected =
        format!("the container would not have its GPU gpu-0: the device node {} does not exist", node.display());
    assert_eq!(message, expected);
    assert_eq!(disk.files(), Vec::<String>::new());
    fs::write(&node, "").unwrap();
    preparer.prepare(mk_claim_a()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_prepare_that_cannot_be_taken_back_keeps_its_record_until_it_can() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    // A directory where the spec belongs can be neither replaced nor removed as a file.
    fs::create_dir_all(disk.spec_path("a").join("in the way")).unwrap();
    let message = preparer.prepare(mk_claim_a()).await.unwrap_err().to_string();
    assert!(message.contains("cannot write") && message.contains("claim_a.json"), "{message}");
    assert_eq!(disk.record("a")["state"], "PrepareStarted");
    assert!(preparer.unprepare(&mk_uid("a")).await.is_err());
    let in_use = preparer.prepare(mk_claim("b", &[("main", "gpu-0")])).await.unwrap_err().to_string();
    assert_eq!(in_use, "gpu-0 is in use by claim team/a until that claim's pods are gone from this node");

    fs::remove_dir_all(disk.spec_path("a")).unwrap();
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[tokio::test]
async fn after_a_reboot_the_claim_follows_its_gpu() {
    let mut disk = Disk::new();
    let first = disk.start().await.prepare(mk_claim_a()).await.unwrap();
    fs::remove_dir_all(disk.host.state("cdi")).unwrap();
    disk.boot = NEXT_BOOT;
    let mut node = mk_node(2);
    (node.gpus[0].minor, node.gpus[1].minor) = (1, 0);
    disk.see(node);

    let preparer = disk.start().await;
    Keeper::new(Arc::clone(&preparer.shared)).keep().await;
    assert_eq!(disk.minors_in_spec("a"), [1]);
    assert_eq!(disk.record("a")["bootId"], BOOT, "nothing but the spec is applied before the kubelet asks");
    assert_eq!(preparer.prepare(mk_claim_a()).await.unwrap(), first);
    assert_eq!(disk.record("a")["bootId"], NEXT_BOOT);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_gpu_is_gone_fails_and_gets_no_other() {
    let mut disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    disk.boot = NEXT_BOOT;
    let mut node = mk_node(2);
    node.gpus.remove(0);
    // Even if another GPU has taken its name.
    node.gpus[0].name = DeviceName::gpu(0);
    disk.see(node);

    let preparer = disk.start().await;
    let message = preparer.prepare(mk_claim_a()).await.unwrap_err().to_string();
    let expected =
        format!("gpu-0, which this claim was given as GPU {}, is gone from the node; bring it back", mk_uuid(0));
    assert!(message.starts_with(&expected), "{message}");
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_gpu_goes_to_one_claim_at_a_time() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let rival = mk_claim("b", &[("main", "gpu-0")]);
    preparer.prepare(mk_claim_a()).await.unwrap();
    let message = preparer.prepare(rival.clone()).await.unwrap_err().to_string();
    assert_eq!(message, "gpu-0 is in use by claim team/a until that claim's pods are gone from this node");
    assert!(!disk.record_path("b").exists());
    // A restart forgets nothing.
    let preparer = disk.start().await;
    assert!(preparer.prepare(rival.clone()).await.is_err());
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    preparer.prepare(rival).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_claims_for_one_gpu_at_once_one_gets_it_and_then_the_next() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let mut claims = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (preparer, claim) = (preparer.clone(), mk_claim(&format!("rival-{number}"), &[("main", "gpu-0")]));
        claims.spawn(async move { preparer.prepare(claim.clone()).await.map(|_| claim.uid) });
    }
    while let Some(prepared) = claims.join_next().await {
        assert_eq!(disk.files().len(), 2);
        preparer.unprepare(&prepared.unwrap().unwrap()).await.unwrap();
    }
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[tokio::test]
async fn admin_access_goes_beside_the_claim_that_uses_the_gpu() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let mut watcher = mk_claim("watcher", &[("main", "gpu-0")]);
    watcher.results[0].admin_access = true;
    preparer.prepare(watcher).await.unwrap();
    preparer.prepare(mk_claim_a()).await.unwrap();
}

#[tokio::test]
async fn shares_of_one_device_in_one_claim_are_one_cdi_device() {
    let disk = Disk::new();
    let mut claim = mk_claim("a", &[("one", "gpu-0"), ("two", "gpu-0")]);
    claim.results[0].share_id = Some("first".to_owned());
    claim.results[1].share_id = Some("second".to_owned());
    let devices = disk.start().await.prepare(claim).await.unwrap();
    let shares: Vec<_> = devices.iter().map(|device| device.share_id.as_deref()).collect();
    assert_eq!(shares, [Some("first"), Some("second")]);
    assert_eq!(ids(&devices), ["k8s.gpu.nvidia.com/claim=a-gpu-0"; 2]);
    assert_eq!(read_as_runtime(&disk.spec_path("a")).get_devices().len(), 1);
}

#[tokio::test]
async fn a_claim_that_was_allocated_anew_is_not_mixed_up_with_what_it_had() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let other = mk_claim("a", &[("main", "gpu-1")]);
    let message = preparer.prepare(other.clone()).await.unwrap_err().to_string();
    assert!(message.starts_with("the claim was prepared for gpu-0 and is now allocated gpu-1"), "{message}");
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    preparer.prepare(other).await.unwrap();
}

#[tokio::test]
async fn unprepare_of_an_unknown_claim_succeeds() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.unprepare(&mk_uid("never-seen")).await.unwrap();
    preparer.prepare(mk_claim_a()).await.unwrap();
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    preparer.unprepare(&mk_uid("a")).await.unwrap();
}

#[tokio::test]
async fn work_on_one_gpu_does_not_wait_for_work_on_another() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    // Somebody works on gpu-0 until the end of this test.
    let gate = preparer.shared.locks.gpus(&[mk_uuid(0)].into()).await.unwrap();
    let waiting = tokio::spawn(preparer.begin(&mk_uid("a")).prepare(mk_claim_a()));

    preparer.prepare(mk_claim_b()).await.unwrap();
    preparer.unprepare(&mk_uid("b")).await.unwrap();
    assert!(!waiting.is_finished());
    drop(gate);
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_prepare_that_is_late_leaves_nothing_behind() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    // The call is dropped while the claim is read, or while NVML is waited for; its work goes on.
    let reading = preparer.begin(&mk_uid("a"));
    disk.inventory.send_replace(None);
    let waiting = tokio::spawn(preparer.begin(&mk_uid("a")).prepare(mk_claim_a()));

    preparer.unprepare(&mk_uid("a")).await.unwrap();
    disk.see(mk_node(2));
    assert!(matches!(waiting.await.unwrap(), Err(Error::CalledOff)));
    assert!(matches!(reading.prepare(mk_claim_a()).await, Err(Error::CalledOff)));
    assert_eq!(disk.files(), Vec::<String>::new());
    // The kubelet may ask again.
    preparer.prepare(mk_claim_a()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_prepared_and_what_failed_is_counted() {
    let disk = Disk::new();
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Metrics::register(&mut registry);
    let preparer = disk.start_with(metrics.clone()).await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    preparer.prepare(mk_claim("b", &[("main", "gpu-0")])).await.unwrap_err();
    preparer.prepare(mk_claim("c", &[("main", "gpu-9")])).await.unwrap_err();
    preparer.begin(&mk_uid("d")).give_up("api_server");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "prepared_claims 1",
        r#"claim_failures_total{operation="prepare",cause="in_use"} 1"#,
        r#"claim_failures_total{operation="prepare",cause="claim"} 1"#,
        r#"claim_failures_total{operation="prepare",cause="api_server"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
    }
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    assert_eq!(metrics.prepared.get(), 0);
}
