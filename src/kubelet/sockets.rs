//! The two sockets: what they are called, how they come and how they go.
//!
//! A unix socket leaves its file behind when its process dies, and a bound name cannot be bound again. So a file that
//! nobody answers on is removed before binding, and ours is unlinked when it is dropped, unless a successor has put its
//! own there meanwhile. A listener whose file was removed by somebody else can never be found again: its file is put
//! back.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tracing::warn;

use super::Settings;

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
        let dra = match &settings.pod_uid {
            None => "dra.sock".to_owned(),
            Some(uid) => format!("dra-{uid}.sock"),
        };
        let registrar = registrar_path(&settings.registry_dir, &settings.driver, settings.pod_uid.as_deref());
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
    if path.is_dir() {
        return Ok(false);
    }
    let made = DirBuilder::new().recursive(true).mode(DIR_MODE).create(path);
    made.map_err(|source| SocketError::Directory { path: path.to_owned(), source })?;
    Ok(true)
}

fn bind(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let socket = UnixListener::bind(path).map_err(io_error("listen on", path))?;
    let found = fs::symlink_metadata(path).map_err(io_error("look at", path))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&found) };
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(io_error("set the mode of", path))?;
    Ok((socket, file))
}

/// Removes a socket's file if nobody listens on it; an error if somebody does.
pub(super) async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(SocketError::NotASocket { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("look at", path)(error)),
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // Gone meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // Too busy to take one more.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(SocketError::InUse { path: path.to_owned() });
        }
        Err(error) => return Err(io_error("find out who listens on", path)(error)),
        Ok(_) => return Err(SocketError::InUse { path: path.to_owned() }),
    }
    fs::remove_file(path).map_err(io_error("remove the stale socket", path))
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
mod tests {
    use super::*;

    const POD: &str = "0a1b2c3d-0000-4000-8000-123456789abc";

    fn settings(driver: &str, pod_uid: Option<&str>) -> Settings {
        Settings { pod_uid: pod_uid.map(str::to_owned), ..Settings::under(Path::new("/var/lib/kubelet"), driver) }
    }

    #[test]
    fn sockets_are_named_as_the_kubelets_users_know_them() {
        let plain = SocketPaths::new(&settings("gpu.nvidia.com", None)).unwrap();
        assert_eq!(plain.registrar, Path::new("/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock"));
        assert_eq!(plain.dra, Path::new("/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"));

        let per_pod = SocketPaths::new(&settings("gpu.nvidia.com", Some(POD))).unwrap();
        let name = format!("/var/lib/kubelet/plugins_registry/gpu.nvidia.com-{POD}-reg.sock");
        assert_eq!(per_pod.registrar, Path::new(&name));
        assert_eq!(per_pod.dra, Path::new(&format!("/var/lib/kubelet/plugins/gpu.nvidia.com/dra-{POD}.sock")));
    }

    #[test]
    fn a_long_driver_name_costs_the_pod_uid_and_then_the_driver_name() {
        // Expected values computed with Python's hashlib and base64.
        let name_of = |driver: &str| {
            let settings = Settings { plugin_dir: "/p".into(), ..settings(driver, Some(POD)) };
            let path = SocketPaths::new(&settings).unwrap().registrar;
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        // 34 bytes of directory, 46 of `-<uid>-reg.sock`.
        assert_eq!(name_of(&"a".repeat(27)), format!("{}-{POD}-reg.sock", "a".repeat(27)));
        assert_eq!(name_of(&"a".repeat(28)), format!("{}-4J7TAyG-OL0-reg.sock", "a".repeat(28)));
        assert_eq!(name_of(&"a".repeat(52)), format!("{}-4J7TAyG-OL0-reg.sock", "a".repeat(52)));
        assert_eq!(name_of(&"a".repeat(63)), "dra-wgDlHNKt-V8sfx3mxZlDHA-reg.sock");
    }

    #[test]
    fn a_path_of_107_bytes_fits_and_one_of_108_says_what_to_change() {
        let with_len = |len: usize| Settings {
            plugin_dir: format!("/{}", "p".repeat(len - 1 - "/dra.sock".len())).into(),
            ..settings("gpu.nvidia.com", None)
        };
        assert_eq!(SocketPaths::new(&with_len(107)).unwrap().dra.as_os_str().len(), 107);
        let text = SocketPaths::new(&with_len(108)).unwrap_err().to_string();
        assert!(text.contains("108 bytes") && text.contains("107") && text.contains("--kubelet-root"), "{text}");
    }

    #[test]
    fn the_kubelet_cannot_be_told_a_relative_path() {
        let settings = Settings::under(Path::new("kubelet"), "gpu.nvidia.com");
        assert!(matches!(SocketPaths::new(&settings), Err(SocketError::Unspeakable { .. })));
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead process leaves its socket behind");

        let (_listener, _file) = Listener::new(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        assert!(matches!(Listener::new(&path).await, Err(SocketError::InUse { .. })));
        UnixStream::connect(&path).await.expect("the first listener was not harmed");
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::new(&path).await, Err(SocketError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_somebody_removed_is_put_back_with_its_directory() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("registry/x.sock");
        make_dir(path.parent().unwrap()).unwrap();
        let (mut listener, file) = Listener::new(&path).await.unwrap();
        fs::remove_dir_all(path.parent().unwrap()).unwrap();

        // Nobody can connect, so time passes until it looks.
        let mended = async {
            while !path.exists() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            UnixStream::connect(&path).await
        };
        let (accepted, connected) = tokio::join!(listener.accept(), mended);
        accepted.unwrap();
        connected.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        drop(file);
        assert!(!path.exists(), "the new one is ours to unlink as well");
        listener.mend();
        assert!(!path.exists(), "it stays away once nobody holds the file");
    }

    #[tokio::test]
    async fn a_listener_leaves_the_socket_of_a_successor_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let (mut old, _file) = Listener::new(&path).await.unwrap();
        fs::remove_file(&path).unwrap();
        let (mut new, _new_file) = Listener::new(&path).await.unwrap();
        old.mend();
        let (accepted, connected) = tokio::join!(new.accept(), UnixStream::connect(&path));
        accepted.unwrap();
        connected.unwrap();
    }

    #[tokio::test]
    async fn a_socket_is_unlinked_unless_a_successor_replaced_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let (_listener, file) = Listener::new(&path).await.unwrap();
        drop(file);
        assert!(!path.exists());

        let (_old, file) = Listener::new(&path).await.unwrap();
        fs::remove_file(&path).unwrap();
        let (_new, _new_file) = Listener::new(&path).await.unwrap();
        drop(file);
        assert!(path.exists(), "the successor's socket is not ours to remove");
    }

    #[test]
    fn directories_are_made_for_root_alone() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("plugins/gpu.nvidia.com");
        assert!(make_dir(&dir).unwrap());
        assert!(!make_dir(&dir).unwrap(), "it is there already");
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777 & !0o750, 0);
    }
}
