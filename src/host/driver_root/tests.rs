use std::fs;
use std::os::unix::fs::symlink;

use super::example::Tree;
use super::*;

#[test]
fn the_first_candidate_with_a_driver_is_found() {
    let empty = tempfile::tempdir().unwrap();
    let tree = Tree::debian();
    let candidates = [DriverRoot::new("/", empty.path()), tree.root()];
    assert_eq!(find(&candidates, None).unwrap().root, &tree.root());
}

#[test]
fn a_driver_at_a_known_path_is_found_without_configuration() {
    let host = tempfile::tempdir().unwrap();
    Tree::debian_at(&host.path().join("home/kubernetes/bin/nvidia"));
    let candidates = DriverRoot::known(host.path());
    let found = find(&candidates, None).unwrap().root;
    assert_eq!(found.host(), Path::new("/home/kubernetes/bin/nvidia"));
    assert_eq!(found.container(), Path::new("/usr/local/nvidia"));
}

#[test]
fn where_no_driver_was_found_is_said() {
    let empty = tempfile::tempdir().unwrap();
    let error = find(&[DriverRoot::new("/run/nvidia/driver", empty.path())], None).unwrap_err();
    let expected = format!(
        "no NVIDIA driver: neither libnvidia-ml.so.1 nor libcuda.so.1 is in a library directory of \
         /run/nvidia/driver (seen at {})",
        empty.path().display()
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_library_is_found_by_the_name_that_programs_ask_for() {
    let tree = Tree::debian();
    let path = tree.root().library("libnvidia-ml.so.1").unwrap();
    assert!(path.ends_with("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08"), "{path:?}");
    assert_eq!(tree.root().library("libnvidia-ml.so.2"), None);
}

#[test]
fn libraries_that_fit_the_kernel_module_are_taken_before_those_that_somebody_left_behind() {
    let host = tempfile::tempdir().unwrap();
    Tree::debian_at(host.path());
    let library = "run/nvidia/driver/usr/lib64/libcuda.so";
    let write = |version: &str| {
        let path = host.path().join(format!("{library}.{version}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    };
    for version in ["1", "595.91.07"] {
        write(version);
    }
    let candidates = DriverRoot::known(host.path());
    let found = |module| {
        let Choice { root, reason } = find(&candidates, module).unwrap();
        (root.host().display().to_string(), reason)
    };
    assert_eq!(found(Some("595.91.07")), ("/run/nvidia/driver".to_owned(), Reason::FitsModule));
    assert_eq!(found(Some("580.105.08")), ("/".to_owned(), Reason::FitsModule));
    assert_eq!(found(Some("550.1")), ("/".to_owned(), Reason::NoneFitsModule));
    assert_eq!(found(None), ("/".to_owned(), Reason::First));
}

#[test]
fn absolute_links_of_a_directory_mean_the_system_that_it_is_in() {
    let host = tempfile::tempdir().unwrap();
    Tree::debian_at(&host.path().join("nix/store/a-driver"));
    fs::rename(host.path().join("nix/store/a-driver/usr/lib/x86_64-linux-gnu"), host.path().join("nix/store/libs"))
        .unwrap();
    fs::create_dir_all(host.path().join("nix/store/b-graphics/lib")).unwrap();
    for name in ["libcuda.so.1", "libcuda.so.580.105.08"] {
        symlink(format!("/nix/store/libs/{name}"), host.path().join("nix/store/b-graphics/lib").join(name)).unwrap();
    }
    fs::create_dir(host.path().join("run")).unwrap();
    symlink("/nix/store/b-graphics", host.path().join("run/opengl-driver")).unwrap();
    let candidates = DriverRoot::known(host.path());
    let root = find(&candidates, None).unwrap().root;
    assert_eq!(root.host(), Path::new("/run/opengl-driver"));
    let files = root.files(None, &Kernel::default(), false).unwrap();
    let cuda = &files.libraries[0].file;
    assert_eq!(cuda.host, Path::new("/nix/store/libs/libcuda.so.580.105.08"));
    assert_eq!(cuda.container, Path::new("/run/opengl-driver/lib/libcuda.so.580.105.08"));
}
