//! A GPU that this plugin partitions, as devices: the whole GPU and every part that it could have, with the counters
//! that they take from each other.
//!
//! All of that is constant, whatever instances the GPU has at the moment: the scheduler keeps the books.

mod counters;

use std::collections::BTreeMap;

use self::counters::Stock;
use super::{CounterSet, Counters, Device, Effect, Taint, capacity, quantity};
use crate::device::attribute::{Value, of_part};
use crate::device::mig::{GpuInstance, Profile};
use crate::device::{Gpu, Partition};

/// On devices that need something which a GPU instance has that is not ours.
const FOREIGN: &str = "foreign-instance";

/// How devices consume counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Counting {
    /// A device consumes what it has, and the whole GPU consumes everything.
    #[default]
    Exact,
    /// There is a million of each thing and a part consumes a million of each that it has, but the whole GPU consumes one
    /// of each. They exclude each other all the same. Schedulers before 1.36.3 forget to put back what a device consumes
    /// that they considered and did not choose; so little of it does not matter.
    Light,
}

/// In [`Counting::Light`], what a part consumes of what it has one of.
const HEAVY: u64 = 1_000_000;

/// The counters of a GPU that is partitioned on demand, and its devices in the order in which claims shall try them.
/// `whole` has the attributes of the GPU.
pub(super) fn lay_out(
    gpu: &Gpu,
    whole: &BTreeMap<&'static str, Value>,
    counting: Counting,
) -> (CounterSet, Vec<Device>) {
    let stock = Stock::of(&gpu.mig);
    let name = format!("{}-counter-set", gpu.name);
    let part_takes = |amounts: Counters| match counting {
        Counting::Exact => amounts,
        Counting::Light => {
            amounts.into_iter().map(|(counter, amount)| (counter, amount.saturating_mul(HEAVY))).collect()
        }
    };
    let whole_takes = match counting {
        Counting::Exact => stock.all(),
        Counting::Light => stock.all().into_keys().map(|counter| (counter, 1)).collect(),
    };

    let foreign: Vec<_> = gpu.mig.instances.iter().filter(|instance| instance.foreign).collect();
    let whole_device = gpu.is_offered_whole().then(|| Device {
        name: gpu.name.clone(),
        attributes: whole.clone(),
        capacity: whole_capacity(gpu),
        consumes_counters: BTreeMap::from([(name.clone(), whole_takes)]),
        taints: taint(!foreign.is_empty()),
    });
    let parts = Partition::all(gpu);
    let parts = parts.iter().map(|part| {
        let takes = stock.of_part(part.profile, part.placement);
        Device {
            name: part.name.clone(),
            attributes: of_part(whole, gpu, part),
            capacity: part_capacity(part.profile),
            taints: taint(foreign.iter().any(|instance| stock.is_short(&takes, &of_instance(&stock, gpu, instance)))),
            consumes_counters: BTreeMap::from([(name.clone(), part_takes(takes))]),
        }
    });
    let devices = whole_device.into_iter().chain(parts).collect();
    (CounterSet { counters: part_takes(stock.all()), name }, devices)
}

/// What an instance has, be its profile known or not.
fn of_instance(stock: &Stock, gpu: &Gpu, instance: &GpuInstance) -> Counters {
    match gpu.mig.profiles.iter().find(|profile| profile.id == instance.profile) {
        Some(profile) => stock.of_part(profile, instance.placement),
        None => stock.of_place(instance.placement),
    }
}

fn taint(is_in_the_way: bool) -> Vec<Taint> {
    let taint = || Taint { key: FOREIGN.to_owned(), value: String::new(), effect: Effect::NoSchedule };
    is_in_the_way.then(taint).into_iter().collect()
}

/// As NVIDIA's driver has them, without the memory slices that it publishes of some MIG devices.
pub(super) fn part_capacity(profile: &Profile) -> BTreeMap<&'static str, String> {
    let counts = COUNTS.map(|(name, count)| (name, quantity::bytes(count(profile).into())));
    let memory = quantity::bytes(profile.memory_mib.saturating_mul(1 << 20));
    counts.into_iter().chain([("memory", memory)]).collect()
}

