//! Which configuration counts for which device, and whether it can be met.
//!
//! All configurations must be readable, those too that count for nothing: a mistake is a mistake. For each device the last
//! one counts that names its request, or that names no request and is for its type. The claim's come after its class's.

use super::{Plan, PlanError};
use crate::claim::config::{Config, SharingStrategy};
use crate::claim::{AllocationResult, Claim, OpaqueConfig};

/// A configuration with its position among those addressed to this driver, from 1.
pub(super) type Numbered<'a> = (usize, &'a OpaqueConfig, Config);

/// Reads all configurations.
pub(super) fn read(claim: &Claim) -> Result<Vec<Numbered<'_>>, PlanError> {
    let numbered = (1..).zip(&claim.configs);
    let read = numbered.map(|(number, opaque)| match Config::decode(&opaque.parameters) {
        Ok(config) => Ok((number, opaque, config)),
        Err(error) => Err(PlanError::Config { number, error }),
    });
    read.collect()
}

/// Refuses what this driver does not do.
pub(super) fn check(configs: &[Numbered<'_>], claim: &Claim, plan: &Plan) -> Result<(), PlanError> {
    for result in &claim.results {
        let is_part = plan.devices.iter().any(|device| device.wanted.device == result.device && device.part.is_some());
        let is_for_type =
            |config: &Config| if is_part { matches!(config, Config::Mig(_)) } else { matches!(config, Config::Gpu(_)) };
        let counts = |(_, opaque, config): &&Numbered<'_>| {
            // Without a name it is for its type of device, wherever the claim has some.
            if opaque.requests.is_empty() { is_for_type(config) } else { opaque.names(result) }
        };
        let Some((number, _, config)) = configs.iter().rev().find(counts) else { continue };
        if !is_for_type(config) {
            let (request, what) = (result.request.clone(), if is_part { "the MIG device" } else { "the whole GPU" });
            let given = format!("{what} {}", result.device);
            return Err(PlanError::WrongKind { number: *number, kind: config.kind(), request, given });
        }
        if let Some(strategy) = sharing(config) {
            return Err(PlanError::Sharing { device: result.device.clone(), strategy });
        }
    }
    Ok(())
}

/// How containers are to share a device, as far as something must be done for it. The time slices of a MIG device are as
/// they are: NVIDIA's driver accepts the word, and does nothing.
fn sharing(config: &Config) -> Option<SharingStrategy> {
    match config {
        Config::Gpu(config) => config.sharing.as_ref().map(|sharing| sharing.strategy),
        Config::Mig(config) => {
            config.sharing.as_ref().map(|sharing| sharing.strategy).filter(|strategy| *strategy == SharingStrategy::Mps)
        }
        Config::Vfio(_) => None,
    }
}

// === impl OpaqueConfig ===

