//! MIG as the plugin reads and changes it, against the mock NVML.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fake_node::host::{Host, HostBuilder};
use gpu_dra_plugin::device::mig::{Mig, Placement, Profile};
use gpu_dra_plugin::device::{GpuUuid, MigUuid};
use gpu_dra_plugin::nvml::gpu::{Scan, scan};
use gpu_dra_plugin::nvml::partition::{Destroyed, Expected, Made, Partitions};
use gpu_dra_plugin::nvml::{self, Code, Session};
use tempfile::TempDir;
use topology::{Fault, Topology, mig::Table};

/// Every built-in table with a board that has it: its memory in MiB and its architecture.
const BOARDS: [(&str, u64, u32); 11] = [
    ("a100-40gb", 40960, 7),
    ("a100-80gb", 81920, 7),
    ("a30", 24576, 7),
    ("a30-two-of-a-name", 24576, 7),
    ("h100-80gb-sxm", 81559, 9),
    ("h100-80gb-pcie", 81559, 9),
    ("h100-94gb-nvl", 95830, 9),
    ("gh200-96gb", 97871, 9),
    ("h200-141gb", 143_771, 9),
    ("b200", 183_359, 10),
    ("gb200", 189_471, 10),
];

/// Longer than any call that ends at all.
const LONG: Duration = Duration::from_secs(60);

/// A machine, and the plugin's view of its first GPU.
struct Machine {
    host: Host,
    session: Session,
    gpu: GpuUuid,
    _directory: TempDir,
}

impl Machine {
    /// A machine with one GPU, in MIG mode.
    fn with(table: &str, memory_mib: u64, architecture: u32) -> Self {
        let mut topology = Topology::builtin("one-gpu").unwrap();
        let board = topology.boards.values_mut().next().unwrap();
        (board.mig, board.memory_mib, board.architecture) = (Some(table.to_owned()), memory_mib, architecture);
        topology.gpus[0].mig_enabled = true;
        Self::new(topology)
    }

    fn new(topology: Topology) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libmock_nvml.so");
        let gpu = GpuUuid::parse(&topology.gpus[0].uuid).unwrap();
        let host = HostBuilder::new(topology, library).build(directory.path().join("node")).unwrap();
        let library: PathBuf = host.library();
        let session = Session::new(move || Some(library.clone()));
        Self { host, session, gpu, _directory: directory }
    }

    fn h100() -> Self {
        Self::with("h100-80gb-sxm", 81559, 9)
    }

    async fn act<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Partitions<'_>) -> Result<T, nvml::Error> + Send + 'static,
    ) -> Result<T, nvml::Error> {
        let gpu = self.gpu.clone();
        self.session.call("change a GPU", LONG, move |nvml| act(&Partitions::of(nvml, &gpu)?)).await
    }

    async fn create(&self, profile: &Profile, at: Placement) -> Result<Made, nvml::Error> {
        let profile = profile.clone();
        self.act(move |gpu| gpu.create(&profile, at)).await
    }

    async fn destroy(&self, expected: Expected) -> Result<Destroyed, nvml::Error> {
        self.act(move |gpu| gpu.destroy(&expected)).await
    }

    /// One more look after `last`.
    async fn scan(&self, last: &Arc<Scan>) -> Arc<Scan> {
        let last = Arc::clone(last);
        Arc::new(self.session.call("read the GPUs", LONG, move |nvml| scan(nvml, &last)).await.unwrap())
    }

    async fn mig(&self) -> Mig {
        self.scan(&Arc::default()).await.gpus[0].mig.clone()
    }

    fn fail(&self, faults: Vec<Fault>) {
        self.host.node().update(|state| state.faults = faults).unwrap();
    }

    /// What the driver has, whatever NVML says.
    fn instances(&self) -> usize {
        self.host.node().state().unwrap().gpus.get(&0).map_or(0, |gpu| gpu.mig.gpu_instances.len())
    }

    fn calls(&self) -> usize {
        let log = self.host.node().calls_path();
        let calls = fs::read_to_string(&log).unwrap_or_default().lines().count();
        fs::write(log, "").unwrap();
        calls
    }
}

fn fault(call: &str, code: u32) -> Fault {
    Fault { call: call.to_owned(), code: Some(code), ..Fault::default() }
}

