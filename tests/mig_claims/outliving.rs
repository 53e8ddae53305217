//! Parts outlive the plugin's process, are made anew in another boot, and pass from one process to the next.

use std::collections::BTreeSet;

use fake_node::kubelet::{ClaimRef, Kubelet};
use fake_node::manifest::MIG_3G_AND_4G_ON_ONE_GPU;
use fake_node::plugin::Plugin;

use topology::Fault;

use crate::node::{claim_ref, eventually, terminate};
use crate::scene::{DYNAMIC, FOUR, Scene, THREE_AT_4, part};

/// Two parts of one GPU through the end of the process that made them.
async fn parts_survive(end: impl AsyncFnOnce(&Scene, Plugin)) {
    let scene = Scene::h100(2).await;
    let plugin = scene.plugin().await;
    let slices = scene.node.slices();
    let pod = scene.node.run_prepared_pod(MIG_3G_AND_4G_ON_ONE_GPU, "parts").await.unwrap();
    let claim = claim_ref(&pod.claims[0]);
    let (specs, made, ids) = (scene.node.specs(), scene.existing(), scene.node.cdi_ids(&claim.uid));
    end(&scene, plugin).await;

    let plugin = scene.plugin().await;
    assert_eq!((scene.node.specs(), scene.existing(), scene.recorded()), (specs, made.clone(), made.clone()));
    assert_eq!(scene.node.prepare(&claim).await.unwrap(), ids);
    assert_eq!(scene.existing(), made);
    scene.node.end_pod(pod).await.unwrap();
    assert_eq!(scene.left(), None);
    assert_eq!(scene.node.slices(), slices);
    terminate(plugin).await;
}

#[tokio::test]
async fn parts_survive_a_restart_by_sigterm() {
    parts_survive(async |scene, plugin| {
        terminate(plugin).await;
        scene.node.until_deregistered().await;
    })
    .await;
}

#[tokio::test]
async fn parts_survive_a_restart_by_sigkill() {
    parts_survive(async |_, plugin| {
        plugin.kill().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_part_that_is_lost_is_made_again_and_the_one_beside_it_stays() {
    let scene = Scene::h100(1).await;
    let plugin = scene.plugin().await;
    let claim = scene.claim("both", &[&part(0, FOUR), &part(0, THREE_AT_4)]);
    let ids = scene.node.prepare(&claim).await.unwrap();
    let before = scene.given(&claim);
    let lost = scene.instances(0).into_iter().find(|instance| instance.placement.start == 4).unwrap();
    scene.nvml().destroy_instance(0, lost.id).unwrap();
    eventually("the spec goes", || scene.node.specs().is_empty().then_some(())).await;

    let call = "nvmlDeviceCreateGpuInstanceWithPlacement".to_owned();
    scene.fault(Fault { call, code: Some(999), times: Some(1), ..Fault::default() });
    scene.node.prepare(&claim).await.unwrap_err();
    scene.mend();
    assert_eq!(scene.count(), 1, "what other pods of the claim use stays");
    assert_eq!(scene.node.prepare(&claim).await.unwrap(), ids);
    assert_eq!(scene.given(&claim).intersection(&before).count(), 1);
    assert_eq!(scene.existing(), scene.recorded());
    scene.node.unprepare(&claim).await.unwrap();
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn after_another_boot_claims_get_their_parts_again_under_the_ids_that_were_answered() {
    let scene = Scene::h100(2).await;
    let plugin = scene.plugin().await;
    let [again, never] = [("again", FOUR), ("never", THREE_AT_4)].map(|(name, of)| scene.claim(name, &[&part(0, of)]));
    let ids = scene.node.prepare(&again).await.unwrap();
    let before = scene.given(&again);
    scene.node.prepare(&never).await.unwrap();

    scene.node.kubelet.stop().await;
    plugin.kill().await.unwrap();
    scene.node.host.reboot().unwrap();
    assert_eq!(scene.count(), 0);
    let plugin = scene.plugin_after(scene.node.kubelet.restart()).await;
    assert_eq!(scene.node.prepare(&again).await.unwrap(), ids);
    let uuids: BTreeSet<_> = scene.existing().into_iter().map(|made| made.uuid).collect();
    assert_eq!((uuids.len(), &scene.given(&again)), (1, &uuids));
    assert!(uuids.is_disjoint(&before), "a MIG device that is made again has another UUID");
    assert!(scene.recorded().is_superset(&scene.existing()));

    for claim in [&never, &again] {
        scene.node.unprepare(claim).await.unwrap();
    }
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn what_the_old_plugin_of_an_update_made_the_new_one_destroys() {
    let scene = Scene::h100(2).await;
    let start = async |number: usize| {
        let uid = format!("0a1b2c3d-0000-4000-8000-{number:012}");
        let mut settings = scene.node.settings_of_pod(&uid);
        settings.args.push(DYNAMIC.to_owned());
        let mut plugin = Plugin::start(&settings).unwrap();
        plugin.wait_until_ready().await.unwrap();
        let endpoint = scene.node.plugin_dir().join(format!("dra-{uid}.sock"));
        let is_it = |kubelet: &Kubelet| {
            kubelet.plugins().iter().any(|it| it.connected && it.endpoint == endpoint).then_some(())
        };
        scene.node.until("the new plugin is registered", is_it).await;
        plugin
    };
    let old = start(1).await;
    let claims = [("one", FOUR), ("two", THREE_AT_4)].map(|(name, of)| scene.claim(name, &[&part(0, of)]));
    let [one, two] = &claims;
    scene.node.prepare(one).await.unwrap();
    let new = start(2).await;
    scene.node.unprepare(one).await.unwrap();
    assert_eq!(scene.left(), None);
    scene.node.prepare(two).await.unwrap();
    scene.node.prepare(one).await.unwrap();
    assert_eq!(scene.existing(), scene.recorded());

    // The update is taken back.
    terminate(new).await;
    let is_alone = |kubelet: &Kubelet| (kubelet.plugins().iter().filter(|it| it.connected).count() == 1).then_some(());
    scene.node.until("the old plugin is alone", is_alone).await;
    let unprepare = async |claim: &ClaimRef| scene.node.unprepare(claim).await.unwrap();
    unprepare(one).await;
    assert!(scene.mode(0), "the other part needs it");
    unprepare(two).await;
    assert_eq!(scene.left(), None);
    terminate(old).await;
}
