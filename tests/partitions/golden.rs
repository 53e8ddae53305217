//! What is published of each board, pinned in one text file each.
//!
//! After a change that is meant: `UPDATE_GOLDEN=1 cargo test --test partitions golden::`, then read what git says has
//! changed.

use std::fmt::{Display, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

use gpu_dra_plugin::slice::{Device, Slice, pool};

use crate::{boards, node};

fn path(board: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/partitions").join(board).with_extension("txt")
}

/// ` name=amount` for each.
fn amounts<N: Display, A: Display>(amounts: impl IntoIterator<Item = (N, A)>) -> String {
    let mut out = String::new();
    for (name, amount) in amounts {
        write!(out, " {name}={amount}").unwrap();
    }
    out
}

fn device(device: &Device, out: &mut String) {
    write!(out, "{}\n  has{}\n", device.name, amounts(&device.capacity)).unwrap();
    for (set, counters) in &device.consumes_counters {
        writeln!(out, "  takes {set}:{}", amounts(counters)).unwrap();
    }
}

fn slice(slice: &Slice) -> String {
    let mut out = "---\n".to_owned();
    for set in &slice.shared_counters {
        writeln!(out, "{}:{}", set.name, amounts(&set.counters)).unwrap();
    }
    for offered in &slice.devices {
        device(offered, &mut out);
    }
    out
}

#[test]
fn each_board_is_laid_out_as_its_file_says() {
    for board in boards::all() {
        let text: String = pool("node-a", &node(&board, 1)).slices.iter().map(slice).collect();
        let path = path(board.name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (number, (golden, line)) in (1..).zip(golden.lines().zip(text.lines())) {
            assert_eq!(golden, line, "line {number} of {} (UPDATE_GOLDEN=1 accepts it)", path.display());
        }
        assert_eq!(golden.lines().count(), text.lines().count(), "{}", path.display());
    }
}

/// Names that machines with NVIDIA's driver have published.
#[test]
fn parts_have_the_names_that_nvidias_driver_gives_them() {
    for (board, names) in [
        ("a100-40gb", &["gpu-0-mig-1g5gb-19-6", "gpu-0-mig-1g5gb-me-20-0", "gpu-0-mig-3g20gb-9-4"][..]),
        ("a30", &["gpu-0-mig-1g6gb-14-0"]),
        ("b200", &["gpu-0-mig-1g23gb-19-0", "gpu-0-mig-7g180gb-0-0"]),
    ] {
        let text = fs::read_to_string(path(board)).unwrap();
        let missing: Vec<_> = names.iter().filter(|name| !text.lines().any(|line| line == **name)).collect();
        assert!(missing.is_empty(), "{board}: {missing:?}");
    }
}
