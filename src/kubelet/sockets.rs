//! The two sockets: what they are called, how they come and how they go.
//!
//! A unix socket leaves its file behind when its process dies, and a bound name cannot be bound again. So a file that
//! nobody answers on is removed before binding, and ours is unlinked when it is dropped, unless a successor has put its
//! own there meanwhile. A listener whose file was removed by somebody else can never be found again: its file is put
//! back.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tracing::{info, warn};

use super::Settings;
use crate::host::atomic;

/// The most bytes in a socket's path: `sun_path` has 108, and the last one ends the string.
const MAX_PATH: usize = 107;

/// Mode of directories that we make. The kubelet makes its own with the same.
const DIR_MODE: u32 = 0o750;

/// Mode of the sockets: to connect means to write.
const SOCKET_MODE: u32 = 0o600;

/// How often a listener looks whether its file is still there. The kubelet withdraws the slices of a plugin that it has
/// not found for 30 s.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Where one instance of the plugin listens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SocketPaths {
    /// In the kubelet's registry.
    pub(super) registrar: PathBuf,
    /// Named to the kubelet by the registrar.
    pub(super) dra: PathBuf,
}

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Longer than the kernel takes.
    #[error(
        "the socket path {path:?} has {} bytes and may have {MAX_PATH}: choose a shorter --kubelet-root or --driver-name",
        path.as_os_str().len()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The kubelet resolves it in its own working directory, and protobuf strings are UTF-8.
    #[error("the socket path {path:?} must be absolute and UTF-8: choose another --kubelet-root")]
    Unspeakable {
        /// The path.
        path: PathBuf,
    },
    /// Something else lies where the socket should be.
    #[error("{path:?} is in the way of a socket and is none itself: remove it")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Another process serves it.
    #[error("another process answers on {path:?}: is a second instance of the plugin running on this node?")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A directory cannot be made.
    #[error(
        "cannot make the directory {path:?}: check --kubelet-root, --kubelet-registrar-directory-path and \
         --kubelet-plugins-directory-path"
    )]
    Directory {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file system refuses.
    #[error("cannot {act} {path:?}")]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A socket's file. Unlinked on drop, if it is still the one that we made.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

/// Accepts connections on a socket, and makes it anew when its file was removed. Who holds the file decides for how
/// long.
#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    socket: UnixListener,
    file: Weak<Mutex<SocketFile>>,
}

// === impl SocketPaths ===

impl SocketPaths {
    /// Names the sockets by the rules of the Go helper library, so that kubelets and people find what they know.
    pub(super) fn new(settings: &Settings) -> Result<Self, SocketError> {
        Self::of(settings, settings.pod_uid.as_deref())
    }

    /// Those of another pod of this driver.
    fn of(settings: &Settings, pod_uid: Option<&str>) -> Result<Self, SocketError> {
        let dra = match pod_uid {
            None => "dra.sock".to_owned(),
            Some(uid) => format!("dra-{uid}.sock"),
        };
        let registrar = registrar_path(&settings.registry_dir, &settings.driver, pod_uid);
        let paths = Self { registrar, dra: settings.plugin_dir.join(dra) };
        for path in [&paths.registrar, &paths.dra] {
            if !path.is_absolute() || path.to_str().is_none() {
                return Err(SocketError::Unspeakable { path: path.clone() });
            }
            if !fits(path) {
                return Err(SocketError::TooLong { path: path.clone() });
            }
        }
        Ok(paths)
    }
}

// === impl SocketFile ===

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

// === impl Listener ===

impl Listener {
    /// Listens on `path`, after removing what a dead process left there.
    pub(super) async fn new(path: &Path) -> Result<(Self, Arc<Mutex<SocketFile>>), SocketError> {
        remove_stale(path).await?;
        let (socket, file) = bind(path)?;
        let file = Arc::new(Mutex::new(file));
        Ok((Self { path: path.to_owned(), socket, file: Arc::downgrade(&file) }, file))
    }

    /// The next connection.
    pub(super) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            match timeout(LOOK_EVERY, self.socket.accept()).await {
                Ok(accepted) => return accepted.map(|(stream, _)| stream),
                Err(_) => self.mend(),
            }
        }
    }

    /// Puts the socket's file back where it is missing. Whatever else is there by now is not ours to remove.
    fn mend(&mut self) {
        let Some(file) = self.file.upgrade() else { return };
        if !fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return;
        }
        let path = self.path.display();
        let made = self.path.parent().map_or(Ok(false), make_dir).and_then(|_| bind(&self.path));
        match made {
            Ok((socket, new)) => {
                // The old file before the old socket, which keeps the inode from being given to somebody else.
                *file.lock().unwrap_or_else(PoisonError::into_inner) = new;
                self.socket = socket;
                warn!(%path, "somebody removed the socket; listening on a new one");
            }
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                warn!(%path, error, "somebody removed the socket and it cannot be made again; trying again");
            }
        }
    }
}

