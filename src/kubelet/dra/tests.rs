mod given_up;

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Barrier, mpsc, oneshot};
use tracing_subscriber::fmt::MakeWriter;

use super::dra_v1::dra_plugin_server::DraPlugin as V1;
use super::dra_v1beta1::dra_plugin_server::DraPlugin as V1beta1;
use super::*;
use crate::device::GpuUuid;
use crate::kubelet::tests::prepare_request;

fn device() -> PreparedDevice {
    PreparedDevice {
        requests: vec!["gpu".to_owned()],
        pool: "node-a".to_owned(),
        device: "gpu-0".to_owned(),
        cdi_ids: vec!["k8s.gpu.nvidia.com/claim=good-gpu-0".to_owned()],
        share_id: Some("share-1".to_owned()),
        gpu: GpuUuid::parse("GPU-0").unwrap(),
        mig: None,
    }
}

fn failure(message: &str) -> Failure {
    Failure { message: message.to_owned(), causes: None }
}

/// Does what a UID says: `good…`, `panics`, anything else fails. Keeps the UIDs that it was called with.
fn by_uid() -> (Dra, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let calls = seen.clone();
    let prepare = move |_, uid: ClaimUid, _| {
        calls.lock().unwrap().push(uid.to_string());
        async move {
            match uid.as_str() {
                good if good.starts_with("good") => Ok(vec![device()]),
                "panics" => panic!("as asked to"),
                _ => Err(failure("the device gpu-7 does not exist on this node")),
            }
        }
        .boxed()
    };
    let unprepare = |_, uid: ClaimUid, _| {
        async move { if uid.as_str() == "bad" { Err(failure("GPU is busy")) } else { Ok(()) } }.boxed()
    };
    (Dra::from_work(prepare, unprepare), seen)
}

#[tokio::test]
async fn every_claim_has_one_entry_and_hurts_no_other() {
    let (dra, seen) = by_uid();
    let asked = ["good-1", "bad", "../../etc", "panics", "good-2", "good-1", "", "../../etc"];
    let answer = V1::node_prepare_resources(&dra, Request::new(prepare_request(&asked))).await.unwrap().into_inner();

    let mut entries: Vec<_> =
        answer.claims.iter().map(|(uid, entry)| (uid.as_str(), entry.devices.len(), entry.error.as_str())).collect();
    entries.sort_unstable();
    assert_eq!(
        entries,
        [
            ("", 0, "\"\" is not a claim UID"),
            ("../../etc", 0, "\"../../etc\" is not a claim UID"),
            ("bad", 0, "the device gpu-7 does not exist on this node"),
            ("good-1", 1, ""),
            ("good-2", 1, ""),
            ("panics", 0, PANICKED),
        ]
    );
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    assert_eq!(seen, ["bad", "good-1", "good-2", "panics"], "each claim is worked on once, and no malformed one");
}

#[tokio::test]
async fn claims_without_a_uid_and_tasks_that_panic_are_counted_too() {
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = prepare::Metrics::register(&mut registry);
    let dra = Dra { metrics, ..by_uid().0 };
    let asked = ["good", "../../etc", "panics", ""];
    V1::node_prepare_resources(&dra, Request::new(prepare_request(&asked))).await.unwrap();
    let claims = vec![dra_v1::Claim { uid: "a/b".to_owned(), ..Default::default() }];
    let request = dra_v1::NodeUnprepareResourcesRequest { claims };
    V1::node_unprepare_resources(&dra, Request::new(request)).await.unwrap();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        r#"claim_failures_total{operation="prepare",cause="kubelet"} 2"#,
        r#"claim_failures_total{operation="prepare",cause="internal"} 1"#,
        r#"claim_failures_total{operation="unprepare",cause="kubelet"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
    }
}

#[tokio::test]
async fn both_versions_say_the_same_but_for_the_share() {
    let (dra, _) = by_uid();
    let v1 = V1::node_prepare_resources(&dra, Request::new(prepare_request(&["good"]))).await.unwrap().into_inner();
    assert_eq!(
        v1.claims["good"].devices,
        [dra_v1::Device {
            request_names: vec!["gpu".to_owned()],
            pool_name: "node-a".to_owned(),
            device_name: "gpu-0".to_owned(),
            cdi_device_ids: vec!["k8s.gpu.nvidia.com/claim=good-gpu-0".to_owned()],
            share_id: Some("share-1".to_owned()),
        }]
    );

    let claim = |uid: &str| dra_v1beta1::Claim { uid: uid.to_owned(), ..Default::default() };
    let request = dra_v1beta1::NodePrepareResourcesRequest { claims: vec![claim("good"), claim("bad")] };
    let v1beta1 = V1beta1::node_prepare_resources(&dra, Request::new(request)).await.unwrap().into_inner();
    assert_eq!(
        v1beta1.claims["good"].devices,
        [dra_v1beta1::Device {
            request_names: vec!["gpu".to_owned()],
            pool_name: "node-a".to_owned(),
            device_name: "gpu-0".to_owned(),
            cdi_device_ids: vec!["k8s.gpu.nvidia.com/claim=good-gpu-0".to_owned()],
        }]
    );
    assert_eq!(v1beta1.claims["bad"].error, "the device gpu-7 does not exist on this node");
}

