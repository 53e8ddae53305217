//! The names that devices are published under.

use std::cmp::Ordering;
use std::fmt;

use super::ParseError;

/// A name of a device in a slice: a DNS label, for example `gpu-0`. Ordered as people count: `gpu-2` before `gpu-10`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceName(String);

/// The longest DNS label.
const MAX_BYTES: usize = 63;

/// What of a profile's name leaves room for the largest numbers. Real ones have 12 bytes at most: `1g24gb-meall`.
const MAX_PROFILE_BYTES: usize = 20;

// === impl DeviceName ===

impl DeviceName {
    /// The name of a whole GPU, numbered by the minor it had when it was first seen.
    pub fn gpu(number: u32) -> Self {
        Self(format!("gpu-{number}"))
    }

    /// The name of a part of the GPU of this name, as NVIDIA's driver has it: `gpu-0-mig-1g5gb-me-20-0` is `1g.5gb+me`,
    /// whose id is 20, at memory slice 0. The profile's name is for people, and what does not fit a label is taken out of
    /// it; the two numbers say which part it is. Fails only under a GPU whose own name is not one of [`gpu`](Self::gpu).
    pub fn part(&self, profile: &str, id: u32, start: u32) -> Result<Self, ParseError> {
        let plain = |c: char| match c {
            '+' | '-' => Some('-'),
            c => c.is_ascii_alphanumeric().then_some(c.to_ascii_lowercase()),
        };
        let profile: String = profile.chars().filter_map(plain).take(MAX_PROFILE_BYTES).collect();
        Self::parse(&format!("{self}-mig-{profile}-{id}-{start}"))
    }

    /// Whether it is a name that a part of the GPU of this name had, has or could have.
    pub fn is_parent_of(&self, device: &str) -> bool {
        device.strip_prefix(self.as_str()).is_some_and(|rest| rest.starts_with("-mig-"))
    }

    /// The name of the GPU of which it is a part, if it is one of a part.
    pub fn parent(&self) -> Option<Self> {
        let (gpu, _) = self.0.split_once("-mig-")?;
        Self::parse(gpu).ok()
    }

    /// Accepts DNS labels: lower-case letters, digits and inner dashes, at most 63.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let bytes = text.as_bytes();
        let inner = !text.starts_with('-') && !text.ends_with('-');
        if bytes.is_empty() || bytes.len() > MAX_BYTES || !inner || !bytes.iter().copied().all(plain) {
            return Err(ParseError { text: text.to_owned(), expected: "a device name (a DNS label)" });
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for DeviceName {
    fn cmp(&self, other: &Self) -> Ordering {
        // Names that differ in leading zeros only are still two names.
        natural(&self.0, &other.0).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for DeviceName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for DeviceName {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        Self::parse(&text)
    }
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.0
    }
}

/// Compares runs of digits as numbers of any length, everything else byte by byte.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let (number_a, number_b) = (leading_number(a), leading_number(b));
        let (rest_a, rest_b) = (&a[number_a.len()..], &b[number_b.len()..]);
        if number_a.is_empty() || number_b.is_empty() {
            let (Some(&byte_a), Some(&byte_b)) = (a.as_bytes().first(), b.as_bytes().first()) else {
                return a.len().cmp(&b.len());
            };
            if byte_a != byte_b {
                return byte_a.cmp(&byte_b);
            }
            // Labels are ASCII: one byte is one character.
            (a, b) = (&a[1..], &b[1..]);
            continue;
        }
        let (value_a, value_b) = (number_a.trim_start_matches('0'), number_b.trim_start_matches('0'));
        let order = value_a.len().cmp(&value_b.len()).then_with(|| value_a.cmp(value_b));
        if order.is_ne() {
            return order;
        }
        (a, b) = (rest_a, rest_b);
    }
}

fn leading_number(text: &str) -> &str {
    &text[..text.bytes().take_while(u8::is_ascii_digit).count()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_dns_labels_are_names() {
        assert_eq!(DeviceName::parse("gpu-0-mig-1g5gb-19-6").unwrap().as_str(), "gpu-0-mig-1g5gb-19-6");
        for text in ["", "-a", "a-", "A", "a.b", "a/b", &"a".repeat(64)] {
            assert!(DeviceName::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn names_are_ordered_as_people_count() {
        let sorted = ["gpu-0", "gpu-0-mig-1g5gb-19-6", "gpu-2", "gpu-2-mig-1g5gb-19-10", "gpu-02", "gpu-10", "gpu-a"];
        let mut names: Vec<_> = sorted.iter().rev().map(|name| DeviceName::parse(name).unwrap()).collect();
        names.sort();
        assert_eq!(
            names.iter().map(DeviceName::as_str).collect::<Vec<_>>(),
            ["gpu-0", "gpu-0-mig-1g5gb-19-6", "gpu-02", "gpu-2", "gpu-2-mig-1g5gb-19-10", "gpu-10", "gpu-a"]
        );
    }

    #[test]
    fn parts_are_named_as_nvidias_driver_names_them() {
        let names = [("1g.5gb", 19, 0), ("1g.10gb+me", 20, 6), ("1G.24GB+ME.ALL", 65, 3), ("1g.24gb-me", 67, 0)]
            .map(|(profile, id, start)| DeviceName::gpu(3).part(profile, id, start).unwrap());
        let names = names.each_ref().map(DeviceName::as_str);
        let expected = [
            "gpu-3-mig-1g5gb-19-0",
            "gpu-3-mig-1g10gb-me-20-6",
            "gpu-3-mig-1g24gb-meall-65-3",
            "gpu-3-mig-1g24gb-me-67-0",
        ];
        assert_eq!(names, expected);
        assert!(names.iter().all(|name| DeviceName::gpu(3).is_parent_of(name)));
        assert!(names.iter().all(|name| DeviceName::parse(name).unwrap().parent() == Some(DeviceName::gpu(3))));
        assert_eq!(DeviceName::gpu(3).parent(), None);
        assert!(!DeviceName::gpu(1).is_parent_of("gpu-10-mig-1g5gb-19-0") && !DeviceName::gpu(1).is_parent_of("gpu-1"));
    }

    proptest! {
        #[test]
        fn every_part_of_every_gpu_has_a_name(number: u32, profile in "\\PC{0,80}", id: u32, start: u32) {
            let name = DeviceName::gpu(number).part(&profile, id, start).unwrap();
            let numbers = format!("-{id}-{start}");
            prop_assert!(name.as_str().ends_with(&numbers));
        }

        #[test]
        fn the_order_is_total(mut names in proptest::collection::vec("[a-b0-2]{1,3}(-[0-2]{1,3}){0,2}", 0..12)) {
            let parse = |names: &[String]| names.iter().map(|name| DeviceName::parse(name).unwrap()).collect::<Vec<_>>();
            let mut once = parse(&names);
            once.sort();
            names.reverse();
            let mut again = parse(&names);
            again.sort();
            prop_assert_eq!(&once, &again);
            prop_assert!(once.windows(2).all(|pair| (pair[0] == pair[1]) == pair[0].cmp(&pair[1]).is_eq()));
        }
    }
}
