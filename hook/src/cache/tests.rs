//! The cache against the real `ldconfig`, which made the caches of all images.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::*;
use crate::test_program;

/// Names that are hard to sort.
const SONAMES: [&str; 21] = [
    "libx.so.1",
    "libx.so.2",
    "libx.so.9",
    "libx.so.10",
    "libx.so.1.2",
    "libx.so.1.10",
    "libx1.so",
    "libx10.so",
    "libx2.so",
    "libx-2.so",
    "libx.so",
    "libX.so.1",
    "lib9.so",
    "liba.so.20240101",
    "liba.so.4294967297",
    "liba.so.2147483648",
    "libé.so.1",
    "lib_.so.1",
    "libx+.so.1",
    "libcuda.so.470.1",
    "libz.so.007",
];

/// The caches that the machine's `ldconfig` made of a root file system with these libraries.
struct Image {
    ldconfig: PathBuf,
    new: Vec<u8>,
    compat: Vec<u8>,
}

/// Made once, because it takes a linker for every library.
static IMAGE: LazyLock<Option<Image>> = LazyLock::new(Image::make);

// === impl Image ===

impl Image {
    fn make() -> Option<Self> {
        let ldconfig = test_program("ldconfig")?;
        let compiler = test_program("cc")?;
        let root = tempfile::tempdir().unwrap();
        let better = ["usr/local/lib", "usr/local/lib/glibc-hwcaps/x86-64-v2", "usr/local/lib/glibc-hwcaps/x86-64-v3"];
        for (index, directory) in better.iter().enumerate() {
            let directory = root.path().join(directory);
            fs::create_dir_all(&directory).unwrap();
            for soname in &SONAMES[..SONAMES.len() >> index] {
                let mut command = Command::new(&compiler);
                command.args(["-shared", "-nostdlib", "-x", "c", "/dev/null", &format!("-Wl,-soname,{soname}"), "-o"]);
                assert!(command.arg(directory.join(soname)).status().unwrap().success());
            }
        }
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/ld.so.conf"), "/usr/local/lib\n").unwrap();
        let make = |format: &str| {
            let mut command = Command::new(&ldconfig);
            let output = command.args(["-X", "-c", format, "-r"]).arg(root.path()).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            fs::read(root.path().join("etc/ld.so.cache")).unwrap()
        };
        let (new, compat) = (make("new"), make("compat"));
        Some(Self { ldconfig, new, compat })
    }

    /// What `ldconfig -p` prints for these bytes: all but the name of the file and who made it.
    fn print(&self, cache: &[u8]) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, cache).unwrap();
        printed(&self.ldconfig, file.path())
    }
}

fn printed(ldconfig: &Path, file: &Path) -> Vec<String> {
    let output = Command::new(ldconfig).arg("-p").arg("-C").arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| line.starts_with('\t')).map(str::to_owned).collect()
}

fn place(path: &str) -> Place {
    path.parse().unwrap()
}

#[test]
fn ldconfig_reads_back_what_it_wrote_in_either_format() {
    let Some(image) = &*IMAGE else { return };
    for original in [&image.new, &image.compat] {
        let cache = Cache::parse(original).unwrap();
        assert!(cache.entries.len() > SONAMES.len(), "the subdirectories of hwcaps are missing");
        assert!(!cache.hwcaps.is_empty());
        // With the old table before it, ldconfig and loader of glibc 2.36 take the names of hwcaps from the wrong place.
        assert_eq!(image.print(&cache.write()), image.print(&image.new));
        assert_eq!(Cache::parse(&cache.write()).unwrap(), cache);
    }
    assert!(image.compat.starts_with(b"ld.so-1.7.0"));
}

#[test]
fn our_order_is_that_of_ldconfig() {
    let Some(image) = &*IMAGE else { return };
    let entries = Cache::parse(&image.new).unwrap().entries;
    for pair in entries.windows(2) {
        let [a, b] = pair else { unreachable!() };
        let expected = if a.soname == b.soname { Ordering::Equal } else { Ordering::Greater };
        assert_eq!(order::compare(&a.soname, &b.soname), expected, "{pair:?}");
    }
}

#[test]
fn ours_are_added_in_order_and_replace_all_of_the_same_name() {
    let Some(image) = &*IMAGE else { return };
    let original = &image.new;
    let mut cache = Cache::parse(original).unwrap();
    let (old, new) = (place("/driver/libx.so.1"), place("/driver/libx.so.5"));
    let libraries = BTreeMap::from([(old.name(), &old), (new.name(), &new)]);
    cache.forget(&libraries);
    cache.put_first(&libraries);
    let lines = image.print(&cache.write());
    let of = |soname: &str| lines.iter().filter(|line| line.starts_with(&format!("\t{soname} "))).collect::<Vec<_>>();
    assert_eq!(of("libx.so.1").len(), 1, "{:?}", of("libx.so.1"));
    assert!(of("libx.so.1")[0].ends_with("=> /driver/libx.so.1"));
    assert_eq!(of("libx.so.5").len(), 1);
    assert!(of("libx.so.10").len() > 1, "{lines:?}");
    let before: Vec<_> = image.print(original).into_iter().filter(|line| !line.starts_with("\tlibx.so.1 ")).collect();
    let others: Vec<_> = lines.iter().filter(|line| !line.contains("/driver/")).cloned().collect();
    assert_eq!(others, before);
    let sorted = cache.entries.is_sorted_by(|a, b| order::compare(&a.soname, &b.soname).is_ge());
    assert!(sorted);
}

#[test]
fn the_cache_of_this_machine_survives() {
    let (Some(ldconfig), Ok(original)) = (test_program("ldconfig"), fs::read("/etc/ld.so.cache")) else { return };
    let cache = Cache::parse(&original).unwrap();
    let written = tempfile::NamedTempFile::new().unwrap();
    fs::write(written.path(), cache.write()).unwrap();
    assert_eq!(printed(&ldconfig, written.path()), printed(&ldconfig, Path::new("/etc/ld.so.cache")));
}

#[test]
fn a_lookalike_that_the_loader_takes_for_ours_comes_after_it() {
    let entry = |soname: &'static str| Entry {
        flags: FLAGS,
        soname: Cow::Borrowed(soname.as_bytes()),
        path: Cow::Borrowed(b"/lib/x"),
        os_version: 0,
        hwcap: 0,
    };
    let mut cache = Cache { entries: vec![entry("libcuda.so.01"), entry("libcuda.so.0")], ..Cache::default() };
    let ours = place("/driver/libcuda.so.1");
    cache.put_first(&BTreeMap::from([(ours.name(), &ours)]));
    let names: Vec<_> = cache.entries.iter().map(|entry| str::from_utf8(&entry.soname).unwrap()).collect();
    assert_eq!(names, ["libcuda.so.1", "libcuda.so.01", "libcuda.so.0"]);
}
