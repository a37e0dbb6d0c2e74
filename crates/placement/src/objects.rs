//! Which OSDs hold a placement group: straw2 over a failure-domain tree root / rack / host / osd,
//! with weights.
//!
//! Contract: pure functions of integers. No floats, no clock, no random numbers, no I/O: every
//! machine and every version computes the same answer, or data would be looked for where it is not.
//! The hash and the logarithm below are **frozen**; the golden vectors in
//! `tests/golden/objects.txt` hold them still.
//!
//! # How a PG is placed
//!
//! 1. Every failure domain (by choice the OSD, its host or its rack) draws a straw: an
//!    exponentially distributed number out of `hash(pg, domain)`, divided by the domain's weight.
//!    The `shards` shortest straws win. One domain's straw depends on no other domain, so a domain
//!    that comes, goes or changes its weight moves only what it gains or loses.
//! 2. The winners choose their positions in the order of their straws, each the free position it
//!    likes best.
//! 3. In each winning domain the OSDs draw straws in the same way. As a domain's weight is the sum
//!    of its OSDs', drawing directly among the OSDs of a rack gives each the same chance as drawing
//!    host by host.
//! 4. An OSD that is *out* took part in all this. Only then its position is given to a replacement,
//!    drawn over all OSDs that are in and share no domain with another position. So every other
//!    position stays (`indep` in CRUSH's words).
//!
//! A domain of more than `1 / shards` of the whole weight can hold only one shard of each PG all
//! the same: its OSDs get less than their weight says.
//!
//! # Frozen arithmetic
//!
//! `hash(a, b, c)` folds its numbers into [`SEED`] one by one: `h = mix(h ^ mix(number + GOLDEN))`,
//! where `mix` is the finaliser of SplitMix64. A straw is `-log2((h16 + 1) / 65536) / weight`,
//! where `h16` is the upper 16 bits of the hash; the logarithm has 44 fractional bits, computed by
//! repeated squaring; straws are compared exactly, by multiplying crosswise, and equal ones by the
//! whole hash.

use std::collections::BTreeMap;
use std::fmt;

#[cfg(test)]
mod tests;

/// The weight of one: weights are in units of 1/65536.
pub const WEIGHT_ONE: u32 = 1 << 16;

/// The greatest number of shards of a PG.
pub const SHARDS_MAX: usize = 16;

/// Where every hash starts. Frozen.
const SEED: u64 = 0x5472_6566_6f69_6c31;
/// 2^64 divided by the golden ratio. Frozen.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Fractional bits of the logarithm. Frozen.
const LOG_BITS: u32 = 44;
/// What a hash is for, so that draws of different purposes are independent. Frozen.
const PURPOSE_DOMAIN: u64 = 1;
const PURPOSE_OSD: u64 = 2;
const PURPOSE_POSITION: u64 = 3;
const PURPOSE_REPLACEMENT: u64 = 4;

/// The number of an OSD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OsdNumber(pub u32);

impl fmt::Display for OsdNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "osd.{}", self.0)
    }
}

/// What no two shards of a PG may share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailureDomain {
    /// The OSD itself.
    Osd,
    /// The machine.
    Host,
    /// The rack.
    Rack,
}

/// An OSD and where it stands in the tree. Hosts and racks are numbers; [`name_number`] makes one
/// of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// Which OSD.
    pub osd: OsdNumber,
    /// Its rack.
    pub rack: u64,
    /// Its machine.
    pub host: u64,
    /// Its share of the data, in units of 1/65536 ([`WEIGHT_ONE`]); 0 is never chosen.
    pub weight: u32,
    /// Takes data. An OSD that is out keeps its straws, so that only its own positions move.
    pub is_in: bool,
}

impl Device {
    fn domain(&self, domain: FailureDomain) -> u64 {
        match domain {
            FailureDomain::Osd => u64::from(self.osd.0),
            FailureDomain::Host => self.host,
            FailureDomain::Rack => self.rack,
        }
    }
}

