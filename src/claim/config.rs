//! Opaque parameters of a claim or a DeviceClass: `resource.nvidia.com/v1beta1`, as NVIDIA's driver has it.
//!
//! Decoding is strict, for a misspelt field that is silently ignored is a request that is silently not met. What is
//! absent and optional gets NVIDIA's default; what is half-filled is a default or an error with the field's path.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

const API_VERSION: &str = "resource.nvidia.com/v1beta1";

/// One decoded document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Config {
    /// For whole GPUs.
    Gpu(GpuConfig),
    /// For MIG devices.
    Mig(MigDeviceConfig),
    /// For GPUs that are passed through to a virtual machine.
    Vfio(VfioDeviceConfig),
}

/// `GpuConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuConfig {
    /// How containers share the GPU; absent means that nothing is arranged.
    pub sharing: Option<GpuSharing>,
}

/// `GpuConfig.sharing`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuSharing {
    /// Which of the ways.
    pub strategy: SharingStrategy,
    /// For `TimeSlicing`.
    pub time_slicing_config: Option<TimeSlicing>,
    /// For `MPS`; decoded by what carries it out.
    pub mps_config: Option<Map<String, Value>>,
}

/// Ways to share a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum SharingStrategy {
    /// One after the other.
    TimeSlicing,
    /// At the same time, through a daemon.
    #[serde(rename = "MPS")]
    Mps,
}

/// `GpuConfig.sharing.timeSlicingConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimeSlicing {
    /// How long each may run; absent means `Default`.
    pub interval: Option<Interval>,
}

/// How long a time slice is; the GPU decides what that is in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are all that NVIDIA says")]
pub enum Interval {
    #[default]
    Default,
    Short,
    Medium,
    Long,
}

/// `MigDeviceConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigDeviceConfig {
    /// How containers share the device; absent means that nothing is arranged.
    pub sharing: Option<MigSharing>,
}

/// `MigDeviceConfig.sharing`: without time slices, which MIG devices do not have.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigSharing {
    /// Which of the ways.
    pub strategy: SharingStrategy,
    /// For `MPS`; decoded by what carries it out.
    pub mps_config: Option<Map<String, Value>>,
}

/// `VfioDeviceConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VfioDeviceConfig {
    /// How the virtual machine's memory is mapped.
    pub iommu: Option<Iommu>,
}

/// `VfioDeviceConfig.iommu`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Iommu {
    /// Which kernel interface; absent means `LegacyOnly`.
    pub backend_policy: Option<BackendPolicy>,
    /// Add `/dev/vfio/vfio` or `/dev/iommu`; absent means no.
    #[serde(rename = "enableAPIDevice")]
    pub enable_api_device: Option<bool>,
}

/// `VfioDeviceConfig.iommu.backendPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum BackendPolicy {
    /// VFIO groups and containers.
    LegacyOnly,
    /// iommufd where the kernel has it.
    #[serde(rename = "PreferIommuFD")]
    PreferIommuFd,
}

/// Why a document cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not an object.
    #[error("the parameters are not a JSON object")]
    NotAnObject,
    /// `apiVersion` or `kind` absent or not text.
    #[error("{0}: missing")]
    Missing(&'static str),
    /// An API or a kind that is not ours.
    #[error(
        "{api_version} {kind} is not known; known are GpuConfig, MigDeviceConfig and VfioDeviceConfig of {API_VERSION}"
    )]
    Unknown {
        /// `apiVersion`
        api_version: String,
        /// `kind`
        kind: String,
    },
    /// A field that is not right.
    #[error("{kind}: {path}{message}")]
    Field {
        /// `kind`
        kind: String,
        /// Where in the document, followed by a colon; empty for the document itself.
        path: String,
        /// What is wrong.
        message: String,
    },
}

// === impl Config ===

impl Config {
    /// Decodes one document.
    pub fn decode(parameters: &Value) -> Result<Self, ConfigError> {
        let Value::Object(document) = parameters else { return Err(ConfigError::NotAnObject) };
        let mut document = document.clone();
        let mut text = |name| match document.remove(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(ConfigError::Missing(name)),
        };
        let (api_version, kind) = (text("apiVersion")?, text("kind")?);
        match (api_version.as_str(), kind.as_str()) {
            (API_VERSION, "GpuConfig") => fields(kind, document).map(Self::Gpu),
            (API_VERSION, "MigDeviceConfig") => fields(kind, document).map(Self::Mig),
            (API_VERSION, "VfioDeviceConfig") => fields(kind, document).map(Self::Vfio),
            _ => Err(ConfigError::Unknown { api_version, kind }),
        }
    }

    /// The kind, as the document spells it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Gpu(_) => "GpuConfig",
            Self::Mig(_) => "MigDeviceConfig",
            Self::Vfio(_) => "VfioDeviceConfig",
        }
    }
}

// === impl SharingStrategy ===

impl std::fmt::Display for SharingStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TimeSlicing => "TimeSlicing",
            Self::Mps => "MPS",
        })
    }
}

