//! What the hook costs a container's start: one process, against five that do its steps one by one, as specs do that were
//! made for NVIDIA's hook. The five are this same program, so that the ratio is that of one process to five and not of
//! one language to another.
//!
//! Not a test: nothing here fails because it is slow. Prints a row of the table that hack/bench prints.
//!
//!   hack/bench hook

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on ends here")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// As many as the driver of an H100 has.
const LIBRARIES: usize = 45;
const VERSION: &str = "580.105.08";
const DIRECTORY: &str = "/usr/lib/x86_64-linux-gnu";
/// The shortest of so many starts is one that nothing else on the machine got in the way of.
const STARTS: usize = 200;
const QUICK_STARTS: usize = 20;
/// In memory, where there is one: both sides write the same files, and how long a disk takes says nothing about processes.
const MEMORY: &str = "/dev/shm";
/// How much of the five the one may take.
const TARGET: f64 = 0.5;

/// A container as it is when its hooks run, with the loader's cache of this machine.
struct Container(tempfile::TempDir);

// === impl Container ===

impl Container {
    fn new() -> Self {
        let memory = tempfile::tempdir_in(MEMORY);
        let container = Self(memory.or_else(|_| tempfile::tempdir()).unwrap());
        let root = container.0.path().join("rootfs");
        fs::create_dir_all(root.join("etc/ld.so.conf.d")).unwrap();
        let directory = root.join(DIRECTORY.trim_start_matches('/'));
        fs::create_dir_all(&directory).unwrap();
        for index in 0..LIBRARIES {
            fs::write(directory.join(format!("libnvidia-{index}.so.{VERSION}")), "").unwrap();
        }
        // Without one the image is a small one, and both sides have less to do.
        let _ = fs::copy("/etc/ld.so.cache", root.join("etc/ld.so.cache"));
        fs::write(container.0.path().join("config.json"), r#"{"root": {"path": "rootfs"}}"#).unwrap();
        container
    }

    /// How long these processes take, one after the other.
    fn start(&self, hook: &Path, processes: &[&[String]]) -> Duration {
        let state = format!(r#"{{"bundle": "{}"}}"#, self.0.path().display());
        let begin = Instant::now();
        for arguments in processes {
            let mut command = Command::new(hook);
            command.arg("create-container").args(*arguments).stdin(Stdio::piped()).env_clear();
            let mut process = command.spawn().unwrap();
            process.stdin.take().unwrap().write_all(state.as_bytes()).unwrap();
            assert!(process.wait().unwrap().success());
        }
        begin.elapsed()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = arguments.iter().position(|argument| argument == "--hook").map(|at| PathBuf::from(&arguments[at + 1]));
    let hook = given.unwrap_or_else(|| env!("CARGO_BIN_EXE_gpu-dra-hook").into());
    let starts = if arguments.iter().any(|argument| argument == "--quick") { QUICK_STARTS } else { STARTS };

    let name = |index: usize| format!("{DIRECTORY}/libnvidia-{index}.so");
    let libraries: Vec<_> =
        (0..LIBRARIES).map(|index| format!("--library=libnvidia-{index}.so.1={}.{VERSION}", name(index))).collect();
    let links: Vec<_> =
        (0..LIBRARIES).map(|index| format!("--link=libnvidia-{index}.so.{VERSION}={}.1", name(index))).collect();
    let graphics: Vec<_> = (0..3).map(|index| format!("--link=libnvidia-{index}.so.1={}", name(index))).collect();
    let compat = vec![format!("--cuda-compat={VERSION}")];
    let params = vec!["--mask-params".to_owned()];
    let one = [&graphics[..], &libraries, &compat, &params].concat();
    let five: [&[String]; 5] = [&graphics, &links, &compat, &libraries, &params];

    let (mut one_takes, mut five_take) = (Duration::MAX, Duration::MAX);
    // In turns, so that a slow minute of the machine slows both.
    for _ in 0..starts {
        one_takes = one_takes.min(Container::new().start(&hook, &[&one]));
        five_take = five_take.min(Container::new().start(&hook, &five));
    }
    let ratio = one_takes.as_secs_f64() / five_take.as_secs_f64();
    let verdict = if ratio <= TARGET { "met" } else { "**missed**" };
    println!(
        "| one container's hook | {} | five processes {} | {ratio:.2} | ≤ {TARGET:.1} | {verdict} |",
        ms(one_takes),
        ms(five_take)
    );
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}
