//! The head of an HTTP request, raw or an edited good one, whole and in pieces: what a part of it
//! decides, the rest does not change.
#![no_main]

use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use messenger::http::Request;

/// Bytes of a piece at least, so that long heads are not parsed a thousand times.
const PIECE_BYTES_MIN: usize = 16;

const GOOD: &[u8] = b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n";

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let step = PIECE_BYTES_MIN + usize::from(input.byte());
    let head = match input.byte() % 2 {
        0 => input.rest().to_vec(),
        _ => {
            let mut edited = GOOD.to_vec();
            input.edit(&mut edited);
            edited
        }
    };
    let whole = Request::parse(&head);
    let pieces = (step..head.len()).step_by(step);
    if let Some(early) = pieces.map(|end| Request::parse(&head[..end])).find(Option::is_some) {
        assert_eq!(whole, early);
    }
    if let Some(Request::Get { path, .. }) = whole {
        assert!(!path.contains(['?', '#', ' ', '\r', '\n']) && path.len() < head.len(), "{path:?}");
    }
});
