//! The command line, which our own CDI specs write. It is parsed into what can be acted on: no path in it leads out of
//! the container, none breaks a line of a configuration file.

use std::ffi::OsString;
use std::str::FromStr;

use lexopt::{Arg, Parser, ValueExt};

use crate::compat::Branch;
use crate::rootfs::{NotAPlace, Place, is_name};

pub(crate) const HELP: &str = "\
The one CDI hook of gpu-dra-plugin: makes the NVIDIA driver's files, which a container runtime has mounted into a
container, of use to the programs in it.

Usage: gpu-dra-hook create-container [OPTIONS] < STATE

A container runtime runs it at createContainer, in the container's mount namespace and before pivot_root, with the OCI
state of the container on standard input. All paths are those that the container's programs will see.

Options:
      --library SONAME=PATH   The library that is mounted at PATH is known as SONAME: makes the link SONAME beside it,
                              and has the container's loader find it (/etc/ld.so.cache, /etc/ld.so.conf.d, and on
                              Alpine /etc/ld-musl-<arch>.path)
      --link TARGET=PATH      Make PATH a link to TARGET. A link that is there is replaced, a file is moved aside to
                              .<name>.image, a directory is an error
      --cuda-compat VERSION   The host's driver version: the image's own CUDA compatibility libraries, in
                              /usr/local/cuda/compat, win if they are of a newer driver
      --mask-params           Tell the driver's programs in the container to make no device nodes, so that they cannot
                              make those of other GPUs
  -h, --help                  Print this
  -V, --version               Print the version, and whether this binary is linked statically, as it must be

Nothing of the image is executed, no path leaves the container's root, and nothing is written to a volume. The
environment is not read: some runtimes hand over the image's.

Exit code: 0, or 64 for a wrong command line, or 1, with one line on standard error that says what failed. The
container does not start then.";

/// What to do.
#[derive(Debug)]
pub(crate) enum Command {
    CreateContainer(Work),
    Help,
    Version,
}

/// What is to be done in one container.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) libraries: Vec<Library>,
    pub(crate) links: Vec<Link>,
    pub(crate) driver: Option<Branch>,
    pub(crate) mask_params: bool,
}

/// A mounted library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Library {
    /// Where it is mounted.
    pub(crate) file: Place,
    /// The name that programs ask for, in the same directory.
    pub(crate) soname: Place,
}

/// A link to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) target: String,
    pub(crate) place: Place,
}

/// The command line is wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}; see gpu-dra-hook --help")]
    Usage(lexopt::Error),
    #[error("there is no command {0:?}; the only one is create-container")]
    Command(String),
    #[error("no command; the only one is create-container, see gpu-dra-hook --help")]
    NoCommand,
}

/// A value is not what its option takes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("{0:?} is not SONAME=PATH")]
    Library(String),
    #[error("{0:?} is not TARGET=PATH")]
    Link(String),
    #[error("{0:?} is no file name")]
    Soname(String),
    #[error("the loader cannot be told of the directory {0:?}: its configuration has no quotes")]
    Directory(String),
    #[error(transparent)]
    Place(#[from] NotAPlace),
}

// === impl Error ===

impl From<lexopt::Error> for Error {
    fn from(error: lexopt::Error) -> Self {
        Self::Usage(error)
    }
}

// === impl Command ===

impl Command {
    /// Reads the arguments after the program's name.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Error> {
        let mut parser = Parser::from_args(arguments);
        let mut work = None;
        while let Some(argument) = parser.next()? {
            match (argument, &mut work) {
                (Arg::Long("help") | Arg::Short('h'), _) => return Ok(Self::Help),
                (Arg::Long("version") | Arg::Short('V'), _) => return Ok(Self::Version),
                (Arg::Value(command), None) if command == "create-container" => work = Some(Work::default()),
                (Arg::Value(command), None) => return Err(Error::Command(command.to_string_lossy().into_owned())),
                (Arg::Long("library"), Some(work)) => work.libraries.push(parser.value()?.parse()?),
                (Arg::Long("link"), Some(work)) => work.links.push(parser.value()?.parse()?),
                (Arg::Long("cuda-compat"), Some(work)) => work.driver = Some(parser.value()?.parse()?),
                (Arg::Long("mask-params"), Some(work)) => work.mask_params = true,
                (other, _) => return Err(other.unexpected().into()),
            }
        }
        work.map(Self::CreateContainer).ok_or(Error::NoCommand)
    }
}

