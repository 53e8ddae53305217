use std::os::unix::fs::symlink;

use super::super::example::{Tree, VERSION, shared_object};
use super::*;

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

fn find(tree: &Tree) -> DriverFiles {
    tree.root().files(Some(VERSION), &Kernel::default(), false).unwrap()
}

#[test]
fn a_library_has_a_path_on_the_host_one_in_the_container_and_its_soname() {
    let files = find(&Tree::debian());
    let cuda = files.libraries.iter().find(|library| library.is_cuda()).unwrap();
    assert_eq!(cuda.file.host, Path::new("/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08"));
    assert_eq!(cuda.file.container, Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08"));
    let aliases = ["libcuda.so.1", "libcuda.so"].map(|name| Path::new("/usr/lib/x86_64-linux-gnu").join(name));
    assert_eq!(cuda.aliases, aliases);
}

#[test]
fn a_library_whose_soname_is_its_file_name_has_no_alias() {
    let tree = Tree::debian();
    let name = format!("libnvidia-glcore.so.{VERSION}");
    tree.write(&format!("{LIBRARIES}/{name}"), &shared_object(&name));
    let files = find(&tree);
    let core = files.libraries.iter().find(|library| library.file.container.ends_with(&name)).unwrap();
    assert_eq!(core.aliases, Vec::<PathBuf>::new());
}

#[test]
fn directories_that_are_links_to_each_other_count_once() {
    let tree = Tree::debian();
    let count = find(&tree).libraries.len();
    symlink("/usr/lib/x86_64-linux-gnu", tree.path().join("lib64")).unwrap();
    assert_eq!(find(&tree).libraries.len(), count);
}

#[test]
fn a_soname_appears_where_the_host_has_it() {
    let tree = Tree::empty();
    let real = format!("{LIBRARIES}/nvidia/current/libcuda.so.{VERSION}");
    tree.write(&real, &shared_object("libcuda.so.1"));
    fs::create_dir_all(tree.path().join("etc/alternatives")).unwrap();
    symlink(format!("/{real}"), tree.path().join("etc/alternatives/libcuda.so.1")).unwrap();
    symlink("/etc/alternatives/libcuda.so.1", tree.path().join(LIBRARIES).join("libcuda.so.1")).unwrap();
    let files = find(&tree);
    assert_eq!(files.libraries[0].file.container, Path::new("/").join(real));
    assert_eq!(files.libraries[0].aliases[0], Path::new("/").join(LIBRARIES).join("libcuda.so.1"));
}

#[test]
fn libraries_of_another_version_or_word_size_are_left_out() {
    let tree = Tree::debian();
    let count = find(&tree).libraries.len();
    tree.write(&format!("{LIBRARIES}/libnvidia-cfg.so.550.54.15"), &shared_object("libnvidia-cfg.so.1"));
    let mut narrow = shared_object("libcuda.so.1");
    narrow[4] = 1;
    tree.write(&format!("usr/lib/libcuda.so.{VERSION}"), &narrow);
    assert_eq!(find(&tree).libraries.len(), count);
}

#[test]
fn the_version_is_libcudas_where_nvml_does_not_say() {
    let tree = Tree::debian();
    let files = tree.root().files(None, &Kernel::default(), false).unwrap();
    assert_eq!(files.version, VERSION);
}

#[test]
fn a_missing_libcuda_is_named_with_where_it_was_looked_for() {
    let error = Tree::debian().root().files(Some("999.1"), &Kernel::default(), false).unwrap_err();
    let expected = "libcuda.so.999.1 is in none of the library directories /, /usr/lib/x86_64-linux-gnu, /usr/lib \
                    of the driver root /run/nvidia/driver";
    assert_eq!(error.to_string(), expected);
    let error = Tree::empty().root().files(None, &Kernel::default(), false).unwrap_err();
    assert!(error.to_string().starts_with("libcuda.so.<version> is in none"), "{error}");
}

#[test]
fn optional_files_are_found_or_reported_absent() {
    let tree = Tree::debian();
    let files = find(&tree);
    let name = |file: &Mapped| file.container.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(files.binaries.iter().map(name).collect::<Vec<_>>(), ["nvidia-smi"]);
    assert_eq!(files.firmware.iter().map(name).collect::<Vec<_>>(), ["gsp_ga10x.bin", "gsp_tu10x.bin"]);
    assert_eq!(files.sockets[0].container, Path::new("/run/nvidia-persistenced/socket"));
    assert!(files.absent.contains(&"nvidia-debugdump"));
    assert!(files.absent.contains(&"nvidia-fabricmanager/socket"));
}

#[test]
fn what_a_runtime_left_in_the_place_of_a_socket_is_none() {
    let tree = Tree::debian();
    fs::create_dir_all(tree.path().join("run/nvidia-fabricmanager/socket")).unwrap();
    let files = find(&tree);
    assert_eq!(files.sockets.len(), 1);
    assert!(files.absent.contains(&"nvidia-fabricmanager/socket"));
}

#[test]
fn a_program_that_nobody_may_run_is_absent() {
    let tree = Tree::debian();
    let path = tree.path().join("usr/bin/nvidia-smi");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(find(&tree).absent.contains(&"nvidia-smi"));
}

#[test]
fn firmware_is_where_the_kernel_looks_first() {
    let tree = Tree::debian();
    tree.write(&format!("opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin"), b"");
    let firmware_path = Some("/run/nvidia/driver/opt/firmware".into());
    let files = tree.root().files(None, &Kernel { firmware_path, ..Kernel::default() }, false).unwrap();
    let expected = format!("/run/nvidia/driver/opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin");
    assert_eq!(files.firmware[0].host, Path::new(&expected));
}
