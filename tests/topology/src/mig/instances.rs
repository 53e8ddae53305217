//! The MIG instances of one GPU.

use serde::{Deserialize, Serialize};

use super::{ComputeProfile, Placement, Profile, Refusal, Table};

/// What exists on a GPU. Instances die with MIG mode and with a reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Instances {
    /// In the order of their creation.
    pub gpu_instances: Vec<GpuInstance>,
    /// How many instances of either kind were ever created.
    pub births: u32,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuInstance {
    /// Unique on the GPU among those that exist.
    pub id: u32,
    /// [`Profile::id`].
    pub profile: u32,
    /// Memory slices.
    pub placement: Placement,
    /// Its number among all that were ever created on the GPU, by which handles to it are told from handles to others.
    pub birth: u32,
    /// In the order of their creation.
    pub compute_instances: Vec<ComputeInstance>,
}

/// A compute instance. To programs it is a MIG device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeInstance {
    /// Unique in the GPU instance among those that exist.
    pub id: u32,
    /// [`ComputeProfile::id`].
    pub profile: u32,
    /// Compute slices of the GPU instance.
    pub placement: Placement,
    /// As for a GPU instance.
    pub birth: u32,
    /// The index of the MIG device on the GPU.
    pub index: u32,
    /// `MIG-` and a UUID that no other instance ever had.
    pub uuid: String,
    /// Processes that use it. It cannot be destroyed meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
}

// === impl Instances ===

impl Instances {
    /// A GPU instance by id.
    pub fn gpu_instance(&self, id: u32) -> Option<&GpuInstance> {
        self.gpu_instances.iter().find(|instance| instance.id == id)
    }

    /// All MIG devices with their GPU instances.
    pub fn devices(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.gpu_instances.iter().flat_map(|gi| gi.compute_instances.iter().map(move |ci| (gi, ci)))
    }

    /// How many more instances of a profile can be created.
    pub fn room(&self, table: &Table, profile: u32) -> Result<u32, Refusal> {
        let profile = table.profile(profile).ok_or(Refusal::NoProfile)?;
        let mut full = self.clone();
        let mut room = 0;
        while let Ok(placement) = full.place(table, profile, None) {
            full.add(table, profile, placement);
            room += 1;
        }
        Ok(room)
    }

    /// Creates a GPU instance, where asked or where it leaves most room for others, and answers its id.
    pub fn create(&mut self, table: &Table, profile: u32, at: Option<Placement>) -> Result<u32, Refusal> {
        let profile = table.profile(profile).ok_or(Refusal::NoProfile)?;
        let placement = self.place(table, profile, at)?;
        Ok(self.add(table, profile, placement))
    }

    /// Destroys a GPU instance.
    pub fn destroy(&mut self, id: u32) -> Result<(), Refusal> {
        let at = self.gpu_instances.iter().position(|instance| instance.id == id).ok_or(Refusal::NoInstance)?;
        if !self.gpu_instances[at].compute_instances.is_empty() {
            return Err(Refusal::InUse);
        }
        self.gpu_instances.remove(at);
        Ok(())
    }

    /// How many more compute instances of a profile can be created in a GPU instance.
    pub fn compute_room(&self, table: &Table, gpu_instance: u32, profile: u32) -> Result<u32, Refusal> {
        let instance = self.gpu_instance(gpu_instance).ok_or(Refusal::NoInstance)?;
        let profile = instance.compute_profile(table, profile)?;
        let free = profile.placements().filter(|&placement| instance.is_free(placement)).count();
        Ok(u32::try_from(free).unwrap_or(u32::MAX))
    }

    /// Creates a compute instance, where asked or at the first place, and answers its id.
    pub fn create_compute(
        &mut self,
        table: &Table,
        gpu_instance: u32,
        profile: u32,
        at: Option<Placement>,
        uuid: String,
    ) -> Result<u32, Refusal> {
        let index = lowest_free(|index| self.devices().any(|(_, ci)| ci.index == index));
        let position = self.gpu_instances.iter().position(|gi| gi.id == gpu_instance).ok_or(Refusal::NoInstance)?;
        let instance = &mut self.gpu_instances[position];
        let profile = instance.compute_profile(table, profile)?;
        let mut candidates = candidates(profile.placements(), at)?.into_iter();
        let placement = candidates.find(|&placement| instance.is_free(placement)).ok_or(Refusal::NoRoom)?;
        let id = lowest_free(|id| instance.compute_instance(id).is_some());
        self.births += 1;
        let created =
            ComputeInstance { id, profile: profile.id, placement, birth: self.births, index, uuid, pids: vec![] };
        instance.compute_instances.push(created);
        Ok(id)
    }

