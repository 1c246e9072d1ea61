//! Whether a thread has waited for a page.

use std::cell::Cell;

use crate::usage;

/// Whether this thread has had to wait for pages since it last asked: for those of a mapping, but also for others that were
/// thrown out, which says as much of the memory that there is. The first time nothing is known.
pub(super) fn have_waited() -> bool {
    thread_local! {
        static BEFORE: Cell<Option<i64>> = const { Cell::new(None) };
    }
    let now = usage::of_this_thread().map_or(0, |usage| usage.ru_majflt);
    BEFORE.replace(Some(now)).is_some_and(|before| now > before)
}
