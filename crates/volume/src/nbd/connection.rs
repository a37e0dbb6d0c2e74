//! One client of the NBD server: its options, then its requests.
//!
//! Contract: a thread reads, and may wait; the cluster's workers answer. What a client has under
//! way is bounded by [`REQUESTS_MAX`] and [`BYTES_MAX`]: beyond them nothing is read from it. A
//! client that stops in the middle of a request is cut off after [`super::outbox::STALL_MAX`];
//! between requests it may be silent for ever. What it asked for and was not begun when it went is
//! not done.

use super::budget::{Budget, Permit};
use super::handshake::{Agreed, Handshake, Next, OPTION_BYTES_MAX, OPTIONS_MAX};
use super::outbox::{Outbox, Reply, STALL_MAX, Socket};
use super::server::Shared;
use super::wire::{self, Answer, Command, NbdError, REQUEST_BYTES, RequestHeader, command_flags};
use crate::limits::Kind;
use crate::{Access, Outcome, Request, VolumeError};
use bytes::Bytes;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Requests of one client under way.
pub const REQUESTS_MAX: usize = 256;
/// Bytes of one client under way: two of the longest requests.
pub const BYTES_MAX: usize = 64 << 20;
/// How long a client may take to agree on options.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);
/// Bytes read from a client at once, and ahead.
const READ_AHEAD_BYTES: usize = 64 << 10;
/// What a question for extents may take in memory.
const EXTENTS_BYTES: usize = 4 << 20;
/// How often a request that waits for its limit looks whether its client is still there.
const LIMIT_LOOK: Duration = Duration::from_millis(100);

/// A client.
pub struct Connection {
    outbox: Arc<Outbox>,
    budget: Arc<Budget>,
}

/// Why a client's requests end.
#[derive(Debug)]
enum End {
    /// It says so, or has closed its side.
    Left,
    /// It sends what cannot be understood, or too much.
    Nonsense(&'static str),
    /// The socket, or the server's end.
    Broken(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        if error.kind() == ErrorKind::UnexpectedEof { End::Left } else { End::Broken(error) }
    }
}

impl Connection {
    /// A client that has just connected.
    pub fn new(socket: Socket, shared: &Shared) -> Arc<Connection> {
        let outbox = Arc::new(Outbox::new(socket, shared.locks()));
        Arc::new(Connection { outbox, budget: Budget::new(REQUESTS_MAX, BYTES_MAX) })
    }

    /// Is it over?
    pub fn is_over(&self) -> bool {
        self.outbox.is_broken()
    }

    /// Ends it if its client has gone.
    pub fn end_if_hung_up(&self) {
        if self.outbox.socket().is_hung_up() {
            self.outbox.break_off();
        }
    }

    /// No further requests; those under way are answered.
    pub fn finish(&self) {
        self.outbox.socket().stop_reading();
    }

    /// Ends it at once: nothing more of it is done.
    pub fn cut_off(&self) {
        self.outbox.break_off();
    }

    /// Waits until nothing of it is under way.
    pub fn wait_idle(&self, max: Duration) -> bool {
        self.budget.wait_idle(max)
    }

    /// Serves the client to its end. Blocks; for a thread of its own.
    pub fn serve(self: &Arc<Self>, shared: &Arc<Shared>) {
        let writer = Arc::clone(&self.outbox);
        let writing =
            thread::Builder::new().name("nbd-writer".into()).spawn(move || writer.write());
        let end = match &writing {
            Ok(_) => self.talk(shared),
            Err(error) => Err(End::Broken(io::Error::from(error.kind()))),
        };
        match end {
            Ok(()) | Err(End::Left) => {
                // Who leaves in order gets the answers that are still to come.
                self.wait_idle(STALL_MAX);
                tracing::info!("a client has left");
            }
            Err(End::Nonsense(what)) => tracing::warn!(what, "a client is cut off"),
            Err(End::Broken(error)) => tracing::info!(%error, "a client is lost"),
        }
        self.outbox.break_off();
        if let Ok(writing) = writing {
            // It does not panic, and has nothing to tell.
            let _ = writing.join();
        }
        while !self.wait_idle(STALL_MAX) {
            tracing::warn!("requests of a client that is gone are still under way");
        }
    }

