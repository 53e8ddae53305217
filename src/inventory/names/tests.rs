use proptest::prelude::*;

use super::*;
use crate::host::atomic::faults::{Fault, FaultyDisk, Unsynced};

fn uuid(letter: char) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{letter}")).unwrap()
}

fn gpus(list: &[(char, u32)]) -> Vec<(GpuUuid, u32)> {
    list.iter().map(|(letter, minor)| (uuid(*letter), *minor)).collect()
}

/// Names after a start of the plugin on this machine.
async fn boot(directory: &Path, list: &[(char, u32)]) -> Vec<String> {
    let mut map = NameMap::load(directory).unwrap();
    let names = map.assign(&gpus(list));
    map.save().await.unwrap();
    list.iter().map(|(letter, _)| names[&uuid(*letter)].to_string()).collect()
}

#[tokio::test]
async fn a_gpu_is_named_after_its_minor_at_first_sight() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(boot(directory.path(), &[('a', 1), ('b', 0), ('c', 10)]).await, ["gpu-1", "gpu-0", "gpu-10"]);
}

#[tokio::test]
async fn names_that_were_read_last_though_whoever_wrote_them_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(directory.path().to_owned());
    let mut map = NameMap::load(directory.path()).unwrap();
    map.assign(&gpus(&[('a', 0)]));
    // Between the rename and what makes it last.
    disk.arm(6, Fault::Death);
    map.save().await.unwrap_err();
    disk.revive();
    assert_eq!(boot(directory.path(), &[('a', 1)]).await, ["gpu-0"]);
    disk.cut_power(Unsynced::Lost);
    assert_eq!(boot(directory.path(), &[('a', 1)]).await, ["gpu-0"]);
}

#[tokio::test]
async fn a_name_stays_on_its_gpu_when_minors_swap_or_a_neighbour_dies() {
    let directory = tempfile::tempdir().unwrap();
    boot(directory.path(), &[('a', 0), ('b', 1), ('c', 2)]).await;
    assert_eq!(boot(directory.path(), &[('b', 0), ('a', 1), ('c', 2)]).await, ["gpu-1", "gpu-0", "gpu-2"]);
    assert_eq!(boot(directory.path(), &[('b', 0), ('c', 1)]).await, ["gpu-1", "gpu-2"]);
    let mut map = NameMap::load(directory.path()).unwrap();
    let present = map.assign(&gpus(&[('b', 0)]));
    assert_eq!(map.absent(&present), [DeviceName::gpu(0), DeviceName::gpu(2)]);
    assert_eq!(boot(directory.path(), &[('a', 0), ('b', 1), ('c', 2)]).await, ["gpu-0", "gpu-1", "gpu-2"]);
}

#[tokio::test]
async fn a_new_gpu_does_not_get_the_name_of_an_absent_one() {
    let directory = tempfile::tempdir().unwrap();
    boot(directory.path(), &[('a', 0), ('b', 1), ('c', 2)]).await;
    assert_eq!(boot(directory.path(), &[('a', 0), ('n', 1), ('c', 2)]).await, ["gpu-0", "gpu-3", "gpu-2"]);
    assert_eq!(boot(directory.path(), &[('b', 0), ('n', 1)]).await, ["gpu-1", "gpu-3"]);
}

#[tokio::test]
async fn a_new_gpu_that_has_to_move_leaves_the_names_of_other_new_ones_alone() {
    let directory = tempfile::tempdir().unwrap();
    boot(directory.path(), &[('a', 0)]).await;
    assert_eq!(boot(directory.path(), &[('n', 0), ('m', 1)]).await, ["gpu-2", "gpu-1"]);
}

#[tokio::test]
async fn a_damaged_file_is_set_aside_and_names_are_given_anew() {
    let damaged = [
        "",
        "{",
        r#"{"version":0,"names":{}}"#,
        r#"{"names":{}}"#,
        r#"{"version":1,"names":{},"more":{}}"#,
        r#"{"version":1,"names":{"gpu/0":"GPU-a"}}"#,
        r#"{"version":1,"names":{"gpu-0":"../../etc"}}"#,
        r#"{"version":1,"names":{"gpu-0":"GPU-a","gpu-1":"GPU-a"}}"#,
    ];
    for text in damaged {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("names.json"), text).unwrap();
        assert_eq!(boot(directory.path(), &[('a', 3)]).await, ["gpu-3"], "{text}");
        assert_eq!(fs::read_to_string(directory.path().join("names.json.damaged")).unwrap(), text);
        assert_eq!(boot(directory.path(), &[('a', 0)]).await, ["gpu-3"], "the new file is not read back after {text}");
    }
}

#[tokio::test]
async fn a_name_that_a_claim_remembers_survives_a_damaged_file() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("names.json"), "{").unwrap();
    let mut map = NameMap::load(directory.path()).unwrap();
    map.remember([(DeviceName::gpu(7), uuid('a'))]);
    map.assign(&gpus(&[('a', 0), ('b', 7)]));
    map.save().await.unwrap();
    assert_eq!(boot(directory.path(), &[('a', 0), ('b', 7)]).await, ["gpu-7", "gpu-0"]);
}

