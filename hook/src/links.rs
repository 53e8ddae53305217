//! The links that a driver's installer makes on a host, and that no runtime mounts: `libcuda.so.1` beside
//! `libcuda.so.580.105.08`, and those that `--link` names.

use crate::args::{Library, Link};
use crate::rootfs::{Error, Rootfs};

/// Makes them all. A library that is not there is an error: its link would be dead, and a program would be told that it
/// has no GPU instead of what is wrong.
pub(crate) fn make(rootfs: &Rootfs, libraries: &[Library], links: &[Link]) -> Result<(), Error> {
    for Library { file, soname } in libraries {
        let missing = || Error::Missing { path: file.to_string() };
        let directory = rootfs.directory(file.directory())?.ok_or_else(missing)?;
        if !directory.has_file(file.name())? {
            return Err(missing());
        }
        if soname != file {
            directory.link(soname.name(), file.name())?;
        }
    }
    for Link { target, place } in links {
        rootfs.make_directory(place.directory())?.link(place.name(), target)?;
    }
    Ok(())
}
