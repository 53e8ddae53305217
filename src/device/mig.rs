//! Multi-Instance GPU: how a GPU is divided, and how it could be.
//!
//! ```text
//!  GPU ──▶ GPU instance: a placement of a profile      ──▶ compute instance ──▶ MIG device, with a UUID
//!          3g.20gb at memory slices 4 to 7, media          all of its           what a container gets
//!          engines of its own                              multiprocessors
//! ```
//!
//! Profiles, placements, sizes and counts are what NVML says of this very GPU. Nothing is derived from a name or by
//! multiplication: ids mean other shapes on other boards, and multiprocessors do not add up.

use serde::{Deserialize, Serialize};

use super::ParseError;

/// What is true of a GPU's partitioning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mig {
    /// The board can be partitioned.
    pub capable: bool,
    /// MIG mode is on now: the GPU cannot be used as a whole.
    pub enabled: bool,
    /// MIG mode can be switched without a reset of the GPU: since Hopper.
    pub resetless: bool,
    /// What GPU instances it could have, by profile id. Empty where NVML does not say.
    pub profiles: Vec<Profile>,
    /// What GPU instances it has, by id.
    pub instances: Vec<GpuInstance>,
}

/// By whom, and so how, a GPU is partitioned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Partitioning {
    /// By an administrator: the GPU is offered as a whole, or in MIG mode what instances it has.
    #[default]
    Static,
    /// By this plugin, when a claim is prepared: every placement of every profile is offered.
    Dynamic {
        /// The whole GPU is offered beside them: its MIG mode is off and needs no reset, or this plugin has turned it on.
        whole: bool,
    },
}

/// A shape of GPU instances, `nvmlGpuInstanceProfileInfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// What NVML knows it by on this GPU; not its index.
    pub id: u32,
    /// The name that NVIDIA's driver publishes: `1g.5gb`, `1g.10gb+me`. Two profiles can have one name.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG engines.
    pub jpeg_engines: u32,
    /// Optical flow accelerators.
    pub ofa_engines: u32,
    /// How many can exist at once.
    pub max_instances: u32,
    /// Where it can be, in ascending order.
    pub placements: Vec<Placement>,
}

/// A place in a GPU, in memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The first memory slice.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// What NVML and the capability files know it by, as long as it exists.
    pub id: u32,
    /// Its profile.
    pub profile: u32,
    /// Where it is.
    pub placement: Placement,
    /// Its compute instances, by id. None: nobody can use it.
    pub compute: Vec<ComputeInstance>,
    /// Neither this plugin made it nor is it offered: on a GPU that this plugin partitions, it is in the way.
    pub foreign: bool,
}

/// A compute instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstance {
    /// What NVML and the capability files know it by, within its GPU instance.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Its identity as a device. New each time that one is made.
    pub uuid: MigUuid,
}

/// The UUID of a MIG device as NVML prints it: `MIG-` and a UUID in lower case. Opaque: drivers before 470 wrote it
/// otherwise.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MigUuid(String);

/// No GPU has more memory slices: 8 is the most that was built, and as many again leave room for other counters.
const MEMORY_SLICES: u32 = 16;

// === impl Mig ===

impl Mig {
    /// Into how many slices its memory is divided; 0 where it has no place for a GPU instance.
    pub fn memory_slices(&self) -> u32 {
        self.profiles.iter().flat_map(Profile::places).map(Placement::end).max().unwrap_or(0)
    }
}

// === impl Placement ===

impl Placement {
    /// Whether both need a memory slice that there is once.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// The first slice behind it.
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.size)
    }
}

// === impl Profile ===

impl Profile {
    /// Where it can be. What cannot be a place in a GPU is passed over.
    pub fn places(&self) -> impl Iterator<Item = Placement> {
        self.placements.iter().copied().filter(|place| place.size > 0 && place.end() <= MEMORY_SLICES)
    }

    /// How many fixed-function engines it has, of all kinds.
    pub fn engines(&self) -> u64 {
        [self.decoders, self.encoders, self.jpeg_engines, self.ofa_engines].map(u64::from).iter().sum()
    }
}

// === impl GpuInstance ===

impl GpuInstance {
    /// The MIG device that is all of it; `None` where it has none, or is divided further.
    pub fn device(&self, profile: &Profile) -> Option<&ComputeInstance> {
        match &self.compute[..] {
            [whole] if whole.slices == profile.slices => Some(whole),
            _ => None,
        }
    }
}

// === impl MigUuid ===

impl MigUuid {
    /// Accepts what can safely stand in an environment variable, a log line and an attribute: `MIG-` and up to 60
    /// characters of `[0-9a-zA-Z/-]`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '/');
        match text.strip_prefix("MIG-") {
            Some(rest) if !rest.is_empty() && rest.len() <= 60 && rest.chars().all(plain) => Ok(Self(text.to_owned())),
            _ => Err(ParseError { text: text.to_owned(), expected: "the UUID of a MIG device" }),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for MigUuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for MigUuid {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        Self::parse(&text)
    }
}

impl From<MigUuid> for String {
    fn from(uuid: MigUuid) -> Self {
        uuid.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_overlap_where_they_share_a_slice() {
        let at = |start, size| Placement { start, size };
        assert!(at(0, 4).overlaps(at(3, 1)) && at(3, 1).overlaps(at(0, 4)) && at(0, 8).overlaps(at(2, 2)));
        assert!(!at(0, 4).overlaps(at(4, 4)) && !at(4, 4).overlaps(at(0, 4)));
    }

    #[test]
    fn uuids_of_old_and_new_drivers_are_taken_and_nothing_else() {
        for text in ["MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/1/0"] {
            assert_eq!(MigUuid::parse(text).unwrap().as_str(), text);
        }
        for text in ["", "MIG-", "GPU-e86cb44c", "MIG-a b", "MIG-a\nb"] {
            assert!(MigUuid::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
