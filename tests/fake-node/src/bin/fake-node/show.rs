//! Objects as a person reads them.

use std::io::{self, Write};

use fake_node::node::DRIVER;
use serde_json::Value;

/// The mounts of a spec that are shown; the rest is counted.
const TELLING_MOUNTS: [&str; 3] = ["/libcuda.so", "/libnvidia-ml.so", "/nvidia-smi"];

/// A table of the devices in slices: a line for each GPU, and one for the parts of each that share a profile.
pub(super) fn devices(out: &mut impl Write, slices: &[Value]) -> io::Result<()> {
    for slice in slices {
        let spec = &slice["spec"];
        let pool = &spec["pool"];
        let name = text(&slice["metadata"]["name"]);
        writeln!(out, "{name}: pool {}, generation {}", text(&pool["name"]), pool["generation"])?;
        for set in spec["sharedCounters"].as_array().into_iter().flatten() {
            let counters = set["counters"].as_object().map_or(0, serde_json::Map::len);
            writeln!(out, "  {}: {counters} counters, so that parts are not given away twice", text(&set["name"]))?;
        }
        let devices = spec["devices"].as_array().map_or(&[][..], Vec::as_slice);
        let (parts, gpus): (Vec<_>, Vec<_>) = devices.iter().partition(|device| attribute(device, "type") == "mig");
        if !gpus.is_empty() {
            writeln!(
                out,
                "  {:8}{:7}{:11}{:24}{:14}{:8}{:6}PCIE ROOT",
                "NAME", "MODEL", "MEMORY", "NVLINK", "DOMAIN", "MIG", "NUMA"
            )?;
        }
        for device in gpus {
            gpu(out, device)?;
        }
        self::parts(out, &parts)?;
    }
    Ok(())
}

fn gpu(out: &mut impl Write, device: &Value) -> io::Result<()> {
    let ours = |name: &str| attribute(device, name);
    let standard = |name: &str| attribute(device, &format!("resource.kubernetes.io/{name}"));
    let links = match ours("nvlinkLinks").as_str() {
        "0" => "none".to_owned(),
        links => format!("{links} links, generation {}", ours("nvlinkVersion")),
    };
    let mig = if ours("migCapable") == "true" { "capable" } else { "no" };
    writeln!(
        out,
        "  {:8}{:7}{:11}{links:24}{:14}{mig:8}{:6}{}",
        text(&device["name"]),
        ours("model"),
        memory(device),
        shorten(&ours("nvlinkDomain")),
        standard("numaNode"),
        standard("pcieRoot"),
    )
}

/// Parts of GPUs, in the order of the first of each kind.
fn parts(out: &mut impl Write, devices: &[&Value]) -> io::Result<()> {
    let kind =
        |device: &Value| (attribute(device, "parentUUID"), attribute(device, "profile"), memory(device).to_owned());
    let mut kinds = Vec::new();
    for device in devices {
        if !kinds.contains(&kind(device)) {
            kinds.push(kind(device));
        }
    }
    for wanted in kinds {
        let of_kind: Vec<_> = devices.iter().filter(|device| kind(device) == wanted).collect();
        let [first, .., last] = &of_kind[..] else {
            let only = of_kind.first().map_or("", |device| text(&device["name"]));
            writeln!(out, "  {:14}{:11}{only}", wanted.1, wanted.2)?;
            continue;
        };
        let (first, last, count) = (text(&first["name"]), text(&last["name"]), of_kind.len());
        writeln!(out, "  {:14}{:11}{first} to {last}: {count} places", wanted.1, wanted.2)?;
    }
    Ok(())
}

fn memory(device: &Value) -> &str {
    text(&device["capacity"]["memory"]["value"])
}

/// The beginning of a CDI spec: all devices, all of a kind in one line, and as many mounts as explain the rest.
pub(super) fn spec(out: &mut impl Write, spec: &Value) -> io::Result<()> {
    writeln!(out, "  cdiVersion {}, kind {}", text(&spec["cdiVersion"]), text(&spec["kind"]))?;
    for device in spec["devices"].as_array().into_iter().flatten() {
        writeln!(out, "  device {}", text(&device["name"]))?;
        edits(out, "    ", &device["containerEdits"])?;
    }
    writeln!(out, "  every device")?;
    edits(out, "    ", &spec["containerEdits"])
}

fn edits(out: &mut impl Write, indent: &str, edits: &Value) -> io::Result<()> {
    let list = |name: &str| edits[name].as_array().cloned().unwrap_or_default();
    for variable in list("env") {
        writeln!(out, "{indent}env {}", text(&variable))?;
    }
    for node in list("deviceNodes") {
        let numbers = format!("{} {}:{}", text(&node["type"]), node["major"], node["minor"]);
        writeln!(out, "{indent}node {} {numbers} {}", text(&node["path"]), text(&node["permissions"]))?;
    }
    let mounts = list("mounts");
    let is_telling = |path: &str| TELLING_MOUNTS.iter().any(|name| path.contains(name));
    let paths = mounts.iter().map(|mount| text(&mount["containerPath"]));
    let (telling, rest): (Vec<_>, Vec<_>) = paths.partition(|path| is_telling(path));
    for path in telling {
        writeln!(out, "{indent}mount {path}")?;
    }
    if !rest.is_empty() {
        writeln!(out, "{indent}      … and {} more files of the driver (--full shows all)", rest.len())?;
    }
    Ok(())
}

/// An attribute's value, whatever its type; empty where the device has none.
fn attribute(device: &Value, name: &str) -> String {
    let attributes = &device["attributes"];
    let found = attributes.get(name).or_else(|| attributes.get(format!("{DRIVER}/{name}")));
    let value = found.and_then(Value::as_object).and_then(|value| value.values().next());
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "-".to_owned(),
    }
}

/// UUIDs are long; their ends tell them apart.
fn shorten(text: &str) -> String {
    match text.char_indices().rev().nth(8) {
        Some((at, _)) => format!("…{}", &text[at..]),
        None => text.to_owned(),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
