//! ResourceClaims, their templates and DeviceClasses: what is asked for, and what was given.

use serde_json::{Value, json};

use super::super::gates::Gate;
use super::list::{Errors, entries, items, key_of, text};
use super::{Rules, device, names, node, slice};
use crate::release::Release;

/// Requests of a claim, and requests that a constraint or configuration names.
const REQUESTS: usize = 32;
const CONSTRAINTS: usize = 32;
const CONFIGS: usize = 32;
const SELECTORS: usize = 32;
const ALTERNATIVES: usize = 8;
/// Devices in an allocation.
const RESULTS: usize = 32;
/// Consumers of a claim; 32 before 1.33.
const RESERVED_FOR: usize = 256;
const CEL_BYTES: usize = 10 << 10;
/// Opaque parameters, and `status.devices[].data`.
const OPAQUE_BYTES: usize = 10 << 10;
const CONDITIONS: usize = 8;
const IPS: usize = 16;
const INTERFACE_BYTES: usize = 256;
const HARDWARE_ADDRESS_BYTES: usize = 128;

/// The claim itself, without its status.
pub(super) fn check_claim(claim: &Value, old: Option<&Value>, rules: Rules<'_>, errors: &mut Errors) {
    match old {
        None => claim_spec(errors, "spec", &claim["spec"], rules),
        Some(old) => errors.immutable("spec", &claim["spec"], &old["spec"]),
    }
}

pub(super) fn check_template(template: &Value, old: Option<&Value>, rules: Rules<'_>, errors: &mut Errors) {
    match old {
        None => claim_spec(errors, "spec.spec", &template["spec"]["spec"], rules),
        Some(old) => errors.immutable("spec", &template["spec"], &old["spec"]),
    }
}

pub(super) fn check_class(spec: &Value, errors: &mut Errors) {
    selectors(errors, "spec.selectors", items(spec, "selectors"));
    if errors.max_items("spec.config", items(spec, "config").len(), CONFIGS) {
        for (i, config) in items(spec, "config").iter().enumerate() {
            opaque(errors, &format!("spec.config[{i}]"), config);
        }
    }
    if let Some(name) = spec["extendedResourceName"].as_str() {
        let mut scratch = Errors::default();
        names::label_name(&mut scratch, "", name);
        let native = name.split_once('/').is_none_or(|(domain, _)| domain.ends_with("kubernetes.io"));
        if native || name.starts_with("requests.") || !scratch.into_inner().is_empty() {
            errors.invalid("spec.extendedResourceName", name, "must be a valid extended resource name");
        }
    }
}

fn claim_spec(errors: &mut Errors, path: &str, spec: &Value, rules: Rules<'_>) {
    let path = format!("{path}.devices");
    let devices = &spec["devices"];
    let requests = items(devices, "requests");
    let known = RequestNames(devices);
    let field = format!("{path}.requests");
    if errors.max_items(&field, requests.len(), REQUESTS) {
        for (i, request) in requests.iter().enumerate() {
            check_request(errors, &format!("{field}[{i}]"), request, rules);
        }
        errors.unique(&field, requests.iter().map(|request| request["name"].clone()));
    }
    let field = format!("{path}.constraints");
    if errors.max_items(&field, items(devices, "constraints").len(), CONSTRAINTS) {
        for (i, constraint) in items(devices, "constraints").iter().enumerate() {
            check_constraint(errors, &format!("{field}[{i}]"), constraint, &known, rules);
        }
    }
    let field = format!("{path}.config");
    if errors.max_items(&field, items(devices, "config").len(), CONFIGS) {
        for (i, config) in items(devices, "config").iter().enumerate() {
            known.check_all(errors, &format!("{field}[{i}].requests"), config);
            opaque(errors, &format!("{field}[{i}]"), config);
        }
    }
}

fn check_request(errors: &mut Errors, path: &str, request: &Value, rules: Rules<'_>) {
    names::label(errors, &format!("{path}.name"), text(request, "name"));
    let alternatives = items(request, "firstAvailable");
    let choice = "exactly one of `exactly` or `firstAvailable` is required";
    match (request["exactly"].is_object(), alternatives.is_empty()) {
        (false, true) => errors.required(path, choice),
        (true, false) => errors.invalid(path, Value::Null, format!("{choice}, but multiple fields are set")),
        (true, true) => ask(errors, &format!("{path}.exactly"), &request["exactly"], rules),
        (false, false) => {
            let path = format!("{path}.firstAvailable");
            if errors.max_items(&path, alternatives.len(), ALTERNATIVES) {
                for (i, alternative) in alternatives.iter().enumerate() {
                    names::label(errors, &format!("{path}[{i}].name"), text(alternative, "name"));
                    ask(errors, &format!("{path}[{i}]"), alternative, rules);
                }
                errors.unique(&path, alternatives.iter().map(|alternative| alternative["name"].clone()));
            }
        }
    }
}

