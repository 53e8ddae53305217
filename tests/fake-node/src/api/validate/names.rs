//! The formats of names: labels, subdomains, identifiers, versions.

use super::list::Errors;

/// Longest DNS label.
pub(super) const LABEL_BYTES: usize = 63;
/// Longest DNS subdomain.
pub(super) const SUBDOMAIN_BYTES: usize = 253;
/// Longest driver name, and domain of an attribute.
const DRIVER_BYTES: usize = 63;
/// Longest identifier of an attribute or capacity.
const ID_BYTES: usize = 32;
/// Longest pool name.
const POOL_BYTES: usize = 253;

const LABEL: &str = "\
    a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
    and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "\
    a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const C_IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
    alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
    '[A-Za-z_][A-Za-z0-9_]*')";
const QUALIFIED: &str = "\
    name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
    an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "\
    a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
    and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SEMVER: &str = "must be a string compatible with semver.org spec 2.0.0";

/// A DNS label: devices, counters, requests.
pub(super) fn label(errors: &mut Errors, field: &str, value: &str) {
    if !is_label(value) {
        errors.invalid(field, value, LABEL);
    }
    no_longer_than(errors, field, value, LABEL_BYTES);
}

/// A DNS subdomain: objects, classes, nodes.
pub(super) fn subdomain(errors: &mut Errors, field: &str, value: &str) {
    no_longer_than(errors, field, value, SUBDOMAIN_BYTES);
    if !is_subdomain(value) {
        errors.invalid(field, value, SUBDOMAIN);
    }
}

/// A driver: a subdomain of at most 63 bytes in which upper case passes.
pub(super) fn driver(errors: &mut Errors, field: &str, value: &str) {
    if value.is_empty() {
        return errors.required(field, "");
    }
    errors.max_bytes(field, value, DRIVER_BYTES);
    if !is_subdomain(&value.to_lowercase()) {
        errors.invalid(field, value, SUBDOMAIN);
    }
}

/// A pool: subdomains joined by slashes.
pub(super) fn pool(errors: &mut Errors, field: &str, value: &str) {
    if value.is_empty() {
        return errors.required(field, "");
    }
    errors.max_bytes(field, value, POOL_BYTES);
    for part in value.split('/') {
        subdomain(errors, field, part);
    }
}

/// The key of an attribute or capacity: an identifier, or `domain/identifier`.
pub(super) fn qualified_name(errors: &mut Errors, field: &str, value: &str) {
    match value.split('/').collect::<Vec<_>>().as_slice() {
        [id] => c_identifier(errors, field, id),
        [domain, id] => {
            match *domain {
                "" => errors.invalid(field, "", "the domain must not be empty"),
                domain => driver(errors, field, domain),
            }
            match *id {
                "" => errors.invalid(field, "", "the name must not be empty"),
                id => c_identifier(errors, field, id),
            }
        }
        _ => errors.invalid(field, value, "must not contain more than one slash"),
    }
}

/// As [`qualified_name`], and with a domain.
pub(super) fn fully_qualified_name(errors: &mut Errors, field: &str, value: &str) {
    qualified_name(errors, field, value);
    if !value.contains('/') {
        errors.invalid(field, value, "a fully qualified name must be a domain and a name separated by a slash");
    }
}

/// The key of a label or taint, and a condition's type: `[prefix/]name`.
pub(super) fn label_name(errors: &mut Errors, field: &str, value: &str) {
    let name = match value.split_once('/') {
        Some(("", _)) => return errors.invalid(field, value, "prefix part must be non-empty"),
        Some((prefix, name)) => {
            if !is_subdomain(prefix) || prefix.len() > SUBDOMAIN_BYTES {
                errors.invalid(field, value, format!("prefix part {SUBDOMAIN}"));
            }
            name
        }
        None => value,
    };
    if name.is_empty() {
        errors.invalid(field, value, "name part must be non-empty");
    } else if name.len() > LABEL_BYTES {
        errors.invalid(field, value, "name part must be no more than 63 bytes");
    }
    if !is_label_text(name) {
        errors.invalid(field, value, QUALIFIED);
    }
}

/// The value of a label or taint.
pub(super) fn label_value(errors: &mut Errors, field: &str, value: &str) {
    no_longer_than(errors, field, value, LABEL_BYTES);
    if !value.is_empty() && !is_label_text(value) {
        errors.invalid(field, value, LABEL_VALUE);
    }
}

