//! What can be read of a record that cannot be used: damaged, or of a schema that is not known here.
//!
//! The containers of its claim may be running, on GPUs that nobody else must be given. So the GPUs that it names, wherever
//! it names them, are taken to be held by its claim alone. That errs on the safe side for one whose last write did not get
//! through, and ends when the claim is unprepared or gone.
//!
//! Of a GPU of which nothing but parts is named, only those are held. That takes a list of devices without a hole: what is
//! missing in it may be another part.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::claim::ClaimName;
use crate::claim::plan::{Part, Usage};
use crate::device::mig::Placement;
use crate::device::{GpuUuid, MigUuid};

/// What is left of a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Remnant {
    /// Whose it was, if that can be read.
    pub(super) name: Option<ClaimName>,
    /// The GPUs that it names. None: nobody knows which it held.
    pub(super) gpus: BTreeSet<GpuUuid>,
    /// Those of which it may have more than the parts below.
    pub(super) whole: BTreeSet<GpuUuid>,
    /// The parts of GPUs that it names.
    pub(super) parts: Vec<LeftPart>,
    /// There may be something to take back that only a newer version of this driver knows.
    pub(super) is_newer: bool,
}

/// A part of a GPU, as a record that cannot be used names it. Everything else that it says of the device may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct LeftPart {
    /// Of which GPU.
    pub(super) gpu: GpuUuid,
    /// Which part of it.
    pub(super) part: Part,
    /// How it is used. In doubt, nobody else may.
    #[serde(default = "exclusively")]
    pub(super) usage: Usage,
    /// The MIG device that was made for it, if that was known.
    #[serde(default)]
    pub(super) made: Option<LeftMade>,
}

/// A MIG device that this plugin had made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct LeftMade {
    /// Its identity.
    pub(super) uuid: MigUuid,
}

// === impl Remnant ===

impl Remnant {
    /// Reads what can be read. A text that is cut off, or has a hole, still has what stands between quotes elsewhere.
    pub(super) fn of(bytes: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Named {
            claim: ClaimName,
        }
        let name = serde_json::from_slice::<Named>(bytes).ok().map(|named| named.claim);
        let texts = bytes.split(|byte| *byte == b'"').filter_map(|text| std::str::from_utf8(text).ok());
        let found: Vec<_> = texts.filter_map(|text| GpuUuid::parse(text).ok()).collect();
        let parts = parts(bytes);
        let is_all = lists_all_devices(bytes);
        let count = |gpu: &GpuUuid| found.iter().filter(|found| *found == gpu).count();
        let has_only_parts =
            |gpu: &GpuUuid| is_all && parts.iter().filter(|part| part.gpu == *gpu).count() == count(gpu);
        let whole = found.iter().filter(|gpu| !has_only_parts(gpu)).cloned().collect();
        Self { name, gpus: found.into_iter().collect(), whole, parts, is_newer: false }
    }

    /// Adds what is left of another record of the same claim.
    pub(super) fn add(&mut self, other: Self) {
        let Self { name, gpus, whole, parts, is_newer } = other;
        self.name = self.name.take().or(name);
        self.gpus.extend(gpus);
        self.whole.extend(whole);
        for part in parts {
            if !self.parts.contains(&part) {
                self.parts.push(part);
            }
        }
        self.is_newer |= is_newer;
    }

    /// What its claim holds of a GPU, and how. `None` is all of it.
    pub(super) fn holds(&self, gpu: &GpuUuid) -> Vec<(Usage, Option<Placement>)> {
        if self.whole.contains(gpu) {
            return vec![(Usage::Exclusive, None)];
        }
        let parts = self.parts.iter().filter(|part| part.gpu == *gpu);
        parts.map(|part| (part.usage, Some(part.part.placement))).collect()
    }
}

// === impl LeftPart ===

impl LeftPart {
    /// Whether a MIG device was made for it, or was about to be.
    pub(super) fn is_made_by_us(&self) -> bool {
        self.part.uuid.is_none() && self.usage != Usage::Admin
    }
}

fn exclusively() -> Usage {
    Usage::Exclusive
}

/// The devices that are parts of GPUs, wherever they stand.
fn parts(bytes: &[u8]) -> Vec<LeftPart> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(start) = rest.iter().position(|byte| *byte == b'{') {
        let mut objects = serde_json::Deserializer::from_slice(&rest[start..]).into_iter::<LeftPart>();
        let end = match objects.next() {
            Some(Ok(part)) => {
                parts.push(part);
                objects.byte_offset()
            }
            _ => 1,
        };
        rest = &rest[start + end..];
    }
    parts
}

