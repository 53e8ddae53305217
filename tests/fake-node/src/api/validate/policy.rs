//! `requestPolicy`: how much of a shared capacity one request may take.
//!
//! The server computes with integers, rounding up; from 1.37 on in thousandths where a bound is fractional (gate
//! `DRAFractionalCapacityRange`).

use serde_json::{Value, json};

use super::super::gates::Gate;
use super::super::quantity::Quantity;
use super::Rules;
use super::list::{Errors, items};

/// Values to choose from.
const VALID_VALUES: usize = 10;

pub(super) fn check(errors: &mut Errors, path: &str, capacity: &Value, rules: Rules<'_>) {
    let policy = &capacity["requestPolicy"];
    let Some(most) = quantity(&capacity["value"]) else { return };
    let values = items(policy, "validValues");
    let range = &policy["validRange"];
    let default = quantity(&policy["default"]);
    match (values, range.is_object()) {
        ([_, ..], true) => {
            let why = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at \
                the same time";
            errors.forbidden(path, why);
        }
        ([_, ..], false) => match default {
            None => errors.required(&format!("{path}.default"), "required when validValues is defined"),
            Some(default) => check_values(errors, &format!("{path}.validValues"), values, default, most, rules),
        },
        ([], true) => match default {
            None => errors.required(&format!("{path}.default"), "required when validRange is defined"),
            Some(default) => check_range(errors, &format!("{path}.validRange"), range, default, most, rules),
        },
        ([], false) => {}
    }
}

fn check_values(
    errors: &mut Errors,
    path: &str,
    values: &[Value],
    default: Quantity,
    most: Quantity,
    rules: Rules<'_>,
) {
    let quantities: Vec<_> = values.iter().filter_map(quantity).collect();
    for (i, pair) in quantities.windows(2).enumerate() {
        if pair[0] > pair[1] {
            let why = "values must be sorted in ascending order";
            errors.invalid(&format!("{path}[{}]", i + 1), pair[1].canonical(), why);
        }
    }
    if errors.max_items(path, values.len(), VALID_VALUES) {
        for (i, value) in quantities.iter().enumerate().filter(|(_, value)| **value > most) {
            let why = format!("option is larger than capacity value: {}", most.canonical());
            errors.invalid(&format!("{path}[{i}]"), value.canonical(), why);
        }
        let fractional = rules.gates.enabled(Gate::FractionalCapacityRange);
        let key = |q: &Quantity| if fractional { q.canonical() } else { q.integer().to_string() };
        errors.unique(path, quantities.iter().map(|q| json!(key(q))));
    }
    if !quantities.contains(&default) {
        errors.invalid(path, default.canonical(), "default value is not valid according to the requestPolicy");
    }
}

fn check_range(errors: &mut Errors, path: &str, range: &Value, default: Quantity, most: Quantity, rules: Rules<'_>) {
    let Some(min) = quantity(&range["min"]) else {
        return errors.required(&format!("{path}.min"), "required when validRange is defined");
    };
    let (max, step) = (quantity(&range["max"]), quantity(&range["step"]));
    let mut over = |field: &str, shown: Quantity, broken: bool, why: &str, bound: Quantity| {
        if broken {
            errors.invalid(&format!("{path}.{field}"), shown.canonical(), format!("{why}: {}", bound.canonical()));
        }
    };
    over("min", min, min > most, "min is larger than capacity value", most);
    over("default", default, default < min, "default is less than min", min);
    if let Some(max) = max {
        over("max", min, min > max, "min is larger than max", max);
        over("max", max, max > most, "max is larger than capacity value", most);
        over("default", default, default > max, "default is more than max", max);
    }
    let bounds = [("default", Some(default)), ("min", Some(min)), ("max", max), ("step", step)];
    let bounds = bounds.into_iter().filter_map(|(name, bound)| bound.map(|bound| (name, bound)));
    let millis = rules.gates.enabled(Gate::FractionalCapacityRange) && bounds.clone().any(|(_, q)| q.is_fractional());
    let mut unsafe_bound = false;
    for (name, bound) in bounds.filter(|_| step.is_some() || millis) {
        let (why, broken) = match millis {
            true => ("value cannot be represented as a milli value", !bound.millis().1),
            false if bound.sign() < 0 => ("must be greater than or equal to 0", name != "step"),
            false => ("must not be larger than 9223372036854775807", bound.integer() > i128::from(i64::MAX)),
        };
        if broken {
            errors.invalid(&format!("{path}.{name}"), bound.canonical(), why);
            unsafe_bound = true;
        }
    }
    let Some(step) = step.filter(|_| !(millis && unsafe_bound)) else { return };
    let path = format!("{path}.step");
    if step.sign() <= 0 {
        return errors.invalid(&path, step.canonical(), "must be greater than zero");
    }
    let first = min.plus(step);
    if first > most {
        let why = format!("one step {} is larger than capacity value: {}", first.canonical(), most.canonical());
        errors.invalid(&path, step.canonical(), why);
    }
    let unit = |q: Quantity| if millis { q.millis().0 } else { q.integer() };
    for value in [Some(default), max].into_iter().flatten().filter(|_| !unsafe_bound) {
        if (unit(value) - unit(min)) % unit(step) != 0 {
            let why =
                format!("value is not a multiple of a given step ({}) from ({})", step.canonical(), min.canonical());
            errors.invalid(&path, value.canonical(), why);
        }
    }
}

fn quantity(value: &Value) -> Option<Quantity> {
    Quantity::parse(value.as_str()?).ok()
}