/// What a request or one of its alternatives asks for.
fn ask(errors: &mut Errors, path: &str, ask: &Value, rules: Rules<'_>) {
    match text(ask, "deviceClassName") {
        "" => errors.required(&format!("{path}.deviceClassName"), ""),
        class => names::subdomain(errors, &format!("{path}.deviceClassName"), class),
    }
    selectors(errors, &format!("{path}.selectors"), items(ask, "selectors"));
    let count = ask["count"].as_i64().unwrap_or_default();
    match text(ask, "allocationMode") {
        "All" if count != 0 => {
            errors.invalid(&format!("{path}.count"), count, "must not be specified when allocationMode is 'All'");
        }
        "ExactCount" if count <= 0 => {
            errors.invalid(&format!("{path}.count"), count, "must be greater than zero");
        }
        mode => errors.one_of(&format!("{path}.allocationMode"), mode, &["All", "ExactCount"]),
    }
    tolerations(errors, path, ask, rules);
    for (name, _) in entries(&ask["capacity"], "requests") {
        names::qualified_name(errors, &format!("{path}.capacity.requests"), name);
    }
    if ask["adminAccess"] == true {
        admin_access(errors, &format!("{path}.adminAccess"), rules);
    }
}

/// Admin access is for namespaces that an administrator has marked.
fn admin_access(errors: &mut Errors, field: &str, rules: Rules<'_>) {
    if let (Some(label), false) = (admin_label(rules.release), rules.admin_namespace) {
        let why = format!("admin access to devices requires the `{label}: true` label on the containing namespace");
        errors.forbidden(field, &why);
    }
}

/// The namespace label that permits admin access; 1.32 asked for none.
pub(in crate::api) fn admin_label(release: Release) -> Option<&'static str> {
    match release {
        Release::V1_32 => None,
        Release::V1_33 => Some("resource.k8s.io/admin-access"),
        _ => Some("resource.kubernetes.io/admin-access"),
    }
}

fn selectors(errors: &mut Errors, path: &str, selectors: &[Value]) {
    if !errors.max_items(path, selectors.len(), SELECTORS) {
        return;
    }
    for (i, selector) in selectors.iter().enumerate() {
        let path = format!("{path}[{i}].cel");
        if selector["cel"].is_null() {
            errors.required(&path, "");
            continue;
        }
        let expression = text(&selector["cel"], "expression");
        let path = format!("{path}.expression");
        if expression.trim().is_empty() {
            errors.invalid(&path, expression, "compilation failed: ERROR: <input>:1:1: Syntax error: empty expression");
        }
        errors.max_bytes(&path, expression, CEL_BYTES);
    }
}

fn tolerations(errors: &mut Errors, path: &str, object: &Value, rules: Rules<'_>) {
    for (i, toleration) in items(object, "tolerations").iter().enumerate() {
        let path = format!("{path}.tolerations[{i}]");
        if !text(toleration, "key").is_empty() {
            names::label_name(errors, &format!("{path}.key"), text(toleration, "key"));
        }
        let value = text(toleration, "value");
        match text(toleration, "operator") {
            "Exists" if !value.is_empty() => {
                errors.invalid(&format!("{path}.value"), value, "must be empty for operator `Exists`");
            }
            "Equal" => names::label_value(errors, &format!("{path}.value"), value),
            operator => errors.one_of(&format!("{path}.operator"), operator, &["Equal", "Exists"]),
        }
        if !text(toleration, "effect").is_empty() {
            errors.one_of(&format!("{path}.effect"), text(toleration, "effect"), device::effects(rules.release));
        }
    }
}

fn check_constraint(errors: &mut Errors, path: &str, constraint: &Value, known: &RequestNames<'_>, rules: Rules<'_>) {
    known.check_all(errors, &format!("{path}.requests"), constraint);
    if let Some(name) = constraint["matchAttribute"].as_str() {
        names::fully_qualified_name(errors, &format!("{path}.matchAttribute"), name);
    } else if let Some(name) = constraint["distinctAttribute"].as_str() {
        names::fully_qualified_name(errors, &format!("{path}.distinctAttribute"), name);
    } else if rules.gates.enabled(Gate::ConsumableCapacity) {
        errors.required(path, "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required");
    } else {
        errors.required(&format!("{path}.matchAttribute"), "");
    }
}

