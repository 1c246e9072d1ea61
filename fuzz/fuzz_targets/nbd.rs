//! Feeds new inputs to `lunette_tests::fuzz::nbd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunette_tests::fuzz::nbd(data));
