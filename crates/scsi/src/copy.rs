//! The copy operations of one I_T_L nexus that can be asked about by a list identifier (SPC-4, third-party copies).
//!
//! Not how they copy: that is the commands' part. What is kept here goes with the I_T_L nexus and with a reset.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::budget::{Budget, Charge};
use crate::rod::Token;
use crate::sense::EncodedSense;

/// Operations of one I_T_L nexus that are remembered, running ones included. A host has a few under way.
pub(crate) const COPIES_MAX: usize = 64;

/// So many of them need no memory of the domain's: whatever others have taken, copies go on.
const COPIES_SURE: usize = 2;

/// What is counted for each of the others: a record with its token.
const RECORD_BYTES: usize = 1024;

/// A list identifier. The one-byte identifiers of LID1 commands are the low numbers of the four-byte ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListId(pub(crate) u32);

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    InProgress,
    Completed,
    /// It ended with CHECK CONDITION and this sense data.
    Failed(EncodedSense),
    /// It was aborted, with COPY OPERATION ABORT or as a task.
    Aborted,
}

/// What an operation has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) outcome: Outcome,
    pub(crate) segments: u16,
    /// Medium operations done, modulo 2^16.
    pub(crate) operations: u16,
    /// From the beginning on, without a gap.
    pub(crate) bytes: u64,
}

impl Progress {
    fn forget_moved(&mut self) {
        (self.segments, self.bytes) = (0, 0);
    }
}

/// One operation.
#[derive(Debug)]
pub(crate) struct CopyRecord {
    pub(crate) list: ListId,
    /// The service action that began it.
    pub(crate) service_action: u8,
    abort: AtomicBool,
    progress: Mutex<Progress>,
    /// The token that it made.
    token: OnceLock<Box<Token>>,
    /// Of the domain's memory.
    charge: Option<Charge>,
}

impl CopyRecord {
    fn new(list: ListId, service_action: u8, charge: Option<Charge>) -> CopyRecord {
        let progress = Progress { outcome: Outcome::InProgress, segments: 0, operations: 0, bytes: 0 };
        CopyRecord {
            list,
            service_action,
            abort: AtomicBool::new(false),
            progress: Mutex::new(progress),
            token: OnceLock::new(),
            charge,
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.lock()
    }

    /// The token that the operation made, if it has made one.
    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.get().map(Box::as_ref)
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_running(&self) -> bool {
        self.lock().outcome == Outcome::InProgress
    }

    /// Asks a running operation to end.
    pub(crate) fn abort(&self) {
        self.abort.store(true, Ordering::Release);
    }
}

/// A running operation, held by its command. Dropped without an outcome, which is how a task is aborted, it counts as
/// aborted, and as if it had moved nothing: what it has moved may not be stable.
#[derive(Debug)]
pub(crate) struct Running(Arc<CopyRecord>);

impl Running {
    /// True once somebody wants it to end.
    pub(crate) fn is_aborted(&self) -> bool {
        self.0.abort.load(Ordering::Acquire)
    }

    /// One more medium operation is done, by which so many bytes more have been moved from the beginning on.
    pub(crate) fn moved(&self, bytes: u64) {
        let mut progress = self.0.lock();
        progress.operations = progress.operations.wrapping_add(1);
        progress.bytes = progress.bytes.saturating_add(bytes);
    }

    /// The operation has made a token; another one afterwards is ignored.
    pub(crate) fn token(&self, token: Token) {
        self.0.token.get_or_init(|| Box::new(token));
    }

    /// One more segment is done.
    pub(crate) fn segment_done(&self) {
        let mut progress = self.0.lock();
        progress.segments = progress.segments.saturating_add(1);
    }

    /// What has been moved so far could not be made stable.
    pub(crate) fn forget_moved(&self) {
        self.0.lock().forget_moved();
    }

    /// The operation is over.
    pub(crate) fn end(self, outcome: Outcome) {
        self.0.lock().outcome = outcome;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut progress = self.0.lock();
        if progress.outcome == Outcome::InProgress {
            progress.outcome = Outcome::Aborted;
            progress.forget_moved();
        }
    }
}

/// Why an operation cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// One with the same list identifier runs.
    InProgress,
    /// Too many run.
    TooMany,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct CopyRecords {
    /// Oldest first.
    records: Mutex<Vec<Arc<CopyRecord>>>,
}

impl CopyRecords {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<CopyRecord>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation, which is remembered in `kept`. One that has ended under the same identifier is forgotten, and so is the
    /// oldest that has ended when there are too many.
    pub(crate) fn begin(
        &self,
        list: ListId,
        service_action: u8,
        kept: &Arc<Budget>,
    ) -> Result<Running, Refusal> {
        let mut records = self.lock();
        if let Some(at) = records.iter().position(|other| other.list == list) {
            if records[at].is_running() {
                return Err(Refusal::InProgress);
            }
            records.remove(at);
        }
        if records.len() >= COPIES_MAX {
            forget_oldest(&mut records)?;
        }
        let has_sure = |records: &[Arc<CopyRecord>]| {
            records.iter().filter(|record| record.charge.is_none()).count() >= COPIES_SURE
        };
        let mut charge = kept.take(RECORD_BYTES);
        while charge.is_none() && has_sure(&records) {
            forget_oldest(&mut records)?;
            charge = kept.take(RECORD_BYTES);
        }
        let record = Arc::new(CopyRecord::new(list, service_action, charge));
        records.push(Arc::clone(&record));
        Ok(Running(record))
    }

