//! A small HTTP server for what a process tells of itself: GET of a few pages, one request per
//! connection.
//!
//! Contract: whatever arrives, the process goes on. A connection has [`REQUEST_MAX`] for its
//! request and as long for its answer, however slowly it sends; a request's head has at most
//! [`HEAD_BYTES_MAX`]; at most [`CONNECTIONS_MAX`] are served at once, and those beyond are closed.
//! Each is served by a thread of its own that ends with it: scrapes are rare, and must not wait for
//! a worker that they are to tell of.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::executor::runtime::Handle;
use crate::telemetry::prometheus;

/// Time for a request to arrive, and for its answer to be taken: generous on any network, short for
/// a thread to be held.
pub const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Longest head of a request, in bytes: several times what scrapers and browsers send.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Connections served at once: some scrapers, with room for a few that hang.
pub const CONNECTIONS_MAX: usize = 32;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;
/// Pause after the kernel refused a connection, for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An answer to a GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// MIME type.
    pub content_type: &'static str,
    /// The page itself.
    pub body: String,
}

/// Makes the page for a path, or says that there is none.
pub type Pages = dyn Fn(&str) -> Option<Page> + Send + Sync;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve HTTP on {addr}: {source}; configure another http_listen")]
pub struct HttpError {
    addr: SocketAddr,
    source: io::Error,
}

/// A running server. Dropping it stops it; answers under way are finished.
#[derive(Debug)]
pub struct HttpServer {
    addr: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens on `addr` (port 0 takes a free one) and answers with `pages`.
    ///
    /// # Errors
    /// When the address cannot be had, or no thread can be made.
    pub fn start(addr: SocketAddr, pages: Arc<Pages>) -> Result<HttpServer, HttpError> {
        let failed = |source| HttpError { addr, source };
        let listener = TcpListener::bind(addr).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let accept = move || accept(&listener, &pages, &stop);
        let thread =
            std::thread::Builder::new().name("http".into()).spawn(accept).map_err(failed)?;
        Ok(HttpServer { addr: bound, stopping, thread: Some(thread) })
    }

    /// Serves `/metrics`, of all these runtimes and their companions together, after what `more`
    /// tells, which is asked at each scrape, on a thread that may wait.
    ///
    /// # Errors
    /// As [`HttpServer::start`].
    pub fn metrics(
        addr: SocketAddr,
        handles: Vec<Handle>,
        more: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<HttpServer, HttpError> {
        let pages = move |path: &str| {
            (path == "/metrics").then(|| {
                let reports: Vec<_> = handles.iter().flat_map(Handle::reports).collect();
                Page {
                    content_type: prometheus::CONTENT_TYPE,
                    body: more() + &prometheus::render(&reports),
                }
            })
        };
        HttpServer::start(addr, Arc::new(pages))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stopping.store(true, SeqCst);
        // Only a connection wakes a thread that accepts.
        let ip = match self.addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let woken = TcpStream::connect_timeout(&SocketAddr::new(ip, self.addr.port()), REQUEST_MAX);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            // It catches nothing and panics nowhere; a result has nothing to say.
            let _ = thread.join();
        }
    }
}

/// A place among the connections served.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn accept(listener: &TcpListener, pages: &Arc<Pages>, stopping: &AtomicBool) {
    let served = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if stopping.load(SeqCst) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) =>
            {
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "http: cannot accept connections for the moment");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let place = Place(Arc::clone(&served));
        if served.fetch_add(1, SeqCst) >= CONNECTIONS_MAX {
            tracing::debug!("http: connection closed, {CONNECTIONS_MAX} are served already");
            continue;
        }
        let pages = Arc::clone(pages);
        let serve = move || {
            let _place = place;
            if let Err(error) = serve(&stream, &*pages) {
                tracing::debug!(%error, "http: connection dropped");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("http-answer".into()).spawn(serve) {
            tracing::warn!(%error, "http: no thread for a connection");
        }
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A page.
    Get {
        /// Without query and fragment.
        path: String,
        /// Its head only.
        head: bool,
    },
    /// Something that this server refuses, with this status.
    Refused(&'static str),
}

impl Request {
    /// The request that `bytes` begin with, once its head is whole or cannot become one.
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Partial) => None,
            Ok(httparse::Status::Complete(_)) => {
                let (method, target) =
                    (request.method.unwrap_or_default(), request.path.unwrap_or_default());
                let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
                Some(match method {
                    "GET" => Request::Get { path, head: false },
                    "HEAD" => Request::Get { path, head: true },
                    _ => Request::Refused("405 Method Not Allowed"),
                })
            }
            Err(httparse::Error::TooManyHeaders) => {
                Some(Request::Refused("431 Request Header Fields Too Large"))
            }
            Err(_) => Some(Request::Refused("400 Bad Request")),
        }
    }
}

