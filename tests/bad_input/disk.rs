//! Disks that are full or read-only, and files that are not what they were.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use fake_node::kubelet::ClaimRef;
use serde_json::Value;

use super::machine::Machine;

/// A file system of its own over a directory, for as long as this lives.
struct Mount(PathBuf);

// === impl Mount ===

impl Mount {
    /// `None` where this process may not mount.
    fn new(path: &Path, options: &str) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(path).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(path.to_owned()))
    }

    fn read_only(path: &Path) -> Option<Self> {
        let mount = Self::new(path, "ro")?;
        assert_eq!(fs::write(path.join("x"), "x").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        Some(mount)
    }

    /// Without a byte of space.
    fn full(path: &Path) -> Option<Self> {
        let mount = Self::new(path, "size=4k,mode=755")?;
        fs::write(path.join("filler"), [0; 4096]).unwrap();
        assert_eq!(fs::write(path.join("x"), "x").unwrap_err().kind(), io::ErrorKind::StorageFull);
        fs::remove_file(path.join("x")).unwrap();
        Some(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A lazy one, because the plugin may be looking at it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Has a claim prepared while a directory cannot be written, then once it can be.
async fn prepare_against(machine: &Machine, directory: &Path, name: &str, reason: &str, mend: impl FnOnce()) {
    let [claim, rival] = [name.to_owned(), format!("{name}-rival")].map(|name| machine.claim(&name, &["gpu-1"]));
    let error = machine.prepare_one(&claim).await.unwrap_err();
    assert!(error.contains(directory.to_str().unwrap()) && error.contains(reason), "{error}");
    mend();
    assert_eq!(machine.on_disk().map(|uids| uids.contains(&claim.uid)), [false; 2], "nothing is left of it");
    assert_eq!(machine.prepare_one(&rival).await, Ok(()), "it does not hold its GPU");
    machine.unprepare_one(&rival).await.unwrap();
    assert_eq!(machine.prepare_one(&claim).await, Ok(()));
    machine.unprepare_one(&claim).await.unwrap();
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_fails_the_claim_and_nothing_else() {
    let machine = Machine::builtin("hgx-a100-4gpu").await;
    let plugin = machine.start_ready().await;
    let held = machine.claim("held", &["gpu-0"]);
    machine.prepare_one(&held).await.unwrap();
    for (name, directory) in [("records", machine.claims_dir()), ("specs", machine.node.host.cdi_dir())] {
        // A file in its place stops root too.
        let away = directory.with_extension("away");
        fs::rename(&directory, &away).unwrap();
        fs::write(&directory, "").unwrap();
        let mend = || {
            fs::remove_file(&directory).unwrap();
            fs::rename(&away, &directory).unwrap();
        };
        prepare_against(&machine, &directory, name, "Not a directory", mend).await;

        if let Some(mount) = Mount::read_only(&directory) {
            let name = format!("{name}-read-only");
            prepare_against(&machine, &directory, &name, "Read-only file system", || drop(mount)).await;
        }
        if let Some(mount) = Mount::full(&directory) {
            let name = format!("{name}-full");
            prepare_against(&machine, &directory, &name, "No space left on device", || drop(mount)).await;
        }
    }
    assert_eq!(machine.prepare_one(&held).await, Ok(()), "what was prepared stays so");
    machine.unprepare_one(&held).await.unwrap();
    assert!(plugin.terminate().await.unwrap().success());
}

#[tokio::test]
async fn each_damaged_record_is_put_aside_at_the_cost_of_its_claim() {
    type Damage = fn(&Path);
    const DAMAGES: [(&str, Damage); 6] = [
        ("truncated", |path| fs::write(path, &fs::read(path).unwrap()[..100]).unwrap()),
        ("flipped", |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[0] ^= 0x20;
            fs::write(path, bytes).unwrap();
        }),
        ("empty", |path| fs::write(path, "").unwrap()),
        ("zeros", |path| fs::write(path, [0; 512]).unwrap()),
        ("directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir_all(path.join("not empty")).unwrap();
        }),
        ("another's", |path| {
            let text = fs::read_to_string(path).unwrap();
            fs::write(path, text.replace(path.file_stem().unwrap().to_str().unwrap(), "another")).unwrap();
        }),
    ];
    let machine = Machine::builtin("dgx-h100").await;
    let plugin = machine.start_ready().await;
    let name = |name: &str| name.replace('\'', "-");
    let damaged: Vec<_> =
        DAMAGES.iter().enumerate().map(|(at, (case, _))| machine.claim(&name(case), &[&format!("gpu-{at}")])).collect();
    let whole = machine.claim("whole", &["gpu-6"]);
    let newer = machine.claim("newer", &["gpu-7"]);
    let all: Vec<_> = damaged.iter().chain([&whole, &newer]).cloned().collect();
    assert_eq!(machine.prepare(&all).await, vec![Ok(()); all.len()]);
    plugin.terminate().await.unwrap();

    for (claim, (_, damage)) in damaged.iter().zip(DAMAGES) {
        damage(&machine.record(claim));
    }
    let mut record: Value = serde_json::from_slice(&fs::read(machine.record(&newer)).unwrap()).unwrap();
    record["version"] = 99.into();
    record["devices"] = "described in another way".into();
    fs::write(machine.record(&newer), record.to_string()).unwrap();

    let plugin = machine.start_ready().await;
    let log = plugin.log().unwrap();
    let mut aside: Vec<_> = damaged.iter().map(|claim| format!("{}.json", claim.uid)).collect();
    aside.sort();
    assert_eq!(Machine::files(machine.claims_dir().join("quarantine")), aside, "{log}");
    assert_eq!(log.matches("moved a damaged claim record aside").count(), DAMAGES.len(), "{log}");
    let mut left = [whole.uid.clone(), newer.uid.clone()];
    left.sort();
    let mut specs: Vec<_> = all.iter().map(|claim| claim.uid.clone()).collect();
    specs.sort();
    assert_eq!(machine.on_disk(), [left.to_vec(), specs], "containers may still run on the spec of a forgotten claim");

    let answers = machine.prepare(&all).await;
    let (last, others) = answers.split_last().unwrap();
    assert_eq!(others, vec![Ok(()); all.len() - 1]);
    let newer_is_named = |answer: &Result<(), String>| {
        let error = answer.as_ref().unwrap_err();
        assert!(error.contains("newer version of this driver (schema 99, this one reads 2)"), "{error}");
    };
    newer_is_named(last);
    newer_is_named(&machine.unprepare_one(&newer).await);

    // Once more, so that the same names are put aside again, and while the plugin runs.
    for (claim, (case, damage)) in damaged.iter().zip(DAMAGES) {
        damage(&machine.record(claim));
        assert_eq!(machine.unprepare_one(claim).await, Ok(()), "{case}");
    }
    machine.unprepare_one(&whole).await.unwrap();
    assert_eq!(machine.on_disk(), [[newer.uid.clone()], [newer.uid.clone()]]);
}

#[tokio::test]
async fn files_that_are_no_records_are_put_aside_or_left_alone() {
    let machine = Machine::builtin("one-gpu").await;
    let claims = machine.claims_dir();
    fs::create_dir_all(claims.join("quarantine/..evil.json")).unwrap();
    for name in ["..evil.json", "notes.txt", ".gpu-dra-plugin-x", "README"] {
        fs::write(claims.join(name), "mine").unwrap();
    }
    let _plugin = machine.start_ready().await;
    assert_eq!(Machine::files(claims.clone()), [".gpu-dra-plugin-x", "README", "notes.txt", "quarantine"]);
    assert_eq!(fs::read_to_string(claims.join("notes.txt")).unwrap(), "mine");
    let claim: ClaimRef = machine.claim("a", &["gpu-0"]);
    machine.prepare_one(&claim).await.unwrap();
}

#[tokio::test]
async fn damaged_names_are_put_aside_and_given_anew() {
    for damage in ["", "{\"version\": 1, \"names\": {\"gpu-7\"", "\0\0\0\0", "{\"version\": 0}"] {
        let machine = Machine::builtin("one-gpu").await;
        fs::create_dir_all(machine.node.plugin_dir()).unwrap();
        let path = machine.node.plugin_dir().join("names.json");
        fs::write(&path, damage).unwrap();
        let plugin = machine.start_ready().await;
        assert_eq!(machine.offered().unwrap(), ["gpu-0"], "{damage:?}");
        assert_eq!(fs::read_to_string(path.with_extension("json.damaged")).unwrap(), damage);
        let log = plugin.log().unwrap();
        assert_eq!(log.matches("the names of the GPUs are damaged").count(), 1, "{log}");
    }
}