/// Makes a directory and those above it, where they are missing; whether it did.
pub(super) fn make_dir(path: &Path) -> Result<bool, SocketError> {
    atomic::make_directory(path, DIR_MODE).map_err(|source| SocketError::Directory { path: path.to_owned(), source })
}

fn bind(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let socket = UnixListener::bind(path).map_err(io_error("listen on", path))?;
    let found = fs::symlink_metadata(path).map_err(io_error("look at", path))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&found) };
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(io_error("set the mode of", path))?;
    Ok((socket, file))
}

/// Waits until no other process is between binding its DRA socket and listening on it, or removes those of the dead:
/// a socket does not answer yet in that moment. It lasts until what is answered is dropped.
pub(super) async fn turn(plugin_dir: &Path) -> Result<File, SocketError> {
    let path = plugin_dir.to_owned();
    let held = tokio::task::spawn_blocking(move || atomic::hold(&path)).await;
    held.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(io_error("lock", plugin_dir))
}

/// Removes the sockets of this driver's instances that were killed, so that the kubelet does not try them any more. An
/// error if one that lives has our own.
///
/// The directory is the driver's own, so a socket there that nobody answers on is that of a dead instance; its name says
/// what the one in the kubelet's registry is called, where the sockets of other drivers are too. An instance that lives
/// answers on its DRA socket from before it is in the registry until it is gone from there.
pub(super) async fn remove_dead(settings: &Settings) -> Result<(), SocketError> {
    let _turn = turn(&settings.plugin_dir).await?;
    is_stale(&SocketPaths::new(settings)?.dra).await?;
    let failed = || io_error("list", &settings.plugin_dir);
    for entry in fs::read_dir(&settings.plugin_dir).map_err(failed())? {
        let name = entry.map_err(failed())?.file_name();
        let Some(paths) = name.to_str().and_then(|name| paths_of(settings, name)) else { continue };
        if !matches!(is_stale(&paths.dra).await, Ok(true)) {
            continue;
        }
        // Last the one that the other is found by.
        for path in [&paths.registrar, &paths.dra] {
            match remove_stale(path).await {
                Ok(true) => info!(path = %path.display(), "removed the socket of an instance that was killed"),
                Ok(false) => {}
                Err(error) => {
                    // The kubelet tries it in vain until somebody has seen to it.
                    let error = &error as &dyn std::error::Error;
                    warn!(error, "cannot remove the socket of an instance that was killed");
                    break;
                }
            }
        }
    }
    Ok(())
}

/// The sockets of the instance whose DRA socket has this name.
fn paths_of(settings: &Settings, dra: &str) -> Option<SocketPaths> {
    let rest = dra.strip_prefix("dra")?.strip_suffix(".sock")?;
    let pod_uid = if rest.is_empty() { None } else { Some(rest.strip_prefix('-')?) };
    SocketPaths::of(settings, pod_uid).ok()
}

/// Removes a socket's file if nobody listens on it; whether it did. An error if somebody listens.
async fn remove_stale(path: &Path) -> Result<bool, SocketError> {
    let stale = is_stale(path).await?;
    if stale {
        fs::remove_file(path).map_err(io_error("remove the stale socket", path))?;
    }
    Ok(stale)
}

/// Whether a socket's file is there and nobody listens on it; an error if somebody does.
async fn is_stale(path: &Path) -> Result<bool, SocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(SocketError::NotASocket { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io_error("look at", path)(error)),
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        // Gone meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // Too busy to take one more.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SocketError::InUse { path: path.to_owned() }),
        Err(error) => Err(io_error("find out who listens on", path)(error)),
        Ok(_) => Err(SocketError::InUse { path: path.to_owned() }),
    }
}

/// The path of the registrar socket. With a pod UID, the name alone may fill it: the next best ones hash a part.
fn registrar_path(dir: &Path, driver: &str, pod_uid: Option<&str>) -> PathBuf {
    let Some(uid) = pod_uid else { return dir.join(format!("{driver}-reg.sock")) };
    let hash = |text: &str, bytes: usize| BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(text)[..bytes]);
    let [full, short, shortest] = [
        format!("{driver}-{uid}-reg.sock"),
        format!("{driver}-{}-reg.sock", hash(uid, 8)),
        format!("dra-{}-reg.sock", hash(&format!("{driver}\0{uid}"), 16)),
    ]
    .map(|name| dir.join(name));
    if fits(&full) {
        full
    } else if fits(&short) {
        short
    } else {
        shortest
    }
}

fn fits(path: &Path) -> bool {
    path.as_os_str().as_bytes().len() <= MAX_PATH
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn io_error(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    move |source| SocketError::Io { act, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
