//! Feature gates of the API server, by release.
//!
//! A gate decides which fields the server keeps (see [`super::admit`]) and a few of the rules that it applies. The
//! defaults are those of the component in the played release; a scenario overrides them as an administrator would.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::release::Release;

/// The gates that change what the API server stores. Named as in `--feature-gates`, without the leading `DRA`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// KEP-5018: `adminAccess`.
    AdminAccess,
    /// KEP-5007: `bindingConditions` and their siblings. Needs [`Gate::ResourceClaimDeviceStatus`] as well.
    DeviceBindingConditions,
    /// KEP-5963: `compatibilityGroups`.
    DeviceCompatibilityGroups,
    /// KEP-5055: `taints`, `tolerations`.
    DeviceTaints,
    /// KEP-5075: `allowMultipleAllocations`, `requestPolicy`, `shareID`.
    ConsumableCapacity,
    /// KEP-6080: `derivedAttributes`.
    DerivedAttributes,
    /// KEP-5004: `extendedResourceName`.
    ExtendedResource,
    /// Steps of a request policy finer than one.
    FractionalCapacityRange,
    /// KEP-5491: attributes that are lists.
    ListTypeAttributes,
    /// KEP-5517: `nodeAllocatableResources`.
    NodeAllocatableResources,
    /// KEP-5945: `skipNodeOperations`.
    OptionalNodeOperations,
    /// KEP-4815: counters and node selection per device.
    PartitionableDevices,
    /// `partitionTypeAttribute`.
    PartitionableDevicesType,
    /// KEP-4816: `firstAvailable`.
    PrioritizedList,
    /// KEP-4817: `status.devices`.
    ResourceClaimDeviceStatus,
}

/// The life of a gate: in which release it appears, from which it is on, from which it cannot be turned off.
struct Life {
    gate: Gate,
    name: &'static str,
    appears: Release,
    on: Option<Release>,
    locked: Option<Release>,
}

/// Defaults of `kube_features.go` in 1.32 … 1.37. Classic gates first, then the alpha gates of 1.36 and 1.37.
const LIVES: [Life; 15] = {
    use Release::{V1_32, V1_33, V1_34, V1_36, V1_37};
    const fn life(
        gate: Gate,
        name: &'static str,
        appears: Release,
        on: Option<Release>,
        locked: Option<Release>,
    ) -> Life {
        Life { gate, name, appears, on, locked }
    }
    [
        life(Gate::AdminAccess, "DRAAdminAccess", V1_32, Some(V1_34), Some(V1_36)),
        life(Gate::ResourceClaimDeviceStatus, "DRAResourceClaimDeviceStatus", V1_32, Some(V1_33), None),
        life(Gate::PrioritizedList, "DRAPrioritizedList", V1_33, Some(V1_34), Some(V1_37)),
        life(Gate::PartitionableDevices, "DRAPartitionableDevices", V1_33, Some(V1_36), None),
        life(Gate::DeviceTaints, "DRADeviceTaints", V1_33, Some(V1_36), None),
        life(Gate::ConsumableCapacity, "DRAConsumableCapacity", V1_34, Some(V1_36), None),
        life(Gate::DeviceBindingConditions, "DRADeviceBindingConditions", V1_34, Some(V1_36), None),
        life(Gate::ExtendedResource, "DRAExtendedResource", V1_34, Some(V1_36), Some(V1_37)),
        life(Gate::FractionalCapacityRange, "DRAFractionalCapacityRange", V1_37, Some(V1_37), None),
        life(Gate::ListTypeAttributes, "DRAListTypeAttributes", V1_36, None, None),
        life(Gate::NodeAllocatableResources, "DRANodeAllocatableResources", V1_36, None, None),
        life(Gate::DerivedAttributes, "DRADerivedAttributes", V1_37, None, None),
        life(Gate::DeviceCompatibilityGroups, "DRADeviceCompatibilityGroups", V1_37, None, None),
        life(Gate::OptionalNodeOperations, "DRAOptionalNodeOperations", V1_37, None, None),
        life(Gate::PartitionableDevicesType, "DRAPartitionableDevicesType", V1_37, None, None),
    ]
};

/// Which gates are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gates {
    release: Release,
    overrides: BTreeMap<Gate, bool>,
}

/// A setting that the API server of the played release would refuse at start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// No release that can be played knows the name.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// The gate appears in a later release.
    #[error("unrecognized feature gate: {gate} does not exist in {release}")]
    NotYet {
        /// The gate.
        gate: Gate,
        /// The played release.
        release: Release,
    },
    /// The gate is generally available and stays on.
    #[error("cannot set feature gate {0} to false, feature is locked to true")]
    Locked(Gate),
    /// Not `Name=true` or `Name=false`.
    #[error("feature gate setting {0:?} is not of the form Name=true or Name=false")]
    Malformed(String),
}

