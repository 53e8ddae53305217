//! Records as released versions wrote them, see `tests/golden/records/README.md`.

use std::collections::BTreeSet;

use super::*;
use crate::claim::example::mk_config;
use crate::host::atomic::faults::{Fault, FaultyDisk};

/// A file, and what it is the record of.
struct Golden {
    file: &'static str,
    claim: Claim,
    state: State,
    /// The devices that were answered: name, CDI name and share.
    answer: &'static [(&'static str, &'static str, Option<&'static str>)],
    /// The minors of the GPUs that containers get.
    minors: &'static [i64],
}

const GPU_0: (&str, &str, Option<&str>) = ("gpu-0", "a-gpu-0", None);
const GPU_1: (&str, &str, Option<&str>) = ("gpu-1", "a-gpu-1", None);

/// Every file, those that the version of today writes last.
fn all() -> Vec<Golden> {
    written_today()
}

fn written_today() -> Vec<Golden> {
    let completed =
        |file, claim, answer, minors| Golden { file, claim, state: State::PrepareCompleted, answer, minors };
    let mut shares = mk_claim("a", &[("one", "gpu-0"), ("two", "gpu-0")]);
    shares.results[0].share_id = Some("first".to_owned());
    shares.results[1].share_id = Some("second".to_owned());
    let mut admin = mk_claim_a();
    admin.results[0].admin_access = true;
    let mut configured = mk_claim_a();
    configured.configs = vec![mk_config(&["main"], "GpuConfig", json!({}))];
    let two_gpus = mk_claim("a", &[("two", "gpu-1"), ("one", "gpu-0")]);
    let two_requests = mk_claim("a", &[("one", "gpu-0"), ("two/big", "gpu-0")]);
    vec![
        completed("0.1.0/whole-gpu.json", mk_claim_a(), &[GPU_0], &[0]),
        completed("0.1.0/two-gpus.json", two_gpus, &[GPU_1, GPU_0], &[0, 1]),
        completed("0.1.0/two-requests.json", two_requests, &[GPU_0], &[0]),
        completed(
            "0.1.0/two-shares.json",
            shares,
            &[("gpu-0", "a-gpu-0", Some("first")), ("gpu-0", "a-gpu-0", Some("second"))],
            &[0],
        ),
        completed("0.1.0/admin-access.json", admin, &[GPU_0], &[0]),
        completed("0.1.0/with-configuration.json", configured, &[GPU_0], &[0]),
        Golden {
            file: "0.1.0/half-prepared.json",
            claim: mk_claim_a(),
            state: State::PrepareStarted,
            answer: &[GPU_0],
            minors: &[],
        },
    ]
}

impl Golden {
    fn bytes(&self) -> String {
        fs::read_to_string(directory().join(self.file)).unwrap()
    }

    fn put_on(&self, disk: &Disk) {
        fs::create_dir(disk.host.state("claims")).unwrap();
        fs::write(disk.record_path("a"), self.bytes()).unwrap();
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/records")
}

#[tokio::test(start_paused = true)]
async fn records_of_released_versions_are_read_and_answered_from() {
    for golden in all() {
        let disk = Disk::new();
        golden.put_on(&disk);
        let preparer = disk.settle().await;
        if golden.state == State::PrepareStarted {
            assert_eq!(disk.files(), Vec::<String>::new(), "{} is taken back", golden.file);
            continue;
        }
        assert_eq!(disk.minors_given("a").into_iter().collect::<Vec<_>>(), golden.minors, "{}", golden.file);
        let answer = preparer.prepare(golden.claim.clone()).await.unwrap();
        let answered = answer.iter().map(|device| {
            let [id] = device.cdi_ids.as_slice() else { panic!("{device:?}") };
            let name = id.strip_prefix("k8s.gpu.nvidia.com/claim=").unwrap();
            (device.device.as_str(), name, device.share_id.as_deref())
        });
        assert_eq!(answered.collect::<Vec<_>>(), golden.answer, "{}", golden.file);
        assert_eq!(fs::read_to_string(disk.record_path("a")).unwrap(), golden.bytes(), "a repeat changes nothing");

        let rival = preparer.prepare(mk_claim("rival", &[("main", "gpu-0")])).await;
        assert_eq!(rival.is_ok(), golden.file.ends_with("admin-access.json"), "{}", golden.file);
        preparer.unprepare(&mk_uid("rival")).await.unwrap();
        preparer.unprepare(&mk_uid("a")).await.unwrap();
        assert_eq!(disk.files(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn records_of_today_are_written_as_they_were_when_they_were_added() {
    for golden in written_today() {
        let disk = Disk::new();
        let preparer = disk.start().await;
        if golden.state == State::PrepareStarted {
            // Between the record and the spec.
            let faulty = FaultyDisk::new(disk.host.state(""));
            faulty.arm(2, Fault::DeathMidway);
            preparer.prepare(golden.claim.clone()).await.unwrap_err();
        } else {
            preparer.prepare(golden.claim.clone()).await.unwrap();
        }
        assert_eq!(fs::read_to_string(disk.record_path("a")).unwrap(), golden.bytes(), "{}", golden.file);
    }
}

#[test]
fn every_golden_record_is_read_by_a_test() {
    let versions = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_dir());
    let files = versions.flat_map(|version| {
        let version = version.file_name().into_string().unwrap();
        let files = fs::read_dir(directory().join(&version)).unwrap();
        files.map(move |file| format!("{version}/{}", file.unwrap().file_name().into_string().unwrap()))
    });
    let known: BTreeSet<_> = all().into_iter().map(|golden| golden.file.to_owned()).collect();
    assert_eq!(files.collect::<BTreeSet<_>>(), known);
}
