//! Which container this is about: the OCI state that the runtime writes to a hook's standard input, and the bundle that
//! it names. Both come from the runtime, which is trusted; they are bounded because a mistake could be large too.
//!
//! ```text
//!  stdin: {"bundle": …, "root": … (crun)} ──▶ <bundle>/config.json: {"root": {"path": …}} ──▶ path of the root
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A state is some hundred bytes and the container's annotations; a configuration can bring a long seccomp profile.
const MAX_BYTES: u64 = 16 << 20;

/// It cannot be known where the container's root file system is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot read {from}")]
    Unreadable {
        from: String,
        #[source]
        source: io::Error,
    },
    #[error("{from} has more than {MAX_BYTES} bytes, which no container needs")]
    Long { from: String },
    #[error("{from} is not what the OCI runtime specification says: {reason}")]
    Malformed { from: String, reason: serde_json::Error },
    #[error("{from} names no root file system; this hook is for containers of Linux")]
    Rootless { from: String },
}

/// What matters of the state.
#[derive(Deserialize)]
struct State {
    bundle: PathBuf,
    /// Not in the specification: crun says where the root really is.
    root: Option<PathBuf>,
}

/// What matters of `config.json`.
#[derive(Deserialize)]
struct Config {
    root: Option<Root>,
}

#[derive(Deserialize)]
struct Root {
    path: PathBuf,
}

/// The path, on the host, of the container's root file system.
pub(crate) fn root(state: impl Read) -> Result<PathBuf, Error> {
    let state: State = parse(state, || "the container's state, on standard input,".to_owned())?;
    if let Some(root) = state.root.filter(|root| root.is_absolute()) {
        return Ok(root);
    }
    let path = state.bundle.join("config.json");
    let name = || path.display().to_string();
    let file = File::open(&path).map_err(|source| Error::Unreadable { from: name(), source })?;
    let config: Config = parse(file, name)?;
    let root = config.root.ok_or_else(|| Error::Rootless { from: name() })?;
    Ok(Path::join(&state.bundle, root.path))
}

fn parse<T: DeserializeOwned>(from: impl Read, name: impl Fn() -> String) -> Result<T, Error> {
    let mut bytes = Vec::new();
    let read = from.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    let read = read.map_err(|source| Error::Unreadable { from: name(), source })?;
    if read as u64 > MAX_BYTES {
        return Err(Error::Long { from: name() });
    }
    serde_json::from_slice(&bytes).map_err(|reason| Error::Malformed { from: name(), reason })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn bundle(config: &str) -> (tempfile::TempDir, String) {
        let bundle = tempfile::tempdir().unwrap();
        fs::write(bundle.path().join("config.json"), config).unwrap();
        let state = format!(r#"{{"ociVersion": "1.0.2", "id": "a", "pid": 1, "bundle": {:?}}}"#, bundle.path());
        (bundle, state)
    }

    #[test]
    fn the_root_is_relative_to_the_bundle_or_absolute() {
        let (directory, state) = bundle(r#"{"root": {"path": "rootfs", "readonly": true}, "process": {}}"#);
        assert_eq!(root(state.as_bytes()).unwrap(), directory.path().join("rootfs"));
        let (_directory, state) = bundle(r#"{"root": {"path": "/var/lib/rootfs"}}"#);
        assert_eq!(root(state.as_bytes()).unwrap(), Path::new("/var/lib/rootfs"));
    }

    #[test]
    fn a_state_that_says_where_the_root_is_needs_no_bundle() {
        let state = br#"{"bundle": "/nowhere", "root": "/var/lib/rootfs"}"#;
        assert_eq!(root(&state[..]).unwrap(), Path::new("/var/lib/rootfs"));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let (directory, state) = bundle(r#"{"ociVersion": "1.0.2"}"#);
        let config = directory.path().join("config.json").display().to_string();
        let rootless = format!("{config} names no root file system; this hook is for containers of Linux");
        assert_eq!(root(state.as_bytes()).unwrap_err().to_string(), rootless);
        fs::remove_file(&config).unwrap();
        assert_eq!(root(state.as_bytes()).unwrap_err().to_string(), format!("cannot read {config}"));
        let error = root(&b"{"[..]).unwrap_err().to_string();
        assert!(error.starts_with("the container's state, on standard input, is not what the OCI runtime"), "{error}");
        let error = root(io::repeat(b' ')).unwrap_err().to_string();
        assert!(error.contains("has more than 16777216 bytes"), "{error}");
    }
}
