//! Whether a claim may have what it was allocated, beside those who have it now.

use std::collections::BTreeMap;
use std::fmt;

use super::{Plan, PlanError, Planned, Usage};
use crate::claim::{ClaimName, ClaimUid};
use crate::device::GpuUuid;
use crate::device::mig::Placement;

/// Who holds which GPU.
pub type Holders = BTreeMap<GpuUuid, Vec<Holder>>;

/// A claim that holds a GPU or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its identity.
    pub uid: ClaimUid,
    /// Its name, for people. `None` if nobody knows it any more.
    pub name: Option<ClaimName>,
    /// How it uses it.
    pub usage: Usage,
    /// Which place of the GPU it holds; `None` is all of it.
    pub place: Option<Placement>,
}

// === impl Plan ===

impl Plan {
    /// Whether the claim may have its GPUs beside those who hold them now. This is about silicon, not about names: the
    /// scheduler allocates names, and after a force-deleted pod or a lost name its books and the machine can differ.
    pub fn admit(&self, uid: &ClaimUid, holders: &Holders) -> Result<(), PlanError> {
        for device in &self.devices {
            let place = device.part.as_ref().map(|part| part.placement);
            let others = holders.get(&device.gpu).into_iter().flatten().filter(|holder| holder.uid != *uid);
            for other in others {
                if overlap(place, other.place) && !device.wanted.usage.goes_with(other.usage) {
                    let device = device.wanted.device.clone();
                    return Err(PlanError::InUse { device, holder: other.clone() });
                }
            }
        }
        Ok(())
    }
}

/// Refuses devices of one claim that cannot be had together.
pub(super) fn refuse_overlap(devices: &[Planned]) -> Result<(), PlanError> {
    for (number, one) in devices.iter().enumerate() {
        let mut of_gpu = devices[..number].iter().filter(|other| other.gpu == one.gpu);
        if let Some(other) = of_gpu.find(|other| !one.goes_with(other)) {
            let [device, other] = [one, other].map(|planned| planned.wanted.device.clone());
            return Err(PlanError::Overlap { device: other, other: device });
        }
    }
    Ok(())
}

/// Whether two have silicon of one GPU in common. A device that an administrator made is held like any other: one made in
/// its place has the silicon that its pods use.
fn overlap(one: Option<Placement>, other: Option<Placement>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.overlaps(other),
        (None, _) | (_, None) => true,
    }
}

// === impl Planned ===

impl Planned {
    /// Whether a claim can have both, of the same GPU. A part that is made for it is made once.
    fn goes_with(&self, other: &Self) -> bool {
        let place = |planned: &Self| planned.part.as_ref().map(|part| part.placement);
        let is_made = |planned: &Self| planned.part.as_ref().is_some_and(|part| part.uuid.is_none());
        let (mine, theirs) = (self.wanted.usage, other.wanted.usage);
        if [mine, theirs].contains(&Usage::Admin) || !overlap(place(self), place(other)) {
            return true;
        }
        mine.goes_with(theirs) && !is_made(self) && !is_made(other)
    }
}

// === impl Holder ===

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => name.fmt(f),
            None => write!(f, "with the UID {}", self.uid),
        }
    }
}

// === impl Usage ===

