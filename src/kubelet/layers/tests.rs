use prometheus_client::encoding::text;
use tonic::Streaming;

use super::*;
use crate::kubelet::proto::dra_v1::NodePrepareResourcesResponse;
use crate::kubelet::tests::{Node, PATIENCE, PREPARE, call, connect, hung, idle, prepare_request, stream};

fn parsed(value: &str) -> Option<Duration> {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-timeout", value.parse().unwrap());
    timeout(&headers)
}

#[test]
fn the_clients_timeout_is_read_in_every_unit() {
    for (value, expected) in [
        ("2H", Duration::from_secs(7200)),
        ("3M", Duration::from_secs(180)),
        ("45S", Duration::from_secs(45)),
        ("44998m", Duration::from_millis(44_998)),
        ("99999999u", Duration::from_micros(99_999_999)),
        ("7n", Duration::from_nanos(7)),
    ] {
        assert_eq!(parsed(value), Some(expected), "{value}");
    }
    for value in ["", "S", "45", "45s", "+5S", "123456789S", "1.5S"] {
        assert_eq!(parsed(value), None, "{value:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_comes_before_the_clients_own_timer() {
    let node = Node::new();
    let hung = Routes::from(axum::Router::new().fallback(std::future::pending::<()>));
    for (timeout, ours) in [("45S", 44_500), ("1S", 900)] {
        let request = Request::builder().uri(PREPARE).header("grpc-timeout", timeout).body(Body::empty()).unwrap();
        let begun = tokio::time::Instant::now();
        let response = answer(hung.clone(), request, node.metrics.clone()).await.unwrap();
        // By the test's clock, which stands still while there is work. Its timers are good to a millisecond.
        assert!((ours..=ours + 1).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(status.message().contains("goes on working"), "{status}");
    }
}

#[tokio::test]
async fn calls_are_counted_by_method_and_code() {
    let node = Node::new();
    let dra = node.serve_dra(idle()).await;
    let kubelet = connect(dra.endpoint()).await;
    let _: NodePrepareResourcesResponse =
        call(&kubelet, PREPARE, tonic::Request::new(prepare_request(&[]))).await.unwrap();
    let unknown = call::<(), ()>(&kubelet, "/v9.DRAPlugin/NodePrepareResources", tonic::Request::new(())).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
    let mut health: Streaming<()> = stream(&kubelet, "/v1.DRAResourceHealth/NodeWatchResources").await.unwrap();
    health.message().await.unwrap().expect("a snapshot");

    let at_work = "grpc_server_in_flight{grpc_method=\"/v1.DRAResourceHealth/NodeWatchResources\"} 1";
    let text = encoded(&node);
    assert!(text.contains(at_work), "{text}");

    // Calls are counted when their bodies are gone, and those are gone when the connection is.
    dra.close(PATIENCE).await;
    let text = encoded(&node);
    for (method, code) in
        [(PREPARE, "Ok"), (UNKNOWN_METHOD, "Unimplemented"), ("/v1.DRAResourceHealth/NodeWatchResources", "Ok")]
    {
        let count = format!("grpc_server_duration_seconds_count{{grpc_method=\"{method}\",grpc_code=\"{code}\"}} 1");
        assert!(text.contains(&count), "{count} is not in\n{text}");
        let in_flight = format!("grpc_server_in_flight{{grpc_method=\"{method}\"}} 0");
        assert!(text.contains(&in_flight), "{in_flight} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_call_that_the_client_drops_counts_as_cancelled() {
    let node = Node::new();
    let (dra, mut begins) = hung();
    let dra = node.serve_dra(dra).await;
    let kubelet = connect(dra.endpoint()).await;
    let request = tonic::Request::new(prepare_request(&["a"]));
    tokio::select! {
        _ = call::<_, NodePrepareResourcesResponse>(&kubelet, PREPARE, request) => unreachable!("it hangs"),
        begun = begins.recv() => begun.unwrap(),
    }
    let count = format!("grpc_server_duration_seconds_count{{grpc_method=\"{PREPARE}\",grpc_code=\"Cancelled\"}} 1");
    tokio::time::timeout(PATIENCE, async {
        while !encoded(&node).contains(&count) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the call is counted");
}

#[tokio::test]
async fn every_method_with_a_name_is_served() {
    let node = Node::new();
    let dra = node.serve_dra(idle()).await;
    let _registrar = node.serve_registrar(&dra).await;
    let sockets = [connect(&node.registrar_path()).await, connect(dra.endpoint()).await];
    for method in METHODS {
        let socket = &sockets[usize::from(!method.starts_with("/pluginregistration"))];
        let answer = match stream::<()>(socket, method).await {
            Ok(mut stream) => stream.message().await.map(|_| ()),
            Err(status) => Err(status),
        };
        assert_ne!(answer.err().map(|status| status.code()), Some(Code::Unimplemented), "{method}");
    }
}

fn encoded(node: &Node) -> String {
    let mut text = String::new();
    text::encode(&mut text, &node.registry).unwrap();
    text
}
