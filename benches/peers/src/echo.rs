//! The floor: blocking sockets, a thread per connection at each end, one write and one read per
//! message.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use crate::error::PeerError;
use crate::measure::{Measured, Meter, Shape};

/// A request: the size of the reply, and four bytes of nothing.
const REQUEST_BYTES: usize = 8;
/// A reply begins with its size, so that an empty one is something.
const HEAD_BYTES: usize = 4;

pub fn serve(until_told: impl FnOnce(SocketAddr) -> io::Result<()>) -> Result<(), PeerError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that has gone ends its thread.
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(until_told(addr)?)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = [0; REQUEST_BYTES];
    let mut reply = vec![7; HEAD_BYTES + (1 << 20)];
    loop {
        stream.read_exact(&mut request)?;
        let size = u32::from_le_bytes([request[0], request[1], request[2], request[3]]);
        reply[..HEAD_BYTES].copy_from_slice(&size.to_le_bytes());
        let end = (HEAD_BYTES + size as usize).min(reply.len());
        stream.write_all(&reply[..end])?;
    }
}

pub fn load(addr: SocketAddr, server: u32, shape: Shape) -> Result<Measured, PeerError> {
    let meter = Meter::default();
    let clients: Vec<_> = (0..shape.connections)
        .map(|_| {
            let meter = meter.clone();
            std::thread::spawn(move || ask(addr, shape, &meter))
        })
        .collect();
    let measured = meter.watch(shape, server);
    for client in clients {
        client.join().map_err(|_| PeerError::Child("a client thread panicked"))??;
    }
    Ok(measured)
}

fn ask(addr: SocketAddr, shape: Shape, meter: &Meter) -> io::Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&shape.size.to_le_bytes());
    let mut reply = vec![0; HEAD_BYTES + shape.size as usize];
    let mut sent = VecDeque::new();
    while meter.goes_on() {
        while sent.len() < shape.in_flight {
            sent.push_back(Instant::now());
            stream.write_all(&request)?;
        }
        stream.read_exact(&mut reply)?;
        if let Some(begin) = sent.pop_front() {
            meter.answered(begin);
        }
    }
    Ok(())
}
