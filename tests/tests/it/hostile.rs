//! What strangers send: kept cases, and what is made of them by chance. What must hold is in [`tests::hostile`].

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{TestCaseError, TestRunner};
use tests::hostile::{self, WayIn};

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

/// Calls the check of a way in with each of its cases, and with `count` that are made of them.
fn holds(WayIn { check, cases }: WayIn, count: u32) {
    let cases = cases();
    assert!(!cases.is_empty());
    for case in &cases {
        check(case);
    }
    let mut runner = TestRunner::new(ProptestConfig {
        cases: count,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let changes = prop::collection::vec(change(), 1..=CHANGES_MAX);
    let made = (select(cases), changes).prop_map(|(mut bytes, changes)| {
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

#[test]
fn records_of_any_kind_are_taken_whole_or_not() {
    holds(hostile::RECORDS, 4_000);
}

#[test]
fn keys_of_any_bytes_are_those_that_values_make() {
    holds(hostile::KEYS, 4_000);
}

#[test]
fn definitions_of_any_kind_are_read_or_refused() {
    holds(hostile::DEFINITIONS, 120);
}

#[test]
fn questions_of_any_kind_are_answered_or_refused() {
    holds(hostile::QUESTIONS, 1_000);
}

#[test]
fn a_manifest_that_says_anything_ends_no_run_without_a_word() {
    holds(hostile::MANIFESTS, 24);
}