fn opaque(errors: &mut Errors, path: &str, config: &Value) {
    let path = format!("{path}.opaque");
    if config["opaque"].is_null() {
        return errors.required(&path, "");
    }
    names::driver(errors, &format!("{path}.driver"), text(&config["opaque"], "driver"));
    raw_object(errors, &format!("{path}.parameters"), &config["opaque"]["parameters"]);
}

/// Free-form JSON: an object of limited size.
fn raw_object(errors: &mut Errors, field: &str, value: &Value) {
    if value.is_null() {
        errors.required(field, "");
    } else if errors.max_bytes(field, &value.to_string(), OPAQUE_BYTES) && !value.is_object() {
        errors.invalid(field, "<value omitted>", "must be a valid JSON object");
    }
}

/// The names by which a claim's requests and their alternatives can be meant.
struct RequestNames<'a>(&'a Value);

// === impl RequestNames ===

impl RequestNames<'_> {
    fn has(&self, name: &str) -> bool {
        let (main, sub) = name.split_once('/').map_or((name, None), |(main, sub)| (main, Some(sub)));
        items(self.0, "requests").iter().any(|request| {
            text(request, "name") == main
                && sub.is_none_or(|sub| items(request, "firstAvailable").iter().any(|alt| text(alt, "name") == sub))
        })
    }

    fn check(&self, errors: &mut Errors, field: &str, name: &str) {
        if !self.has(name) {
            let why =
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
            errors.invalid(field, name, why);
        }
    }

    fn check_all(&self, errors: &mut Errors, path: &str, object: &Value) {
        let names = items(object, "requests");
        if errors.max_items(path, names.len(), REQUESTS) {
            for (i, name) in names.iter().enumerate() {
                self.check(errors, &format!("{path}[{i}]"), name.as_str().unwrap_or_default());
            }
            errors.unique(path, names.iter().cloned());
        }
    }
}

/// The status subresource: who uses the claim, what was allocated, and in which state the devices are.
pub(super) fn check_status(claim: &Value, old: Option<&Value>, rules: Rules<'_>, errors: &mut Errors) {
    let (status, nothing) = (&claim["status"], json!({}));
    let old_status = old.map_or(&nothing, |old| &old["status"]);
    let allocation = &status["allocation"];
    reserved_for(errors, claim, old_status, rules);
    device_statuses(errors, status);
    if allocation.is_object() && old_status["allocation"].is_object() {
        errors.immutable("status.allocation", allocation, &old_status["allocation"]);
    } else if allocation.is_object() {
        check_allocation(errors, allocation, &RequestNames(&claim["spec"]["devices"]), rules);
    }
}

fn reserved_for(errors: &mut Errors, claim: &Value, old_status: &Value, rules: Rules<'_>) {
    let field = "status.reservedFor";
    let (status, consumers) = (&claim["status"], items(&claim["status"], "reservedFor"));
    let most = if rules.release == Release::V1_32 { 32 } else { RESERVED_FOR };
    if errors.max_items(field, consumers.len(), most) {
        for (i, consumer) in consumers.iter().enumerate() {
            for key in ["resource", "name", "uid"].into_iter().filter(|key| text(consumer, key).is_empty()) {
                errors.required(&format!("{field}[{i}].{key}"), "");
            }
        }
        errors.unique(field, consumers.iter().map(|consumer| consumer["uid"].clone()));
    }
    if consumers.is_empty() {
        return;
    }
    if !status["allocation"].is_object() {
        errors.forbidden(field, "may not be specified when `allocated` is not set");
    } else if claim["metadata"]["deletionTimestamp"].is_string()
        && consumers.iter().any(|consumer| !items(old_status, "reservedFor").contains(consumer))
    {
        let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.forbidden(field, why);
    }
}