// === impl Library ===

impl FromStr for Library {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Self, Unusable> {
        let (soname, path) = text.split_once('=').ok_or_else(|| Unusable::Library(text.to_owned()))?;
        let file: Place = path.parse()?;
        // Whitespace ends a line of ld.so.conf, `#` begins a comment there, and `:` ends a directory in musl's file.
        if file.directory().contains(|c: char| c.is_whitespace() || c.is_control() || "#:,=".contains(c)) {
            return Err(Unusable::Directory(file.directory().to_owned()));
        }
        if !is_name(soname) {
            return Err(Unusable::Soname(soname.to_owned()));
        }
        Ok(Self { soname: file.beside(soname), file })
    }
}

// === impl Link ===

impl FromStr for Link {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Self, Unusable> {
        let unusable = || Unusable::Link(text.to_owned());
        let (target, path) = text.split_once('=').ok_or_else(unusable)?;
        if target.is_empty() || target.contains('\0') {
            return Err(unusable());
        }
        Ok(Self { target: target.to_owned(), place: path.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, Error> {
        Command::parse(line.split_whitespace().map(OsString::from))
    }

    fn work(line: &str) -> Work {
        match parse(line).unwrap() {
            Command::CreateContainer(work) => work,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_whole_contract_is_understood() {
        let work = work(
            "create-container --library libcuda.so.1=/usr/lib64/libcuda.so.580.105.08 --library=b.so=/b.so \
             --link libcuda.so.1=/usr/lib64/libcuda.so --link ../card1=/dev/dri/by-path/pci-0000:3b:00.0-card \
             --cuda-compat 580.105.08 --mask-params",
        );
        assert_eq!(work.libraries.len(), 2);
        assert_eq!(work.libraries[0].soname.to_string(), "/usr/lib64/libcuda.so.1");
        assert_eq!(work.libraries[0].file.to_string(), "/usr/lib64/libcuda.so.580.105.08");
        assert_eq!(work.links[1].target, "../card1");
        assert_eq!(work.links[1].place.to_string(), "/dev/dri/by-path/pci-0000:3b:00.0-card");
        assert_eq!(work.driver, Some("580".parse().unwrap()));
        assert!(work.mask_params);
    }

    #[test]
    fn what_is_not_in_the_contract_is_refused_with_a_sentence() {
        for (line, sentence) in [
            ("", "no command; the only one is create-container, see gpu-dra-hook --help"),
            ("start", "there is no command \"start\"; the only one is create-container"),
            ("--mask-params", "invalid option '--mask-params'; see gpu-dra-hook --help"),
            ("create-container more", "unexpected argument \"more\"; see gpu-dra-hook --help"),
            ("create-container --library", "missing argument for option '--library'; see gpu-dra-hook --help"),
        ] {
            assert_eq!(parse(line).unwrap_err().to_string(), sentence);
        }
    }

    #[test]
    fn values_that_could_mean_something_else_are_refused() {
        for value in [
            "--library=libcuda.so.1",
            "--library=a/b=/usr/lib/b",
            "--library=..=/usr/lib/b",
            "--library==/usr/lib/b",
            "--library=a=usr/lib/b",
            "--library=a=/usr/../b",
            "--library=a=/usr:/b",
            "--library=a=/#usr/b",
            "--link=a",
            "--link==/a",
            "--link=a=b",
            "--link=a=/b/../c",
            "--cuda-compat=new",
            "--mask-params=no",
        ] {
            let error = parse(&format!("create-container {value}")).unwrap_err().to_string();
            assert!(error.ends_with("; see gpu-dra-hook --help"), "{error}");
        }
        let newline = Command::parse(["create-container", "--library=a=/usr\n/b"].map(OsString::from));
        assert!(newline.is_err());
    }
}
