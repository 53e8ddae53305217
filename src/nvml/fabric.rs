//! How a GPU stands with the NVLink fabric.

use super::error::Code;
use super::raw::FabricInfo;
use crate::device::Fabric;

/// How a GPU stands with the NVLink fabric. The default is that of a GPU without one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registration {
    /// It is about to be registered, or that failed.
    pub keeps_out: bool,
    /// The multi-node cluster that it is registered with.
    pub cluster: Option<Fabric>,
}

/// `nvmlGpuFabricState_t`: the GPU has no such fabric; the GPU is registered with it. In between it is about to be.
const FABRIC_NOT_SUPPORTED: u8 = 0;
const FABRIC_COMPLETED: u8 = 3;

/// A switch carries nothing for a GPU until its registration has succeeded, though its links may be up. A cluster has an
/// identity: a single machine's fabric reports all zeros.
pub(super) fn registration(info: FabricInfo) -> Registration {
    let is_registered = info.state == FABRIC_COMPLETED && info.status == Code::SUCCESS;
    let cluster = (is_registered && info.cluster != [0; 16])
        .then(|| Fabric { cluster: canonical_uuid(info.cluster), clique: info.clique });
    Registration { keeps_out: info.state != FABRIC_NOT_SUPPORTED && !is_registered, cluster }
}

fn canonical_uuid(bytes: [u8; 16]) -> String {
    let number = u128::from_be_bytes(bytes);
    let group = |from: u32, digits: u32| number >> (128 - 4 * (from + digits)) & ((1 << (4 * digits)) - 1);
    format!("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", group(0, 8), group(8, 4), group(12, 4), group(16, 4), group(20, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(state: u8, status: u32, cluster: [u8; 16]) -> FabricInfo {
        FabricInfo { state, status: Code(status), cluster, clique: 2 }
    }

    #[test]
    fn only_a_completed_registration_with_an_identity_is_a_membership() {
        let mut cluster = [0; 16];
        cluster[3] = 1;
        let member = registration(info(3, 0, cluster)).cluster;
        let expected = Fabric { cluster: "00000001-0000-0000-0000-000000000000".to_owned(), clique: 2 };
        assert_eq!(member, Some(expected));
        assert_eq!(registration(info(3, 0, [0; 16])).cluster, None);
        assert_eq!(registration(info(2, 0, cluster)).cluster, None);
        assert_eq!(registration(info(3, 999, cluster)).cluster, None);
    }

    #[test]
    fn switches_are_closed_to_a_gpu_until_its_registration_has_succeeded() {
        let states = [(0, 0, false), (1, 0, true), (2, 0, true), (3, 0, false), (3, 999, true)];
        for (state, status, expected) in states {
            assert_eq!(
                registration(info(state, status, [0; 16])).keeps_out,
                expected,
                "state {state}, status {status}"
            );
        }
    }

    #[test]
    fn cluster_uuids_are_written_in_canonical_form() {
        let bytes = core::array::from_fn(|i| u8::try_from(i * 17).unwrap());
        assert_eq!(canonical_uuid(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
