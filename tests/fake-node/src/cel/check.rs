//! Two mistakes that Kubernetes' type check finds and that would go unnoticed, or be found late, without one.

use ::cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};

/// All fields of the variable `device`.
const FIELDS: [&str; 4] = ["driver", "attributes", "capacity", "allowMultipleAllocations"];

/// Refuses fields of `device` that do not exist, and the comparison of a whole domain with a scalar.
pub(super) fn check(expr: &IdedExpr) -> Result<(), String> {
    match &expr.expr {
        Expr::Select(select) => {
            if is_device(&select.operand) && !FIELDS.contains(&select.field.as_str()) {
                return Err(format!("undefined field '{}'", select.field));
            }
            check(&select.operand)
        }
        Expr::Call(call) => {
            check_comparison(call)?;
            call.target.as_deref().into_iter().chain(&call.args).try_for_each(check)
        }
        Expr::Comprehension(fold) => {
            [&fold.iter_range, &fold.accu_init, &fold.loop_cond, &fold.loop_step, &fold.result]
                .into_iter()
                .try_for_each(check)
        }
        Expr::List(list) => list.elements.iter().try_for_each(check),
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => check(&entry.key).and_then(|()| check(&entry.value)),
            EntryExpr::StructField(field) => check(&field.value),
        }),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => Ok(()),
    }
}

fn check_comparison(call: &CallExpr) -> Result<(), String> {
    let name = call.func_name.as_str();
    let [left, right] = call.args.as_slice() else { return Ok(()) };
    if name != operators::EQUALS && name != operators::NOT_EQUALS {
        return Ok(());
    }
    let types = match (domain_type(left), literal_type(right), literal_type(left), domain_type(right)) {
        (Some(domain), Some(literal), ..) => format!("{domain}, {literal}"),
        (.., Some(literal), Some(domain)) => format!("{literal}, {domain}"),
        _ => return Ok(()),
    };
    Err(format!("found no matching overload for '{name}' applied to '({types})'"))
}

/// The type of `device.attributes[…]` and `device.capacity[…]`.
fn domain_type(expr: &IdedExpr) -> Option<&'static str> {
    let Expr::Call(CallExpr { func_name, args, .. }) = &expr.expr else { return None };
    let Some(IdedExpr { expr: Expr::Select(SelectExpr { operand, field, .. }), .. }) = args.first() else {
        return None;
    };
    match field.as_str() {
        _ if func_name != operators::INDEX || !is_device(operand) => None,
        "attributes" => Some("map(string, any)"),
        "capacity" => Some("map(string, kubernetes.Quantity)"),
        _ => None,
    }
}

fn literal_type(expr: &IdedExpr) -> Option<&'static str> {
    let Expr::Literal(literal) = &expr.expr else { return None };
    Some(match literal {
        LiteralValue::Boolean(_) => "bool",
        LiteralValue::Bytes(_) => "bytes",
        LiteralValue::Double(_) => "double",
        LiteralValue::Int(_) => "int",
        LiteralValue::Null => "null",
        LiteralValue::String(_) => "string",
        LiteralValue::UInt(_) => "uint",
    })
}

fn is_device(expr: &IdedExpr) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if name == "device")
}
