//! What a claim asks for.

use super::AllocateError;
use super::model::{Class, DeviceRequest, Exactly, Selector as SelectorSpec, Toleration};
use super::pools::Candidate;
use crate::cel::{Environment, Quantity, Selector};

/// A request: one alternative, or several in the order of preference.
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) alternatives: Vec<Alternative<'a>>,
}

/// One way to satisfy a request.
pub(super) struct Alternative<'a> {
    /// `request`, or `request/subrequest`.
    pub(super) name: String,
    pub(super) spec: &'a Exactly,
    pub(super) class: &'a Class,
    pub(super) count: Count,
    selectors: Vec<(&'a str, Selector)>,
    tolerations: Vec<Toleration>,
    capacity: Vec<(&'a str, Quantity)>,
}

/// How many devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    Exactly(usize),
    All,
}

// === impl Request ===

impl<'a> Request<'a> {
    pub(super) fn new(
        request: &'a DeviceRequest,
        classes: &'a [Class],
        cel: &Environment,
    ) -> Result<Self, AllocateError> {
        let name = request.name.as_str();
        let exactly = request.exactly.iter().map(|spec| Alternative::new(name.to_owned(), spec, classes, cel));
        let sub_requests = request
            .first_available
            .iter()
            .map(|sub| Alternative::new(format!("{name}/{}", sub.name), &sub.exactly, classes, cel));
        let alternatives = exactly.chain(sub_requests).collect::<Result<Vec<_>, _>>()?;
        if request.exactly.is_some() != request.first_available.is_empty() {
            return Err(invalid(name, "exactly one of exactly and firstAvailable must be given"));
        }
        Ok(Self { name, alternatives })
    }

    /// The fewest devices that satisfy it.
    pub(super) fn minimum(&self) -> usize {
        let count = |alternative: &Alternative<'_>| match alternative.count {
            Count::Exactly(count) => count,
            Count::All => 1,
        };
        self.alternatives.iter().map(count).min().unwrap_or_default()
    }
}

// === impl Alternative ===

impl<'a> Alternative<'a> {
    fn new(name: String, spec: &'a Exactly, classes: &'a [Class], cel: &Environment) -> Result<Self, AllocateError> {
        let Some(class) = classes.iter().find(|class| class.metadata.name == spec.device_class_name) else {
            return Err(AllocateError::UnknownClass { request: name, class: spec.device_class_name.clone() });
        };
        let count = match (spec.allocation_mode.as_str(), spec.count) {
            ("" | "ExactCount", 0) => Count::Exactly(1),
            ("" | "ExactCount", count) => Count::Exactly(count),
            ("All", 0) => Count::All,
            ("All", _) => return Err(invalid(&name, "count must not be given with allocation mode All")),
            (mode, _) => return Err(invalid(&name, format!("unsupported allocation mode {mode}"))),
        };
        // Those of the class shield those of the request.
        let selectors = class.spec.selectors.iter().chain(&spec.selectors).map(|selector: &SelectorSpec| {
            let expression = selector.cel.expression.as_str();
            let compiled = cel.compile(expression);
            compiled.map(|compiled| (expression, compiled)).map_err(|source| AllocateError::Selector {
                request: name.clone(),
                expression: expression.to_owned(),
                source: Box::new(source),
            })
        });
        let selectors = selectors.collect::<Result<_, _>>()?;
        let capacity = spec.capacity.requests.iter().map(|(key, value)| {
            let quantity = value.parse().map_err(|error| invalid(&name, format!("capacity {key}: {error}")));
            quantity.map(|quantity| (key.as_str(), quantity))
        });
        let capacity = capacity.collect::<Result<_, _>>()?;
        let tolerations = spec.tolerations.iter().map(|toleration| serde_json::from_value(toleration.clone()));
        let tolerations = tolerations.collect::<Result<_, _>>().map_err(|source| AllocateError::Malformed {
            kind: "toleration of request",
            name: name.clone(),
            source,
        })?;
        Ok(Self { name, spec, class, count, selectors, tolerations, capacity })
    }

    pub(super) fn is_admin(&self) -> bool {
        self.spec.admin_access == Some(true)
    }

    /// Whether a device is what is asked for, be it free or not. Expressions are evaluated in order, and only until one
    /// says no.
    pub(super) fn selects(&self, candidate: &Candidate) -> Result<bool, AllocateError> {
        for (expression, selector) in &self.selectors {
            let matches = candidate.cel.as_ref().map_err(Clone::clone).and_then(|device| selector.matches(device));
            let matches = matches.map_err(|source| AllocateError::Device {
                request: self.name.clone(),
                expression: (*expression).to_owned(),
                device: candidate.id.to_string(),
                source: Box::new(source),
            })?;
            if !matches {
                return Ok(false);
            }
        }
        Ok(self.capacity.iter().all(|(name, wanted)| {
            let capacity = candidate.lookup(&candidate.device.capacity, name);
            capacity.and_then(|capacity| capacity.value.parse::<Quantity>().ok()).is_some_and(|has| has >= *wanted)
        }))
    }

    /// Whether all taints that keep claims away are tolerated.
    pub(super) fn tolerates(&self, candidate: &Candidate) -> bool {
        let repels = |effect: &str| matches!(effect, "NoSchedule" | "NoExecute");
        let mut taints = candidate.device.taints.iter().filter(|taint| repels(&taint.effect));
        taints.all(|taint| self.tolerations.iter().any(|toleration| toleration.tolerates(taint)))
    }
}

fn invalid(request: &str, reason: impl Into<String>) -> AllocateError {
    AllocateError::Invalid { subject: format!("request {request}"), reason: reason.into() }
}
