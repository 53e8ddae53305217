//! GPUs for tests.

use super::mig::{ComputeInstance, GpuInstance, Placement, Profile};
use super::{DeviceName, Gpu, GpuUuid, Mig, MigUuid, Partitioning, PciAddress, Place};

pub(crate) fn mk_uuid(number: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b{number}")).unwrap()
}

/// `gpu-<number>` with the minor of the same number.
pub(crate) fn mk_gpu(number: u32) -> Gpu {
    Gpu {
        name: DeviceName::gpu(number),
        uuid: mk_uuid(number),
        minor: number,
        pci: PciAddress { domain: 0, bus: 0x1b, device: 0, function: 0 },
        product_name: None,
        brand: None,
        architecture: None,
        cuda_compute_capability: None,
        memory_bytes: None,
        addressing_mode: None,
        mig: Mig::default(),
        partitioning: Partitioning::Static,
        links: Vec::new(),
        fabric: None,
        place: Place::default(),
        has_node: true,
    }
}

/// Some profiles of an A100: 1g, 1g with the media engines, 3g and 7g.
pub(crate) fn mk_mig(enabled: bool) -> Mig {
    let profile = |name: &str, id, slices, size, media, starts: &[u32]| Profile {
        id,
        name: name.to_owned(),
        slices,
        memory_mib: 4864 * u64::from(size),
        multiprocessors: 14 * slices,
        copy_engines: slices,
        decoders: media,
        encoders: 0,
        jpeg_engines: media,
        ofa_engines: media,
        max_instances: if media > 0 { 1 } else { u32::try_from(starts.len()).unwrap() },
        placements: starts.iter().map(|start| Placement { start: *start, size }).collect(),
    };
    let profiles = vec![
        profile("7g.40gb", 0, 7, 8, 1, &[0]),
        profile("3g.20gb", 9, 3, 4, 0, &[0, 4]),
        profile("1g.5gb", 19, 1, 1, 0, &[0, 1, 2, 3, 4, 5, 6]),
        profile("1g.5gb+me", 20, 1, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
    ];
    Mig { capable: true, enabled, resetless: true, profiles, instances: Vec::new() }
}

/// An instance of one of those profiles, with compute instances of so many slices.
pub(crate) fn mk_instance(id: u32, profile: u32, start: u32, compute: &[u32]) -> GpuInstance {
    let sizes = mk_mig(true).profiles;
    let size = sizes.iter().find(|known| known.id == profile).map_or(1, |known| known.placements[0].size);
    let uuid = |number: u32| MigUuid::parse(&format!("MIG-c7384736-a75d-5afc-978f-d2f1294{id:02}{number:03}")).unwrap();
    let compute = (0..).zip(compute).map(|(id, slices)| ComputeInstance { id, slices: *slices, uuid: uuid(id) });
    GpuInstance { id, profile, placement: Placement { start, size }, compute: compute.collect(), foreign: false }
}
