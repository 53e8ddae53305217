//! What the API accepts of a device, so that nothing is sent that it would refuse.
//!
//! The API server takes a slice as a whole or not at all: one string that is too long, and the node has no GPUs. So each
//! device is held to the rules before it leaves: what breaks one is brought into shape or left out alone, an attribute
//! if that is enough, the device if not.
//!
//! Source: `pkg/apis/resource/validation` and the limits in `resource/v1/types.go` of Kubernetes 1.37, which are the
//! strictest of all releases. Names of pool and driver are checked on the command line; the driver publishes no sharing
//! or binding conditions. Releases that take less of taints and counters are for [`fallback`](super::fallback).

mod extras;

use std::collections::BTreeSet;

pub(super) use self::extras::COUNTER_SETS;
use super::{CounterSet, Device, quantity};
use crate::device::LeftOut;
use crate::device::attribute::{self, Value};

/// Devices of a slice. The API takes 128, but 64 as soon as one of them has a taint, counters or a list, and a slice must
/// not have to be split at the moment its device falls ill.
pub(super) const DEVICES: usize = 64;

/// `ResourceSliceMaxAttributesAndCapacitiesPerDevice`
const ATTRIBUTES_AND_CAPACITIES: usize = 32;

/// `ResourceSliceMaxAttributeValuesPerDevice`: those of lists are counted one by one.
const ATTRIBUTE_VALUES: usize = 48;

/// `DeviceAttributeMaxValueLength`: bytes of a string or a version.
const VALUE_BYTES: usize = 64;

/// `DeviceMaxIDLength`: bytes of the name of an attribute or a capacity, without its domain.
const ID_BYTES: usize = 32;

/// `DeviceMaxDomainLength`: bytes of the domain of such a name.
const DOMAIN_BYTES: usize = 63;

/// The counters and devices that can be published, in their order and groups, and what was changed or left out for that.
pub(super) fn enforce(
    counters: Vec<CounterSet>,
    groups: impl IntoIterator<Item = Vec<Device>>,
) -> (Vec<CounterSet>, Vec<Vec<Device>>, Vec<LeftOut>) {
    let mut left_out = Vec::new();
    let counters = extras::sets(counters, &mut left_out);
    let mut names = BTreeSet::new();
    let mut accept = |mut device: Device| {
        let fault = if names.insert(device.name.clone()) {
            extras::consumption_fault(&device, &counters).or_else(|| fit(&mut device, &mut left_out).err())
        } else {
            Some("another device has the same name".to_owned())
        };
        let Some(why) = fault else { return Some(device) };
        left_out.push(LeftOut { what: format!("the device {}", device.name), why });
        None
    };
    let groups = groups.into_iter().map(|devices| devices.into_iter().filter_map(&mut accept).collect()).collect();
    (counters, groups, left_out)
}

/// Brings a device into shape. Fails, with the reason, if it would be worth nothing without what must go. Its name is a
/// DNS label by type.
fn fit(device: &mut Device, left_out: &mut Vec<LeftOut>) -> Result<(), String> {
    let name = device.name.clone();
    let mut leave_out = |what: String, why| left_out.push(LeftOut { what: format!("the {what} of {name}"), why });
    device.attributes.retain(|attribute, value| {
        if let Some(why) = shorten(value) {
            leave_out(format!("end of the attribute {attribute}"), why);
        }
        let fault = name_fault(attribute).or_else(|| value_fault(value));
        fault.map(|why| leave_out(format!("attribute {attribute}"), why)).is_none()
    });
    device.capacity.retain(|resource, amount| {
        let fault = name_fault(resource).or_else(|| amount_fault(amount));
        fault.map(|why| leave_out(format!("capacity {resource}"), why)).is_none()
    });

    extras::fit(&mut device.taints, &mut leave_out)?;

    // A device that hides one of its capacities could be given to a claim for which it does not suffice.
    let room = ATTRIBUTES_AND_CAPACITIES.checked_sub(device.capacity.len());
    let room = room.ok_or_else(|| format!("it has more than {ATTRIBUTES_AND_CAPACITIES} capacities"))?;
    let mut attributes: Vec<_> =
        device.attributes.iter().map(|(attribute, value)| (*attribute, value.count())).collect();
    // A list does not push out what fits without it.
    attributes.sort_by_key(|(attribute, count)| (*count > 1, attribute::position(attribute)));
    let (mut kept, mut values) = (0, 0);
    for (attribute, count) in attributes {
        let why = if kept == room {
            format!("a device cannot have more than {ATTRIBUTES_AND_CAPACITIES} attributes and capacities")
        } else if values + count > ATTRIBUTE_VALUES {
            format!("a device cannot have more than {ATTRIBUTE_VALUES} values of attributes")
        } else {
            (kept, values) = (kept + 1, values + count);
            continue;
        };
        leave_out(format!("attribute {attribute}"), why);
        device.attributes.remove(attribute);
    }
    Ok(())
}

