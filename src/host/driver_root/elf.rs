//! The SONAME of a shared library, read without loading it.
//!
//! Reads what a loader reads (program headers and the dynamic section), a few kilobytes of a file that can have a
//! hundred megabytes. Every offset and size in it is data: nothing is believed before it is checked. Layouts: elf(5).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: [u8; 4] = *b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const DYNAMIC_ENTRY_BYTES: usize = 16;

/// Driver libraries have about ten.
const MAX_PROGRAM_HEADERS: u64 = 256;
/// Driver libraries have about thirty.
const MAX_DYNAMIC_ENTRIES: u64 = 4096;
/// The longest file name on Linux.
const MAX_SONAME_BYTES: u64 = 255;

/// What a file is to the dynamic loader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Elf {
    /// For this word size and byte order; the name that programs ask for, if it has one that can be a file name.
    Native(Option<String>),
    /// For another word size or byte order, for example a 32-bit library.
    Foreign,
    /// Not ELF at all, or damaged.
    Other,
}

/// Reads a file.
pub(super) fn read(path: &Path) -> io::Result<Elf> {
    let file = &File::open(path)?;
    let header = up_to(file, 0, HEADER_BYTES as u64)?;
    if header.len() < HEADER_BYTES || header[..4] != MAGIC {
        return Ok(Elf::Other);
    }
    if header[4] != CLASS_64 || header[5] != LITTLE_ENDIAN {
        return Ok(Elf::Foreign);
    }
    let Some(segments) = Segments::read(file, &header)? else { return Ok(Elf::Other) };
    Ok(Elf::Native(segments.soname(file)?))
}

/// The parts of the program headers that matter here.
struct Segments {
    /// Virtual address, file offset and size of what is loaded.
    loads: Vec<(u64, u64, u64)>,
    /// File offset and size of the dynamic section.
    dynamic: Option<(u64, u64)>,
}

// === impl Segments ===

impl Segments {
    fn read(file: &impl FileExt, header: &[u8]) -> io::Result<Option<Self>> {
        let start = word(header, 32, 8);
        let (size, count) = (word(header, 54, 2), word(header, 56, 2));
        if size != PROGRAM_HEADER_BYTES as u64 || count > MAX_PROGRAM_HEADERS {
            return Ok(None);
        }
        let mut segments = Self { loads: Vec::new(), dynamic: None };
        let table = up_to(file, start, count * size)?;
        for entry in table.chunks_exact(PROGRAM_HEADER_BYTES) {
            let (offset, address, size) = (word(entry, 8, 8), word(entry, 16, 8), word(entry, 32, 8));
            match word(entry, 0, 4) {
                PT_LOAD => segments.loads.push((address, offset, size)),
                PT_DYNAMIC => segments.dynamic = Some((offset, size)),
                _ => {}
            }
        }
        Ok(Some(segments))
    }

    fn soname(&self, file: &impl FileExt) -> io::Result<Option<String>> {
        let Some((start, size)) = self.dynamic else { return Ok(None) };
        let (mut name, mut strings) = (None, None);
        let table = up_to(file, start, size.min(MAX_DYNAMIC_ENTRIES * DYNAMIC_ENTRY_BYTES as u64))?;
        for entry in table.chunks_exact(DYNAMIC_ENTRY_BYTES) {
            match word(entry, 0, 8) {
                DT_NULL => break,
                DT_STRTAB => strings = Some(word(entry, 8, 8)),
                DT_SONAME => name = Some(word(entry, 8, 8)),
                _ => {}
            }
        }
        let (Some(name), Some(strings)) = (name, strings) else { return Ok(None) };
        let Some(offset) = strings.checked_add(name).and_then(|address| self.offset(address)) else { return Ok(None) };
        text(file, offset)
    }

    /// Where in the file a virtual address is.
    fn offset(&self, address: u64) -> Option<u64> {
        self.loads.iter().find_map(|&(start, offset, size)| {
            let within = address.checked_sub(start).filter(|within| *within < size)?;
            offset.checked_add(within)
        })
    }
}

/// A string that ends with a zero and can be a file name.
fn text(file: &impl FileExt, offset: u64) -> io::Result<Option<String>> {
    let bytes = up_to(file, offset, MAX_SONAME_BYTES + 1)?;
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return Ok(None) };
    let plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'/';
    if end == 0 || !bytes[..end].iter().all(plain) || bytes[0] == b'.' {
        return Ok(None);
    }
    Ok(String::from_utf8(bytes[..end].to_vec()).ok())
}

/// What the file has at an offset, at most `length` bytes: few calls, because this is done to every library at every look
/// at the driver.
fn up_to(file: &impl FileExt, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    // An offset that the kernel cannot express (half of 64 bits and more) is beyond the end of any file.
    if offset > u64::MAX / 4 {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// The little-endian number of `size` bytes at `start`, both of which callers choose within `bytes`.
fn word(bytes: &[u8], start: usize, size: usize) -> u64 {
    bytes[start..start + size].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::super::example::shared_object;
    use super::*;

    fn read_bytes(bytes: &[u8]) -> Elf {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        read(file.path()).unwrap()
    }

    #[test]
    fn the_soname_of_a_library_is_read() {
        assert_eq!(read_bytes(&shared_object("libcuda.so.1")), Elf::Native(Some("libcuda.so.1".into())));
    }

    #[test]
    fn the_soname_of_this_machines_own_libc_is_read() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc =
            maps.lines().find_map(|line| line.split_whitespace().last().filter(|path| path.contains("/libc.so")));
        let Some(libc) = libc else { return };
        assert_eq!(read(Path::new(libc)).unwrap(), Elf::Native(Some("libc.so.6".into())));
    }

    #[test]
    fn other_files_are_told_apart() {
        let mut narrow = shared_object("libcuda.so.1");
        narrow[4] = 1;
        assert_eq!(read_bytes(&narrow), Elf::Foreign);
        assert_eq!(read_bytes(b"#!/bin/sh\n"), Elf::Other);
        assert_eq!(read_bytes(b""), Elf::Other);
    }

    #[test]
    fn a_soname_that_is_no_file_name_is_none() {
        for name in ["", "../../etc/passwd", "a b", &"x".repeat(300)] {
            assert_eq!(read_bytes(&shared_object(name)), Elf::Native(None), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn damage_is_never_a_panic(at in 0_usize..400, byte: u8, cut in 0_usize..400) {
            let mut bytes = shared_object("libcuda.so.1");
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut.max(1));
            read_bytes(&bytes);
        }
    }
}
