//! `resource.Quantity`: reading, comparing and the one spelling that the server stores.
//!
//! A value is an integer of nano units, like the server's finest scale, so that `500m`, `0.5` and `500e-3` compare
//! equal. The spelling keeps the family of suffixes of the input: `1024Mi` becomes `1Gi`, `1000` becomes `1k`.

use std::cmp::Ordering;

/// Nano units in one.
const NANOS: i128 = 1_000_000_000;
/// Binary suffixes, by power of 1024.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Decimal suffixes from 10⁻⁹ to 10¹⁸, by power of 1000.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// What the server says about text that is no quantity.
const MALFORMED: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// A parsed quantity.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantity {
    nanos: i128,
    family: Family,
}

/// The family of suffixes in which a quantity is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Binary,
    Decimal,
    Exponent,
}

/// Not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuantityError {
    #[error("{MALFORMED}")]
    Malformed,
    #[error("unable to parse quantity's suffix")]
    Suffix,
    /// Beyond what this server computes with: more than about 1.7e29.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
}

// === impl Quantity ===

impl Quantity {
    /// Reads the text form.
    pub(super) fn parse(text: &str) -> Result<Self, QuantityError> {
        let (negative, digits) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
        let (number, suffix) = digits.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(QuantityError::Malformed);
        }
        let (family, binary_power, decimal_exponent) = interpret(suffix)?;

        // value = mantissa * 10^(exponent - fraction digits) * 1024^power, in nanos, rounded up in magnitude.
        let mantissa = format!("{whole}{fraction}");
        let mantissa = mantissa.trim_start_matches('0');
        let mantissa: i128 = if mantissa.is_empty() { 0 } else { parse_number(mantissa)? };
        let scale = decimal_exponent + 9 - i32::try_from(fraction.len()).map_err(|_| QuantityError::Numeric)?;
        let mantissa = mantissa.checked_mul(1 << (10 * binary_power)).ok_or(QuantityError::Numeric)?;
        let nanos = match power_of_ten(scale.unsigned_abs()) {
            Some(factor) if scale >= 0 => mantissa.checked_mul(factor).ok_or(QuantityError::Numeric)?,
            Some(factor) => mantissa.div_euclid(factor) + i128::from(mantissa.rem_euclid(factor) != 0),
            None if mantissa == 0 => 0,
            None if scale < 0 => 1,
            None => return Err(QuantityError::Numeric),
        };
        Ok(Self { nanos: if negative { -nanos } else { nanos }, family })
    }

    /// The spelling that the server stores and compares.
    pub(super) fn canonical(self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        let whole = self.nanos / NANOS;
        if self.family == Family::Binary && self.nanos % NANOS == 0 && whole.abs() >= 1024 {
            let power = (1..BINARY.len()).rev().find(|power| whole % (1 << (10 * power)) == 0).unwrap_or(0);
            return format!("{}{}", whole >> (10 * power), BINARY[power]);
        }
        let mut mantissa = self.nanos;
        let mut power = 0;
        while mantissa % 1000 == 0 {
            mantissa /= 1000;
            power += 1;
        }
        let exponent = 3 * power - 9;
        match (self.family, usize::try_from(power).ok().and_then(|power| DECIMAL.get(power))) {
            (Family::Binary | Family::Decimal, Some(suffix)) => format!("{mantissa}{suffix}"),
            _ if exponent == 0 => mantissa.to_string(),
            _ => format!("{mantissa}e{exponent}"),
        }
    }

    /// The value in thousandths, and whether none finer was lost.
    pub(super) fn millis(self) -> (i128, bool) {
        (ceiling(self.nanos, NANOS / 1000), self.nanos % (NANOS / 1000) == 0)
    }

    /// The value as an integer, rounded away from zero, as the server computes with it.
    pub(super) fn integer(self) -> i128 {
        ceiling(self.nanos, NANOS)
    }

    /// Whether the value has a part smaller than one.
    pub(super) fn is_fractional(self) -> bool {
        self.nanos % NANOS != 0
    }

    /// -1, 0 or 1.
    pub(super) fn sign(self) -> i128 {
        self.nanos.signum()
    }

    /// The sum, in the family of `self`.
    pub(super) fn plus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_add(other.nanos), family: self.family }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.nanos.partial_cmp(&other.nanos)
    }
}

fn interpret(suffix: &str) -> Result<(Family, u32, i32), QuantityError> {
    if let Some(power) = BINARY.iter().skip(1).position(|s| *s == suffix) {
        let power = u32::try_from(power + 1).map_err(|_| QuantityError::Suffix)?;
        return Ok((Family::Binary, power, 0));
    }
    if let Some(power) = DECIMAL.iter().position(|s| *s == suffix) {
        let power = i32::try_from(power).map_err(|_| QuantityError::Suffix)?;
        return Ok((Family::Decimal, 0, 3 * power - 9));
    }
    if let Some(exponent) = suffix.strip_prefix(['e', 'E']) {
        return exponent.parse().map(|exponent| (Family::Exponent, 0, exponent)).map_err(|_| QuantityError::Suffix);
    }
    let known = |c: char| "eEinumkKMGTP+-".contains(c) || c.is_ascii_digit();
    Err(if suffix.chars().all(known) { QuantityError::Suffix } else { QuantityError::Malformed })
}

fn parse_number(digits: &str) -> Result<i128, QuantityError> {
    digits.parse().map_err(|_| QuantityError::Numeric)
}

fn power_of_ten(exponent: u32) -> Option<i128> {
    10_i128.checked_pow(exponent)
}

fn ceiling(value: i128, unit: i128) -> i128 {
    let up = i128::from(value % unit != 0) * value.signum();
    value / unit + up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_spelling_is_canonical() {
        for (input, stored) in [
            ("0", "0"),
            ("0Gi", "0"),
            ("1", "1"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("1500", "1500"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("40Gi", "40Gi"),
            ("40960Mi", "40Gi"),
            ("85899345920", "85899345920"),
            ("1Ki", "1Ki"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("100.5", "100500m"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e2", "1200"),
            ("2500m", "2500m"),
            ("2000m", "2"),
            ("-1024Ki", "-1Mi"),
            ("007", "7"),
            ("0.0000000001", "1n"),
            ("5G", "5G"),
            ("1.", "1"),
            (".5", "500m"),
        ] {
            assert_eq!(Quantity::parse(input).map(Quantity::canonical).as_deref(), Ok(stored), "{input}");
        }
    }

    #[test]
    fn text_that_is_no_quantity_is_refused() {
        for input in ["", "Gi", "1GiB", "1 Gi", "ten", "1e", "1.2.3", "0x10", "1KI", "--1", "1K"] {
            assert!(Quantity::parse(input).is_err(), "{input}");
        }
    }

    #[test]
    fn spellings_of_one_value_are_equal() {
        let q = |text| Quantity::parse(text).unwrap();
        assert_eq!(q("1Gi"), q("1073741824"));
        assert_eq!(q("0.5"), q("500m"));
        assert!(q("1G") < q("1Gi"));
        assert_eq!((q("1.2").integer(), q("-1.2").integer(), q("1.2").millis()), (2, -2, (1200, true)));
        assert!(q("1.5").is_fractional() && !q("2000m").is_fractional());
    }
}
