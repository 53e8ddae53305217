//! Devices and counters as the API spells them, in the shape of `v1`. What says nothing is left out: beside devices even
//! an empty list of counters would be refused.

use serde_json::{Map, Value, json};

use crate::device::attribute;
use crate::slice::{CounterSet, Counters, Device, Effect, Slice, Taint};

/// The part of a slice's `spec` that is its content. Names without a domain are in the driver's: the API sees to that, but
/// for taints.
pub(super) fn content(slice: &Slice, driver: &str) -> Map<String, Value> {
    let mut spec = Map::new();
    let mut list = |name: &str, items: Vec<Value>| {
        if !items.is_empty() {
            spec.insert(name.to_owned(), items.into());
        }
    };
    list("sharedCounters", slice.shared_counters.iter().map(counter_set).collect());
    list("devices", slice.devices.iter().map(|of| device(of, driver)).collect());
    spec
}

fn counter_set(set: &CounterSet) -> Value {
    json!({ "name": set.name, "counters": counters(&set.counters) })
}

fn device(device: &Device, driver: &str) -> Value {
    let attributes = device.attributes.iter().map(|(name, value)| ((*name).to_owned(), attribute_value(value)));
    let capacity = device.capacity.iter().map(|(name, value)| ((*name).to_owned(), json!({ "value": value })));
    let consumes = device.consumes_counters.iter();
    let consumes = consumes.map(|(set, amounts)| json!({ "counterSet": set, "counters": counters(amounts) }));
    let fields = [
        ("attributes", attributes.collect::<Map<_, _>>().into()),
        ("capacity", capacity.collect::<Map<_, _>>().into()),
        ("consumesCounters", consumes.collect()),
        ("taints", device.taints.iter().map(|of| taint(of, driver)).collect()),
    ];
    let said = fields.into_iter().filter(|(_, value): &(_, Value)| !super::canonical::is_empty(value));
    let name = ("name", device.name.as_str().into());
    [name].into_iter().chain(said).map(|(field, value)| (field.to_owned(), value)).collect::<Map<_, _>>().into()
}

fn attribute_value(value: &attribute::Value) -> Value {
    match value {
        attribute::Value::Int(value) => json!({ "int": value }),
        attribute::Value::Bool(value) => json!({ "bool": value }),
        attribute::Value::String(value) => json!({ "string": value }),
        attribute::Value::Version(value) => json!({ "version": value.to_string() }),
        attribute::Value::Ints(values) => json!({ "ints": values }),
        attribute::Value::Strings(values) => json!({ "strings": values }),
    }
}

fn counters(counters: &Counters) -> Value {
    let counter = |(name, amount): (&String, &u64)| (name.clone(), json!({ "value": amount.to_string() }));
    counters.iter().map(counter).collect::<Map<_, _>>().into()
}

/// Without the time: see [`TaintTimes`](super::taint_times::TaintTimes).
fn taint(taint: &Taint, driver: &str) -> Value {
    let key = if taint.key.contains('/') { taint.key.clone() } else { format!("{driver}/{}", taint.key) };
    let effect = match taint.effect {
        Effect::None => "None",
        Effect::NoSchedule => "NoSchedule",
        Effect::NoExecute => "NoExecute",
    };
    let mut object = json!({ "key": key, "effect": effect });
    if !taint.value.is_empty() {
        object["value"] = taint.value.as_str().into();
    }
    object
}
