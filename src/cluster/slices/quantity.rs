//! Kubernetes quantities, as far as telling two of them apart goes.
//!
//! The API server stores a quantity in canonical form: what was sent as `1024Mi` comes back as `1Gi`, `0.5` as `500m`.

/// 10⁹: quantities have no finer precision than nano.
const NANO: i128 = 1_000_000_000;

/// Decimal digits that are read. More than the API accepts (2⁶³ has 19, and nine after the point), fewer than overflow.
const MAX_DIGITS: usize = 30;

/// The value in billionths, rounded up as the API server does; `None` for what is no quantity.
pub(super) fn nanos(text: &str) -> Option<i128> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > MAX_DIGITS || fraction.contains('.') {
        return None;
    }
    let numerator = digits.parse::<i128>().ok()?.checked_mul(scale(suffix)?)?;
    let denominator = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let rounded_up = i128::from(numerator % denominator != 0);
    Some(sign * (numerator / denominator + rounded_up))
}

/// What one unit of a suffix is, in billionths.
fn scale(suffix: &str) -> Option<i128> {
    let power = |base: i128, exponent: u32| base.checked_pow(exponent)?.checked_mul(NANO);
    match suffix {
        "n" => Some(1),
        "u" => Some(1_000),
        "m" => Some(1_000_000),
        "" => Some(NANO),
        "k" => power(1000, 1),
        "M" => power(1000, 2),
        "G" => power(1000, 3),
        "T" => power(1000, 4),
        "P" => power(1000, 5),
        "E" => power(1000, 6),
        "Ki" => power(1024, 1),
        "Mi" => power(1024, 2),
        "Gi" => power(1024, 3),
        "Ti" => power(1024, 4),
        "Pi" => power(1024, 5),
        "Ei" => power(1024, 6),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            // 1e-3 is 10⁶ billionths.
            10_i128.checked_pow(u32::try_from(exponent.checked_add(9)?).ok()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_in_different_words_is_one_quantity() {
        for (one, other) in [
            ("1024Mi", "1Gi"),
            ("1Gi", "1073741824"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1k"),
            ("12E2", "1200"),
            ("+1", "1"),
            ("1.", "1"),
            (".5", "0.5"),
            ("-0.5", "-500m"),
            ("1E", "1000P"),
            ("80Gi", "85899345920"),
            ("0.1n", "1n"),
            ("8E", "8e18"),
        ] {
            assert!(nanos(one).is_some(), "{one} is not read");
            assert_eq!(nanos(one), nanos(other), "{one} and {other}");
        }
    }

    #[test]
    fn different_values_stay_different() {
        for (one, other) in [("1Gi", "1G"), ("1m", "1M"), ("1", "1.000000001"), ("9223372036854775807", "8Ei")] {
            assert_ne!(nanos(one), nanos(other), "{one} and {other}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_not_read() {
        for text in
            ["", "-", ".", "Gi", "1Qi", "1 Gi", "1..2", "1.2.3", "e3", "1e", "1e99", "1e-10", "0x10", &"9".repeat(31)]
        {
            assert_eq!(nanos(text), None, "{text:?}");
        }
    }
}
