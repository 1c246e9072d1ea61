//! Limits of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than any bench opens: 10,000 sessions and a margin.
const OPEN_FILES: u64 = 20_000;

/// Raises the limit of open files as far as it goes; a bench that needs more says so when it runs out.
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if current.is_some_and(|current| current < wanted) {
        // What was there before may do.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}
