//! ResourceSlices as each version of the API writes them.
//!
//! Inside this room a slice is a document of the shape of `v1`. Only `v1beta1` differs:
//!
//! ```text
//!  v1, v1beta2   devices: [{name, attributes, capacity, …}]          nodeName absent when not used
//!  v1beta1       devices: [{name, basic: {attributes, capacity, …}}] nodeName "" and allNodes false when not used
//! ```
//!
//! Counters and taints came with 1.33, lists with 1.36, and a server that is older, or has their gates off, drops or
//! refuses them: that shows in its answer, and in no version's form. Fields that this driver has never heard of keep
//! their place either way. A ResourceClaim needs no conversion: its
//! `status.allocation` is the same in all versions.

use serde_json::{Map, Value};

use super::version::Version;

/// A slice as the server's version writes it, with `apiVersion` and `kind`.
pub fn to_wire(version: Version, mut slice: Value) -> Value {
    if let Value::Object(fields) = &mut slice {
        fields.insert("apiVersion".into(), version.api_version().into());
        fields.insert("kind".into(), "ResourceSlice".into());
    }
    if version == Version::V1beta1 {
        each_device(&mut slice, |device| {
            let basic: Map<String, Value> = device.iter().filter(|(key, _)| *key != "name").map(owned).collect();
            device.retain(|key, _| key == "name");
            // Present even when empty: it is what says which kind of device this is.
            device.insert("basic".into(), basic.into());
        });
    }
    slice
}

/// A slice of any version in the shape of `v1`.
pub fn from_wire(version: Version, mut slice: Value) -> Value {
    if version == Version::V1beta1 {
        each_device(&mut slice, |device| {
            if let Some(Value::Object(basic)) = device.remove("basic") {
                device.extend(basic);
            }
        });
        if let Some(Value::Object(spec)) = slice.get_mut("spec") {
            spec.retain(|key, value| !(key == "nodeName" && *value == "" || key == "allNodes" && *value == false));
        }
    }
    slice
}

fn each_device(slice: &mut Value, convert: impl Fn(&mut Map<String, Value>)) {
    if let Some(Value::Array(devices)) = slice.pointer_mut("/spec/devices") {
        devices.iter_mut().filter_map(Value::as_object_mut).for_each(convert);
    }
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::slices::tests::{a_pool, desired_for, pool_with_extras};
    use crate::cluster::slices::{Adopted, Change, changes};
    use crate::slice::Pool;

    /// New slices, as each version writes them.
    fn assert_as_golden_files_say(name: &str, pool: &Pool) {
        let plan = changes(&[], &desired_for(pool), &Adopted::default());
        let created = |change: &Change| match change {
            Change::Create { object, .. } => object.clone(),
            other => panic!("{other:?}"),
        };
        let slices: Vec<_> = plan.changes.iter().map(created).collect();
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("../../tests/golden/slices");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        let _bound = settings.bind_to_scope();
        for version in Version::ALL {
            let mut wire: Vec<_> = slices.iter().map(|slice| to_wire(version, slice.clone())).collect();
            let document = if wire.len() == 1 { wire.remove(0) } else { wire.into() };
            insta::assert_json_snapshot!(format!("{name}{version}"), document);
        }
    }

    #[test]
    fn each_version_is_written_as_its_golden_file_says() {
        assert_as_golden_files_say("", &a_pool());
    }

    #[test]
    fn lists_counters_and_taints_are_written_as_golden_files_say() {
        assert_as_golden_files_say("extras-", &pool_with_extras());
    }

    #[test]
    fn what_is_written_reads_back_with_fields_nobody_has_heard_of() {
        let slice = json!({
            "metadata": {"name": "00000-x"},
            "spec": {
                "nodeName": "n", "fieldOfTomorrow": [1],
                "devices": [
                    {"name": "gpu-0", "attributes": {"a": {"int": 1}}, "deviceFieldOfTomorrow": {"x": true}},
                    {"name": "gpu-1"},
                ],
            },
        });
        for version in Version::ALL {
            let mut back = from_wire(version, to_wire(version, slice.clone()));
            let fields = back.as_object_mut().unwrap();
            assert_eq!(fields.remove("apiVersion").unwrap(), version.api_version());
            fields.remove("kind");
            assert_eq!(back, slice, "{version}");
        }
    }

    #[test]
    fn plain_node_fields_of_v1beta1_that_say_nothing_are_absent_in_v1() {
        let wire = json!({"spec": {"nodeName": "", "allNodes": false, "perDeviceNodeSelection": true}});
        assert_eq!(from_wire(Version::V1beta1, wire), json!({"spec": {"perDeviceNodeSelection": true}}));
    }

    #[test]
    fn documents_that_are_no_slices_pass_unharmed() {
        for odd in [json!(null), json!([]), json!({"spec": {"devices": 3}}), json!({"spec": {"devices": [1, "x"]}})] {
            assert_eq!(from_wire(Version::V1beta1, odd.clone()), odd);
        }
    }
}