/// Cuts a text between two characters, and says so. Only texts for people can be that long.
fn shorten(value: &mut Value) -> Option<String> {
    let Value::String(text) = value else { return None };
    if text.len() <= VALUE_BYTES {
        return None;
    }
    let why = format!("{text:?} has more than the {VALUE_BYTES} bytes that an attribute can hold");
    let end = (0..=VALUE_BYTES).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    Some(why)
}

/// The type sees to it that a version is a strict one. A list has names of groups, which are worth nothing if they are
/// cut.
fn value_fault(value: &Value) -> Option<String> {
    let long = |text: &str| {
        (text.len() > VALUE_BYTES).then(|| format!("{text} has more than the {VALUE_BYTES} bytes of an attribute"))
    };
    match value {
        Value::Version(version) => long(&version.to_string()),
        Value::Strings(list) => list.iter().find_map(|text| long(text)),
        _ => None,
    }
    .or_else(|| (value.count() == 0).then(|| "the list is empty".to_owned()))
}

fn amount_fault(amount: &str) -> Option<String> {
    (!quantity::is_quantity(amount)).then(|| format!("{amount:?} is not a quantity of at most 2^63 - 1"))
}

/// `ValidateQualifiedName`: a C identifier, alone or behind a domain and a slash.
fn name_fault(name: &str) -> Option<String> {
    let (domain, id) = name.split_once('/').map_or((None, name), |(domain, id)| (Some(domain), id));
    let is_domain = |domain: &str| domain.len() <= DOMAIN_BYTES && domain.split('.').all(is_label);
    let fits = id.len() <= ID_BYTES && is_c_identifier(id) && domain.is_none_or(is_domain);
    (!fits).then(|| format!("{name:?} is not a C identifier of at most {ID_BYTES} bytes, with or without a domain"))
}

