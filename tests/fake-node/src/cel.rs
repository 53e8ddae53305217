//! CEL as ResourceClaims and DeviceClasses use it: the environment of Kubernetes' device selectors on the `cel` crate.
//!
//! ```text
//!  expression ── Environment::compile ──▶ Selector ─┐
//!  driver, device of a ResourceSlice ──▶ Device ────┴─ matches ──▶ true, false, or an error that aborts scheduling
//! ```
//!
//! Variables: `device.driver`, `device.attributes[domain].name`, `device.capacity[domain].name` and
//! `device.allowMultipleAllocations`. An attribute without a domain has the driver's; an unknown domain is an empty map,
//! an unknown name an error. Functions beyond the language: `cel.bind`, `semver`, `quantity` and their methods, and the
//! string extensions.
//!
//! What differs: Kubernetes checks types and estimates costs when an object is created. Here a wrong type is found when
//! the expression meets it, but for the two mistakes that people make (see [`CelError::Compile`]), and nothing has a cost.

mod check;
mod domains;
mod quantity;
mod version;

use std::collections::HashMap;
use std::sync::Arc;

use ::cel::common::ast::{ComprehensionExpr, IdedExpr};
use ::cel::common::ast::{Expr, ListExpr, LiteralValue};
use ::cel::common::types::{CelBool, CelInt, CelMap, CelMapKey, CelString};
use ::cel::common::value::Val;
use ::cel::parser::{Macro, MacroExprHelper, ParseError};
use ::cel::{Context, DeclarationError, Env, ExecutionError, Program, Value as CelValue};
use serde_json::Value;

use self::domains::Domains;
use self::version::Version;

pub use self::quantity::{InvalidQuantity, Quantity};

/// Why an expression cannot be used, or not on a device.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CelError {
    /// The environment could not be set up: the `cel` crate has come to declare something itself.
    #[error("cannot set up the CEL environment: {0}")]
    Environment(DeclarationError),
    /// The expression does not parse, compares a whole domain with a scalar, or asks for a field that no device has.
    #[error("compilation failed: {0}")]
    Compile(String),
    /// A device has an attribute or a capacity that no expression can read.
    #[error("{kind} {name}: {reason}")]
    Device {
        /// `attribute` or `capacity`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The expression failed on a device, for instance because the device lacks a name that it uses.
    #[error("CEL runtime error: {0}")]
    Runtime(ExecutionError),
    /// The expression yields something other than a bool.
    #[error("CEL result of type {0} could not be converted to bool")]
    NotBool(String),
}

/// All that expressions can use.
#[derive(Clone)]
pub struct Environment(Arc<Env>);

/// A compiled expression.
pub struct Selector {
    program: Program,
    env: Arc<Env>,
}

/// A device as expressions see it.
#[derive(Debug, Clone)]
pub struct Device(CelMap<'static>);

// === impl Environment ===

impl Environment {
    /// The environment of device selectors.
    pub fn new() -> Result<Self, CelError> {
        let mut env = Env::stdlib();
        declare(&mut env).map_err(CelError::Environment)?;
        Ok(Self(Arc::new(env)))
    }

    /// Compiles an expression.
    pub fn compile(&self, expression: &str) -> Result<Selector, CelError> {
        let program = self.0.compile(expression).map_err(|errors| CelError::Compile(errors.to_string()))?;
        check::check(program.expression()).map_err(CelError::Compile)?;
        Ok(Selector { program, env: Arc::clone(&self.0) })
    }
}

// === impl Selector ===

impl Selector {
    /// Whether a device is selected.
    pub fn matches(&self, device: &Device) -> Result<bool, CelError> {
        let mut context = Context::with_env(Arc::clone(&self.env));
        context.add_variable_as_val("device", Box::new(device.0.clone()));
        match self.program.execute(&context).map_err(CelError::Runtime)? {
            CelValue::Bool(selected) => Ok(selected),
            other => Err(CelError::NotBool(format!("{:?}", other.type_of()))),
        }
    }
}

// === impl Device ===

impl Device {
    /// From an element of `spec.devices` of a ResourceSlice (`resource.k8s.io/v1`) of a driver.
    pub fn new(driver: &str, device: &Value) -> Result<Self, CelError> {
        let attributes = by_domain(driver, device, "attributes", attribute)?;
        let capacity = by_domain(driver, device, "capacity", capacity)?;
        let shared = device["allowMultipleAllocations"].as_bool().unwrap_or_default();
        Ok(Self(map([
            ("driver", Box::new(CelString::from(driver.to_owned())) as Box<dyn Val>),
            ("allowMultipleAllocations", Box::new(CelBool::from(shared))),
            ("attributes", Box::new(Domains::new(attributes))),
            ("capacity", Box::new(Domains::new(capacity))),
        ])))
    }
}

fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    ::cel::extensions::strings(env)?;
    quantity::extension(env)?;
    version::extension(env)?;
    env.add_macro(Macro::receiver("bind", 3, bind))
}

