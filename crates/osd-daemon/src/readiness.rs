//! Waiting until a cluster serves data.

use bytes::Bytes;
use messenger::sync::block_on;
use messenger::{ConnectConfig, Handle, Message, NoService, TrafficClass};
use protocol::monitor::{ClusterStatus, MonitorReply, MonitorRequest, PgCondition};
use protocol::{ClusterId, Kind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Pause between two questions.
const POLL: Duration = Duration::from_millis(50);
/// How long the monitor may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Asks the monitor until every PG serves and the metadata service is up, for `wait_max` at most;
/// the last state that it told. For ordinary threads.
pub fn wait_until_serving(
    handle: &Handle,
    monitor: SocketAddr,
    wait_max: Duration,
) -> Option<ClusterStatus> {
    let config = ConnectConfig::new(monitor, ClusterId::new(0), "readiness");
    let connection = handle.connect(0, config, |_| Rc::new(NoService));
    let deadline = Instant::now() + wait_max;
    let mut last = None;
    while Instant::now() < deadline {
        let front = protocol::encode(&MonitorRequest::Status);
        let question =
            Message::new(TrafficClass::Control, Kind::Monitor.to_u16(), front, Bytes::new());
        if let Ok(answer) = block_on(connection.call(question, ANSWER_MAX))
            && let Ok(MonitorReply::Status(status)) = protocol::decode("status", &answer.front)
        {
            let serving = is_serving(&status);
            last = Some(*status);
            if serving {
                break;
            }
        }
        std::thread::sleep(POLL);
    }
    connection.close();
    last
}

fn is_serving(status: &ClusterStatus) -> bool {
    let waiting = |c: &PgCondition| matches!(c, PgCondition::Peering | PgCondition::Down);
    status.mds.is_some()
        && !status.pgs.iter().any(|(condition, count)| waiting(condition) && *count > 0)
}