#[tokio::test]
async fn unprepare_answers_for_every_claim() {
    let (dra, _) = by_uid();
    let claim = |uid: &str| dra_v1::Claim { uid: uid.to_owned(), ..Default::default() };
    let request = dra_v1::NodeUnprepareResourcesRequest { claims: vec![claim("gone"), claim("bad"), claim("a/b")] };
    let v1 = V1::node_unprepare_resources(&dra, Request::new(request)).await.unwrap().into_inner();
    assert_eq!(v1.claims.len(), 3);
    assert_eq!(v1.claims["gone"].error, "");
    assert_eq!(v1.claims["bad"].error, "GPU is busy");
    assert_eq!(v1.claims["a/b"].error, "\"a/b\" is not a claim UID");

    let claim = dra_v1beta1::Claim { uid: "bad".to_owned(), ..Default::default() };
    let request = dra_v1beta1::NodeUnprepareResourcesRequest { claims: vec![claim] };
    let v1beta1 = V1beta1::node_unprepare_resources(&dra, Request::new(request)).await.unwrap().into_inner();
    assert_eq!(v1beta1.claims["bad"].error, "GPU is busy");
}

#[tokio::test]
async fn no_claims_is_a_success_without_work() {
    let dra = Dra::from_work(|_, _, _| unreachable!("nothing to do"), |_, _, _| unreachable!("nothing to do"));
    let prepared = V1::node_prepare_resources(&dra, Request::new(prepare_request(&[]))).await.unwrap();
    assert!(prepared.into_inner().claims.is_empty());
    let request = dra_v1::NodeUnprepareResourcesRequest { claims: Vec::new() };
    let unprepared = V1::node_unprepare_resources(&dra, Request::new(request)).await.unwrap();
    assert!(unprepared.into_inner().claims.is_empty());
    assert!(dra.tasks().is_empty());
}

#[tokio::test]
async fn a_call_reads_up_to_a_bound_at_once_and_claims_that_wait_afterwards_hold_up_nobody() {
    const CLAIMS: usize = 3 * READS_AT_ONCE;
    let reading = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    // Each opens only if so many claims are there at once.
    let (eight, all) = (Arc::new(Barrier::new(READS_AT_ONCE)), Arc::new(Barrier::new(CLAIMS)));
    let (now, peak) = (reading.clone(), most.clone());
    let prepare = move |_, _, reads: Reads| {
        let (now, peak, eight, all) = (now.clone(), peak.clone(), eight.clone(), all.clone());
        async move {
            let permit = reads.acquire().await.unwrap();
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            eight.wait().await;
            now.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
            all.wait().await;
            Ok(Vec::new())
        }
        .boxed()
    };
    let dra = Dra::from_work(prepare, |_, _, _| async { Ok(()) }.boxed());
    let uids: Vec<String> = (0..CLAIMS).map(|i| format!("claim-{i}")).collect();
    let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
    let answer = V1::node_prepare_resources(&dra, Request::new(prepare_request(&uids))).await.unwrap().into_inner();
    assert_eq!(answer.claims.len(), uids.len());
    assert_eq!(most.load(Ordering::SeqCst), READS_AT_ONCE);
}

#[tokio::test]
async fn work_goes_on_when_its_call_is_dropped() {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (done, mut ends) = mpsc::unbounded_channel();
    let prepare = move |_, uid: ClaimUid, _| {
        let (begun, done) = (begun.clone(), done.clone());
        async move {
            let (go, gate) = oneshot::channel();
            begun.send(go).unwrap();
            gate.await.unwrap();
            done.send(uid.to_string()).unwrap();
            Ok(Vec::new())
        }
        .boxed()
    };
    let dra = Dra::from_work(prepare, |_, _, _| async { Ok(()) }.boxed());
    let uids: Vec<String> = (0..=READS_AT_ONCE).map(|i| format!("claim-{i}")).collect();
    let uids: Vec<&str> = uids.iter().map(String::as_str).collect();

    let call = V1::node_prepare_resources(&dra, Request::new(prepare_request(&uids)));
    let first = tokio::select! {
        _ = call => unreachable!("no claim is done"),
        go = begins.recv() => go.unwrap(),
    };
    // The call is gone.
    first.send(()).unwrap();
    for _ in 0..READS_AT_ONCE {
        begins.recv().await.unwrap().send(()).unwrap();
    }
    let mut finished = Vec::new();
    for _ in 0..uids.len() {
        finished.push(ends.recv().await.unwrap());
    }
    finished.sort_unstable();
    assert_eq!(finished, uids);
    dra.tasks().close();
    dra.tasks().wait().await;
}

#[test]
fn a_pod_is_told_what_failed_and_the_log_also_why() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot write the record")]
    struct Failed(#[source] io::Error);

    let failure = Failure::new(Failed(io::Error::new(io::ErrorKind::StorageFull, "no space left on device")));
    assert_eq!(failure.message, "cannot write the record");
    assert_eq!(failure.causes.as_deref(), Some("no space left on device"));
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn every_line_of_a_call_names_its_claim_and_its_request() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let prepare = |_, _, _| {
        async {
            info!("a line of somebody below");
            yield_now().await;
            Err(failure("no such device"))
        }
        .boxed()
    };
    let dra = Dra::from_work(prepare, |_, _, _| async { Ok(()) }.boxed());
    let call = V1::node_prepare_resources(&dra, Request::new(prepare_request(&["a", "b"])));
    call.instrument(error_span!("call", request = 17)).await.unwrap();

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for uid in ["a", "b"] {
        let fields = format!("call{{request=17}}:claim{{claim.uid={uid} claim=default/claim-of-{uid}}}");
        assert_eq!(text.lines().filter(|line| line.contains(&fields)).count(), 2, "{text}");
    }
    assert_eq!(text.lines().count(), 4, "no line without its claim: {text}");
}