/// Why a tree is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HierarchyError {
    /// Numbers are unique.
    #[error("{0} is there twice")]
    Twice(OsdNumber),
    /// A machine stands in one rack.
    #[error("the host of {0} is also in another rack")]
    TwoRacks(OsdNumber),
}

/// The tree: all OSDs with their places, checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hierarchy {
    devices: Vec<Device>,
}

impl Hierarchy {
    /// A tree of these OSDs, in any order.
    ///
    /// # Errors
    /// See [`HierarchyError`].
    pub fn new(mut devices: Vec<Device>) -> Result<Self, HierarchyError> {
        devices.sort_by_key(|d| d.osd);
        if let Some(pair) = devices.windows(2).find(|pair| pair[0].osd == pair[1].osd) {
            return Err(HierarchyError::Twice(pair[0].osd));
        }
        let mut racks = BTreeMap::new();
        for device in &devices {
            if *racks.entry(device.host).or_insert(device.rack) != device.rack {
                return Err(HierarchyError::TwoRacks(device.osd));
            }
        }
        Ok(Self { devices })
    }

    /// The OSDs, by number.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// How many failure domains could hold a shard: those with an OSD that is in and has weight.
    pub fn domains(&self, domain: FailureDomain) -> usize {
        let usable = self.devices.iter().filter(|d| d.is_in && d.weight > 0);
        usable.map(|d| d.domain(domain)).collect::<std::collections::BTreeSet<_>>().len()
    }
}

/// The OSDs of a PG by shard number; `None` where the tree has no failure domain left for the
/// shard.
///
/// `pg_seed` names the PG, uniquely over all pools. Never gives two shards of a PG the same failure
/// domain, never an OSD that is out or weighs nothing, and leaves a position empty only if there
/// are fewer usable domains than shards. Takes time linear in the number of OSDs.
///
/// # Panics
/// When `shards` is beyond [`SHARDS_MAX`].
pub fn select(
    map: &Hierarchy,
    pg_seed: u64,
    shards: usize,
    domain: FailureDomain,
) -> Vec<Option<OsdNumber>> {
    assert!(shards <= SHARDS_MAX, "a placement group has at most {SHARDS_MAX} shards");
    let mut chosen: Vec<Option<&Device>> = vec![None; shards];
    for bucket in winners(map, pg_seed, shards, domain) {
        let leaf = (bucket.devices.iter().copied()).min_by_key(|d| {
            Straw::draw(&[PURPOSE_OSD, pg_seed, u64::from(d.osd.0)], u64::from(d.weight))
        });
        let free = (0..shards).filter(|&p| chosen[p].is_none());
        let liked = free.max_by_key(|&p| hash(&[PURPOSE_POSITION, pg_seed, bucket.id, p as u64]));
        if let (Some(position), Some(leaf)) = (liked, leaf) {
            chosen[position] = Some(leaf);
        }
    }
    replace_out(map, pg_seed, domain, &mut chosen);
    debug_assert!(chosen.iter().flatten().all(|d| d.is_in && d.weight > 0));
    chosen.into_iter().map(|d| d.map(|d| d.osd)).collect()
}

/// `wanted` in another order: what is in both stays at its position of `previous`, so that only
/// what is new moves.
///
/// For callers that keep the acting sets they gave out: with it a change of the tree moves the
/// least possible.
pub fn keep_positions(
    previous: &[OsdNumber],
    wanted: &[Option<OsdNumber>],
) -> Vec<Option<OsdNumber>> {
    let stays = |position: usize| {
        previous.get(position).copied().filter(|osd| wanted.contains(&Some(*osd)))
    };
    let mut kept: Vec<Option<OsdNumber>> = (0..wanted.len()).map(stays).collect();
    let mut rest = wanted
        .iter()
        .flatten()
        .copied()
        .filter(|osd| !kept.contains(&Some(*osd)))
        .collect::<Vec<_>>();
    for (slot, own) in kept.iter_mut().zip(wanted) {
        if slot.is_none()
            && let Some(at) = own.and_then(|own| rest.iter().position(|osd| *osd == own))
        {
            *slot = Some(rest.remove(at));
        }
    }
    let mut rest = rest.into_iter();
    kept.iter_mut().filter(|slot| slot.is_none()).for_each(|slot| *slot = rest.next());
    kept
}

