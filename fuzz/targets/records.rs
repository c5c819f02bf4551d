//! Fuzzes [`tests::hostile::RECORDS`].
#![no_main]

use libfuzzer_sys::fuzz_target;
use tests::hostile::RECORDS;

fuzz_target!(init: RECORDS.write_cases(), |bytes: &[u8]| (RECORDS.check)(bytes));
