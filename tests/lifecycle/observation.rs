//! What the plugin says of itself over HTTP.

use fake_node::manifest::ONE_GPU;
use topology::Fault;

use crate::node::{TestNode, terminate};
use crate::open_metrics;

#[tokio::test]
async fn healthz_answers_and_readyz_names_every_part_that_is_ready() {
    let node = TestNode::start("dgx-h100").await;
    let mut plugin = node.ready_plugin().await;
    assert_eq!(plugin.get("/healthz").await.unwrap(), (200, "ok\n".to_owned()));
    let ready = "ok   nvml: 8 GPUs, driver 580.105.08\n\
                 ok   containers: driver files and device nodes are there\n\
                 ok   kubelet: registered\n\
                 ok   slices: generation 1 accepted\n";
    assert_eq!(plugin.get("/readyz").await.unwrap(), (200, ready.to_owned()));
    assert_eq!(plugin.get("/nowhere").await.unwrap().0, 404);
    terminate(plugin).await;
}

#[tokio::test]
async fn readyz_names_every_part_that_is_missing_while_healthz_is_content() {
    let node = TestNode::start("one-gpu").await;
    node.kubelet.stop().await;
    node.set_nvml_faults(vec![Fault { call: "*".to_owned(), hang: true, ..Fault::default() }]);
    let mut plugin = node.start_plugin().unwrap();
    let missing = [
        "wait nvml: has not answered yet",
        "wait kubelet: has not registered the plugin yet; does it watch this registry?",
        "wait slices: not published: the node's devices are not known yet",
    ];
    let (status, text) = plugin.get("/readyz").await.unwrap();
    assert_eq!(status, 503);
    // Driver files need no NVML to be looked at, sooner or later.
    assert_eq!(text.lines().filter(|line| !line.contains("containers: ")).collect::<Vec<_>>(), missing);
    assert_eq!(plugin.get("/healthz").await.unwrap(), (200, "ok\n".to_owned()));
    terminate(plugin).await;
}

#[tokio::test]
async fn metrics_are_open_metrics_and_count_what_happened() {
    let node = TestNode::start("one-gpu").await;
    let mut plugin = node.ready_plugin().await;
    let before = metrics(&plugin.get("/metrics").await.unwrap());
    let pod = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
    let during = metrics(&plugin.get("/metrics").await.unwrap());
    assert_eq!(&during["nvidia_dra_kubelet_registered"], "1");
    let held = "nvidia_dra_prepared_claims";
    assert_eq!((&before[held], &during[held]), ("0", "1"));
    node.end_pod(pod).await.unwrap();
    assert_eq!(&metrics(&plugin.get("/metrics").await.unwrap())[held], "0");
    terminate(plugin).await;
}

fn metrics((status, text): &(u16, String)) -> open_metrics::Samples {
    assert_eq!(*status, 200);
    open_metrics::parse(text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}
