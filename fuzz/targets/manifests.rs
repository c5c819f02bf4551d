//! Fuzzes [`tests::hostile::MANIFESTS`].
#![no_main]

use libfuzzer_sys::fuzz_target;
use tests::hostile::MANIFESTS;

fuzz_target!(init: MANIFESTS.write_cases(), |bytes: &[u8]| (MANIFESTS.check)(bytes));
