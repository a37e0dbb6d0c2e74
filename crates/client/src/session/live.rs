//! What of a running client can change, and what the operator is told of it: `trefoil config` with
//! the target `client.N`, which the monitor passes on.
//!
//! Contract: values are checked before anything changes, against the same limits as those of
//! [`ClientConfig::checked`]. What is on its way is not called back; a lower bound counts for what
//! comes next.

use super::Shared;
use crate::config::{ClientConfig, INFLIGHT_BYTES_MAX, INFLIGHT_BYTES_MIN, INFLIGHT_OPS_MAX};
use crate::objecter::local;
use bytes::Bytes;
use messenger::{Connection, Message};
use protocol::Kind;
use protocol::admin::{AdminReply, AdminRequest, Setting};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bounds of a whole client; its workers share them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Inflight {
    pub ops: usize,
    pub op_bytes: usize,
}

/// The same, while they may change.
#[derive(Debug)]
pub(crate) struct LiveInflight {
    ops: AtomicUsize,
    op_bytes: AtomicUsize,
}

impl LiveInflight {
    pub fn new(config: &ClientConfig) -> Self {
        let (ops, op_bytes) = (config.objecter_inflight_ops, config.objecter_inflight_op_bytes);
        Self { ops: AtomicUsize::new(ops), op_bytes: AtomicUsize::new(op_bytes) }
    }

    /// Whoever reads them between two changes gets one old and one new: they do not depend on each
    /// other.
    pub fn get(&self) -> Inflight {
        Inflight {
            ops: self.ops.load(Ordering::Relaxed),
            op_bytes: self.op_bytes.load(Ordering::Relaxed),
        }
    }
}

/// A setting of a running client.
struct Live {
    key: &'static str,
    help: &'static str,
    range: RangeInclusive<usize>,
    of: fn(&LiveInflight) -> &AtomicUsize,
    default: fn(&ClientConfig) -> usize,
}

const LIVE: [Live; 2] = [
    Live {
        key: "objecter_inflight_ops",
        help: "Most reads and writes of objects under way at once; further ones wait",
        range: 1..=INFLIGHT_OPS_MAX,
        of: |live| &live.ops,
        default: |config| config.objecter_inflight_ops,
    },
    Live {
        key: "objecter_inflight_op_bytes",
        help: "Most bytes of them; further ones wait",
        range: INFLIGHT_BYTES_MIN..=INFLIGHT_BYTES_MAX,
        of: |live| &live.op_bytes,
        default: |config| config.objecter_inflight_op_bytes,
    },
];

fn find(key: &str) -> Result<&'static Live, String> {
    let known = || LIVE.map(|live| live.key).join(", ");
    let live = LIVE.iter().find(|live| live.key == key);
    live.ok_or_else(|| {
        format!(
            "a running client has no setting `{key}`, only {}; others are mount options",
            known()
        )
    })
}

fn describe(shared: &Shared, live: &Live) -> Setting {
    let value = (live.of)(&shared.inflight).load(Ordering::Relaxed);
    let usual = (live.default)(&ClientConfig::new("", ""));
    Setting {
        key: live.key.to_owned(),
        value: value.to_string(),
        is_default: value == usual,
        is_live: true,
        help: live.help.to_owned(),
    }
}

/// Changes a setting on all workers.
///
/// # Errors
/// Why not; nothing has changed.
pub(super) fn set(shared: &Shared, key: &str, value: &str) -> Result<Setting, String> {
    let live = find(key)?;
    let (min, max) = (live.range.start(), live.range.end());
    let number = value.parse().ok().filter(|number| live.range.contains(number));
    let number = number
        .ok_or_else(|| format!("{key} = {value}: must be a whole number from {min} to {max}"))?;
    (live.of)(&shared.inflight).store(number, Ordering::Relaxed);
    shared.on_workers(|worker| local::with(worker, |local| local.learn_inflight()));
    tracing::info!(key, value, "setting changed");
    Ok(describe(shared, live))
}

/// Answers a request of kind [`Kind::Admin`]; false: it is another message.
pub(super) fn answer(shared: &Shared, connection: &Connection, message: &Message) -> bool {
    if message.kind != Kind::Admin.to_u16() || !message.is_request() {
        return false;
    }
    let done = match protocol::decode::<AdminRequest>("admin request", &message.front) {
        Ok(AdminRequest::ShowConfig) => {
            Ok(AdminReply::Settings(LIVE.iter().map(|l| describe(shared, l)).collect()))
        }
        Ok(AdminRequest::GetConfig { key }) => {
            find(&key).map(|l| AdminReply::Settings(vec![describe(shared, l)]))
        }
        Ok(AdminRequest::SetConfig { key, value }) => {
            set(shared, &key, &value).map(AdminReply::Changed)
        }
        Err(error) => Err(error.to_string()),
    };
    let reply = done.unwrap_or_else(AdminReply::Refused);
    connection.reply(message, Kind::AdminReply.to_u16(), protocol::encode(&reply), Bytes::new());
    true
}