    /// Begins an operation that nobody can ask about.
    pub(crate) fn begin_unlisted(service_action: u8) -> Running {
        Running(Arc::new(CopyRecord::new(ListId(0), service_action, None)))
    }

    pub(crate) fn find(&self, list: ListId) -> Option<Arc<CopyRecord>> {
        self.lock().iter().find(|record| record.list == list).map(Arc::clone)
    }

    /// Forgets an operation, unless it runs.
    pub(crate) fn forget(&self, list: ListId) {
        self.lock().retain(|record| record.list != list || record.is_running());
    }

    /// Forgets all that have ended: a reset (SPC-4).
    pub(crate) fn clear(&self) {
        self.lock().retain(|record| record.is_running());
    }
}

/// Forgets the oldest operation that has ended.
fn forget_oldest(records: &mut Vec<Arc<CopyRecord>>) -> Result<(), Refusal> {
    let ended = records.iter().position(|record| !record.is_running()).ok_or(Refusal::TooMany)?;
    records.remove(ended);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTION: u8 = 0;

    fn plenty() -> Arc<Budget> {
        Arc::new(Budget::new(COPIES_MAX * RECORD_BYTES))
    }

    #[test]
    fn an_identifier_names_one_running_operation() {
        let (records, kept) = (CopyRecords::default(), plenty());
        let running = records.begin(ListId(1), ACTION, &kept).unwrap();
        assert_eq!(records.begin(ListId(1), ACTION, &kept).unwrap_err(), Refusal::InProgress);
        running.moved(512);
        running.segment_done();
        running.end(Outcome::Completed);
        let found = records.find(ListId(1)).unwrap().progress();
        assert_eq!(found, Progress { outcome: Outcome::Completed, segments: 1, operations: 1, bytes: 512 });
        let again = records.begin(ListId(1), ACTION, &kept).unwrap();
        assert_eq!(records.find(ListId(1)).unwrap().progress().bytes, 0);
        records.clear();
        records.forget(ListId(1));
        assert!(records.find(ListId(1)).is_some(), "it runs");
        drop(again);
        assert_eq!(records.find(ListId(1)).unwrap().progress().outcome, Outcome::Aborted);
        records.forget(ListId(1));
        assert!(records.find(ListId(1)).is_none());
    }

    #[test]
    fn the_oldest_that_has_ended_makes_room() {
        let (records, kept) = (CopyRecords::default(), plenty());
        let mut running: Vec<_> =
            (0..COPIES_MAX as u32).map(|list| records.begin(ListId(list), ACTION, &kept).unwrap()).collect();
        assert_eq!(records.begin(ListId(1000), ACTION, &kept).unwrap_err(), Refusal::TooMany);
        running.remove(7).end(Outcome::Completed);
        running.remove(3).end(Outcome::Completed);
        assert!(records.begin(ListId(1000), ACTION, &kept).is_ok());
        assert!(records.find(ListId(3)).is_none());
        assert!(records.find(ListId(7)).is_some());
    }

    #[test]
    fn who_finds_nothing_left_remembers_few() {
        let (records, kept) = (CopyRecords::default(), Arc::new(Budget::new(3 * RECORD_BYTES)));
        for list in 0..20 {
            records.begin(ListId(list), ACTION, &kept).unwrap().end(Outcome::Completed);
        }
        assert_eq!(records.lock().len(), COPIES_SURE + 3);
        assert!(records.find(ListId(19)).is_some() && records.find(ListId(14)).is_none());
        let others = CopyRecords::default();
        let running: Vec<_> =
            (0..COPIES_SURE as u32).map(|list| others.begin(ListId(list), ACTION, &kept).unwrap()).collect();
        assert_eq!(others.begin(ListId(9), ACTION, &kept).unwrap_err(), Refusal::TooMany);
        records.clear();
        assert!(others.begin(ListId(9), ACTION, &kept).is_ok(), "there is room again");
        drop(running);
    }
}
