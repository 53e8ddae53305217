use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = Cow<'static, [u8]>> {
    prop::collection::vec(1_u8.., 0..12).prop_map(Cow::Owned)
}

prop_compose! {
    fn entry()(
        flags: u32, soname in text(), directory in text(), own in any::<bool>(), os_version: u32, hwcap: u64,
    ) -> Entry<'static> {
        let path = if own { [&directory, &soname].map(|part| part.to_vec()).concat().into() } else { directory };
        Entry { flags, soname, path, os_version, hwcap }
    }
}

prop_compose! {
    fn cache()(
        mut entries in prop::collection::vec(entry(), 0..9),
        hwcaps in prop::collection::vec(text(), 0..4),
        generator in prop::option::of(text()),
    ) -> Cache<'static> {
        // An entry that points to a name that is not there is damage.
        entries.retain(|entry| entry.hwcap >> 32 & !HWCAP_LEVEL != HWCAP_IS_POSITION);
        Cache { entries, hwcaps, generator }
    }
}

/// The table of 2001 before a cache, with so many entries.
fn with_old_table(cache: &[u8], entries: u8) -> Vec<u8> {
    let mut file = [OLD_MAGIC, &[0, entries, 0, 0, 0]].concat();
    file.resize(OLD_HEADER_BYTES + usize::from(entries) * OLD_ENTRY_BYTES, 0);
    file.resize(file.len().next_multiple_of(OLD_ALIGNMENT), 0);
    [file, cache.to_vec()].concat()
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(cache in cache()) {
        let file = cache.write();
        prop_assert_eq!(Cache::parse(&file), Some(cache));
    }

    #[test]
    fn writing_again_changes_nothing(cache in cache()) {
        let file = cache.write();
        prop_assert_eq!(Cache::parse(&file).unwrap().write(), file);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), old: bool) {
        let magic = if old { OLD_MAGIC } else { MAGIC };
        let file = [magic, &bytes].concat();
        if let Some(cache) = Cache::parse(&file) {
            cache.write();
        }
    }

    #[test]
    fn damage_is_read_without_a_panic(cache in cache(), at: prop::sample::Index, word: u32, cut: prop::sample::Index) {
        let mut file = cache.write();
        let at = at.index(file.len());
        let end = (at + 4).min(file.len());
        file[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
        file.truncate(cut.index(file.len() + 1));
        if let Some(cache) = Cache::parse(&file) {
            cache.write();
        }
    }

    #[test]
    fn a_file_that_is_cut_off_before_its_end_is_no_cache(cache in cache(), cut: prop::sample::Index) {
        let file = cache.write();
        prop_assert_eq!(Cache::parse(&file[..cut.index(file.len())]), None);
    }
}

#[test]
fn the_table_of_2001_is_stepped_over() {
    let cache = Cache {
        entries: vec![Entry {
            flags: 0x303,
            soname: b"libx.so.1".as_slice().into(),
            path: b"/lib/libx.so.1".as_slice().into(),
            os_version: 0,
            hwcap: 0,
        }],
        ..Cache::default()
    };
    for entries in 0..5 {
        let file = cache.write();
        // The extensions of this file count from its own beginning, which has moved.
        let mut file = with_old_table(&file, entries);
        let header = start(&file).unwrap();
        file[header + 32..header + 36].fill(0);
        assert_eq!(Cache::parse(&file), Some(cache.clone()), "{entries}");
    }
    assert_eq!(Cache::parse(&with_old_table(b"", 3)), None);
}

#[test]
fn a_cache_of_a_machine_with_the_other_byte_order_is_none() {
    let mut file = Cache::default().write();
    assert!(Cache::parse(&file).is_some());
    file[28] = 3;
    assert_eq!(Cache::parse(&file), None);
}

#[test]
fn a_small_file_that_describes_more_than_fits_in_memory_is_none() {
    let mut file = MAGIC.to_vec();
    let count = 10_000_u32;
    file.extend(count.to_le_bytes());
    file.resize(HEADER_BYTES, 0);
    let strings = u32::try_from(HEADER_BYTES).unwrap() + count * 24;
    for _ in 0..count {
        file.extend([0x303, strings, strings, 0, 0, 0].map(u32::to_le_bytes).concat());
    }
    let all = file.len();
    file.resize(all + MAX_STRING_BYTES - 1, b'x');
    file.push(0);
    assert_eq!(Cache::parse(&file), None);
}
