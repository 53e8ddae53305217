//! Semantic versions and what expressions can do with them.

use std::any::Any;
use std::cmp::Ordering;
use std::str::FromStr;

use ::cel::common::types::{CelBool, CelInt, CelString, Type};
use ::cel::common::value::{StaticVal, Val};
use ::cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};

static TYPE: Type = Type::new_unspecified_type("kubernetes.Semver");

/// A version by the rules of semver 2.0.0. Build metadata does not count.
#[derive(Debug, Clone)]
pub(super) struct Version(semver::Version);

// === impl Version ===

impl FromStr for Version {
    type Err = semver::Error;

    fn from_str(text: &str) -> Result<Self, semver::Error> {
        text.parse().map(Self)
    }
}

impl Val for Version {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| self.0.cmp_precedence(&other.0) == Ordering::Equal)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Version {}

/// Declares `semver` and its methods.
pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn semver: (CelString) -> Result<Version>)?;
    add_overload!(env, fn is_semver: (CelString) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Version, Version) -> CelInt)?;
    add_member_overload!(env, fn is_greater_than: (Version, Version) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (Version, Version) -> CelBool)?;
    add_member_overload!(env, fn major: (Version) -> CelInt)?;
    add_member_overload!(env, fn minor: (Version) -> CelInt)?;
    add_member_overload!(env, fn patch: (Version) -> CelInt)
}

fn semver(text: &CelString<'_>) -> Result<Version, ExecutionError> {
    text.inner().parse().map_err(|error| ExecutionError::function_error("semver", error))
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    text.inner().parse::<Version>().is_ok().into()
}

fn compare_to(this: &Version, other: &Version) -> CelInt {
    CelInt::from(this.0.cmp_precedence(&other.0) as i64)
}

fn is_greater_than(this: &Version, other: &Version) -> CelBool {
    (this.0.cmp_precedence(&other.0) == Ordering::Greater).into()
}

fn is_less_than(this: &Version, other: &Version) -> CelBool {
    (this.0.cmp_precedence(&other.0) == Ordering::Less).into()
}

fn major(this: &Version) -> CelInt {
    int(this.0.major)
}

fn minor(this: &Version) -> CelInt {
    int(this.0.minor)
}

fn patch(this: &Version) -> CelInt {
    int(this.0.patch)
}

fn int(number: u64) -> CelInt {
    CelInt::from(i64::try_from(number).unwrap_or(i64::MAX))
}