/// `cel.bind(name, value, expression)`: a fold over nothing, whose accumulator is the name.
fn bind(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    if !matches!(target, Some(IdedExpr { expr: Expr::Ident(namespace), .. }) if namespace == "cel") {
        return Ok(None);
    }
    let [Some(result), Some(accu_init), Some(name)] = [args.pop(), args.pop(), args.pop()] else { return Ok(None) };
    let Expr::Ident(accu_var) = name.expr else {
        return Err(helper.new_error(name.id, "cel.bind() variable names must be simple identifiers"));
    };
    let iter_range = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
    let loop_cond = helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into())));
    let loop_step = helper.next_expr(Expr::Ident(accu_var.clone()));
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range,
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var,
        accu_init,
        loop_cond,
        loop_step,
        result,
    })))))
}

/// The values of `device[field]` by domain.
fn by_domain(
    driver: &str,
    device: &Value,
    field: &str,
    read: impl Fn(&Value) -> Result<Box<dyn Val>, (&'static str, String)>,
) -> Result<HashMap<String, CelMap<'static>>, CelError> {
    let mut domains = HashMap::<String, HashMap<CelMapKey<'static>, Box<dyn Val>>>::new();
    for (qualified, value) in device[field].as_object().into_iter().flatten() {
        let (domain, name) = qualified.split_once('/').unwrap_or((driver, qualified));
        let value = read(value).map_err(|(kind, reason)| CelError::Device { kind, name: qualified.clone(), reason })?;
        domains.entry(domain.to_owned()).or_default().insert(name.to_owned().into(), value);
    }
    Ok(domains.into_iter().map(|(domain, values)| (domain, values.into())).collect())
}

fn attribute(value: &Value) -> Result<Box<dyn Val>, (&'static str, String)> {
    if let Some(int) = value["int"].as_i64() {
        Ok(Box::new(CelInt::from(int)))
    } else if let Some(bool) = value["bool"].as_bool() {
        Ok(Box::new(CelBool::from(bool)))
    } else if let Some(string) = value["string"].as_str() {
        Ok(Box::new(CelString::from(string.to_owned())))
    } else if let Some(version) = value["version"].as_str() {
        let version = version.parse::<Version>().map_err(|error| format!("parse semantic version: {error}"));
        Ok(Box::new(version.map_err(|reason| ("attribute", reason))?))
    } else {
        // Lists too: their gate is off, and the scheduler then fails on every device that has one.
        Err(("attribute", "unsupported attribute value".to_owned()))
    }
}

fn capacity(value: &Value) -> Result<Box<dyn Val>, (&'static str, String)> {
    let quantity = value["value"].as_str().unwrap_or_default().parse::<Quantity>();
    Ok(Box::new(quantity.map_err(|error| ("capacity", error.to_string()))?))
}

