//! Every control message: the first byte says which; what is decoded means the same when encoded
//! again, and can be used as its receiver uses it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use messenger::histogram::Times;
use messenger::{HistoryReport, Mapping, TelemetryReport};
use protocol::admin::{AdminReply, AdminRequest};
use protocol::{SessionId, monitor, namespace, recovery, scrub, shard};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

fn check<T: Serialize + DeserializeOwned>(front: &[u8]) -> Option<T> {
    let message = protocol::decode::<T>("fuzzed", front).ok()?;
    let encoded = protocol::encode(&message);
    let again: T = protocol::decode("own", &encoded).expect("what was encoded can be decoded");
    assert_eq!(protocol::encode(&again), encoded);
    Some(message)
}

/// What `trefoil` makes of a daemon's or a client's report.
fn show(report: &TelemetryReport) {
    let _ = report.total();
    let _ = report.since(&TelemetryReport { elapsed_ns: report.elapsed_ns / 2, ..report.clone() });
    let mut all = Times::default();
    for operation in &report.operations {
        all.merge(&operation.times.since(&Times::default()));
        let _ = (all.mean_ns(), all.quantile_ns(0.5), all.below(Times::BITS_MAX));
    }
    for listener in &report.listeners {
        for mapping in [Mapping::TrafficAware, Mapping::Lcam] {
            let _ =
                listener.outlook(mapping, vec![1; report.workers.len()], Duration::from_secs(1));
            let _ =
                listener.forecast(mapping, &vec![1; report.workers.len()], Duration::from_secs(1));
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, front)) = bytes.split_first() else { return };
    match which % 22 {
        0 => drop(check::<monitor::MonitorRequest>(front)),
        1 => drop(check::<monitor::MonitorReply>(front)),
        2 => drop(check::<monitor::MapUpdate>(front)),
        3 => drop(check::<monitor::OsdReport>(front)),
        4 => drop(check::<monitor::ResolveRequest>(front)),
        5 => drop(check::<monitor::ResolveReply>(front)),
        6 => drop(check::<monitor::ClusterStatus>(front)),
        7 => drop(check::<recovery::RecoveryRequest>(front)),
        8 => drop(check::<recovery::RecoveryReply>(front)),
        9 => drop(check::<namespace::Request>(front)),
        10 => drop(check::<namespace::Reply>(front)),
        11 => {
            drop(check::<namespace::Recall>(front));
            let _ = check::<namespace::NamesRecall>(front);
        }
        12 => drop(check::<shard::ExtentsReply>(front)),
        13 => drop(check::<namespace::Answer>(front)),
        14 => drop(check::<AdminReply>(front)),
        15 => drop(check::<scrub::ScrubRequest>(front)),
        16 => drop(check::<scrub::ScrubReply>(front)),
        17 => drop(check::<HistoryReport>(front)),
        18 => drop(check::<SessionId>(front)),
        19 => drop(check::<shard::ObjectsReply>(front)),
        20 => check::<Vec<TelemetryReport>>(front).iter().flatten().for_each(show),
        _ => drop(check::<AdminRequest>(front)),
    }
});