#[tokio::test]
async fn what_claims_remember_moves_no_name_that_is_known() {
    let directory = tempfile::tempdir().unwrap();
    boot(directory.path(), &[('a', 0)]).await;
    let mut map = NameMap::load(directory.path()).unwrap();
    let known =
        |name: &str, uuid: &str| (DeviceName::parse(name).unwrap(), serde_json::from_value(uuid.into()).unwrap());
    map.remember([
        known("gpu-0", "GPU-b"),
        known("gpu-1", "GPU-a"),
        known("gpu-2-mig-1g5gb-19-0", "GPU-c"),
        known("gpu-03", "GPU-d"),
        known("gpu-4", "../e"),
    ]);
    assert_eq!(map.names, BTreeMap::from([(DeviceName::gpu(0), uuid('a'))]));
}

#[test]
fn names_are_stored_on_a_thread_that_may_block() {
    let directory = tempfile::tempdir().unwrap();
    let mut map = NameMap::load(directory.path()).unwrap();
    map.assign(&gpus(&[('a', 5)]));
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || released.recv().is_err());
        let mut save = std::pin::pin!(map.save());
        assert!(futures::poll!(save.as_mut()).is_pending(), "the only thread that may block is busy");
        drop(release);
        save.await.unwrap();
        assert!(busy.await.unwrap());
    });
    assert!(directory.path().join("names.json").exists());
}

#[test]
fn a_file_of_a_newer_version_stays_and_stops_the_start() {
    for text in [r#"{"version":2,"names":{"gpu-7":"GPU-a"}}"#, r#"{"version":9000000000,"gpus":[]}"#] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("names.json");
        fs::write(&file, text).unwrap();
        let error = NameMap::load(directory.path()).unwrap_err();
        assert!(matches!(error, Error::Newer { .. }), "{error}");
        let sentence = error.to_string();
        assert!(sentence.contains("names.json were written by a newer version"), "{sentence}");
        assert!(sentence.ends_with("run that version again, or drain the node and remove the file"), "{sentence}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

#[tokio::test]
async fn what_two_processes_store_is_kept_and_the_first_name_lasts() {
    let directory = tempfile::tempdir().unwrap();
    let [mut old, mut new] = [(); 2].map(|()| NameMap::load(directory.path()).unwrap());
    new.assign(&gpus(&[('a', 0), ('b', 1)]));
    new.save().await.unwrap();
    // It saw another machine, and was too late.
    old.assign(&gpus(&[('b', 0), ('c', 1), ('d', 3)]));
    old.save().await.unwrap();
    let name = DeviceName::gpu;
    let stored = BTreeMap::from([(name(0), uuid('a')), (name(1), uuid('b')), (name(3), uuid('d'))]);
    assert_eq!(old.names, stored, "both know the same");
    old.assign(&gpus(&[('b', 0), ('c', 1), ('d', 3)]));
    old.save().await.unwrap();
    let stored = NameMap::load(directory.path()).unwrap().names;
    assert_eq!(stored.get(&name(2)), Some(&uuid('c')), "{stored:?}");
    assert_eq!(stored, old.names);
}

#[tokio::test]
async fn the_names_of_a_newer_process_are_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let mut old = NameMap::load(directory.path()).unwrap();
    old.assign(&gpus(&[('a', 0)]));
    let (file, text) = (directory.path().join("names.json"), r#"{"version":2,"gpus":[]}"#);
    fs::write(&file, text).unwrap();
    assert!(matches!(old.save().await, Err(Error::Newer { .. })));
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn a_file_that_cannot_be_read_is_not_taken_for_none() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("names.json")).unwrap();
    assert!(matches!(NameMap::load(directory.path()), Err(Error::Read { .. })));
}

#[tokio::test]
async fn names_that_could_not_be_stored_are_stored_by_the_next_save() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("plugin");
    let mut map = NameMap::load(&directory).unwrap();
    map.assign(&gpus(&[('a', 5)]));
    assert!(matches!(map.save().await, Err(Error::Write { .. })));
    fs::create_dir(&directory).unwrap();
    map.save().await.unwrap();
    assert_eq!(boot(&directory, &[('a', 0)]).await, ["gpu-5"]);
}

proptest! {
    #[test]
    fn names_are_unique_and_never_move(
        boots in proptest::collection::vec(proptest::collection::btree_map("[a-h]", 0_u32..6, 0..6), 1..6)
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut map = NameMap::load(directory.path()).unwrap();
        let mut known: BTreeMap<GpuUuid, DeviceName> = BTreeMap::new();
        for boot in boots {
            let gpus: Vec<_> =
                boot.iter().map(|(id, minor)| (GpuUuid::parse(&format!("GPU-{id}")).unwrap(), *minor)).collect();
            let names = map.assign(&gpus);
            prop_assert_eq!(names.len(), gpus.len());
            for (uuid, name) in names {
                prop_assert_eq!(known.entry(uuid).or_insert_with(|| name.clone()), &name);
            }
            let unique: BTreeSet<_> = known.values().collect();
            prop_assert_eq!(unique.len(), known.len());
        }
    }
}
