//! A pod with claims, from its manifest to its end: the parts of the scheduler, the claim controller and the API that a
//! node needs to see.

use serde_json::{Value, json};

use super::{DRIVER, NODE, Node, NodeError, refused, text};
use crate::allocator::{self, claim_from_template};
use crate::api::Kind;
use crate::kubelet::{Pod, PodHandle};

/// A pod that was scheduled to the node, with the claims that were made and allocated for it.
#[derive(Debug)]
pub struct Workload {
    /// The pod at the kubelet.
    pub pod: PodHandle,
    /// The allocated claims, as the API server has them.
    pub claims: Vec<Value>,
    name: String,
}

// === impl Workload ===

impl Workload {
    /// The names of the devices that its claims got from the plugin.
    pub fn devices(&self) -> Vec<String> {
        let results =
            self.claims.iter().filter_map(|claim| claim["status"]["allocation"]["devices"]["results"].as_array());
        let ours = results.flatten().filter(|result| result["driver"] == DRIVER);
        ours.map(|result| text(&result["device"]).to_owned()).collect()
    }

    /// The UIDs of its claims.
    pub fn claim_uids(&self) -> Vec<String> {
        self.claims.iter().map(|claim| text(&claim["metadata"]["uid"]).to_owned()).collect()
    }
}

// === impl Node ===

impl Node {
    /// Creates the objects of a manifest with one pod, allocates the pod's claims, and gives the pod to the kubelet. The
    /// pod's name becomes `name`, so that one manifest serves several times.
    pub fn run_pod(&self, yaml: &str, name: &str) -> Result<Workload, NodeError> {
        let objects = crate::manifest::objects(yaml).map_err(NodeError::Manifest)?;
        let (pods, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(|object| object["kind"] == "Pod");
        let mut pod = pods.into_iter().next().ok_or(NodeError::Missing("pod"))?;
        for object in others {
            let template = text(&object["metadata"]["name"]);
            if self.api.get(Kind::ResourceClaimTemplate, "default", template).is_none() {
                self.create(object)?;
            }
        }
        pod["metadata"]["name"] = name.into();
        pod["spec"]["nodeName"] = NODE.into();
        let pod = self.create(pod)?;
        let uid = text(&pod["metadata"]["uid"]).to_owned();
        let mut at_kubelet = Pod::new(&uid, "default", name);
        let mut claims = Vec::new();
        for entry in pod["spec"]["resourceClaims"].as_array().into_iter().flatten() {
            let claim = match self.claim_of(entry, (name, &uid))? {
                (claim, true) => {
                    at_kubelet = at_kubelet.template_claim(text(&claim["metadata"]["name"]));
                    claim
                }
                (claim, false) => {
                    at_kubelet = at_kubelet.claim(text(&claim["metadata"]["name"]));
                    claim
                }
            };
            claims.push(self.allocate(claim, (name, &uid))?);
        }
        Ok(Workload { pod: self.kubelet.run_pod(at_kubelet), claims, name: name.to_owned() })
    }

    /// Runs a pod and waits until its claims are prepared.
    pub async fn run_prepared_pod(&self, yaml: &str, name: &str) -> Result<Workload, NodeError> {
        let workload = self.run_pod(yaml, name)?;
        workload.pod.wait_prepared().await.map_err(NodeError::Prepare)?;
        Ok(workload)
    }

    /// Ends a pod, waits until its claims are unprepared, and deletes it with the claims that were made for it.
    pub async fn end_pod(&self, workload: Workload) -> Result<(), NodeError> {
        let Workload { pod, claims, name } = workload;
        self.kubelet.stop_pod(&pod);
        pod.wait_terminated().await;
        for claim in claims {
            self.release(&claim, pod.uid())?;
        }
        // Claims from templates belong to the pod and go with it.
        self.api
            .delete(Kind::Pod, "default", &name)
            .map_err(|failure| refused(format!("to delete pod {name}"), &failure))
    }

    /// The claim of a pod's entry, and whether it is made from a template.
    fn claim_of(&self, entry: &Value, pod: (&str, &str)) -> Result<(Value, bool), NodeError> {
        if let Some(name) = entry["resourceClaimName"].as_str() {
            let claim = self.api.get(Kind::ResourceClaim, "default", name);
            return Ok((claim.ok_or(NodeError::Missing("claim that the pod names"))?, false));
        }
        let template = text(&entry["resourceClaimTemplateName"]);
        let template = self.api.get(Kind::ResourceClaimTemplate, "default", template);
        let template = template.ok_or(NodeError::Missing("claim template that the pod names"))?;
        let claim = claim_from_template(&template, pod, text(&entry["name"]), "claim").map_err(NodeError::Template)?;
        Ok((self.create(claim)?, true))
    }

    /// Allocates a claim unless it is, and reserves it for a pod.
    fn allocate(&self, mut claim: Value, pod: (&str, &str)) -> Result<Value, NodeError> {
        if claim["status"]["allocation"].is_null() {
            let slices = self.api.list(Kind::ResourceSlice);
            let classes = self.api.list(Kind::DeviceClass);
            let claims = self.api.list(Kind::ResourceClaim);
            let cluster = allocator::Cluster { node: NODE, slices: &slices, classes: &classes, claims: &claims };
            let allocation = cluster.allocate(&claim).map_err(NodeError::Allocate)?;
            claim["status"]["allocation"] = allocation;
        }
        let consumer = json!({"resource": "pods", "name": pod.0, "uid": pod.1});
        match claim["status"]["reservedFor"].as_array_mut() {
            Some(consumers) => consumers.push(consumer),
            None => claim["status"]["reservedFor"] = json!([consumer]),
        }
        self.update_claim(claim)
    }

    /// Takes a pod off a claim's list, and with the last one the allocation.
    fn release(&self, claim: &Value, pod: &str) -> Result<(), NodeError> {
        let Some(mut claim) = self.api.get(Kind::ResourceClaim, "default", text(&claim["metadata"]["name"])) else {
            return Ok(());
        };
        let mut consumers = claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
        consumers.retain(|consumer| consumer["uid"] != pod);
        let last = consumers.is_empty();
        claim["status"]["reservedFor"] = consumers.into();
        if last {
            claim["status"] = json!({});
        }
        self.update_claim(claim).map(drop)
    }

    fn update_claim(&self, claim: Value) -> Result<Value, NodeError> {
        let what = format!("the status of claim {}", text(&claim["metadata"]["name"]));
        self.api.update_status(claim).map_err(|failure| refused(what, &failure))
    }
}
