use std::collections::BTreeSet;

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

/// Leaves a socket behind, as a process that is killed does.
fn die(path: &Path) {
    make_dir(path.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
}

#[tokio::test]
async fn the_sockets_of_dead_pods_are_removed_and_those_of_others_are_not() {
    const LIVE: &str = "0a1b2c3d-0000-4000-8000-00000000beef";
    // Not in TMPDIR: what has room depends on the length of the path.
    let root = tempfile::Builder::new().prefix("s-").tempdir_in("/tmp").unwrap();
    // With a long one, the registrar's name has no room for the pod's.
    for driver in ["gpu.nvidia.com", &"a".repeat(36)] {
        let ours = Settings { pod_uid: Some("new".to_owned()), ..Settings::under(root.path(), driver) };
        let paths = |uid| SocketPaths::of(&ours, uid).unwrap();
        for dead in [paths(None), paths(Some(POD)), paths(Some("new"))] {
            die(&dead.registrar);
            die(&dead.dra);
        }
        // One that is about to be registered, and one that no file in our directory speaks for.
        let _live = Listener::new(&paths(Some(LIVE)).dra).await.unwrap();
        die(&paths(Some(LIVE)).registrar);
        let stranger = ours.registry_dir.join(format!("{driver}-of-another-reg.sock"));
        die(&stranger);
        fs::write(ours.plugin_dir.join("dra-file.sock"), "precious").unwrap();

        remove_dead(&ours).await.unwrap();
        let left = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<BTreeSet<_>>();
        assert_eq!(left(&ours.registry_dir), BTreeSet::from([paths(Some(LIVE)).registrar, stranger]));
        let kept = [paths(Some(LIVE)).dra, ours.plugin_dir.join("dra-file.sock")];
        assert_eq!(left(&ours.plugin_dir), BTreeSet::from(kept));
        fs::remove_dir_all(&ours.registry_dir).unwrap();
    }
}

#[tokio::test]
async fn an_instance_with_our_name_that_lives_stops_the_start() {
    let root = tempfile::Builder::new().prefix("s-").tempdir().unwrap();
    let settings = Settings::under(root.path(), "gpu.nvidia.com");
    make_dir(&settings.plugin_dir).unwrap();
    let _live = Listener::new(&SocketPaths::new(&settings).unwrap().dra).await.unwrap();
    assert!(matches!(settings.move_in().await, Err(SocketError::InUse { .. })));
    Settings { pod_uid: Some(POD.to_owned()), ..settings }.move_in().await.unwrap();
}
