//! A proxy between clients and a server, that cuts connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Passes bytes between clients and a server; cuts all connections on demand, or each after some
/// bytes.
pub struct Proxy {
    pub addr: SocketAddr,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    pub connections: Arc<AtomicUsize>,
    /// Connections made before this many passed nothing on any more, and are not closed.
    muted: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl Proxy {
    /// `cut_after` gives the bytes after which the n-th connection is cut.
    pub fn start(server: SocketAddr, cut_after: impl Fn(usize) -> usize + Send + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let (sockets, connections, stopped) = (Arc::default(), Arc::default(), Arc::default());
        let muted = Arc::<AtomicUsize>::default();
        let proxy = Proxy {
            addr,
            sockets: Arc::clone(&sockets),
            connections: Arc::clone(&connections),
            muted: Arc::clone(&muted),
            stopped: Arc::clone(&stopped),
        };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if stopped.load(SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else {
                    continue;
                };
                let number = connections.fetch_add(1, SeqCst);
                let budget = Arc::new(AtomicUsize::new(cut_after(number)));
                sockets.lock().expect("no panic").extend([clone(&client), clone(&server)]);
                for (from, to) in [(clone(&client), clone(&server)), (server, client)] {
                    let (budget, muted) = (Arc::clone(&budget), Arc::clone(&muted));
                    std::thread::spawn(move || {
                        pump(from, to, &budget, || number < muted.load(SeqCst))
                    });
                }
            }
        });
        proxy
    }

    /// What goes over the connections that there are vanishes from now on, as if the peers'
    /// machines had.
    pub fn mute(&self) {
        self.muted.store(self.connections.load(SeqCst), SeqCst);
    }

    pub fn cut(&self) {
        for socket in self.sockets.lock().expect("no panic").drain(..) {
            // It may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopped.store(true, SeqCst);
        self.cut();
        drop(TcpStream::connect(self.addr));
    }
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a descriptor")
}

fn pump(mut from: TcpStream, mut to: TcpStream, budget: &AtomicUsize, is_muted: impl Fn() -> bool) {
    let mut chunk = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        if is_muted() {
            continue;
        }
        let left = budget.load(SeqCst);
        let pass = count.min(left);
        budget.store(left - pass, SeqCst);
        if to.write_all(&chunk[..pass]).is_err() || pass < count {
            break;
        }
    }
    // Either may be closed already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
