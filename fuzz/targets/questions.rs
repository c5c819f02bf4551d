//! Fuzzes [`tests::hostile::QUESTIONS`].
#![no_main]

use libfuzzer_sys::fuzz_target;
use tests::hostile::QUESTIONS;

fuzz_target!(init: QUESTIONS.write_cases(), |bytes: &[u8]| (QUESTIONS.check)(bytes));