fn is_c_identifier(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().all(inner) && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && !text.starts_with('-') && !text.ends_with('-') && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::DeviceName;
    use crate::slice::{Effect, Taint};

    const LONG_ID: &str = "a23456789012345678901234567890123";

    fn device(attributes: &[(&'static str, Value)], capacity: &[(&'static str, &str)]) -> Device {
        Device {
            name: DeviceName::gpu(0),
            attributes: attributes.iter().cloned().collect(),
            capacity: capacity.iter().map(|(name, amount)| (*name, (*amount).to_owned())).collect(),
            consumes_counters: BTreeMap::new(),
            taints: Vec::new(),
        }
    }

    fn enforce(devices: impl IntoIterator<Item = Device>) -> (Vec<Device>, Vec<LeftOut>) {
        let (_, groups, left_out) = super::enforce(Vec::new(), [devices.into_iter().collect()]);
        (groups.concat(), left_out)
    }

    fn whats(left_out: &[LeftOut]) -> Vec<&str> {
        left_out.iter().map(|left_out| left_out.what.as_str()).collect()
    }

    /// Names that are made at run time, as attributes' names are not.
    fn names<T: Clone>(count: usize, value: &T) -> BTreeMap<&'static str, T> {
        (0..count).map(|n| (&*format!("name{n:02}").leak(), value.clone())).collect()
    }

    #[test]
    fn a_device_that_keeps_the_rules_passes_untouched() {
        let version = Value::Version(semver::Version::new(580, 65, 6));
        let attributes =
            [("driverVersion", version), ("resource.kubernetes.io/pcieRoot", Value::String("é".repeat(32)))];
        let device = device(&attributes, &[("memory", "80Gi")]);
        assert_eq!(enforce([device.clone()]), (vec![device], vec![]));
    }

    #[test]
    fn a_name_that_the_api_refuses_costs_its_attribute_or_capacity() {
        let bad = ["", "1st", "a-b", "a.b", "a/b/c", "/a", "a/", "A.io/a", "é", LONG_ID];
        let attributes: Vec<_> = bad.into_iter().chain(["ok"]).map(|name| (name, Value::Bool(true))).collect();
        let capacity: Vec<_> = bad.into_iter().chain(["ok"]).map(|name| (name, "1")).collect();
        let (devices, left_out) = enforce([device(&attributes, &capacity)]);
        assert_eq!(devices, [device(&[("ok", Value::Bool(true))], &[("ok", "1")])]);
        assert_eq!(left_out.len(), 2 * bad.len());
        assert_eq!(left_out[1].what, "the attribute /a of gpu-0");
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_two_characters() {
        let (devices, left_out) =
            enforce([device(&[("productName", Value::String(format!("a{}", "é".repeat(40))))], &[])]);
        assert_eq!(devices[0].attributes["productName"], Value::String(format!("a{}", "é".repeat(31))));
        assert_eq!(whats(&left_out), ["the end of the attribute productName of gpu-0"]);
    }

    #[test]
    fn what_does_not_fit_its_type_is_left_out_alone() {
        let version = semver::Version::parse(&format!("1.2.3-{}", "a".repeat(60))).unwrap();
        let attributes = [("driverVersion", Value::Version(version)), ("type", Value::String("gpu".to_owned()))];
        let (devices, left_out) = enforce([device(&attributes, &[("memory", "80GiB"), ("shares", "4")])]);
        assert_eq!(devices, [device(&attributes[1..], &[("shares", "4")])]);
        assert_eq!(whats(&left_out), ["the attribute driverVersion of gpu-0", "the capacity memory of gpu-0"]);
    }

    #[test]
    fn attributes_give_way_to_capacities_and_the_last_of_the_reference_first() {
        let all = attribute::ALL.map(|attribute| (attribute.name, Value::Int(1)));
        let mut full = device(&all, &[]);
        full.capacity = names(30, &"1".to_owned());
        let (devices, left_out) = enforce([full]);
        assert_eq!(devices[0].attributes.keys().collect::<Vec<_>>(), [&"type", &"uuid"]);
        assert_eq!(devices[0].capacity.len(), 30);
        assert_eq!(left_out.len(), attribute::ALL.len() - 2);
    }

    #[test]
    fn a_list_that_is_empty_or_long_or_has_a_long_text_is_left_out() {
        let attributes = [
            ("type", Value::String("gpu".to_owned())),
            ("cliques", Value::Strings(vec!["a".repeat(65)])),
            ("nodes", Value::Ints(vec![])),
            ("numbers", Value::Ints(vec![1; 48])),
            ("pairs", Value::Ints(vec![1; 47])),
            ("quads", Value::Ints(vec![1; 2])),
        ];
        let (devices, left_out) = enforce([device(&attributes, &[])]);
        assert_eq!(devices[0].attributes.keys().collect::<Vec<_>>(), [&"pairs", &"type"]);
        assert_eq!(left_out.len(), 4);
    }

    #[test]
    fn a_device_with_too_many_capacities_and_one_without_a_name_of_its_own_are_left_out() {
        let plain = device(&[], &[]);
        let mut full = Device { name: DeviceName::gpu(1), ..plain.clone() };
        full.capacity = names(33, &"1".to_owned());
        let (devices, left_out) = enforce([plain.clone(), full, plain.clone()]);
        assert_eq!(devices, [plain]);
        assert_eq!(whats(&left_out), ["the device gpu-1", "the device gpu-0"]);
    }

    #[test]
    fn a_device_that_would_look_healthy_or_free_without_what_must_go_is_left_out() {
        let taint = |value: &str, effect| Taint { key: "unhealthy".to_owned(), value: value.to_owned(), effect };
        let plain = device(&[], &[]);
        let noted = Device { taints: vec![taint("not a value", Effect::None)], ..plain.clone() };
        let tainted = Device { taints: vec![taint("not a value", Effect::NoSchedule)], ..plain.clone() };
        let consumes_counters = BTreeMap::from([("gpu-0".to_owned(), BTreeMap::new())]);
        let consumer = Device { consumes_counters, ..plain.clone() };
        assert_eq!(enforce([noted]).0, [plain]);
        for device in [tainted, consumer] {
            let (devices, left_out) = enforce([device]);
            assert!(devices.is_empty());
            assert_eq!(whats(&left_out), ["the device gpu-0"]);
        }
    }
}
