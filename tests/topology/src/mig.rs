//! MIG: how a GPU can be partitioned, and the rules by which instances come and go.
//!
//! A [`Table`] is what one board offers: its GPU instance profiles with their real numbers. [`Instances`] is what exists
//! on one GPU at the moment, a part of its [`GpuState`](crate::GpuState). The rules are those of the driver, and pure:
//! `mock-nvml` applies them for programs, and [`NodeDir`](crate::NodeDir) for a test that plays the administrator.
//!
//! ```text
//!  memory slice   0   1   2   3   4   5   6   7
//!                 1g  1g  1g  1g  1g  1g  1g         a GPU instance occupies memory slices,
//!                 └ 2g ┘  └ 2g ┘  └ 2g ┘             its size is not its number of compute slices
//!                 └─── 3g or 4g ┘ └──── 3g ────┘
//!                 └───────────── 7g ───────────┘
//! ```

mod instances;

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::Error;

pub use instances::{ComputeInstance, GpuInstance, Instances};

/// Name and content of every built-in table. [`Board::mig`](crate::Board::mig) refers to them.
const TABLES: [(&str, &str); 12] = [
    ("a100-40gb", include_str!("../mig/a100-40gb.json")),
    ("a100-80gb", include_str!("../mig/a100-80gb.json")),
    ("a30", include_str!("../mig/a30.json")),
    ("a30-two-of-a-name", include_str!("../mig/a30-two-of-a-name.json")),
    ("h100-80gb-sxm", include_str!("../mig/h100-80gb-sxm.json")),
    ("h100-80gb-pcie", include_str!("../mig/h100-80gb-pcie.json")),
    ("h100-94gb-nvl", include_str!("../mig/h100-94gb-nvl.json")),
    ("gh200-96gb", include_str!("../mig/gh200-96gb.json")),
    ("h200-141gb", include_str!("../mig/h200-141gb.json")),
    ("b200", include_str!("../mig/b200.json")),
    ("gb200", include_str!("../mig/gb200.json")),
    ("rtx-pro-6000-96gb", include_str!("../mig/rtx-pro-6000-96gb.json")),
];

/// `NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2`: one compute slice with the memory of two.
const DOUBLE_MEMORY: u32 = 9;

/// Compute instance profiles: NVML index, which is also the id; compute slices; where they may start.
const COMPUTE_PROFILES: [(u32, u32, &[u32]); 5] =
    [(0, 1, &[0, 1, 2, 3, 4, 5, 6]), (1, 2, &[0, 2, 4]), (2, 3, &[0, 4]), (3, 4, &[0]), (4, 7, &[0])];

/// The one compute instance profile of a GPU instance with double memory.
const COMPUTE_DOUBLE_MEMORY: u32 = 7;

/// What one board can be partitioned into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Where the values were read, and which of them are invented.
    pub source: String,
    /// GPU instance profiles. Two may have the same name.
    pub profiles: Vec<Profile>,
}

/// A GPU instance profile: a line of `nvidia-smi mig -lgip`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`, by which NVML describes profiles.
    pub index: u32,
    /// By which NVML creates instances. The same id means something else on another board.
    pub id: u32,
    /// For example `1g.10gb+me`.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// Memory in MiB; not what the name says.
    pub memory_mib: u64,
    /// Streaming multiprocessors. They do not add up to those of the GPU.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    #[serde(default)]
    pub encoders: u32,
    /// JPEG engines.
    pub jpeg_engines: u32,
    /// Optical flow engines.
    pub ofa_engines: u32,
    /// How many instances an otherwise empty GPU can have.
    pub instances: u32,
    /// Memory slices that an instance occupies.
    pub size: u32,
    /// Memory slices where one may start.
    pub starts: Vec<u32>,
    /// Ids of the instances at these starts, where they differ from the rule that a full binary tree over the memory
    /// slices is numbered from its root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_instance_ids: Vec<u32>,
}

/// A compute instance profile within a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeProfile {
    /// `NVML_COMPUTE_INSTANCE_PROFILE_*`, and the id.
    pub id: u32,
    /// For example `1c.3g.40gb`, or that of the GPU instance profile for one that fills it.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// How many an otherwise empty GPU instance can have.
    pub instances: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute slices of the GPU instance where one may start.
    pub starts: Vec<u32>,
}

/// Consecutive slices: memory slices of a GPU, or compute slices of a GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The first one.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// Why the driver does not create or destroy an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The board has no MIG.
    #[error("there is no such GPU, or it cannot be partitioned")]
    NotCapable,
    /// MIG mode is off.
    #[error("MIG mode is off")]
    Off,
    /// The board, or the GPU instance, has no profile with this id.
    #[error("there is no profile with this id")]
    NoProfile,
    /// No instance of this profile may ever be there.
    #[error("the profile has no such placement")]
    NoPlacement,
    /// Slices are occupied, engines used up, or there are as many of this profile as there can be.
    #[error("there is no room left")]
    NoRoom,
    /// There is no such instance.
    #[error("there is no such instance")]
    NoInstance,
    /// Processes use the compute instance, compute instances live in the GPU instance, or instances on the GPU whose mode
    /// should change.
    #[error("it is in use by instances or processes")]
    InUse,
}

// === impl Table ===

