//! What not every API server keeps, and the pool for one that does not: pure.
//!
//! A field of a later release, or behind a feature gate that is off, is dropped without a word when a slice is stored,
//! and what remains can say the opposite of what was meant. So the pool is reduced to what stays true without it:
//!
//! | not kept | without it | so |
//! |---|---|---|
//! | lists | the attribute has no value at all, and the API refuses the slice | what has one value elsewhere gets that; the rest goes |
//! | counters | a GPU and its parts look independent, and could be given away twice | all that compete for a counter are withdrawn |
//! | taints | a sick device looks healthy | it is left out |
//!
//! Withdrawing a device takes nothing from the pods that have it. Of those that compete for a counter none stays, not
//! even the whole GPU: parts of it may be in use, and without counters nobody but the node would know.
//!
//! The number of slices stays, so that as few of them as possible change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{BitAnd, BitOr, Not};

use super::{Device, Effect, Pool, Slice};
use crate::device::DeviceName;
use crate::device::attribute::{self, Kind, Value};

/// A set of what not every API server keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extras {
    /// Attributes that are lists: the gate DRAListTypeAttributes, alpha since Kubernetes 1.36.
    pub lists: bool,
    /// Shared counters and their consumption: DRAPartitionableDevices, on since 1.36.
    pub counters: bool,
    /// Taints: DRADeviceTaints, on since 1.36.
    pub taints: bool,
}

/// The pool for a server that does not keep some extras.
pub fn without(pool: &Pool, lost: Extras) -> Pool {
    let contended = if lost.counters { contended(pool) } else { BTreeSet::new() };
    let devices = |devices: &[Device]| {
        let devices = devices.iter().filter(|device| {
            let competes = device.consumes_counters.keys().any(|set| contended.contains(set.as_str()));
            let looks_healthy = lost.taints && is_off_limits(device);
            !competes && !looks_healthy
        });
        devices.map(|device| plain(device, lost)).collect()
    };
    let slice = |slice: &Slice| Slice {
        devices: devices(&slice.devices),
        shared_counters: if lost.counters { Vec::new() } else { slice.shared_counters.clone() },
    };
    Pool { name: pool.name.clone(), slices: pool.slices.iter().map(slice).collect() }
}

/// The devices that a pool has and a reduced one has not.
pub fn withdrawn<'a>(pool: &'a Pool, reduced: &Pool) -> Vec<&'a DeviceName> {
    let kept: BTreeSet<_> = devices_of(reduced).map(|device| device.name.as_str()).collect();
    devices_of(pool).map(|device| &device.name).filter(|name| !kept.contains(name.as_str())).collect()
}

/// Names of the sets that do not suffice for all that consume from them at once.
fn contended(pool: &Pool) -> BTreeSet<&str> {
    let mut left: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for set in pool.slices.iter().flat_map(|slice| &slice.shared_counters) {
        left.extend(set.counters.iter().map(|(counter, amount)| ((set.name.as_str(), counter.as_str()), *amount)));
    }
    let mut contended = BTreeSet::new();
    for (set, counters) in devices_of(pool).flat_map(|device| &device.consumes_counters) {
        for (counter, amount) in counters {
            let left = left.entry((set, counter)).or_default();
            match left.checked_sub(*amount) {
                Some(rest) => *left = rest,
                None => drop(contended.insert(set.as_str())),
            }
        }
    }
    contended
}

/// Whether a taint keeps claims away. One that only informs can be missed.
fn is_off_limits(device: &Device) -> bool {
    device.taints.iter().any(|taint| taint.effect != Effect::None)
}

fn plain(device: &Device, lost: Extras) -> Device {
    let mut device = device.clone();
    if lost.lists {
        let one = |(name, value)| Some((name, scalar(name, value)?));
        device.attributes = device.attributes.into_iter().filter_map(one).collect();
    }
    if lost.counters {
        device.consumes_counters.clear();
    }
    if lost.taints {
        // A server that knows taints may know fewer of their effects, and refuse the slice.
        device.taints.clear();
    }
    device
}

/// The type without lists is the same on every device, because it is that of the reference. The first value is the
/// device's own.
fn scalar(name: &str, value: Value) -> Option<Value> {
    match (value, attribute::kind(name)) {
        (Value::Ints(list), Some(Kind::Int)) => list.first().copied().map(Value::Int),
        (Value::Strings(list), Some(Kind::String)) => list.into_iter().next().map(Value::String),
        (Value::Ints(_) | Value::Strings(_), _) => None,
        (value, _) => Some(value),
    }
}

