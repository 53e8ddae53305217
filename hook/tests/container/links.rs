//! Links beside the mounted libraries, and those that are asked for.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::scene::{FILE, LIBRARY, LINK, Scene, is_root, snapshot};

#[test]
fn a_library_gets_its_soname_and_the_links_that_are_asked_for() {
    let scene = Scene::new();
    let by_path = "--link=../card1=/dev/dri/by-path/pci-0000:3b:00.0-card";
    scene.run(&[LIBRARY, "--link=libcuda.so.1=/usr/lib64/libcuda.so", by_path]).succeeds();
    assert_eq!(scene.target(LINK), "libcuda.so.580.105.08");
    assert_eq!(scene.target("/usr/lib64/libcuda.so"), "libcuda.so.1");
    assert_eq!(scene.target("/dev/dri/by-path/pci-0000:3b:00.0-card"), "../card1");
}

#[test]
fn a_library_that_is_mounted_under_its_soname_needs_no_link() {
    let scene = Scene::new();
    scene.run(&["--library=libcuda.so.580.105.08=/usr/lib64/libcuda.so.580.105.08"]).succeeds();
    assert!(scene.at(FILE).symlink_metadata().unwrap().is_file());
}

#[test]
fn missing_directories_are_made_for_all_to_enter_whatever_the_mask_of_the_runtime_is() {
    let scene = Scene::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 077; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gpu-dra-hook")]);
    shell.args(["create-container", LIBRARY, "--link=a=/opt/deep/er/link"]);
    scene.finish(shell).succeeds();
    for (made, mode) in [("/opt", 0o755), ("/opt/deep/er", 0o755), ("/etc", 0o755), ("/etc/ld.so.cache", 0o644)] {
        assert_eq!(scene.mode(made), mode, "{made}");
    }
}

#[test]
fn an_equal_link_is_kept() {
    let scene = Scene::new();
    scene.link(LINK, "libcuda.so.580.105.08");
    let inode = scene.at(LINK).symlink_metadata().unwrap().ino();
    scene.run(&[LIBRARY]).succeeds();
    assert_eq!(scene.at(LINK).symlink_metadata().unwrap().ino(), inode);
}

#[test]
fn a_link_to_the_driver_of_the_machine_that_built_the_image_is_replaced() {
    let scene = Scene::new();
    scene.write("/usr/lib64/libcuda.so.470.57.02", b"");
    scene.link(LINK, "libcuda.so.470.57.02");
    scene.run(&[LIBRARY]).succeeds();
    assert_eq!(scene.target(LINK), "libcuda.so.580.105.08");
    assert!(scene.at("/usr/lib64/libcuda.so.470.57.02").exists());
}

#[test]
fn a_file_in_the_place_of_a_link_is_moved_aside_and_not_lost() {
    let scene = Scene::new();
    scene.write(LINK, b"of the image");
    scene.run(&[LIBRARY]).succeeds();
    assert_eq!(scene.target(LINK), "libcuda.so.580.105.08");
    assert_eq!(scene.read("/usr/lib64/.libcuda.so.1.image"), "of the image");

    fs::remove_file(scene.at(LINK)).unwrap();
    scene.write(LINK, b"another one");
    scene.run(&[LIBRARY]).fails("cannot move aside, to a name that is taken, /usr/lib64/libcuda.so.1: File exists");
    assert_eq!(scene.read("/usr/lib64/.libcuda.so.1.image"), "of the image");
}

#[test]
fn a_directory_in_the_place_of_a_link_is_left_alone() {
    let scene = Scene::new();
    scene.write("/usr/lib64/libcuda.so.1/file", b"of the image");
    scene
        .run(&[LIBRARY])
        .fails("cannot replace /usr/lib64/libcuda.so.1, which is a directory; remove it from the image");
    assert_eq!(scene.read("/usr/lib64/libcuda.so.1/file"), "of the image");
}

#[test]
fn a_library_that_is_not_there_is_said() {
    let scene = Scene::new();
    for missing in ["/usr/lib64/libcuda.so.581.1", "/usr/lib32/libcuda.so.581.1", "/usr/lib64"] {
        let outcome = scene.run(&[&format!("--library=libcuda.so.1={missing}")]);
        outcome.fails(&format!("{missing} is no file, so the runtime has not mounted it, or a volume hides it"));
    }
}