fn expected(profile: &Profile, placement: Placement, made: &Made) -> Expected {
    let uuid = Some(made.uuid.clone());
    Expected { gpu_instance: made.gpu_instance, profile: profile.id, placement, uuid }
}

#[tokio::test]
async fn every_board_is_described_as_its_table_has_it() {
    for (name, memory, architecture) in BOARDS {
        let mig = Machine::with(name, memory, architecture).mig().await;
        let table = Table::builtin(name).unwrap();
        assert!(mig.capable && mig.enabled && mig.resetless == (architecture >= 9), "{name}: {mig:?}");
        assert_eq!(mig.profiles.len(), table.profiles.len(), "{name}");
        for profile in &mig.profiles {
            let described = table.profile(profile.id).unwrap();
            let placements = described.placements().map(|at| Placement { start: at.start, size: at.size });
            assert_eq!(profile.placements, placements.collect::<Vec<_>>(), "{name}: {}", profile.name);
            assert_eq!(
                (profile.slices, profile.memory_mib, profile.max_instances, profile.multiprocessors),
                (described.slices, described.memory_mib, described.instances, described.multiprocessors),
                "{name}: {}",
                profile.name
            );
        }
    }
}

#[tokio::test]
async fn profiles_have_their_names_with_mig_mode_off_too() {
    let mut topology = Topology::builtin("dgx-h100").unwrap();
    let off = Machine::new(topology.clone()).mig().await;
    topology.gpus[0].mig_enabled = true;
    let on = Machine::new(topology).mig().await;
    assert_eq!(off.profiles, on.profiles);
    let names = ["7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb", "1g.10gb+me"];
    assert_eq!(on.profiles.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>(), names);
}

