//! What must hold on a disk, whatever has happened to it.

use std::collections::BTreeSet;
use std::fs::File;

use super::*;
use crate::claim::plan::Usage;

impl Disk {
    /// A process as it is once it has started and looked at the GPUs.
    pub(super) async fn settle(&self) -> Preparer {
        let preparer = self.start().await;
        Keeper::new(Arc::clone(&preparer.shared)).keep().await;
        preparer
    }

    pub(super) fn recorded(&self) -> Vec<Record> {
        let read = |uid: String| serde_json::from_slice(&fs::read(self.record_path(&uid)).unwrap()).unwrap();
        self.claims_in("claims/", ".json").into_iter().map(read).collect()
    }

    /// The claims that have a record.
    pub(super) fn uids_of_records(&self) -> BTreeSet<String> {
        self.claims_in("claims/", ".json")
    }

    /// The claims that have a spec.
    pub(super) fn uids_of_specs(&self) -> BTreeSet<String> {
        self.claims_in("cdi/k8s.gpu.nvidia.com-claim_", ".json")
    }

    /// Files that were being written when their writer was gone.
    pub(super) fn temporaries(&self) -> Vec<PathBuf> {
        let names = self.files().into_iter().filter(|name| name.contains("/.gpu-dra-plugin-"));
        names.map(|name| self.host.state(&name)).collect()
    }

    /// As if it were long ago that they were left.
    pub(super) fn age_temporaries(&self) {
        for path in self.temporaries() {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(61)).unwrap();
        }
    }

    /// Whether the claim's record was moved aside at some time, so that its spec may stay.
    pub(super) fn is_aside(&self, uid: &str) -> bool {
        self.host.state("claims/quarantine").join(format!("{uid}.json")).exists()
    }

    /// Holds at any moment.
    pub(super) fn assert_no_spec_without_a_record(&self) {
        let records = self.uids_of_records();
        for uid in self.uids_of_specs() {
            assert!(records.contains(&uid) || self.is_aside(&uid), "nobody answers for the spec of {uid}");
        }
    }

    /// Holds after a start and a look at the GPUs, if all of them are there.
    pub(super) fn assert_sound(&self) {
        self.assert_no_spec_without_a_record();
        let node = self.inventory.borrow().clone().unwrap();
        let records = self.recorded();
        for record in &records {
            let uid = record.claim.uid.as_str();
            assert_eq!(record.state, State::PrepareCompleted, "{uid}");
            let minor = |gpu| i64::from(node.gpus.iter().find(|known| known.uuid == gpu).unwrap().minor);
            let minors: BTreeSet<_> = record.devices.iter().map(|device| minor(device.planned.gpu.clone())).collect();
            assert_eq!(self.minors_given(uid), minors, "{uid}");
        }
        self.assert_no_gpu_has_two_owners();
    }

    /// The GPUs that containers of a claim get. Reads the spec as JSON, which is faster than a runtime.
    pub(super) fn minors_given(&self, uid: &str) -> BTreeSet<i64> {
        let spec: Value = serde_json::from_slice(&fs::read(self.spec_path(uid)).unwrap()).unwrap();
        let devices = spec["devices"].as_array().unwrap().iter();
        devices.map(|device| device["containerEdits"]["deviceNodes"][0]["minor"].as_i64().unwrap()).collect()
    }

    /// Holds at any moment.
    pub(super) fn assert_no_gpu_has_two_owners(&self) {
        let records = self.recorded();
        for record in &records {
            for device in record.devices.iter().filter(|device| device.planned.wanted.usage == Usage::Exclusive) {
                let others = records.iter().filter(|other| other.claim.uid != record.claim.uid);
                for other in others.flat_map(|other| &other.devices) {
                    let both = other.planned.gpu == device.planned.gpu;
                    assert!(!both || other.planned.wanted.usage == Usage::Admin, "{device:?} and {other:?}");
                }
            }
        }
    }

    fn claims_in(&self, prefix: &str, suffix: &str) -> BTreeSet<String> {
        let files = self.files();
        let claim = |name: &String| name.strip_prefix(prefix)?.strip_suffix(suffix).map(str::to_owned);
        files.iter().filter_map(claim).collect()
    }
}
