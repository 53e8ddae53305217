//! CDI specs that were lost, damaged or overtaken by changes of the node.

use super::*;
use crate::device::example::mk_instance;
use crate::prepare::keeper::EVERY;

#[tokio::test]
async fn a_lost_or_damaged_spec_is_written_again_by_a_repeat() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    fs::remove_file(disk.spec_path("a")).unwrap();
    preparer.prepare(mk_claim_a()).await.unwrap();
    assert_eq!(disk.minors_in_spec("a"), [0]);
    for damage in ["", "{", "{}"] {
        fs::write(disk.spec_path("a"), damage).unwrap();
        preparer.prepare(mk_claim_a()).await.unwrap();
        assert_eq!(disk.minors_in_spec("a"), [0], "after {damage:?}");
    }
}

#[tokio::test]
async fn lost_specs_are_written_again_without_a_call_once_the_inventory_is_known() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    fs::remove_dir_all(disk.host.state("cdi")).unwrap();
    disk.inventory.send_replace(None);
    let mut keeper = disk.start_keeper().await;
    keeper.keep().await;
    assert!(!disk.spec_path("a").exists());
    disk.see(mk_node(2));
    keeper.keep().await;
    assert_eq!(disk.minors_in_spec("a"), [0]);
}

#[tokio::test]
async fn every_look_at_the_gpus_is_an_occasion_to_make_specs_right() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    disk.inventory.send_replace(None);
    let mut keeping = Box::pin(preparer.clone().keep_specs());
    assert!((&mut keeping).now_or_never().is_none(), "it waits for a look");
    disk.see(mk_node(2));
    disk.host.load_uvm_as(511);
    disk.looked.send_replace(Some(SystemTime::now()));
    tokio::select! {
        () = keeping => unreachable!("there may be more looks"),
        () = preparer.specs_kept() => {}
    }
    assert_eq!(disk.majors_of_uvm("a"), [511, 511]);
}

#[tokio::test]
async fn a_spec_that_could_not_be_made_right_is_tried_again_though_nothing_else_has_changed() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    preparer.prepare(mk_claim_b()).await.unwrap();
    let mut keeper = Keeper::new(preparer.shared);
    let node = disk.host.dev().join("nvidia0");
    fs::remove_file(&node).unwrap();
    fs::remove_file(disk.spec_path("a")).unwrap();
    fs::remove_file(disk.spec_path("b")).unwrap();
    keeper.keep().await;
    assert!(!disk.spec_path("a").exists());
    assert_eq!(disk.minors_in_spec("b"), [1], "the failure of one claim is not that of another");

    fs::write(&node, "").unwrap();
    keeper.keep().await;
    assert_eq!(disk.minors_in_spec("a"), [0]);
}

#[tokio::test]
async fn the_specs_of_prepared_claims_follow_the_majors_and_the_files_of_the_driver() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let mut keeper = Keeper::new(preparer.shared);
    keeper.keep().await;
    assert_eq!(disk.majors_of_uvm("a"), [510, 510]);
    disk.host.load_uvm_as(511);
    keep_until_due(&mut keeper).await;
    assert_eq!(disk.majors_of_uvm("a"), [511, 511]);

    let library = "usr/lib/x86_64-linux-gnu/libnvidia-new.so.580.105.08";
    let mounts_library = || fs::read_to_string(disk.spec_path("a")).unwrap().contains(library);
    assert!(!mounts_library());
    disk.host.driver.write(library, &shared_object("libnvidia-new.so.1"));
    keep_until_due(&mut keeper).await;
    assert!(mounts_library());
}

/// As often as it takes without a reason to look further.
async fn keep_until_due(keeper: &mut Keeper) {
    for _ in 0..EVERY {
        keeper.keep().await;
    }
}

#[tokio::test]
async fn what_specs_are_made_of_is_looked_at_now_and_then_and_at_once_where_there_is_a_reason() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let mut keeper = Keeper::new(Arc::clone(&preparer.shared));
    keeper.keep().await;
    disk.host.load_uvm_as(511);
    for _ in 1..EVERY {
        keeper.keep().await;
        assert_eq!(disk.majors_of_uvm("a"), [510, 510]);
    }
    keeper.keep().await;
    assert_eq!(disk.majors_of_uvm("a"), [511, 511]);

    disk.host.load_uvm_as(512);
    preparer.prepare(mk_claim_b()).await.unwrap();
    keeper.keep().await;
    assert_eq!(disk.majors_of_uvm("a"), [512, 512], "a claim is new");
    disk.host.load_uvm_as(513);
    disk.see(mk_node(3));
    keeper.keep().await;
    assert_eq!(disk.majors_of_uvm("a"), [513, 513], "the node has changed");
    disk.host.load_uvm_as(514);
    disk.failure.send_replace(Some("NVML has no answer".to_owned()));
    keeper.keep().await;
    assert_eq!(disk.majors_of_uvm("a"), [514, 514], "something has happened to the driver");
}

#[tokio::test]
async fn while_there_is_no_driver_specs_stay_and_then_follow_the_one_that_comes() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let mut keeper = Keeper::new(preparer.shared);
    let table = disk.host.proc().join("devices");
    fs::remove_file(&table).unwrap();
    keeper.keep().await;
    assert_eq!(disk.majors_of_uvm("a"), [510, 510]);
    disk.host.load_uvm_as(509);
    keeper.keep().await;
    assert_eq!(disk.majors_of_uvm("a"), [509, 509]);
}

