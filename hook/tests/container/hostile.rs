//! Images that try to make the hook write to the host, wait for ever, or fall over. Each run checks the host.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{self, Command};
use std::thread;
use std::time::Duration;

use crate::scene::{LIBRARY, LINK, Scene, is_root};

/// All that the hook can do to a container.
const ALL: [&str; 4] = [LIBRARY, "--link=libcuda.so.1=/opt/links/libcuda.so", "--cuda-compat=470.1", "--mask-params"];

/// As many `..` as lead to the host's root from anywhere.
fn upwards(scene: &Scene, path: &str) -> String {
    format!("{}{}", "../".repeat(40), scene.host().join(path).display()).replace("//", "/")
}

#[track_caller]
fn works(scene: &Scene) {
    scene.run(&ALL).succeeds();
    assert_eq!(scene.target("/opt/links/libcuda.so"), "libcuda.so.1");
}

#[test]
fn a_link_from_a_directory_of_ours_to_the_host_leads_to_the_same_path_in_the_container() {
    for directory in ["/etc", "/etc/ld.so.conf.d", "/opt", "/opt/links", "/usr/local/cuda"] {
        for way in [|scene: &Scene, path: &str| scene.host().join(path).display().to_string(), upwards] {
            let scene = Scene::new();
            scene.link(directory, way(&scene, "etc"));
            // The container has no such path, so the link is dead there.
            let outcome = scene.run(&ALL);
            if directory == "/usr/local/cuda" {
                outcome.succeeds();
            } else {
                outcome.fails("is a link that leads to nothing");
            }
            // Now it has.
            let inside = scene.at(scene.host().join("etc").to_str().unwrap());
            fs::create_dir_all(&inside).unwrap();
            scene.run(&ALL).succeeds();
            let written = fs::read_dir(inside).unwrap().count();
            assert!(written > 0 || directory == "/usr/local/cuda", "{directory}");
        }
    }
}

#[test]
fn a_directory_that_is_a_link_to_the_root_is_the_containers_root() {
    let scene = Scene::new();
    scene.link("/etc", "/");
    scene.link("/opt", "../../../..");
    scene.run(&ALL).succeeds();
    assert!(scene.at("/ld.so.cache").is_file());
    assert!(scene.at("/ld.so.conf.d/00-gpu-dra.conf").is_file());
    assert!(scene.at("/links/libcuda.so").symlink_metadata().unwrap().is_symlink());
}

#[test]
fn a_file_of_ours_that_is_a_link_to_the_host_is_replaced_and_not_followed() {
    let scene = Scene::new();
    let files = [
        "/etc/ld.so.cache",
        "/etc/ld.so.conf.d/00-gpu-dra.conf",
        "/etc/.gpu-dra-hook",
        "/etc/ld.so.conf.d/.gpu-dra-hook",
        "/etc/ld-musl-x86_64.path",
        "/etc/ld-musl-aarch64.path",
    ];
    for file in files {
        scene.link(file, scene.host().join("etc/ld.so.cache"));
    }
    scene.link(LINK, scene.host().join("lib/libcuda.so.1"));
    scene.link("/opt/links/libcuda.so", upwards(&scene, "lib/libcuda.so.1"));
    scene.link("/usr/lib64/.gpu-dra-hook", scene.host().join("etc/passwd"));
    for arch in ["x86_64", "aarch64"] {
        scene.write(&format!("/lib/ld-musl-{arch}.so.1"), b"");
    }
    works(&scene);
    for file in ["/etc/ld.so.cache", "/etc/ld.so.conf.d/00-gpu-dra.conf"] {
        assert!(scene.at(file).symlink_metadata().unwrap().is_file(), "{file}");
    }
    assert!(scene.read(&format!("/etc/ld-musl-{}.path", std::env::consts::ARCH)).contains("/usr/lib64"));
}

#[test]
fn a_file_of_ours_that_is_another_name_of_a_file_of_the_host_is_replaced_and_not_written_to() {
    let scene = Scene::new();
    let path = format!("/etc/ld-musl-{}.path", std::env::consts::ARCH);
    scene.write(&format!("/lib/ld-musl-{}.so.1", std::env::consts::ARCH), b"");
    scene.make_directory("/etc/ld.so.conf.d");
    let files = ["/etc/ld.so.cache", "/etc/ld.so.conf.d/00-gpu-dra.conf", "/etc/.gpu-dra-hook", &path, LINK];
    for file in files {
        fs::hard_link(scene.host().join("etc/ld.so.cache"), scene.at(file)).unwrap();
    }
    works(&scene);
    assert_eq!(scene.target(LINK), "libcuda.so.580.105.08");
    assert!(scene.read(&path).ends_with("/usr/lib64\n"));
}

