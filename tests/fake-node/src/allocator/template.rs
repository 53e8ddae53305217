//! Makes a ResourceClaim for a pod from a ResourceClaimTemplate, as the claim controller does.

use serde_json::{Value, json};

/// The annotation that says which entry of the pod's `spec.resourceClaims` a claim was made for.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// Not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ResourceClaimTemplate {0:?} has no spec.spec")]
pub struct InvalidTemplate(String);

/// The claim for the entry `pod_claim` of the pod `pod` = (name, UID).
///
/// Its name is `<pod>-<pod claim>-<suffix>`, where the API server would invent the suffix, and its namespace is the
/// template's. The pod owns it.
pub fn claim_from_template(
    template: &Value,
    pod: (&str, &str),
    pod_claim: &str,
    suffix: &str,
) -> Result<Value, InvalidTemplate> {
    let (name, uid) = pod;
    let at = |pointer| template.pointer(pointer).cloned();
    let Some(spec) = at("/spec/spec") else {
        let name = at("/metadata/name").and_then(|name| name.as_str().map(str::to_owned));
        return Err(InvalidTemplate(name.unwrap_or_default()));
    };
    let mut annotations = at("/spec/metadata/annotations").filter(Value::is_object).unwrap_or_else(|| json!({}));
    annotations[POD_CLAIM_NAME] = pod_claim.into();
    let mut metadata = json!({
        "name": format!("{name}-{pod_claim}-{suffix}"),
        "namespace": at("/metadata/namespace"),
        "annotations": annotations,
        "ownerReferences": [{
            "apiVersion": "v1",
            "kind": "Pod",
            "name": name,
            "uid": uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }],
    });
    if let Some(labels) = at("/spec/metadata/labels") {
        metadata["labels"] = labels;
    }
    Ok(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_owns_its_claim_and_the_claim_says_what_for() {
        let template = json!({
            "metadata": {"name": "t", "namespace": "default"},
            "spec": {
                "metadata": {"labels": {"app": "x"}, "annotations": {"note": "y"}},
                "spec": {"devices": {"requests": [{"name": "gpu"}]}},
            },
        });
        let claim = claim_from_template(&template, ("pod", "uid"), "gpus", "abcde").unwrap();
        assert_eq!(claim["metadata"]["name"], "pod-gpus-abcde");
        assert_eq!(claim["metadata"]["namespace"], "default");
        assert_eq!(claim["metadata"]["labels"], json!({"app": "x"}));
        assert_eq!(claim["metadata"]["annotations"], json!({"note": "y", POD_CLAIM_NAME: "gpus"}));
        assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "uid");
        assert_eq!(claim["spec"], template["spec"]["spec"]);
        let error = claim_from_template(&json!({"metadata": {"name": "t"}}), ("p", "u"), "c", "s").unwrap_err();
        assert_eq!(error.to_string(), "ResourceClaimTemplate \"t\" has no spec.spec");
    }
}
