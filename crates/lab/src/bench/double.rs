//! An endpoint of tests: its clock goes on by nothing but waiting, and what ends when, each test says.

use std::time::Duration;

use lunette_workload::Operation;

use crate::LabError;
use crate::endpoint::{End, Ended, Endpoint, Moments};

/// What a test sees of it, and changes.
pub(super) struct At {
    pub(super) now: Duration,
    /// The slots of what is under way and when each began, the first one first.
    pub(super) under_way: Vec<(u32, Duration)>,
    /// Operations that were begun, those among them that were sent again.
    pub(super) submitted: u32,
    /// The longest of them, in bytes.
    pub(super) longest_bytes: u32,
    /// A flush never ends.
    pub(super) hangs_in_flush: bool,
}

/// See the module's documentation. At each poll the test lets time go by, which may be as much as is said, and takes out of what is
/// under way whatever ends now.
pub(super) struct Double<F> {
    pub(super) at: At,
    poll: F,
}

/// An end of one of those that were under way.
pub(super) type Over = ((u32, Duration), End);

impl<F: FnMut(&mut At, Duration) -> Vec<Over>> Double<F> {
    pub(super) const fn new(poll: F) -> Self {
        let at = At {
            now: Duration::ZERO,
            under_way: Vec::new(),
            submitted: 0,
            longest_bytes: 0,
            hangs_in_flush: false,
        };
        Self { at, poll }
    }
}

impl At {
    /// All of it ends well.
    pub(super) fn all_good(&mut self) -> Vec<Over> {
        self.under_way.drain(..).map(|slot| (slot, End::Good)).collect()
    }
}

impl<F: FnMut(&mut At, Duration) -> Vec<Over>> Endpoint for Double<F> {
    type Buffer = Vec<u8>;

    fn now(&self) -> Duration {
        self.at.now
    }

    fn buffer(&mut self, length_bytes: u32) -> Result<Vec<u8>, LabError> {
        Ok(vec![0; length_bytes as usize])
    }

    fn recycle(&mut self, _: Vec<u8>) {}

    fn submit(&mut self, slot: u32, operation: &Operation, _: Vec<u8>) {
        self.at.under_way.push((slot, self.at.now));
        self.at.submitted += 1;
        self.at.longest_bytes = self.at.longest_bytes.max(operation.length_bytes);
    }

    fn poll(&mut self, timeout: Duration, ended: &mut Vec<Ended<Vec<u8>>>) -> Result<(), LabError> {
        let over = (self.poll)(&mut self.at, timeout);
        let done = self.at.now;
        ended.extend(over.into_iter().map(|((slot, queued), end)| {
            let (sent, first_byte) = (Some(queued), Some(done));
            let moments = Moments { queued, sent, first_byte, done, tag: None };
            Ended { slot, end, buffer: Some(Vec::new()), moments }
        }));
        Ok(())
    }

    fn flush_unless(&mut self, stops: &dyn Fn() -> bool) -> Result<bool, LabError> {
        assert!(self.at.under_way.is_empty(), "a flush beside writes");
        while self.at.hangs_in_flush {
            if stops() {
                return Ok(false);
            }
            drop((self.poll)(&mut self.at, Duration::from_millis(100)));
        }
        Ok(true)
    }
}
