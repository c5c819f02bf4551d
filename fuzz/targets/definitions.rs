//! Fuzzes [`tests::hostile::DEFINITIONS`].
#![no_main]

use libfuzzer_sys::fuzz_target;
use tests::hostile::DEFINITIONS;

fuzz_target!(init: DEFINITIONS.write_cases(), |bytes: &[u8]| (DEFINITIONS.check)(bytes));