// === impl Gate ===

impl Gate {
    fn life(self) -> &'static Life {
        // The table names every gate; a gap shows in the tests, not at run time.
        LIVES.iter().find(|life| life.gate == self).unwrap_or(&LIVES[0])
    }

    /// Every gate.
    pub fn all() -> impl Iterator<Item = Self> {
        LIVES.iter().map(|life| life.gate)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.life().name)
    }
}

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(name: &str) -> Result<Self, GateError> {
        LIVES
            .iter()
            .find(|life| life.name == name)
            .map(|life| life.gate)
            .ok_or_else(|| GateError::Unknown(name.to_owned()))
    }
}

// === impl Gates ===

impl Gates {
    /// The defaults of a release.
    pub fn new(release: Release) -> Self {
        Self { release, overrides: BTreeMap::new() }
    }

    /// Turns one gate on or off, as far as the release allows.
    pub fn with(mut self, gate: Gate, on: bool) -> Result<Self, GateError> {
        let life = gate.life();
        if self.release < life.appears {
            return Err(GateError::NotYet { gate, release: self.release });
        }
        if !on && life.locked.is_some_and(|locked| self.release >= locked) {
            return Err(GateError::Locked(gate));
        }
        self.overrides.insert(gate, on);
        Ok(self)
    }

    /// Applies a setting in the form of the `--feature-gates` flag: `DRADeviceTaints=true,DRAAdminAccess=false`.
    pub fn with_flag(self, flag: &str) -> Result<Self, GateError> {
        flag.split(',').map(str::trim).filter(|setting| !setting.is_empty()).try_fold(self, |gates, setting| {
            let malformed = || GateError::Malformed(setting.to_owned());
            let (name, value) = setting.split_once('=').ok_or_else(malformed)?;
            gates.with(name.trim().parse()?, value.trim().parse().map_err(|_| malformed())?)
        })
    }

    /// Whether fields behind the gate are kept.
    pub fn enabled(&self, gate: Gate) -> bool {
        let life = gate.life();
        let on = self.overrides.get(&gate).copied();
        let on = on.unwrap_or_else(|| life.on.is_some_and(|release| self.release >= release));
        on && match gate {
            // Binding conditions are reported in the device status.
            Gate::DeviceBindingConditions => self.enabled(Gate::ResourceClaimDeviceStatus),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_is_in_the_table_and_reads_back_from_its_name() {
        for gate in Gate::all() {
            assert_eq!(gate.life().gate, gate);
            assert_eq!(gate.to_string().parse(), Ok(gate));
        }
    }

    #[test]
    fn defaults_follow_the_release() {
        let on = |release, gate| Gates::new(release).enabled(gate);
        for (gate, first_on) in [
            (Gate::AdminAccess, Release::V1_34),
            (Gate::ResourceClaimDeviceStatus, Release::V1_33),
            (Gate::PrioritizedList, Release::V1_34),
            (Gate::PartitionableDevices, Release::V1_36),
            (Gate::DeviceTaints, Release::V1_36),
            (Gate::ConsumableCapacity, Release::V1_36),
            (Gate::DeviceBindingConditions, Release::V1_36),
            (Gate::FractionalCapacityRange, Release::V1_37),
        ] {
            for release in Release::ALL {
                assert_eq!(on(release, gate), release >= first_on, "{gate} in {release}");
            }
        }
        assert!(Release::ALL.iter().all(|&release| !on(release, Gate::ListTypeAttributes)));
    }

    #[test]
    fn a_gate_can_only_be_set_where_it_exists_and_is_not_locked() {
        let gates = Gates::new(Release::V1_34).with_flag("DRADeviceTaints=true, DRAPartitionableDevices=true").unwrap();
        assert!(gates.enabled(Gate::DeviceTaints) && gates.enabled(Gate::PartitionableDevices));

        let refused = |release, flag: &str| Gates::new(release).with_flag(flag).unwrap_err();
        assert!(matches!(refused(Release::V1_32, "DRADeviceTaints=true"), GateError::NotYet { .. }));
        assert_eq!(refused(Release::V1_36, "DRAAdminAccess=false"), GateError::Locked(Gate::AdminAccess));
        assert_eq!(refused(Release::V1_36, "DRAMagic=true"), GateError::Unknown("DRAMagic".into()));
        assert!(matches!(refused(Release::V1_36, "DRADeviceTaints"), GateError::Malformed(_)));
    }

    #[test]
    fn binding_conditions_need_the_device_status() {
        let gates = Gates::new(Release::V1_36).with(Gate::ResourceClaimDeviceStatus, false).unwrap();
        assert!(!gates.enabled(Gate::DeviceBindingConditions));
    }
}
