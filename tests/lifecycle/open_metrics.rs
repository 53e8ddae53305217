//! Reads the text format of OpenMetrics 1.0, as strictly as a collector may.
//!
//! ```text
//! # TYPE family type          once, before the samples of the family, which follow without others in between
//! # UNIT family unit          the family's name ends with it
//! # HELP family text
//! family_suffix{label="value",…} number
//! # EOF                       the last line
//! ```

use std::collections::BTreeMap;
use std::ops::Index;

/// Values by name and labels, all as written.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<String, String>);

/// The samples that are being read.
#[derive(Debug, Default)]
struct Family<'a> {
    name: &'a str,
    kind: Option<&'a str>,
}

// === impl Samples ===

impl Index<&str> for Samples {
    type Output = str;

    fn index(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("no sample {name} in {:?}", self.0.keys()))
    }
}

/// Reads a whole exposition; the error names the line.
pub(crate) fn parse(text: &str) -> Result<Samples, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the last line is not # EOF")?;
    let mut samples = Samples::default();
    let mut seen: Vec<&str> = Vec::new();
    let mut family = Family::default();
    for line in body.lines() {
        let wrong = |what: &str| format!("{what}: {line:?}");
        if let Some(descriptor) = line.strip_prefix("# ") {
            let (keyword, rest) = descriptor.split_once(' ').ok_or_else(|| wrong("neither descriptor nor sample"))?;
            let (name, value) = rest.split_once(' ').ok_or_else(|| wrong("a descriptor without a value"))?;
            if !is_name(name) {
                return Err(wrong("not a name"));
            }
            if family.name != name {
                if seen.contains(&name) {
                    return Err(wrong("a family in two places"));
                }
                seen.push(name);
                family = Family { name, kind: None };
            }
            match keyword {
                "TYPE" if family.kind.is_none() && suffixes(value).is_some() => family.kind = Some(value),
                "UNIT" if name.ends_with(&format!("_{value}")) => {}
                "HELP" => {}
                _ => return Err(wrong("not a descriptor")),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').ok_or_else(|| wrong("a sample without a value"))?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').ok_or_else(|| wrong("labels without an end"))?),
            None => (series, ""),
        };
        let suffix = name.strip_prefix(family.name).ok_or_else(|| wrong("a sample outside its family"))?;
        if !suffixes(family.kind.unwrap_or("unknown")).is_some_and(|known| known.contains(&suffix)) {
            return Err(wrong("not a sample of this type"));
        }
        check_labels(labels).map_err(|what| wrong(&what))?;
        value.parse::<f64>().map_err(|_| wrong("not a number"))?;
        if samples.0.insert(series.to_owned(), value.to_owned()).is_some() {
            return Err(wrong("twice"));
        }
    }
    Ok(samples)
}

/// What the samples of a type may add to the family's name.
fn suffixes(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        "gauge" | "unknown" => Some(&[""]),
        "counter" => Some(&["_total", "_created"]),
        "info" => Some(&["_info"]),
        "histogram" => Some(&["_bucket", "_count", "_sum", "_created"]),
        _ => None,
    }
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.starts_with(|c: char| plain(c) && !c.is_ascii_digit()) && text.chars().all(plain)
}

/// `name="value"`, joined by commas; in a value `\`, `"` and line feeds are escaped.
fn check_labels(mut text: &str) -> Result<(), String> {
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name) {
            return Err(format!("{name:?} is not the name of a label"));
        }
        let mut escaped = false;
        let end = rest.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let rest = &rest[end.ok_or("a label's value without an end")? + 1..];
        text = match rest.strip_prefix(',') {
            Some(more) if !more.is_empty() => more,
            None if rest.is_empty() => rest,
            _ => return Err("labels are not joined by one comma".to_owned()),
        };
    }
    Ok(())
}

#[test]
fn what_is_not_open_metrics_is_refused() {
    for (text, what) in [
        ("a 1\n", "the last line"),
        ("# EOF", "the last line"),
        ("# TYPE a gauge\na 1\n\n# EOF\n", "without a value"),
        ("# TYPE a gauge\nb 1\n# EOF\n", "outside its family"),
        ("# TYPE a counter\na 1\n# EOF\n", "not a sample of this type"),
        ("# TYPE a gauge\na{x=\"1\" 1\n# EOF\n", "without an end"),
        ("# TYPE a gauge\na{x=\"1\",} 1\n# EOF\n", "one comma"),
        ("# TYPE a gauge\na{x=\"\\\"} 1\n# EOF\n", "without an end"),
        ("# TYPE a gauge\na one\n# EOF\n", "not a number"),
        ("# TYPE a gauge\na 1\na 2\n# EOF\n", "twice"),
        ("# TYPE a gauge\na 1\n# TYPE b gauge\n# TYPE a gauge\n# EOF\n", "two places"),
        ("# TYPE a gauge\n# UNIT a seconds\n# EOF\n", "not a descriptor"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(what), "{text:?}: {error}");
    }
    let text = "# HELP a_seconds Of what, \"is\" free.\n# TYPE a_seconds gauge\n# UNIT a_seconds seconds\n\
                a_seconds{x=\"a\\\"b,c\",y=\"{}\"} 1.5\n# EOF\n";
    assert_eq!(&parse(text).unwrap()["a_seconds{x=\"a\\\"b,c\",y=\"{}\"}"], "1.5");
}
