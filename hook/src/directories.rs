//! Where libraries are, for the programs that look for themselves: an `ldconfig` that runs later in the container, say
//! after a package was installed, and the loader of musl, which knows no cache.

use crate::rootfs::{Error, Rootfs};

const CONFIG: (&str, &str) = ("/etc", "ld.so.conf");
const CONFIG_CONTENT: &[u8] = b"include /etc/ld.so.conf.d/*.conf\n";
/// The first of its directory in the order of names, which is the order in which they count.
const OURS: (&str, &str) = ("/etc/ld.so.conf.d", "00-gpu-dra.conf");

/// What musl's loader does without a file: `ldso/dynlink.c`.
const MUSL_DEFAULT: &str = "/lib:/usr/local/lib:/usr/lib";
const MAX_BYTES: u64 = 64 << 10;

/// Names directories in `/etc/ld.so.conf.d`.
///
/// Only those that `ldconfig` would not look into: naming `/usr/lib/x86_64-linux-gnu` there would put the distribution's
/// libraries before those in `/usr/local/lib`, and so change what the image's own programs run with.
pub(crate) fn tell_ldconfig(rootfs: &Rootfs, directories: &[&str]) -> Result<(), Error> {
    if directories.is_empty() {
        return Ok(());
    }
    let lines: String = directories.iter().flat_map(|directory| [directory, "\n"]).collect();
    replace(rootfs, OURS, lines.as_bytes())?;
    let directory = rootfs.make_directory(CONFIG.0)?;
    if directory.has(CONFIG.1)? { Ok(()) } else { directory.write(CONFIG.1, CONFIG_CONTENT) }
}

/// Adds directories to those of musl's loader, if the image has one: after its own, so that all it finds today it finds
/// where it did.
pub(crate) fn tell_musl(rootfs: &Rootfs, directories: &[&str]) -> Result<(), Error> {
    let arch = std::env::consts::ARCH;
    if !rootfs.has_file(&format!("/lib/ld-musl-{arch}.so.1")) {
        return Ok(());
    }
    let name = format!("ld-musl-{arch}.path");
    let present = rootfs.read(&format!("/etc/{name}"), MAX_BYTES)?;
    let mut paths = match present {
        Some(present) => present,
        None => MUSL_DEFAULT.into(),
    };
    for directory in directories {
        let is_separator = |byte: &u8| matches!(byte, b':' | b'\n');
        if !paths.split(is_separator).any(|known| known == directory.as_bytes()) {
            if paths.last().is_some_and(|last| !is_separator(last)) {
                paths.push(b'\n');
            }
            paths.extend(directory.as_bytes());
            paths.push(b'\n');
        }
    }
    replace(rootfs, ("/etc", &name), &paths)
}

/// Writes a file unless it has this content.
fn replace(rootfs: &Rootfs, (directory, name): (&str, &str), content: &[u8]) -> Result<(), Error> {
    if rootfs.read(&format!("{directory}/{name}"), MAX_BYTES)?.as_deref() == Some(content) {
        return Ok(());
    }
    rootfs.make_directory(directory)?.write(name, content)
}
