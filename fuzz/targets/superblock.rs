//! An edited superblock is refused, or says what was written.
#![no_main]

use ec_store::superblock::DataDir;
use fuzz::{Input, Scratch};
use libfuzzer_sys::fuzz_target;
use protocol::{ClusterId, OsdId};
use std::cell::OnceCell;
use std::fs;

struct Ground {
    scratch: Scratch,
    file: Vec<u8>,
}

thread_local! {
    static GROUND: OnceCell<Ground> = const { OnceCell::new() };
}

const CLUSTER: ClusterId = ClusterId::new(5);

fn ground() -> Ground {
    let scratch = Scratch::new();
    DataDir::open(scratch.path(), CLUSTER, OsdId::new(2)).expect("a blank directory");
    let file = fs::read(scratch.join("superblock")).expect("it was made");
    Ground { scratch, file }
}

fuzz_target!(|bytes: &[u8]| {
    GROUND.with(|cell| {
        let Ground { scratch, file } = cell.get_or_init(ground);
        let mut edited = file.clone();
        Input::new(bytes).edit(&mut edited);
        fs::write(scratch.join("superblock"), &edited).expect("the scratch directory can be written");
        if let Ok(superblock) = DataDir::peek(scratch.path()) {
            assert_eq!((superblock.cluster, superblock.osd), (CLUSTER, OsdId::new(2)));
            DataDir::open(scratch.path(), CLUSTER, OsdId::new(2)).expect("what can be looked at can be opened");
        }
    });
});
