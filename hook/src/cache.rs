//! What the container's loader knows: `/etc/ld.so.cache`, which `ldconfig` makes from the directories in
//! `/etc/ld.so.conf`.
//!
//! Running `ldconfig` in a container that is not yet there costs namespaces, mounts, a reading of every library of the
//! image, and trust in its files. Only a few names change, so the cache is read, gets ours, and is written anew.
//!
//! ```text
//!  /etc/ld.so.cache ──format──▶ entries ──merge──▶ entries ──format──▶ /etc/ld.so.cache
//!                                          ▲ ours
//! ```
//!
//! An image without a cache gets one with our names alone: the loader then looks into its own directories, as before. So
//! does one with a file that the loader does not take for a cache. What the loader may read and this program cannot is an
//! error: in its place the image's own libraries would be lost.

mod format;
mod order;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::rootfs::{self, Place, Rootfs};

const DIRECTORY: &str = "/etc";
const NAME: &str = "ld.so.cache";
const FILE: &str = "/etc/ld.so.cache";

/// A cache of ten thousand libraries is about one megabyte.
const MAX_BYTES: u64 = 16 << 20;

/// A cache is about a few directories; a hostile one could name a million.
const MAX_DIRECTORIES: usize = 256;

/// A library of the C library of all GNU/Linux systems since 1998, for the processor that this program runs on:
/// `FLAG_ELF_LIBC6` and the ABI, of glibc's `ldconfig.h`.
const FLAGS: u32 = if cfg!(target_arch = "aarch64") { 0x0a03 } else { 0x0303 };

/// Who made the cache, as `ldconfig -p` tells it.
const GENERATOR: &str = concat!("gpu-dra-hook ", env!("CARGO_PKG_VERSION"));

/// A cache, or nothing known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cache<'a> {
    /// In the order in which the loader looks.
    entries: Vec<Entry<'a>>,
    /// Names of the subdirectories of `glibc-hwcaps`, to which an entry's `hwcap` can point.
    hwcaps: Vec<Cow<'a, [u8]>>,
    generator: Option<Cow<'a, [u8]>>,
}

/// One library.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry<'a> {
    flags: u32,
    soname: Cow<'a, [u8]>,
    path: Cow<'a, [u8]>,
    os_version: u32,
    hwcap: u64,
}

/// The cache cannot be added to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Rootfs(#[from] rootfs::Error),
    #[error(
        "cannot add the driver to {FILE}: it has more than {} MiB; run ldconfig when the image is built, or remove the file",
        MAX_BYTES >> 20
    )]
    TooLong,
    #[error(
        "cannot add the driver to {FILE}: it is damaged, or of another kind of machine; run ldconfig when the image is \
         built, or remove the file"
    )]
    NotUnderstood,
}

/// Has the loader find each library, by its name, where it is. Answers which of their directories `ldconfig` would not
/// look into by itself.
pub(crate) fn add<'a>(
    rootfs: &Rootfs,
    libraries: &BTreeMap<&str, &Place>,
    directories: &[&'a str],
) -> Result<Vec<&'a str>, Error> {
    let present = rootfs.read_start(FILE, MAX_BYTES + 1)?;
    let mut cache = match present.as_deref().filter(|file| format::is_cache(file)) {
        None => Cache::default(),
        Some(file) if file.len() as u64 > MAX_BYTES => return Err(Error::TooLong),
        Some(file) => Cache::parse(file).ok_or(Error::NotUnderstood)?,
    };
    cache.forget(libraries);
    // What is left is what the image's own ldconfig has found.
    let known: BTreeSet<_> = cache.directories().iter().filter_map(|directory| rootfs.identity(directory)).collect();
    let is_known = |directory: &str| rootfs.identity(directory).is_some_and(|identity| known.contains(&identity));
    let unknown = directories.iter().copied().filter(|directory| !is_known(directory)).collect();
    cache.put_first(libraries);
    let content = cache.write();
    // A container's root that is used again can be read-only by then.
    if present.as_deref() != Some(&*content) {
        rootfs.make_directory(DIRECTORY)?.write(NAME, &content)?;
    }
    Ok(unknown)
}

// === impl Cache ===

impl<'a> Cache<'a> {
    /// The directories of its libraries.
    fn directories(&self) -> BTreeSet<&str> {
        let mut directories = BTreeSet::new();
        for entry in &self.entries {
            let directory = str::from_utf8(&entry.path).ok().and_then(|path| path.rsplit_once('/'));
            if directories.len() < MAX_DIRECTORIES {
                directories.extend(directory.map(|(directory, _)| directory));
            }
        }
        directories
    }

    /// Drops all libraries with these names: those in better directories for this processor (`glibc-hwcaps`) too, for
    /// none of them fits the kernel's driver.
    fn forget(&mut self, libraries: &BTreeMap<&str, &Place>) {
        let ours = |soname: &[u8]| str::from_utf8(soname).is_ok_and(|soname| libraries.contains_key(soname));
        self.entries.retain(|entry| entry.flags != FLAGS || !ours(&entry.soname));
    }

    /// Adds libraries, each before all that the loader considers equal, as `libcuda.so.01` is to `libcuda.so.1`. The others
    /// stay in the order in which the image's `ldconfig` has put them.
    fn put_first(&mut self, libraries: &BTreeMap<&str, &'a Place>) {
        for place in libraries.values() {
            let soname = place.name().as_bytes();
            let is_before = |entry: &Entry<'_>| order::compare(&entry.soname, soname).is_gt();
            let position = self.entries.iter().position(|entry| !is_before(entry)).unwrap_or(self.entries.len());
            let entry = Entry {
                flags: FLAGS,
                soname: Cow::Borrowed(soname),
                path: Cow::Borrowed(place.as_str().as_bytes()),
                os_version: 0,
                hwcap: 0,
            };
            self.entries.insert(position, entry);
        }
        self.generator = Some(Cow::Borrowed(GENERATOR.as_bytes()));
    }
}

#[cfg(test)]
mod tests;
