//! Kubernetes quantities, `40Gi`, `1500m`, `2e9`, and what expressions can do with them.

use std::any::Any;
use std::cmp::Ordering;
use std::iter::Sum;
use std::str::FromStr;

use ::cel::common::types::{CelBool, CelInt, CelString, Type};
use ::cel::common::value::{StaticVal, Val};
use ::cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};

static TYPE: Type = Type::new_unspecified_type("kubernetes.Quantity");

/// The finest unit that Kubernetes keeps is 10⁻⁹.
const NANO: i128 = 1_000_000_000;

/// A quantity. Ordered by value, however it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// Not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity, which is a number with an optional suffix like Gi, M, m or e3")]
pub struct InvalidQuantity(String);

// === impl Quantity ===

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        parse(text).map(|nanos| Self { nanos }).ok_or_else(|| InvalidQuantity(text.to_owned()))
    }
}

impl Val for Quantity {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>() == Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Quantity {}

/// Saturates: nobody has that much of anything.
impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(quantities: I) -> Self {
        Self { nanos: quantities.fold(0, |sum, quantity| sum.saturating_add(quantity.nanos)) }
    }
}

/// Declares `quantity` and its methods.
pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn quantity: (CelString) -> Result<Quantity>)?;
    add_overload!(env, fn is_quantity: (CelString) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Quantity, Quantity) -> CelInt)?;
    add_member_overload!(env, fn is_greater_than: (Quantity, Quantity) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (Quantity, Quantity) -> CelBool)?;
    add_member_overload!(env, fn add: (Quantity, Quantity) -> Result<Quantity>)?;
    add_member_overload!(env, fn sub: (Quantity, Quantity) -> Result<Quantity>)?;
    add_member_overload!(env, fn is_integer: (Quantity) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (Quantity) -> Result<CelInt>)?;
    add_member_overload!(env, fn sign: (Quantity) -> CelInt)
}

fn quantity(text: &CelString<'_>) -> Result<Quantity, ExecutionError> {
    text.inner().parse().map_err(|error| ExecutionError::function_error("quantity", error))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    text.inner().parse::<Quantity>().is_ok().into()
}

fn compare_to(this: &Quantity, other: &Quantity) -> CelInt {
    sign_of(this.cmp(other))
}

fn is_greater_than(this: &Quantity, other: &Quantity) -> CelBool {
    (this > other).into()
}

fn is_less_than(this: &Quantity, other: &Quantity) -> CelBool {
    (this < other).into()
}

fn add(this: &Quantity, other: &Quantity) -> Result<Quantity, ExecutionError> {
    let nanos = this.nanos.checked_add(other.nanos);
    nanos.map(|nanos| Quantity { nanos }).ok_or_else(|| ExecutionError::function_error("add", "overflow"))
}

fn sub(this: &Quantity, other: &Quantity) -> Result<Quantity, ExecutionError> {
    let nanos = this.nanos.checked_sub(other.nanos);
    nanos.map(|nanos| Quantity { nanos }).ok_or_else(|| ExecutionError::function_error("sub", "overflow"))
}

fn integer(this: Quantity) -> Option<i64> {
    (this.nanos % NANO == 0).then(|| i64::try_from(this.nanos / NANO).ok()).flatten()
}

fn is_integer(this: &Quantity) -> CelBool {
    integer(*this).is_some().into()
}

fn as_integer(this: &Quantity) -> Result<CelInt, ExecutionError> {
    let error = || ExecutionError::function_error("asInteger", "cannot convert value to integer");
    integer(*this).map(CelInt::from).ok_or_else(error)
}

fn sign(this: &Quantity) -> CelInt {
    sign_of(this.nanos.cmp(&0))
}

fn sign_of(ordering: Ordering) -> CelInt {
    CelInt::from(ordering as i64)
}

/// The value in units of 10⁻⁹; what is finer is rounded away from zero, as Kubernetes does.
fn parse(text: &str) -> Option<i128> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (numerator, denominator) = multiplier(suffix)?;
    let denominator = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(denominator)?;
    let scaled = digits.checked_mul(numerator)?.checked_mul(NANO)?;
    Some(sign * scaled.div_euclid(denominator).checked_add(i128::from(scaled % denominator != 0))?)
}

fn multiplier(suffix: &str) -> Option<(i128, i128)> {
    let decimal = |power: u32| Some((10_i128.checked_pow(power)?, 1));
    let binary = |power: u32| Some((1_i128 << power, 1));
    match suffix {
        "n" => Some((1, NANO)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1_000)),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_equal_by_value() {
        for (a, b) in [
            ("1Gi", "1073741824"),
            ("1.5Gi", "1536Mi"),
            ("1k", "1e3"),
            ("1E", "1e18"),
            ("1500m", "1.5"),
            (".5", "500m"),
            ("1.", "1"),
            ("-1", "-1000m"),
            ("0.1n", "1n"),
        ] {
            assert_eq!(a.parse::<Quantity>().unwrap(), b.parse().unwrap(), "{a} {b}");
        }
        assert!("80Gi".parse::<Quantity>().unwrap() > "80G".parse().unwrap());
    }

    #[test]
    fn other_texts_are_not_quantities() {
        for text in ["", "Gi", "1GB", "1 Gi", "1.2.3", "ten", "1e", "--1", "1gi", "1e99"] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }
}