impl Usage {
    fn goes_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Admin, _) | (_, Self::Admin) | (Self::Shared, Self::Shared))
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;
    use crate::claim::example::{POOL, mk_claim, mk_node, mk_uid, mk_uuid};
    use crate::device::Partitioning;
    use crate::device::example::{mk_instance, mk_mig};

    fn mk_holder(usage: Usage, place: Option<Placement>) -> Holders {
        let name = Some(ClaimName { namespace: "team".into(), name: "b".into() });
        Holders::from([(mk_uuid(0), vec![Holder { uid: mk_uid("b"), name, usage, place }])])
    }

    #[test]
    fn a_gpu_goes_to_two_claims_only_as_shares_or_with_admin_access() {
        use Usage::{Admin, Exclusive, Shared};
        let cases = [
            (Exclusive, Exclusive, false),
            (Exclusive, Shared, false),
            (Shared, Exclusive, false),
            (Shared, Shared, true),
            (Admin, Exclusive, true),
            (Exclusive, Admin, true),
        ];
        for (mine, theirs, legal) in cases {
            let mut plan = plan(&mk_claim("a", &[("main", "gpu-0")]), POOL, &mk_node(1)).unwrap();
            plan.devices[0].wanted.usage = mine;
            let holders = mk_holder(theirs, None);
            assert_eq!(plan.admit(&mk_uid("a"), &holders).is_ok(), legal, "{mine:?} beside {theirs:?}");
            assert!(plan.admit(&mk_uid("b"), &holders).is_ok(), "a claim is not in its own way");
        }
    }

    #[test]
    fn a_refusal_names_the_claim_that_holds_the_gpu() {
        let plan = plan(&mk_claim("a", &[("main", "gpu-0")]), POOL, &mk_node(1)).unwrap();
        let error = plan.admit(&mk_uid("a"), &mk_holder(Usage::Exclusive, None)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "gpu-0 is in use by claim team/b until that claim's pods are gone from this node"
        );
    }

    #[test]
    fn parts_of_a_gpu_go_to_several_claims_if_they_do_not_overlap() {
        let mut node = mk_node(1);
        (node.gpus[0].mig, node.gpus[0].partitioning) = (mk_mig(false), Partitioning::Dynamic { whole: true });
        let held = |start, size| Some(Placement { start, size });
        let (whole, one, three, all) =
            ("gpu-0", "gpu-0-mig-1g5gb-19-3", "gpu-0-mig-3g20gb-9-4", "gpu-0-mig-7g40gb-0-0");
        for (wanted, held, legal) in [
            (whole, held(4, 4), false),
            (one, None, false),
            (all, held(4, 4), false),
            (three, held(4, 4), false),
            (three, held(0, 8), false),
            (one, held(0, 4), false),
            (one, held(4, 4), true),
            (three, held(0, 4), true),
        ] {
            let plan = plan(&mk_claim("a", &[("main", wanted)]), POOL, &node).unwrap();
            let admitted = plan.admit(&mk_uid("a"), &mk_holder(Usage::Exclusive, held));
            assert_eq!(admitted.is_ok(), legal, "{wanted} beside {held:?}");
            assert!(admitted.is_ok() || admitted.unwrap_err().to_string().contains("in use by claim team/b"));
            assert!(plan.admit(&mk_uid("a"), &mk_holder(Usage::Admin, held)).is_ok(), "to look is always allowed");
        }
    }

    #[test]
    fn a_claim_has_no_silicon_twice_but_to_look_or_as_shares() {
        let mut node = mk_node(2);
        (node.gpus[0].mig, node.gpus[0].partitioning) = (mk_mig(false), Partitioning::Dynamic { whole: true });
        node.gpus[1].mig = mk_mig(true);
        node.gpus[1].mig.instances = vec![mk_instance(2, 9, 4, &[3])];
        let (whole, front, back, last) =
            ("gpu-0", "gpu-0-mig-3g20gb-9-0", "gpu-0-mig-3g20gb-9-4", "gpu-0-mig-1g5gb-19-6");
        let made_by_an_administrator = "gpu-1-mig-3g20gb-9-4";
        let (no_admin, shares) = ([false, false], [Some("one".to_owned()), Some("two".to_owned())]);
        for (one, other, admin_access, share_ids, legal) in [
            (whole, back, no_admin, [None, None], false),
            (back, whole, no_admin, [None, None], false),
            (back, last, no_admin, [None, None], false),
            (front, last, no_admin, [None, None], true),
            (front, back, no_admin, [None, None], true),
            (back, whole, [false, true], [None, None], true),
            (whole, back, [true, false], [None, None], true),
            (back, back, no_admin, shares.clone(), false),
            (whole, whole, no_admin, shares.clone(), true),
            (made_by_an_administrator, made_by_an_administrator, no_admin, shares, true),
            (back, made_by_an_administrator, no_admin, [None, None], true),
        ] {
            let mut claim = mk_claim("a", &[("one", one), ("other", other)]);
            for (result, (admin, share)) in claim.results.iter_mut().zip(admin_access.into_iter().zip(share_ids)) {
                (result.admin_access, result.share_id) = (admin, share);
            }
            let refused = plan(&claim, POOL, &node).err().map(|error| error.to_string());
            assert_eq!(refused.is_none(), legal, "{one} and {other}: {refused:?}");
            let expected = format!("the claim was given both {one} and {other}, which need the same part of one GPU");
            assert!(refused.is_none_or(|refused| refused.starts_with(&expected)));
        }
    }
}
