//! The order of names in the cache, in which the loader searches by halves: one name out of place, and it misses others.

use std::cmp::Ordering;
use std::ffi::c_char;
use std::iter::Peekable;
use std::slice;

/// What names are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A byte that is no digit. C compares characters, and whether those have a sign differs between processors.
    Byte(c_char),
    /// Digits in a row, of any length. Leading zeros do not count.
    Number(i32),
}

/// The end of a name is the zero that C puts there.
const END: Part = Part::Byte(0);

/// Compares two names as the loader does: like text, but `libx.so.10` comes after `libx.so.9`. The loader subtracts C
/// `int`s, and so do we: with numbers of ten digits and more, which wrap, this is a circle and no order to sort by.
pub(super) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let (left, right) = (next(&mut a), next(&mut b));
        let ordering = match (left.unwrap_or(END), right.unwrap_or(END)) {
            (Part::Number(left), Part::Number(right)) => left.wrapping_sub(right).cmp(&0),
            (Part::Byte(left), Part::Byte(right)) => left.cmp(&right),
            (Part::Number(_), Part::Byte(_)) => Ordering::Greater,
            (Part::Byte(_), Part::Number(_)) => Ordering::Less,
        };
        if ordering.is_ne() || (left, right) == (None, None) {
            return ordering;
        }
    }
}

fn next(bytes: &mut Peekable<slice::Iter<'_, u8>>) -> Option<Part> {
    let mut digit = || bytes.next_if(|byte| byte.is_ascii_digit()).map(|byte| i32::from(byte - b'0'));
    let Some(mut number) = digit() else {
        return bytes.next().map(|byte| Part::Byte(c_char::from_ne_bytes([*byte])));
    };
    while let Some(digit) = digit() {
        number = number.wrapping_mul(10).wrapping_add(digit);
    }
    Some(Part::Number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers_and_come_after_text() {
        for (smaller, larger) in [
            ("libx.so.9", "libx.so.10"),
            ("libx.so", "libx.so.1"),
            ("libx-a.so", "libx.so"),
            ("liba.so.2", "libb.so.1"),
            ("libz.so", "lib1.so"),
            ("", "a"),
            ("", "1"),
            ("libx.so.1.2", "libx.so.1.10"),
        ] {
            assert_eq!(compare(smaller.as_bytes(), larger.as_bytes()), Ordering::Less, "{smaller} {larger}");
            assert_eq!(compare(larger.as_bytes(), smaller.as_bytes()), Ordering::Greater, "{smaller} {larger}");
        }
        for (a, b) in [("libx.so.01", "libx.so.1"), ("libx.so.4294967297", "libx.so.1"), ("", "")] {
            assert_eq!(compare(a.as_bytes(), b.as_bytes()), Ordering::Equal);
        }
    }
}
