//! The CRC table of one fragment: a write-back cache of pages of checksums.
//!
//! Contract: holds what the file's table says plus what was changed since the last
//! [`Table::write_back`]. A page is loaded when first needed; pages of zeros (fragments are sparse)
//! take no memory. The memory of all tables of a store is counted in one [`TableMemory`], so that
//! the store can have the least used ones dropped.

use crate::medium::{self, MediumFile};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Checksums of one page: it covers 512 KiB of data.
pub(super) const PAGE_ENTRIES: usize = 1024;
const PAGE_BYTES: usize = PAGE_ENTRIES * 4;

/// Memory that the tables of a store hold, in bytes.
#[derive(Debug, Default)]
pub(super) struct TableMemory(AtomicUsize);

impl TableMemory {
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
enum Page {
    /// Not looked at yet.
    Unknown,
    /// All entries are 0, in memory and in the file.
    Zero,
    Loaded {
        entries: Box<[U32; PAGE_ENTRIES]>,
        /// Entries that may differ from the file.
        dirty: Range<usize>,
    },
}

/// The table of one fragment file.
#[derive(Debug)]
pub(super) struct Table {
    /// Where the table begins in the file.
    start: u64,
    sectors: usize,
    pages: Vec<Page>,
    memory: Arc<TableMemory>,
}

impl Table {
    /// The table at file offset `start` for so many sectors. `is_blank`: the file has no table yet,
    /// all is zero.
    pub(super) fn new(
        start: u64,
        sectors: usize,
        is_blank: bool,
        memory: Arc<TableMemory>,
    ) -> Self {
        let pages = (0..sectors.div_ceil(PAGE_ENTRIES))
            .map(|_| if is_blank { Page::Zero } else { Page::Unknown });
        Self { start, sectors, pages: pages.collect(), memory }
    }

    fn page_offset(&self, page: usize) -> u64 {
        self.start + (page * PAGE_BYTES) as u64
    }

    /// Entries of a page: the last may be shorter.
    fn page_len(&self, page: usize) -> usize {
        PAGE_ENTRIES.min(self.sectors - page * PAGE_ENTRIES)
    }

    /// Cuts a range of sectors into (page, entries within it).
    fn split(sectors: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut at = sectors.start;
        std::iter::from_fn(move || {
            (at < sectors.end).then(|| {
                let page = at / PAGE_ENTRIES;
                let end = sectors.end.min((page + 1) * PAGE_ENTRIES);
                let within = at - page * PAGE_ENTRIES..end - page * PAGE_ENTRIES;
                at = end;
                (page, within)
            })
        })
    }

    /// Makes sure that the pages of these sectors are known; `false` if that would wait and must
    /// not.
    pub(super) fn load(
        &mut self,
        file: &dyn MediumFile,
        sectors: Range<usize>,
        may_wait: bool,
    ) -> io::Result<bool> {
        for (page, _) in Self::split(sectors) {
            if may_wait && matches!(self.pages[page], Page::Unknown) {
                self.skip_hole(file, page)?;
            }
            if !matches!(self.pages[page], Page::Unknown) {
                continue;
            }
            let mut entries = Box::new([U32::ZERO; PAGE_ENTRIES]);
            let bytes = &mut entries.as_mut_bytes()[..self.page_len(page) * 4];
            let offset = self.start + (page * PAGE_BYTES) as u64;
            if may_wait {
                medium::read_zero_filled(file, offset, bytes)?;
            } else if !file.read_now(bytes, offset)? {
                return Ok(false);
            }
            self.pages[page] = if entries.as_bytes().iter().all(|&byte| byte == 0) {
                Page::Zero
            } else {
                self.memory.0.fetch_add(PAGE_BYTES, Ordering::Relaxed);
                Page::Loaded { entries, dirty: 0..0 }
            };
        }
        Ok(true)
    }

    /// Notes the pages from this one on that the file has no bytes for.
    fn skip_hole(&mut self, file: &dyn MediumFile, page: usize) -> io::Result<()> {
        let end = file.next_data(self.page_offset(page))?.map_or(self.pages.len(), |at| {
            let within = at.saturating_sub(self.start) as usize;
            (within / PAGE_BYTES).min(self.pages.len())
        });
        let unknown = |page: &&mut Page| matches!(page, Page::Unknown);
        self.pages[page..end.max(page)]
            .iter_mut()
            .filter(unknown)
            .for_each(|page| *page = Page::Zero);
        Ok(())
    }

