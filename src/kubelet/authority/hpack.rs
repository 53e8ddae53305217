//! Just enough HPACK (RFC 7541) to find a literal `:authority`: fields are stepped over, nothing is decoded and no
//! table is kept.

/// The name as a string literal: plain, as gRPC in C sends it, and in Huffman code.
const NAMES: [&[u8]; 2] = [b"\x0a:authority", b"\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f"];

/// Index of `:authority` in the static table.
const STATIC_INDEX: usize = 1;

/// Where a string literal lies in the bytes that it was found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StringLiteral {
    /// Its first byte: the beginning of the length.
    pub(super) start: usize,
    /// After its last byte.
    pub(super) end: usize,
    /// How many bytes follow the length.
    ///
    /// Never more than the text has characters, for text of letters, digits and what else stands in paths: their
    /// Huffman codes have at most 8 bits.
    pub(super) text_len: usize,
}

/// The value of the first literal `:authority` in a field block, or in the beginning of one. `None` if there is none
/// before the first thing that cannot be understood.
pub(super) fn authority(block: &[u8]) -> Option<StringLiteral> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        let name_bits = match first {
            // Indexed field.
            0x80.. => {
                at = integer(block, at, 7)?.1;
                continue;
            }
            // Literal that enters the dynamic table.
            0x40.. => 6,
            // Dynamic table size update.
            0x20.. => {
                at = integer(block, at, 5)?.1;
                continue;
            }
            // Literal that stays out of the table, or must never be in one.
            _ => 4,
        };
        let (name_index, after_index) = integer(block, at, name_bits)?;
        let (is_authority, after_name) = if name_index == 0 {
            let name = string(block, after_index)?;
            (NAMES.contains(&&block[name.start..name.end]), name.end)
        } else {
            (name_index == STATIC_INDEX, after_index)
        };
        let value = string(block, after_name)?;
        if is_authority {
            return Some(value);
        }
        at = value.end;
    }
    None
}

/// A string literal (§5.2).
fn string(block: &[u8], start: usize) -> Option<StringLiteral> {
    let (text_len, text) = integer(block, start, 7)?;
    let end = text.checked_add(text_len)?;
    (end <= block.len()).then_some(StringLiteral { start, end, text_len })
}

/// An integer in the low bits of a byte and what follows it (§5.1); its value, and where it ends.
fn integer(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let limit = (1 << bits) - 1;
    let mut value = usize::from(*block.get(at)?) & limit;
    if value < limit {
        return Some((value, at + 1));
    }
    // No length or index that fits a frame needs more than three further bytes.
    for (i, &byte) in block.get(at + 1..)?.iter().take(4).enumerate() {
        value += usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, at + 2 + i));
        }
    }
    None
}
