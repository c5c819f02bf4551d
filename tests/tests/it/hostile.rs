//! Hostile input: stored cases, and random mutations of them. [`tests::hostile`] has the checks.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{TestCaseError, TestRunner};
use tests::hostile::{self, InputCheck};

/// Fragments that break texts, records and paths.
const FRAGMENTS: [&str; 24] = [
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
const LENGTH_MAX: usize = 5_000;
const CHANGES_MAX: usize = 4;

/// A mutation of a case.
#[derive(Debug, Clone)]
enum Mutation {
    Set(Index, u8),
    Cut(Index, usize),
    Repeat(Index, usize),
    Put(Index, &'static str),
    Lengthen(Index),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
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
                bytes.splice(at..at, vec![byte; LENGTH_MAX]);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), any::<u8>()).prop_map(|(at, to)| Mutation::Set(at, to)),
        3 => (at(), 1_usize..40).prop_map(|(at, length)| Mutation::Cut(at, length)),
        2 => (at(), 1_usize..40).prop_map(|(at, length)| Mutation::Repeat(at, length)),
        4 => (at(), select(FRAGMENTS.to_vec())).prop_map(|(at, piece)| Mutation::Put(at, piece)),
        1 => at().prop_map(Mutation::Lengthen),
    ]
}

/// Calls the check of an entry point with each of its cases, and with `count` mutations.
fn check_entry_point(InputCheck { check, cases }: InputCheck, count: u32) {
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
    let changes = prop::collection::vec(mutation(), 1..=CHANGES_MAX);
    let made = (select(cases), changes).prop_map(|(mut bytes, changes)| {
        for mutation in changes {
            mutation.apply(&mut bytes);
        }
        bytes
    });
    let outcome = runner.run(&made, |bytes| {
        let ended = std::panic::catch_unwind(|| check(&bytes));
        ended.map_err(|_| TestCaseError::fail(String::from_utf8_lossy(&bytes).into_owned()))
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn hostile_records_are_ingested_completely_or_refused() {
    check_entry_point(hostile::RECORDS, 4_000);
}

#[test]
fn hostile_keys_match_the_encoding_of_values() {
    check_entry_point(hostile::KEYS, 4_000);
}

#[test]
fn hostile_definitions_are_read_or_refused() {
    check_entry_point(hostile::DEFINITIONS, 120);
}

#[test]
fn hostile_requests_are_answered_or_refused() {
    check_entry_point(hostile::QUESTIONS, 1_000);
}

#[test]
fn a_hostile_manifest_gives_an_error() {
    check_entry_point(hostile::MANIFESTS, 24);
}
