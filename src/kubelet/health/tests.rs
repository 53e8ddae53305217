use std::time::Duration;

use super::health_v1::dra_resource_health_server::DraResourceHealth as V1;
use super::health_v1alpha1::dra_resource_health_server::DraResourceHealth as V1alpha1;
use super::*;

fn snapshot(verdict: Verdict, message: &str) -> Arc<HealthSnapshot> {
    let device = DeviceHealth {
        pool: "node-a".to_owned(),
        device: "gpu-0".to_owned(),
        verdict,
        message: message.to_owned(),
        updated: UNIX_EPOCH + Duration::from_secs(1_780_000_000),
    };
    Arc::new(HealthSnapshot { devices: vec![device] })
}

#[tokio::test]
async fn a_stream_begins_with_a_snapshot_and_repeats_what_is_repeated_until_it_is_stopped() {
    let (snapshots, health) = watch::channel(snapshot(Verdict::Healthy, ""));
    let stop = CancellationToken::new();
    let health = Health::new(health, stop.clone());
    let request = Request::new(health_v1::NodeWatchResourcesRequest {});
    let mut stream = V1::node_watch_resources(&health, request).await.unwrap().into_inner();
    let expected = health_v1::DeviceHealth {
        device: Some(health_v1::DeviceIdentifier { pool_name: "node-a".to_owned(), device_name: "gpu-0".to_owned() }),
        health: health_v1::HealthStatus::Healthy.into(),
        last_updated_time: 1_780_000_000,
        health_check_timeout_seconds: 30,
        message: String::new(),
    };
    assert_eq!(stream.next().await.unwrap().unwrap().devices, std::slice::from_ref(&expected));
    assert!(futures::poll!(stream.next()).is_pending(), "nothing is made up");

    snapshots.send(snapshot(Verdict::Healthy, "")).unwrap();
    assert_eq!(
        stream.next().await.unwrap().unwrap().devices,
        std::slice::from_ref(&expected),
        "a heartbeat changes nothing"
    );

    snapshots.send(snapshot(Verdict::Unhealthy, "XID 79")).unwrap();
    let unhealthy = health_v1::DeviceHealth {
        health: health_v1::HealthStatus::Unhealthy.into(),
        message: "XID 79".to_owned(),
        ..expected
    };
    assert_eq!(stream.next().await.unwrap().unwrap().devices, [unhealthy]);

    stop.cancel();
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn the_old_version_says_the_same() {
    let (_snapshots, health) = watch::channel(snapshot(Verdict::Unknown, "NVML does not answer"));
    let health = Health::new(health, CancellationToken::new());
    let request = Request::new(health_v1alpha1::NodeWatchResourcesRequest {});
    let mut stream = V1alpha1::node_watch_resources(&health, request).await.unwrap().into_inner();
    let device = health_v1alpha1::DeviceIdentifier { pool_name: "node-a".to_owned(), device_name: "gpu-0".to_owned() };
    let expected = health_v1alpha1::DeviceHealth {
        device: Some(device),
        health: health_v1alpha1::HealthStatus::Unknown.into(),
        last_updated_time: 1_780_000_000,
        health_check_timeout_seconds: 30,
        message: "NVML does not answer".to_owned(),
    };
    assert_eq!(stream.next().await.unwrap().unwrap().devices, [expected]);
}

#[test]
fn messages_are_short_plain_ascii() {
    assert_eq!(ascii("ECC: 3 Fehler über\n70 °C"), "ECC: 3 Fehler ?ber?70 ?C");
    assert_eq!(ascii(&"ü".repeat(2000)), "?".repeat(1024));
}

#[test]
fn a_clock_before_1970_is_no_error() {
    assert_eq!(unix_seconds(UNIX_EPOCH - Duration::from_secs(1)), 0);
}
