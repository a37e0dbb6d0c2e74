//! Page-aligned buffers for data segments, pooled by size class.
//!
//! Contract: a buffer goes back to the pool it came from when its last user drops it, on any
//! thread. What all pools keep together is bounded by `retained_bytes_max`; beyond it a returned
//! buffer takes the place of others of the size that most is kept of, as users that come to need
//! another size would else meet no free buffer at all. [`Pools::shrink`] frees what nobody needed.
//! Several pools (the setting `pools`) keep threads from meeting on one lock; one pool behaves as
//! GlusterFS's old iobuf pool. Memory is zero when allocated; a reused buffer holds old bytes, of
//! which only those written over are ever exposed.
//!
//! Buffers of 8 KiB and more lie in the arena of their runtime, if it has one (`lending`): peers
//! that data is lent to can read all of it. Without one, those of [`MAPPED_BYTES_MIN`] and more are
//! mappings of their own. In both, pages are zeroed when first touched, not when allocated, and a
//! freed one's memory is the system's again. The allocator keeps what it was given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use memmap2::MmapMut;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::shm::{Arena, Extent, REGION_BYTES_MIN};
use crate::sync::contention_mutex::{ContentionMutex, LockTable};

/// Alignment and unit of all buffers, in bytes: what O_DIRECT needs at most on common devices.
pub const PAGE_BYTES: usize = 4096;
/// Largest buffer, in bytes: one data segment at its largest.
pub const BUFFER_BYTES_MAX: usize = 16 << 20;
/// Least size in bytes of a buffer that is a mapping. The kernel allows a process some 65,000
/// mappings: a hundred times what pools may keep of the smallest.
pub const MAPPED_BYTES_MIN: usize = 32 << 10;
/// Size classes are powers of two from one page to the largest buffer, and from two pages on one
/// and a half times these: the shards of a write to 2+1 have that size together.
const CLASSES: usize = 2 * (BUFFER_BYTES_MAX / PAGE_BYTES).trailing_zeros() as usize;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Settings of [`Pools`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Number of independent pools, at least 1.
    pub pools: usize,
    /// Bytes of free buffers that all pools together keep.
    pub retained_bytes_max: usize,
}

impl Default for PoolConfig {
    /// Four pools that keep 128 MiB: what a storage daemon holds of large writes that came over TCP
    /// until they are applied.
    fn default() -> PoolConfig {
        PoolConfig { pools: 4, retained_bytes_max: 128 << 20 }
    }
}

/// The pools of one runtime.
#[derive(Debug)]
pub struct Pools {
    pools: Vec<Arc<Pool>>,
}

impl Pools {
    /// Makes empty pools, whose locks `locks` lists.
    pub fn new(config: PoolConfig, locks: &LockTable) -> Pools {
        Pools::in_arena(config, None, locks)
    }

    /// The same; their buffers lie in the arena, if there is one.
    pub(crate) fn in_arena(
        config: PoolConfig,
        arena: Option<&Arc<Arena>>,
        locks: &LockTable,
    ) -> Pools {
        let budget = Arc::new(Budget {
            retained_bytes: AtomicUsize::new(0),
            bytes_max: config.retained_bytes_max,
        });
        let pool = |_| {
            Arc::new(Pool {
                free: FreeLists::locked(locks),
                budget: Arc::clone(&budget),
                arena: arena.cloned(),
            })
        };
        Pools { pools: (0..config.pools.max(1)).map(pool).collect() }
    }

    /// Frees the buffers that nobody needed since this was last called.
    pub fn shrink(&self) {
        self.pools.iter().for_each(|pool| pool.shrink());
    }

    /// The pool that user number `index` (a worker) takes from.
    pub fn pool(&self, index: usize) -> &Arc<Pool> {
        &self.pools[index % self.pools.len()]
    }
}

/// What pools keep together, and may.
#[derive(Debug)]
struct Budget {
    retained_bytes: AtomicUsize,
    bytes_max: usize,
}

