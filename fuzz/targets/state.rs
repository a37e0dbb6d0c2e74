//! The monitor's file: raw payloads behind a valid header, and edits of a real file, are refused or
//! give a sound state.
#![no_main]

use cluster::{ControlPlane, Embedded, ExpectedOsd, PoolSpec, create_cluster};
use fuzz::{Input, Scratch};
use libfuzzer_sys::fuzz_target;
use protocol::{ClusterId, OsdId, Profile};
use std::cell::OnceCell;
use std::fs;

struct Ground {
    scratch: Scratch,
    file: Vec<u8>,
}

thread_local! {
    static GROUND: OnceCell<Ground> = const { OnceCell::new() };
}

fn ground() -> Ground {
    let scratch = Scratch::new();
    let osds: Vec<_> = (0..3)
        .map(|id| ExpectedOsd { id: OsdId::new(id), host: format!("host{id}"), weight: 65536 })
        .collect();
    let profile = Profile::new(2, 1, 512, 64 << 20).expect("a valid profile");
    let pool = PoolSpec { name: "data".into(), profile, pg_num: 4 };
    let state = create_cluster(ClusterId::new(9), &osds, &pool).expect("a valid cluster");
    Embedded::open(scratch.path())
        .and_then(|mut plane| plane.save(&state))
        .expect("it can be saved");
    let file = fs::read(scratch.join("state")).expect("it was saved");
    Ground { scratch, file }
}

fn sealed(payload: &[u8], real: &[u8]) -> Vec<u8> {
    let mut bytes = real[..16].to_vec();
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(payload);
    let crc = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    GROUND.with(|cell| {
        let Ground { scratch, file } = cell.get_or_init(ground);
        let mut input = Input::new(bytes);
        let seals = match input.byte() % 3 {
            0 => {
                let mut edited = file.clone();
                input.edit(&mut edited);
                edited
            }
            1 => sealed(input.rest(), file),
            _ => {
                let mut payload = file[24..].to_vec();
                input.edit(&mut payload);
                sealed(&payload, file)
            }
        };
        scratch.write("state", &seals);
        let mut plane = Embedded::open(scratch.path()).expect("nobody else uses it");
        if let Ok(Some(state)) = plane.load() {
            state.check_invariants().expect("a state that was loaded is sound");
        }
    });
});