#[test]
fn a_second_run_changes_nothing() {
    let scene = Scene::new();
    let arguments = [LIBRARY, "--link=libcuda.so.1=/usr/lib64/libcuda.so", "--cuda-compat=580.105.08", "--mask-params"];
    scene.run(&arguments).succeeds();
    let before = snapshot(&scene.root());
    scene.run(&arguments).succeeds();
    assert_eq!(snapshot(&scene.root()), before);
}

#[test]
fn a_root_that_cannot_be_written_is_fine_if_nothing_is_to_be_written() {
    if !is_root("mounting a root read-only") {
        return;
    }
    let scene = Scene::new();
    // The file system itself, and not only its mount.
    let script = "mount -t tmpfs tmpfs \"$root\"/../host/lib; cp -a \"$root\"/. \"$root\"/../host/lib; \
                  mount --bind \"$root\"/../host/lib \"$root\"; mount -o remount,ro \"$root\"; exec \"$@\"";
    scene
        .run_in_namespace(script, &[LIBRARY])
        .fails("the image needs a root file system that the runtime can write to");
    scene.run(&[LIBRARY]).succeeds();
    scene.run_in_namespace(script, &[LIBRARY]).succeeds();
}

#[test]
fn a_root_that_the_runtime_has_mounted_read_only_is_written_to_and_is_then_as_it_was() {
    if !is_root("mounting a root read-only") {
        return;
    }
    let mount = "mount --bind \"$root\" \"$root\"; mount -o remount,bind,ro,nosuid,noatime \"$root\"";
    let look =
        "grep \"$root\" /proc/self/mountinfo | cut -d ' ' -f 6; touch \"$root\"/new 2>&1 | grep -o 'Read-only.*'";
    let scene = Scene::new();
    let script = format!("{mount}; \"$@\"; {look}");
    assert_eq!(scene.run_in_namespace(&script, &[LIBRARY]).said, "ro,nosuid,noatime\nRead-only file system\n");
    assert_eq!(scene.target(LINK), "libcuda.so.580.105.08");

    let scene = Scene::new();
    let script = format!("{mount}; \"$@\" 2>/dev/null || true; {look}");
    let outcome = scene.run_in_namespace(&script, &[LIBRARY, "--library=a=/missing/a"]);
    assert_eq!(outcome.said, "ro,nosuid,noatime\nRead-only file system\n", "also where the work has failed");
}

#[test]
fn a_volume_is_not_written_to() {
    if !is_root("mounting a volume") {
        return;
    }
    let scene = Scene::new();
    scene.make_directory("/etc");
    scene.make_directory("/dev");
    let said = "its directory is a volume, and only the container's own file system may change";
    let root = "mount --bind \"$root\" \"$root\"";
    let on_disk = format!("{root}; mount --bind \"$root\"/../host/etc \"$root\"/etc; exec \"$@\"");
    scene.run_in_namespace(&on_disk, &[LIBRARY]).fails(said);
    // As where a pod has the host's /dev.
    let in_memory = "mount -t tmpfs tmpfs \"$root\"/../host/lib";
    let hosts = format!("{root}; {in_memory}; mount --bind \"$root\"/../host/lib \"$root\"/dev; exec \"$@\"");
    scene.run_in_namespace(&hosts, &["--link=../card1=/dev/dri/link"]).fails(said);
}

#[test]
fn the_file_system_in_memory_that_the_runtime_makes_for_a_container_is_written_to() {
    if !is_root("mounting a file system") {
        return;
    }
    let scene = Scene::new();
    scene.make_directory("/dev");
    let script =
        "mount --bind \"$root\" \"$root\"; mount -t tmpfs tmpfs \"$root\"/dev; \"$@\"; readlink \"$root\"/dev/dri/link";
    let outcome = scene.run_in_namespace(script, &["--link=../card1=/dev/dri/link"]);
    assert_eq!((outcome.code, outcome.said.as_str()), (Some(0), "../card1\n"));
}
