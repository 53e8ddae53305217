//! A real kubectl against the fake API server, in every release that it plays.
//!
//! Ignored unless asked for, as it needs a kubectl:
//! `KUBECTL=$(hack/install-kubectl) cargo test -p fake-node --test kubectl -- --ignored`

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

use std::path::Path;

use fake_node::api::{ApiServer, Options};
use fake_node::release::Release;
use tokio::process::Command;

async fn check(release: Release) {
    let kubectl = std::env::var("KUBECTL").expect("KUBECTL should be the path of a kubectl; see hack/install-kubectl");
    let server = ApiServer::start(Options::new(release, "node-1")).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/checks/kubectl.sh");
    let output = Command::new(script).arg(&kubeconfig).arg(kubectl).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{release}:\n{}{}", text(&output.stdout), text(&output.stderr));
}

macro_rules! releases {
    ($($name:ident: $release:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        #[ignore = "needs a kubectl in KUBECTL"]
        async fn $name() {
            check(Release::$release).await;
        }
    )*};
}

releases! {
    kubectl_works_with_1_32: V1_32,
    kubectl_works_with_1_33: V1_33,
    kubectl_works_with_1_34: V1_34,
    kubectl_works_with_1_35: V1_35,
    kubectl_works_with_1_36: V1_36,
    kubectl_works_with_1_37: V1_37,
}