#[test]
fn a_dangling_configuration_file_is_not_written_through() {
    let scene = Scene::new();
    scene.link("/etc/ld.so.conf", scene.host().join("etc/new.conf"));
    works(&scene);
    assert!(!scene.host().join("etc/new.conf").exists());
}

#[test]
fn a_library_directory_that_leads_to_the_host_has_no_library() {
    let scene = Scene::new();
    fs::remove_dir_all(scene.at("/usr/lib64")).unwrap();
    scene.link("/usr/lib64", scene.host().join("lib"));
    scene.run(&["--library=libcuda.so.1=/usr/lib64/libcuda.so.580.105.08"]).fails("is no file");
}

#[test]
fn nothing_waits_for_a_fifo() {
    let scene = Scene::new();
    scene.make_directory("/etc/ld.so.conf.d");
    let musl = format!("/lib/ld-musl-{}.so.1", std::env::consts::ARCH);
    scene.write(&musl, b"");
    let path = format!("/etc/ld-musl-{}.path", std::env::consts::ARCH);
    let fifos =
        ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d/00-gpu-dra.conf", &path, LINK, "/etc/.gpu-dra-hook"];
    for fifo in fifos {
        assert!(Command::new("mkfifo").arg(scene.at(fifo)).status().unwrap().success());
    }
    works(&scene);
    assert!(scene.at("/etc/ld.so.cache").is_file());
    assert!(scene.at(&path).is_file());
}

#[test]
fn an_endless_file_is_not_read() {
    let scene = Scene::new();
    scene.make_directory("/etc/ld.so.conf.d");
    scene.write(&format!("/lib/ld-musl-{}.so.1", std::env::consts::ARCH), b"");
    let path = format!("/etc/ld-musl-{}.path", std::env::consts::ARCH);
    for file in ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d/00-gpu-dra.conf", &path] {
        File::create(scene.at(file)).unwrap().set_len(1 << 40).unwrap();
    }
    works(&scene);
    assert!(scene.at("/etc/ld.so.cache").metadata().unwrap().len() < 1000);
}

#[test]
fn a_directory_in_the_place_of_a_file_is_said() {
    for file in ["/etc/ld.so.cache", "/etc/ld.so.conf.d/00-gpu-dra.conf", "/opt/links/libcuda.so"] {
        let scene = Scene::new();
        scene.write(&format!("{file}/inside"), b"of the image");
        scene.run(&ALL).fails(&format!("cannot replace {file}, which is a directory; remove it from the image"));
        assert_eq!(scene.read(&format!("{file}/inside")), "of the image");
    }
}

#[test]
fn a_file_in_the_place_of_a_directory_is_said() {
    for directory in ["/etc", "/etc/ld.so.conf.d", "/opt", "/usr/local/cuda/compat"] {
        let scene = Scene::new();
        scene.write(directory, b"of the image");
        scene.run(&ALL).fails("(mend the image: something on that path is not a directory)");
        assert_eq!(scene.read(directory), "of the image");
    }
}

#[test]
fn links_in_a_circle_are_said() {
    let scene = Scene::new();
    scene.link("/etc", "etc");
    scene.run(&ALL).fails("(mend the image: links on that path lead in a circle, or out of every file system)");
}

#[test]
fn a_name_that_the_hook_would_write_under_first_is_no_obstacle() {
    let scene = Scene::new();
    scene.write("/etc/.gpu-dra-hook", b"of the image");
    scene.write("/usr/lib64/.gpu-dra-hook", b"of the image");
    scene.link(LINK, "elsewhere");
    works(&scene);
    assert!(!scene.at("/etc/.gpu-dra-hook").exists());
    scene.make_directory("/etc/.gpu-dra-hook");
    fs::remove_file(scene.at("/etc/ld.so.cache")).unwrap();
    assert_eq!(scene.run(&ALL).code, Some(1));
}