/// Its own memory, and of everything else the most that a profile has: so NVIDIA's driver has it where it partitions, and
/// a claim for so many multiprocessors, whole or part, finds the number on every device.
fn whole_capacity(gpu: &Gpu) -> BTreeMap<&'static str, String> {
    let most = |count: Count| gpu.mig.profiles.iter().map(count).max().unwrap_or(0);
    let counts = COUNTS.map(|(name, count)| (name, quantity::bytes(most(count).into())));
    capacity(gpu).into_iter().chain(counts).collect()
}

/// How many of something a profile has.
type Count = fn(&Profile) -> u32;

const COUNTS: [(&str, Count); 6] = [
    ("multiprocessors", |profile| profile.multiprocessors),
    ("copyEngines", |profile| profile.copy_engines),
    ("decoders", |profile| profile.decoders),
    ("encoders", |profile| profile.encoders),
    ("jpegEngines", |profile| profile.jpeg_engines),
    ("ofaEngines", |profile| profile.ofa_engines),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Partitioning;
    use crate::device::example::{mk_gpu, mk_instance, mk_mig};

    fn tainted(gpu: &Gpu) -> Vec<String> {
        let (_, devices) = lay_out(gpu, &BTreeMap::new(), Counting::Light);
        let devices = devices.into_iter().filter(|device| !device.taints.is_empty());
        devices.map(|device| device.name.to_string()).collect()
    }

    #[test]
    fn what_a_foreign_instance_covers_is_tainted_and_nothing_else() {
        let mut gpu = mk_gpu(0);
        (gpu.mig, gpu.partitioning) = (mk_mig(true), Partitioning::Dynamic { whole: true });
        gpu.mig.instances = vec![mk_instance(1, 9, 4, &[3])];
        assert!(tainted(&gpu).is_empty(), "ours are in the books of the scheduler");

        gpu.mig.instances = vec![mk_instance(7, 19, 0, &[])];
        gpu.mig.instances[0].foreign = true;
        let covered = [
            "gpu-0",
            "gpu-0-mig-1g5gb-19-0",
            "gpu-0-mig-1g5gb-me-20-0",
            "gpu-0-mig-3g20gb-9-0",
            "gpu-0-mig-7g40gb-0-0",
        ];
        assert_eq!(tainted(&gpu), covered);
        gpu.mig.instances[0].profile = 99;
        assert_eq!(tainted(&gpu), covered, "where it is suffices");
        // One that has the media engines covers all that need them.
        gpu.mig.instances[0].profile = 20;
        assert_eq!(tainted(&gpu).len(), 5 + 6);
    }

    #[test]
    fn a_whole_gpu_consumes_everything_or_a_little_of_everything() {
        let mut gpu = mk_gpu(0);
        (gpu.mig, gpu.partitioning) = (mk_mig(false), Partitioning::Dynamic { whole: true });
        for (counting, there_is, takes) in [(Counting::Exact, 1, 1), (Counting::Light, 1_000_000, 1)] {
            let (set, devices) = lay_out(&gpu, &BTreeMap::new(), counting);
            assert_eq!(set.counters.len(), 9);
            assert!(set.counters.values().all(|amount| *amount == there_is));
            let consumed = |device: &Device| device.consumes_counters[&set.name].clone();
            assert!(set.counters.keys().eq(consumed(&devices[0]).keys()), "all of them");
            assert!(consumed(&devices[0]).values().all(|amount| *amount == takes));
            assert!(devices[1..].iter().flat_map(|part| consumed(part).into_values()).all(|amount| amount == there_is));
        }
        gpu.partitioning = Partitioning::Dynamic { whole: false };
        let (_, devices) = lay_out(&gpu, &BTreeMap::new(), Counting::Exact);
        assert_eq!(devices[0].name.as_str(), "gpu-0-mig-1g5gb-19-6");
    }
}
