//! The memory that mappings themselves cost: a page of the kernel's page tables for each window of address space that was read.
//!
//! Nobody gives such a page back while its window is mapped, and it is charged to the process. So windows are counted for all mappings
//! together: as many as the memory that the process may have would fill. What lies in others is read by calls.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use zerocopy::FromZeros;

/// What one page of page tables maps where pages have 4096 bytes; more than that elsewhere.
pub(super) const WINDOW_BYTES: usize = 2 << 20;

/// How many windows may be in use, and how many are.
#[derive(Debug)]
pub(super) struct PageTables {
    windows_max: usize,
    windows: AtomicUsize,
}

/// Of this process: at most a 512th of its memory.
pub(super) static PAGE_TABLES: LazyLock<PageTables> =
    LazyLock::new(|| PageTables::new(super::memory::bytes_max() / WINDOW_BYTES));

impl PageTables {
    pub(super) const fn new(windows_max: usize) -> Self {
        Self { windows_max, windows: AtomicUsize::new(0) }
    }

    /// One more for a mapping that has `own`, if there are more left than that: so there are always some for others.
    fn take(&self, own: usize) -> bool {
        let more = |windows| (own < self.windows_max.saturating_sub(windows)).then_some(windows + 1);
        self.windows.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, windows: usize) {
        self.windows.fetch_sub(windows, Ordering::Relaxed);
    }
}

/// The windows of one mapping.
#[derive(Debug)]
pub(super) struct Windows {
    in_use: Box<[AtomicBool]>,
    count: AtomicUsize,
    page_tables: &'static PageTables,
}

impl Windows {
    /// `None` where there is no memory to note them.
    pub(super) fn new(count: usize, page_tables: &'static PageTables) -> Option<Self> {
        let in_use = <[AtomicBool]>::new_box_zeroed_with_elems(count).ok()?;
        Some(Self { in_use, count: AtomicUsize::new(0), page_tables })
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether the window may be read.
    pub(super) fn take(&self, window: usize) -> bool {
        let Some(is_in_use) = self.in_use.get(window) else { return false };
        is_in_use.load(Ordering::Relaxed) || self.take_new(is_in_use)
    }

    #[cold]
    fn take_new(&self, is_in_use: &AtomicBool) -> bool {
        if !self.page_tables.take(self.count.load(Ordering::Relaxed)) {
            return false;
        }
        if is_in_use.swap(true, Ordering::Relaxed) {
            // Somebody else has taken it at the same time.
            self.page_tables.give_back(1);
        } else {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        true
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.page_tables.give_back(*self.count.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_leaves_as_many_as_it_has() {
        let page_tables: &'static PageTables = Box::leak(Box::new(PageTables::new(8)));
        let (one, other) = (Windows::new(20, page_tables).unwrap(), Windows::new(20, page_tables).unwrap());
        let taken = |windows: &Windows| (0..20).filter(|&window| windows.take(window)).count();
        assert_eq!((taken(&one), taken(&one)), (4, 4), "half, and they stay");
        assert_eq!(taken(&other), 2, "half of what is left");
        assert!(!one.take(20) && !one.take(7), "it has no such window, or may have no more");
        drop(one);
        assert_eq!(taken(&other), 4);
        drop(other);
        assert_eq!(page_tables.windows.load(Ordering::Relaxed), 0);
    }
}
