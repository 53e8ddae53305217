//! What is done about each cause, unless the operator says otherwise.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::cause::{Cause, KINDS};
use super::xid::Xid;
use crate::slice::Effect;

/// What is done about a cause. From the mildest to the hardest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Response {
    /// Nothing: the device stays healthy.
    Ignore,
    /// The device is degraded: a taint without effect informs.
    Warn,
    /// The device is unhealthy: no new claim gets it.
    NoSchedule,
    /// And pods that use it are evicted.
    NoExecute,
}

/// What an operator wants otherwise than by default: `79=NoExecute`, `row-remap-pending=ignore`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    subject: Subject,
    response: Response,
}

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Xid(Xid),
    /// A name of [`KINDS`].
    Kind(&'static str),
}

/// What is done about every cause. The default is that of the tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy(BTreeMap<Subject, Response>);

/// Why a rule cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not in two parts.
    #[error("{0:?} is not a rule: write an XID or a cause, =, and what to do, as in 79=NoExecute")]
    Form(String),
    /// Nobody knows what it is about.
    #[error("{0:?} is neither an XID from 0 to 999 nor one of {names}", names = names())]
    Subject(String),
    /// Nobody knows what to do.
    #[error("{0:?} is none of {responses}", responses = Response::ALL.map(Response::name).join(", "))]
    Response(String),
}

fn names() -> String {
    KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

// === impl Response ===

impl Response {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Ignore, Self::Warn, Self::NoSchedule, Self::NoExecute];

    /// As an operator writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Warn => "warn",
            Self::NoSchedule => "NoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    /// Of the taint. What is ignored has none.
    pub(super) fn effect(self) -> Option<Effect> {
        match self {
            Self::Ignore => None,
            Self::Warn => Some(Effect::None),
            Self::NoSchedule => Some(Effect::NoSchedule),
            Self::NoExecute => Some(Effect::NoExecute),
        }
    }
}

// === impl Rule ===

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (subject, response) = text.split_once('=').ok_or_else(|| Error::Form(text.to_owned()))?;
        let (subject, response) = (subject.trim(), response.trim());
        let number = subject.parse().ok().filter(|number| *number <= 999).map(|number| Subject::Xid(Xid::new(number)));
        let kind = || KINDS.iter().find(|kind| kind.name == subject).map(|kind| Subject::Kind(kind.name));
        let found = Response::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(response));
        Ok(Self {
            subject: number.or_else(kind).ok_or_else(|| Error::Subject(subject.to_owned()))?,
            response: found.ok_or_else(|| Error::Response(response.to_owned()))?,
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::Xid(xid) => write!(f, "{xid}={}", self.response.name()),
            Subject::Kind(name) => write!(f, "{name}={}", self.response.name()),
        }
    }
}

// === impl Policy ===

impl Policy {
    /// What is done about a cause.
    pub fn response(&self, cause: &Cause) -> Response {
        let (subject, default) = match cause {
            Cause::Xid(xid) => (Subject::Xid(*xid), xid.group().response),
            Cause::Kind(kind) => (Subject::Kind(kind.facts().name), kind.facts().response),
        };
        self.0.get(&subject).copied().unwrap_or(default)
    }
}

/// Of two rules about the same, the later one holds.
impl FromIterator<Rule> for Policy {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        Self(rules.into_iter().map(|rule| (rule.subject, rule.response)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::cause::Kind;
    use super::*;

    #[test]
    fn a_rule_is_read_and_written() {
        for (text, read) in [
            ("79=NoExecute", "79=NoExecute"),
            (" 0 = ignore ", "0=ignore"),
            ("999=noschedule", "999=NoSchedule"),
            ("row-remap-pending=WARN", "row-remap-pending=warn"),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), read);
        }
    }

    #[test]
    fn a_rule_that_cannot_be_read_says_what_it_should_be() {
        for (text, start) in [
            ("79", "\"79\" is not a rule: write an XID or a cause, =, and what to do, as in 79=NoExecute"),
            ("", "\"\" is not a rule"),
            ("xid=warn", "\"xid\" is neither an XID from 0 to 999 nor one of gpu-lost, recovery-action, "),
            ("1000=warn", "\"1000\" is neither"),
            ("-1=warn", "\"-1\" is neither"),
            ("=warn", "\"\" is neither"),
            ("79=", "\"\" is none of ignore, warn, NoSchedule, NoExecute"),
            ("79=a=b", "\"a=b\" is none of"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn the_later_of_two_rules_holds_and_what_has_none_keeps_its_default() {
        let rules = ["79=warn", "silent=NoSchedule", "79=ignore"].map(|rule| rule.parse::<Rule>().unwrap());
        let policy: Policy = rules.into_iter().collect();
        let xid = |number| policy.response(&Cause::Xid(Xid::new(number)));
        assert_eq!([xid(79), xid(48), xid(13)], [Response::Ignore, Response::NoSchedule, Response::Ignore]);
        assert_eq!(policy.response(&Kind::Silent.into()), Response::NoSchedule);
        assert_eq!(policy.response(&Kind::Lost.into()), Response::NoSchedule);
    }
}
