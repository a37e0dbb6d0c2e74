//! Connections of one core to the cores of other OSDs, for recovery.
//!
//! Contract: lives on the core's worker. One connection per (OSD, core of it), made when first
//! used, made anew when the OSD has another address or the connection was closed for good. A call
//! that fails gives `None`: whoever asks tries again while it still makes sense.

use bytes::Bytes;
use cluster::ClusterMap;
use messenger::{ConnState, ConnectConfig, Connection, Message, NoService, TrafficClass, Worker};
use protocol::recovery::{RecoveryReply, RecoveryRequest};
use protocol::{ClusterId, Kind, OsdId, PgId, ShardIndex};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time for a member to answer: it may have to read a piece from a slow disk behind client I/O.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct Peers {
    worker: Worker,
    cluster: ClusterId,
    name: String,
    map: RefCell<Option<Arc<ClusterMap>>>,
    open: RefCell<HashMap<(OsdId, u16), Connection>>,
}

impl Peers {
    /// Nobody yet.
    pub fn new(worker: Worker, cluster: ClusterId, name: String) -> Self {
        Self { worker, cluster, name, map: RefCell::default(), open: RefCell::default() }
    }

    /// Peers are where this map says; connections to those that moved or went down are closed.
    pub fn learn(&self, map: Arc<ClusterMap>) {
        self.open.borrow_mut().retain(|(osd, _), connection| {
            let up = map.osds.get(osd).is_some_and(|o| o.up && o.addr == Some(connection.peer()));
            if !up {
                connection.close();
            }
            up
        });
        *self.map.borrow_mut() = Some(map);
    }

    /// Closes everything.
    pub fn close(&self) {
        self.open.borrow_mut().drain().for_each(|(_, connection)| connection.close());
    }

    fn connection(&self, pg: PgId, shard: ShardIndex) -> Option<Connection> {
        let map = self.map.borrow().clone()?;
        let osd = map.osd_of(pg, shard)?;
        let info = map.osds.get(&osd).filter(|o| o.up)?;
        let (addr, lane) = (info.addr?, pg.core(info.cores.max(1)).get());
        let mut open = self.open.borrow_mut();
        if let Some(known) =
            open.get(&(osd, lane)).filter(|c| c.peer() == addr && c.state() != ConnState::Closed)
        {
            return Some(known.clone());
        }
        let config =
            ConnectConfig { lane, ..ConnectConfig::new(addr, self.cluster, self.name.clone()) };
        let connection =
            self.worker.handle().connect(self.worker.index(), config, |_| Rc::new(NoService));
        open.insert((osd, lane), connection.clone());
        Some(connection)
    }

    /// Asks the member that holds `shard` of the request's PG.
    pub async fn ask(
        &self,
        shard: ShardIndex,
        request: &RecoveryRequest,
    ) -> Option<(RecoveryReply, Bytes)> {
        let connection = self.connection(request.pg, shard)?;
        let front = protocol::encode(request);
        let message =
            Message::new(TrafficClass::Background, Kind::Recovery.to_u16(), front, Bytes::new());
        match connection.call(message, ANSWER_MAX).await {
            Ok(reply) => match protocol::decode::<RecoveryReply>("recovery reply", &reply.front) {
                Ok(answer) => Some((answer, reply.data)),
                Err(error) => {
                    tracing::warn!(peer = %connection.peer(), %error, "answer of a member dropped");
                    None
                }
            },
            Err(error) => {
                tracing::debug!(pg = %request.pg, %shard, %error, "no answer of a member");
                None
            }
        }
    }
}
