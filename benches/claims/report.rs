//! The table: what was measured, what it is compared with, and the target.

use std::fmt;
use std::time::Duration;

/// The first lines of the table.
pub(crate) const HEAD: &str = "\
| | measured | compared with | ratio | target | |
|---|---:|---:|---:|---:|---|
";

/// A line of the table.
pub(crate) struct Row {
    what: String,
    measured: String,
    against: String,
    ratio: String,
    target: String,
    verdict: &'static str,
}

/// Times of one thing, in order of length.
pub(crate) struct Samples(Vec<Duration>);

// === impl Row ===

impl Row {
    /// A time as a multiple of another, and how much it may be.
    pub(crate) fn ratio(
        what: impl Into<String>,
        measured: Duration,
        (name, other): (&str, Duration),
        target: Option<f64>,
    ) -> Self {
        let ratio = measured.as_secs_f64() / other.as_secs_f64();
        Self {
            against: format!("{name} {}", ms(other)),
            ratio: format!("{ratio:.2}"),
            ..Self::limit(what, ratio, ms(measured), target.map(|target| (target, format!("{target:.1}"))))
        }
    }

    /// A figure, how it reads, and how much it may be.
    pub(crate) fn limit(
        what: impl Into<String>,
        figure: f64,
        reads: impl Into<String>,
        target: Option<(f64, String)>,
    ) -> Self {
        let (target, verdict) = match target {
            Some((limit, text)) => (format!("≤ {text}"), if figure <= limit { "met" } else { "**missed**" }),
            None => (String::new(), ""),
        };
        let (measured, against, ratio) = (reads.into(), String::new(), String::new());
        Self { what: what.into(), measured, against, ratio, target, verdict }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, measured, against, ratio, target, verdict } = self;
        write!(f, "| {what} | {measured} | {against} | {ratio} | {target} | {verdict} |")
    }
}

// === impl Samples ===

impl Samples {
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    pub(crate) fn p50(&self) -> Duration {
        self.at(50)
    }

    pub(crate) fn p99(&self) -> Duration {
        self.at(99)
    }

    fn at(&self, percent: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last * percent).div_ceil(100)).copied().unwrap_or_default()
    }
}

/// As the table has times.
pub(crate) fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}
