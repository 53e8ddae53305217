//! Prepares the claims of a pod and takes them back, as the kubelet's DRA manager does.
//!
//! ```text
//!  pod ── for each claim: read it live, check it, find its plugins ──▶ cache, checkpoint
//!      ── for each plugin: NodePrepareResources ──▶ check the answer, keep the devices
//!      ── all of them succeeded ──▶ mark the claims as prepared, checkpoint
//! ```
//!
//! Errors are texts because that is what they become: people read them in a pod's events, and scenarios check them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::changes::Changes;
use super::claims::{ClaimCache, ClaimInfo, PreparedClaim, PreparedDevice};
use super::instance::Instance;
use super::plugins::Plugins;
use super::pods::{Pod, PodClaim};
use super::proto::v1;
use super::wire::go_error;
use super::{Options, rules};

/// The DRA manager of a running kubelet.
pub(super) struct Manager {
    pub(super) options: Options,
    pub(super) changes: Changes,
    pub(super) plugins: Plugins,
    pub(super) cache: Mutex<ClaimCache>,
}

/// A claim that passed all checks.
struct Checked {
    info: ClaimInfo,
    plugins: Vec<Arc<Instance>>,
}

// === impl Manager ===

impl Manager {
    /// Prepares all claims of a pod, or fails and leaves it to a later call to try all of them again.
    pub(super) async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let result = self.try_prepare(pod).await;
        self.changes.notify();
        result.map_err(|error| format!("prepare dynamic resources: {error}"))
    }

    async fn try_prepare(&self, pod: &Pod) -> Result<(), String> {
        // Nothing is recorded before all claims are found to be in order: a pod that fails here needs no unprepare.
        let mut checked = Vec::new();
        for claim in &pod.claims {
            checked.push(self.check(pod, claim).await?);
        }
        let (batches, uids) = self.record(pod, checked)?;

        // In no particular order, and the first failure ends it.
        for (plugin, claims) in batches.into_values() {
            self.prepare_at(&plugin, claims).await?;
        }

        let mut cache = self.cache();
        for uid in &uids {
            if let Some(info) = cache.by_uid(uid) {
                info.prepared = true;
            }
        }
        cache.checkpoint();
        Ok(())
    }

    async fn check(&self, pod: &Pod, claim: &PodClaim) -> Result<Checked, String> {
        let name = &claim.name;
        let object = match self.options.claims.claim(&pod.namespace, name).await {
            Ok(Some(object)) => object,
            Ok(None) => {
                return Err(format!("fetch ResourceClaim {name}: resourceclaims.resource.k8s.io \"{name}\" not found"));
            }
            Err(error) => return Err(format!("fetch ResourceClaim {name}: {error}")),
        };
        if claim.from_template && !is_owned_by(&object, pod) {
            let (ns, pod) = (&pod.namespace, &pod.name);
            return Err(format!("ResourceClaim {ns}/{name} was not created for pod {ns}/{pod} (pod is not owner)"));
        }
        if !self.is_reserved_for(&object, pod) {
            let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
            let (pod, pod_uid) = (&pod.name, &pod.uid);
            return Err(format!("pod {pod} ({pod_uid}) is not allowed to use ResourceClaim {name} ({uid})"));
        }
        let info = ClaimInfo::of(&object).map_err(|error| format!("ResourceClaim {name}: {error}"))?;
        let plugins = info.drivers.keys().map(|driver| self.plugins.get(driver)).collect::<Result<_, _>>()?;
        Ok(Checked { info, plugins })
    }

    fn is_reserved_for(&self, claim: &Value, pod: &Pod) -> bool {
        let consumers = claim.pointer("/status/reservedFor").and_then(Value::as_array);
        consumers.into_iter().flatten().any(|consumer| match consumer["resource"].as_str() {
            Some("pods") => consumer["uid"] == pod.uid.as_str(),
            Some("podgroups") => {
                let group = pod.group.as_deref();
                let is_on = self.options.pod_groups && rules::knows_pod_groups(self.options.release);
                is_on && group.is_some() && consumer["name"].as_str() == group
            }
            _ => false,
        })
    }

    /// Adds the pod's references to the cache. Returns what to ask of which plugin, and the UIDs of all claims in it.
    #[expect(clippy::type_complexity, reason = "used once; a name would say no more")]
    fn record(
        &self,
        pod: &Pod,
        checked: Vec<Checked>,
    ) -> Result<(HashMap<String, (Arc<Instance>, Vec<v1::Claim>)>, Vec<String>), String> {
        let mut batches = HashMap::<String, (Arc<Instance>, Vec<v1::Claim>)>::new();
        let mut uids = Vec::new();
        let mut cache = self.cache();
        for Checked { info, plugins } in checked {
            let (namespace, name, uid) = (info.namespace.clone(), info.name.clone(), info.uid.clone());
            match cache.get(&namespace, &name) {
                None => cache.add(info),
                Some(known) if known.uid != uid => {
                    return Err(format!(
                        "old ResourceClaim with same name {name} and different UID {} still exists (previous pod \
                         force-deleted?!)",
                        known.uid
                    ));
                }
                Some(_) => {}
            }
            let Some(info) = cache.get(&namespace, &name) else { continue };
            info.pods.insert(pod.uid.clone());
            if !info.prepared {
                for plugin in plugins {
                    let batch = batches.entry(plugin.driver.clone()).or_insert_with(|| (plugin, Vec::new()));
                    batch.1.push(info.request());
                }
                uids.push(uid);
            }
            cache.checkpoint();
        }
        Ok((batches, uids))
    }

    async fn prepare_at(&self, plugin: &Instance, claims: Vec<v1::Claim>) -> Result<(), String> {
        let answer = plugin.prepare(claims.clone()).await;
        let answer = answer.map_err(|status| format!("NodePrepareResources: {}", go_error(&status)))?;
        let answered = answer.claims.len();
        for (uid, result) in answer.claims {
            let name = requested(&claims, &uid)
                .ok_or_else(|| format!("NodePrepareResources returned result for unknown claim UID {uid}"))?;
            if !result.error.is_empty() {
                return Err(format!("NodePrepareResources failed for ResourceClaim {name}: {}", result.error));
            }
            self.keep_devices(plugin, &uid, result.devices);
        }
        match claims.len().saturating_sub(answered) {
            0 => Ok(()),
            skipped => Err(format!("NodePrepareResources skipped {skipped} ResourceClaims")),
        }
    }

    fn keep_devices(&self, plugin: &Instance, uid: &str, devices: Vec<v1::Device>) {
        let mut cache = self.cache();
        let Some(kept) = cache.by_uid(uid).and_then(|info| info.drivers.get_mut(&plugin.driver)) else { return };
        if rules::prepare_resets_devices(self.options.release) {
            kept.clear();
        }
        kept.extend(devices.into_iter().map(|device| PreparedDevice::of(&plugin.driver, device)));
    }

    /// Takes back all claims that a pod refers to and no other pod does.
    pub(super) async fn unprepare(&self, pod: &str) -> Result<(), String> {
        let result = self.try_unprepare(pod).await;
        self.changes.notify();
        result.map_err(|error| format!("unprepare dynamic resources: {error}"))
    }

    async fn try_unprepare(&self, pod: &str) -> Result<(), String> {
        let mut batches = HashMap::<String, Vec<v1::Claim>>::new();
        let mut done = Vec::new();
        {
            let mut cache = self.cache();
            for (namespace, name) in cache.of_pod(pod) {
                let Some(info) = cache.get(&namespace, &name) else { continue };
                if info.pods.len() > 1 {
                    info.pods.remove(pod);
                    continue;
                }
                for driver in info.drivers.keys() {
                    batches.entry(driver.clone()).or_default().push(info.request());
                }
                done.push((namespace, name));
            }
        }
        for (driver, claims) in batches {
            let plugin = self.plugins.get(&driver)?;
            unprepare_at(&plugin, claims).await?;
        }
        let mut cache = self.cache();
        for (namespace, name) in done {
            cache.remove(&namespace, &name);
        }
        cache.checkpoint();
        Ok(())
    }

    /// All entries of the cache.
    pub(super) fn list(&self) -> Vec<PreparedClaim> {
        self.cache().list()
    }

    pub(super) fn cache(&self) -> MutexGuard<'_, ClaimCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn unprepare_at(plugin: &Instance, claims: Vec<v1::Claim>) -> Result<(), String> {
    let answer = plugin.unprepare(claims.clone()).await;
    let answer = answer.map_err(|status| format!("NodeUnprepareResources: {}", go_error(&status)))?;
    for (uid, result) in &answer.claims {
        let name = requested(&claims, uid)
            .ok_or_else(|| format!("NodeUnprepareResources returned result for unknown claim UID {uid}"))?;
        if !result.error.is_empty() {
            return Err(format!("NodeUnprepareResources failed for ResourceClaim {name}: {}", result.error));
        }
    }
    match claims.len().saturating_sub(answer.claims.len()) {
        0 => Ok(()),
        skipped => Err(format!("NodeUnprepareResources skipped {skipped} ResourceClaims")),
    }
}

fn requested<'a>(claims: &'a [v1::Claim], uid: &str) -> Option<&'a str> {
    claims.iter().find(|claim| claim.uid == uid).map(|claim| claim.name.as_str())
}

/// Whether the claim was made from a template for this pod.
fn is_owned_by(claim: &Value, pod: &Pod) -> bool {
    let owners = claim.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| owner["controller"] == true && owner["uid"] == pod.uid.as_str())
}
