//! gRPC by `tonic`, with one thread at each end, a channel per connection, and messages that are
//! raw bytes: what a protobuf message with one field of bytes would cost, without the copy into
//! that field.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::Service;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::error::PeerError;
use crate::measure::{Measured, Meter, Shape};

const METHOD: &str = "/bench.Peers/Read";

/// Messages as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[derive(Clone)]
struct Peers(Bytes);

impl NamedService for Peers {
    const NAME: &'static str = "bench.Peers";
}

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for Peers {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let read = Read(self.0.clone());
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).unary(read, request).await) })
    }
}

struct Read(Bytes);

impl UnaryService<Bytes> for Read {
    type Response = Bytes;
    type Future = Answer<Response<Bytes>, Status>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let size = request.into_inner().first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
            as usize;
        let reply = self.0.slice(..size.min(self.0.len()));
        Box::pin(async move { Ok(Response::new(reply)) })
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

pub fn serve(until_told: impl FnOnce(SocketAddr) -> io::Result<()>) -> Result<(), PeerError> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let addr = listener.local_addr()?;
    std::thread::spawn(move || -> Result<(), PeerError> {
        runtime()?.block_on(async move {
            // The server's own setting counts for listeners that it makes itself only.
            let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?)
                .map(|stream| stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)));
            let peers = Peers(Bytes::from(vec![7; 1 << 20]));
            Ok(Server::builder().add_service(peers).serve_with_incoming(incoming).await?)
        })
    });
    Ok(until_told(addr)?)
}

pub fn load(addr: SocketAddr, server: u32, shape: Shape) -> Result<Measured, PeerError> {
    let meter = Meter::default();
    let asked = meter.clone();
    let client = std::thread::spawn(move || runtime()?.block_on(ask_all(addr, shape, asked)));
    let measured = meter.watch(shape, server);
    client.join().map_err(|_| PeerError::Child("the client thread panicked"))??;
    Ok(measured)
}

async fn ask_all(addr: SocketAddr, shape: Shape, meter: Meter) -> Result<(), PeerError> {
    let mut askers = Vec::new();
    for _ in 0..shape.connections {
        let endpoint = Endpoint::from_shared(format!("http://{addr}"))?.tcp_nodelay(true);
        let channel = endpoint.connect().await?;
        for _ in 0..shape.in_flight {
            askers.push(tokio::spawn(ask(channel.clone(), shape.size, meter.clone())));
        }
    }
    for asker in askers {
        let outcome = asker.await.map_err(|_| PeerError::Child("a client task panicked"))?;
        outcome.map_err(|status| PeerError::Status(status.to_string()))?;
    }
    Ok(())
}

async fn ask(channel: Channel, size: u32, meter: Meter) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel);
    let mut request = [0; 8];
    request[..4].copy_from_slice(&size.to_le_bytes());
    let request = Bytes::copy_from_slice(&request);
    while meter.goes_on() {
        let begin = Instant::now();
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        client.unary(Request::new(request.clone()), PathAndQuery::from_static(METHOD), Raw).await?;
        meter.answered(begin);
    }
    Ok(())
}
