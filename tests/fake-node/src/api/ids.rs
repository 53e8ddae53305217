//! Identifiers and time stamps that the server makes up.

use std::hash::{BuildHasher, RandomState};

use jiff::Timestamp;

/// Letters of generated names: no vowels, no look-alikes, as the real server has it.
const NAME_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters behind a generated name's base.
const SUFFIX: usize = 5;
/// What is left of the base of a generated name: a name has 63.
const BASE: usize = 58;

/// A random (version 4) UUID.
pub(super) fn uid() -> String {
    let (high, low) = (random(), random());
    let high = high & 0xffff_ffff_ffff_0fff | 0x4000;
    let low = low & 0x3fff_ffff_ffff_ffff | 0x8000_0000_0000_0000;
    let (high, low) = (format!("{high:016x}"), format!("{low:016x}"));
    format!("{}-{}-{}-{}-{}", &high[..8], &high[8..12], &high[12..], &low[..4], &low[4..])
}

/// An opaque token.
pub(super) fn token() -> String {
    format!("{:016x}", random())
}

/// A name from `metadata.generateName`.
pub(super) fn generate_name(base: &str) -> String {
    let mut name: String = base.chars().take(BASE).collect();
    let mut bits = random();
    for _ in 0..SUFFIX {
        let letter = usize::try_from(bits % NAME_ALPHABET.len() as u64).unwrap_or_default();
        name.push(char::from(NAME_ALPHABET[letter]));
        bits /= NAME_ALPHABET.len() as u64;
    }
    name
}

/// Now, as `meta/v1 Time` is written: seconds, UTC.
pub(super) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The keys of a hash map are as random as std gets, and enough for identifiers of a test cluster.
fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_version_4_and_differ() {
        let (a, b) = (uid(), uid());
        assert_ne!(a, b);
        assert_eq!((a.len(), a.as_bytes()[14]), (36, b'4'));
        assert!(b"89ab".contains(&a.as_bytes()[19]), "{a}");
    }

    #[test]
    fn generated_names_keep_58_letters_of_their_base() {
        let name = generate_name(&"a".repeat(80));
        assert_eq!(name.len(), 63);
        assert!(generate_name("gpu-").starts_with("gpu-") && generate_name("gpu-") != generate_name("gpu-"));
    }
}
