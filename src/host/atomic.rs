//! Files that are either the old or the new one, even after a power cut.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Replaces the file at `path`: temporary file, fsync, rename, fsync of the directory.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(directory)?.sync_all()
}
