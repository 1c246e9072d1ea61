//! Work as the unit's saved state keeps it; that keeps the length of the blocks that the position counts, too.

use super::{Job, Method, Purpose};
use crate::bytes::{be16, be64};

const SANITIZE: u8 = 1;
const FORMAT: u8 = 2;

const HAS_FAILED: u8 = 0x01;
const UNRESTRICTED_EXIT: u8 = 0x02;
const INVERT: u8 = 0x04;
const ERASE: u8 = 0x08;
const FLAGS: u8 = HAS_FAILED | UNRESTRICTED_EXIT | INVERT | ERASE;

/// Purpose, flags, passes, pass, position (8 bytes), the pattern's length (2 bytes); then the pattern.
const HEADER_BYTES: usize = 14;
/// A pattern is at most a block long.
const PATTERN_BYTES_MAX: usize = 4096;

pub(super) fn bytes(job: &Job) -> Vec<u8> {
    let (purpose, mut flags) = match job.purpose {
        Purpose::Format => (FORMAT, 0),
        Purpose::Sanitize { unrestricted_exit } => {
            (SANITIZE, if unrestricted_exit { UNRESTRICTED_EXIT } else { 0 })
        }
    };
    let pattern = match &job.method {
        Method::Erase => {
            flags |= ERASE;
            &[][..]
        }
        Method::Overwrite { pattern, invert, .. } => {
            flags |= if *invert { INVERT } else { 0 };
            pattern
        }
    };
    flags |= if job.has_failed { HAS_FAILED } else { 0 };
    let mut bytes = vec![purpose, flags, job.passes(), job.pass];
    bytes.extend(job.position.to_be_bytes());
    bytes.extend((pattern.len() as u16).to_be_bytes());
    bytes.extend(pattern);
    bytes
}

/// `None` for what [`bytes`] never makes.
pub(super) fn job(bytes: &[u8]) -> Option<Job> {
    let (header, pattern) = bytes.split_at_checked(HEADER_BYTES)?;
    let &[purpose, flags, passes, pass, ..] = header else { return None };
    let is_possible = flags & !FLAGS == 0
        && pass < passes
        && pattern.len() <= PATTERN_BYTES_MAX
        && usize::from(be16(header, 12)?) == pattern.len()
        && pattern.is_empty() == (flags & ERASE != 0);
    let purpose = match purpose {
        SANITIZE => Purpose::Sanitize { unrestricted_exit: flags & UNRESTRICTED_EXIT != 0 },
        FORMAT => Purpose::Format,
        _ => return None,
    };
    let method = if flags & ERASE != 0 {
        Method::Erase
    } else {
        Method::Overwrite { pattern: pattern.to_vec(), passes, invert: flags & INVERT != 0 }
    };
    let has_failed = flags & HAS_FAILED != 0;
    let job = Job { purpose, method, pass, position: be64(header, 4)?, has_failed };
    is_possible.then_some(job).filter(|job| job.passes() == passes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_come_back_and_nothing_else_is_taken() {
        let overwrite = Method::Overwrite { pattern: vec![1, 2, 3], passes: 7, invert: true };
        for (method, pass) in [(overwrite, 6), (Method::Erase, 0)] {
            for purpose in [Purpose::Format, Purpose::Sanitize { unrestricted_exit: true }] {
                let whole =
                    Job { purpose, method: method.clone(), pass, position: 1 << 40, has_failed: true };
                let stored = bytes(&whole);
                assert_eq!(job(&stored), Some(whole));
                for length in 0..stored.len() {
                    assert_eq!(job(&stored[..length]), None, "{length}");
                }
                for (at, value) in [(0, 9), (1, 0x80), (2, 0), (3, 7), (13, 9)] {
                    let mut changed = stored.clone();
                    changed[at] = value;
                    assert_eq!(job(&changed), None, "{at}");
                }
            }
        }
    }
}
