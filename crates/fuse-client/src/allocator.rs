//! The allocator: mimalloc, which gives freed memory back to the system, but for what is large.
//!
//! Each thread of `fuser` has a buffer of 16 MiB, made as zeros, of which requests use 1 MiB at
//! most. mimalloc writes those zeros, and all of it is resident for as long as the mount is; the C
//! library's `calloc` takes pages from the system, which are zeros as they are.
#![expect(unsafe_code, reason = "what an allocator is, to the compiler")]

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout, System};

/// From so many bytes on the C library allocates.
const LARGE_BYTES: usize = 4 << 20;

/// See the module.
pub(crate) struct Allocator;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE_BYTES
}

// SAFETY: which of two allocators has memory depends on its layout alone, so what one gave comes
// back to it; that memory is as each of them promises. What grows out of one's range is copied.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that these ask for.
        unsafe { if is_large(layout) { System.alloc(layout) } else { MiMalloc.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if is_large(layout) {
                System.alloc_zeroed(layout)
            } else {
                MiMalloc.alloc_zeroed(layout)
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; it came from the same of the two.
        unsafe {
            if is_large(layout) {
                System.dealloc(memory, layout)
            } else {
                MiMalloc.dealloc(memory, layout)
            }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !is_large(layout) && bytes < LARGE_BYTES {
            // SAFETY: as above; it stays with the same one.
            return unsafe { MiMalloc.realloc(memory, layout, bytes) };
        }
        // SAFETY: the caller says that these make a layout.
        let new_layout = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: both are as long as what is copied, and apart; the old one came from this
        // allocator and is not used again.
        unsafe {
            let new = self.alloc(new_layout);
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(memory, new, layout.size().min(bytes));
                self.dealloc(memory, layout);
            }
            new
        }
    }
}
