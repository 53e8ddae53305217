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
        record["version"] = json!(2);
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

#[tokio::test]
async fn a_record_of_which_nothing_is_understood_is_kept_with_its_spec() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    fs::write(disk.record_path("a"), r#"{"version": 2, "everything": "else"}"#).unwrap();
    let preparer = disk.start().await;
    let message = preparer.unprepare(&mk_uid("a")).await.unwrap_err().to_string();
    assert!(message.contains("was written by a newer version of this driver (schema 2"), "{message}");
    assert_eq!(disk.files(), ["cdi/k8s.gpu.nvidia.com-claim_a.json", "claims/a.json"]);
}
