//! Field and label selectors.

use serde_json::Value;

use super::failure::Failure;
use super::kind::Kind;
use crate::release::Release;

/// Which objects a list or a watch is about.
#[derive(Debug, Clone, Default)]
pub(super) struct Selector {
    fields: Vec<Requirement>,
    labels: Vec<Requirement>,
}

#[derive(Debug, Clone)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    Equals(String),
    Differs(String),
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
}

// === impl Selector ===

impl Selector {
    /// Reads the query parameters. A field that the type cannot be selected by is a bad request.
    pub(super) fn parse(
        kind: Kind,
        release: Release,
        fields: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Self, Failure> {
        let fields = split(fields).map(|text| Requirement::parse_field(&text)).collect::<Result<Vec<_>, _>>()?;
        if let Some(unknown) = fields.iter().find(|field| !selectable(kind, release).contains(&field.key.as_str())) {
            return Err(Failure::bad_request(format!("field label not supported: {}", unknown.key)));
        }
        let labels = split(labels).map(|text| Requirement::parse_label(&text)).collect::<Result<_, _>>()?;
        Ok(Self { fields, labels })
    }

    /// Whether an object, in its stored form, is selected.
    pub(super) fn matches(&self, object: &Value) -> bool {
        self.fields.iter().all(|field| field.holds(Some(&field_value(object, &field.key))))
            && self.labels.iter().all(|label| label.holds(object["metadata"]["labels"][&label.key].as_str()))
    }
}

// === impl Requirement ===

impl Requirement {
    fn parse_field(text: &str) -> Result<Self, Failure> {
        let split = text.split_once("!=").map(|(key, value)| (key, value, true));
        let split =
            split.or_else(|| text.split_once('=').map(|(key, value)| (key, value.trim_start_matches('='), false)));
        let Some((key, value, differs)) = split else {
            return Err(Failure::bad_request(format!("invalid selector: {text:?}; can't understand {text:?}")));
        };
        let value = value.to_owned();
        Ok(Self { key: key.to_owned(), test: if differs { Test::Differs(value) } else { Test::Equals(value) } })
    }

    fn parse_label(text: &str) -> Result<Self, Failure> {
        let requirement = |key: &str, test| Ok(Self { key: key.trim().to_owned(), test });
        if let Some(values) = text.strip_suffix(')')
            && let Some((head, values)) = values.split_once('(')
        {
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            return match head.trim().rsplit_once(' ') {
                Some((key, "in")) => requirement(key, Test::In(values)),
                Some((key, "notin")) => requirement(key, Test::NotIn(values)),
                _ => Err(Failure::bad_request(format!("unable to parse requirement: {text:?}"))),
            };
        }
        if let Some((key, value)) = text.split_once("!=") {
            return requirement(key, Test::Differs(value.trim().to_owned()));
        }
        if let Some((key, value)) = text.split_once('=') {
            return requirement(key, Test::Equals(value.trim_start_matches('=').trim().to_owned()));
        }
        match text.strip_prefix('!') {
            Some(key) => requirement(key, Test::Missing),
            None => requirement(text, Test::Exists),
        }
    }

    fn holds(&self, value: Option<&str>) -> bool {
        match (&self.test, value) {
            (Test::Equals(wanted), value) => value == Some(wanted),
            (Test::Differs(unwanted), value) => value != Some(unwanted),
            (Test::In(wanted), Some(value)) => wanted.iter().any(|w| w == value),
            (Test::NotIn(unwanted), Some(value)) => !unwanted.iter().any(|u| u == value),
            (Test::Exists, value) => value.is_some(),
            (Test::Missing, value) => value.is_none(),
            (Test::In(_), None) => false,
            (Test::NotIn(_), None) => true,
        }
    }
}

/// The requirements of a selector: commas inside parentheses do not separate.
fn split(selector: Option<&str>) -> impl Iterator<Item = String> {
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for c in selector.unwrap_or_default().chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty())
}

/// The fields by which objects of a kind can be selected.
fn selectable(kind: Kind, release: Release) -> &'static [&'static str] {
    match kind {
        Kind::ResourceSlice if release >= Release::V1_37 => {
            &["metadata.name", "spec.nodeName", "spec.driver", "spec.pool.name"]
        }
        Kind::ResourceSlice => &["metadata.name", "spec.nodeName", "spec.driver"],
        Kind::DeviceClass => &["metadata.name"],
        Kind::ResourceClaim | Kind::ResourceClaimTemplate => &["metadata.name", "metadata.namespace"],
        Kind::Namespace => &["metadata.name", "status.phase"],
        Kind::Node => &["metadata.name", "spec.unschedulable"],
        Kind::Pod => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        Kind::Event => &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "reason",
            "reportingComponent",
            "reportingController",
            "source",
            "type",
        ],
    }
}

fn field_value(object: &Value, key: &str) -> String {
    // Names of events.k8s.io/v1, and a field that stands for another.
    let key = match key {
        "reportingController" => "reportingComponent".to_owned(),
        "source" => "source.component".to_owned(),
        key => key.replace("regarding.", "involvedObject."),
    };
    match key.split('.').try_fold(object, |value, part| value.get(part)) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(set)) => set.to_string(),
        _ if matches!(key.as_str(), "spec.unschedulable" | "spec.hostNetwork") => "false".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn selects(kind: Kind, fields: &str, labels: &str, object: &Value) -> bool {
        Selector::parse(kind, Release::V1_36, Some(fields), Some(labels)).unwrap().matches(object)
    }

    #[test]
    fn slices_are_selected_by_node_and_driver() {
        let slice = json!({"metadata": {"name": "s", "labels": {"a": "1"}}, "spec": {"nodeName": "n", "driver": "d"}});
        for (fields, labels, selected) in [
            ("spec.nodeName=n,spec.driver=d", "", true),
            ("spec.nodeName==n", "a=1", true),
            ("spec.nodeName!=n", "", false),
            ("spec.nodeName=other", "", false),
            ("", "a!=1", false),
            ("", "a in (1,2),!b", true),
            ("", "a notin (1, 2)", false),
            ("", "b notin (1)", true),
            ("", "b", false),
        ] {
            assert_eq!(selects(Kind::ResourceSlice, fields, labels, &slice), selected, "{fields:?} {labels:?}");
        }
        assert!(selects(Kind::ResourceSlice, "spec.nodeName=", "", &json!({"spec": {"allNodes": true}})));
    }

    #[test]
    fn only_the_fields_of_the_type_and_release_select() {
        let parse = |kind, release, fields| Selector::parse(kind, release, Some(fields), None);
        assert_eq!(parse(Kind::ResourceClaim, Release::V1_36, "spec.driver=d").unwrap_err().code, 400);
        assert!(parse(Kind::ResourceSlice, Release::V1_36, "spec.pool.name=p").is_err());
        assert!(parse(Kind::ResourceSlice, Release::V1_37, "spec.pool.name=p").is_ok());
        assert!(parse(Kind::ResourceSlice, Release::V1_37, "spec.driver").is_err());
    }
}
