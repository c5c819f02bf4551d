//! Fuzzes [`tests::hostile::KEYS`].
#![no_main]

use libfuzzer_sys::fuzz_target;
use tests::hostile::KEYS;

fuzz_target!(init: KEYS.write_cases(), |bytes: &[u8]| (KEYS.check)(bytes));
