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
/// How many bytes a case grows by at once.
const LENGTHEN_BYTES: usize = 5_000;
const MUTATIONS_MAX: usize = 4;

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
        let position_of = |index: &Index| index.index(bytes.len() + 1);
        match self {
            Self::Set(index, value) => {
                let position = position_of(index);
                if let Some(byte) = bytes.get_mut(position) {
                    *byte = *value;
                }
            }
            Self::Cut(index, length) => {
                let start = position_of(index);
                let end = bytes.len().min(start + length);
                drop(bytes.drain(start..end));
            }
            Self::Repeat(index, length) => {
                let start = position_of(index);
                let end = bytes.len().min(start + length);
                let repeated = bytes[start..end].to_vec();
                bytes.splice(end..end, repeated);
            }
            Self::Put(index, piece) => {
                let position = position_of(index);
                bytes.splice(position..position, piece.bytes());
            }
            Self::Lengthen(index) => {
                let position = position_of(index);
                let byte = bytes.get(position).copied().unwrap_or(b'a');
                bytes.splice(position..position, vec![byte; LENGTHEN_BYTES]);
            }
        }
    }
}

fn any_mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<Index>;
    prop_oneof![
        3 => (index(), any::<u8>()).prop_map(|(index, value)| Mutation::Set(index, value)),
        3 => (index(), 1_usize..40).prop_map(|(index, length)| Mutation::Cut(index, length)),
        2 => (index(), 1_usize..40).prop_map(|(index, length)| Mutation::Repeat(index, length)),
        4 => (index(), select(FRAGMENTS.to_vec()))
            .prop_map(|(index, piece)| Mutation::Put(index, piece)),
        1 => index().prop_map(Mutation::Lengthen),
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
    let mutations = prop::collection::vec(any_mutation(), 1..=MUTATIONS_MAX);
    let mutated = (select(cases), mutations).prop_map(|(mut bytes, mutations)| {
        for mutation in mutations {
            mutation.apply(&mut bytes);
        }
        bytes
    });
    let outcome = runner.run(&mutated, |bytes| {
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