fn serve(stream: &TcpStream, pages: &Pages) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let request = read_request(stream, Instant::now() + REQUEST_MAX)?;
    let text = |body: String| Page { content_type: "text/plain; charset=utf-8", body };
    let (status, page, head) = match request {
        Request::Refused(status) => (status, text(format!("{status}\n")), false),
        Request::Get { path, head } => match pages(&path) {
            Some(page) => ("200 OK", page, head),
            None => ("404 Not Found", text(format!("no page {path}; there is /metrics\n")), head),
        },
    };
    let Page { content_type, body } = page;
    let length = body.len();
    let head_text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    write_by(stream, head_text.as_bytes(), Instant::now() + REQUEST_MAX)?;
    if !head {
        write_by(stream, body.as_bytes(), Instant::now() + REQUEST_MAX)?;
    }
    stream.shutdown(Shutdown::Write)
}

/// The time left; an error once there is none.
fn remaining(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn read_request(mut stream: &TcpStream, until: Instant) -> io::Result<Request> {
    let mut bytes = Vec::with_capacity(1024);
    let mut chunk = [0; 1024];
    loop {
        stream.set_read_timeout(Some(remaining(until)?))?;
        let count = match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(request) = Request::parse(&bytes) {
            return Ok(request);
        }
        if bytes.len() >= HEAD_BYTES_MAX {
            return Ok(Request::Refused("431 Request Header Fields Too Large"));
        }
    }
}

fn write_by(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(remaining(until)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> HttpServer {
        let pages = |path: &str| {
            (path == "/metrics").then(|| Page { content_type: "text/plain", body: "x 1\n".into() })
        };
        HttpServer::start(([127, 0, 0, 1], 0).into(), Arc::new(pages)).expect("a port")
    }

    /// Sends bytes, and gives all that comes back until the server closes.
    fn exchange(server: &HttpServer, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(server.addr()).expect("it listens");
        // The server may close before all is sent.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn pages_and_refusals() {
        let server = server();
        let page = exchange(&server, b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\nx 1\n"),
            "{page}"
        );
        assert!(page.contains("\r\nContent-Length: 4\r\n"), "{page}");
        let head = exchange(&server, b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        for (request, status) in [
            (&b"GET /other HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\x00\xff\xfe garbage \r\n\r\n", "400"),
            (b"GET /metrics\r\n\r\n", "400"),
        ] {
            let answer = exchange(&server, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }

    #[test]
    fn heads_are_bounded() {
        let server = server();
        let mut long = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        long.resize(HEAD_BYTES_MAX, b'a');
        let answer = exchange(&server, &long);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        let answer = exchange(&server, many.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[test]
    fn the_slow_and_the_silent_keep_nobody_out() {
        let server = server();
        let slow: Vec<TcpStream> = (0..CONNECTIONS_MAX / 2)
            .map(|_| {
                let mut stream = TcpStream::connect(server.addr()).expect("it listens");
                stream.write_all(b"GET /met").expect("taken");
                stream
            })
            .collect();
        let page = exchange(&server, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        drop(slow);
    }

    #[test]
    fn it_outlives_a_flood_and_its_port_is_free_afterwards() {
        let server = server();
        let addr = server.addr();
        let flood: Vec<_> = (0..CONNECTIONS_MAX * 2)
            .map(|_| TcpStream::connect(addr).expect("it listens"))
            .collect();
        drop(flood);
        // Places are free again once the threads have seen the ends of their connections.
        while !exchange(&server, b"GET /metrics HTTP/1.1\r\n\r\n")
            .starts_with("HTTP/1.1 200 OK\r\n")
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(server);
        assert!(TcpListener::bind(addr).is_ok(), "it still listens");
    }

    #[test]
    fn a_taken_port_is_named() {
        let server = server();
        let error = HttpServer::start(server.addr(), Arc::new(|_: &str| None))
            .expect_err("taken")
            .to_string();
        assert!(error.contains(&server.addr().to_string()), "{error}");
    }
}
