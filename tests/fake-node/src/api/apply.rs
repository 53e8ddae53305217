//! Server-side apply, and who owns which field after any write.
//!
//! ```text
//!  apply(config) ─▶ conflicts with other managers? ─▶ merge into the live object
//!                                                     ─▶ remove what this manager applied before and no longer does
//!  any other write ─▶ compare old and new ─▶ the writer owns what it changed
//! ```

use serde_json::{Value, json};

use super::failure::Failure;
use super::fieldset::{self, FieldSet};
use super::kind::Kind;
use super::schema;

/// Who writes, and through what.
#[derive(Debug, Clone)]
pub(super) struct Manager<'a> {
    /// The field manager's name.
    pub(super) name: &'a str,
    /// The version in which it writes.
    pub(super) api_version: &'a str,
    /// `status` for writes to the status subresource.
    pub(super) subresource: Option<&'a str>,
}

/// One entry of `metadata.managedFields`.
struct Entry {
    raw: Value,
    set: FieldSet,
}

// === impl Entry ===

impl Entry {
    fn read_all(object: &Value) -> Vec<Self> {
        let entries = object["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
        entries.iter().map(|raw| Self { raw: raw.clone(), set: FieldSet::from_wire(&raw["fieldsV1"]) }).collect()
    }

    fn write_all(entries: Vec<Self>, object: &mut Value) {
        let entries: Vec<_> = entries
            .into_iter()
            .filter(|entry| !entry.set.is_empty())
            .map(|entry| {
                let mut raw = entry.raw;
                raw["fieldsV1"] = entry.set.to_wire();
                raw
            })
            .collect();
        match object["metadata"].as_object_mut() {
            Some(meta) if entries.is_empty() => drop(meta.remove("managedFields")),
            Some(meta) => drop(meta.insert("managedFields".into(), Value::Array(entries))),
            None => {}
        }
    }

    fn is(&self, manager: &Manager<'_>, operation: &str) -> bool {
        self.raw["manager"] == manager.name
            && self.raw["operation"] == operation
            && self.raw["subresource"].as_str() == manager.subresource
            // An applier keeps its entry when it moves to another version of the group.
            && (operation == "Apply" || self.raw["apiVersion"] == manager.api_version)
    }

    fn new(manager: &Manager<'_>, operation: &str, set: FieldSet, now: &str) -> Self {
        let mut raw = json!({"manager": manager.name, "operation": operation, "apiVersion": manager.api_version,
            "time": now, "fieldsType": "FieldsV1"});
        if let Some(subresource) = manager.subresource {
            raw["subresource"] = json!(subresource);
        }
        Self { raw, set }
    }
}

/// The object that results from applying `config`, with its new owners. `live` is an empty object where there is none.
pub(super) fn apply(
    kind: Kind,
    live: &Value,
    config: &Value,
    manager: &Manager<'_>,
    force: bool,
    now: &str,
) -> Result<Value, Failure> {
    if config["metadata"]["managedFields"].as_array().is_some_and(|fields| !fields.is_empty()) {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    let ty = schema::of(kind);
    let applied = FieldSet::of_object(config, ty);
    let mut merged = live.clone();
    fieldset::merge(&mut merged, config, ty);

    let (mut mine, mut others): (Vec<_>, Vec<_>) =
        Entry::read_all(live).into_iter().partition(|entry| entry.is(manager, "Apply"));
    let (changed, _) = FieldSet::compare(live, &merged, ty);
    let contested = changed.intersection(&applied);
    if force {
        for entry in &mut others {
            entry.set = entry.set.difference(&contested);
        }
    } else {
        refuse_conflicts(&others, &contested)?;
    }

    let before = mine.pop().map(|entry| entry.set).unwrap_or_default();
    let keep = others.iter().fold(applied.clone(), |keep, entry| keep.union(&entry.set));
    fieldset::remove(&mut merged, ty, &before.difference(&applied), &keep);
    let mut entries = vec![Entry::new(manager, "Apply", applied, now)];
    entries.append(&mut others);
    Entry::write_all(entries, &mut merged);
    Ok(merged)
}

fn refuse_conflicts(others: &[Entry], contested: &FieldSet) -> Result<(), Failure> {
    let conflicts: Vec<_> = others
        .iter()
        .flat_map(|entry| {
            let by = format!(
                "conflict with {} using {}",
                entry.raw["manager"],
                entry.raw["apiVersion"].as_str().unwrap_or("")
            );
            entry.set.intersection(contested).paths().into_iter().map(move |path| (by.clone(), path))
        })
        .collect();
    if conflicts.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = conflicts.iter().map(|(by, path)| format!("{by}: {path}")).collect();
    let noun = if conflicts.len() == 1 { "conflict" } else { "conflicts" };
    let message = format!("Apply failed with {} {noun}: {}", conflicts.len(), list.join(", "));
    let cause = |(by, path): &(String, String)| json!({"reason": "FieldManagerConflict", "message": by, "field": path});
    Err(Failure::apply_conflict(message, &conflicts.iter().map(cause).collect()))
}

/// Records who owns what after a write that was not an apply. `old` is an empty object for a creation.
pub(super) fn record_update(kind: Kind, old: &Value, new: &mut Value, manager: &Manager<'_>, now: &str) {
    let (changed, removed) = FieldSet::compare(old, new, schema::of(kind));
    let mut entries = Entry::read_all(old);
    let gone = changed.union(&removed);
    for entry in &mut entries {
        if !entry.is(manager, "Update") {
            entry.set = entry.set.difference(&gone);
        }
    }
    if !changed.is_empty() {
        let before = entries.iter().position(|entry| entry.is(manager, "Update"));
        let before = before.map(|index| entries.remove(index).set).unwrap_or_default();
        entries.push(Entry::new(manager, "Update", before.difference(&removed).union(&changed), now));
    } else if let Some(entry) = entries.iter_mut().find(|entry| entry.is(manager, "Update")) {
        entry.set = entry.set.difference(&removed);
    }
    Entry::write_all(entries, new);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn manager(name: &str) -> Manager<'_> {
        Manager { name, api_version: "resource.k8s.io/v1", subresource: Some("status") }
    }

    fn status(devices: &Value) -> Value {
        json!({"status": {"devices": devices}})
    }

    fn device(driver: &str, name: &str, uuid: &str) -> Value {
        json!({"driver": driver, "pool": "p", "device": name, "data": {"uuid": uuid}})
    }

    #[track_caller]
    fn applied(live: &Value, by: &str, devices: &Value, force: bool) -> Value {
        apply(Kind::ResourceClaim, live, &status(devices), &manager(by), force, NOW).unwrap()
    }

    #[test]
    fn two_drivers_keep_their_entries_of_the_device_status() {
        let live = applied(
            &json!({"metadata": {}}),
            "a.io",
            &json!([device("a.io", "x", "1"), device("a.io", "y", "2")]),
            false,
        );
        let live = applied(&live, "b.io", &json!([device("b.io", "x", "3")]), false);
        let names = |live: &Value| {
            let devices = live["status"]["devices"].as_array().unwrap();
            devices
                .iter()
                .map(|d| format!("{}/{}", d["driver"].as_str().unwrap(), d["device"].as_str().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&live), ["a.io/x", "a.io/y", "b.io/x"]);

        let live = applied(&live, "a.io", &json!([device("a.io", "y", "2")]), false);
        assert_eq!(names(&live), ["a.io/y", "b.io/x"], "what a manager no longer applies goes");
        let live = applied(&live, "a.io", &json!([]), false);
        assert_eq!(names(&live), ["b.io/x"]);
        assert_eq!(live["metadata"]["managedFields"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_field_of_another_manager_is_only_taken_by_force() {
        let live = applied(&json!({"metadata": {}}), "one", &json!([device("a.io", "x", "1")]), false);
        let config = status(&json!([device("a.io", "x", "2")]));
        let refused = apply(Kind::ResourceClaim, &live, &config, &manager("two"), false, NOW).unwrap_err();
        assert_eq!((refused.code, refused.reason), (409, "Conflict"));
        assert!(
            refused.message.starts_with(
                "Apply failed with 1 conflict: conflict with \"one\" using resource.k8s.io/v1: \
            .status.devices[device=\"x\",driver=\"a.io\",pool=\"p\"].data"
            ),
            "{}",
            refused.message
        );

        applied(&live, "two", &json!([device("a.io", "x", "1")]), false); // Agreeing is sharing, not conflict.
        let live = applied(&live, "two", &json!([device("a.io", "x", "2")]), true);
        assert_eq!(live["status"]["devices"][0]["data"]["uuid"], "2");
        let live = applied(&live, "one", &json!([]), false);
        assert_eq!(live["status"]["devices"][0]["data"]["uuid"], "2", "the entry is still applied by the other");
    }

    #[test]
    fn a_plain_update_takes_what_it_changes() {
        let old = applied(&json!({"metadata": {}}), "driver", &json!([device("a.io", "x", "1")]), false);
        let mut new = old.clone();
        new["status"]["devices"][0]["data"]["uuid"] = json!("2");
        record_update(Kind::ResourceClaim, &old, &mut new, &manager("editor"), NOW);
        let owners: Vec<_> = Entry::read_all(&new);
        let data = ".status.devices[device=\"x\",driver=\"a.io\",pool=\"p\"].data".to_owned();
        for entry in owners {
            assert_eq!(entry.set.paths().contains(&data), entry.raw["manager"] == "editor", "{}", entry.raw);
        }
    }
}
