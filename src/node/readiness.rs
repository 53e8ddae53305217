//! Whether the node can use its GPUs, and if not, what is missing.

use tokio::sync::watch;
use tracing::{info, warn};

use crate::cluster::Published;
use crate::http::Condition;
use crate::inventory::Views;
use crate::kubelet::Registration;

/// What has to be true, from those who know.
#[derive(Clone)]
pub(super) struct Readiness {
    pub(super) views: Views,
    /// Whether containers could be given GPUs.
    pub(super) containers: watch::Receiver<Result<(), String>>,
    pub(super) registration: watch::Receiver<Registration>,
    pub(super) published: watch::Receiver<Published>,
}

// === impl Readiness ===

impl Readiness {
    /// All conditions, now.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        vec![
            Condition { name: "nvml", state: self.nvml() },
            Condition { name: "containers", state: self.containers() },
            Condition { name: "kubelet", state: kubelet(&self.registration.borrow()) },
            Condition { name: "slices", state: slices(&self.published.borrow()) },
        ]
    }

    /// Logs when the node becomes ready and when it no longer is. Ends with those it watches.
    pub(super) async fn log(mut self) {
        let mut was_ready = false;
        loop {
            let conditions = self.conditions();
            let missing =
                conditions.iter().find_map(|condition| Some((condition.name, condition.state.as_ref().err()?)));
            match missing {
                None if !was_ready => info!(summary = summary(&conditions), "the node is ready"),
                Some((part, reason)) if was_ready => warn!(part, reason, "the node is not ready any more"),
                _ => {}
            }
            was_ready = missing.is_none();
            let changed = tokio::select! {
                changed = self.views.current.changed() => changed,
                changed = self.views.failure.changed() => changed,
                changed = self.containers.changed() => changed,
                changed = self.registration.changed() => changed,
                changed = self.published.changed() => changed,
            };
            if changed.is_err() {
                // Whoever ended is looked after elsewhere.
                return std::future::pending().await;
            }
        }
    }

    fn containers(&self) -> Result<String, String> {
        self.containers.borrow().clone().map(|()| "driver files and device nodes are there".to_owned())
    }

    fn nvml(&self) -> Result<String, String> {
        if let Some(reason) = self.views.failure.borrow().as_ref() {
            return Err(reason.clone());
        }
        let node = self.views.current.borrow();
        let node = node.as_ref().ok_or("has not answered yet")?;
        let version = node.driver.version.as_deref().unwrap_or("of unknown version");
        Ok(format!("{} GPUs, driver {version}", node.gpus.len()))
    }
}

fn kubelet(registration: &Registration) -> Result<String, String> {
    match registration {
        Registration::Registered => Ok("registered".to_owned()),
        Registration::Waiting => Err("has not registered the plugin yet; does it watch this registry?".to_owned()),
        Registration::Refused(reason) => Err(format!("refused the plugin: {reason}")),
    }
}

fn slices(published: &Published) -> Result<String, String> {
    match published {
        Published::Accepted { generation, .. } => Ok(format!("generation {generation} accepted")),
        Published::Never { reason } => Err(format!("not published: {reason}")),
        Published::Failing { reason, generation, .. } => {
            Err(format!("generation {generation} was accepted, and since then: {reason}"))
        }
    }
}

fn summary(conditions: &[Condition]) -> String {
    let parts = conditions.iter().filter_map(|part| Some(format!("{}: {}", part.name, part.state.as_ref().ok()?)));
    parts.collect::<Vec<_>>().join("; ")
}
