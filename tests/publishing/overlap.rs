//! An old plugin and a new one side by side, as during a rolling update.

use std::time::Duration;

use fake_node::api::{ApiServer, Gate, Request};
use fake_node::plugin::Plugin;

use crate::node::Machine;
use crate::scene::{Scene, readiness};

/// Far longer than either needs to repair what the other one wrote, if it did.
const A_WHILE: Duration = Duration::from_secs(4);

#[tokio::test]
async fn where_old_and_new_lay_out_the_pool_differently_the_new_one_has_its_way_and_they_do_not_fight() {
    let scene = Scene::of(Machine::new("dgx-h100").gate(Gate::ListTypeAttributes)).await;
    let has_lists = || scene.node.devices()[0]["attributes"]["resource.kubernetes.io/numaNode"]["ints"].is_array();
    let mut old = Plugin::start(&scene.node.settings_of_pod("old")).unwrap();
    old.wait_until_ready().await.unwrap();
    assert!(!has_lists());

    let mut settings = scene.node.settings_of_pod("new");
    settings.args.push("--list-attributes".to_owned());
    let mut new = Plugin::start(&settings).unwrap();
    new.wait_until_ready().await.unwrap();
    scene.until("lists", |_| has_lists().then_some(())).await;
    old.wait_for_log("leaving this node's ResourceSlices to a plugin that was started later").await.unwrap();
    scene.api().forget_requests();
    tokio::time::sleep(A_WHILE).await;
    let writes = |api: &ApiServer| api.requests().into_iter().filter(Request::is_write).collect::<Vec<_>>();
    assert!(writes(scene.api()).is_empty(), "{:?}", writes(scene.api()));
    assert!(has_lists());
    for plugin in [&mut old, &mut new] {
        assert!(readiness(plugin).await.0);
    }
}