fn devices_of(pool: &Pool) -> impl Iterator<Item = &Device> {
    pool.slices.iter().flat_map(|slice| &slice.devices)
}

// === impl Extras ===

impl Extras {
    /// Nothing but what all servers keep.
    pub const NONE: Self = Self { lists: false, counters: false, taints: false };

    /// What a slice has of them.
    pub fn of(slice: &Slice) -> Self {
        let any = |has: fn(&Device) -> bool| slice.devices.iter().any(has);
        Self {
            lists: any(|device| device.attributes.values().any(Value::is_list)),
            counters: !slice.shared_counters.is_empty() || any(|device| !device.consumes_counters.is_empty()),
            taints: any(|device| !device.taints.is_empty()),
        }
    }

    /// What a pool has of them.
    pub fn of_pool(pool: &Pool) -> Self {
        pool.slices.iter().map(Self::of).fold(Self::NONE, Self::bitor)
    }

    fn merged(self, other: Self, merge: fn(bool, bool) -> bool) -> Self {
        Self {
            lists: merge(self.lists, other.lists),
            counters: merge(self.counters, other.counters),
            taints: merge(self.taints, other.taints),
        }
    }
}

impl BitOr for Extras {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.merged(other, |one, other| one || other)
    }
}

impl BitAnd for Extras {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        self.merged(other, |one, other| one && other)
    }
}

impl Not for Extras {
    type Output = Self;

