//! The rules that objects are held to on every write, as pure functions.
//!
//! ```text
//!  validate(object, old, rules) ─▶ meta      names, labels, owners
//!                               ├▶ slice     pools, node selection, counters ─▶ device ─▶ policy
//!                               ├▶ claim     requests, constraints, configuration; allocation and device status
//!                               └▶ event     what events.k8s.io asks for
//! ```
//!
//! Source: `pkg/apis/resource/validation` and `pkg/apis/core/validation` of the played release. An object arrives
//! decoded, defaulted and without dropped fields. CEL selectors are checked for presence and length, not compiled.

mod claim;
mod device;
mod event;
mod list;
mod meta;
mod names;
mod node;
mod policy;
mod slice;

use serde_json::Value;

pub(super) use self::claim::admin_label;
use self::list::Errors;
use super::failure::FieldError;
use super::gates::Gates;
use super::kind::Kind;
use crate::release::Release;

/// What decides which rules hold.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The played release.
    pub release: Release,
    /// Its gates.
    pub gates: &'a Gates,
    /// Whether the object's namespace carries the label that permits `adminAccess`.
    pub admin_namespace: bool,
}

/// Which half of an object a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The object itself; its status stays as it is.
    Main,
    /// The status subresource; all else stays as it is.
    Status,
}

/// Checks an object that is to replace `old`, or to be created.
pub fn validate(kind: Kind, object: &Value, old: Option<&Value>, part: Part, rules: Rules<'_>) -> Vec<FieldError> {
    let mut errors = Errors::default();
    meta::check(kind, object, old, &mut errors);
    match (kind, part) {
        (Kind::ResourceSlice, _) => slice::check(&object["spec"], old.map(|old| &old["spec"]), rules, &mut errors),
        (Kind::ResourceClaim, Part::Status) => claim::check_status(object, old, rules, &mut errors),
        (Kind::ResourceClaim, Part::Main) => claim::check_claim(object, old, rules, &mut errors),
        (Kind::ResourceClaimTemplate, _) => claim::check_template(object, old, rules, &mut errors),
        (Kind::DeviceClass, _) => claim::check_class(&object["spec"], &mut errors),
        (Kind::Event, _) => event::check(object, old, &mut errors),
        (Kind::Namespace | Kind::Node | Kind::Pod, _) => {}
    }
    errors.into_inner()
}
