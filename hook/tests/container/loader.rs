//! What the container's loader finds: real programs, started in real roots.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::scene::{FILE, LIBRARY, Scene, is_root, program};

const CONFIG: &str = "/etc/ld.so.conf.d/00-gpu-dra.conf";
const DRIVER: &str = "--library=libdriver.so.1=/opt/driver/libdriver.so.580.1";

/// What the program below exits with once it has both libraries.
const BOTH: i32 = 42;
/// What the loader exits with when it misses one.
const MISSING: i32 = 127;

/// A root with a C library, a program, a library of the image, and one that the runtime has mounted.
struct Image(Scene);

// === impl Image ===

impl Image {
    fn new() -> Option<Self> {
        let compiler = program("cc").filter(|_| is_root("changing the root directory"))?;
        let scene = Scene::new();
        let make = |arguments: &[&str], source: &str| {
            let path = scene.bundle().join("source.c");
            fs::write(&path, source).unwrap();
            let status = Command::new(&compiler).current_dir(scene.root()).arg(path).args(arguments).status().unwrap();
            assert!(status.success());
        };
        scene.make_directory("/opt/driver");
        scene.make_directory("/opt/image");
        let soname = "-Wl,-soname,libdriver.so.1";
        make(&["-shared", soname, "-o", "opt/driver/libdriver.so.580.1"], "int driver(void) { return 40; }");
        make(
            &["-shared", "-Wl,-soname,libimage.so.1", "-o", "opt/image/libimage.so.1"],
            "int image(void) { return 2; }",
        );
        make(
            &["opt/driver/libdriver.so.580.1", "opt/image/libimage.so.1", "-o", "program"],
            "int driver(void), image(void); int main(void) { return driver() + image(); }",
        );
        // The loader and the C library, at the paths that they have here.
        let output = Command::new("ldd").arg(scene.at("/program")).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        for path in output.split_whitespace().filter(|word| word.starts_with('/')) {
            scene.write(path, &fs::read(path).unwrap());
            fs::set_permissions(scene.at(path), fs::metadata(path).unwrap().permissions()).unwrap();
        }
        scene.write("/etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n");
        scene.write("/etc/ld.so.conf.d/image.conf", b"/opt/image\n");
        Some(Self(scene))
    }

    fn exit_code(&self) -> Option<i32> {
        let mut chroot = Command::new("chroot");
        chroot
            .arg(self.0.root())
            .arg("/program")
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
            .unwrap()
            .status
            .code()
    }

    /// As a container does whose packages change, or who built the image.
    fn ldconfig(&self, format: &str) {
        let ldconfig = program("ldconfig").unwrap();
        let output = Command::new(ldconfig).args(["-c", format, "-r"]).arg(self.0.root()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_program_finds_the_driver_and_its_own_libraries() {
    for format in ["new", "compat"] {
        let Some(image) = Image::new() else { return };
        image.ldconfig(format);
        assert_eq!(image.exit_code(), Some(MISSING));
        image.0.run(&[DRIVER]).succeeds();
        assert_eq!(image.exit_code(), Some(BOTH), "{format}");
        // It is the cache that does it.
        fs::remove_file(image.0.at("/etc/ld.so.cache")).unwrap();
        assert_eq!(image.exit_code(), Some(MISSING));
    }
}

#[test]
fn a_later_ldconfig_keeps_the_driver() {
    let Some(image) = Image::new() else { return };
    image.ldconfig("new");
    image.0.run(&[DRIVER]).succeeds();
    image.ldconfig("new");
    assert_eq!(image.exit_code(), Some(BOTH));
    assert_eq!(image.0.read(CONFIG), "/opt/driver\n");
}

#[test]
fn an_image_without_a_cache_gets_one_and_keeps_its_loaders_own_directories() {
    let Some(image) = Image::new() else { return };
    fs::remove_dir_all(image.0.at("/etc")).unwrap();
    // Each distribution has another directory that its loader knows by itself.
    for directory in ["/usr/lib", "/usr/lib64"] {
        image.0.make_directory(directory);
        fs::copy(image.0.at("/opt/image/libimage.so.1"), image.0.at(directory).join("libimage.so.1")).unwrap();
    }
    assert_eq!(image.exit_code(), Some(MISSING));
    image.0.run(&[DRIVER]).succeeds();
    assert_eq!(image.exit_code(), Some(BOTH));
    assert_eq!(image.0.read("/etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n");
}

#[test]
fn a_driver_that_the_image_has_kept_from_elsewhere_does_not_win() {
    let Some(image) = Image::new() else { return };
    image.0.write("/opt/image/libdriver.so.1", &fs::read(image.0.at("/opt/image/libimage.so.1")).unwrap());
    fs::copy(image.0.at("/opt/driver/libdriver.so.580.1"), image.0.at("/opt/image/libdriver.so.1")).unwrap();
    image.ldconfig("new");
    assert_eq!(image.exit_code(), Some(BOTH), "the image's own is not found");
    fs::write(image.0.at("/opt/image/libdriver.so.1"), "broken").unwrap();
    assert_eq!(image.exit_code(), Some(MISSING));
    image.0.run(&[DRIVER]).succeeds();
    assert_eq!(image.exit_code(), Some(BOTH));
}

#[test]
fn a_directory_that_ldconfig_looks_into_anyway_keeps_its_place() {
    let Some(ldconfig) = program("ldconfig") else { return };
    let Some(compiler) = program("cc") else { return };
    let scene = Scene::new();
    // The cache has it as /lib64, as on all systems where that is a link.
    scene.link("/lib64", "usr/lib64");
    scene.write("/etc/ld.so.conf", b"/lib64\n");
    let library = scene.at("/usr/lib64/libimage.so.1");
    let mut command = Command::new(compiler);
    command.args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-Wl,-soname,libimage.so.1", "-o"]).arg(library);
    assert!(command.status().unwrap().success());
    assert!(Command::new(ldconfig).arg("-r").arg(scene.root()).status().unwrap().success());
    scene.run(&[LIBRARY]).succeeds();
    assert!(!scene.at(CONFIG).exists());
    assert!(Path::new(&scene.at(FILE)).exists());
}

#[test]
fn musl_gets_the_directory_after_its_own() {
    let arch = std::env::consts::ARCH;
    let path = format!("/etc/ld-musl-{arch}.path");
    for (present, expected) in [
        (None, "/lib:/usr/local/lib:/usr/lib\n/usr/lib64\n"),
        (Some("/lib\n/opt/lib"), "/lib\n/opt/lib\n/usr/lib64\n"),
        (Some("/usr/lib64:/lib\n"), "/usr/lib64:/lib\n"),
    ] {
        let scene = Scene::new();
        scene.write(&format!("/lib/ld-musl-{arch}.so.1"), b"");
        if let Some(present) = present {
            scene.write(&path, present.as_bytes());
        }
        for _again in 0..2 {
            scene.run(&[LIBRARY]).succeeds();
            assert_eq!(scene.read(&path), expected);
        }
    }
    let scene = Scene::new();
    scene.run(&[LIBRARY]).succeeds();
    assert!(!scene.at(&path).exists(), "there is no musl here");
}
