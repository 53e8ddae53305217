//! The mask over `/proc/driver/nvidia/params`.
//!
//! Only the kernel can make a file there, and this kernel has no NVIDIA module. What the hook asks for is a file of procfs
//! that says the right thing, and the environment of a process is one that says anything.

use std::process::{Child, Command, Stdio};

use crate::scene::{Outcome, Scene, is_root, snapshot};

const PARAMS: &str = "/proc/driver/nvidia/params";

/// A process whose environment reads like the kernel module's parameters.
struct Module(Child);

// === impl Module ===

impl Module {
    fn new(params: &str) -> Self {
        let mut command = Command::new("/bin/sleep");
        Self(command.arg("600").env_clear().env("NVIDIA", params).stdin(Stdio::null()).spawn().unwrap())
    }

    /// Runs the hook in a container that has this module, and then a script.
    fn run(&self, scene: &Scene, then: &str) -> Outcome {
        let environ = format!("/proc/{}/environ", self.0.id());
        let script = format!(
            "mount --bind {environ} \"$root{PARAMS}\"; grep -c . /proc/self/mountinfo >\"$root/before\"; \"$@\"; {then}"
        );
        scene.run_in_namespace(&script, &["--mask-params"])
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn scene() -> Scene {
    let scene = Scene::new();
    scene.write(PARAMS, b"");
    scene
}

#[test]
fn programs_in_the_container_read_that_they_make_no_device_nodes() {
    if !is_root("mounting over /proc") {
        return;
    }
    let (scene, module) = (scene(), Module::new("\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"));
    let outcome = module.run(&scene, &format!("cat \"$root{PARAMS}\""));
    assert_eq!(outcome.said, "NVIDIA=\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n\0");
}

#[test]
fn the_mask_is_one_mount_that_cannot_be_written_and_the_root_stays_as_it_was() {
    if !is_root("mounting over /proc") {
        return;
    }
    let (scene, module) = (scene(), Module::new("\nModifyDeviceFiles: 1\n"));
    let then = "after=$(grep -c . /proc/self/mountinfo); echo $((after - $(cat \"$root/before\"))); \
                grep \"$root/proc\" /proc/self/mountinfo | tail -1 | sed 's/.* \\(.params\\) .* - tmpfs [^ ]* \\(r.\\),.*/\\1 \\2/'; ls \"$root/proc/driver/nvidia\"; \
                touch \"$root/proc/driver/nvidia/params\" 2>&1 | grep -o 'Read-only file system'; \
                umount \"$root/proc/driver/nvidia/params\"; tr '\\0' '\\n' <\"$root/proc/driver/nvidia/params\"";
    let before = snapshot(&scene.at("/proc"));
    let outcome = module.run(&scene, then);
    let expected = "1\n/params ro\nparams\nRead-only file system\n\
                    NVIDIA=\nModifyDeviceFiles: 1\n\n";
    assert_eq!(outcome.said, expected);
    assert_eq!(snapshot(&scene.at("/proc")), before);
}

#[test]
fn a_module_that_makes_no_device_nodes_needs_no_mask() {
    if !is_root("mounting over /proc") {
        return;
    }
    let (scene, module) = (scene(), Module::new("\nModifyDeviceFiles: 0\n"));
    let outcome =
        module.run(&scene, "after=$(grep -c . /proc/self/mountinfo); echo $((after - $(cat \"$root/before\")))");
    assert_eq!(outcome.said, "0\n");
}

#[test]
fn the_hook_of_a_second_claim_finds_the_mask_and_adds_none() {
    if !is_root("mounting over /proc") {
        return;
    }
    let (scene, module) = (scene(), Module::new("\nModifyDeviceFiles: 1\n"));
    scene.write("/state", scene.state().as_bytes());
    let then = "\"$@\" <\"$root/state\"; after=$(grep -c . /proc/self/mountinfo); \
                echo $((after - $(cat \"$root/before\"))); grep -a Modify \"$root/proc/driver/nvidia/params\"";
    let outcome = module.run(&scene, then);
    assert_eq!(outcome.said, "1\nModifyDeviceFiles: 0\n");
}

#[test]
fn without_the_kernel_module_there_is_nothing_to_mask() {
    let scene = Scene::new();
    scene.run(&["--mask-params"]).succeeds();
    assert!(!scene.at("/proc").exists());
}

#[test]
fn a_file_that_only_looks_like_the_kernels_is_refused() {
    let scene = Scene::new();
    scene.write(PARAMS, b"ModifyDeviceFiles: 1\n");
    scene.run(&["--mask-params"]).fails("/proc/driver/nvidia/params is not the kernel's");
}

#[test]
fn a_link_on_the_way_is_refused() {
    let scene = Scene::new();
    scene.write("/elsewhere/params", b"ModifyDeviceFiles: 1\n");
    scene.link("/proc/driver/nvidia", "/elsewhere");
    scene.run(&["--mask-params"]).fails("cannot open /proc/driver/nvidia/params");
}
