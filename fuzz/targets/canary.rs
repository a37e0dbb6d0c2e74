//! A planted fault: four bytes that only coverage leads to. A run of the fuzzer that does not find
//! it finds nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((&[a, b, c, d], _)) = bytes.split_first_chunk::<4>()
        && a == b'T'
        && b == b'R'
        && c == b'F'
        && d == b'L'
    {
        panic!("the planted fault");
    }
});