    fn not(self) -> Self {
        self.merged(self, |one, _| !one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::example::{mk_gpu, mk_mig};
    use crate::device::{Node, Partitioning};
    use crate::slice::{CounterSet, Counters, Counting, Layout, Taint, pool_in};

    const LISTS: Extras = Extras { lists: true, ..Extras::NONE };
    const COUNTERS: Extras = Extras { counters: true, ..Extras::NONE };
    const TAINTS: Extras = Extras { taints: true, ..Extras::NONE };

    fn device(name: &str) -> Device {
        Device {
            name: DeviceName::parse(name).unwrap(),
            attributes: BTreeMap::from([("type", Value::String("gpu".to_owned()))]),
            capacity: BTreeMap::from([("memory", "80Gi".to_owned())]),
            consumes_counters: BTreeMap::new(),
            taints: Vec::new(),
        }
    }

    fn amounts(counters: &[(&str, u64)]) -> Counters {
        counters.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    fn consumer(name: &str, set: &str, counters: &[(&str, u64)]) -> Device {
        Device { consumes_counters: BTreeMap::from([(set.to_owned(), amounts(counters))]), ..device(name) }
    }

    fn tainted(name: &str, effects: &[Effect]) -> Device {
        let taint =
            |effect: &Effect| Taint { key: "unhealthy".to_owned(), value: "xid-79".to_owned(), effect: *effect };
        Device { taints: effects.iter().map(taint).collect(), ..device(name) }
    }

    fn pool(sets: &[(&str, &[(&str, u64)])], devices: &[Device]) -> Pool {
        let set = |(name, counters): &(&str, &[(&str, u64)])| CounterSet {
            name: (*name).to_owned(),
            counters: amounts(counters),
        };
        let counters = Slice { shared_counters: sets.iter().map(set).collect(), ..Slice::default() };
        let devices = Slice { devices: devices.to_vec(), ..Slice::default() };
        Pool { name: "node-a".to_owned(), slices: vec![counters, devices] }
    }

    fn names(pool: &Pool) -> Vec<&str> {
        devices_of(pool).map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn a_server_that_keeps_all_gets_all() {
        let mut device = tainted("gpu-0", &[Effect::NoExecute]);
        device.attributes.insert("nvlinkCliques", Value::Strings(vec!["a".to_owned()]));
        let pool = pool(&[("gpu-0", &[("slice", 1)])], &[device, consumer("gpu-1", "gpu-0", &[("slice", 1)])]);
        assert_eq!(without(&pool, Extras::NONE), pool);
        assert_eq!(Extras::of_pool(&pool), !Extras::NONE);
        assert_eq!(Extras::of_pool(&without(&pool, !Extras::NONE)), Extras::NONE);
    }

    #[test]
    fn lists_become_what_the_attribute_is_elsewhere_or_go() {
        let with = |numa: Value, cliques: Option<Value>| {
            let mut device = device("gpu-0");
            device.attributes.insert("resource.kubernetes.io/numaNode", numa);
            device.attributes.extend(cliques.map(|cliques| ("nvlinkCliques", cliques)));
            device
        };
        let cliques = Value::Strings(vec!["a".to_owned(), "b".to_owned()]);
        let listed = pool(&[], &[with(Value::Ints(vec![3, 1]), Some(cliques))]);
        assert_eq!(without(&listed, LISTS), pool(&[], &[with(Value::Int(3), None)]));
        assert_eq!(without(&listed, COUNTERS | TAINTS), listed, "nothing else goes with them");
    }

    #[test]
    fn devices_that_compete_for_a_counter_are_withdrawn() {
        let (whole, first, second) = (
            consumer("gpu-0", "gpu-0", &[("slice-0", 1), ("slice-1", 1)]),
            consumer("gpu-0-mig-0", "gpu-0", &[("slice-0", 1)]),
            consumer("gpu-0-mig-1", "gpu-0", &[("slice-1", 1)]),
        );
        let slices: &[(&str, u64)] = &[("slice-0", 1), ("slice-1", 1)];
        let sets = &[("gpu-0", slices), ("gpu-1", slices)];
        let reduced = |devices: &[Device]| without(&pool(sets, devices), COUNTERS);
        let other = consumer("gpu-1", "gpu-1", &[("slice-0", 1), ("slice-1", 1)]);

        let dynamic = reduced(&[whole.clone(), first.clone(), second.clone(), other.clone(), device("gpu-2")]);
        assert_eq!(dynamic, pool(&[], &[device("gpu-1"), device("gpu-2")]), "the slice of the sets stays, empty");
        assert_eq!(names(&reduced(&[first, second])), ["gpu-0-mig-0", "gpu-0-mig-1"], "each has its own");
        // A whole GPU may be made to consume little of much; it competes nevertheless.
        let light = [consumer("a", "gpu-0", &[("slice-0", 1)]), consumer("b", "gpu-0", &[("slice-0", 1_000_000)])];
        let light = without(&pool(&[("gpu-0", &[("slice-0", 1_000_000)])], &light), COUNTERS);
        assert!(names(&light).is_empty());
        // Nobody knows what there is of a counter that is in no set.
        assert!(names(&without(&pool(&[], &[other]), COUNTERS)).is_empty());
    }

    #[test]
    fn of_a_gpu_that_is_offered_in_parts_nothing_is_left_without_counters() {
        let mut node = Node { gpus: (0..3).map(mk_gpu).collect(), ..Node::default() };
        for (gpu, whole) in node.gpus[..2].iter_mut().zip([true, false]) {
            (gpu.mig, gpu.partitioning) = (mk_mig(false), Partitioning::Dynamic { whole });
        }
        for counting in [Counting::Exact, Counting::Light] {
            let pool = pool_in(Layout { counting, ..Layout::default() }, "node-a", &node);
            let reduced = without(&pool, COUNTERS);
            assert_eq!((names(&reduced), reduced.slices.len()), (vec!["gpu-2"], pool.slices.len()));
        }
    }

    #[test]
    fn tainted_devices_are_left_out_unless_the_taint_only_informs() {
        use Effect::{NoExecute, NoSchedule, None};
        let devices = [
            tainted("gpu-0", &[NoSchedule]),
            tainted("gpu-1", &[None, NoExecute]),
            tainted("gpu-2", &[None]),
            device("gpu-3"),
        ];
        let given = pool(&[], &devices);
        let reduced = without(&given, TAINTS);
        assert_eq!(reduced, pool(&[], &[device("gpu-2"), device("gpu-3")]));
        assert_eq!(
            withdrawn(&given, &reduced).iter().map(|name| name.as_str()).collect::<Vec<_>>(),
            ["gpu-0", "gpu-1"]
        );
        assert!(withdrawn(&given, &without(&given, LISTS)).is_empty());
    }

    #[test]
    fn a_part_of_a_sick_gpu_still_competes_with_it() {
        let mut whole = consumer("gpu-0", "gpu-0", &[("slice", 1)]);
        whole.taints = tainted("gpu-0", &[Effect::NoSchedule]).taints;
        let part = consumer("gpu-0-mig-0", "gpu-0", &[("slice", 1)]);
        let pool = pool(&[("gpu-0", &[("slice", 1)])], &[whole, part]);
        assert!(names(&without(&pool, COUNTERS | TAINTS)).is_empty());
        assert_eq!(names(&without(&pool, TAINTS)), ["gpu-0-mig-0"]);
    }
}
