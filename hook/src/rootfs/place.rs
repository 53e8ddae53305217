//! Where something is in a container.

use std::fmt;
use std::str::FromStr;

/// The longest path that the kernel takes, less the zero at its end.
const MAX_BYTES: usize = 4095;
/// The longest file name on Linux.
const MAX_NAME_BYTES: usize = 255;

/// The absolute path of a file in the container, without `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    path: String,
    /// Where the name begins.
    name: usize,
}

/// Text that is no such path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the absolute path of a file, without `.` and `..`")]
pub(crate) struct NotAPlace(String);

// === impl Place ===

impl Place {
    /// The whole path.
    pub(crate) fn as_str(&self) -> &str {
        &self.path
    }

    /// The directory that it is in.
    pub(crate) fn directory(&self) -> &str {
        match self.name {
            1 => "/",
            name => &self.path[..name - 1],
        }
    }

    /// Its name there.
    pub(crate) fn name(&self) -> &str {
        &self.path[self.name..]
    }

    /// A neighbour in the same directory; `name` is one file name.
    pub(crate) fn beside(&self, name: &str) -> Self {
        Self { path: format!("{}{name}", &self.path[..self.name]), name: self.name }
    }
}

impl FromStr for Place {
    type Err = NotAPlace;

    fn from_str(path: &str) -> Result<Self, NotAPlace> {
        let plain = path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_name));
        match path.rfind('/') {
            Some(slash) if plain && path.len() <= MAX_BYTES => Ok(Self { path: path.to_owned(), name: slash + 1 }),
            _ => Err(NotAPlace(path.to_owned())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Whether this can be the name of a file.
pub(crate) fn is_name(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && text.len() <= MAX_NAME_BYTES && !text.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_directory_and_a_name() {
        let place: Place = "/usr/lib64/libcuda.so.1".parse().unwrap();
        assert_eq!((place.directory(), place.name()), ("/usr/lib64", "libcuda.so.1"));
        assert_eq!(place.beside("libcuda.so").to_string(), "/usr/lib64/libcuda.so");
        let top: Place = "/libcuda.so.1".parse().unwrap();
        assert_eq!((top.directory(), top.name()), ("/", "libcuda.so.1"));
        assert_eq!(top.beside("a").to_string(), "/a");
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_no_place() {
        let long = format!("/{}", "x".repeat(256));
        for path in ["", "/", "lib", "../lib", "/a/../b", "/./a", "/a/..", "/a/", "//a", "/a\0b", &long] {
            assert_eq!(path.parse::<Place>(), Err(NotAPlace(path.to_owned())));
        }
    }
}