#[test]
fn a_way_out_through_proc_is_closed() {
    if !is_root("mounting /proc") {
        return;
    }
    let script = "mount --rbind /proc \"$root\"/proc; exec \"$@\"";
    // The last is the root of a process that is not in the container, as that of /proc/1 is.
    for way_out in ["/proc/self/root".to_owned(), "/proc/self/cwd".to_owned(), format!("/proc/{}/root", process::id())]
    {
        let scene = Scene::new();
        scene.make_directory("/proc");
        scene.link("/etc", format!("{way_out}{}", scene.host().join("etc").display()));
        scene.link("/opt", &way_out);
        scene
            .run_in_namespace(script, &[LIBRARY])
            .fails("links on that path lead in a circle, or out of every file system");
        scene.run_in_namespace(script, &["--link=a=/opt/links/b"]).fails("out of every file system");
    }
}

#[test]
fn what_is_no_regular_file_is_not_even_opened() {
    let scene = Scene::new();
    scene.make_directory("/etc");
    // Opening a terminal or a tape does something that cannot be seen here; opening a fifo lets its writer go on.
    let (fifo, gone_on) = (scene.at("/etc/ld.so.cache"), scene.bundle().join("gone-on"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut writer = Command::new("sh");
    let mut writer = writer.args(["-c", ": >\"$0\"; : >\"$1\""]).args([&fifo, &gone_on]).spawn().unwrap();
    thread::sleep(Duration::from_millis(300));
    works(&scene);
    thread::sleep(Duration::from_millis(300));
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(!gone_on.exists());
    assert!(scene.at("/etc/ld.so.cache").is_file());
}

#[test]
fn a_device_without_end_is_not_read() {
    if !is_root("making a device node") {
        return;
    }
    let scene = Scene::new();
    scene.make_directory("/etc");
    let mut mknod = Command::new("mknod");
    assert!(mknod.arg(scene.at("/etc/ld.so.cache")).args(["c", "1", "5"]).status().unwrap().success());
    works(&scene);
    assert!(scene.at("/etc/ld.so.cache").is_file());
}

#[test]
fn a_file_that_no_loader_takes_for_a_cache_makes_way_for_one() {
    let strangers: [&[u8]; 4] = [b"", b"\0", b"glibc-ld.so.cache2.0", &[0xff; 5000]];
    for stranger in strangers {
        let scene = Scene::new();
        scene.write("/etc/ld.so.cache", stranger);
        works(&scene);
        let written = fs::read(scene.at("/etc/ld.so.cache")).unwrap();
        assert!(written.starts_with(b"glibc-ld.so.cache1.1"));
        assert!(written.windows(LINK.len()).any(|window| window == LINK.as_bytes()));
    }
}

#[test]
fn a_cache_that_is_not_understood_is_not_replaced_by_one_without_the_images_libraries() {
    let caches: [&[u8]; 3] =
        [b"glibc-ld.so.cache1.1", b"ld.so-1.7.0\0\xff\xff\xff\xff", b"ld.so-1.7.0\0\0\0\0\0only the table of 2001"];
    for cache in caches {
        let scene = Scene::new();
        scene.write("/etc/ld.so.cache", cache);
        scene
            .run(&ALL)
            .fails("cannot add the driver to /etc/ld.so.cache: it is damaged, or of another kind of machine");
        assert_eq!(fs::read(scene.at("/etc/ld.so.cache")).unwrap(), cache);
    }
    let scene = Scene::new();
    scene.write("/etc/ld.so.cache", b"glibc-ld.so.cache1.1");
    File::options().write(true).open(scene.at("/etc/ld.so.cache")).unwrap().set_len(1 << 40).unwrap();
    scene.run(&ALL).fails("cannot add the driver to /etc/ld.so.cache: it has more than 16 MiB; run ldconfig when");
    assert_eq!(scene.at("/etc/ld.so.cache").metadata().unwrap().len(), 1 << 40);
}

#[test]
fn a_bundle_whose_root_is_missing_or_no_directory_is_said() {
    let scene = Scene::new();
    fs::rename(scene.root(), scene.bundle().join("away")).unwrap();
    scene.run(&ALL).fails("cannot open the container's root file system ");
    fs::write(scene.root(), "").unwrap();
    scene.run(&ALL).fails("cannot open the container's root file system ");
    // A link in the bundle is the runtime's own.
    fs::remove_file(scene.root()).unwrap();
    symlink("away", scene.root()).unwrap();
    works(&scene);
}
