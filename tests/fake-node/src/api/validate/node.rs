//! Which nodes have access: `nodeName`, `nodeSelector`, `allNodes`.

use serde_json::Value;

use super::list::{Errors, items, text};
use super::names;

/// Checks the three fields where they are set, in a slice or in a device; returns the names of those that are.
pub(super) fn selection(errors: &mut Errors, path: &str, object: &Value, empty_name: &str) -> Vec<&'static str> {
    let mut set = Vec::new();
    match object["nodeName"].as_str() {
        None => {}
        Some("") => errors.invalid(&format!("{path}.nodeName"), "", empty_name),
        Some(name) => {
            set.push("`nodeName`");
            names::subdomain(errors, &format!("{path}.nodeName"), name);
        }
    }
    if object["nodeSelector"].is_object() {
        set.push("`nodeSelector`");
        selector(errors, &format!("{path}.nodeSelector"), &object["nodeSelector"]);
    }
    if flag(errors, path, object, "allNodes") {
        set.push("`allNodes`");
    }
    set
}

/// Whether a flag is set that may only be true or absent.
pub(super) fn flag(errors: &mut Errors, path: &str, object: &Value, name: &str) -> bool {
    if object[name] == false {
        errors.invalid(&format!("{path}.{name}"), false, "must be either unset or set to true");
    }
    object[name] == true
}

/// `core/v1 NodeSelector`
pub(super) fn selector(errors: &mut Errors, path: &str, selector: &Value) {
    let terms = items(selector, "nodeSelectorTerms");
    let path = format!("{path}.nodeSelectorTerms");
    if terms.is_empty() {
        errors.required(&path, "must have at least one node selector term");
    }
    for (i, term) in terms.iter().enumerate() {
        for (j, requirement) in items(term, "matchExpressions").iter().enumerate() {
            let path = format!("{path}[{i}].matchExpressions[{j}]");
            names::label_name(errors, &format!("{path}.key"), text(requirement, "key"));
            let values = items(requirement, "values").len();
            match text(requirement, "operator") {
                "In" | "NotIn" if values == 0 => {
                    errors.required(&format!("{path}.values"), "must be specified when `operator` is 'In' or 'NotIn'");
                }
                "Exists" | "DoesNotExist" if values > 0 => {
                    let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    errors.forbidden(&format!("{path}.values"), why);
                }
                "Gt" | "Lt" if values != 1 => {
                    let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                    errors.required(&format!("{path}.values"), why);
                }
                "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
                other => errors.invalid(&format!("{path}.operator"), other, "not a valid selector operator"),
            }
        }
        for (j, requirement) in items(term, "matchFields").iter().enumerate() {
            let path = format!("{path}[{i}].matchFields[{j}]");
            if text(requirement, "key") != "metadata.name" {
                let why = "not a valid field selector key";
                errors.invalid(&format!("{path}.key"), text(requirement, "key"), why);
            }
            if !["In", "NotIn"].contains(&text(requirement, "operator")) {
                let why = "not a valid selector operator";
                errors.invalid(&format!("{path}.operator"), text(requirement, "operator"), why);
            } else if items(requirement, "values").len() != 1 {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.required(&format!("{path}.values"), why);
            }
        }
    }
}
