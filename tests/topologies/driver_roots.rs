//! Where the plugin says that the driver is, and why there, when nobody has told it.

use std::fs;

use fake_node::host::Layout;
use fake_node::plugin::Plugin;

use crate::node::{Machine, TestNode, terminate};

/// What follows the place in the log.
const FITS: &str = "its libraries are of the version of the loaded kernel module";
const NONE_FITS: &str =
    "it is the first place with a driver; none has libraries of the version of the loaded kernel module";
const FIRST: &str = "it is the first place with a driver";

/// Starts the plugin with the host's `/` mounted somewhere, as in its pod, and no other word about the driver.
fn start(node: &TestNode) -> Plugin {
    let mut settings = node.plugin_settings();
    settings.args.retain(|arg| !arg.starts_with("--driver-root="));
    settings.args.push(format!("--container-driver-root={}", node.dir().display()));
    Plugin::start(&settings).unwrap()
}

/// What it says about the driver, without the time and the fields of the line.
async fn said(plugin: &mut Plugin) -> String {
    let line = plugin.wait_for_log("the NVIDIA driver is in ").await.unwrap();
    let text = line.find("the NVIDIA driver is in ").map(|start| &line[start..]).unwrap();
    text.split(" seen_at=").next().unwrap().to_owned()
}

#[tokio::test]
async fn the_driver_of_every_layout_is_found_without_configuration_and_the_log_says_where() {
    let places = [
        (Layout::Debian, "/"),
        (Layout::Rhel, "/"),
        (Layout::GpuOperator, "/run/nvidia/driver"),
        (Layout::Gke, "/home/kubernetes/bin/nvidia"),
        (Layout::Talos, "/usr/local"),
        (Layout::Nixos, "/run/opengl-driver"),
        (Layout::Bottlerocket, "/"),
        (Layout::Flatcar, "/opt/nvidia/current"),
    ];
    assert_eq!(places.map(|(layout, _)| layout), Layout::ALL);
    for (layout, place) in places {
        let node = Machine::new("one-gpu").layout(layout).start().await;
        let mut plugin = start(&node);
        assert_eq!(
            said(&mut plugin).await,
            format!("the NVIDIA driver is in {place} on the host: {FITS}"),
            "{layout:?}"
        );
        plugin.wait_until_ready().await.unwrap();
        terminate(plugin).await;
    }
}

#[tokio::test]
async fn the_log_says_why_one_of_two_drivers_was_chosen() {
    let node = Machine::new("one-gpu").layout(Layout::GpuOperator).start().await;
    // What an uninstalled package has left.
    let left = node.dir().join("usr/lib64");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("libcuda.so.1"), "old").unwrap();
    let module = node.host.sys().join("module/nvidia/version");
    // An empty file is what is read where no module is loaded.
    for (loaded, place, reason) in
        [(node.host.driver_version(), "/run/nvidia/driver", FITS), ("999.1", "/", NONE_FITS), ("", "/", FIRST)]
    {
        fs::write(&module, loaded).unwrap();
        let mut plugin = start(&node);
        assert_eq!(said(&mut plugin).await, format!("the NVIDIA driver is in {place} on the host: {reason}"));
        terminate(plugin).await;
    }
}