impl Budget {
    /// May so much more be kept? Then it counts as kept.
    fn take(&self, bytes: usize) -> bool {
        let fits = |now: usize| now.checked_add(bytes).filter(|&sum| sum <= self.bytes_max);
        self.retained_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// One pool: a lock and a list of free buffers per size class.
#[derive(Debug)]
pub struct Pool {
    free: ContentionMutex<FreeLists>,
    budget: Arc<Budget>,
    arena: Option<Arc<Arena>>,
}

#[derive(Default)]
struct FreeLists {
    classes: [Class; CLASSES],
}

/// The free buffers of one size.
#[derive(Default)]
struct Class {
    buffers: Vec<Memory>,
    /// The least number of them since the pool was shrunk: so many nobody needed.
    unused: usize,
}

impl FreeLists {
    fn locked(locks: &LockTable) -> ContentionMutex<FreeLists> {
        ContentionMutex::new(locks, "buffer pool", FreeLists::default())
    }
}

impl FreeLists {
    /// Takes out a buffer of the class that most bytes are kept of, if that is another one than
    /// `class`.
    fn evict_for(&mut self, class: usize) -> Option<Memory> {
        let bytes_kept = |at: usize| self.classes[at].buffers.len() * class_bytes(at);
        let most = (0..CLASSES).max_by_key(|at| bytes_kept(*at)).filter(|most| *most != class)?;
        let Class { buffers, unused } = &mut self.classes[most];
        let evicted = buffers.pop();
        *unused = buffers.len().min(*unused);
        evicted
    }
}

impl std::fmt::Debug for FreeLists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.classes.iter().map(|class| class.buffers.len())).finish()
    }
}

impl Pool {
    /// A pool that keeps at most `retained_bytes_max` bytes of free buffers.
    pub fn new(retained_bytes_max: usize, locks: &LockTable) -> Pool {
        let budget = Budget { retained_bytes: AtomicUsize::new(0), bytes_max: retained_bytes_max };
        Pool { free: FreeLists::locked(locks), budget: Arc::new(budget), arena: None }
    }

    /// A buffer of `len` bytes, with unspecified contents.
    ///
    /// # Panics
    /// If `len` is beyond [`BUFFER_BYTES_MAX`]; callers check lengths that come from outside first.
    pub fn take(self: &Arc<Self>, len: usize) -> PooledBuf {
        assert!(
            len <= BUFFER_BYTES_MAX,
            "buffer of {len} bytes asked for, at most {BUFFER_BYTES_MAX}"
        );
        let class = class_of(len);
        let memory = match self.reuse(class) {
            Some(memory) => {
                self.budget.give_back(class_bytes(class));
                memory
            }
            None => self.fresh(class_bytes(class)),
        };
        PooledBuf { memory, len, home: Arc::clone(self) }
    }

    /// A buffer with these contents.
    ///
    /// # Panics
    /// As [`Pool::take`].
    pub fn copy_of(self: &Arc<Self>, contents: &[u8]) -> Bytes {
        let mut buf = self.take(contents.len());
        buf.as_mut().copy_from_slice(contents);
        buf.freeze()
    }

    fn fresh(&self, bytes: usize) -> Memory {
        let arena = self.arena.as_ref().filter(|_| bytes >= REGION_BYTES_MIN);
        arena.and_then(|arena| arena.take(bytes)).map_or_else(|| Memory::new(bytes), Memory::Shared)
    }

    fn reuse(&self, class: usize) -> Option<Memory> {
        let mut free = self.free.lock();
        let class = &mut free.classes[class];
        let reused = class.buffers.pop();
        class.unused = class.unused.min(class.buffers.len());
        reused
    }

    /// Bytes of free buffers kept now, by all pools that share the bound.
    pub fn retained_bytes(&self) -> usize {
        self.budget.retained_bytes.load(Ordering::Relaxed)
    }

