//! What is published for each machine, pinned in one JSON file each.
//!
//! After a change that is meant: `UPDATE_GOLDEN=1 cargo test --test topologies machines::`, then read what git says has
//! changed, and run all tests again, because the others read these files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// What the API server invents, anew in each run.
const VOLATILE: [&str; 7] =
    ["name", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "annotations"];

/// The slices of a machine.
pub(crate) fn read(name: &str) -> Vec<Value> {
    let path = path(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares slices with a machine's file, or replaces the file if `UPDATE_GOLDEN` is set.
pub(crate) fn assert_published(name: &str, slices: Vec<Value>) {
    let slices = slices.into_iter().map(stable).collect();
    assert_same(&path(name), &slices);
}

/// Compares a CDI spec with a file, or replaces the file if `UPDATE_GOLDEN` is set.
pub(crate) fn assert_spec(name: &str, spec: &Value) {
    assert_same(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cdi").join(name), spec);
}

fn assert_same(path: &Path, value: &Value) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let mut text = String::new();
        render(value, 0, &mut text);
        text.push('\n');
        replace(path, &text);
    }
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let golden: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let difference = difference(&golden, value);
    assert!(difference.is_empty(), "{} is different (UPDATE_GOLDEN=1 accepts that):\n{difference}", path.display());
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/topologies").join(name).with_extension("json")
}

/// In one step: other tests may be reading it.
fn replace(path: &Path, text: &str) {
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.persist(path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
}

/// A slice without what differs from run to run.
fn stable(mut slice: Value) -> Value {
    let metadata = slice["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| !VOLATILE.contains(&field.as_str()));
    for owner in metadata["ownerReferences"].as_array_mut().unwrap() {
        owner.as_object_mut().unwrap().remove("uid");
    }
    slice
}

/// JSON with one attribute a line: objects of scalars stay in one line.
fn render(value: &Value, indent: usize, out: &mut String) {
    let is_nested = |value: &Value| value.is_object() || value.is_array();
    let (items, close): (Vec<_>, _) = match value {
        Value::Object(map) if map.values().any(is_nested) => {
            out.push('{');
            (map.iter().map(|(key, value)| (format!("{key:?}: "), value)).collect(), '}')
        }
        Value::Array(list) if list.iter().any(is_nested) => {
            out.push('[');
            (list.iter().map(|value| (String::new(), value)).collect(), ']')
        }
        leaf => return write!(out, "{leaf}").unwrap(),
    };
    let mut separator = "\n";
    for (key, value) in items {
        write!(out, "{separator}{:1$}{key}", "", indent + 2).unwrap();
        render(value, indent + 2, out);
        separator = ",\n";
    }
    write!(out, "\n{:indent$}{close}", "").unwrap();
}

/// Path by path, what only one of two has.
fn difference(golden: &Value, published: &Value) -> String {
    let (golden, published) = (leaves(golden), leaves(published));
    let mut lines = String::new();
    for path in golden.keys().chain(published.keys().filter(|path| !golden.contains_key(*path))) {
        let (golden, published) = (golden.get(path), published.get(path));
        if golden != published {
            let text = |value: Option<&String>| value.map_or("nothing", String::as_str).to_owned();
            let (golden, published) = (text(golden), text(published));
            write!(lines, "  {path}\n    golden     {golden}\n    published  {published}\n").unwrap();
        }
    }
    lines
}

/// Scalars by their paths. Elements of a list that have names are called by them too.
fn leaves(value: &Value) -> BTreeMap<String, String> {
    let mut leaves = BTreeMap::new();
    let mut left = vec![(String::new(), value)];
    while let Some((path, value)) = left.pop() {
        match value {
            Value::Object(map) => left.extend(map.iter().map(|(key, value)| (format!("{path}.{key}"), value))),
            Value::Array(list) => left.extend(list.iter().enumerate().map(|(at, value)| {
                let name = value["name"].as_str().map(|name| format!(" {name}")).unwrap_or_default();
                (format!("{path}[{at}{name}]"), value)
            })),
            scalar => _ = leaves.insert(path, scalar.to_string()),
        }
    }
    leaves
}

#[test]
fn a_difference_names_the_device_and_the_attribute() {
    let slice = |model: &str, memory: &str| serde_json::json!([{"devices": [{"name": "gpu-0", "model": {"string": model}, memory: "80Gi"}]}]);
    assert_eq!(difference(&slice("A100", "memory"), &slice("A100", "memory")), "");
    let expected = [
        "  [0].devices[0 gpu-0].memory",
        "    golden     \"80Gi\"",
        "    published  nothing",
        "  [0].devices[0 gpu-0].model.string",
        "    golden     \"A100\"",
        "    published  \"H100\"",
        "  [0].devices[0 gpu-0].size",
        "    golden     nothing",
        "    published  \"80Gi\"",
    ];
    assert_eq!(difference(&slice("A100", "memory"), &slice("H100", "size")).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn every_file_belongs_to_a_machine() {
    for entry in fs::read_dir(path("x").parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(topology::Topology::names().any(|known| known == name), "{} is of no machine", path.display());
    }
}
