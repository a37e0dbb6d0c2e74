//! The messenger, with one worker at each end.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use messenger::sync::block_on;
use messenger::{
    CallError, ConnectConfig, Connection, ListenConfig, Message, NoService, Runtime, RuntimeConfig,
    Service, TrafficClass, Worker,
};
use placement::threads::{Mapping, PlacementConfig};
use protocol::ClusterId;

use crate::error::PeerError;
use crate::measure::{Measured, Meter, Shape};

const DEADLINE: Duration = Duration::from_secs(30);

struct Server(Bytes);

impl Service for Server {
    fn on_message(&self, _: &Worker, connection: &Connection, message: Message) {
        let size =
            message.front.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
        connection.reply(&message, 2, Bytes::new(), self.0.slice(..size.min(self.0.len())));
    }
}

pub fn serve(until_told: impl FnOnce(SocketAddr) -> io::Result<()>) -> Result<(), PeerError> {
    let runtime = Runtime::start(RuntimeConfig::new("server", 1))?;
    let data = Bytes::from(vec![7; 1 << 20]);
    let config = ListenConfig {
        placement: PlacementConfig::new(Mapping::RoundRobin),
        ..ListenConfig::new((Ipv4Addr::LOCALHOST, 0).into(), ClusterId::new(1), "server")
    };
    let listener = runtime.handle().listen(config, move |_| Rc::new(Server(data.clone())))?;
    Ok(until_told(listener.local_addr())?)
}

pub fn load(addr: SocketAddr, server: u32, shape: Shape) -> Result<Measured, PeerError> {
    let runtime = Runtime::start(RuntimeConfig::new("client", 1))?;
    let meter = Meter::default();
    let mut front = [0; 8];
    front[..4].copy_from_slice(&shape.size.to_le_bytes());
    let front = Bytes::copy_from_slice(&front);
    let mut askers = Vec::new();
    for _ in 0..shape.connections {
        let to = ConnectConfig::new(addr, ClusterId::new(1), "client");
        let connection = runtime.handle().connect(0, to, |_| Rc::new(NoService));
        for _ in 0..shape.in_flight {
            let (connection, meter, front) = (connection.clone(), meter.clone(), front.clone());
            askers.push(runtime.handle().run_on(0, move |_| ask(connection, meter, front)));
        }
    }
    let measured = meter.watch(shape, server);
    for asker in askers {
        block_on(asker).map_err(|_| PeerError::Child("a client task is gone"))??;
    }
    Ok(measured)
}

async fn ask(connection: Connection, meter: Meter, front: Bytes) -> Result<(), CallError> {
    while meter.goes_on() {
        let begin = Instant::now();
        connection
            .call(Message::new(TrafficClass::Client, 1, front.clone(), Bytes::new()), DEADLINE)
            .await?;
        meter.answered(begin);
    }
    Ok(())
}
