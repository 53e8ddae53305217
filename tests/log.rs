//! The plugin's log must never be what ends it.

use std::fs::File;
use std::process::{Command, Stdio};

#[test]
fn a_log_that_cannot_be_written_costs_its_lines_alone() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_gpu-dra-plugin"))
        .env_clear()
        .args(["--node-name=a", "--http-endpoint=off", "--kubeconfig=/nowhere"])
        .arg(format!("--kubelet-root={}", directory.path().display()))
        .stdin(Stdio::null())
        .stderr(full)
        .status()
        .unwrap();
    // What ends it is the missing kubeconfig, of which it says so in vain; a panic would be 101.
    assert_eq!(status.code(), Some(1));
}
