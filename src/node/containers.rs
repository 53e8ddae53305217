//! Whether a container could be given a GPU at the moment: the driver's files and the device nodes that all containers
//! share are there. NVML can be well without them, and then every claim would fail.

use tokio::sync::watch;
use tracing::{info, warn};

use crate::cdi::Sources;
use crate::inventory::Views;

/// What was found last; an error says what is missing.
pub(super) type Containers = watch::Receiver<Result<(), String>>;

/// Looks at once, and again whenever the inventory has looked at the machine. Logs what changes.
pub(super) async fn look(sources: Sources, mut views: Views, verdict: watch::Sender<Result<(), String>>) {
    loop {
        let version = views.current.borrow().as_ref().and_then(|node| node.driver.version.clone());
        let sources = sources.clone();
        let found = tokio::task::spawn_blocking(move || sources.look(version.as_deref()).map(drop)).await;
        let found = found.map_err(anyhow::Error::from).and_then(|found| found.map_err(anyhow::Error::from));
        let found = found.map_err(|error| format!("{error:#}"));
        verdict.send_if_modified(|known| {
            if *known == found {
                return false;
            }
            match &found {
                Ok(()) => info!("containers can be given GPUs: driver files and device nodes are there"),
                Err(reason) => warn!(reason, "claims cannot be prepared"),
            }
            *known = found;
            true
        });
        let changed = tokio::select! {
            changed = views.looked.changed() => changed,
            changed = views.failure.changed() => changed,
        };
        if changed.is_err() {
            // Whoever ended is looked after elsewhere.
            return std::future::pending().await;
        }
    }
}
