//! Identifiers, each a type of its own so that they cannot be mixed up.
//!
//! Contract: plain numbers with no behaviour beyond construction, order and display. All are
//! `Copy`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Declares a transparent newtype over an integer, with `new`, `get` and `Display`.
macro_rules! id {
    ($($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a raw number.
            pub const fn new(raw: $inner) -> Self {
                Self(raw)
            }

            /// The raw number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

id! {
    /// A storage daemon.
    OsdId(u32), "osd.";
    /// A pool of placement groups with one erasure profile.
    PoolId(u32), "pool.";
    /// The version of the cluster map; of a PG: the map version in which the PG last changed.
    Epoch(u64), "e";
    /// One client's mount, numbered by the monitor and never reused.
    SessionId(u64), "session.";
    /// A session's number for a write to one PG: 1, 2, 3 ...; 0 means none.
    Seq(u64), "#";
    /// The number of a session's attach to one shard; grows with every attach.
    AttachId(u64), "attach.";
    /// An executor thread of an OSD, from 0.
    CoreId(u16), "core.";
    /// The position of an OSD in a PG's acting set: 0..k hold data, k..k+m parity.
    ShardIndex(u8), "shard.";
}

/// The 128-bit id of a file or named blob, never reused. The upper 64 bits are `home`, dealt out in
/// turn by the file's creator, so that files spread evenly over the PGs; the lower 64 bits are
/// unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Gfid(u128);

impl Gfid {
    /// The root directory of the file system.
    pub const ROOT: Gfid = Gfid::of_inode(1);

    /// Wraps a raw id.
    pub const fn new(raw: u128) -> Self {
        Self(raw)
    }

    /// An id from its home and its unique part.
    pub const fn from_parts(home: u64, unique: u64) -> Self {
        Self((home as u128) << 64 | unique as u128)
    }

    /// The id of the file with this inode number. The metadata service deals inode numbers out in
    /// turn, so the number itself serves as home, and a FUSE inode number names the file without a
    /// table.
    pub const fn of_inode(inode: u64) -> Self {
        Self::from_parts(inode, inode)
    }

    /// The raw id.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// Where the file's first object goes: PG `home mod pg_num`.
    pub const fn home(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The part that no other file shares; what FUSE sees as the inode number.
    pub const fn unique(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for Gfid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Gfid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A piece of a file: at most `object_size` bytes of user data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ObjectId {
    /// The file.
    pub gfid: Gfid,
    /// Which piece, from 0.
    pub index: u32,
}

impl ObjectId {
    /// The PG number within its pool: `(home + index) mod pg_num`.
    pub const fn pg(self, pg_num: u32) -> u32 {
        (self.gfid.home().wrapping_add(self.index as u64) % pg_num as u64) as u32
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.gfid, self.index)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A placement group: the unit of mapping, ordering and recovery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct PgId {
    /// Its pool.
    pub pool: PoolId,
    /// Its number within the pool, below `pg_num`.
    pub number: u32,
}

impl PgId {
    /// The id as one number, for wire and disk: pool in the upper half.
    pub const fn to_u64(self) -> u64 {
        (self.pool.get() as u64) << 32 | self.number as u64
    }

    /// The inverse of [`PgId::to_u64`].
    pub const fn from_u64(raw: u64) -> Self {
        Self { pool: PoolId::new((raw >> 32) as u32), number: raw as u32 }
    }

    /// The core that owns this PG on an OSD with `cores` cores. Clients compute the same to choose
    /// the connection.
    pub const fn core(self, cores: u16) -> CoreId {
        CoreId::new((self.number % cores as u32) as u16)
    }
}

impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool.get(), self.number)
    }
}

impl fmt::Debug for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A set of shards of one PG, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardSet(u16);

impl ShardSet {
    /// No shard.
    pub const EMPTY: ShardSet = ShardSet(0);

    /// From bits: bit i for shard i.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// As bits: bit i for shard i.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Shards `0..n`; `n` at most 16.
    pub const fn first(n: u8) -> Self {
        Self(if n >= 16 { u16::MAX } else { (1 << n) - 1 })
    }

    /// Only this shard; empty for one beyond 15, which no profile has.
    pub const fn only(shard: ShardIndex) -> Self {
        Self(if shard.get() < 16 { 1 << shard.get() } else { 0 })
    }

    /// Is the shard in the set?
    pub const fn contains(self, shard: ShardIndex) -> bool {
        self.0 & Self::only(shard).0 != 0
    }

    /// The set with the shard added.
    #[must_use]
    pub const fn with(self, shard: ShardIndex) -> Self {
        Self(self.0 | Self::only(shard).0)
    }

    /// The set without the shard.
    #[must_use]
    pub const fn without(self, shard: ShardIndex) -> Self {
        Self(self.0 & !Self::only(shard).0)
    }

    /// Shards in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Shards in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Shards here and not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many shards.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Is it empty?
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The shards in ascending order.
    pub fn iter(self) -> impl Iterator<Item = ShardIndex> {
        (0..16).map(ShardIndex::new).filter(move |&s| self.contains(s))
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(ShardIndex::get)).finish()
    }
}

/// The 128-bit id of a cluster, drawn when it is made; a disk and a connection belong to one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(u128);

impl ClusterId {
    /// Wraps a raw id.
    pub const fn new(raw: u128) -> Self {
        Self(raw)
    }

    /// The raw id.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An erasure profile: k data and m parity shards with a striping chunk. A replicated pool has k
/// = 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "UncheckedProfile")]
pub struct Profile {
    k: u8,
    m: u8,
    chunk_bytes: u32,
    object_bytes: u64,
}

/// A profile as it comes from outside.
#[derive(Deserialize)]
struct UncheckedProfile {
    k: u8,
    m: u8,
    chunk_bytes: u32,
    object_bytes: u64,
}

impl TryFrom<UncheckedProfile> for Profile {
    type Error = ProfileError;

    fn try_from(raw: UncheckedProfile) -> Result<Self, ProfileError> {
        Profile::new(raw.k, raw.m, raw.chunk_bytes, raw.object_bytes)
    }
}

/// Why a profile is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// k must be at least 1, and k + m at most 16.
    #[error("k={k} m={m} is not a profile: k must be at least 1 and k + m at most 16")]
    Shards {
        /// Data shards asked for.
        k: u8,
        /// Parity shards asked for.
        m: u8,
    },
    /// The chunk must be a power of two from 512 B to 1 MiB.
    #[error("chunk of {0} bytes: must be a power of two from 512 to 1048576")]
    Chunk(u32),
    /// The object size must be a multiple of the stripe and at most 1 GiB.
    #[error("object size of {0} bytes: must be a multiple of k * chunk, and at most 1 GiB")]
    ObjectSize(u64),
}

impl Profile {
    /// Bytes of user data of an object, at most.
    pub const OBJECT_BYTES_DEFAULT: u64 = 64 << 20;
    /// The unit of checksums, and the least chunk, in bytes: a 512-byte-aligned direct write never
    /// splits it.
    pub const SECTOR_BYTES: u32 = 512;

    /// A checked profile. For a k that does not divide the default object size pass a multiple of
    /// `k * chunk_bytes`.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub const fn new(
        k: u8,
        m: u8,
        chunk_bytes: u32,
        object_bytes: u64,
    ) -> Result<Self, ProfileError> {
        if k == 0 || k as u32 + m as u32 > 16 {
            return Err(ProfileError::Shards { k, m });
        }
        if chunk_bytes < Self::SECTOR_BYTES
            || chunk_bytes > 1 << 20
            || !chunk_bytes.is_power_of_two()
        {
            return Err(ProfileError::Chunk(chunk_bytes));
        }
        let stripe = k as u64 * chunk_bytes as u64;
        if object_bytes == 0 || !object_bytes.is_multiple_of(stripe) || object_bytes > 1 << 30 {
            return Err(ProfileError::ObjectSize(object_bytes));
        }
        Ok(Self { k, m, chunk_bytes, object_bytes })
    }

    /// Data shards.
    pub const fn k(self) -> u8 {
        self.k
    }

    /// Parity shards.
    pub const fn m(self) -> u8 {
        self.m
    }

    /// Data and parity shards.
    pub const fn shards(self) -> u8 {
        self.k + self.m
    }

    /// Bytes of one shard's part of a stripe.
    pub const fn chunk_bytes(self) -> u32 {
        self.chunk_bytes
    }

    /// Bytes of user data of a stripe.
    pub const fn stripe_bytes(self) -> u64 {
        self.k as u64 * self.chunk_bytes as u64
    }

    /// Bytes of user data of an object, at most.
    pub const fn object_bytes(self) -> u64 {
        self.object_bytes
    }

    /// Bytes of a fragment, at most.
    pub const fn fragment_bytes(self) -> u64 {
        self.object_bytes / self.k as u64
    }
}
