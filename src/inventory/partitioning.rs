//! By whom each GPU is partitioned.
//!
//! A mode can be turned on or off while the GPUs are looked at, by a claim that comes or goes. It is written down before it
//! is on and struck out after it is off, so what was written down before a look or is after it tells whose a mode is that
//! the look found on.

use std::collections::BTreeSet;

use super::mig_modes::MigModes;
use crate::args::DynamicMig;
use crate::device::{GpuUuid, LeftOut, Mig, Node, Partitioning};

/// Says by whom. The default leaves all GPUs to administrators.
#[derive(Debug, Default)]
pub(super) struct Partitioner {
    which: DynamicMig,
    modes: Option<MigModes>,
    /// On which GPUs the mode is on by us, as far as it is known.
    ours: BTreeSet<GpuUuid>,
}

// === impl Partitioner ===

impl Partitioner {
    pub(super) fn new(which: DynamicMig, modes: MigModes) -> Self {
        Self { which, modes: Some(modes), ours: BTreeSet::new() }
    }

    /// To be called before a look at the GPUs.
    pub(super) async fn begin(&mut self) {
        // If it fails, it most likely does so afterwards as well, and is told then.
        if let Ok(ours) = self.read().await {
            self.ours = ours;
        }
    }

    /// Says it of each GPU of a node, after the look. Where it cannot be read on which of them this plugin has turned the
    /// mode on, that stays what it was, and what could not be read is answered.
    pub(super) async fn assign(&mut self, node: &mut Node) -> Option<LeftOut> {
        let ours = self.read().await;
        let unknown = ours.map(|ours| self.ours.extend(ours)).err();
        for gpu in &mut node.gpus {
            if self.which.includes(gpu.product_name.as_deref()) {
                gpu.partitioning = dynamic(&gpu.mig, self.ours.contains(&gpu.uuid));
            }
        }
        unknown
    }

    async fn read(&self) -> Result<BTreeSet<GpuUuid>, LeftOut> {
        let (true, Some(modes)) = (self.which != DynamicMig::None, self.modes.clone()) else {
            return Ok(BTreeSet::new());
        };
        let unknown = |error: &(dyn std::error::Error + 'static)| LeftOut::new("who has turned MIG modes on", error);
        let read = tokio::task::spawn_blocking(move || modes.read()).await;
        read.map_err(|error| unknown(&error))?.map_err(|error| unknown(&error))
    }
}

/// How a GPU is partitioned that may be by this plugin. Without a reset its mode can be switched only since Hopper.
fn dynamic(mig: &Mig, is_ours: bool) -> Partitioning {
    match mig {
        Mig { capable: false, .. } => Partitioning::Static,
        Mig { profiles, .. } if profiles.is_empty() => Partitioning::Static,
        Mig { resetless: true, enabled, .. } => Partitioning::Dynamic { whole: !enabled || is_ours },
        Mig { enabled: true, .. } => Partitioning::Dynamic { whole: false },
        Mig { enabled: false, .. } => Partitioning::Static,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Gpu;
    use crate::device::example::{mk_gpu, mk_mig, mk_uuid};
    use crate::device::mig::Profile;

    #[test]
    fn only_what_needs_no_reset_is_partitioned_and_only_what_is_ours_is_whole() {
        let whole = |whole| Partitioning::Dynamic { whole };
        for (capable, enabled, resetless, is_ours, expected) in [
            (false, false, true, false, Partitioning::Static),
            (true, false, true, false, whole(true)),
            (true, true, true, false, whole(false)),
            (true, true, true, true, whole(true)),
            (true, false, true, true, whole(true)),
            (true, false, false, false, Partitioning::Static),
            (true, true, false, false, whole(false)),
        ] {
            let profiles = vec![Profile {
                id: 19,
                name: "1g.10gb".to_owned(),
                slices: 1,
                memory_mib: 9984,
                multiprocessors: 16,
                copy_engines: 1,
                decoders: 1,
                encoders: 0,
                jpeg_engines: 1,
                ofa_engines: 0,
                max_instances: 7,
                placements: vec![],
            }];
            let mig = Mig { capable, enabled, resetless, profiles, instances: vec![] };
            assert_eq!(dynamic(&mig, is_ours), expected, "{mig:?}");
            assert_eq!(dynamic(&Mig { profiles: vec![], ..mig }, is_ours), Partitioning::Static);
        }
    }

    #[tokio::test]
    async fn a_mode_that_is_turned_on_or_off_during_a_look_is_still_ours() {
        let directory = tempfile::tempdir().unwrap();
        let modes = MigModes::of(directory.path(), "a".to_owned());
        let mut partitioner = Partitioner::new(DynamicMig::All, modes.clone());
        let uuid = mk_uuid(0);
        let on = || Node {
            gpus: vec![Gpu { mig: Mig { resetless: true, ..mk_mig(true) }, ..mk_gpu(0) }],
            ..Node::default()
        };
        for (change, is_ours_next) in [(MigModes::add as fn(&MigModes, &GpuUuid) -> _, true), (MigModes::remove, false)]
        {
            partitioner.begin().await;
            let mut node = on();
            change(&modes, &uuid).unwrap();
            assert_eq!(partitioner.assign(&mut node).await, None);
            assert_eq!(node.gpus[0].partitioning, Partitioning::Dynamic { whole: true });
            partitioner.begin().await;
            partitioner.assign(&mut node).await;
            assert_eq!(node.gpus[0].partitioning, Partitioning::Dynamic { whole: is_ours_next });
        }
    }
}
