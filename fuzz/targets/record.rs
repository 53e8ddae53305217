//! Any bytes as the record of a claim: the plugin starts; the record is read, and then says the same after it was
//! written; or it is put aside as it is; or it is a newer version's and stays where it is.

#![no_main]

use std::fs;
use std::sync::LazyLock;

use gpu_dra_plugin::claim::ClaimUid;
use gpu_dra_plugin::prepare::fuzz::Records;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// Where `TMPDIR` says.
static DIRECTORY: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));

fuzz_target!(|bytes: &[u8]| {
    let directory = DIRECTORY.path().join("claims");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).expect("there is none");
    let uid = ClaimUid::parse("a").unwrap();
    let [file, aside] = ["a.json", "quarantine/a.json"].map(|name| directory.join(name));
    fs::write(&file, bytes).unwrap();

    let records = Records::open(&directory).expect("no record keeps the plugin from starting");
    match records.load(&uid) {
        Ok(Some(record)) => {
            assert_eq!(fs::read(&file).unwrap(), bytes, "reading changes nothing");
            records.save(&record).unwrap();
            let written = fs::read(&file).unwrap();
            assert_eq!(Records::open(&directory).unwrap().load(&uid).unwrap(), Some(record));
            let again = records.load(&uid).unwrap().expect("it was just written");
            records.save(&again).unwrap();
            assert_eq!(fs::read(&file).unwrap(), written);
            let mut names = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
            assert!(names.all(|name| name == "a.json"), "it is written where it was read, and nothing is put aside");
        }
        Ok(None) => {
            assert!(!file.exists());
            assert_eq!(fs::read(&aside).unwrap(), bytes, "somebody may want to look at it");
        }
        Err(error) => {
            assert!(error.to_string().contains("newer version of this driver"), "{error}");
            assert_eq!(fs::read(&file).unwrap(), bytes, "the newer version may come back");
        }
    }
});