    fn talk(self: &Arc<Self>, shared: &Arc<Shared>) -> Result<(), End> {
        let socket = self.outbox.socket();
        let mut input = BufReader::with_capacity(READ_AHEAD_BYTES, socket);
        socket.prepare(HANDSHAKE_MAX)?;
        let Some(agreed) = self.agree(shared, &mut input)? else { return Ok(()) };
        // What clients that have gone asked for last must not come after what this one asks.
        if !shared.settle_others(self) {
            return Err(End::Nonsense("requests of a client before it are still under way"));
        }
        socket.prepare(STALL_MAX)?;
        tracing::info!(?agreed, "a client is there");
        while let Some(header) = next_header(&mut input)? {
            let header = RequestHeader::decode(&header)
                .ok_or(End::Nonsense("what it sends is no request"))?;
            if header.command == Command::Disc {
                return Ok(());
            }
            self.handle(shared, agreed, header, &mut input)?;
        }
        Ok(())
    }

    /// The options; `None` if the client only had questions.
    fn agree(&self, shared: &Shared, input: &mut impl Read) -> Result<Option<Agreed>, End> {
        let begin = Instant::now();
        let mut output = self.outbox.socket();
        output.write_all(&Handshake::greeting())?;
        let mut handshake = Handshake::new(shared.export());
        if !handshake.client_flags(u32::from_be_bytes(read_array(input)?)) {
            return Err(End::Nonsense("it wants what is not known here"));
        }
        for _ in 0..OPTIONS_MAX {
            if begin.elapsed() > HANDSHAKE_MAX {
                return Err(End::Nonsense("it takes too long to agree on options"));
            }
            if u64::from_be_bytes(read_array(input)?) != wire::IHAVEOPT {
                return Err(End::Nonsense("what it sends is no option"));
            }
            let option = u32::from_be_bytes(read_array(input)?);
            let len = u32::from_be_bytes(read_array(input)?);
            if len > OPTION_BYTES_MAX {
                output.write_all(&Handshake::too_long(option))?;
                return Err(End::Nonsense("an option is too long"));
            }
            let mut data = vec![0; len as usize];
            input.read_exact(&mut data)?;
            let (reply, next) = handshake.option(option, &data);
            output.write_all(&reply)?;
            match next {
                Next::Option => {}
                Next::Requests => return Ok(Some(handshake.agreed())),
                Next::Close => return Ok(None),
            }
        }
        Err(End::Nonsense("it has too many options"))
    }

    fn handle(
        &self,
        shared: &Arc<Shared>,
        agreed: Agreed,
        header: RequestHeader,
        input: &mut impl Read,
    ) -> Result<(), End> {
        let len = header.len as usize;
        let carries = matches!(header.command, Command::Read | Command::Write);
        if header.command == Command::Write && header.len > wire::PAYLOAD_BYTES_MAX {
            return Err(End::Nonsense("a write is too long"));
        }
        let bytes = match header.command {
            Command::BlockStatus => EXTENTS_BYTES,
            _ if carries && header.len <= wire::PAYLOAD_BYTES_MAX => len,
            _ => 0,
        };
        let permits = [self.budget.acquire(bytes), shared.budget().acquire(bytes)];
        let data =
            if header.command == Command::Write { read_bytes(input, len)? } else { Bytes::new() };
        let size = shared.export().size;
        let request = match checked(shared.volume().access(), size, agreed, &header, data) {
            Ok(request) => request,
            Err((error, why)) => {
                let answer = Answer::Error(error, why.to_owned());
                self.reply(agreed, header.cookie, answer, Bytes::new(), permits);
                return Ok(());
            }
        };
        self.keep_limits(shared, &request)?;
        // What was read ahead of a connection that is over is not done: its client may have asked
        // for the same over another since. From here on it counts as under way.
        if self.is_over() {
            return Err(End::Left);
        }
        let (outbox, cookie, is_one) =
            (Arc::clone(&self.outbox), header.cookie, header.flags & command_flags::REQ_ONE != 0);
        let offset = header.offset;
        shared.volume().submit(request, move |outcome| {
            let (answer, data) = answer(offset, is_one, outcome);
            let head = wire::reply_head(agreed.structured, cookie, &answer);
            outbox.push(Reply { head, data, permits });
        });
        Ok(())
    }

    fn reply(
        &self,
        agreed: Agreed,
        cookie: u64,
        answer: Answer,
        data: Bytes,
        permits: [Permit; 2],
    ) {
        let head = wire::reply_head(agreed.structured, cookie, &answer);
        self.outbox.push(Reply { head, data, permits });
    }