fn device_statuses(errors: &mut Errors, status: &Value) {
    const KEYS: [&str; 4] = ["driver", "pool", "device", "shareID"];
    let allocated: Vec<_> =
        items(&status["allocation"]["devices"], "results").iter().map(|result| key_of(result, &KEYS)).collect();
    let devices = items(status, "devices");
    for (i, device) in devices.iter().enumerate() {
        let path = format!("status.devices[{i}]");
        names::driver(errors, &format!("{path}.driver"), text(device, "driver"));
        names::pool(errors, &format!("{path}.pool"), text(device, "pool"));
        names::label(errors, &format!("{path}.device"), text(device, "device"));
        if let Some(share) = device["shareID"].as_str() {
            names::uuid(errors, &format!("{path}.shareID"), share);
        }
        let key = key_of(device, &KEYS);
        if !allocated.contains(&key) {
            errors.invalid(&path, key, "must be an allocated device in the claim");
        }
        conditions(errors, &format!("{path}.conditions"), items(device, "conditions"));
        if !device["data"].is_null() {
            raw_object(errors, &format!("{path}.data"), &device["data"]);
        }
        let network = &device["networkData"];
        let path = format!("{path}.networkData");
        errors.max_bytes(&format!("{path}.interfaceName"), text(network, "interfaceName"), INTERFACE_BYTES);
        errors.max_bytes(&format!("{path}.hardwareAddress"), text(network, "hardwareAddress"), HARDWARE_ADDRESS_BYTES);
        errors.max_items(&format!("{path}.ips"), items(network, "ips").len(), IPS);
    }
    errors.unique("status.devices", devices.iter().map(|device| key_of(device, &KEYS)));
}

/// `meta/v1 Condition`s.
fn conditions(errors: &mut Errors, path: &str, conditions: &[Value]) {
    errors.max_items(path, conditions.len(), CONDITIONS);
    for (i, condition) in conditions.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match text(condition, "type") {
            "" => errors.required(&format!("{path}.type"), ""),
            name => names::label_name(errors, &format!("{path}.type"), name),
        }
        errors.one_of(&format!("{path}.status"), text(condition, "status"), &["True", "False", "Unknown"]);
        if condition["lastTransitionTime"].is_null() {
            errors.required(&format!("{path}.lastTransitionTime"), "must be set");
        }
        let reason = text(condition, "reason");
        let shaped = reason.starts_with(|c: char| c.is_ascii_alphabetic())
            && !reason.ends_with([',', ':'])
            && reason.chars().all(|c| c.is_ascii_alphanumeric() || "_,:".contains(c));
        if reason.is_empty() {
            errors.required(&format!("{path}.reason"), "");
        } else if !shaped {
            let why = "a condition reason must start with alphabetic character, optionally followed by a string of \
                alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
            errors.invalid(&format!("{path}.reason"), reason, why);
        }
        errors.max_bytes(&format!("{path}.reason"), reason, 1024);
        errors.max_bytes(&format!("{path}.message"), text(condition, "message"), 32 << 10);
    }
    errors.unique(path, conditions.iter().map(|condition| condition["type"].clone()));
}

fn check_allocation(errors: &mut Errors, allocation: &Value, known: &RequestNames<'_>, rules: Rules<'_>) {
    let results = items(&allocation["devices"], "results");
    let path = "status.allocation.devices.results";
    if errors.max_items(path, results.len(), RESULTS) {
        for (i, result) in results.iter().enumerate() {
            let path = format!("{path}[{i}]");
            known.check(errors, &format!("{path}.request"), text(result, "request"));
            names::driver(errors, &format!("{path}.driver"), text(result, "driver"));
            names::pool(errors, &format!("{path}.pool"), text(result, "pool"));
            names::label(errors, &format!("{path}.device"), text(result, "device"));
            device::binding(errors, &path, result);
            tolerations(errors, &path, result, rules);
            if let Some(share) = result["shareID"].as_str() {
                names::uuid(errors, &format!("{path}.shareID"), share);
            }
            slice::skipped_operations(errors, &format!("{path}.skipNodeOperations"), result);
            if result["adminAccess"] == true {
                admin_access(errors, &format!("{path}.adminAccess"), rules);
            }
        }
    }
    let configs = items(&allocation["devices"], "config");
    let path = "status.allocation.devices.config";
    if errors.max_items(path, configs.len(), 2 * CONFIGS) {
        for (i, config) in configs.iter().enumerate() {
            let path = format!("{path}[{i}]");
            errors.one_of(&format!("{path}.source"), text(config, "source"), &["FromClaim", "FromClass"]);
            known.check_all(errors, &format!("{path}.requests"), config);
            opaque(errors, &path, config);
        }
    }
    if allocation["nodeSelector"].is_object() {
        node::selector(errors, "status.allocation.nodeSelector", &allocation["nodeSelector"]);
    }
}