fn fields<T: DeserializeOwned>(kind: String, document: Map<String, Value>) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(Value::Object(document)).map_err(|error| {
        let path = match error.path().to_string().as_str() {
            "." => String::new(),
            path => format!("{path}: "),
        };
        ConfigError::Field { kind, path, message: error.inner().to_string() }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn decode(kind: &str, mut fields: Value) -> Result<Config, ConfigError> {
        fields["apiVersion"] = API_VERSION.into();
        fields["kind"] = kind.into();
        Config::decode(&fields)
    }

    #[test]
    fn what_is_optional_may_be_absent_empty_or_null() {
        let time_slicing = |config| {
            let sharing =
                GpuSharing { strategy: SharingStrategy::TimeSlicing, time_slicing_config: config, mps_config: None };
            Config::Gpu(GpuConfig { sharing: Some(sharing) })
        };
        let cases = [
            ("GpuConfig", json!({}), Config::Gpu(GpuConfig::default())),
            ("GpuConfig", json!({"sharing": null}), Config::Gpu(GpuConfig::default())),
            ("GpuConfig", json!({"sharing": {"strategy": "TimeSlicing"}}), time_slicing(None)),
            (
                "GpuConfig",
                json!({"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}}),
                time_slicing(Some(TimeSlicing::default())),
            ),
            (
                "GpuConfig",
                json!({"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}),
                time_slicing(Some(TimeSlicing { interval: Some(Interval::Long) })),
            ),
            ("MigDeviceConfig", json!({}), Config::Mig(MigDeviceConfig::default())),
            (
                "VfioDeviceConfig",
                json!({"iommu": {}}),
                Config::Vfio(VfioDeviceConfig { iommu: Some(Iommu::default()) }),
            ),
        ];
        for (kind, fields, expected) in cases {
            assert_eq!(decode(kind, fields.clone()), Ok(expected), "{kind} {fields}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        let cases = [
            ("GpuConfig", json!({"sharng": {}}), "GpuConfig: sharng: unknown field `sharng`, expected `sharing`"),
            ("GpuConfig", json!({"sharing": {}}), "GpuConfig: sharing: missing field `strategy`"),
            (
                "GpuConfig",
                json!({"sharing": []}),
                "GpuConfig: sharing: invalid length 0, expected struct GpuSharing with 3 elements",
            ),
            (
                "GpuConfig",
                json!({"sharing": {"strategy": "Fair"}}),
                "GpuConfig: sharing.strategy: unknown variant `Fair`, expected `TimeSlicing` or `MPS`",
            ),
            (
                "GpuConfig",
                json!({"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": 3}}}),
                "GpuConfig: sharing.timeSlicingConfig.interval: invalid type: integer `3`, expected string or map",
            ),
            (
                "MigDeviceConfig",
                json!({"sharing": {"strategy": "MPS", "timeSlicingConfig": {}}}),
                "MigDeviceConfig: sharing.timeSlicingConfig: unknown field `timeSlicingConfig`, expected `strategy` or `mpsConfig`",
            ),
            (
                "VfioDeviceConfig",
                json!({"iommu": {"enableAPIDevice": "yes"}}),
                "VfioDeviceConfig: iommu.enableAPIDevice: invalid type: string \"yes\", expected a boolean",
            ),
            (
                "ComputeDomainChannelConfig",
                json!({}),
                "resource.nvidia.com/v1beta1 ComputeDomainChannelConfig is not known; known are GpuConfig, \
                 MigDeviceConfig and VfioDeviceConfig of resource.nvidia.com/v1beta1",
            ),
        ];
        for (kind, fields, expected) in cases {
            assert_eq!(decode(kind, fields.clone()).unwrap_err().to_string(), expected, "{kind} {fields}");
        }
        assert_eq!(Config::decode(&json!([])), Err(ConfigError::NotAnObject));
        assert_eq!(Config::decode(&json!({"kind": "GpuConfig"})), Err(ConfigError::Missing("apiVersion")));
        assert_eq!(Config::decode(&json!({"apiVersion": API_VERSION, "kind": 1})), Err(ConfigError::Missing("kind")));
    }

    fn any_json() -> BoxedStrategy<Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-zA-Z]{0,12}".prop_map(Value::from),
            Just(Value::from("TimeSlicing")),
        ];
        let keys = ["sharing", "strategy", "timeSlicingConfig", "interval", "mpsConfig", "iommu", "other"];
        let documents = leaf.prop_recursive(4, 24, 4, move |inner| {
            let map = prop::collection::btree_map(prop::sample::select(keys.to_vec()), inner, 0..4);
            map.prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
        });
        documents.boxed()
    }

    proptest! {
        #[test]
        fn no_document_is_a_panic(kind in "GpuConfig|MigDeviceConfig|VfioDeviceConfig", fields in any_json()) {
            if fields.is_object() {
                let _ = decode(&kind, fields);
            } else {
                prop_assert!(Config::decode(&fields).is_err());
            }
        }
    }
}
