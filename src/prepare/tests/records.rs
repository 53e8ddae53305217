//! Records that are damaged, newer or older than this version.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_damaged_record_costs_its_claim_alone() {
    for damage in ["", "{", "\0\0\0\0", "[]", r#"{"version": 1}"#] {
        let disk = Disk::new();
        let preparer = disk.start().await;
        preparer.prepare(mk_claim_a()).await.unwrap();
        preparer.prepare(mk_claim_b()).await.unwrap();
        fs::write(disk.record_path("a"), damage).unwrap();
        fs::copy(disk.record_path("b"), disk.record_path("c")).unwrap();
        fs::write(disk.host.state("claims").join("not a claim.json"), "{}").unwrap();

        drop(preparer);
        let preparer = disk.start().await;
        let (spec_a, spec_b) = ("cdi/k8s.gpu.nvidia.com-claim_a.json", "cdi/k8s.gpu.nvidia.com-claim_b.json");
        assert_eq!(disk.files(), [spec_a, spec_b, "claims/b.json"], "{damage:?}");
        for name in ["a.json", "c.json", "not a claim.json"] {
            assert!(disk.host.state("claims").join("quarantine").join(name).exists(), "{name} after {damage:?}");
        }
        assert!(preparer.prepare(mk_claim("rival", &[("main", "gpu-1")])).await.is_err());
        preparer.prepare(mk_claim_a()).await.unwrap();
        preparer.unprepare(&mk_uid("a")).await.unwrap();
        assert_eq!(disk.files(), [spec_b, "claims/b.json"], "{damage:?}");
    }
}

type Damage = fn(&[u8]) -> Vec<u8>;

/// A text in which the name and the GPU of a record still stand.
fn broken(record: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(record).replace(r#""state""#, r#""estat""#).into_bytes()
}

#[tokio::test(start_paused = true)]
async fn the_gpus_that_a_damaged_record_names_stay_its_claims_until_that_is_unprepared() {
    let cases: [Damage; 3] = [
        broken,
        |record| record[..record.len() - 4].to_vec(),
        |record| {
            let mut record = record.to_vec();
            record[..40].fill(0);
            record
        },
    ];
    for damage in cases {
        let disk = Disk::new();
        disk.start().await.prepare(mk_claim_a()).await.unwrap();
        let record = damage(&fs::read(disk.record_path("a")).unwrap());
        fs::write(disk.record_path("a"), record).unwrap();
        // Also at the next start, when it has long been moved.
        for _ in 0..2 {
            let preparer = disk.start().await;
            assert!(!disk.record_path("a").exists());
            let refused = preparer.prepare(mk_claim("rival", &[("main", "gpu-0")])).await.unwrap_err().to_string();
            assert!(refused.starts_with("gpu-0 is in use by claim "), "{refused}");
            preparer.prepare(mk_claim_b()).await.unwrap();
        }
        let [preparer, sibling] = [disk.start().await, disk.start().await];
        preparer.prepare(mk_claim_a()).await.unwrap();
        assert!(sibling.prepare(mk_claim("rival", &[("main", "gpu-0")])).await.is_err());
        preparer.unprepare(&mk_uid("a")).await.unwrap();
        sibling.prepare(mk_claim("rival", &[("main", "gpu-0")])).await.unwrap();
        assert!(disk.host.state("claims/quarantine/a.json.released").exists(), "for people to look at");
        let preparer = disk.start().await;
        preparer.unprepare(&mk_uid("rival")).await.unwrap();
        preparer.prepare(mk_claim_a()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_record_was_damaged_can_be_found_gone_if_its_name_is_known() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    preparer.prepare(mk_claim_b()).await.unwrap();
    fs::write(disk.record_path("a"), broken(&fs::read(disk.record_path("a")).unwrap())).unwrap();
    fs::write(disk.record_path("b"), br#"{"version": 99, "claim": {"namespace": "team", "name": "b"}}"#).unwrap();
    let preparer = disk.start().await;
    assert_eq!(preparer.claims(), [mk_uid("a")].into(), "what is newer is not ours to release");
    assert_eq!(preparer.name_of(&mk_uid("a")).await.unwrap().to_string(), "team/a");
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    assert!(preparer.claims().is_empty());
}

#[tokio::test]
async fn people_are_told_of_a_record_that_cannot_be_read_once_and_that_a_gpu_may_be_in_use() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    fs::remove_file(disk.record_path("a")).unwrap();
    // What points to itself cannot be read, even by root.
    std::os::unix::fs::symlink(disk.record_path("a"), disk.record_path("a")).unwrap();
    let preparer = disk.start().await;
    let [record] = preparer.damaged().await.try_into().unwrap();
    assert_eq!((record.file, record.gpus), (disk.record_path("a"), BTreeSet::new()));
    assert!(record.reason.starts_with("cannot read the claim record"), "{}", record.reason);
    let _other = disk.start().await;
    preparer.prepare(mk_claim_b()).await.unwrap();
    assert!(preparer.damaged().now_or_never().is_none());
}

#[tokio::test]
async fn a_record_that_is_damaged_while_we_run_is_no_obstacle() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    fs::write(disk.record_path("a"), "{").unwrap();
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_newer_record_holds_its_gpu_and_is_left_to_a_newer_version() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    disk.edit_record("a", |record| {
        record["version"] = json!(99);
        record["effects"] = json!(["something new"]);
    });
    let preparer = disk.start().await;
    let (files, record) = (disk.files(), disk.record("a"));
    let refusals =
        [preparer.prepare(mk_claim_a()).await.unwrap_err(), preparer.unprepare(&mk_uid("a")).await.unwrap_err()];
    for message in refusals.map(|refusal| refusal.to_string()) {
        assert!(message.starts_with("the claim was prepared by a newer version"), "{message}");
        assert!(message.ends_with("upgrade the driver again"), "{message}");
    }
    assert!(preparer.prepare(mk_claim("rival", &[("main", "gpu-0")])).await.is_err());
    assert_eq!((disk.files(), disk.record("a")), (files, record));
}

#[tokio::test(start_paused = true)]
async fn a_newer_record_of_another_shape_holds_the_gpus_that_it_names() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    let record = json!({"version": 99, "parts": {"whole": [mk_uuid(0)]}}).to_string();
    fs::write(disk.record_path("a"), &record).unwrap();
    let preparer = disk.start().await;
    for _ in 0..2 {
        let refused = preparer.prepare(mk_claim("rival", &[("main", "gpu-0")])).await.unwrap_err().to_string();
        let expected = "gpu-0 is in use by claim with the UID a until that claim's pods are gone from this node";
        assert_eq!(refused, expected);
        assert!(preparer.unprepare(&mk_uid("a")).await.is_err());
    }
    preparer.prepare(mk_claim_b()).await.unwrap();
    assert_eq!(fs::read_to_string(disk.record_path("a")).unwrap(), record);
}

#[tokio::test]
async fn a_record_of_which_nothing_is_understood_is_kept_with_its_spec() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    fs::write(disk.record_path("a"), r#"{"version": 99, "everything": "else"}"#).unwrap();
    let preparer = disk.start().await;
    let message = preparer.unprepare(&mk_uid("a")).await.unwrap_err().to_string();
    assert!(message.contains("was written by a newer version of this driver (schema 99"), "{message}");
    assert_eq!(disk.files(), ["cdi/k8s.gpu.nvidia.com-claim_a.json", "claims/a.json"]);
}