    /// Destroys a compute instance.
    pub fn destroy_compute(&mut self, gpu_instance: u32, id: u32) -> Result<(), Refusal> {
        let instance = self.gpu_instances.iter_mut().find(|gi| gi.id == gpu_instance).ok_or(Refusal::NoInstance)?;
        let at = instance.compute_instances.iter().position(|ci| ci.id == id).ok_or(Refusal::NoInstance)?;
        if !instance.compute_instances[at].pids.is_empty() {
            return Err(Refusal::InUse);
        }
        instance.compute_instances.remove(at);
        Ok(())
    }

    /// Where an instance would go.
    fn place(&self, table: &Table, profile: &Profile, at: Option<Placement>) -> Result<Placement, Refusal> {
        let candidates = candidates(profile.placements(), at)?;
        let alike = self.gpu_instances.iter().filter(|instance| instance.profile == profile.id).count();
        if alike >= profile.instances as usize || !self.has_engines(table, profile) {
            return Err(Refusal::NoRoom);
        }
        let free = candidates.into_iter().filter(|&placement| self.is_free(placement));
        free.min_by_key(|&placement| self.harm(table, placement)).ok_or(Refusal::NoRoom)
    }

    /// How many placements, of all profiles, would be lost to one.
    fn harm(&self, table: &Table, placement: Placement) -> usize {
        let all = table.profiles.iter().flat_map(Profile::placements);
        all.filter(|&other| other.overlaps(placement) && self.is_free(other)).count()
    }

    fn is_free(&self, placement: Placement) -> bool {
        !self.gpu_instances.iter().any(|instance| instance.placement.overlaps(placement))
    }

    /// Whether the GPU has enough of everything that its largest profiles have.
    fn has_engines(&self, table: &Table, profile: &Profile) -> bool {
        let mut wanted = profile.demand();
        for instance in &self.gpu_instances {
            let taken = table.profile(instance.profile).map_or([0; 7], Profile::demand);
            wanted = std::array::from_fn(|kind| wanted[kind] + taken[kind]);
        }
        wanted.iter().enumerate().all(|(kind, &wanted)| table.profiles.iter().any(|p| wanted <= p.demand()[kind]))
    }

    fn add(&mut self, table: &Table, profile: &Profile, placement: Placement) -> u32 {
        let is_taken = |id: u32| self.gpu_instance(id).is_some();
        let wanted = table.gpu_instance_id(profile, placement.start);
        // Two profiles of one size can want the same id for different places: the later one gets its neighbour's.
        let alike = table.profiles.iter().filter(|other| other.size == profile.size);
        let ids = alike.flat_map(|other| other.starts.iter().map(|&start| table.gpu_instance_id(other, start)));
        let id = std::iter::once(wanted).chain(ids).find(|&id| !is_taken(id)).unwrap_or(wanted);
        self.births += 1;
        let birth = self.births;
        self.gpu_instances.push(GpuInstance { id, profile: profile.id, placement, birth, compute_instances: vec![] });
        id
    }
}

// === impl GpuInstance ===

impl GpuInstance {
    /// A compute instance by id.
    pub fn compute_instance(&self, id: u32) -> Option<&ComputeInstance> {
        self.compute_instances.iter().find(|instance| instance.id == id)
    }

    /// A profile of what it can be divided into.
    pub fn compute_profile(&self, table: &Table, id: u32) -> Result<ComputeProfile, Refusal> {
        let profile = table.profile(self.profile).ok_or(Refusal::NoProfile)?;
        table.compute_profiles(profile).into_iter().find(|profile| profile.id == id).ok_or(Refusal::NoProfile)
    }

    fn is_free(&self, placement: Placement) -> bool {
        !self.compute_instances.iter().any(|instance| instance.placement.overlaps(placement))
    }
}

/// The places to try: those of a profile, or the one that was asked for.
fn candidates(all: impl Iterator<Item = Placement>, at: Option<Placement>) -> Result<Vec<Placement>, Refusal> {
    let candidates: Vec<_> = all.filter(|placement| at.is_none_or(|at| at == *placement)).collect();
    if candidates.is_empty() { Err(Refusal::NoPlacement) } else { Ok(candidates) }
}

