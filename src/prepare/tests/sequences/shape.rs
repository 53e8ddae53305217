//! What a claim is allocated, and what that means to it and to others.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::GPUS;
use crate::claim::Claim;
use crate::claim::example::{POOL, mk_claim, mk_uuid};
use crate::prepare::PreparedDevice;

/// An allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Whole(u32),
    /// This GPU and the next.
    Two(u32),
    /// One GPU by two requests of one claim.
    Twice(u32),
    Admin(u32),
    /// The same share id for all claims.
    Share(u32),
    /// Two shares of one GPU in one claim.
    TwoShares(u32),
}

// === impl Shape ===

impl Shape {
    pub(super) fn claim(self, uid: &str) -> Claim {
        let name = |gpu: u32| format!("gpu-{}", gpu % GPUS);
        let results = |results: &[(&str, u32)]| {
            let names: Vec<_> = results.iter().map(|(request, gpu)| (*request, name(*gpu))).collect();
            let pairs: Vec<_> = names.iter().map(|(request, gpu)| (*request, gpu.as_str())).collect();
            mk_claim(uid, &pairs)
        };
        match self {
            Self::Whole(gpu) => results(&[("main", gpu)]),
            Self::Two(gpu) => results(&[("one", gpu), ("two", gpu + 1)]),
            Self::Twice(gpu) => results(&[("one", gpu), ("two/big", gpu)]),
            Self::Admin(gpu) => {
                let mut claim = results(&[("main", gpu)]);
                claim.results[0].admin_access = true;
                claim
            }
            Self::Share(gpu) => {
                let mut claim = results(&[("main", gpu)]);
                claim.results[0].share_id = Some("share".to_owned());
                claim
            }
            Self::TwoShares(gpu) => {
                let mut claim = results(&[("one", gpu), ("two", gpu)]);
                claim.results[0].share_id = Some("first".to_owned());
                claim.results[1].share_id = Some("second".to_owned());
                claim
            }
        }
    }

    pub(super) fn gpus(self) -> BTreeSet<u32> {
        match self {
            Self::Two(gpu) => [gpu, (gpu + 1) % GPUS].into(),
            Self::Whole(gpu) | Self::Twice(gpu) | Self::Admin(gpu) | Self::Share(gpu) | Self::TwoShares(gpu) => {
                [gpu].into()
            }
        }
    }

    pub(super) fn goes_with(self, other: Self) -> bool {
        let looks = |shape| matches!(shape, Self::Admin(_));
        let shares = |shape| matches!(shape, Self::Share(_) | Self::TwoShares(_));
        self.gpus().is_disjoint(&other.gpus()) || looks(self) || looks(other) || (shares(self) && shares(other))
    }

    /// What a prepare answers: request, device, CDI id and share of each.
    pub(super) fn answer(self, uid: &str) -> Vec<PreparedDevice> {
        let device = |requests: &[&str], gpu: u32, share: Option<&str>| PreparedDevice {
            requests: requests.iter().map(ToString::to_string).collect(),
            pool: POOL.to_owned(),
            device: format!("gpu-{}", gpu % GPUS),
            cdi_ids: vec![format!("k8s.gpu.nvidia.com/claim={uid}-gpu-{}", gpu % GPUS)],
            share_id: share.map(str::to_owned),
            gpu: mk_uuid(gpu % GPUS),
            mig: None,
        };
        match self {
            Self::Whole(gpu) | Self::Admin(gpu) => vec![device(&["main"], gpu, None)],
            Self::Two(gpu) => vec![device(&["one"], gpu, None), device(&["two"], gpu + 1, None)],
            Self::Twice(gpu) => vec![device(&["one", "two"], gpu, None)],
            Self::Share(gpu) => vec![device(&["main"], gpu, Some("share"))],
            Self::TwoShares(gpu) => vec![device(&["one"], gpu, Some("first")), device(&["two"], gpu, Some("second"))],
        }
    }
}

pub(super) fn any_shape() -> impl Strategy<Value = Shape> {
    (0..GPUS).prop_flat_map(|gpu| {
        prop_oneof![
            3 => Just(Shape::Whole(gpu)),
            2 => Just(Shape::Two(gpu)),
            1 => Just(Shape::Twice(gpu)),
            1 => Just(Shape::Admin(gpu)),
            2 => Just(Shape::Share(gpu)),
            1 => Just(Shape::TwoShares(gpu)),
        ]
    })
}
