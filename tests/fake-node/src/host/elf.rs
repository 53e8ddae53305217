//! The smallest shared object that the tools of a real machine accept.
//!
//! A driver library in this tree is looked at in three ways: a CDI generator and `ldconfig` read its `DT_SONAME`, and a
//! container's loader may map it. For that it needs no code, only a dynamic section:
//!
//! ```text
//!  ELF header ── 3 program headers ── symbol table (the null symbol) ── hash table (empty) ── strings ── dynamic
//!                LOAD, all of it                                                               └ "\0<soname>\0"
//!                DYNAMIC, the last part
//!                GNU_STACK, not executable
//! ```
//!
//! Numbers are from the System V ABI, `elf(5)`.

/// `e_machine` of the machine this runs on.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
const FILE_HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const SYMBOL: u64 = 24;
/// The largest page size of the two machines (aarch64), so that the segment can be mapped on both.
const PAGE: u64 = 0x1_0000;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_STACK: u32 = 0x6474_e551;
const READ_WRITE: u32 = 6;

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;

/// A shared object of this machine's architecture that defines nothing but its SONAME.
pub(super) fn shared_object(soname: &str) -> Vec<u8> {
    let symbols = FILE_HEADER + 3 * PROGRAM_HEADER;
    let hash = symbols + SYMBOL;
    // One bucket, one chain, both empty.
    let hash_table = [1u32, 1, 0, 0];
    let strings = hash + 16;
    // The first string is the empty one; the SONAME follows.
    let strings_size = 1 + soname.len() as u64 + 1;
    let dynamic = (strings + strings_size).next_multiple_of(8);
    let entries = [
        (DT_SONAME, 1),
        (DT_HASH, hash),
        (DT_STRTAB, strings),
        (DT_SYMTAB, symbols),
        (DT_STRSZ, strings_size),
        (DT_SYMENT, SYMBOL),
        (DT_NULL, 0),
    ];
    let dynamic_size = 16 * entries.len() as u64;
    let end = dynamic + dynamic_size;

    let mut out = Bytes(Vec::new());
    // 64-bit, little-endian, version 1, System V.
    out.raw(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.u16(3).u16(MACHINE).u32(1); // ET_DYN, version 1
    out.u64(0).u64(FILE_HEADER).u64(0); // no entry point, program headers, no sections
    out.u32(0).u16(64).u16(56).u16(3); // flags, header sizes and count
    out.u16(64).u16(0).u16(0); // no section headers

    // Writable, because glibc before 2.35 relocates the dynamic section in place.
    out.segment(PT_LOAD, 0, end, PAGE);
    out.segment(PT_DYNAMIC, dynamic, dynamic_size, 8);
    out.segment(PT_GNU_STACK, 0, 0, 16);

    out.raw(&[0; 24]); // the null symbol
    for word in hash_table {
        out.u32(word);
    }
    out.raw(b"\0").raw(soname.as_bytes()).raw(b"\0");
    out.0.resize(out.0.len().next_multiple_of(8), 0);
    for (tag, value) in entries {
        out.u64(tag).u64(value);
    }
    out.0
}

/// Little-endian output.
struct Bytes(Vec<u8>);

// === impl Bytes ===

impl Bytes {
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// A program header whose addresses are its file offsets.
    fn segment(&mut self, kind: u32, offset: u64, size: u64, align: u64) {
        self.u32(kind).u32(READ_WRITE).u64(offset).u64(offset).u64(offset).u64(size).u64(size).u64(align);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Standard output and error of a tool, or nothing where the machine lacks it.
    fn run(command: &mut Command) -> Option<String> {
        match command.output() {
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text).into_owned();
                assert!(output.status.success(), "{command:?}: {text}");
                Some(text)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    #[test]
    fn readelf_finds_the_soname_and_nothing_to_warn_about() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcuda.so.580.105.08");
        fs::write(&path, shared_object("libcuda.so.1")).unwrap();
        let Some(text) = run(Command::new("readelf").arg("--all").arg("--wide").arg(&path)) else { return };
        assert!(text.contains("Library soname: [libcuda.so.1]"), "{text}");
        assert!(!text.to_lowercase().contains("warning") && !text.to_lowercase().contains("error"), "{text}");
    }

    #[test]
    fn ldconfig_makes_the_soname_link() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("libcuda.so.580.105.08"), shared_object("libcuda.so.1")).unwrap();
        let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| fs::exists(path).unwrap());
        let Some(ldconfig) = ldconfig else { return };
        run(Command::new(ldconfig).arg("-n").arg(dir.path()));
        let link = fs::read_link(dir.path().join("libcuda.so.1")).unwrap();
        assert_eq!(link.to_str(), Some("libcuda.so.580.105.08"));
    }

    #[test]
    fn the_loader_maps_it_without_complaint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libnvidia-gpucomp.so.580.105.08");
        fs::write(&path, shared_object("libnvidia-gpucomp.so.580.105.08")).unwrap();
        // The loader prints to standard error, and goes on, where it cannot load a library named here.
        let text = run(Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", &path)).unwrap();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        assert!(!text.contains("cannot be preloaded"), "{text}");
    }
}
