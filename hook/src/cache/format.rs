//! The bytes of `ld.so.cache`: read as the loader reads them, except that one bad offset spoils the whole.
//!
//! ```text
//!  [ "ld.so-1.7.0" and a table that only loaders before 2001 read (ldconfig -c compat), to the next multiple of 8 ]
//!  "glibc-ld.so.cache1.1", number of entries, length of strings, byte order, offset of extensions      48 bytes
//!  entries: flags, offset of SONAME, offset of path, OS version, hwcap                                 24 bytes each
//!  strings, each with a zero at its end
//!  extensions: magic number, number of sections, (tag, flags, offset, size) of each;  sections
//! ```
//!
//! Offsets of strings count from the second header, those of extensions and sections from the beginning of the file.
//! Numbers have the order of bytes of the machine, which is little-endian on all that this is built for.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Cache, Entry};

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const OLD_HEADER_BYTES: usize = 16;
const OLD_ENTRY_BYTES: usize = 12;
const OLD_ALIGNMENT: usize = 8;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
const LITTLE_ENDIAN: u8 = 2;
/// Caches from before 2020 do not say.
const ORDER_NOT_SAID: u8 = 0;

const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
const EXTENSION_ALIGNMENT: usize = 4;
const SECTION_BYTES: usize = 16;
const TAG_GENERATOR: u32 = 0;
const TAG_HWCAPS: u32 = 1;
/// There are two kinds today.
const MAX_SECTIONS: usize = 16;

/// The upper half of a `hwcap` whose lower half is a position in the list of hwcaps, except for ten bits with the level
/// of the instruction set.
const HWCAP_IS_POSITION: u64 = 1 << 30;
const HWCAP_LEVEL: u64 = 0x3ff;

/// The longest path that the kernel takes, with the zero at its end.
const MAX_STRING_BYTES: usize = 4096;
/// Strings can share bytes, so that a small file could describe more than fits in memory.
const MAX_STRINGS_BYTES: usize = 32 << 20;

// === impl Cache ===

impl<'a> Cache<'a> {
    /// Reads a cache; none if any part of it is not as it should be.
    pub(super) fn parse(file: &'a [u8]) -> Option<Self> {
        let mut strings = Strings { bytes: file.get(start(file)?..)?, left: MAX_STRINGS_BYTES };
        let header = strings.bytes.get(..HEADER_BYTES)?.strip_prefix(MAGIC)?;
        if !matches!(header[8] & 3, LITTLE_ENDIAN | ORDER_NOT_SAID) {
            return None;
        }
        let mut cache = Self::default();
        for entry in table(strings.bytes, HEADER_BYTES, number(header, 0)?, ENTRY_BYTES)? {
            cache.entries.push(Entry {
                flags: word(entry, 0)?,
                soname: strings.get(number(entry, 4)?)?,
                path: strings.get(number(entry, 8)?)?,
                os_version: word(entry, 12)?,
                hwcap: u64::from(word(entry, 16)?) | u64::from(word(entry, 20)?) << 32,
            });
        }
        match number(header, 12)? {
            0 => {}
            offset => cache.parse_extensions(file, offset, &mut strings)?,
        }
        let is_known = |hwcap: u64| match hwcap >> 32 & !HWCAP_LEVEL {
            HWCAP_IS_POSITION => (hwcap & 0xffff_ffff) < cache.hwcaps.len() as u64,
            _ => true,
        };
        cache.entries.iter().all(|entry| is_known(entry.hwcap)).then_some(cache)
    }

    fn parse_extensions(&mut self, file: &'a [u8], offset: usize, strings: &mut Strings<'a>) -> Option<()> {
        let count = number(file, offset.checked_add(4)?)?;
        if word(file, offset)? != EXTENSION_MAGIC || count > MAX_SECTIONS {
            return None;
        }
        for section in table(file, offset + 8, count, SECTION_BYTES)? {
            let (start, size) = (number(section, 8)?, number(section, 12)?);
            let content = file.get(start..start.checked_add(size)?)?;
            match word(section, 0)? {
                TAG_GENERATOR => self.generator = Some(Cow::Borrowed(content)),
                TAG_HWCAPS => {
                    self.hwcaps = table(content, 0, size / 4, 4)?
                        .map(|offset| strings.get(number(offset, 0)?))
                        .collect::<Option<_>>()?;
                }
                _ => {}
            }
        }
        Some(())
    }