/// Whether the list of devices is there from its beginning to its end.
fn lists_all_devices(bytes: &[u8]) -> bool {
    const KEY: &[u8] = b"\"devices\":";
    let Some(start) = bytes.windows(KEY.len()).position(|window| window == KEY) else { return false };
    let list = &bytes[start + KEY.len()..];
    matches!(serde_json::Deserializer::from_slice(list).into_iter::<Vec<IgnoredAny>>().next(), Some(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"version": 7, "claim": {"uid": "a", "namespace": "team", "name": "train"},
        "parts": [{"gpu": "GPU-1", "note": "GPU-2 is not a GPU of it"}, {"on": ["GPU-3"]}]}"#;

    fn gpus(bytes: &[u8]) -> Vec<String> {
        Remnant::of(bytes).gpus.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_gpus_are_found_wherever_they_stand() {
        assert_eq!(gpus(RECORD.as_bytes()), ["GPU-1", "GPU-3"]);
        assert_eq!(Remnant::of(RECORD.as_bytes()).name.unwrap().to_string(), "team/train");
    }

    #[test]
    fn what_is_cut_off_or_has_a_hole_says_what_it_still_has() {
        let end = RECORD.find(", {\"on\"").unwrap();
        assert_eq!(gpus(&RECORD.as_bytes()[..end]), ["GPU-1"]);
        let mut hole = RECORD.as_bytes().to_vec();
        hole[..60].fill(0);
        hole[60] = 0xff;
        assert_eq!(gpus(&hole), ["GPU-1", "GPU-3"]);
        for nothing in ["", "{", "\0\0\0", "GPU-1"] {
            assert_eq!(Remnant::of(nothing.as_bytes()).name, None);
        }
        assert_eq!(gpus(b"{"), Vec::<String>::new());
    }

    const PARTS: &str = r#"{"version": 2, "claim": {"uid": "a", "namespace": "team", "name": "train"}, "devices": [
        {"gpu": "GPU-1", "part": {"profile": 9, "start": 4, "size": 4}, "made": {"uuid": "MIG-1", "gpuInstance": 2}},
        {"gpu": "GPU-1", "part": {"profile": 19, "start": 0, "size": 1}, "usage": "Admin"},
        {"gpu": "GPU-2", "part": {"profile": 19, "start": 0, "size": 1}}, {"gpu": "GPU-2"},
        {"gpu": "GPU-3", "part": {"profile": 19, "size": 1}}], "state": 7}"#;

    /// What is held of `GPU-<number>`.
    fn held(bytes: &[u8], number: u32) -> Vec<(Usage, Option<Placement>)> {
        Remnant::of(bytes).holds(&GpuUuid::parse(&format!("GPU-{number}")).unwrap())
    }

    #[test]
    fn of_a_gpu_that_is_named_only_with_parts_only_those_are_held() {
        let at = |start, size| Some(Placement { start, size });
        let parts = vec![(Usage::Exclusive, at(4, 4)), (Usage::Admin, at(0, 1))];
        let whole = vec![(Usage::Exclusive, None)];
        assert_eq!(held(PARTS.as_bytes(), 1), parts);
        assert_eq!(held(PARTS.as_bytes(), 2), whole, "a device of it is no part");
        assert_eq!(held(PARTS.as_bytes(), 3), whole, "nobody knows where the part is");
        assert_eq!(held(PARTS.as_bytes(), 4), []);
        let elsewhere = PARTS.replace(": 7}", r#": "GPU-1"}"#);
        assert_eq!(held(elsewhere.as_bytes(), 1), whole, "it is named outside of the devices as well");
        let mut hole = PARTS.as_bytes().to_vec();
        hole[..70].fill(0);
        assert_eq!(held(&hole, 1), parts, "the list of devices is there");
        let mut both = Remnant::of(PARTS.as_bytes());
        both.add(Remnant::of(elsewhere.as_bytes()));
        assert_eq!((both.parts.len(), both.holds(&GpuUuid::parse("GPU-1").unwrap())), (3, whole));
    }

    #[test]
    fn a_list_of_devices_with_a_hole_holds_whole_gpus_and_still_says_which_parts_were_made() {
        for end in ["},\n        {\"gpu\": \"GPU-2\"", "], \"state\""] {
            let cut = &PARTS.as_bytes()[..PARTS.find(end).unwrap()];
            assert_eq!(held(cut, 1), [(Usage::Exclusive, None)], "{end}");
            let first = Remnant::of(cut).parts.remove(0);
            assert_eq!((first.part.profile, first.is_made_by_us()), (9, true));
            assert_eq!(first.made.unwrap().uuid.as_str(), "MIG-1");
        }
    }
}