fn lowest_free(is_taken: impl Fn(u32) -> bool) -> u32 {
    (0..u32::MAX).find(|&number| !is_taken(number)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ids and places of GPU instances of these profiles, created one after the other.
    fn created(table: &str, profiles: &[u32]) -> Vec<(u32, u32)> {
        let table = Table::builtin(table).unwrap();
        let mut instances = Instances::default();
        for &profile in profiles {
            instances.create(table, profile, None).unwrap();
        }
        instances.gpu_instances.iter().map(|gi| (gi.id, gi.placement.start)).collect()
    }

    #[test]
    fn instances_get_the_ids_and_places_that_real_drivers_give() {
        assert_eq!(created("a100-40gb", &[19, 14, 5]), [(13, 6), (5, 4), (1, 0)]);
        let seven = [(13, 6), (11, 4), (12, 5), (7, 0), (8, 1), (9, 2), (10, 3)];
        assert_eq!(created("a100-40gb", &[19; 7]), seven);
        assert_eq!(created("h100-80gb-sxm", &[9, 9]), [(2, 4), (1, 0)]);
        assert_eq!(created("a100-40gb", &[9, 9]), [(1, 4), (2, 0)]);
        assert_eq!(created("a100-40gb", &[9, 5]), [(1, 4), (2, 0)], "the id is not the placement");
        assert_eq!(created("h100-80gb-sxm", &[0]), [(0, 0)]);
        assert_eq!(created("a30", &[14]), [(3, 0)]);
    }

    #[test]
    fn media_engines_can_be_used_up_while_slices_are_free() {
        let table = Table::builtin("a100-40gb").unwrap();
        let mut instances = Instances::default();
        instances.create(table, 20, None).unwrap();
        assert_eq!(instances.create(table, 20, None), Err(Refusal::NoRoom));
        let table = Table::builtin("a30").unwrap();
        let mut instances = Instances::default();
        instances.create(table, 21, None).unwrap();
        assert_eq!(instances.room(table, 6), Ok(0), "2g+me wants the same engines as 1g+me");
        assert_eq!(instances.room(table, 5), Ok(1));
        let table = Table::builtin("rtx-pro-6000-96gb").unwrap();
        let mut instances = Instances::default();
        instances.create(table, 65, None).unwrap();
        assert_eq!(
            [instances.room(table, 14), instances.room(table, 67)],
            [Ok(0), Ok(3)],
            "+me.all leaves room for -me"
        );
    }

    #[test]
    fn freed_ids_are_given_again_and_numbers_of_birth_are_not() {
        let table = Table::builtin("h100-80gb-sxm").unwrap();
        let mut instances = Instances::default();
        let id = instances.create(table, 9, None).unwrap();
        for name in ["MIG-1", "MIG-2"] {
            assert_eq!(instances.create_compute(table, id, 0, None, name.to_owned()), Ok(u32::from(name == "MIG-2")));
        }
        assert_eq!(instances.compute_room(table, id, 0), Ok(1));
        assert_eq!(instances.compute_room(table, id, 1), Ok(0));
        assert_eq!(instances.destroy(id), Err(Refusal::InUse));
        instances.destroy_compute(id, 0).unwrap();
        assert_eq!(instances.create_compute(table, id, 0, None, "MIG-3".to_owned()), Ok(0));
        let devices: Vec<_> = instances.devices().map(|(_, ci)| (ci.index, ci.birth)).collect();
        assert_eq!(devices, [(1, 3), (0, 4)]);
    }

    proptest! {
        #[test]
        fn no_sequence_makes_instances_overlap_or_lies_about_the_room(
            table in proptest::sample::select(vec!["a100-40gb", "a30", "h100-80gb-pcie", "rtx-pro-6000-96gb"]),
            acts in proptest::collection::vec((any::<bool>(), 0_usize..8, proptest::option::of(0_u32..8)), 1..40),
        ) {
            let table = Table::builtin(table).unwrap();
            let mut instances = Instances::default();
            for (destroy, which, start) in acts {
                if destroy {
                    if let Some(instance) = instances.gpu_instances.get(which) {
                        let id = instance.id;
                        instances.destroy(id).unwrap();
                    }
                    continue;
                }
                let profile = &table.profiles[which % table.profiles.len()];
                let room = instances.room(table, profile.id).unwrap();
                let at = start.map(|start| Placement { start, size: profile.size });
                match instances.create(table, profile.id, at) {
                    Ok(_) => prop_assert!(room > 0 && instances.room(table, profile.id).unwrap() < room),
                    Err(Refusal::NoPlacement) => prop_assert!(start.is_some_and(|s| !profile.starts.contains(&s))),
                    Err(refusal) => prop_assert!(refusal == Refusal::NoRoom && (at.is_some() || room == 0)),
                }
                for (n, a) in instances.gpu_instances.iter().enumerate() {
                    for b in &instances.gpu_instances[..n] {
                        prop_assert!(!a.placement.overlaps(b.placement) && a.id != b.id && a.birth != b.birth);
                    }
                }
            }
        }
    }
}
