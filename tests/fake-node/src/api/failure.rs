//! What the server answers when it does not do what was asked: `meta/v1 Status`.

use std::fmt;

use serde_json::{Value, json};

use super::kind::{GroupVersion, Kind};

/// A refused request, with the answer's parts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason: `NotFound`, `Invalid`, …
    pub reason: &'static str,
    /// What a person reads.
    pub message: String,
    /// `Status.details`; null if there are none.
    pub details: Value,
    /// The `Retry-After` header, in seconds.
    pub retry_after: Option<u32>,
}

/// One broken rule of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field: `spec.devices[0].name`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// The kinds of field errors that the server tells apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The field must be set. The detail may be empty.
    Required(String),
    /// The value breaks a rule.
    Invalid(Value, String),
    /// The value is not one of a closed set.
    NotSupported(String, Vec<String>),
    /// The value occurs twice.
    Duplicate(Value),
    /// The field must not be set here.
    Forbidden(String),
    /// A string longer than so many bytes.
    TooLong(usize),
    /// A list or map with `actual` entries where `max` are allowed.
    TooMany {
        /// Entries found.
        actual: usize,
        /// Entries allowed.
        max: usize,
    },
    /// What the field refers to does not exist.
    NotFound(String),
}

// === impl Failure ===

impl Failure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null, retry_after: None }
    }

    fn about(mut self, kind: Kind, name: &str) -> Self {
        self.details = json!({"name": name, "group": kind.group().name(), "kind": kind.plural()});
        self
    }

    /// 404: there is no such object.
    pub fn not_found(kind: Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", kind.qualified_plural())).about(kind, name)
    }

    /// 404: there is no such resource type or path.
    pub(super) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// 409: the name is taken.
    pub(super) fn already_exists(kind: Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified_plural());
        Self::new(409, "AlreadyExists", message).about(kind, name)
    }

    /// 409: the object is not, or no longer, what the request says.
    pub(super) fn conflict(kind: Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified_plural());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    /// 409: another manager owns fields that a server-side apply would change.
    pub(super) fn apply_conflict(message: String, causes: &Value) -> Self {
        let mut failure = Self::new(409, "Conflict", message);
        failure.details = json!({"causes": causes});
        failure
    }

    /// 422: fields break rules.
    pub(super) fn invalid(kind: Kind, name: &str, errors: &[FieldError]) -> Self {
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let list = if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let mut failure = Self::new(422, "Invalid", format!("{} {name:?} is invalid: {list}", kind.qualified_name()))
            .about(kind, name);
        failure.details["kind"] = json!(kind.name());
        failure.details["causes"] = errors.iter().map(FieldError::to_cause).collect();
        failure
    }

    /// 422: a patch that does not fit the object.
    pub(super) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    /// 422: a query parameter breaks a rule.
    pub(super) fn invalid_options(field: &str, message: &str) -> Self {
        Self::new(422, "Invalid", format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {message}"))
    }

    /// 400
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 400: the body does not read as an object of the kind.
    pub(super) fn unreadable(kind: Kind, version: GroupVersion, why: &str) -> Self {
        let version = version.version.name();
        Self::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    }

    /// 401: the token is not, or no longer, known.
    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 405
    pub(super) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    /// 406
    pub(super) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/json;stream=watch";
        Self::new(406, "NotAcceptable", message)
    }

    /// 415
    pub(super) fn unsupported_media_type(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 410: the resource version or the continue token is from before the last compaction.
    pub(super) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 504: the resource version lies in the future.
    pub(super) fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let mut failure = Self::new(504, "Timeout", format!("Too large resource version: {asked}, current: {current}"));
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        failure.details = json!({"causes": [cause],
            "retryAfterSeconds": 1});
        failure.retry_after = Some(1);
        failure
    }

    /// Any failure that a scenario wants to see. The reason follows from the code where the API defines one.
    pub fn injected(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "Unknown",
        };
        Self::new(code, reason, message)
    }

    /// The body of the answer.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        if let Some(seconds) = self.retry_after {
            status["details"]["retryAfterSeconds"] = json!(seconds);
        }
        status
    }
}

// === impl FieldError ===

impl FieldError {
    fn to_cause(&self) -> Value {
        json!({"reason": self.problem.reason(), "message": self.problem.to_string(), "field": self.field})
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

// === impl Problem ===

impl Problem {
    /// The cause's reason in `Status.details.causes`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Required(_) => "FieldValueRequired",
            Self::Invalid(..) => "FieldValueInvalid",
            Self::NotSupported(..) => "FieldValueNotSupported",
            Self::Duplicate(_) => "FieldValueDuplicate",
            Self::Forbidden(_) => "FieldValueForbidden",
            Self::TooLong(_) => "FieldValueTooLong",
            Self::TooMany { .. } => "FieldValueTooMany",
            Self::NotFound(_) => "FieldValueNotFound",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required(detail) if detail.is_empty() => f.write_str("Required value"),
            Self::Required(detail) => write!(f, "Required value: {detail}"),
            Self::Invalid(value, detail) => write!(f, "Invalid value: {value}: {detail}"),
            Self::NotSupported(value, allowed) => {
                let allowed: Vec<_> = allowed.iter().map(|a| format!("{a:?}")).collect();
                write!(f, "Unsupported value: {value:?}: supported values: {}", allowed.join(", "))
            }
            Self::Duplicate(value) => write!(f, "Duplicate value: {value}"),
            Self::Forbidden(detail) => write!(f, "Forbidden: {detail}"),
            Self::TooLong(max) => write!(f, "Too long: may not be more than {max} bytes"),
            Self::TooMany { actual, max } => write!(f, "Too many: {actual}: must have at most {max} items"),
            Self::NotFound(value) => write!(f, "Not found: {value:?}"),
        }
    }
}