#[tokio::test]
async fn a_look_that_finds_nothing_new_does_not_touch_the_claims() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let mut keeper = Keeper::new(Arc::clone(&preparer.shared));
    keeper.keep().await;
    // Whoever works on the claim now holds up nobody.
    let _lock = preparer.shared.locks.claim(&mk_uid("a")).await;
    tokio::time::timeout(Duration::from_secs(30), keeper.keep()).await.expect("it does not wait for the claim");
}

#[tokio::test]
async fn gpu_instances_that_come_and_go_do_not_matter_to_claims_without_parts() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let mut keeper = Keeper::new(Arc::clone(&preparer.shared));
    keeper.keep().await;
    fs::remove_file(disk.spec_path("a")).unwrap();
    let mut node = mk_node(2);
    node.gpus[1].mig.instances = vec![mk_instance(7, 19, 0, &[1])];
    disk.see(node.clone());
    keeper.keep().await;
    assert!(!disk.spec_path("a").exists(), "nobody has looked at it");
    node.gpus[1].mig.enabled = true;
    disk.see(node);
    keeper.keep().await;
    assert_eq!(disk.minors_in_spec("a"), [0]);
}

#[tokio::test(start_paused = true)]
async fn claims_whose_gpu_is_worked_on_hold_up_nobody_and_are_seen_to_later() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let shares: Vec<_> = (0..12).map(|number| format!("share-{number}")).collect();
    for uid in &shares {
        let mut claim = mk_claim(uid, &[("main", "gpu-0")]);
        claim.results[0].share_id = Some(uid.clone());
        preparer.prepare(claim).await.unwrap();
    }
    preparer.prepare(mk_claim("z", &[("main", "gpu-1")])).await.unwrap();
    let are_there = || shares.iter().map(|uid| disk.spec_path(uid).exists()).collect::<BTreeSet<_>>();
    shares.iter().map(String::as_str).chain(["z"]).for_each(|uid| fs::remove_file(disk.spec_path(uid)).unwrap());
    let gate = preparer.shared.locks.gpus(&[mk_uuid(0)].into()).await.unwrap();
    let mut keeper = Keeper::new(Arc::clone(&preparer.shared));
    let start = Instant::now();
    keeper.keep().await;
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(disk.minors_in_spec("z"), [1]);
    assert_eq!(are_there(), [false].into());
    drop(gate);
    keeper.keep().await;
    assert_eq!(are_there(), [true].into());
}

#[tokio::test]
async fn a_spec_that_was_made_of_an_old_look_is_made_right_though_nothing_changes_any_more() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_b()).await.unwrap();
    let mut keeper = Keeper::new(Arc::clone(&preparer.shared));
    keeper.keep().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let spec = fs::read_to_string(disk.spec_path("a")).unwrap();
    fs::write(disk.spec_path("a"), spec.replace(r#""minor": 0"#, r#""minor": 7"#)).unwrap();
    assert_eq!(disk.minors_in_spec("a"), [7]);
    keeper.keep().await;
    assert_eq!(disk.minors_in_spec("a"), [0]);
}

#[tokio::test(start_paused = true)]
async fn while_its_gpu_is_gone_a_claim_has_no_spec_and_a_repeat_says_so() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let first = preparer.prepare(mk_claim_a()).await.unwrap();
    preparer.prepare(mk_claim_b()).await.unwrap();
    let mut keeper = Keeper::new(Arc::clone(&preparer.shared));
    keeper.keep().await;
    let mut node = mk_node(2);
    node.gpus.remove(0);
    // The other one has its minor.
    node.gpus[0].minor = 0;
    disk.see(node);
    // Also before the keeper has seen to it.
    let error = preparer.prepare(mk_claim_a()).await.unwrap_err();
    assert!(matches!(error, Error::Gone { .. }), "{error}");
    assert!(!disk.spec_path("a").exists());

    disk.see(mk_node(2));
    assert_eq!(preparer.prepare(mk_claim_a()).await.unwrap(), first);
    keeper.keep().await;
    let mut node = mk_node(2);
    node.gpus.remove(0);
    disk.see(node);
    for _ in 0..2 {
        keeper.keep().await;
        assert!(!disk.spec_path("a").exists() && disk.record_path("a").exists());
    }
    assert_eq!(disk.minors_in_spec("b"), [1]);
    disk.see(mk_node(2));
    keeper.keep().await;
    assert_eq!(disk.minors_in_spec("a"), [0]);
    assert_eq!(preparer.prepare(mk_claim_a()).await.unwrap(), first);
}

#[tokio::test]
async fn a_prepare_writes_what_is_true_when_its_turn_comes() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let gate = preparer.shared.locks.gpus(&[mk_uuid(0)].into()).await.unwrap();
    let waiting = tokio::spawn(preparer.begin(&mk_uid("a")).prepare(mk_claim_a()));
    // It has the lock of the claim, and a plan.
    while preparer.shared.locks.claim(&mk_uid("a")).now_or_never().is_some() {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut node = mk_node(2);
    (node.gpus[0].minor, node.gpus[1].minor) = (1, 0);
    disk.see(node);
    drop(gate);
    waiting.await.unwrap().unwrap();
    assert_eq!(disk.minors_in_spec("a"), [1]);
}

#[tokio::test]
async fn specs_that_nobody_answers_for_are_removed_and_those_of_others_stay() {
    let disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    fs::write(disk.spec_path("orphan"), "{}").unwrap();
    fs::write(disk.host.state("cdi").join("nvidia.yaml"), "other").unwrap();
    let _preparer = disk.start().await;
    let expected = ["cdi/k8s.gpu.nvidia.com-claim_a.json", "cdi/nvidia.yaml", "claims/a.json"];
    assert_eq!(disk.files(), expected);
}