    fn give_back(&self, memory: Memory) {
        let bytes = memory.as_bytes().len();
        let class = class_of(bytes);
        // freed when the lock is
        let mut evicted = Vec::new();
        let mut free = self.free.lock();
        while !self.budget.take(bytes) {
            let Some(other) = free.evict_for(class) else { return };
            self.budget.give_back(other.as_bytes().len());
            evicted.push(other);
        }
        free.classes[class].buffers.push(memory);
    }

    fn shrink(&self) {
        for class in 0..CLASSES {
            let mut free = self.free.lock();
            let Class { buffers, unused } = &mut free.classes[class];
            let unneeded = buffers.split_off(buffers.len() - *unused);
            *unused = buffers.len();
            drop(free);
            self.budget.give_back(unneeded.len() * class_bytes(class));
        }
    }
}

/// The memory of one buffer, page-aligned.
enum Memory {
    /// Only in a buffer that is being dropped.
    Gone,
    Allocated(Box<[Page]>),
    Mapped(MmapMut),
    /// What other processes may be lent.
    Shared(Extent),
}

impl Memory {
    /// `bytes` zeros, a multiple of the page.
    fn new(bytes: usize) -> Memory {
        let memory = if bytes >= MAPPED_BYTES_MIN {
            MmapMut::map_anon(bytes).ok().map(Memory::Mapped)
        } else {
            <[Page]>::new_box_zeroed_with_elems(bytes / PAGE_BYTES).ok().map(Memory::Allocated)
        };
        memory.unwrap_or_else(|| panic!("no memory for a buffer of {bytes} bytes"))
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Memory::Gone => &[],
            Memory::Allocated(pages) => pages.as_bytes(),
            Memory::Mapped(mapping) => mapping,
            Memory::Shared(extent) => extent.as_bytes(),
        }
    }

    fn as_mut_bytes(&mut self) -> &mut [u8] {
        match self {
            Memory::Gone => &mut [],
            Memory::Allocated(pages) => pages.as_mut_bytes(),
            Memory::Mapped(mapping) => mapping,
            Memory::Shared(extent) => extent.as_mut_bytes(),
        }
    }
}

fn class_of(len: usize) -> usize {
    let pages = len.div_ceil(PAGE_BYTES).max(1);
    let power = pages.next_power_of_two();
    let class = (2 * power.trailing_zeros() as usize).saturating_sub(1);
    // Three quarters of it are enough?
    if class >= 3 && pages <= power / 4 * 3 { class - 1 } else { class }
}

/// In order: 1, 2, 3, 4, 6, 8, 12, 16 ... pages.
fn class_bytes(class: usize) -> usize {
    let pages = match (class, class % 2) {
        (0, _) => 1,
        (_, 1) => 2 << (class / 2),
        _ => 3 << (class / 2 - 1),
    };
    PAGE_BYTES * pages
}

/// A page-aligned buffer that returns to its pool on drop.
pub struct PooledBuf {
    memory: Memory,
    len: usize,
    home: Arc<Pool>,
}

impl PooledBuf {
    /// Length in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shortens the buffer to `len` bytes; a longer `len` changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes it shareable without a copy. It returns to the pool when the last clone or slice is
    /// dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for PooledBuf {
    fn as_ref(&self) -> &[u8] {
        &self.memory.as_bytes()[..self.len]
    }
}

impl AsMut<[u8]> for PooledBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut_bytes()[..self.len]
    }
}