#[tokio::test]
async fn every_placement_of_every_board_can_be_made_found_and_destroyed() {
    for (name, memory, architecture) in BOARDS {
        let machine = Machine::with(name, memory, architecture);
        let profiles = machine.mig().await.profiles;
        let mut uuids = BTreeSet::new();
        for profile in &profiles {
            for &placement in &profile.placements {
                let made = machine.create(profile, placement).await.unwrap();
                assert!(uuids.insert(made.uuid.clone()), "{name}: a UUID came twice");
                let known = profiles.clone();
                let found = machine.act(move |gpu| gpu.instances(&known)).await.unwrap();
                let [instance] = &found[..] else { panic!("{name}: {found:?}") };
                assert_eq!((instance.id, instance.profile), (made.gpu_instance, profile.id), "{name}");
                assert_eq!(instance.placement, placement, "{name}");
                let device = instance.device(profile).unwrap();
                assert_eq!((device.id, &device.uuid), (made.compute_instance, &made.uuid), "{name}");
                let expected = expected(profile, placement, &made);
                assert_eq!(machine.destroy(expected.clone()).await, Ok(Destroyed::Now), "{name}");
                assert_eq!(machine.destroy(expected).await, Ok(Destroyed::Before), "{name}");
                assert_eq!(machine.instances(), 0, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn what_an_administrator_makes_and_destroys_is_seen_at_the_next_look() {
    let machine = Machine::h100();
    let first = machine.scan(&Arc::default()).await;
    assert_eq!(first.gpus[0].mig.instances, []);
    let made = machine.host.node().create_instance(0, 9, Some(4)).unwrap();
    let second = machine.scan(&first).await;
    let [instance] = &second.gpus[0].mig.instances[..] else { panic!("{second:?}") };
    assert_eq!((instance.id, instance.profile), (made.gpu_instance, 9));
    assert_eq!(instance.placement, Placement { start: 4, size: 4 });
    assert_eq!(instance.compute[0].uuid.as_str(), made.uuid);
    machine.host.node().destroy_instance(0, made.gpu_instance).unwrap();
    let again = machine.host.node().create_instance(0, 9, Some(4)).unwrap();
    let third = machine.scan(&second).await;
    assert_eq!(third.gpus[0].mig.instances[0].compute[0].uuid.as_str(), again.uuid);
    machine.host.node().destroy_instance(0, again.gpu_instance).unwrap();
    assert_eq!(machine.scan(&third).await.gpus[0].mig.instances, []);
}

#[tokio::test]
async fn a_query_that_fails_leaves_what_was_known_and_costs_nothing_else() {
    for call in [
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstances",
        "nvmlComputeInstanceGetInfo",
    ] {
        for code in [2, 4, 6, 15, 25, 77, 999] {
            let machine = Machine::h100();
            machine.host.node().create_instance(0, 19, Some(0)).unwrap();
            let first = machine.scan(&Arc::default()).await;
            machine.fail(vec![fault(call, code)]);
            let second = machine.scan(&first).await;
            assert_eq!(second.gpus, first.gpus, "{call} answers {code}");
            let [note] = &second.left_out[..] else { panic!("{:?}", second.left_out) };
            assert!(note.what.starts_with("the MIG instances of GPU-"), "{note:?}");
            let blind = machine.scan(&Arc::default()).await;
            assert_eq!(blind.gpus[0].mig.instances, [], "{call} answers {code}");
            assert_eq!(blind.gpus[0].mig.profiles, first.gpus[0].mig.profiles);
        }
    }
}

#[tokio::test]
async fn half_a_list_of_profiles_is_none() {
    for call in ["nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements"] {
        let machine = Machine::h100();
        let first = machine.scan(&Arc::default()).await;
        machine.fail(vec![Fault { after: 3, ..fault(call, 999) }]);
        let blind = machine.scan(&Arc::default()).await;
        assert_eq!(blind.gpus[0].mig.profiles, [], "{call}");
        assert!(blind.left_out[0].what.starts_with("the MIG profiles of GPU-"), "{:?}", blind.left_out);
        assert_eq!(machine.scan(&first).await.gpus, first.gpus, "{call}: they are not asked for again");
        machine.fail(vec![]);
        assert_eq!(machine.scan(&blind).await.gpus, first.gpus, "{call}");
    }
}

#[tokio::test]
async fn a_creation_that_fails_leaves_nothing_and_keeps_the_code() {
    let machine = Machine::h100();
    let profiles = machine.mig().await.profiles;
    let profile = profiles.iter().find(|profile| profile.id == 9).unwrap();
    let at = Placement { start: 4, size: 4 };
    for call in [
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo",
    ] {
        for code in [2, 3, 4, 6, 15, 19, 23, 25, 77, 999] {
            machine.fail(vec![fault(call, code)]);
            let error = machine.create(profile, at).await.unwrap_err();
            assert_eq!(error.code(), Some(Code(code)), "{error}");
            assert_eq!((error.is_in_use(), error.is_taken()), (code == 19, code == 23));
            assert!(error.to_string().contains(" 3g.40gb (profile 9) at memory slice 4 of GPU-"), "{error}");
            machine.fail(vec![]);
            assert_eq!(machine.instances(), 0, "{call} answers {code}");
        }
    }
}

#[tokio::test]
async fn a_creation_that_cannot_be_taken_back_says_so() {
    let machine = Machine::h100();
    let profile = machine.mig().await.profiles.into_iter().find(|profile| profile.id == 19).unwrap();
    let at = profile.placements[2];
    machine.fail(vec![fault("nvmlGpuInstanceCreateComputeInstance", 23), fault("nvmlGpuInstanceDestroy", 19)]);
    let error = machine.create(&profile, at).await.unwrap_err();
    assert!(error.is_taken() && error.to_string().contains("what was begun stays"), "{error}");
    machine.fail(vec![]);
    let (known, kept) = (profile.clone(), at);
    let found = machine.act(move |gpu| gpu.instances(&[known])).await.unwrap();
    let [left] = &found[..] else { panic!("{found:?}") };
    assert_eq!((left.placement, left.compute.len()), (kept, 0));
    let expected = Expected { gpu_instance: left.id, profile: 19, placement: at, uuid: None };
    assert_eq!(machine.destroy(expected).await, Ok(Destroyed::Now));
}

#[tokio::test]
async fn a_place_that_is_taken_is_refused_as_taken() {
    let machine = Machine::h100();
    machine.host.node().create_instance(0, 14, Some(0)).unwrap();
    let profile = machine.mig().await.profiles.into_iter().find(|profile| profile.id == 9).unwrap();
    let error = machine.create(&profile, profile.placements[0]).await.unwrap_err();
    assert!(error.is_taken(), "{error}");
    assert_eq!(machine.instances(), 1);
}

#[tokio::test]
async fn only_what_is_meant_is_destroyed() {
    let machine = Machine::h100();
    let made = machine.host.node().create_instance(0, 19, Some(3)).unwrap();
    let placement = Placement { start: 3, size: 1 };
    let uuid = Some(MigUuid::parse(&made.uuid).unwrap());
    let meant = Expected { gpu_instance: made.gpu_instance, profile: 19, placement, uuid };
    let other = MigUuid::parse("MIG-00000000-0000-5000-8000-000000000000").unwrap();
    for wrong in [
        Expected { profile: 20, ..meant.clone() },
        Expected { placement: Placement { start: 2, size: 1 }, ..meant.clone() },
        Expected { uuid: Some(other), ..meant.clone() },
    ] {
        let destroyed = machine.destroy(wrong.clone()).await.unwrap();
        assert!(matches!(&destroyed, Destroyed::Other(found) if found.placement == placement), "{wrong:?}");
        assert_eq!(machine.instances(), 1, "{wrong:?}");
    }
    assert_eq!(machine.destroy(meant).await, Ok(Destroyed::Now));
}

#[tokio::test]
async fn a_destruction_that_is_refused_succeeds_later() {
    for call in ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"] {
        let machine = Machine::h100();
        let profile = machine.mig().await.profiles.into_iter().find(|profile| profile.id == 9).unwrap();
        let at = profile.placements[0];
        let made = machine.create(&profile, at).await.unwrap();
        machine.fail(vec![fault(call, 19)]);
        let error = machine.destroy(expected(&profile, at, &made)).await.unwrap_err();
        assert!(error.is_in_use() && error.to_string().contains("destroy the GPU instance"), "{error}");
        machine.fail(vec![]);
        assert_eq!(machine.destroy(expected(&profile, at, &made)).await, Ok(Destroyed::Now), "{call}");
        assert_eq!(machine.instances(), 0, "{call}");
    }
}

#[tokio::test]
async fn the_mode_is_switched_where_no_reset_is_needed_and_left_alone_elsewhere() {
    let hopper = Machine::h100();
    for on in [false, true, true] {
        hopper.act(move |gpu| gpu.set_mode(on)).await.unwrap();
        assert_eq!(hopper.mig().await.enabled, on);
    }
    hopper.host.node().create_instance(0, 0, None).unwrap();
    let error = hopper.act(|gpu| gpu.set_mode(false)).await.unwrap_err();
    assert!(error.is_in_use(), "{error}");
    assert!(hopper.mig().await.enabled);

    let ampere = Machine::with("a100-40gb", 40960, 7);
    let error = ampere.act(|gpu| gpu.set_mode(false)).await.unwrap_err();
    assert!(error.needs_reset(), "{error}");
    ampere.host.node().reset(0).unwrap();
    assert!(ampere.mig().await.enabled, "a reset has switched the mode of a GPU that was to stay as it is");
}

#[tokio::test]
async fn a_look_asks_for_no_more_than_can_have_changed() {
    let mut topology = Topology::builtin("dgx-h100").unwrap();
    let mut figures = Vec::new();
    for (on, instances) in [(false, 0), (true, 0), (true, 7)] {
        topology.gpus.iter_mut().for_each(|gpu| gpu.mig_enabled = on);
        let machine = Machine::new(topology.clone());
        machine.calls();
        for gpu in 0..topology.gpus.len() {
            (0..instances).for_each(|_| drop(machine.host.node().create_instance(gpu, 19, None).unwrap()));
        }
        let first = machine.scan(&Arc::default()).await;
        let (cold, second) = (machine.calls(), machine.scan(&first).await);
        assert_eq!(second.gpus, first.gpus);
        figures.push((cold, machine.calls()));
    }
    println!("NVML calls of a first and of a later look: {figures:?}");
    let [(_, off), (_, empty), (_, full)] = figures[..] else { panic!("{figures:?}") };
    // The driver and the count; of each GPU: handle, UUID, minor, address, memory, mode, fabric and links.
    assert_eq!(off, 2 + 8 * (7 + 18));
    assert_eq!(empty - off, 8 * 7, "one list for each profile");
    // Two infos and a list for each; the GPU's count, and two ids and a UUID by a handle for each.
    assert_eq!(full - empty, 8 * (7 * 3 + 1 + 7 * 4));
}
