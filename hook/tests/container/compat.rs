//! The image's own CUDA compatibility libraries.

use std::process::Command;

use crate::scene::{LIBRARY, Scene, program};

const VERSION: &str = "590.44.01";

/// As the package `cuda-compat-13-1` is laid out, behind the link that all CUDA images have.
fn image() -> Scene {
    let scene = Scene::new();
    for (library, soname) in [("libcuda", "1"), ("libnvidia-ptxjitcompiler", "1"), ("libnvidia-nvvm", "4")] {
        scene.write(&format!("/usr/local/cuda-13.1/compat/{library}.so.{VERSION}"), b"");
        scene.link(&format!("/usr/local/cuda-13.1/compat/{library}.so.{soname}"), format!("{library}.so.{VERSION}"));
    }
    scene.link("/usr/local/cuda", "cuda-13.1");
    scene
}

/// SONAME and path of all libraries in the cache.
fn found(scene: &Scene) -> Option<Vec<(String, String)>> {
    let output =
        Command::new(program("ldconfig")?).arg("-p").arg("-C").arg(scene.at("/etc/ld.so.cache")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let entries = text.lines().filter_map(|line| line.trim().split_once(" => "));
    let soname = |text: &str| text.split_whitespace().next().unwrap().to_owned();
    Some(entries.map(|(name, path)| (soname(name), path.to_owned())).collect())
}

#[test]
fn a_newer_image_runs_with_its_own_libraries() {
    let scene = image();
    scene.run(&[LIBRARY, "--cuda-compat=580.105.08"]).succeeds();
    assert_eq!(scene.read("/etc/ld.so.conf.d/00-gpu-dra.conf"), "/usr/local/cuda/compat\n/usr/lib64\n");
    let Some(found) = found(&scene) else { return };
    let path = |soname: &str| -> Vec<&str> {
        found.iter().filter(|(name, _)| name == soname).map(|(_, path)| path.as_str()).collect()
    };
    assert_eq!(path("libcuda.so.1"), ["/usr/local/cuda/compat/libcuda.so.1"]);
    assert_eq!(path("libnvidia-nvvm.so.4"), ["/usr/local/cuda/compat/libnvidia-nvvm.so.4"]);
}

#[test]
fn a_host_that_is_as_new_runs_with_the_hosts_libraries() {
    for host in ["590.10", "600.1.1"] {
        let scene = image();
        scene.run(&[LIBRARY, &format!("--cuda-compat={host}")]).succeeds();
        assert_eq!(scene.read("/etc/ld.so.conf.d/00-gpu-dra.conf"), "/usr/lib64\n");
        let Some(found) = found(&scene) else { return };
        assert_eq!(found, [("libcuda.so.1".to_owned(), "/usr/lib64/libcuda.so.1".to_owned())]);
    }
}

#[test]
fn without_the_option_the_image_does_not_decide() {
    let scene = image();
    scene.run(&[LIBRARY]).succeeds();
    assert_eq!(scene.read("/etc/ld.so.conf.d/00-gpu-dra.conf"), "/usr/lib64\n");
}

#[test]
fn an_image_that_needs_none_of_the_hosts_libraries_gets_its_own() {
    let scene = image();
    scene.run(&["--cuda-compat=580.105.08"]).succeeds();
    assert_eq!(scene.read("/etc/ld.so.conf.d/00-gpu-dra.conf"), "/usr/local/cuda/compat\n");
}
