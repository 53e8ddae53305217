//! `mpsConfig`: what the daemon of MPS is told about the processes that share a device.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// `sharing.mpsConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mps {
    /// How much of the GPU's threads each process may use; absent means all.
    pub default_active_thread_percentage: Option<Percentage>,
    /// How much memory each process may use; absent means all.
    pub default_pinned_device_memory_limit: Option<MemoryLimit>,
    /// The same for single devices of the claim, by UUID or by position among the sorted UUIDs.
    pub default_per_device_pinned_memory_limit: Option<BTreeMap<String, MemoryLimit>>,
    /// Whether processes of several users may share; absent means no.
    pub multi_user: Option<bool>,
}

/// 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Percentage(u8);

/// A quantity of Kubernetes, in whole MiB; at least one, and cut to 2^64 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// How many.
    pub mebibytes: u64,
}

// === impl Percentage ===

impl Percentage {
    /// 0 to 100.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<i64> for Percentage {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        let percentage = u8::try_from(number).ok().filter(|number| *number <= 100);
        percentage.map(Self).ok_or_else(|| format!("{number} is not from 0 to 100"))
    }
}

// === impl MemoryLimit ===

impl MemoryLimit {
    fn parse(text: &str) -> Result<Self, String> {
        let bytes = bytes(text).ok_or_else(|| format!("{text:?} is not a quantity, for example 10Gi"))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts of floating point numbers saturate, and that is what is wanted"
        )]
        let mebibytes = (bytes.ceil() / f64::from(1 << 20)) as u64;
        if mebibytes == 0 { Err(format!("{text:?} is less than 1Mi")) } else { Ok(Self { mebibytes }) }
    }
}

impl<'de> Deserialize<'de> for MemoryLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Quantity;

        // Kubernetes takes numbers for quantities too.
        impl Visitor<'_> for Quantity {
            type Value = MemoryLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity, for example \"10Gi\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<MemoryLimit, E> {
                MemoryLimit::parse(text).map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<MemoryLimit, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<MemoryLimit, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<MemoryLimit, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(Quantity)
    }
}

/// The bytes that a quantity stands for, as near as matters. A whole number of them is exact up to 8 PiB.
fn bytes(text: &str) -> Option<f64> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(unsigned) => (-1.0, unsigned),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned.find(|character: char| !character.is_ascii_digit() && character != '.');
    let (digits, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let (exponent_of_ten, factor) = match suffix {
        "n" => (-9, 1),
        "u" => (-6, 1),
        "m" => (-3, 1),
        "" => (0, 1),
        "k" => (3, 1),
        "M" => (6, 1),
        "G" => (9, 1),
        "T" => (12, 1),
        "P" => (15, 1),
        "E" => (18, 1),
        "Ki" => (0, 1_u64 << 10),
        "Mi" => (0, 1 << 20),
        "Gi" => (0, 1 << 30),
        "Ti" => (0, 1 << 40),
        "Pi" => (0, 1 << 50),
        "Ei" => (0, 1 << 60),
        exponent => (exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?, 1),
    };
    #[expect(clippy::cast_precision_loss, reason = "all factors are powers of two")]
    let factor = factor as f64;
    let number: f64 = format!("{digits}e{exponent_of_ten}").parse().ok()?;
    Some(sign * number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, mebibytes) in [
            ("1Mi", 1),
            ("+10Gi", 10 << 10),
            ("1.5Gi", 1536),
            (".5Gi", 512),
            ("1.Gi", 1 << 10),
            ("1.048576M", 1),
            ("1048575.5", 1),
            ("1073741824000m", 1 << 10),
            ("1e9", 953),
            ("1E9", 953),
            ("1E", 953_674_316_406),
            ("80Gi", 80 << 10),
            ("81559Mi", 81559),
            ("2097151999m", 2),
            ("1e999", u64::MAX),
        ] {
            assert_eq!(MemoryLimit::parse(text), Ok(MemoryLimit { mebibytes }), "{text}");
        }
    }

    #[test]
    fn what_is_no_limit_is_said_in_words() {
        for text in
            ["", ".", "Gi", "10GiB", "10 Gi", " 10Gi", "1..5Gi", "0x10", "1e", "1e1.5", "inf", "NaN", "--1", "1K"]
        {
            let expected = format!("{text:?} is not a quantity, for example 10Gi");
            assert_eq!(MemoryLimit::parse(text), Err(expected));
        }
        for text in ["0", "-10Gi", "1Ki", "1048574", "1e-999", "99n"] {
            assert_eq!(MemoryLimit::parse(text), Err(format!("{text:?} is less than 1Mi")));
        }
    }
}
