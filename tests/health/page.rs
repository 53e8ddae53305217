//! `docs/health.md` has the tables of the code.
//!
//! After a change of one: `UPDATE_GOLDEN=1 cargo test --test health page`, then read what git says has changed.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use gpu_dra_plugin::health::cause::KINDS;
use gpu_dra_plugin::health::ledger::SETTLE;
use gpu_dra_plugin::health::xid::{Clears, GROUPS, Group, OTHER};

/// Where the part begins that is made from the code.
const MARK: &str = "cargo test --test health page -->\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/health.md")
}

fn tables() -> String {
    let mut text = String::from("\n## XIDs\n\n| XID | what has happened | by default | cleared by | what to do |\n");
    text.push_str("|---|---|---|---|---|\n");
    for Group { numbers, about, response, clears, advice } in GROUPS.iter().chain([&OTHER]) {
        let numbers = if numbers.is_empty() { "all others".to_owned() } else { ranges(numbers) };
        let clears = match clears {
            Clears::Answer => "an answer",
            Clears::Recovery => "no recovery due",
        };
        writeln!(text, "| {numbers} | {about} | {} | {clears} | {advice} |", response.name()).unwrap();
    }
    text.push_str("\n## Other causes\n\n| cause | taint | what is wrong | by default | cleared when | what to do |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for kind in KINDS {
        let value = if kind.value.is_empty() { String::new() } else { format!(" = {}", kind.value) };
        let (name, about, response) = (kind.name, kind.about, kind.response.name());
        let (taint, cleared, advice) = (format!("`{}`{value}", kind.taint), kind.cleared, kind.advice);
        writeln!(text, "| `{name}` | {taint} | {about} | {response} | {cleared} | {advice} |").unwrap();
    }
    text
}

/// `1, 3-5` for 1, 3, 4, 5.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] if run.len() > 2 => format!("{first}-{last}"),
        run => run.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[test]
fn the_page_has_the_tables_of_the_code() {
    let page = fs::read_to_string(path()).unwrap();
    let (prose, made) = page.split_once(MARK).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path(), format!("{prose}{MARK}{}", tables())).unwrap();
    } else {
        assert_eq!(made, tables(), "UPDATE_GOLDEN=1 makes the page anew");
    }
    assert!(prose.contains(&format!("{} s", SETTLE.as_secs())), "how long an event settles");
}
