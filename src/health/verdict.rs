//! What is said of one device, in the words of each that listens: taints, the kubelet's message.

use std::time::Instant;

use super::cause::{Cause, Kind};
use super::policy::Response;
use crate::slice::{Effect, Taint};

/// How a device is. From the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nothing is wrong.
    Healthy,
    /// Something is, and the device can be used.
    Degraded,
    /// Nobody can tell.
    Unknown,
    /// It is not to be used.
    Unhealthy,
}

/// What is known of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How it is: the worst of what was found.
    pub level: Level,
    /// Since when: what was found first of what makes it so. `None` where nothing was found.
    pub since: Option<Instant>,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
}

/// One thing that is wrong with a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub cause: Cause,
    /// What is done about it. Never [`Response::Ignore`].
    pub response: Response,
    /// When it was first found. It stays as long as the cause.
    pub since: Instant,
}

/// `DeviceTaintsMaxLength` of the API. Those that do least are left out.
const TAINTS: usize = 16;

/// Bytes that the kubelet takes of a message, and how a longer one ends.
const MESSAGE: usize = 1024;
const MORE: &str = "; ...";

/// What is said of a device that nobody has probed yet.
const NOT_PROBED: &str = "not probed yet";

// === impl Verdict ===

impl Verdict {
    /// Of what was found. A device that was not probed is not known to be well.
    pub(super) fn of(findings: impl IntoIterator<Item = Finding>, probed: bool) -> Self {
        let mut findings: Vec<_> = findings.into_iter().collect();
        findings.sort_by(|a, b| (b.level(), b.response, a.cause).cmp(&(a.level(), a.response, b.cause)));
        let unprobed = if probed { Level::Healthy } else { Level::Unknown };
        let level = findings.first().map_or(unprobed, |worst| worst.level().max(unprobed));
        let decisive = findings.iter().filter(|finding| finding.level() == level);
        Self { level, since: decisive.map(|finding| finding.since).min(), findings }
    }

    /// The taints of the device, the same and in the same order for the same findings. They carry no times: the API
    /// server keeps that of a taint for as long as the taint stays what it is.
    pub fn taints(&self, driver: &str) -> Vec<Taint> {
        let mut taints: Vec<_> = self.findings.iter().filter_map(|finding| finding.taint(driver)).collect();
        // The sort is stable: of equal effects, the worst cause stays first.
        taints.sort_by_key(|taint| std::cmp::Reverse(taint.effect));
        taints.truncate(TAINTS);
        taints
    }

    /// For people: ASCII of at most 1024 bytes. Empty for a device that is well.
    pub fn message(&self) -> String {
        let mut message = String::new();
        if self.findings.is_empty() && self.level == Level::Unknown {
            message.push_str(NOT_PROBED);
        }
        for finding in &self.findings {
            let separator = if message.is_empty() { "" } else { "; " };
            let more = format!("{separator}{}", finding.cause);
            if message.len() + more.len() + MORE.len() > MESSAGE {
                message.push_str(MORE);
                break;
            }
            message.push_str(&more);
        }
        message
    }
}

// === impl Finding ===

impl Finding {
    fn level(&self) -> Level {
        match (self.cause, self.response) {
            (_, Response::Ignore) => Level::Healthy,
            // What does not answer is not known to be ill.
            (Cause::Kind(Kind::Silent), _) => Level::Unknown,
            (_, Response::Warn) => Level::Degraded,
            (_, Response::NoSchedule | Response::NoExecute) => Level::Unhealthy,
        }
    }

    fn taint(&self, driver: &str) -> Option<Taint> {
        let effect: Effect = self.response.effect()?;
        let (name, value) = self.cause.taint();
        Some(Taint { key: format!("{driver}/{name}"), value: value.into_owned(), effect })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::xid::Xid;
    use super::*;

    fn finding(cause: impl Into<Cause>, response: Response, since: Instant) -> Finding {
        Finding { cause: cause.into(), response, since }
    }

    #[test]
    fn the_worst_decides_and_dates_the_verdict() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let found = [
            finding(Kind::Ecc, Response::Warn, at(1)),
            finding(Kind::Lost, Response::NoSchedule, at(3)),
            finding(Kind::Silent, Response::Warn, at(2)),
            finding(Cause::Xid(Xid::new(79)), Response::NoExecute, at(4)),
        ];
        for (count, level, since) in [(1, Level::Degraded, 1), (2, Level::Unhealthy, 3), (4, Level::Unhealthy, 3)] {
            let verdict = Verdict::of(found[..count].to_vec(), true);
            assert_eq!((verdict.level, verdict.since), (level, Some(at(since))));
        }
        let order: Vec<_> =
            Verdict::of(found.to_vec(), true).findings.iter().map(|found| found.cause.label()).collect();
        assert_eq!(order, ["xid-79", "gpu-lost", "silent", "ecc"]);
        assert_eq!(Verdict::of(found[..1].to_vec(), false).level, Level::Unknown, "not probed");
    }

    #[test]
    fn of_many_causes_the_worst_are_told() {
        let now = Instant::now();
        let xids = (0..100).map(|number| {
            let response = if number == 99 { Response::NoExecute } else { Response::Warn };
            finding(Cause::Xid(Xid::new(number)), response, now)
        });
        let verdict = Verdict::of(xids, true);
        let taints = verdict.taints("gpu.nvidia.com");
        assert_eq!(taints.len(), TAINTS);
        assert_eq!((taints[0].value.as_str(), taints[0].effect), ("99", Effect::NoExecute));
        assert_eq!(taints[1].value, "0");
        let message = verdict.message();
        assert!(message.starts_with("XID 99: ") && message.ends_with("; ...") && message.len() <= MESSAGE);
        assert!(message.len() > MESSAGE - 100, "as much as fits is told");
    }
}
