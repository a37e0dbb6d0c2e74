//! Volumes to and from files and pipes, sparse both ways.
//!
//! Contract: a volume that is imported appears under its name when all of it is stored and durable;
//! if the import ends before, nothing is left, also if its process is killed. Zeros are not stored.
//! Pieces are moved several at a time; for ordinary threads, and blocks.

use crate::volume::EXTENTS_RANGE_BYTES_MAX;
use crate::{Access, Outcome, Request, SECTOR_BYTES, Volume, VolumeError, VolumeName, Volumes};
use bytes::Bytes;
use client::ClientError;
use messenger::sync::{Receiver, oneshot};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};

/// Bytes moved at once.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces under way at once.
const PIECES_AHEAD: usize = 8;
/// Zeros are looked for in blocks of so many bytes.
const ZEROS_BYTES: usize = 64 << 10;
/// A volume whose length is not known before grows in such steps.
const GROW_BYTES: u64 = 1 << 40;

/// Where an import comes from.
pub trait Source: Read {
    /// All of its bytes, if that is known before they are read.
    fn length(&self) -> Option<u64>;

    /// Passes over a hole that begins here; returns its length, 0 if there is none or it is not
    /// known.
    ///
    /// # Errors
    /// The system's.
    fn skip_hole(&mut self) -> io::Result<u64>;
}

/// Where an export goes, from its beginning to its end.
pub trait Target {
    /// These bytes come next.
    ///
    /// # Errors
    /// The system's.
    fn data(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// So many zeros come next.
    ///
    /// # Errors
    /// The system's.
    fn hole(&mut self, len: u64) -> io::Result<()>;
}

type UnderWay = VecDeque<Receiver<Result<Outcome, VolumeError>>>;

/// Begins an operation, to be waited for in its turn.
fn begin(volume: &Volume, under_way: &mut UnderWay, request: Request) {
    let (sender, receiver) = oneshot();
    // Whoever waited may have met an error before.
    volume.submit(request, move |outcome| drop(sender.send(outcome)));
    under_way.push_back(receiver);
}

fn end_first(under_way: &mut UnderWay) -> Result<Option<Outcome>, VolumeError> {
    let Some(receiver) = under_way.pop_front() else { return Ok(None) };
    receiver.recv_blocking().unwrap_or(Err(VolumeError::Client(ClientError::Closed))).map(Some)
}

/// Makes a volume of everything that the source has; its size is the source's, up to a whole
/// sector. Returns it. `progress` is called with the bytes done so far.
///
/// # Errors
/// As [`Volumes::create`]; [`VolumeError::Local`] where the source fails.
pub fn import(
    volumes: &Volumes,
    name: &VolumeName,
    pool: Option<&str>,
    source: &mut dyn Source,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, VolumeError> {
    let first =
        source.length().unwrap_or(GROW_BYTES).next_multiple_of(SECTOR_BYTES).max(SECTOR_BYTES);
    let volume = volumes.begin(name, first, pool)?;
    let read = fill(&volume, source, progress)?;
    if read == 0 {
        return Err(VolumeError::Invalid(
            "there is nothing to import: 0 bytes are no volume".into(),
        ));
    }
    let size = read.next_multiple_of(SECTOR_BYTES);
    volumes.publish(volume, size)?;
    Ok(size)
}

fn fill(
    volume: &Volume,
    source: &mut dyn Source,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, VolumeError> {
    let failed =
        |source| VolumeError::Local { what: "reading what is to be imported".into(), source };
    let (mut at, mut under_way) = (0u64, VecDeque::new());
    loop {
        at += source.skip_hole().map_err(failed)?;
        let piece = read_piece(source).map_err(failed)?;
        if piece.is_empty() {
            while end_first(&mut under_way)?.is_some() {}
            return Ok(at);
        }
        let len = piece.len() as u64;
        if at + len > volume.size() {
            return Err(VolumeError::Invalid(
                "what is imported is longer than it said, or than 1 TiB".into(),
            ));
        }
        for run in data_runs(&piece) {
            let (offset, data) = (at + run.start as u64, piece.slice(run));
            begin(volume, &mut under_way, Request::Write { offset, data, fua: false });
            while under_way.len() >= PIECES_AHEAD {
                end_first(&mut under_way)?;
            }
        }
        at += len;
        progress(at);
    }
}

/// A whole piece, or what is left.
fn read_piece(source: &mut dyn Source) -> io::Result<Bytes> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    loop {
        match source.take((PIECE_BYTES - piece.len()) as u64).read_to_end(&mut piece) {
            Ok(_) => return Ok(piece.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The parts of a piece that are not zeros.
fn data_runs(piece: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (number, block) in piece.chunks(ZEROS_BYTES).enumerate() {
        let start = number * ZEROS_BYTES;
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == start => last.end += block.len(),
            _ => runs.push(start..start + block.len()),
        }
    }
    runs
}

/// Writes all of a volume, which nobody may write meanwhile. Returns its size.
///
/// # Errors
/// As [`Volumes::open`]; [`VolumeError::Local`] where the target fails.
pub fn export(
    volumes: &Volumes,
    name: &VolumeName,
    target: &mut dyn Target,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, VolumeError> {
    let volume = volumes.open(name, Access::Read, false)?;
    let drained = drain(&volume, target, progress);
    let closed = volume.close();
    drained.and(closed).map(|()| volume.size())
}

fn drain(
    volume: &Volume,
    target: &mut dyn Target,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Local { what: "writing what is exported".into(), source };
    let size = volume.size();
    let mut at = 0;
    while at < size {
        let range = at..size.min(at + EXTENTS_RANGE_BYTES_MAX);
        let Outcome::Extents(extents) = volume.call(Request::Extents { range })? else {
            return Ok(());
        };
        for extent in extents {
            if extent.is_hole {
                target.hole(extent.len).map_err(failed)?;
            } else {
                drain_data(volume, at, extent.len, &mut |bytes| {
                    target.data(bytes).map_err(failed)
                })?;
            }
            at += extent.len;
            progress(at, size);
        }
    }
    Ok(())
}

fn drain_data(
    volume: &Volume,
    at: u64,
    len: u64,
    give: &mut dyn FnMut(&[u8]) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let (mut asked, mut under_way) = (0, VecDeque::new());
    loop {
        while asked < len && under_way.len() < PIECES_AHEAD {
            let piece = (len - asked).min(PIECE_BYTES as u64);
            begin(
                volume,
                &mut under_way,
                Request::Read { offset: at + asked, len: piece as usize },
            );
            asked += piece;
        }
        match end_first(&mut under_way)? {
            Some(Outcome::Data(data)) => give(&data)?,
            Some(_) => {}
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_passed_over() {
        let mut piece = vec![0; 5 * ZEROS_BYTES + 7];
        assert_eq!(data_runs(&piece), []);
        piece[ZEROS_BYTES] = 1;
        piece[3 * ZEROS_BYTES - 1] = 1;
        piece[5 * ZEROS_BYTES + 6] = 1;
        assert_eq!(
            data_runs(&piece),
            [ZEROS_BYTES..3 * ZEROS_BYTES, 5 * ZEROS_BYTES..5 * ZEROS_BYTES + 7]
        );
        assert_eq!(data_runs(&[]), []);
    }
}
