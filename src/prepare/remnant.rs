//! What can be read of a record that cannot be used: damaged, or of a schema that is not known here.
//!
//! The containers of its claim may be running, on GPUs that nobody else must be given. So the GPUs that it names, wherever
//! it names them, are taken to be held by its claim alone. That errs on the safe side for one whose last write did not get
//! through, and ends when the claim is unprepared or gone.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::claim::ClaimName;
use crate::device::GpuUuid;

/// What is left of a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Remnant {
    /// Whose it was, if that can be read.
    pub(super) name: Option<ClaimName>,
    /// The GPUs that it names. None: nobody knows which it held.
    pub(super) gpus: BTreeSet<GpuUuid>,
    /// There may be something to take back that only a newer version of this driver knows.
    pub(super) is_newer: bool,
}

impl Remnant {
    /// Reads what can be read. A text that is cut off, or has a hole, still has what stands between quotes elsewhere.
    pub(super) fn of(bytes: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Named {
            claim: ClaimName,
        }
        let name = serde_json::from_slice::<Named>(bytes).ok().map(|named| named.claim);
        let texts = bytes.split(|byte| *byte == b'"').filter_map(|text| std::str::from_utf8(text).ok());
        Self { name, gpus: texts.filter_map(|text| GpuUuid::parse(text).ok()).collect(), is_newer: false }
    }

    /// Adds what is left of another record of the same claim.
    pub(super) fn add(&mut self, other: Self) {
        let Self { name, gpus, is_newer } = other;
        self.name = self.name.take().or(name);
        self.gpus.extend(gpus);
        self.is_newer |= is_newer;
    }
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
}