impl Table {
    /// A built-in table.
    pub fn builtin(name: &str) -> Result<&'static Self, Error> {
        static PARSED: [OnceLock<Result<Table, String>>; TABLES.len()] = [const { OnceLock::new() }; TABLES.len()];
        let Some(at) = TABLES.iter().position(|(known, _)| *known == name) else {
            let known = TABLES.map(|(known, _)| known).join(", ");
            return Err(Error::Invalid(format!("there is no MIG table {name:?}; the built-in ones are {known}")));
        };
        let parsed = PARSED[at].get_or_init(|| serde_json::from_str(TABLES[at].1).map_err(|error| error.to_string()));
        parsed.as_ref().map_err(|error| Error::Invalid(format!("MIG table {name}: {error}")))
    }

    /// The profile with an id.
    pub fn profile(&self, id: u32) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// The profile with an NVML index.
    pub fn profile_at(&self, index: u32) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.index == index)
    }

    /// Compute slices of the GPU, which is also how many MIG devices it can have.
    pub fn slices(&self) -> u32 {
        self.profiles.iter().map(|profile| profile.slices).max().unwrap_or(0)
    }

    /// What a GPU instance of a profile can be divided into.
    pub fn compute_profiles(&self, of: &Profile) -> Vec<ComputeProfile> {
        let filling = |id| ComputeProfile {
            id,
            name: of.name.clone(),
            slices: of.slices,
            instances: 1,
            multiprocessors: of.multiprocessors,
            starts: vec![0],
        };
        if of.index == DOUBLE_MEMORY {
            return vec![filling(COMPUTE_DOUBLE_MEMORY)];
        }
        let of_one_slice = self.profiles.iter().filter(|profile| profile.slices == 1).map(|p| p.multiprocessors).min();
        let mut profiles = Vec::new();
        for (id, slices, starts) in COMPUTE_PROFILES {
            if slices == of.slices {
                profiles.push(filling(id));
            // Four slices are halved and quartered only.
            } else if slices < of.slices && (of.slices, slices) != (4, 3) {
                let starts: Vec<_> = starts.iter().copied().filter(|start| start + slices <= of.slices).collect();
                profiles.push(ComputeProfile {
                    id,
                    name: format!("{slices}c.{}", of.name),
                    slices,
                    instances: of.slices / slices,
                    multiprocessors: slices * of_one_slice.unwrap_or(0),
                    starts,
                });
            }
        }
        profiles
    }

    fn memory_slices(&self) -> u32 {
        self.profiles.iter().map(|profile| profile.size).max().unwrap_or(0)
    }

    /// The id that the driver would like to give to an instance.
    fn gpu_instance_id(&self, profile: &Profile, start: u32) -> u32 {
        let pinned = profile.starts.iter().zip(&profile.gpu_instance_ids).find(|(known, _)| **known == start);
        pinned.map_or_else(|| self.memory_slices() / profile.size - 1 + start / profile.size, |(_, &id)| id)
    }
}

// === impl Profile ===

impl Profile {
    /// Everywhere an instance may be.
    pub fn placements(&self) -> impl Iterator<Item = Placement> {
        self.starts.iter().map(|&start| Placement { start, size: self.size })
    }

    /// What an instance takes of the GPU, beside memory slices.
    fn demand(&self) -> [u32; 7] {
        [
            self.slices,
            self.multiprocessors,
            self.copy_engines,
            self.decoders,
            self.encoders,
            self.jpeg_engines,
            self.ofa_engines,
        ]
    }
}

// === impl ComputeProfile ===

impl ComputeProfile {
    /// Everywhere an instance may be.
    pub fn placements(&self) -> impl Iterator<Item = Placement> {
        self.starts.iter().map(|&start| Placement { start, size: self.slices })
    }
}

// === impl Placement ===

impl Placement {
    /// Whether two have a slice in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> impl Iterator<Item = (&'static str, &'static Table)> {
        TABLES.iter().map(|(name, _)| (*name, Table::builtin(name).unwrap()))
    }

    #[test]
    fn every_table_says_where_its_values_come_from_and_repeats_no_index_or_id() {
        for (name, table) in tables() {
            assert!(table.source.contains("Invented: "), "{name} does not say which values are invented");
            for (at, profile) in table.profiles.iter().enumerate() {
                let before = &table.profiles[..at];
                assert!(!before.iter().any(|other| other.id == profile.id || other.index == profile.index), "{name}");
            }
        }
    }

    #[test]
    fn an_empty_gpu_has_room_for_as_many_instances_as_each_profile_says() {
        for (name, table) in tables() {
            for profile in &table.profiles {
                let room = Instances::default().room(table, profile.id);
                assert_eq!(room, Ok(profile.instances), "{name}: {}", profile.name);
            }
        }
    }

    #[test]
    fn boards_of_seven_slices_have_twenty_five_placements() {
        for (name, table) in tables().filter(|(_, table)| table.slices() == 7) {
            assert_eq!(table.profiles.iter().map(|profile| profile.starts.len()).sum::<usize>(), 25, "{name}");
        }
    }

    #[test]
    fn a_gpu_instance_is_divided_as_the_driver_divides_it() {
        let table = Table::builtin("a100-40gb").unwrap();
        let divided = |id| {
            let profiles = table.compute_profiles(table.profile(id).unwrap());
            profiles.into_iter().map(|p| (p.id, p.name, p.instances, p.multiprocessors)).collect::<Vec<_>>()
        };
        let three = [(0, "1c.3g.20gb", 3, 14), (1, "2c.3g.20gb", 1, 28), (2, "3g.20gb", 1, 42)];
        assert_eq!(divided(9), three.map(|(id, name, count, sms)| (id, name.to_owned(), count, sms)));
        assert_eq!(divided(0).iter().map(|profile| profile.2).collect::<Vec<_>>(), [7, 3, 2, 1, 1]);
        assert_eq!(divided(5).iter().map(|profile| profile.0).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(divided(15), [(7, "1g.10gb".to_owned(), 1, 14)]);
    }
}