impl std::fmt::Debug for PooledBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::Gone);
        self.home.give_back(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let pool = Arc::new(Pool::new(1 << 20, &LockTable::default()));
        for len in [0, 1, 4096, 4097, 70_000, 1 << 20] {
            let mut buf = pool.take(len);
            assert_eq!(buf.as_ref().len(), len);
            assert_eq!(buf.as_ref().as_ptr().addr() % PAGE_BYTES, 0);
            buf.as_mut().fill(7);
            let bytes = buf.freeze();
            assert_eq!(bytes.len(), len);
            let part = bytes.slice(..len / 2);
            drop(bytes);
            let kept = pool.retained_bytes();
            drop(part);
            if len > 1 {
                assert!(pool.retained_bytes() >= kept);
            }
        }
        assert!(pool.retained_bytes() <= 1 << 20);
    }

    #[test]
    fn a_class_is_the_least_that_is_enough() {
        let sizes: Vec<usize> = (0..CLASSES).map(class_bytes).collect();
        assert_eq!(sizes[..8], [1, 2, 3, 4, 6, 8, 12, 16].map(|pages| pages * PAGE_BYTES));
        assert_eq!(sizes[CLASSES - 1], BUFFER_BYTES_MAX);
        assert!(sizes.is_sorted());
        for (class, bytes) in sizes.iter().enumerate() {
            assert_eq!(class_of(*bytes), class);
            assert_eq!(class_of(bytes - 1), class);
            if class + 1 < CLASSES {
                assert_eq!(class_of(bytes + 1), class + 1);
            }
        }
        assert_eq!(class_of(0), 0);
    }

    #[test]
    fn new_memory_is_zero() {
        for len in [PAGE_BYTES, MAPPED_BYTES_MIN, BUFFER_BYTES_MAX] {
            let pool = Arc::new(Pool::new(0, &LockTable::default()));
            assert!(pool.take(len).as_ref().iter().all(|&byte| byte == 0), "{len} bytes");
        }
    }

    #[test]
    fn retention_is_bounded() {
        let pool = Arc::new(Pool::new(2 * PAGE_BYTES, &LockTable::default()));
        let bufs: Vec<_> = (0..5).map(|_| pool.take(10)).collect();
        drop(bufs);
        assert_eq!(pool.retained_bytes(), 2 * PAGE_BYTES);
        let again = pool.take(1);
        assert_eq!(pool.retained_bytes(), PAGE_BYTES);
        drop(again);
    }

    #[test]
    fn buffers_of_a_size_that_is_needed_now_take_the_place_of_others() {
        let pool = Arc::new(Pool::new(16 * PAGE_BYTES, &LockTable::default()));
        drop([(); 4].map(|()| pool.take(4 * PAGE_BYTES)));
        assert_eq!(pool.retained_bytes(), 16 * PAGE_BYTES);
        drop(pool.take(1));
        assert_eq!(pool.retained_bytes(), 13 * PAGE_BYTES, "one of four pages went");
        drop([(); 8].map(|()| pool.take(1)));
        let kept = pool.free.lock().classes.each_ref().map(|class| class.buffers.len());
        assert_eq!((kept[0], kept[class_of(4 * PAGE_BYTES)]), (8, 2));
        drop([(); 30].map(|()| pool.take(1)));
        assert!(pool.retained_bytes() <= 16 * PAGE_BYTES);
    }

    #[test]
    fn pools_share_what_they_may_keep_and_free_what_nobody_needs() {
        let pools = Pools::new(
            PoolConfig { pools: 2, retained_bytes_max: 4 * PAGE_BYTES },
            &LockTable::default(),
        );
        let take = |count: usize| (0..count).map(|_| pools.pool(0).take(1)).collect::<Vec<_>>();
        drop(take(5));
        assert_eq!(pools.pool(1).retained_bytes(), 4 * PAGE_BYTES, "one pool may keep all of it");
        pools.shrink();
        assert_eq!(pools.pool(0).retained_bytes(), 4 * PAGE_BYTES, "all were just in use");
        drop(take(3));
        pools.shrink();
        assert_eq!(pools.pool(0).retained_bytes(), 3 * PAGE_BYTES, "one was not needed");
        pools.shrink();
        assert_eq!(pools.pool(0).retained_bytes(), 0);
    }
}
