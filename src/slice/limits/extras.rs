//! The rules of taints and counters, which are stricter about what to do with a fault: a device without its taint looks
//! healthy, and one without its counters overlaps with others unseen. Then it is better not to offer the device.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::is_label;
use crate::device::LeftOut;
use crate::slice::{CounterSet, Counters, Device, Effect, Taint};

/// `ResourceSliceMaxSharedCounterSets`: sets of a slice.
pub(in crate::slice) const COUNTER_SETS: usize = 8;

/// `ResourceSliceMaxCountersPerCounterSet`, and as many that a device consumes of one.
const COUNTERS: usize = 32;

/// `ResourceSliceMaxDeviceCounterConsumptionsPerDevice`: sets that a device consumes from.
const CONSUMED_SETS: usize = 2;

/// `DeviceTaintsMaxLength`
const TAINTS: usize = 16;

/// `validation.DNS1123LabelMaxLength`, and the longest name and value of a label.
const LABEL_BYTES: usize = 63;

/// `validation.DNS1123SubdomainMaxLength`: the domain of a label's name.
const SUBDOMAIN_BYTES: usize = 253;

/// The sets that can be published.
pub(super) fn sets(sets: Vec<CounterSet>, left_out: &mut Vec<LeftOut>) -> Vec<CounterSet> {
    let mut names = BTreeSet::new();
    let fits = |set: &CounterSet| {
        let fault = if names.insert(set.name.clone()) {
            label_fault(&set.name).or_else(|| counters_fault(&set.counters))
        } else {
            Some("another set has the same name".to_owned())
        };
        let is_fit = fault.is_none();
        left_out.extend(fault.map(|why| LeftOut { what: format!("the counters {}", set.name), why }));
        is_fit
    };
    sets.into_iter().filter(fits).collect()
}

/// Why a device cannot be offered for what it consumes. The API does not look whether the pool has those counters, and
/// the scheduler then takes nothing from the pool.
pub(super) fn consumption_fault(device: &Device, sets: &[CounterSet]) -> Option<String> {
    let consumed = &device.consumes_counters;
    if consumed.len() > CONSUMED_SETS {
        return Some(format!("it consumes from more than {CONSUMED_SETS} sets of counters"));
    }
    consumed.iter().find_map(|(name, counters)| {
        let Some(set) = sets.iter().find(|set| set.name == *name) else {
            return Some(format!("there are no counters {name}"));
        };
        let unknown = counters.keys().find(|counter| !set.counters.contains_key(*counter));
        unknown.map(|counter| format!("the counters {name} have no {counter}")).or_else(|| counters_fault(counters))
    })
}

/// Holds taints to the rules. Fails, with the reason, if one that must not be missing cannot be written.
pub(super) fn fit(taints: &mut Vec<Taint>, mut leave_out: impl FnMut(String, String)) -> Result<(), String> {
    let mut fault = None;
    taints.retain(|taint| {
        let Some(why) = taint_fault(taint) else { return true };
        if taint.effect == Effect::None {
            leave_out(format!("taint {}", taint.key), why);
        } else {
            fault.get_or_insert_with(|| format!("its taint {} cannot be written: {why}", taint.key));
        }
        false
    });
    if taints.len() > TAINTS {
        taints.sort_by_key(|taint| Reverse(taint.effect));
        for taint in taints.drain(TAINTS..) {
            leave_out(format!("taint {}", taint.key), format!("a device cannot have more than {TAINTS} taints"));
        }
    }
    fault.map_or(Ok(()), Err)
}

fn taint_fault(taint: &Taint) -> Option<String> {
    let Taint { key, value, .. } = taint;
    let (domain, name) = key.split_once('/').map_or((None, key.as_str()), |(domain, name)| (Some(domain), name));
    let is_domain = |domain: &str| domain.len() <= SUBDOMAIN_BYTES && domain.split('.').all(is_label);
    if !is_label_text(name) || !domain.is_none_or(is_domain) {
        return Some(format!("{key:?} is not the name of a label"));
    }
    let fits = value.is_empty() || is_label_text(value);
    (!fits).then(|| format!("{value:?} is not the value of a label"))
}

fn counters_fault(counters: &Counters) -> Option<String> {
    if counters.is_empty() || counters.len() > COUNTERS {
        return Some(format!("{} counters are not between 1 and {COUNTERS}", counters.len()));
    }
    let fault = |(name, amount): (&String, &u64)| {
        let large = i64::try_from(*amount).is_err();
        label_fault(name).or_else(|| large.then(|| format!("{name} is more than 2^63 - 1")))
    };
    counters.iter().find_map(fault)
}

fn label_fault(name: &str) -> Option<String> {
    let fits = name.len() <= LABEL_BYTES && is_label(name);
    (!fits).then(|| format!("{name:?} is not a DNS label"))
}

