//! What strangers send: kept cases, and what is made of them by chance. What must hold is in [`tests::hostile`].

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{TestCaseError, TestRunner};
use tests::hostile::{self, BETWEEN_FILES};

use crate::tidy::root;

/// What texts, records and paths are broken with.
const PIECES: [&str; 24] = [
    "null",
    "-1",
    "9223372036854775807",
    "-9223372036854775809",
    "1e400",
    "\"",
    "{",
    "}",
    "[",
    "\u{0}",
    "%",
    "%00",
    "&",
    "=",
    "..",
    "/",
    "\u{e9}",
    "\u{10ffff}",
    "\n",
    "SELECT 1",
    "(",
    ",",
    ";",
    "0001-01-01",
];
const LONG: usize = 5_000;
const CHANGES_MAX: usize = 4;

/// One change of a case.
#[derive(Debug, Clone)]
enum Change {
    Set(Index, u8),
    Cut(Index, usize),
    Repeat(Index, usize),
    Put(Index, &'static str),
    Lengthen(Index),
}

impl Change {
    fn of(&self, bytes: &mut Vec<u8>) {
        let place = |index: &Index| index.index(bytes.len() + 1);
        match self {
            Self::Set(index, to) => {
                let at = place(index);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *to;
                }
            }
            Self::Cut(index, length) => {
                let from = place(index);
                let to = bytes.len().min(from + length);
                drop(bytes.drain(from..to));
            }
            Self::Repeat(index, length) => {
                let from = place(index);
                let to = bytes.len().min(from + length);
                let again = bytes[from..to].to_vec();
                bytes.splice(to..to, again);
            }
            Self::Put(index, piece) => {
                let at = place(index);
                bytes.splice(at..at, piece.bytes());
            }
            Self::Lengthen(index) => {
                let at = place(index);
                let byte = bytes.get(at).copied().unwrap_or(b'a');
                bytes.splice(at..at, vec![byte; LONG]);
            }
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), any::<u8>()).prop_map(|(at, to)| Change::Set(at, to)),
        3 => (at(), 1_usize..40).prop_map(|(at, length)| Change::Cut(at, length)),
        2 => (at(), 1_usize..40).prop_map(|(at, length)| Change::Repeat(at, length)),
        4 => (at(), select(PIECES.to_vec())).prop_map(|(at, piece)| Change::Put(at, piece)),
        1 => at().prop_map(Change::Lengthen),
    ]
}

/// Calls `check` with each of `cases`, and with `count` that are made of them.
fn holds(check: fn(&[u8]), cases: &[Vec<u8>], count: u32) {
    assert!(!cases.is_empty());
    for case in cases {
        check(case);
    }
    let mut runner = TestRunner::new(ProptestConfig {
        cases: count,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let changes = prop::collection::vec(change(), 1..=CHANGES_MAX);
    let made = (select(cases.to_vec()), changes).prop_map(|(mut bytes, changes)| {
        for change in changes {
            change.of(&mut bytes);
        }
        bytes
    });
    let held = runner.run(&made, |bytes| {
        let ended = std::panic::catch_unwind(|| check(&bytes));
        ended.map_err(|_| TestCaseError::fail(String::from_utf8_lossy(&bytes).into_owned()))
    });
    held.unwrap_or_else(|error| panic!("{error}"));
}

/// The lines of a file of cases.
fn kept(name: &str) -> Vec<Vec<u8>> {
    let path = root().join("tests/hostile/cases").join(name);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| line.as_bytes().to_vec()).collect()
}

/// Bytes that are written as two digits each.
fn of_hex(line: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(line).expect("digits");
    let bytes = (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16));
    bytes.collect::<Result<_, _>>().expect("digits")
}

#[test]
fn records_of_any_kind_are_taken_whole_or_not() {
    let mut cases = kept("records.txt");
    cases.extend(kept("records.hex").iter().map(|line| of_hex(line)));
    holds(hostile::records, &cases, 4_000);
}

#[test]
fn keys_of_any_bytes_are_those_that_values_make() {
    holds(hostile::keys, &hostile::made_keys(), 4_000);
}

#[test]
fn definitions_of_any_kind_are_read_or_refused() {
    let views = fs::read_dir(root().join("jobs/views")).expect("the views");
    let text = |path: &Path| fs::read_to_string(path).expect("a file");
    let cases = views.flatten().map(|view| {
        let (definition, sql) = (view.path().join("job.toml"), view.path().join("query.sql"));
        // A view over another one is refused: there is no other.
        let definition: Vec<String> = text(&definition)
            .lines()
            .filter(|line| !line.starts_with("over"))
            .map(str::to_owned)
            .collect();
        let sql = text(&sql);
        [definition.join("\n").as_str(), BETWEEN_FILES, &sql]
            .concat()
            .into_bytes()
    });
    holds(hostile::definitions, &cases.collect::<Vec<_>>(), 120);
}

#[test]
fn questions_of_any_kind_are_answered_or_refused() {
    let mut cases = kept("questions.txt");
    cases.extend(hostile::open_cursors().into_iter().map(String::into_bytes));
    holds(hostile::questions, &cases, 1_000);
}

#[test]
fn a_manifest_that_says_anything_ends_no_run_without_a_word() {
    let count = hostile::manifest_count();
    assert!(count > 3, "{count}");
    let cases = (0..count).map(|which| {
        let which_byte = u8::try_from(which).expect("few manifests");
        [vec![which_byte], hostile::manifest(which)].concat()
    });
    holds(hostile::replaced_manifest, &cases.collect::<Vec<_>>(), 24);
}
