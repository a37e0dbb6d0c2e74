//! An edited superblock is refused, or says what was written; with its checksum computed anew, it
//! is refused or opens for whom it names, and for nobody else.
#![no_main]

use ec_store::superblock::DataDir;
use fuzz::{Input, Scratch, seal};
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
const OSD: OsdId = OsdId::new(2);
/// Where the checksum of what is before it stands, as the format says.
const CRC_AT: usize = 60;

fn ground() -> Ground {
    let scratch = Scratch::new();
    DataDir::open(scratch.path(), CLUSTER, OSD).expect("a blank directory");
    let file = fs::read(scratch.join("superblock")).expect("it was made");
    Ground { scratch, file }
}

fuzz_target!(|bytes: &[u8]| {
    GROUND.with(|cell| {
        let Ground { scratch, file } = cell.get_or_init(ground);
        let mut edited = file.clone();
        let mut input = Input::new(bytes);
        let is_sealed = input.byte() % 2 == 1;
        input.edit(&mut edited);
        if is_sealed {
            seal(&mut edited, CRC_AT);
        }
        scratch.write("superblock", &edited);
        let Ok(superblock) = DataDir::peek(scratch.path()) else { return };
        let names_us = (superblock.cluster, superblock.osd) == (CLUSTER, OSD);
        assert!(names_us || is_sealed, "an edit that its checksum did not tell");
        DataDir::open(scratch.path(), superblock.cluster, superblock.osd)
            .expect("it opens for whom it names");
        assert_eq!(DataDir::open(scratch.path(), CLUSTER, OSD).is_ok(), names_us);
    });
});
