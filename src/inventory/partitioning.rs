//! By whom each GPU is partitioned.

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

    /// Says it of each GPU of a node. Where it cannot be read on which of them this plugin has turned the mode on, that
    /// stays what it was, and what could not be read is answered.
    pub(super) async fn assign(&mut self, node: &mut Node) -> Option<LeftOut> {
        let mut unknown = None;
        if let (true, Some(modes)) = (self.which != DynamicMig::None, self.modes.clone()) {
            match tokio::task::spawn_blocking(move || modes.read()).await {
                Ok(Ok(ours)) => self.ours = ours,
                Ok(Err(error)) => unknown = Some(LeftOut::new("who has turned MIG modes on", &error)),
                Err(error) => unknown = Some(LeftOut::new("who has turned MIG modes on", &error)),
            }
        }
        for gpu in &mut node.gpus {
            if self.which.includes(gpu.product_name.as_deref()) {
                gpu.partitioning = dynamic(&gpu.mig, self.ours.contains(&gpu.uuid));
            }
        }
        unknown
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
}