fn map<const N: usize>(entries: [(&'static str, Box<dyn Val>); N]) -> CelMap<'static> {
    entries.into_iter().map(|(key, value)| (CelMapKey::from(key), value)).collect::<HashMap<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn evaluate(expression: &str) -> Result<bool, CelError> {
        let device = json!({
            "name": "gpu-0",
            "attributes": {
                "model": {"string": "A100"},
                "type": {"string": "gpu"},
                "index": {"int": 3},
                "healthy": {"bool": true},
                "driverVersion": {"version": "580.95.5"},
                "resource.kubernetes.io/numaNode": {"int": 0},
            },
            "capacity": {"memory": {"value": "40Gi"}},
        });
        let device = Device::new("gpu.nvidia.com", &device).unwrap();
        Environment::new().unwrap().compile(expression)?.matches(&device)
    }

    #[test]
    fn what_people_write_is_evaluated() {
        for (expression, expected) in [
            (r#"device.driver == "gpu.nvidia.com""#, true),
            (r#"device.attributes["gpu.nvidia.com"].model == "A100""#, true),
            (r#"device.attributes["gpu.nvidia.com"].model in ["H100", "H200"]"#, false),
            (r#"device.attributes["gpu.nvidia.com"].model.lowerAscii().matches("^.*a100.*$")"#, true),
            (r#"device.attributes["gpu.nvidia.com"].index >= 3"#, true),
            (r#"device.attributes["gpu.nvidia.com"].healthy"#, true),
            (r#"device.attributes["resource.kubernetes.io"].numaNode == 0"#, true),
            (r#"device.attributes["gpu.nvidia.com"].?model.orValue("") == "A100""#, true),
            (r#"device.attributes["gpu.nvidia.com"].?profile.orValue("none") == "none""#, true),
            (r#"has(device.attributes["gpu.nvidia.com"].profile)"#, false),
            (r#""model" in device.attributes["gpu.nvidia.com"]"#, true),
            (r#"cel.bind(gpu, device.attributes["gpu.nvidia.com"], gpu.type == "gpu" && gpu.index == 3)"#, true),
            ("device.allowMultipleAllocations", false),
            // Unknown domains are empty.
            (r#"device.attributes["dra.example.com"].?model.orValue("") == """#, true),
            (r#"has(device.attributes["dra.example.com"].model)"#, false),
            (r#""model" in device.capacity["dra.example.com"]"#, false),
            // Quantities.
            (r#"device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0"#, true),
            (r#"device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("40000M"))"#, true),
            (r#"device.capacity["gpu.nvidia.com"].memory.isLessThan(quantity("40Gi"))"#, false),
            (r#"device.capacity["gpu.nvidia.com"].memory == quantity("40960Mi")"#, true),
            (r#"isQuantity("40GiB")"#, false),
            // Versions.
            (r#"device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("580.0.0")) >= 0"#, true),
            (r#"device.attributes["gpu.nvidia.com"].driverVersion.isLessThan(semver("580.95.5-rc.1"))"#, false),
            (r#"device.attributes["gpu.nvidia.com"].driverVersion.major() == 580"#, true),
            (r#"isSemver("580.95.05")"#, false),
            // Different types are different, not an error.
            (r#"device.attributes["gpu.nvidia.com"].index == "3""#, false),
        ] {
            assert_eq!(evaluate(expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn a_missing_name_aborts() {
        let error = evaluate(r#"device.attributes["gpu.nvidia.com"].profile == """#).unwrap_err();
        assert_eq!(error.to_string(), "CEL runtime error: No such key: profile");
        let error = evaluate(r#"device.attributes["dra.example.com"].model == """#).unwrap_err();
        assert!(matches!(error, CelError::Runtime(ExecutionError::NoSuchKey(_))), "{error}");
    }

    #[test]
    fn quantities_and_versions_have_no_operators() {
        for expression in [
            r#"device.capacity["gpu.nvidia.com"].memory >= quantity("40Gi")"#,
            r#"device.attributes["gpu.nvidia.com"].driverVersion >= semver("580.0.0")"#,
            r#"device.attributes["gpu.nvidia.com"].index.startsWith("3")"#,
        ] {
            assert!(matches!(evaluate(expression), Err(CelError::Runtime(_))), "{expression}");
        }
    }

    #[test]
    fn a_domain_is_not_a_value() {
        let error = evaluate(r#"device.attributes["nvidia.com/gpu.model"] == "A100""#).unwrap_err();
        let expected = "found no matching overload for '_==_' applied to '(map(string, any), string)'";
        assert_eq!(error, CelError::Compile(expected.into()));
        assert_eq!(evaluate(r#"device.name == "x""#), Err(CelError::Compile("undefined field 'name'".into())));
    }

    #[test]
    fn the_result_must_be_a_bool() {
        let error = evaluate(r#"device.attributes["gpu.nvidia.com"].model"#).unwrap_err();
        assert_eq!(error, CelError::NotBool("String".into()));
        assert!(matches!(evaluate("device.driver =="), Err(CelError::Compile(_))));
    }

    #[test]
    fn a_device_that_no_expression_can_read_is_an_error() {
        for (device, expected) in [
            (json!({"attributes": {"v": {"version": "12.8"}}}), "attribute v: parse semantic version: "),
            (json!({"attributes": {"v": {"strings": ["a"]}}}), "attribute v: unsupported attribute value"),
            (json!({"capacity": {"memory": {"value": "40GB"}}}), "capacity memory: "),
        ] {
            let error = Device::new("d", &device).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
