//! Every control message: the first byte says which; what is decoded means the same when encoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::{monitor, namespace, recovery, shard};
use serde::{Serialize, de::DeserializeOwned};

fn check<T: Serialize + DeserializeOwned>(front: &[u8]) {
    let Ok(message) = protocol::decode::<T>("fuzzed", front) else { return };
    let encoded = protocol::encode(&message);
    let again: T = protocol::decode("own", &encoded).expect("what was encoded can be decoded");
    assert_eq!(protocol::encode(&again), encoded);
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, front)) = bytes.split_first() else { return };
    match which % 13 {
        0 => check::<monitor::MonitorRequest>(front),
        1 => check::<monitor::MonitorReply>(front),
        2 => check::<monitor::MapUpdate>(front),
        3 => check::<monitor::OsdReport>(front),
        4 => check::<monitor::ResolveRequest>(front),
        5 => check::<monitor::ResolveReply>(front),
        6 => check::<monitor::ClusterStatus>(front),
        7 => check::<recovery::RecoveryRequest>(front),
        8 => check::<recovery::RecoveryReply>(front),
        9 => check::<namespace::Request>(front),
        10 => check::<namespace::Reply>(front),
        11 => check::<namespace::Recall>(front),
        _ => check::<shard::ExtentsReply>(front),
    }
});
