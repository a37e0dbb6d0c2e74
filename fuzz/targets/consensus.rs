//! Frames of replicas: what is decoded is encoded to the same bytes; and two hosts of three, whose
//! frames come with edits, late, twice or never, do not panic, nor do the records of their logs.
#![no_main]

use bytes::Bytes;
use consensus::{
    Config, Frame, GroupId, Host, NodeId, Output, Record, Recovered, ReplicaId, TICK, Voters,
};
use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

const GROUP: GroupId = GroupId(0);
/// Frames on the way, at most.
const FRAMES_MAX: usize = 64;

fn replica(node: u16) -> ReplicaId {
    ReplicaId::new(NodeId(node), 1).expect("a good number")
}

fn host(node: u16) -> Host {
    let rules = Default::default();
    let config =
        Config { replica: replica(node), peers: vec![NodeId(1 - node)], boot: 1, seed: 1, rules };
    let first =
        Recovered::first(GROUP, Voters::of((0..3).map(replica)), Bytes::from_static(b"first"));
    Host::open(config, vec![first], Duration::ZERO).expect("a good log")
}

fn check(bytes: &[u8]) {
    if let Ok(frame) = Frame::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!(frame.encode(), bytes, "what was decoded means the same when encoded again");
    }
    let Some((kind, rest)) = bytes.split_first() else { return };
    let (front, data) = rest.split_at(rest.len().min(26));
    if let Some(record) = Record::decode(*kind, front, Bytes::copy_from_slice(data)) {
        assert_eq!(
            record.encode(),
            (*kind, Bytes::copy_from_slice(front), Bytes::copy_from_slice(data))
        );
    }
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut input = Input::new(bytes);
    let mut hosts = [host(0), host(1)];
    let mut frames: Vec<(usize, Bytes)> = Vec::new();
    let mut writes = [0, 0];
    let mut now = Duration::ZERO;
    while !input.is_empty() {
        let node = usize::from(input.byte() & 1);
        match input.byte() % 8 {
            0..3 => {
                now += TICK;
                hosts.iter_mut().for_each(|host| host.tick(now));
            }
            3 => hosts[node].persisted(writes[node], now),
            4 => {
                let _ = hosts[node].propose(GROUP, Bytes::from_static(b"entry"));
            }
            n if !frames.is_empty() => {
                let at = usize::from(input.byte()) % frames.len();
                let (to, bytes) = if n == 5 { frames[at].clone() } else { frames.remove(at) };
                let mut bytes = bytes.to_vec();
                if n == 7 {
                    // numbers lie behind the first four bytes
                    let place = 4 + usize::from(input.byte()) % bytes.len();
                    let edit = input.byte();
                    bytes.get_mut(place).into_iter().for_each(|byte| *byte = edit);
                }
                check(&bytes);
                if let Ok(frame) = Frame::decode(bytes.into()) {
                    hosts[to].step(frame.from.node(), &frame, now);
                }
            }
            _ => {}
        }
        for (node, host) in hosts.iter_mut().enumerate() {
            for output in host.outputs() {
                match output {
                    // the third is played by what the input makes of the others' frames
                    Output::Send { to, frame } if frames.len() < FRAMES_MAX => {
                        frames.push((usize::from(to.0) & 1, frame.encode()));
                    }
                    Output::Persist(persist) => writes[node] = persist.number,
                    _ => {}
                }
            }
        }
    }
});