    /// Waits as long as the volume's limits want it.
    fn keep_limits(&self, shared: &Shared, request: &Request) -> Result<(), End> {
        let (kind, bytes) = match request {
            Request::Read { len, .. } => (Kind::Read, *len as u64),
            Request::Write { data, .. } => (Kind::Write, data.len() as u64),
            Request::Zero { range, may_punch: false, .. } => (Kind::Write, range.end - range.start),
            Request::Zero { .. } => (Kind::Write, 0),
            Request::Flush | Request::Extents { .. } => return Ok(()),
        };
        let (mut left, mut limits) = shared.admit(kind, bytes);
        while !left.is_zero() {
            if shared.limits_changed(limits) {
                (left, limits) = shared.admit(kind, bytes);
                continue;
            }
            let pause = left.min(LIMIT_LOOK);
            thread::sleep(pause);
            left -= pause;
            // Who is gone may have asked for the same again elsewhere, and for more since.
            self.end_if_hung_up();
            if self.is_over() {
                return Err(End::Left);
            }
        }
        Ok(())
    }
}

/// The next request; `None` if the client has closed its side.
fn next_header(input: &mut BufReader<&Socket>) -> Result<Option<[u8; REQUEST_BYTES]>, End> {
    loop {
        match input.fill_buf() {
            Ok([]) => return Ok(None),
            Ok(_) => return Ok(Some(read_array(input)?)),
            // It has nothing to ask.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn read_array<const N: usize>(input: &mut impl Read) -> Result<[u8; N], End> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_bytes(input: &mut impl Read, len: usize) -> Result<Bytes, End> {
    let mut bytes = Vec::with_capacity(len);
    input.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len { Err(End::Left) } else { Ok(bytes.into()) }
}

/// What a request asks of the volume, or why it cannot be asked.
fn checked(
    access: Access,
    size: u64,
    agreed: Agreed,
    header: &RequestHeader,
    data: Bytes,
) -> Result<Request, (NbdError, &'static str)> {
    use command_flags::*;
    let RequestHeader { flags, command, offset, len, .. } = *header;
    let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
    if changes && access == Access::Read {
        return Err((NbdError::Eperm, "the volume is served for reading only"));
    }
    let known = match command {
        Command::Read => FUA | DF,
        Command::Write | Command::Trim | Command::Flush => FUA,
        Command::WriteZeroes => FUA | NO_HOLE | FAST_ZERO,
        Command::BlockStatus => FUA | REQ_ONE,
        Command::Disc | Command::Unknown(_) => {
            return Err((NbdError::Einval, "the command is not known here"));
        }
    };
    if flags & !known != 0 {
        return Err((NbdError::Einval, "a flag of the command is not known here"));
    }
    if command == Command::Flush {
        return Ok(Request::Flush);
    }
    let Some(end) = header.end().filter(|end| *end <= size) else {
        let error = if matches!(command, Command::Write | Command::WriteZeroes) {
            NbdError::Enospc
        } else {
            NbdError::Einval
        };
        return Err((error, "the range ends beyond the volume"));
    };
    let (range, fua) = (offset..end, flags & FUA != 0);
    match command {
        Command::Read if len > wire::PAYLOAD_BYTES_MAX => {
            Err((NbdError::Einval, "at most 32 MiB can be read at once"))
        }
        Command::Read => Ok(Request::Read { offset, len: len as usize }),
        Command::Write => Ok(Request::Write { offset, data, fua }),
        Command::BlockStatus if !agreed.allocation => {
            Err((NbdError::Einval, "no context was agreed on that could be told of"))
        }
        Command::BlockStatus if len == 0 => Err((NbdError::Einval, "the range is empty")),
        Command::BlockStatus => Ok(Request::Extents { range }),
        Command::WriteZeroes if flags & NO_HOLE != 0 && flags & FAST_ZERO != 0 => {
            Err((NbdError::Enotsup, "zeros that keep their space are written, which is not fast"))
        }
        // Nothing is to be done, but to be durable if that is wanted.
        _ if len == 0 && fua => Ok(Request::Flush),
        _ if len == 0 => Ok(Request::Write { offset, data: Bytes::new(), fua: false }),
        _ => Ok(Request::Zero { range, may_punch: flags & NO_HOLE == 0, fua }),
    }
}

/// What is told of an outcome, and a read's data.
fn answer(offset: u64, is_one: bool, outcome: Result<Outcome, VolumeError>) -> (Answer, Bytes) {
    match outcome {
        Ok(Outcome::Done) => (Answer::Done, Bytes::new()),
        Ok(Outcome::Data(data)) => {
            let len = u32::try_from(data.len()).expect("checked before it was read");
            (Answer::Data(offset, len), data)
        }
        Ok(Outcome::Extents(mut extents)) => {
            extents.truncate(if is_one { 1 } else { wire::EXTENTS_MAX });
            (Answer::Extents(extents), Bytes::new())
        }
        Err(error) => {
            let what = match &error {
                VolumeError::Taken(_) => NbdError::Eshutdown,
                other => NbdError::of_errno(other.errno()),
            };
            tracing::warn!(%error, offset, "a request has failed");
            (Answer::Error(what, error.to_string()), Bytes::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn header(command: Command, flags: u16, offset: u64, len: u32) -> RequestHeader {
        RequestHeader { flags, command, cookie: 1, offset, len }
    }

    fn check(command: Command, flags: u16, offset: u64, len: u32) -> Result<Request, NbdError> {
        let agreed = Agreed { structured: true, allocation: true };
        checked(Access::Write, SIZE, agreed, &header(command, flags, offset, len), Bytes::new())
            .map_err(|(e, _)| e)
    }

    #[test]
    fn ranges_end_with_the_volume() {
        for (command, error) in [
            (Command::Read, NbdError::Einval),
            (Command::Write, NbdError::Enospc),
            (Command::Trim, NbdError::Einval),
            (Command::WriteZeroes, NbdError::Enospc),
            (Command::BlockStatus, NbdError::Einval),
        ] {
            assert!(check(command, 0, SIZE - 512, 512).is_ok());
            for (offset, len) in
                [(SIZE - 511, 512), (SIZE, 1), (u64::MAX, 1), (u64::MAX, u32::MAX), (0, u32::MAX)]
            {
                assert_eq!(
                    check(command, 0, offset, len),
                    Err(error),
                    "{command:?} {offset} {len}"
                );
            }
        }
        assert_eq!(check(Command::Flush, 0, u64::MAX, u32::MAX), Ok(Request::Flush));
    }

    #[test]
    fn flags_and_commands_that_are_not_known_are_refused() {
        use command_flags::*;
        assert_eq!(check(Command::Read, NO_HOLE, 0, 1), Err(NbdError::Einval));
        assert_eq!(check(Command::Write, 1 << 9, 0, 1), Err(NbdError::Einval));
        assert_eq!(check(Command::Unknown(5), 0, 0, 1), Err(NbdError::Einval));
        assert_eq!(check(Command::WriteZeroes, NO_HOLE | FAST_ZERO, 0, 1), Err(NbdError::Enotsup));
        let zero = |may_punch| Ok(Request::Zero { range: 0..512, may_punch, fua: false });
        assert_eq!(check(Command::WriteZeroes, FAST_ZERO, 0, 512), zero(true));
        assert_eq!(check(Command::WriteZeroes, NO_HOLE, 0, 512), zero(false));
        assert_eq!(check(Command::Trim, FUA, 7, 0), Ok(Request::Flush));
    }

    #[test]
    fn what_is_served_for_reading_is_not_changed() {
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            let found = checked(
                Access::Read,
                SIZE,
                Agreed::default(),
                &header(command, 0, 0, 512),
                Bytes::new(),
            );
            assert_eq!(found.map_err(|(error, _)| error), Err(NbdError::Eperm));
        }
        let status = header(Command::BlockStatus, 0, 0, 512);
        let found = checked(Access::Read, SIZE, Agreed::default(), &status, Bytes::new());
        assert_eq!(found.map_err(|(error, _)| error), Err(NbdError::Einval), "no context");
    }

    #[test]
    fn only_the_first_extent_where_one_is_asked_for() {
        let extents = vec![crate::Extent { len: 1, is_hole: true }; wire::EXTENTS_MAX + 5];
        for (is_one, count) in [(true, 1), (false, wire::EXTENTS_MAX)] {
            let (found, _) = answer(0, is_one, Ok(Outcome::Extents(extents.clone())));
            assert!(matches!(found, Answer::Extents(found) if found.len() == count));
        }
    }
}
