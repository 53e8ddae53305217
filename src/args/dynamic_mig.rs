//! Which GPUs are partitioned by the plugin.

use std::str::FromStr;

use crate::device::model::model;

/// Which GPUs are partitioned by the plugin, when claims ask for parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DynamicMig {
    /// None: administrators partition them.
    #[default]
    None,
    /// All that can be.
    All,
    /// Those of these models, as the attribute `model` has them.
    Models(Vec<String>),
}

// === impl DynamicMig ===

impl DynamicMig {
    /// Whether a GPU with this product name is meant.
    pub fn includes(&self, product_name: Option<&str>) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Models(models) => models.iter().any(|name| *name == product_name.map(model).unwrap_or_default()),
        }
    }
}

impl FromStr for DynamicMig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = |name: &str| {
            let model = model(name);
            let is_model = !model.is_empty() && model.eq_ignore_ascii_case(name.trim());
            let error = || format!("expected none, all, or models such as A100,H100; {name:?} is no model");
            if is_model { Ok(model.to_owned()) } else { Err(error()) }
        };
        match text.trim().to_ascii_lowercase().as_str() {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            _ => text.split(',').map(known).collect::<Result<_, _>>().map(Self::Models),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_in_any_case_and_meant_exactly() {
        let some: DynamicMig = "a100, H100".parse().unwrap();
        for (product, expected) in [
            ("NVIDIA A100-SXM4-40GB", true),
            ("NVIDIA H100 NVL", true),
            ("NVIDIA A100X", false),
            ("NVIDIA H200", false),
            ("NVIDIA Graphics Device", false),
        ] {
            assert_eq!(some.includes(Some(product)), expected, "{product}");
            assert!(DynamicMig::All.includes(Some(product)) && !DynamicMig::None.includes(Some(product)));
        }
        assert!(!some.includes(None));
    }

    #[test]
    fn what_is_no_model_is_refused() {
        for text in ["", "A100,", "all,H100", "A1000", "NVIDIA H100 NVL", "yes"] {
            let error = text.parse::<DynamicMig>().unwrap_err();
            assert!(error.starts_with("expected none, all, or models"), "{text:?}: {error}");
        }
    }
}
