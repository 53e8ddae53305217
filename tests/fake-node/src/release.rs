//! The Kubernetes releases that the fakes can play.

use std::fmt;
use std::str::FromStr;

/// A minor release. Ordered, so that rules can say "from 1.34 on".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Release {
    /// 1.32: v1beta1, behind a gate.
    V1_32,
    /// 1.33
    V1_33,
    /// 1.34: DRA is generally available, v1.
    V1_34,
    /// 1.35
    V1_35,
    /// 1.36: partitionable devices, taints and consumable capacity on by default.
    V1_36,
    /// 1.37
    V1_37,
}

/// Not a release that the fakes play.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a release that can be played; known are {known}", known = names())]
pub struct UnknownRelease(String);

// === impl Release ===

impl Release {
    /// All releases, oldest first.
    pub const ALL: [Self; 6] = [Self::V1_32, Self::V1_33, Self::V1_34, Self::V1_35, Self::V1_36, Self::V1_37];

    /// The minor number.
    pub fn minor(self) -> u32 {
        match self {
            Self::V1_32 => 32,
            Self::V1_33 => 33,
            Self::V1_34 => 34,
            Self::V1_35 => 35,
            Self::V1_36 => 36,
            Self::V1_37 => 37,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor())
    }
}

impl FromStr for Release {
    type Err = UnknownRelease;

    fn from_str(text: &str) -> Result<Self, UnknownRelease> {
        Self::ALL.into_iter().find(|r| r.to_string() == text).ok_or_else(|| UnknownRelease(text.to_owned()))
    }
}

fn names() -> String {
    Release::ALL.map(|r| r.to_string()).join(", ")
}
