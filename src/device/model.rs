//! Short names of GPU models, from the product names that NVML reports.
//!
//! Selectors want to say `model == "A100"`. Product names say the form factor, the memory and the marketing of the day
//! as well, so this table says which words of a product name are the model.

/// Models as they are published. Those of several words stand before those that are part of them.
#[rustfmt::skip]
pub const MODELS: &[&str] = &[
    // Rubin, Blackwell
    "VR200", "R200", "GB300", "GB200", "GB10", "B300", "B200", "B100", "B40",
    "RTX PRO 6000", "RTX PRO 5000", "RTX PRO 4500", "RTX PRO 4000", "RTX PRO 2000",
    // Hopper
    "GH200", "H200", "H100", "H800", "H20",
    // Ada Lovelace
    "L40S", "L40G", "L40", "L20", "L4", "L2",
    "RTX 6000 Ada", "RTX 5880 Ada", "RTX 5000 Ada", "RTX 4500 Ada", "RTX 4000 SFF Ada", "RTX 4000 Ada", "RTX 2000 Ada",
    // Ampere
    "A100X", "A100", "A800", "A40", "A30X", "A30", "A16", "A10G", "A10M", "A10", "A2",
    "RTX A6000", "RTX A5500", "RTX A5000", "RTX A4500", "RTX A4000", "RTX A2000",
    // Turing, Volta, Pascal, Maxwell, Kepler
    "T4G", "T4", "RTX 8000", "RTX 6000", "RTX 5000", "RTX 4000", "TITAN RTX",
    "V100S", "V100", "TITAN V", "GV100",
    "P100", "P40", "P6", "P4", "GP100",
    "M60", "M40", "M10", "M6", "M4", "K80",
    // GeForce, on workstations
    "RTX 5090", "RTX 5080", "RTX 5070", "RTX 4090", "RTX 4080", "RTX 4070", "RTX 3090", "RTX 3080", "RTX 3070",
    "RTX 2080", "GTX 1080", "GTX 1070",
];

/// The model of a product, for example `H100` of `NVIDIA H100 80GB HBM3`; empty where the name says none that is known.
pub fn model(product_name: &str) -> &'static str {
    let words = words(product_name);
    MODELS
        .iter()
        .copied()
        .find(|model| {
            let model: Vec<_> = self::words(model);
            words.windows(model.len()).any(|part| part == model)
        })
        .unwrap_or_default()
}

/// Words in upper case; dashes separate too (`A100-SXM4-40GB`).
fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_uppercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_names_of_real_machines_give_their_model() {
        let cases = [
            ("NVIDIA A100-SXM4-40GB", "A100"),
            ("NVIDIA A100-PCIE-40GB", "A100"),
            ("NVIDIA A100 80GB PCIe", "A100"),
            ("NVIDIA A100X", "A100X"),
            ("A100-SXM-80GB", "A100"),
            ("NVIDIA A800-SXM4-80GB", "A800"),
            ("NVIDIA A30", "A30"),
            ("NVIDIA A10G", "A10G"),
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA H100 PCIe", "H100"),
            ("NVIDIA H100 NVL", "H100"),
            ("NVIDIA H20-3e", "H20"),
            ("NVIDIA H200", "H200"),
            ("NVIDIA H200 NVL", "H200"),
            ("NVIDIA GH200 480GB", "GH200"),
            ("GH200 96GB HBM3", "GH200"),
            ("NVIDIA B200", "B200"),
            ("NVIDIA B300 SXM6 AC", "B300"),
            ("NVIDIA GB200", "GB200"),
            ("NVIDIA GB300", "GB300"),
            ("NVIDIA L4", "L4"),
            ("NVIDIA L40", "L40"),
            ("NVIDIA L40S", "L40S"),
            ("Tesla T4", "T4"),
            ("Tesla V100-SXM2-32GB", "V100"),
            ("Tesla P100-PCIE-16GB", "P100"),
            ("Tesla K80", "K80"),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
            ("Quadro RTX 6000", "RTX 6000"),
            ("NVIDIA RTX A6000", "RTX A6000"),
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ];
        for (product, expected) in cases {
            assert_eq!(model(product), expected, "{product}");
        }
    }

    #[test]
    fn an_unknown_product_has_no_model() {
        for product in ["", "NVIDIA Graphics Device", "NVIDIA A1000000", "40GB", "naïve ☃", "NVIDIA"] {
            assert_eq!(model(product), "", "{product}");
        }
    }

    #[test]
    fn every_model_is_found_under_its_own_name() {
        for name in MODELS {
            assert_eq!(model(&format!("NVIDIA {name} 80GB")), *name);
        }
    }
}