impl OpaqueConfig {
    /// Whether it names the request of a result, in full (`main/sub`) or by its base name (`main`).
    fn names(&self, result: &AllocationResult) -> bool {
        self.requests.iter().any(|request| *request == result.request || request == result.base_request())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::claim::example::{POOL, mk_claim, mk_config, mk_node};
    use crate::claim::plan::plan;
    use crate::device::Partitioning;
    use crate::device::example::mk_mig;

    fn sharing() -> serde_json::Value {
        json!({"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}})
    }

    fn refusal(results: &[(&str, &str)], configs: Vec<OpaqueConfig>) -> Option<String> {
        let mut claim = mk_claim("a", results);
        claim.configs = configs;
        plan(&claim, POOL, &mk_node(2)).err().map(|error| error.to_string())
    }

    #[test]
    fn configurations_count_where_they_apply() {
        let shared = "gpu-0: sharing with the strategy TimeSlicing is not supported by this version of the driver";
        let plain = json!({});
        let cases = [
            (vec![], None),
            (vec![mk_config(&[], "GpuConfig", plain.clone())], None),
            (vec![mk_config(&[], "GpuConfig", sharing())], Some(shared)),
            (vec![mk_config(&["main/big"], "GpuConfig", sharing())], Some(shared)),
            (vec![mk_config(&["main"], "GpuConfig", sharing())], Some(shared)),
            (vec![mk_config(&["main/small"], "GpuConfig", sharing())], None),
            (vec![mk_config(&["elsewhere"], "GpuConfig", sharing())], None),
            // The later one replaces the earlier one.
            (vec![mk_config(&[], "GpuConfig", sharing()), mk_config(&["main"], "GpuConfig", plain.clone())], None),
            // For MIG devices, of which this claim has none.
            (vec![mk_config(&[], "MigDeviceConfig", json!({"sharing": {"strategy": "MPS"}}))], None),
            (
                vec![mk_config(&[], "GpuConfig", plain), mk_config(&["main"], "VfioDeviceConfig", json!({}))],
                Some(
                    "configuration 2 of the claim: VfioDeviceConfig names the request main/big, which was given the \
                     whole GPU gpu-0",
                ),
            ),
            (
                vec![mk_config(&["elsewhere"], "GpuConfig", json!({"sharing": {"stategy": "MPS"}}))],
                Some(
                    "configuration 1 of the claim: GpuConfig: sharing.stategy: unknown field `stategy`, expected one of \
                     `strategy`, `timeSlicingConfig`, `mpsConfig`",
                ),
            ),
        ];
        for (configs, expected) in cases {
            let message = refusal(&[("main/big", "gpu-0")], configs.clone());
            assert_eq!(message.as_deref(), expected, "{configs:?}");
        }
    }

    #[test]
    fn a_configuration_of_the_wrong_kind_is_refused_only_where_it_counts() {
        let vfio = |requests: &[&str]| mk_config(requests, "VfioDeviceConfig", json!({}));
        let plain = |requests: &[&str]| mk_config(requests, "GpuConfig", json!({}));
        let wrong = |number: u8| {
            let what = "VfioDeviceConfig names the request main, which was given the whole GPU gpu-0";
            Some(format!("configuration {number} of the claim: {what}"))
        };
        let cases = [
            (vec![vfio(&["main"])], wrong(1)),
            (vec![plain(&["main"]), vfio(&["main"])], wrong(2)),
            // Those of a class name its request; the claim overrides them.
            (vec![vfio(&["main"]), plain(&["main"])], None),
            (vec![vfio(&["main"]), plain(&[])], None),
            // What names no request is for its own type, and hides nothing from others.
            (vec![vfio(&[])], None),
            (vec![vfio(&["main"]), vfio(&[])], wrong(1)),
            (vec![vfio(&["other"])], None),
        ];
        for (configs, expected) in cases {
            assert_eq!(refusal(&[("main", "gpu-0")], configs.clone()), expected, "{configs:?}");
        }
    }

    #[test]
    fn parts_of_gpus_take_the_configurations_of_parts() {
        let mut node = mk_node(2);
        (node.gpus[0].mig, node.gpus[0].partitioning) = (mk_mig(false), Partitioning::Dynamic { whole: true });
        let refusal = |configs: Vec<OpaqueConfig>| {
            let mut claim = mk_claim("a", &[("main", "gpu-0-mig-1g5gb-19-0"), ("whole", "gpu-1")]);
            claim.configs = configs;
            plan(&claim, POOL, &node).err().map(|error| error.to_string())
        };
        let mig = |requests: &[&str], strategy: &str| {
            mk_config(requests, "MigDeviceConfig", json!({"sharing": {"strategy": strategy}}))
        };
        let mps = "gpu-0-mig-1g5gb-19-0: sharing with the strategy MPS is not supported by this version of the driver";
        let given = "GpuConfig names the request main, which was given the MIG device gpu-0-mig-1g5gb-19-0";
        let whole = "MigDeviceConfig names the request whole, which was given the whole GPU gpu-1";
        for (configs, expected) in [
            (vec![mig(&[], "MPS")], Some(mps.to_owned())),
            (vec![mig(&["main"], "MPS")], Some(mps.to_owned())),
            (vec![mig(&[], "MPS"), mig(&["main"], "TimeSlicing")], None),
            (vec![mig(&["main"], "TimeSlicing"), mk_config(&[], "GpuConfig", json!({}))], None),
            (
                vec![mk_config(&["main"], "GpuConfig", json!({}))],
                Some(format!("configuration 1 of the claim: {given}")),
            ),
            (vec![mig(&["whole"], "TimeSlicing")], Some(format!("configuration 1 of the claim: {whole}"))),
        ] {
            assert_eq!(refusal(configs.clone()), expected, "{configs:?}");
        }
    }

    #[test]
    fn each_device_has_the_configuration_of_its_own_request() {
        let shared = "gpu-1: sharing with the strategy TimeSlicing is not supported by this version of the driver";
        let results = [("plain", "gpu-0"), ("shared", "gpu-1")];
        let of = |requests: &[&str]| vec![mk_config(requests, "GpuConfig", sharing())];
        assert_eq!(refusal(&results, of(&["shared"])).as_deref(), Some(shared));
        assert_eq!(refusal(&results, of(&["sha"])), None);
        let both = [of(&[]), vec![mk_config(&["plain"], "GpuConfig", json!({}))]].concat();
        assert_eq!(refusal(&results, both).as_deref(), Some(shared));
    }

    #[test]
    fn each_way_to_share_is_refused_by_its_name() {
        for strategy in ["TimeSlicing", "MPS"] {
            let config = mk_config(&[], "GpuConfig", json!({"sharing": {"strategy": strategy}}));
            let expected =
                format!("gpu-0: sharing with the strategy {strategy} is not supported by this version of the driver");
            assert_eq!(refusal(&[("main", "gpu-0")], vec![config]), Some(expected));
        }
    }
}
