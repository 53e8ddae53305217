//! Takes symbols out of a copied library, as an older driver would not have them.
//!
//! A fault can make a call fail, but the program still finds the symbol. Programs that look for symbols one by one need
//! to be tried on a library without them. The names in the dynamic string table are changed in place, so `dlsym` finds
//! the hash it looks for and then another name.

use std::ops::Range;

/// What replaces the first byte of a hidden name: no symbol of NVML starts with it.
const HIDDEN: u8 = b'_';

/// ELF identification: 64-bit, little-endian, which is what the mock is built as.
const IDENT: &[u8] = b"\x7fELF\x02\x01";

/// Offsets in the ELF header: section header table, size of its entries, number of its entries.
const SECTIONS_AT: usize = 0x28;
const SECTION_SIZE_AT: usize = 0x3A;
const SECTION_COUNT_AT: usize = 0x3C;

/// Offsets in a section header: type, place in the file, size, index of the section it refers to.
const TYPE_AT: usize = 0x04;
const PLACE_AT: usize = 0x18;
const SIZE_AT: usize = 0x20;
const LINK_AT: usize = 0x28;

/// `SHT_DYNSYM`: the symbols that `dlsym` sees.
const DYNAMIC_SYMBOLS: u32 = 11;

/// Bytes of an `Elf64_Sym`, which begins with the offset of its name.
const SYMBOL_SIZE: usize = 24;

/// Why symbols could not be hidden.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not what the mock is built as.
    #[error("cannot hide symbols: the file is no 64-bit little-endian ELF library with dynamic symbols")]
    NotALibrary,
    /// The library never had this symbol.
    #[error("cannot hide {0}: the library exports no such symbol")]
    NoSuchSymbol(String),
    /// The linker stored another name as the tail of this one, and both would change.
    #[error("cannot hide {0}: its name shares storage with {1}")]
    Shared(String, String),
}

/// Hides symbols of a library, given as its file's content. Nothing changes on an error.
pub fn hide_symbols(elf: &mut [u8], names: &[&str]) -> Result<(), Error> {
    let symbols = symbols(elf).ok_or(Error::NotALibrary)?;
    let mut first_bytes = Vec::new();
    for name in names {
        let at = symbols.iter().find(|symbol| &elf[symbol.start..symbol.end] == name.as_bytes());
        let hidden = at.ok_or_else(|| Error::NoSuchSymbol((*name).to_owned()))?;
        let shares = |symbol: &&Range<usize>| symbol.start != hidden.start && symbol.contains(&hidden.start);
        if let Some(other) = symbols.iter().find(shares) {
            let other = String::from_utf8_lossy(&elf[other.clone()]).into_owned();
            return Err(Error::Shared((*name).to_owned(), other));
        }
        first_bytes.push(hidden.start);
    }
    for at in first_bytes {
        elf[at] = HIDDEN;
    }
    Ok(())
}

/// Where in the file the name of each dynamic symbol is.
fn symbols(elf: &[u8]) -> Option<Vec<Range<usize>>> {
    elf.starts_with(IDENT).then_some(())?;
    let table = number(elf, SECTIONS_AT, 8)?;
    let (size, count) = (number(elf, SECTION_SIZE_AT, 2)?, number(elf, SECTION_COUNT_AT, 2)?);
    let section = |index: usize| table.checked_add(index.checked_mul(size)?);
    let dynamic =
        (0..count).filter_map(section).find(|at| number(elf, at + TYPE_AT, 4) == Some(DYNAMIC_SYMBOLS as usize))?;
    let strings = section(number(elf, dynamic + LINK_AT, 4)?)?;
    let strings = number(elf, strings + PLACE_AT, 8)?;
    let first = number(elf, dynamic + PLACE_AT, 8)?;
    let count = number(elf, dynamic + SIZE_AT, 8)? / SYMBOL_SIZE;
    let name = |index: usize| {
        let start = strings.checked_add(number(elf, first + index * SYMBOL_SIZE, 4)?)?;
        let length = elf.get(start..)?.iter().position(|byte| *byte == 0)?;
        Some(start..start + length)
    };
    (0..count).map(name).collect()
}

/// A little-endian number of some bytes.
fn number(elf: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let slice = elf.get(at..at.checked_add(bytes)?)?;
    Some(slice.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_is_refused() {
        assert_eq!(hide_symbols(&mut [], &["nvmlInit"]), Err(Error::NotALibrary));
        assert_eq!(hide_symbols(&mut b"\x7fELF\x02\x01".to_vec(), &["nvmlInit"]), Err(Error::NotALibrary));
        assert_eq!(hide_symbols(&mut vec![0xFF; 4096], &["nvmlInit"]), Err(Error::NotALibrary));
    }
}
