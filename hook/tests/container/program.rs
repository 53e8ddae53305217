//! The program itself: as it is shipped, and as people meet it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::scene::{LIBRARY, LINK, Scene, program};

/// The binary that `hack/build-hook` makes. Takes as long as building a release does.
fn shipped() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(root.join("hack/build-hook")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    root.join(String::from_utf8(output.stdout).unwrap().trim_end())
}

#[test]
fn what_is_shipped_is_small_and_runs_none_of_the_images_code() {
    let Some(compiler) = program("cc") else { return };
    let scene = Scene::new();
    let canary = scene.at("/preloaded");
    let source = scene.bundle().join("preload.c");
    fs::write(
        &source,
        format!(
            "#include <fcntl.h>\n__attribute__((constructor)) void run(void) {{ open(\"{}\", O_CREAT | O_RDWR, 0600); }}",
            canary.display()
        ),
    )
    .unwrap();
    let preload = scene.bundle().join("preload.so");
    assert!(Command::new(compiler).args(["-shared", "-o"]).args([&preload, &source]).status().unwrap().success());
    let start = |hook: &Path| {
        let mut command = Command::new(hook);
        command.args(["create-container", LIBRARY]).env("LD_PRELOAD", &preload).env("LD_LIBRARY_PATH", scene.root());
        scene.finish(command).succeeds();
    };
    // The trap works: what cargo builds for development is linked as any program.
    start(Path::new(env!("CARGO_BIN_EXE_gpu-dra-hook")));
    fs::remove_file(&canary).unwrap();

    let shipped = shipped();
    start(&shipped);
    assert!(!canary.exists(), "the image's library has been loaded");
    assert_eq!(scene.target(LINK), "libcuda.so.580.105.08");
    assert!(fs::metadata(&shipped).unwrap().len() < 1_500_000);
    let version = Command::new(shipped).arg("--version").output().unwrap();
    let expected = format!("gpu-dra-hook {} (static)\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(version.stdout).unwrap(), expected);
}

#[test]
fn help_goes_to_standard_output_and_a_wrong_command_line_to_standard_error() {
    let run = |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_gpu-dra-hook")).args(arguments).output().unwrap();
    for arguments in [&["--help"][..], &["create-container", "-h"]] {
        let output = run(arguments);
        assert!(output.status.success() && output.stderr.is_empty());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("--mask-params") && text.lines().all(|line| line.len() <= 120), "{text}");
    }
    let output = run(&["create-container", "--unknown"]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "gpu-dra-hook: invalid option '--unknown'; see gpu-dra-hook --help\n");
}

#[test]
fn a_reader_that_has_gone_is_no_reason_to_fall_over() {
    let scene = Scene::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" create-container --library=a=/none/b 2>&-", env!("CARGO_BIN_EXE_gpu-dra-hook")]);
    let outcome = scene.finish(shell);
    assert_eq!((outcome.code, outcome.said.as_str()), (Some(1), ""));
}
