//! The memory that mappings themselves cost: a page of the kernel's page tables for each window of address space that was read.
//!
//! Nobody gives such a page back while its window is mapped. So that a large image, of which another part is read every hour, does not
//! collect them without bound, windows are counted for all mappings together: as many as the machine's memory would fill. Beyond that, one
//! that nobody reads has to go for each that comes.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use zerocopy::FromZeros;

/// What one page of page tables maps where pages have 4096 bytes; more than that elsewhere.
pub(super) const WINDOW_BYTES: usize = 2 << 20;

/// So many windows are looked at for one that can go.
const LOOKED_AT_MAX: usize = 64;

/// How many windows may be in use, and how many are.
#[derive(Debug)]
pub(super) struct PageTables {
    windows_max: usize,
    windows: AtomicUsize,
}

/// Of this process: at most a 512th of the machine's memory.
pub(super) static PAGE_TABLES: LazyLock<PageTables> =
    LazyLock::new(|| PageTables::new(super::memory_bytes() / WINDOW_BYTES));

impl PageTables {
    pub(super) const fn new(windows_max: usize) -> Self {
        Self { windows_max, windows: AtomicUsize::new(0) }
    }

    fn take(&self) -> bool {
        let more = |windows| (windows < self.windows_max).then_some(windows + 1);
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
    /// Where one is looked for next that can go.
    hand: AtomicUsize,
    page_tables: &'static PageTables,
}

impl Windows {
    /// `None` where there is no memory to note them.
    pub(super) fn new(count: usize, page_tables: &'static PageTables) -> Option<Self> {
        let in_use = <[AtomicBool]>::new_box_zeroed_with_elems(count).ok()?;
        Some(Self { in_use, hand: AtomicUsize::new(0), page_tables })
    }

    /// Whether the window may be read. If there are too many, the first is let go of that `lets_go` says has gone.
    pub(super) fn take(&self, window: usize, lets_go: impl Fn(usize) -> bool) -> bool {
        let Some(is_in_use) = self.in_use.get(window) else { return false };
        if is_in_use.load(Ordering::Relaxed) {
            return true;
        }
        let may_be = self.page_tables.take() || (self.make_room(lets_go) && self.page_tables.take());
        if may_be && is_in_use.swap(true, Ordering::Relaxed) {
            // Somebody else has taken it at the same time.
            self.page_tables.give_back(1);
        }
        may_be
    }

    fn make_room(&self, lets_go: impl Fn(usize) -> bool) -> bool {
        let looked_at = LOOKED_AT_MAX.min(self.in_use.len());
        let first = self.hand.fetch_add(looked_at, Ordering::Relaxed);
        (0..looked_at).any(|nth| {
            let window = first.wrapping_add(nth) % self.in_use.len();
            let Some(is_in_use) = self.in_use.get(window) else { return false };
            let is_gone = is_in_use.load(Ordering::Relaxed)
                && lets_go(window)
                && is_in_use.swap(false, Ordering::Relaxed);
            self.page_tables.give_back(usize::from(is_gone));
            is_gone
        })
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        let windows = self.in_use.iter().filter(|is_in_use| is_in_use.load(Ordering::Relaxed)).count();
        self.page_tables.give_back(windows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(windows_max: usize) -> &'static PageTables {
        Box::leak(Box::new(PageTables::new(windows_max)))
    }

    #[test]
    fn one_goes_for_each_that_comes() {
        let page_tables = of(2);
        let (one, other) = (Windows::new(200, page_tables).unwrap(), Windows::new(1, page_tables).unwrap());
        assert!(one.take(7, |_| panic!("there is room")) && one.take(150, |_| panic!("there is room")));
        assert!(one.take(7, |_| panic!("it has it")));
        assert!(!other.take(0, |_| true), "none of its own can go");
        assert!(!one.take(8, |_| false), "none can go");
        // The hand is behind the first ones now, and sees so many at a time.
        assert!(!one.take(8, |_| true));
        assert!(one.take(8, |window| window == 150));
        assert!(one.take(8, |_| panic!("it has it")) && one.take(7, |_| panic!("it has it")));
        assert_eq!(page_tables.windows.load(Ordering::Relaxed), 2);
        drop(one);
        assert!(other.take(0, |_| panic!("there is room")));
        drop(other);
        assert_eq!(page_tables.windows.load(Ordering::Relaxed), 0);
        assert!(!Windows::new(4, page_tables).unwrap().take(4, |_| true), "it has no such window");
    }
}