    /// Calls `f` with the known entries of the sectors, in order: `None` for a run of zeros.
    fn for_each(&self, sectors: Range<usize>, mut f: impl FnMut(usize, Option<&[U32]>)) {
        for (page, within) in Self::split(sectors) {
            match &self.pages[page] {
                Page::Unknown => unreachable!("a page is loaded before it is used"),
                Page::Zero => f(within.len(), None),
                Page::Loaded { entries, .. } => f(within.len(), Some(&entries[within])),
            }
        }
    }

    /// Appends the entries of the sectors; their pages are loaded.
    pub(super) fn copy_to(&self, sectors: Range<usize>, out: &mut impl Extend<u32>) {
        self.for_each(sectors, |length, entries| match entries {
            None => out.extend(std::iter::repeat_n(0, length)),
            Some(entries) => out.extend(entries.iter().map(|entry| entry.get())),
        });
    }

    /// Was none of the sectors ever written? Their pages are loaded.
    pub(super) fn is_unwritten(&self, sectors: Range<usize>) -> bool {
        let mut unwritten = true;
        self.for_each(sectors, |_, entries| {
            unwritten &= entries.is_none_or(|entries| entries.iter().all(|entry| entry.get() == 0));
        });
        unwritten
    }

    /// Sets the entries of sectors from `first` on; their pages are loaded.
    pub(super) fn set(&mut self, first: usize, crcs: &[u32]) {
        let mut crcs = crcs.iter();
        for (page, within) in Self::split(first..first + crcs.len()) {
            for entry in self.dirty(page, within) {
                *entry = (*crcs.next().expect("the split is as long as the checksums")).into();
            }
        }
    }

    /// Makes sectors holes; their pages are loaded.
    pub(super) fn clear(&mut self, sectors: Range<usize>) {
        for (page, within) in Self::split(sectors) {
            match &self.pages[page] {
                Page::Loaded { entries, .. }
                    if entries[within.clone()].iter().any(|entry| entry.get() != 0) =>
                {
                    self.dirty(page, within).fill(U32::ZERO);
                }
                _ => {}
            }
        }
    }

    /// Makes all of it holes: the file's table is gone.
    pub(super) fn clear_all(&mut self) {
        self.forget();
        self.pages.fill_with(|| Page::Zero);
    }

    /// Entries of a loaded page, to be changed.
    fn dirty(&mut self, page: usize, within: Range<usize>) -> &mut [U32] {
        if matches!(self.pages[page], Page::Zero) {
            self.memory.0.fetch_add(PAGE_BYTES, Ordering::Relaxed);
            self.pages[page] =
                Page::Loaded { entries: Box::new([U32::ZERO; PAGE_ENTRIES]), dirty: 0..0 };
        }
        match &mut self.pages[page] {
            Page::Loaded { entries, dirty } => {
                *dirty = if dirty.start == dirty.end {
                    within.clone()
                } else {
                    dirty.start.min(within.start)..dirty.end.max(within.end)
                };
                &mut entries[within]
            }
            _ => unreachable!("a page is loaded before it is used"),
        }
    }

    /// Writes the changed entries to the file. After an error what was not written is still known
    /// as changed.
    pub(super) fn write_back(&mut self, file: &dyn MediumFile) -> io::Result<()> {
        for page in 0..self.pages.len() {
            let offset = self.page_offset(page);
            if let Page::Loaded { entries, dirty } = &mut self.pages[page]
                && dirty.start != dirty.end
            {
                let bytes = entries[dirty.clone()].as_bytes();
                medium::write_counted(file, offset + dirty.start as u64 * 4, bytes)
                    .map_err(|(_, error)| error)?;
                *dirty = 0..0;
            }
        }
        Ok(())
    }

    /// Drops the memory of all pages, which were written back; they are loaded again when needed.
    pub(super) fn forget(&mut self) {
        for page in &mut self.pages {
            if let Page::Loaded { .. } = page {
                self.memory.0.fetch_sub(PAGE_BYTES, Ordering::Relaxed);
                *page = Page::Unknown;
            }
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.forget();
    }
}
