//! The program `fake-node`: exit codes, machines of one's own, and what is left of a node that was ended by a signal.
//!
//! It looks for the plugin and the mock NVML beside itself: `cargo build --workspace` puts them there.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its node has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use topology::Topology;

/// What a plugin's command line has of the node it is for.
const NODE_FLAG: &str = "--kubelet-root=";

/// A directory directly below `/tmp`, wherever others are: the node's own goes into it, and sockets far below that.
fn short_tempdir() -> TempDir {
    tempfile::tempdir_in("/tmp").unwrap()
}

/// The program, making its nodes in a directory that nobody else uses.
fn fake_node(temp: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fake-node"));
    command.args(args).env("TMPDIR", temp.path());
    command
}

/// The exit code of `exec` for a command.
fn exec(command: &[&str]) -> Option<i32> {
    let temp = short_tempdir();
    let args = [&["exec", "--topology", "one-gpu", "--"], command].concat();
    let output = fake_node(&temp, &args).output().unwrap();
    assert_nothing_is_left(&temp, &String::from_utf8_lossy(&output.stderr));
    output.status.code()
}

/// Starts a node and waits for the line on standard output that begins with `ready`.
fn start(temp: &TempDir, args: &[&str], ready: &str) -> Child {
    let mut child = fake_node(temp, args).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.trim_start().starts_with(ready)), "it ended too early");
    assert_eq!(plugins_of(temp.path()), 1);
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn assert_nothing_is_left(temp: &TempDir, told: &str) {
    assert_eq!(plugins_of(temp.path()), 0, "{told}");
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0, "{told}");
}

/// How many running plugins belong to nodes in a directory.
fn plugins_of(dir: &Path) -> usize {
    let flag = format!("{NODE_FLAG}{}/", dir.canonicalize().unwrap().display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&flag)).count()
}

#[test]
fn exec_ends_with_the_exit_code_of_the_command_as_a_shell_does() {
    assert_eq!(exec(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(exec(&["sh", "-c", "kill -TERM $$"]), Some(128 + 15));
    assert_eq!(exec(&["/nowhere/at-all"]), Some(127));
    assert_eq!(exec(&["/"]), Some(126));
}

#[test]
fn a_node_that_is_told_to_end_takes_its_plugin_and_its_directory_with_it() {
    for told in [Signal::INT, Signal::TERM, Signal::HUP] {
        let temp = short_tempdir();
        let mut node = start(&temp, &["run", "--topology", "one-gpu"], "tail -f");
        signal(&node, told);
        assert_eq!(node.wait().unwrap().code(), Some(0), "{told:?}");
        assert_nothing_is_left(&temp, &format!("{told:?}"));
    }
}

#[test]
fn a_command_gets_the_signal_that_its_node_got() {
    let temp = short_tempdir();
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut node = start(&temp, &["exec", "--topology", "one-gpu", "--", "sh", "-c", script], "ready");
    signal(&node, Signal::TERM);
    assert_eq!(node.wait().unwrap().code(), Some(9));
    assert_nothing_is_left(&temp, "exec");
}

#[test]
fn a_machine_of_ones_own_is_built_and_left() {
    let temp = short_tempdir();
    let file = temp.path().join("mine.json");
    let mut topology = Topology::builtin("one-gpu").unwrap();
    topology.system.driver_version = "580.1.2".to_owned();
    fs::write(&file, serde_json::to_string(&topology).unwrap()).unwrap();
    let host = |dir: &str| {
        let dir = temp.path().join(dir);
        let args = ["host", "--layout", "gke", "--topology", file.to_str().unwrap(), dir.to_str().unwrap()];
        fake_node(&temp, &args).output().unwrap()
    };
    assert!(host("m").status.success());
    assert!(temp.path().join("m/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.580.1.2").is_file());
    assert!(temp.path().join("m/nvml/state.json").is_file());
    let again = host("m");
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"));

    fs::write(&file, "{").unwrap();
    let damaged = host("d");
    let told = String::from_utf8_lossy(&damaged.stderr);
    assert!(told.contains("mine.json: the topology is not valid JSON of the expected shape: EOF"), "{told}");
    assert!(!temp.path().join("d").exists());
}

#[test]
fn an_unknown_machine_is_a_mistake_on_the_command_line() {
    let output = fake_node(&short_tempdir(), &["run", "--topology", "dgx-9"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the built-in ones are one-gpu, "));
}

#[test]
fn an_administrator_partitions_a_node_that_is_up() {
    let temp = short_tempdir();
    let dir = temp.path().join("n");
    let dir = dir.to_str().unwrap();
    let built = fake_node(&temp, &["host", "--topology", "dgx-a100-40gb", dir]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mig = |args: &[&str]| {
        let output = fake_node(&temp, &["mig"]).args(args).env("FAKE_NODE_DIR", dir).output().unwrap();
        let (told, complaint) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        if output.status.success() { Ok(told) } else { Err(complaint) }
    };
    assert!(mig(&["create", "1", "3g.20gb"]).unwrap_err().contains("MIG mode is off"));
    assert!(mig(&["on", "1"]).unwrap().contains("after a reset"));
    mig(&["reset", "1"]).unwrap();
    let created = mig(&["create", "1", "3g.20gb", "4"]).unwrap();
    assert!(created.contains("GPU instance 1 with compute instance 0, MIG-"), "{created}");
    assert!(mig(&["create", "1", "9"]).is_ok());
    assert!(mig(&["create", "1", "19"]).unwrap_err().contains("no room"));
    assert!(mig(&["create", "1", "1g.6gb"]).unwrap_err().contains("it has 1g.5gb, "));
    mig(&["destroy", "1", "2"]).unwrap();
    let listed = mig(&["list"]).unwrap();
    assert!(listed.contains("GPU 0: NVIDIA A100-SXM4-40GB, MIG mode off\nGPU 1: NVIDIA A100-SXM4-40GB, MIG mode on\n"));
    assert!(listed.contains("GPU instance 1  3g.20gb") && listed.contains("room for 4 1g.5gb (id 19)"), "{listed}");
}
