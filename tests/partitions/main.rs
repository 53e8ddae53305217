//! GPUs that are partitioned on demand: what is published of each board, and that the counters admit what the silicon
//! has, no more and no less.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod boards;
mod exhaustive;
mod golden;

use gpu_dra_plugin::device::{DeviceName, Driver, Gpu, GpuUuid, Mig, Node, Partitioning, PciAddress, Place};

use self::boards::Board;

/// A machine with GPUs of one board, all partitioned on demand.
fn node(board: &Board, gpus: u32) -> Node {
    let gpu = |number: u32| Gpu {
        name: DeviceName::gpu(number),
        uuid: GpuUuid::parse(&format!("GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9{number:02}")).unwrap(),
        minor: number,
        pci: PciAddress { domain: 0, bus: u8::try_from(number).unwrap(), device: 0, function: 0 },
        product_name: None,
        brand: Some("Nvidia"),
        architecture: None,
        cuda_compute_capability: None,
        memory_bytes: Some(board.memory_mib << 20),
        addressing_mode: None,
        mig: Mig { capable: true, resetless: true, profiles: board.profiles.clone(), ..Mig::default() },
        partitioning: Partitioning::Dynamic { whole: true },
        links: Vec::new(),
        fabric: None,
        place: Place::default(),
        has_node: true,
    };
    Node { driver: Driver::default(), gpus: (0..gpus).map(gpu).collect(), ..Node::default() }
}
