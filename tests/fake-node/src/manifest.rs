//! The manifests that the project ships: what users apply is what scenarios run.

use serde_json::Value;

/// The DeviceClasses.
pub const DEVICE_CLASSES: &str = include_str!("../../../deploy/deviceclasses.yaml");

/// A pod with two GPUs that reach each other over NVLink.
pub const TWO_GPUS_ONE_NVLINK_DOMAIN: &str =
    include_str!("../../../deploy/examples/two-gpus-one-nvlink-domain/pod.yaml");

/// A pod with one GPU.
pub const ONE_GPU: &str = include_str!("../../../deploy/examples/one-gpu/pod.yaml");

/// A pod with two parts of one GPU.
pub const MIG_3G_AND_4G_ON_ONE_GPU: &str = include_str!("../../../deploy/examples/mig-3g-and-4g-on-one-gpu/pod.yaml");

/// Not YAML.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the manifest: {0}")]
pub struct NotYaml(String);

/// The objects of a manifest, in its order.
pub fn objects(yaml: &str) -> Result<Vec<Value>, NotYaml> {
    serde_saphyr::from_multiple(yaml).map_err(|error| NotYaml(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_manifests_are_read() {
        let kinds = |yaml| {
            let objects = objects(yaml).unwrap();
            objects.iter().map(|object| object["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(DEVICE_CLASSES), ["DeviceClass", "DeviceClass"]);
        assert_eq!(kinds(ONE_GPU), ["ResourceClaimTemplate", "Pod"]);
        assert_eq!(kinds(MIG_3G_AND_4G_ON_ONE_GPU), ["ResourceClaimTemplate", "Pod"]);
        assert_eq!(kinds(TWO_GPUS_ONE_NVLINK_DOMAIN), ["ResourceClaimTemplate", "Pod"]);
    }
}