    /// The bytes of a file, in the format that all loaders since 2001 read.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut strings = Pool::after(HEADER_BYTES + self.entries.len() * ENTRY_BYTES);
        let mut entries = Vec::with_capacity(self.entries.len() * ENTRY_BYTES);
        for entry in &self.entries {
            let path = strings.add(&entry.path);
            // Most paths end with the SONAME, zero included.
            let soname = match entry.path.len().checked_sub(entry.soname.len()) {
                Some(before) if entry.path.ends_with(&entry.soname) => path + length(before),
                _ => strings.add(&entry.soname),
            };
            for word in [entry.flags, soname, path, entry.os_version] {
                entries.extend(word.to_le_bytes());
            }
            entries.extend(entry.hwcap.to_le_bytes());
        }
        let hwcaps: Vec<u8> = self.hwcaps.iter().flat_map(|name| strings.add(name).to_le_bytes()).collect();
        let extensions = strings.next().next_multiple_of(EXTENSION_ALIGNMENT);

        let mut file = MAGIC.to_vec();
        file.extend(length(self.entries.len()).to_le_bytes());
        file.extend(length(strings.bytes.len()).to_le_bytes());
        file.extend([LITTLE_ENDIAN, 0, 0, 0]);
        file.extend(length(extensions).to_le_bytes());
        file.resize(HEADER_BYTES, 0);
        file.extend(entries);
        file.extend(strings.bytes);
        file.resize(extensions, 0);

        let generator = self.generator.as_deref().map(|text| (TAG_GENERATOR, text));
        let hwcaps = (!hwcaps.is_empty()).then_some((TAG_HWCAPS, &*hwcaps));
        // Numbers first: text would put them out of step.
        let sections: Vec<_> = [hwcaps, generator].into_iter().flatten().collect();
        file.extend(EXTENSION_MAGIC.to_le_bytes());
        file.extend(length(sections.len()).to_le_bytes());
        let mut offset = file.len() + sections.len() * SECTION_BYTES;
        for (tag, content) in &sections {
            for word in [*tag, 0, length(offset), length(content.len())] {
                file.extend(word.to_le_bytes());
            }
            offset += content.len();
        }
        file.extend(sections.iter().flat_map(|(_, content)| *content));
        file
    }
}

/// The strings of a file that is read.
struct Strings<'a> {
    /// From the header on.
    bytes: &'a [u8],
    /// How much more of them is believed.
    left: usize,
}

// === impl Strings ===

impl<'a> Strings<'a> {
    fn get(&mut self, offset: usize) -> Option<Cow<'a, [u8]>> {
        let rest = self.bytes.get(offset..)?;
        let end = rest.iter().take(MAX_STRING_BYTES).position(|byte| *byte == 0)?;
        self.left = self.left.checked_sub(end + 1)?;
        Some(Cow::Borrowed(&rest[..end]))
    }
}

/// The strings of a file that is written, each once.
struct Pool<'a> {
    start: usize,
    bytes: Vec<u8>,
    known: HashMap<&'a [u8], u32>,
}

// === impl Pool ===

impl<'a> Pool<'a> {
    fn after(start: usize) -> Self {
        Self { start, bytes: Vec::new(), known: HashMap::new() }
    }

    fn next(&self) -> usize {
        self.start + self.bytes.len()
    }

    fn add(&mut self, string: &'a [u8]) -> u32 {
        let next = length(self.next());
        let bytes = &mut self.bytes;
        *self.known.entry(string).or_insert_with(|| {
            bytes.extend(string);
            bytes.push(0);
            next
        })
    }
}

/// Whether the loader takes a file for a cache.
pub(super) fn is_cache(file: &[u8]) -> bool {
    file.starts_with(OLD_MAGIC) || file.starts_with(MAGIC)
}

/// Where the header is: at the beginning, or after the table of 2001.
fn start(file: &[u8]) -> Option<usize> {
    if !file.starts_with(OLD_MAGIC) {
        return Some(0);
    }
    let entries = number(file, OLD_MAGIC.len().next_multiple_of(4))?.checked_mul(OLD_ENTRY_BYTES)?;
    OLD_HEADER_BYTES.checked_add(entries)?.checked_next_multiple_of(OLD_ALIGNMENT)
}

/// So many records of so many bytes, if they are all there.
fn table(bytes: &[u8], start: usize, count: usize, size: usize) -> Option<std::slice::ChunksExact<'_, u8>> {
    let end = start.checked_add(count.checked_mul(size)?)?;
    Some(bytes.get(start..end)?.chunks_exact(size))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(word(bytes, at)?).ok()
}

/// A length in this file, which is bounded by what `parse` believes and by what a command line can hold.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