/// A number for the name of a host or rack: FNV-1a of 64 bits. Frozen.
pub fn name_number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A failure domain with its OSDs that weigh something.
struct Bucket<'a> {
    id: u64,
    weight: u64,
    devices: Vec<&'a Device>,
}

/// The `shards` domains with the shortest straws, shortest first.
fn winners(map: &Hierarchy, pg_seed: u64, shards: usize, domain: FailureDomain) -> Vec<Bucket<'_>> {
    let mut buckets: BTreeMap<u64, Bucket<'_>> = BTreeMap::new();
    for device in map.devices.iter().filter(|d| d.weight > 0) {
        let id = device.domain(domain);
        let bucket = buckets.entry(id).or_insert(Bucket { id, weight: 0, devices: Vec::new() });
        bucket.weight += u64::from(device.weight);
        bucket.devices.push(device);
    }
    let mut drawn: Vec<(Straw, Bucket<'_>)> = buckets
        .into_values()
        .map(|b| (Straw::draw(&[PURPOSE_DOMAIN, pg_seed, b.id], b.weight), b))
        .collect();
    drawn.sort_by_key(|(straw, _)| *straw);
    drawn.into_iter().take(shards).map(|(_, bucket)| bucket).collect()
}

/// Gives the positions of OSDs that are out, and those without one, to replacements.
fn replace_out<'a>(
    map: &'a Hierarchy,
    pg_seed: u64,
    domain: FailureDomain,
    chosen: &mut [Option<&'a Device>],
) {
    let mut taken = [None; SHARDS_MAX];
    for (slot, device) in taken.iter_mut().zip(chosen.iter()) {
        *slot = device.filter(|d| d.is_in).map(|d| d.domain(domain));
    }
    for position in (0..chosen.len()).filter(|&p| taken[p].is_none()).collect::<Vec<_>>() {
        let usable = map
            .devices
            .iter()
            .filter(|d| d.is_in && d.weight > 0 && !taken.contains(&Some(d.domain(domain))));
        chosen[position] = usable.min_by_key(|d| {
            let numbers = [PURPOSE_REPLACEMENT, pg_seed, u64::from(d.osd.0), position as u64];
            Straw::draw(&numbers, u64::from(d.weight))
        });
        taken[position] = chosen[position].map(|d| d.domain(domain));
    }
}

/// A straw of length `-log2(hash) / weight`, ordered by length.
#[derive(Clone, Copy)]
struct Straw {
    log: u64,
    weight: u64,
    hash: u64,
}

impl Straw {
    /// `weight` is not 0.
    fn draw(numbers: &[u64], weight: u64) -> Self {
        let hash = hash(numbers);
        Self { log: minus_log2((hash >> 48) as u16), weight, hash }
    }
}

impl Ord for Straw {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let mine = u128::from(self.log) * u128::from(other.weight);
        let theirs = u128::from(other.log) * u128::from(self.weight);
        mine.cmp(&theirs).then(self.hash.cmp(&other.hash))
    }
}

impl PartialOrd for Straw {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Straw {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Straw {}

/// `-log2((h + 1) / 65536)` with [`LOG_BITS`] fractional bits, rounded up. Frozen.
fn minus_log2(h: u16) -> u64 {
    let x = u64::from(h) + 1;
    let whole = x.ilog2();
    // x / 2^whole, in [1, 2), with 62 fractional bits; each squaring yields the next bit of its
    // logarithm.
    let mut mantissa = u128::from(x) << (62 - whole);
    let mut log = u64::from(whole);
    for _ in 0..LOG_BITS {
        mantissa = (mantissa * mantissa) >> 62;
        let bit = mantissa >> 63;
        mantissa >>= bit;
        log = log << 1 | bit as u64;
    }
    (16 << LOG_BITS) - log
}

/// The frozen hash; see the module.
fn hash(numbers: &[u64]) -> u64 {
    numbers.iter().fold(SEED, |h, number| mix(h ^ mix(number.wrapping_add(GOLDEN))))
}

/// The finaliser of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
