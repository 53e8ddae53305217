//! Byte counts as Kubernetes prints them.

/// Suffixes of 1024 to the power of their position.
const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The canonical form of a binary quantity: the largest suffix that leaves a whole number, so `81559Mi` and `80Gi`. The
/// API server stores no other form, and what differs from it is rewritten for ever.
///
/// Below 1024 the canonical form is decimal; only 1000 differs there.
pub fn bytes(count: u64) -> String {
    if count == 1000 {
        return "1k".to_owned();
    }
    let mut rest = count;
    let mut power = 0;
    while rest != 0 && rest.is_multiple_of(1024) {
        rest /= 1024;
        power += 1;
    }
    format!("{rest}{}", SUFFIXES[power])
}

/// Whether a text is a whole number with or without one of the suffixes, and small enough: the API cuts quantities to
/// 2^63 - 1, and what differs from what was sent is rewritten for ever.
pub fn is_quantity(text: &str) -> bool {
    let (digits, suffix) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let Ok(number) = digits.parse::<i64>() else { return false };
    let unit =
        SUFFIXES.iter().zip(0_u32..).find(|(known, _)| **known == suffix).map(|(_, power)| 1_i64 << (10 * power));
    unit.or((suffix == "k").then_some(1000)).is_some_and(|unit| number.checked_mul(unit).is_some())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_printed_as_kubernetes_prints_them() {
        let cases = [
            (0, "0"),
            (1, "1"),
            (999, "999"),
            (1000, "1k"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1500, "1500"),
            (2000, "2000"),
            (1 << 20, "1Mi"),
            (81559 << 20, "81559Mi"),
            (80 << 30, "80Gi"),
            (15360 << 20, "15Gi"),
            (85_094_039_552, "81152Mi"),
            (1 << 40, "1Ti"),
            (1 << 60, "1Ei"),
            (u64::MAX, "18446744073709551615"),
        ];
        for (count, expected) in cases {
            assert_eq!(bytes(count), expected);
        }
    }

    #[test]
    fn what_the_api_would_not_keep_is_no_quantity() {
        for text in ["0", "1k", "80Gi", "81559Mi", "7Ei", "9223372036854775807"] {
            assert!(is_quantity(text), "{text}");
        }
        for text in ["", "Gi", "-1", "+1", "1.5Gi", "80GiB", "80G i", "8Ei", "9223372036854775808", "é"] {
            assert!(!is_quantity(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(factor in any::<u64>(), power in 0_u32..=60) {
            let count = factor << power;
            let text = bytes(count);
            prop_assert_eq!(is_quantity(&text), i64::try_from(count).is_ok());
            prop_assume!(text != "1k");
            let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
            let at = SUFFIXES.iter().position(|suffix| *suffix == &text[digits.len()..]).unwrap();
            let rest: u64 = digits.parse().unwrap();
            prop_assert_eq!(rest << (10 * at), count);
            prop_assert!(rest == 0 || !rest.is_multiple_of(1024));
        }
    }
}
