//! What the devices of a claim must have in common, or must not.

use serde_json::Value;

use super::AllocateError;
use super::model::DeviceConstraint;
use super::pools::Candidate;

/// A constraint. Once it is violated, no further device can mend it.
#[derive(Debug)]
pub(super) struct Constraint<'a> {
    /// The requests that it is about; empty means all.
    requests: &'a [String],
    /// The attribute, with its domain.
    attribute: &'a str,
    rule: Rule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Match,
    Distinct,
}

// === impl Constraint ===

impl<'a> Constraint<'a> {
    pub(super) fn new(at: usize, constraint: &'a DeviceConstraint) -> Result<Self, AllocateError> {
        let invalid =
            |reason: &str| AllocateError::Invalid { subject: format!("constraint #{at}"), reason: reason.to_owned() };
        let (attribute, rule) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), None) => (attribute, Rule::Match),
            (None, Some(attribute)) => (attribute, Rule::Distinct),
            _ => return Err(invalid("exactly one of matchAttribute and distinctAttribute must be given")),
        };
        if !attribute.contains('/') {
            return Err(invalid("the attribute must include a domain"));
        }
        Ok(Self { requests: &constraint.requests, attribute, rule })
    }

    /// Whether it is about a request, `request` or `request/subrequest`.
    pub(super) fn concerns(&self, request: &str) -> bool {
        let parent = request.split('/').next().unwrap_or(request);
        self.requests.is_empty() || self.requests.iter().any(|name| name == request || name == parent)
    }

    /// Whether a device may join those that are chosen already.
    pub(super) fn allows<'c>(&self, candidate: &Candidate, mut chosen: impl Iterator<Item = &'c Candidate>) -> bool {
        let Some(value) = self.value(candidate) else { return false };
        chosen.all(|other| (self.value(other) == Some(value)) == (self.rule == Rule::Match))
    }

    /// With its type: a number and a string are never equal.
    fn value<'c>(&self, candidate: &'c Candidate) -> Option<&'c Value> {
        candidate.lookup(&candidate.device.attributes, self.attribute)
    }
}
