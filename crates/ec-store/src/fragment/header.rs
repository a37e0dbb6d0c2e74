//! The first 128 bytes of a fragment file.
//!
//! Contract: pure conversion. Little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `TREFRAG\0` |
//! | 8 | 4 | format version |
//! | 12 | 1 | k |
//! | 13 | 1 | m |
//! | 14 | 1 | shard |
//! | 15 | 1 | zero |
//! | 16 | 16 | gfid |
//! | 32 | 4 | index |
//! | 36 | 4 | chunk, bytes |
//! | 40 | 8 | object size, bytes |
//! | 48 | 16 | cluster id |
//! | 64 | 8 | session of the last applied record |
//! | 72 | 8 | its seq |
//! | 80 | 8 | its epoch |
//! | 88 | 8 | logical end, user bytes of the object |
//! | 96 | 8 | PG |
//! | 104 | 4 | bytes of a slot; 0: every slot lies in its own place |
//! | 108 | 4 | places for slots |
//! | 112 | 4 | to a multiple of how many bytes the data begins; 0: 4096, as before format 3 |
//! | 116 | 8 | zero |
//! | 124 | 4 | CRC32C of bytes 0..124 |

use super::slots::{SLOT_BYTES_MAX, is_slot_size};
use super::{FragmentError, FragmentKey, FragmentVersion};
use crate::superblock::{FORMAT_VERSION, FORMATS};
use protocol::ids::{ClusterId, Epoch, Profile, Seq, SessionId};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub(super) const HEADER_BYTES: u64 = 128;

const MAGIC: [u8; 8] = *b"TREFRAG\0";
const CRC_AT: usize = HEADER_BYTES as usize - 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format: U32,
    k: u8,
    m: u8,
    shard: u8,
    zero: u8,
    gfid: U128,
    index: U32,
    chunk: U32,
    object_bytes: U64,
    cluster: U128,
    session: U64,
    seq: U64,
    epoch: U64,
    logical_end: U64,
    pg: U64,
    slot_bytes: U32,
    places: U32,
    alignment: U32,
    reserved: [u8; 8],
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() as u64 == HEADER_BYTES);

/// What a header says beyond the name of its fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) profile: Profile,
    pub(super) version: FragmentVersion,
    pub(super) logical_end: u64,
    /// Bytes of a slot and number of places, if there are more places than slots.
    pub(super) places: Option<(u32, u16)>,
    pub(super) alignment: Alignment,
}

/// Where in a file its data, and its further places, may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alignment {
    /// At any page: files made before format 3.
    Page,
    /// Where slots of any size do not cross more units of the page cache than they must: Linux
    /// makes these as large as the call that writes first, but begins them only at multiples of
    /// their size. Random writes of 32 KiB, synced, take a third less of a processor.
    Slot,
}

impl Alignment {
    /// In bytes.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Page => 4096,
            Self::Slot => u64::from(SLOT_BYTES_MAX),
        }
    }

    fn to_raw(self) -> u32 {
        match self {
            Self::Page => 0,
            Self::Slot => SLOT_BYTES_MAX,
        }
    }

    fn from_raw(raw: u32) -> Option<Self> {
        [Self::Page, Self::Slot].into_iter().find(|alignment| alignment.to_raw() == raw)
    }
}

impl Header {
    /// The bytes on disk.
    pub(super) fn encode(
        &self,
        key: FragmentKey,
        cluster: ClusterId,
    ) -> [u8; HEADER_BYTES as usize] {
        let (slot_bytes, places) = self.places.unwrap_or_default();
        let mut raw = Raw {
            magic: MAGIC,
            format: FORMAT_VERSION.into(),
            k: self.profile.k(),
            m: self.profile.m(),
            shard: key.shard.get(),
            zero: 0,
            gfid: key.object.gfid.get().into(),
            index: key.object.index.into(),
            chunk: self.profile.chunk_bytes().into(),
            object_bytes: self.profile.object_bytes().into(),
            cluster: cluster.get().into(),
            session: self.version.session.get().into(),
            seq: self.version.seq.get().into(),
            epoch: self.version.epoch.get().into(),
            logical_end: self.logical_end.into(),
            pg: key.pg.to_u64().into(),
            slot_bytes: slot_bytes.into(),
            places: u32::from(places).into(),
            alignment: self.alignment.to_raw().into(),
            reserved: [0; 8],
            crc: 0.into(),
        };
        raw.crc = crc32c::crc32c(&raw.as_bytes()[..CRC_AT]).into();
        zerocopy::transmute!(raw)
    }

    /// Reads and checks the bytes on disk.
    ///
    /// # Errors
    /// [`FragmentError::BadHeader`] and [`FragmentError::OtherCluster`].
    pub(super) fn decode(
        bytes: &[u8],
        key: FragmentKey,
        cluster: ClusterId,
    ) -> Result<Self, FragmentError> {
        let bad = |what| FragmentError::BadHeader { key, what };
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| bad("is cut short"))?;
        if raw.magic != MAGIC {
            return Err(bad("has no magic"));
        }
        if !FORMATS.contains(&raw.format.get()) {
            return Err(bad("has another format version"));
        }
        if raw.crc.get() != crc32c::crc32c(&bytes[..CRC_AT]) {
            return Err(bad("fails its checksum"));
        }
        let is_ours = raw.gfid.get() == key.object.gfid.get()
            && raw.index.get() == key.object.index
            && raw.shard == key.shard.get()
            && raw.pg.get() == key.pg.to_u64();
        if !is_ours {
            return Err(bad("is that of another fragment"));
        }
        let found = ClusterId::new(raw.cluster.get());
        if found != cluster {
            return Err(FragmentError::OtherCluster { key, found });
        }
        let profile = Profile::new(raw.k, raw.m, raw.chunk.get(), raw.object_bytes.get())
            .map_err(|_| bad("has an impossible profile"))?;
        let places = match (raw.slot_bytes.get(), raw.places.get()) {
            (0, 0) => None,
            (slot_bytes, places) if is_slot_size(slot_bytes) => {
                let slots = profile.fragment_bytes() / u64::from(slot_bytes);
                let places = u16::try_from(places)
                    .ok()
                    .filter(|&places| u64::from(places) > slots && slots > 0);
                Some((slot_bytes, places.ok_or(bad("has impossible places"))?))
            }
            _ => return Err(bad("has impossible slots")),
        };
        let version = FragmentVersion {
            session: SessionId::new(raw.session.get()),
            seq: Seq::new(raw.seq.get()),
            epoch: Epoch::new(raw.epoch.get()),
        };
        let alignment =
            Alignment::from_raw(raw.alignment.get()).ok_or(bad("has an impossible alignment"))?;
        Ok(Self { profile, version, logical_end: raw.logical_end.get(), places, alignment })
    }
}
