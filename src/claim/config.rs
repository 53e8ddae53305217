//! Opaque parameters of a claim or a DeviceClass: `resource.nvidia.com/v1beta1`, as NVIDIA's driver has it.
//!
//! Decoding is strict, for a misspelt field that is silently ignored is a request that is silently not met. What is
//! absent, null or optional gets NVIDIA's default; what is half-filled is a default or an error with the field's path.

mod document;
mod mps;

use serde::Deserialize;
use serde_json::Value;

pub use document::Wrong;
pub use mps::{MemoryLimit, Mps, Percentage};

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
    #[serde(default, deserialize_with = "document::object")]
    pub sharing: Option<GpuSharing>,
}

/// `GpuConfig.sharing`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuSharing {
    /// Which of the ways.
    #[serde(deserialize_with = "document::word")]
    pub strategy: SharingStrategy,
    /// For `TimeSlicing`.
    #[serde(default, deserialize_with = "document::object")]
    pub time_slicing_config: Option<TimeSlicing>,
    /// For `MPS`.
    #[serde(default, deserialize_with = "document::object")]
    pub mps_config: Option<Mps>,
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
    #[serde(default, deserialize_with = "document::optional_word")]
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
    #[serde(default, deserialize_with = "document::object")]
    pub sharing: Option<MigSharing>,
}

/// `MigDeviceConfig.sharing`: without time slices, which MIG devices do not have.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigSharing {
    /// Which of the ways.
    #[serde(deserialize_with = "document::word")]
    pub strategy: SharingStrategy,
    /// For `MPS`.
    #[serde(default, deserialize_with = "document::object")]
    pub mps_config: Option<Mps>,
}

/// `VfioDeviceConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VfioDeviceConfig {
    /// How the virtual machine's memory is mapped.
    #[serde(default, deserialize_with = "document::object")]
    pub iommu: Option<Iommu>,
}

/// `VfioDeviceConfig.iommu`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Iommu {
    /// Which kernel interface; absent means `LegacyOnly`, and so does the empty text that Go programs write for it.
    #[serde(default, deserialize_with = "document::word_or_empty")]
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

/// Why a document cannot be used. The message quotes no more of it than fits a pod's event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not an object.
    #[error("the parameters are not a JSON object")]
    NotAnObject,
    /// Not JSON, or with two fields of one name.
    #[error("{0}")]
    Document(Wrong),
    /// `apiVersion` or `kind` is absent.
    #[error("{0}: missing")]
    Missing(&'static str),
    /// `apiVersion` or `kind` is not text.
    #[error("{0}: not a string")]
    NotText(&'static str),
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
    #[error("{kind}: {wrong}")]
    Field {
        /// `kind`
        kind: &'static str,
        /// Where, and what is wrong.
        wrong: Wrong,
    },
}

// === impl Config ===

impl Config {
    /// Decodes the text of one document.
    pub fn decode(parameters: &str) -> Result<Self, ConfigError> {
        let Value::Object(mut document) = document::read(parameters).map_err(ConfigError::Document)? else {
            return Err(ConfigError::NotAnObject);
        };
        let mut text = |name| match document.remove(name) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text),
            Some(Value::String(_) | Value::Null) | None => Err(ConfigError::Missing(name)),
            Some(_) => Err(ConfigError::NotText(name)),
        };
        let (api_version, kind) = (text("apiVersion")?, text("kind")?);
        let document = Value::Object(document);
        let (kind, config) = match (api_version.as_str(), kind.as_str()) {
            (API_VERSION, "GpuConfig") => ("GpuConfig", document::decode(document).map(Self::Gpu)),
            (API_VERSION, "MigDeviceConfig") => ("MigDeviceConfig", document::decode(document).map(Self::Mig)),
            (API_VERSION, "VfioDeviceConfig") => ("VfioDeviceConfig", document::decode(document).map(Self::Vfio)),
            _ => {
                let [api_version, kind] = [api_version, kind].map(|text| document::quoted(&text));
                return Err(ConfigError::Unknown { api_version, kind });
            }
        };
        let config = config.and_then(|config| match config.contradiction() {
            Some((path, strategy)) => Err(Wrong::new(path, &format!("not for the strategy {strategy}"))),
            None => Ok(config),
        });
        config.map_err(|wrong| ConfigError::Field { kind, wrong })
    }

    /// The field that belongs to another strategy than the one chosen, which would have no effect.
    fn contradiction(&self) -> Option<(&'static str, SharingStrategy)> {
        let (strategy, time_slices, mps) = match self {
            Self::Gpu(GpuConfig { sharing: Some(sharing) }) => {
                (sharing.strategy, sharing.time_slicing_config.is_some(), sharing.mps_config.is_some())
            }
            Self::Mig(MigDeviceConfig { sharing: Some(sharing) }) => {
                (sharing.strategy, false, sharing.mps_config.is_some())
            }
            _ => return None,
        };
        match strategy {
            SharingStrategy::TimeSlicing if mps => Some(("sharing.mpsConfig", strategy)),
            SharingStrategy::Mps if time_slices => Some(("sharing.timeSlicingConfig", strategy)),
            SharingStrategy::TimeSlicing | SharingStrategy::Mps => None,
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

#[cfg(test)]
mod tests;