/// A label's value, or its name without the domain.
fn is_label_text(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    bytes.len() <= LABEL_BYTES && ends(bytes.first()) && ends(bytes.last()) && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::DeviceName;

    fn set(name: &str, counters: &[(&str, u64)]) -> CounterSet {
        CounterSet { name: name.to_owned(), counters: amounts(counters) }
    }

    fn amounts(counters: &[(&str, u64)]) -> Counters {
        counters.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    fn many(count: usize) -> Counters {
        (0..count).map(|number| (format!("c{number}"), 1)).collect()
    }

    fn consumer(consumes: &[(&str, Counters)]) -> Device {
        Device {
            name: DeviceName::gpu(0),
            attributes: BTreeMap::new(),
            capacity: BTreeMap::new(),
            consumes_counters: consumes.iter().map(|(set, counters)| ((*set).to_owned(), counters.clone())).collect(),
            taints: Vec::new(),
        }
    }

    fn taint(key: &str, value: &str, effect: Effect) -> Taint {
        Taint { key: key.to_owned(), value: value.to_owned(), effect }
    }

    #[test]
    fn sets_that_the_api_refuses_are_left_out_alone() {
        let good = set("gpu-0", &[("memory-slice-0", 1), ("media-engine", i64::MAX.unsigned_abs())]);
        let full = CounterSet { name: "full".to_owned(), counters: many(32) };
        let long = "a".repeat(64);
        let given = vec![
            good.clone(),
            full.clone(),
            good.clone(),
            set("GPU-1", &[("a", 1)]),
            set(&long, &[("a", 1)]),
            set("none", &[]),
            set("odd", &[("a.b", 1)]),
            set("large", &[("a", 1 << 63)]),
            CounterSet { name: "many".to_owned(), counters: many(33) },
        ];
        let mut left_out = Vec::new();
        assert_eq!(sets(given, &mut left_out), [good, full]);
        assert_eq!(left_out.len(), 7);
        let twice = LeftOut { what: "the counters gpu-0".to_owned(), why: "another set has the same name".to_owned() };
        assert_eq!(left_out[0], twice);
    }

    #[test]
    fn a_device_consumes_only_what_there_is() {
        let sets = ["a", "b", "c"].map(|name| set(name, &[("x", 1), ("y", 1)]));
        let x = amounts(&[("x", 1)]);
        let good = [vec![], vec![("a", x.clone())], vec![("a", x.clone()), ("b", amounts(&[("x", 1), ("y", 1)]))]];
        for consumes in good {
            assert_eq!(consumption_fault(&consumer(&consumes), &sets), None);
        }
        for (consumes, expected) in [
            (vec![("d", x.clone())], "there are no counters d"),
            (vec![("a", amounts(&[("z", 1)]))], "the counters a have no z"),
            (vec![("a", Counters::new())], "0 counters are not between 1 and 32"),
            (vec![("a", amounts(&[("x", u64::MAX)]))], "x is more than 2^63 - 1"),
            (["a", "b", "c"].map(|set| (set, x.clone())).to_vec(), "it consumes from more than 2 sets of counters"),
        ] {
            assert_eq!(consumption_fault(&consumer(&consumes), &sets).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_taint_that_cannot_be_written_costs_the_device_unless_it_only_informs() {
        for (key, value) in [("gpu.nvidia.com/unhealthy", "xid-79"), ("unhealthy", ""), ("A_b.c", &"v".repeat(63))] {
            let mut taints = vec![taint(key, value, Effect::NoSchedule)];
            assert_eq!(fit(&mut taints, |_, _| panic!("nothing is left out")), Ok(()), "{key} {value}");
            assert_eq!(taints.len(), 1);
        }
        for (key, value) in [
            ("", "a"),
            ("a/", "a"),
            ("/a", "a"),
            ("a/b/c", "a"),
            ("GPU.nvidia.com/a", "a"),
            ("-a", "a"),
            ("a", "Xid 79"),
            ("a", "xid-"),
            ("a", &"v".repeat(64)),
        ] {
            let fault = fit(&mut vec![taint(key, value, Effect::NoExecute)], |_, _| {}).unwrap_err();
            assert!(fault.contains("label"), "{fault}");
            let mut taints = vec![taint(key, value, Effect::None)];
            let mut left_out = Vec::new();
            assert_eq!(fit(&mut taints, |what, _| left_out.push(what)), Ok(()));
            assert_eq!((taints.len(), left_out), (0, vec![format!("taint {key}")]));
        }
    }

    #[test]
    fn of_too_many_taints_those_that_do_least_are_left_out() {
        let mut taints: Vec<_> = (0..12).map(|n| taint(&format!("note{n}"), "", Effect::None)).collect();
        taints.extend((0..10).map(|n| taint(&format!("bad{n}"), "", Effect::NoSchedule)));
        let mut left_out = Vec::new();
        fit(&mut taints, |what, _| left_out.push(what)).unwrap();
        assert_eq!(taints.iter().filter(|taint| taint.effect == Effect::NoSchedule).count(), 10);
        assert_eq!((taints.len(), left_out.len()), (16, 6));
    }
}
