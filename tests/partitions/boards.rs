//! How boards can be partitioned, as NVML says of each: numbers of real machines, and of NVIDIA's guide where none was at
//! hand. Engines are copy engines, decoders, encoders, JPEG engines and optical flow accelerators.

use gpu_dra_plugin::device::mig::{Placement, Profile};

/// A board by a short name.
pub(crate) struct Board {
    pub(crate) name: &'static str,
    pub(crate) memory_mib: u64,
    pub(crate) profiles: Vec<Profile>,
}

/// The boards with seven compute and eight memory slices have profiles of the same ids and places.
const SEVEN: [(u32, u32, u32, u32, &[u32]); 7] = [
    (19, 1, 1, 7, &[0, 1, 2, 3, 4, 5, 6]),
    (20, 1, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
    (15, 1, 2, 4, &[0, 2, 4, 6]),
    (14, 2, 2, 3, &[0, 2, 4]),
    (9, 3, 4, 2, &[0, 4]),
    (5, 4, 4, 1, &[0]),
    (0, 7, 8, 1, &[0]),
];

/// Copy engines, decoders, JPEG engines and optical flow accelerators, in the order of [`SEVEN`].
type Engines = [[u32; 7]; 4];

const AMPERE: Engines = [[1, 1, 1, 2, 3, 4, 7], [0, 1, 1, 1, 2, 2, 5], [0, 1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 1]];

const HOPPER: Engines = [[1, 1, 1, 2, 3, 4, 8], [1, 1, 1, 2, 3, 4, 7], [1, 1, 1, 2, 3, 4, 7], [0, 1, 0, 0, 0, 0, 1]];

const BLACKWELL: Engines =
    [[2, 2, 2, 4, 6, 8, 16], [1, 1, 1, 2, 3, 4, 7], [1, 1, 1, 2, 3, 4, 7], [0, 1, 0, 0, 0, 0, 1]];

const AMPERE_SMS: [u32; 7] = [14, 14, 14, 28, 42, 56, 98];
const HOPPER_SMS: [u32; 7] = [16, 16, 26, 32, 60, 64, 132];

/// Every board.
pub(crate) fn all() -> Vec<Board> {
    let mib = |one: u64, two: u64, four: u64, eight: u64| [one, one, two, two, four, four, eight];
    let board = |name, memory_mib, profiles| Board { name, memory_mib, profiles };
    vec![
        board("a100-40gb", 40_960, seven([5, 10, 20, 40], mib(4864, 9984, 20_096, 40_320), AMPERE_SMS, AMPERE)),
        board("a100-80gb", 81_920, seven([10, 20, 40, 80], mib(9728, 19_968, 40_192, 80_896), AMPERE_SMS, AMPERE)),
        board("a30", 24_576, a30()),
        board("h100-80gb-hbm3", 81_559, seven([10, 20, 40, 80], mib(9984, 20_096, 40_448, 81_152), HOPPER_SMS, HOPPER)),
        board(
            "h100-pcie",
            81_559,
            seven([10, 20, 40, 80], mib(9984, 20_096, 40_448, 81_152), [14, 14, 14, 30, 46, 62, 114], HOPPER),
        ),
        board("h100-nvl", 95_830, seven([12, 24, 47, 94], mib(10_880, 22_016, 47_232, 94_848), HOPPER_SMS, HOPPER)),
        board("gh200-96gb", 97_871, seven([12, 24, 48, 96], mib(11_264, 23_552, 47_616, 95_232), HOPPER_SMS, HOPPER)),
        board("h200", 143_771, seven([18, 35, 71, 141], mib(16_384, 33_024, 71_168, 143_360), HOPPER_SMS, HOPPER)),
        board(
            "b200",
            183_359,
            seven([23, 45, 90, 180], mib(20_992, 45_312, 91_136, 182_784), [18, 18, 30, 36, 70, 72, 148], BLACKWELL),
        ),
        board("rtx-pro-6000", 97_887, rtx_pro_6000()),
    ]
}

/// `gb` names one, two, four and eight memory slices.
fn seven(gb: [u32; 4], mib: [u64; 7], sms: [u32; 7], engines: Engines) -> Vec<Profile> {
    let [one, two, four, eight] = gb;
    let gb = [one, one, two, two, four, four, eight];
    let profile = |(at, (id, slices, size, max, starts)): (usize, (u32, u32, u32, u32, &[u32]))| {
        let media = if id == 20 { "+me" } else { "" };
        let [copy, decoders, jpeg, ofa] = engines.map(|kind| kind[at]);
        let name = format!("{slices}g.{}gb{media}", gb[at]);
        profile(&name, id, [slices, sms[at]], mib[at], [copy, decoders, 0, jpeg, ofa], max, size, starts)
    };
    SEVEN.into_iter().enumerate().map(profile).collect()
}

fn a30() -> Vec<Profile> {
    vec![
        profile("1g.6gb", 14, [1, 14], 5949, [1, 1, 0, 0, 0], 4, 1, &[0, 1, 2, 3]),
        profile("1g.6gb+me", 21, [1, 14], 5949, [1, 1, 0, 1, 1], 1, 1, &[0, 1, 2, 3]),
        profile("2g.12gb", 5, [2, 28], 11_970, [2, 2, 0, 0, 0], 2, 2, &[0, 2]),
        profile("2g.12gb+me", 6, [2, 28], 11_970, [2, 2, 0, 1, 1], 1, 2, &[0, 2]),
        profile("4g.24gb", 0, [4, 56], 24_003, [4, 4, 0, 1, 1], 1, 4, &[0]),
    ]
}

fn rtx_pro_6000() -> Vec<Profile> {
    let (one, two) = (&[0, 1, 2, 3][..], &[0, 2][..]);
    vec![
        profile("1g.24gb", 14, [1, 46], 24_186, [1, 1, 1, 1, 0], 4, 1, one),
        profile("1g.24gb+me", 21, [1, 46], 24_186, [1, 1, 1, 1, 1], 1, 1, one),
        profile("1g.24gb+gfx", 47, [1, 46], 24_186, [1, 1, 1, 1, 0], 4, 1, one),
        profile("1g.24gb+me.all", 65, [1, 46], 24_186, [1, 4, 4, 4, 1], 1, 1, one),
        profile("1g.24gb-me", 67, [1, 46], 24_186, [1, 0, 0, 0, 0], 4, 1, one),
        profile("2g.48gb", 5, [2, 94], 48_517, [2, 2, 2, 2, 0], 2, 2, two),
        profile("2g.48gb+gfx", 35, [2, 94], 48_517, [2, 2, 2, 2, 0], 2, 2, two),
        profile("2g.48gb+me.all", 64, [2, 94], 48_517, [2, 4, 4, 4, 1], 1, 2, two),
        profile("2g.48gb-me", 66, [2, 94], 48_517, [2, 0, 0, 0, 0], 2, 2, two),
        profile("4g.96gb", 0, [4, 188], 97_280, [4, 4, 4, 4, 1], 1, 4, &[0]),
        profile("4g.96gb+gfx", 32, [4, 188], 97_280, [4, 4, 4, 4, 1], 1, 4, &[0]),
    ]
}

#[expect(clippy::too_many_arguments, reason = "a row of a table")]
fn profile(
    name: &str,
    id: u32,
    [slices, multiprocessors]: [u32; 2],
    memory_mib: u64,
    engines: [u32; 5],
    max_instances: u32,
    size: u32,
    starts: &[u32],
) -> Profile {
    let [copy_engines, decoders, encoders, jpeg_engines, ofa_engines] = engines;
    let name = name.to_owned();
    let placements = starts.iter().map(|start| Placement { start: *start, size }).collect();
    #[rustfmt::skip]
    let profile = Profile {
        id, name, slices, memory_mib, multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines,
        max_instances, placements,
    };
    profile
}
