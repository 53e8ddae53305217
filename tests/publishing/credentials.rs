//! A service account's token, which the kubelet replaces while the plugin runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::scene::{Scene, readiness, uid};

/// How long the plugin goes on with a token before it reads the file again, but for some seconds in which it is refused.
/// Counting from its start, this makes the test as short as it can be.
const BEFORE_READ_AGAIN: Duration = Duration::from_secs(40);

/// How long it may then be refused: the rest, and a pause between two looks, which are a minute apart at most.
const REFUSED: Duration = Duration::from_secs(120);

/// A projected volume, as the kubelet writes it: what is seen is a link to a link, of which one is replaced.
struct TokenVolume {
    dir: PathBuf,
}

// === impl TokenVolume ===

impl TokenVolume {
    fn new(dir: PathBuf, token: &str) -> Self {
        fs::create_dir(&dir).unwrap();
        symlink("..data/token", dir.join("token")).unwrap();
        let volume = Self { dir };
        volume.replace(token);
        volume
    }

    fn replace(&self, token: &str) {
        let version = format!("..{token}");
        fs::create_dir(self.dir.join(&version)).unwrap();
        fs::write(self.dir.join(&version).join("token"), token).unwrap();
        symlink(&version, self.dir.join("..data_tmp")).unwrap();
        fs::rename(self.dir.join("..data_tmp"), self.dir.join("..data")).unwrap();
    }
}

#[tokio::test]
async fn a_token_that_is_replaced_is_taken_up_without_a_restart() {
    let scene = Scene::new("one-gpu").await;
    let volume = TokenVolume::new(scene.node.dir().join("serviceaccount"), "first");
    let mut kubeconfig: Value = serde_json::from_str(&scene.api().kubeconfig()).unwrap();
    kubeconfig["users"][0]["user"]["tokenFile"] = volume.dir.join("token").to_str().into();
    fs::write(scene.node.kubeconfig(), kubeconfig.to_string()).unwrap();
    scene.api().accept_tokens(&["first"]);
    let start = tokio::time::Instant::now();
    let mut plugin = scene.ready_plugin().await;
    let (pid, slice) = (plugin.pid(), scene.slice());

    // The kubelet replaces a token when a fifth of its life is left, so that the old one is good for minutes. Here it is
    // not, as with a cluster that has changed its keys.
    tokio::time::sleep_until(start + BEFORE_READ_AGAIN).await;
    volume.replace("second");
    scene.api().accept_tokens(&["second"]);
    scene.delete(&slice);
    plugin.wait_for_log("401: Unauthorized").await.unwrap();
    let (ready, line) = readiness(&mut plugin).await;
    assert!(!ready && line.contains("401"), "{line}");

    let another = scene.api().until(|_| scene.node.slices().into_iter().find(|other| uid(other) != uid(&slice)));
    let another = tokio::time::timeout(REFUSED, another).await.expect("the new token is used");
    assert_eq!(another["spec"]["devices"], slice["spec"]["devices"]);
    plugin.wait_until_ready().await.unwrap();
    assert_eq!(plugin.pid(), pid, "the same process");
}