/// A version after semver.org 2.0.0: three numbers without leading zeros. Numbers beyond 64 bits are refused here,
/// though the server takes them.
pub(super) fn version(errors: &mut Errors, field: &str, value: &str) {
    if semver::Version::parse(value).is_err() {
        errors.invalid(field, value, SEMVER);
    }
}

/// A UUID in lower case, with dashes.
pub(super) fn uuid(errors: &mut Errors, field: &str, value: &str) {
    let shaped = value.len() == 36
        && value.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => b == b'-',
            _ => matches!(b, b'0'..=b'9' | b'a'..=b'f'),
        });
    if !shaped {
        let form = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase \
            hexadecimal characters";
        errors.invalid(field, value, form);
    }
}

fn c_identifier(errors: &mut Errors, field: &str, value: &str) {
    errors.max_bytes(field, value, ID_BYTES);
    let rest = value.strip_prefix(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')) {
        errors.invalid(field, value, C_IDENTIFIER);
    }
}

fn no_longer_than(errors: &mut Errors, field: &str, value: &str, max: usize) {
    if value.len() > max {
        errors.invalid(field, value, format!("must be no more than {max} bytes"));
    }
}

fn is_label(value: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !value.is_empty() && !value.starts_with('-') && !value.ends_with('-') && value.chars().all(inner)
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_label_text(value: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    value.starts_with(outer)
        && value.ends_with(outer)
        && value.chars().all(|c| outer(c) || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn table(check: fn(&mut Errors, &str, &str), accepted: &[&str], refused: &[&str]) {
        let broken = |value: &str| {
            let mut errors = Errors::default();
            check(&mut errors, "field", value);
            errors.into_inner().len()
        };
        for value in accepted {
            assert_eq!(broken(value), 0, "{value:?} should pass");
        }
        for value in refused {
            assert_ne!(broken(value), 0, "{value:?} should not pass");
        }
    }

    #[test]
    fn names_of_devices_are_dns_labels() {
        let (fits, long) = ("a".repeat(63), "a".repeat(64));
        table(
            label,
            &["gpu-0", "0", "gpu-0-mig-1g5gb-19-0", &fits],
            &["", "GPU-0", "gpu_0", "-gpu", "gpu-", "1g.5gb", &long],
        );
    }

    #[test]
    fn names_of_drivers_are_short_subdomains_that_may_have_capitals() {
        let (fits, long) = (format!("{}.io", "a".repeat(60)), format!("{}.io", "a".repeat(61)));
        table(driver, &["gpu.nvidia.com", "GPU.nvidia.com", &fits], &["", "gpu/nvidia", "gpu..com", &long]);
    }

    #[test]
    fn names_of_pools_are_subdomains_joined_by_slashes() {
        table(pool, &["node-1", "node-1.example.com/rack/a"], &["", "Node", "a//b", "/a", "a/", &"a".repeat(254)]);
    }

    #[test]
    fn attributes_are_c_identifiers_with_or_without_a_domain() {
        let (fits, long) = ("a".repeat(32), "a".repeat(33));
        table(
            qualified_name,
            &["model", "_x", "cudaComputeCapability", "resource.kubernetes.io/pcieRoot", &fits],
            &["", "1model", "cuda-version", "a.b", "/x", "x.io/", "x.io/a/b", "x_y/z", &long],
        );
        table(fully_qualified_name, &["gpu.nvidia.com/uuid"], &["uuid", "/uuid"]);
    }

    #[test]
    fn versions_are_strict_semver() {
        table(
            version,
            &["1.2.3", "550.54.15", "1.0.0-rc.1+build.01"],
            &["", "550.54", "12.4", "570.086.10", "v1.2.3", "1.2.3.4", "1.0.0-01", "1.0.0+"],
        );
    }

    #[test]
    fn taints_and_conditions_are_named_like_labels() {
        let (fits, long) = ("a".repeat(63), "a".repeat(64));
        table(
            label_name,
            &["a", "gpu.nvidia.com/xid", "Gpu.Lost_1", &fits],
            &["", "/xid", "a/", "a b", "-a", "A.io/x", "a/b/c", &long],
        );
        table(label_value, &["", "xid-79", "Lost.1_a", &fits], &["Xid 79", "a/b", "-a", &long]);
    }

    #[test]
    fn share_ids_are_lower_case_uuids() {
        table(
            uuid,
            &["0a1b2c3d-0000-4000-8000-00000000000f"],
            &[
                "",
                "0A1B2C3D-0000-4000-8000-00000000000F",
                "0a1b2c3d000040008000",
                "0a1b2c3d-0000-4000-8000-00000000000g",
            ],
        );
    }
}
