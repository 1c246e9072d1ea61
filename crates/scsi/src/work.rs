//! What a unit does by itself for a command that may have been answered long ago: SANITIZE and FORMAT UNIT (SBC-3).
//!
//! The driver carries the work out: it asks for an operation, does it, and tells how it ended, until nothing is left. What
//! is done is kept in the unit's saved state, so that work goes on after a restart from where it was last stable. What
//! commands are answered meanwhile is here; the commands that begin work are in `commands::sanitize` and
//! `commands::format`.

mod saved;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::{Io, IoError, PIECE_BYTES};
use crate::protection::UNCHECKED;
use crate::sense::{AdditionalSense, SenseData, SenseKey};

/// Given back at once: a store that has to write zeros instead needs no longer than for any other large command.
const ERASE_PIECE_BYTES: u64 = 64 << 20;
/// What a crash makes the work do again at most.
const CHECKPOINT_BYTES: u64 = 1 << 30;

/// Which command asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Sanitize {
        /// AUSE: after a failure EXIT FAILURE MODE gives the medium free again.
        unrestricted_exit: bool,
    },
    Format,
}

/// How the medium is treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Every block is written, `passes` times.
    Overwrite {
        /// Begins at each block anew; 1 to a block length.
        pattern: Vec<u8>,
        passes: u8,
        /// Every other pass writes the complement.
        invert: bool,
    },
    /// Every block reads as zeros and gives its space back where that is possible.
    Erase,
}

/// Some work and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    purpose: Purpose,
    method: Method,
    pass: u8,
    /// Blocks of this pass that are done.
    position: u64,
    has_failed: bool,
}

impl Job {
    fn passes(&self) -> u8 {
        match &self.method {
            Method::Overwrite { passes, .. } => *passes,
            Method::Erase => 1,
        }
    }

    fn is_over(&self) -> bool {
        self.pass >= self.passes()
    }

    /// What is to be saved of it.
    fn section(&self) -> Vec<u8> {
        if self.is_over() { Vec::new() } else { saved::bytes(self) }
    }
}

/// What the driver does, or is asked to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The command has yet to be sure that the work outlives a crash.
    Armed,
    Piece {
        blocks: u64,
    },
    Flush,
    Save,
}

#[derive(Debug)]
struct Running {
    job: Job,
    /// What failed before and was to be made good by this.
    before: Option<Job>,
    stage: Stage,
    /// The driver was told an operation that it has not ended.
    is_asked: bool,
    /// Bytes that a crash would undo.
    unsaved_bytes: u64,
}

/// What keeps commands from the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Occupation {
    None = 0,
    Sanitizing,
    SanitizeFailed,
    SanitizeFailedUnrestricted,
    Formatting,
    FormatFailed,
}

impl Occupation {
    const ALL: [Occupation; 6] = [
        Occupation::None,
        Occupation::Sanitizing,
        Occupation::SanitizeFailed,
        Occupation::SanitizeFailedUnrestricted,
        Occupation::Formatting,
        Occupation::FormatFailed,
    ];

    fn of(job: &Job) -> Occupation {
        match (job.purpose, job.has_failed) {
            (Purpose::Format, false) => Occupation::Formatting,
            (Purpose::Format, true) => Occupation::FormatFailed,
            (Purpose::Sanitize { .. }, false) => Occupation::Sanitizing,
            (Purpose::Sanitize { unrestricted_exit: false }, true) => Occupation::SanitizeFailed,
            (Purpose::Sanitize { unrestricted_exit: true }, true) => Occupation::SanitizeFailedUnrestricted,
        }
    }

    fn is_work(self) -> bool {
        matches!(self, Occupation::Sanitizing | Occupation::Formatting)
    }
}

/// The work of one unit, if it has any.
#[derive(Debug)]
pub(crate) struct Work {
    /// All that the common path looks at.
    occupation: AtomicU8,
    /// Locked before the marks and what is saved.
    running: Mutex<Option<Running>>,
}

/// The medium as the work sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Medium {
    pub(crate) blocks: u64,
    pub(crate) block_length_bytes: u32,
    /// Blocks that are erased give their space back.
    pub(crate) unmap: bool,
    /// There is a place for the saved state.
    pub(crate) is_kept: bool,
    /// Blocks have protection information behind their data.
    pub(crate) is_protected: bool,
}

impl Work {
    /// The work that was left when the unit was last served, and what is to be saved of it from now on; `None` where the bytes
    /// cannot be that. `counts_same`: it counts in blocks of the length that the unit has now.
    pub(crate) fn restore(section: Option<&[u8]>, counts_same: bool) -> Option<(Work, Vec<u8>)> {
        let mut job = match section {
            Some(bytes) => Some(saved::job(bytes)?),
            None => None,
        };
        if let Some(job) = job.as_mut().filter(|_| !counts_same) {
            // What was done lies elsewhere, and may be less: all of this pass is done again.
            job.position = 0;
        }
        let kept = job.as_ref().map_or(Vec::new(), Job::section);
        let occupation = job.as_ref().map_or(Occupation::None, Occupation::of);
        let running = job.map(|job| Running::new(job, None, Stage::Piece { blocks: 0 }));
        Some((Work { occupation: AtomicU8::new(occupation as u8), running: Mutex::new(running) }, kept))
    }

    pub(crate) fn occupation(&self) -> Occupation {
        let value = self.occupation.load(Ordering::Acquire);
        Occupation::ALL.get(usize::from(value)).copied().unwrap_or(Occupation::None)
    }

    /// True while the driver has something to do, or a command is about to give it that.
    pub(crate) fn is_going_on(&self) -> bool {
        self.occupation().is_work()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn occupy(&self, occupation: Occupation) {
        self.occupation.store(occupation as u8, Ordering::Release);
    }

    /// Takes work on, in place of what failed before; nothing is done before [`Self::launch`]. `keep` is told what is to be
    /// saved. False: other work is going on.
    pub(crate) fn arm(&self, purpose: Purpose, method: Method, keep: impl FnOnce(Vec<u8>)) -> bool {
        let mut running = self.lock();
        if self.is_going_on() {
            return false;
        }
        let job = Job { purpose, method, pass: 0, position: 0, has_failed: false };
        keep(saved::bytes(&job));
        self.occupy(Occupation::of(&job));
        let before = running.take().map(|failed| failed.job);
        *running = Some(Running::new(job, before, Stage::Armed));
        true
    }

    /// What was armed is begun.
    pub(crate) fn launch(&self) {
        if let Some(running) = self.lock().as_mut() {
            running.stage = Stage::Piece { blocks: 0 };
        }
    }

    /// What was armed does not begin. If it was to make good what had failed, that is there again; otherwise the medium
    /// stays closed until the saved state surely has nothing of it: the work must not begin after a restart either.
    /// `keep` is told what is to be saved, and answers whether the saved state may have the work. True: the medium is open.
    pub(crate) fn withdraw(&self, keep: impl FnOnce(Vec<u8>) -> bool) -> bool {
        let mut slot = self.lock();
        let Some(running) = slot.as_mut().filter(|running| running.stage == Stage::Armed) else {
            return false;
        };
        match running.before.take() {
            Some(failed) => running.job = failed,
            None => running.job.pass = running.job.passes(),
        }
        running.stage = Stage::Save;
        self.occupy(Occupation::of(&running.job));
        // Under the lock: the driver must not save before.
        let may_be_saved = keep(running.job.section());
        let is_open = !may_be_saved && running.job.is_over();
        if is_open {
            *slot = None;
            self.occupy(Occupation::None);
        }
        is_open
    }

    /// What has failed is about to be forgotten: `keep` is told what is to be saved.
    pub(crate) fn leave_failure_out(&self, keep: impl FnOnce(Vec<u8>)) {
        let _running = self.lock();
        keep(Vec::new());
    }

    /// It is not forgotten: `keep` is told what is to be saved.
    pub(crate) fn put_failure_back(&self, keep: impl FnOnce(Vec<u8>)) {
        let running = self.lock();
        keep(running.as_ref().map_or(Vec::new(), |running| running.job.section()));
    }

    /// Forgets what has failed. The saved state has nothing of it any more.
    pub(crate) fn forget_failure(&self) {
        let mut running = self.lock();
        if running.as_ref().is_some_and(|running| running.job.has_failed) {
            *running = None;
            self.occupy(Occupation::None);
        }
    }

    /// The operation that comes next.
    pub(crate) fn next(&self, medium: Medium) -> Option<Io> {
        let mut running = self.lock();
        let running = running.as_mut()?;
        if let Stage::Piece { .. } = running.stage {
            if running.job.has_failed {
                return None;
            }
            let left = medium.blocks.saturating_sub(running.job.position);
            if left == 0 {
                // The medium was cut meanwhile.
                running.stage = Stage::Flush;
            } else {
                running.is_asked = true;
                return Some(running.piece(left, medium));
            }
        }
        let io = match running.stage {
            Stage::Flush => Io::Flush,
            Stage::Save => Io::SaveState,
            Stage::Armed | Stage::Piece { .. } => return None,
        };
        running.is_asked = true;
        Some(io)
    }

    /// The operation that [`Self::next`] told has ended. `keep` is told what is to be saved, if that changes. False: it was none of
    /// the work that there is.
    pub(crate) fn done(
        &self,
        medium: Medium,
        result: Result<(), IoError>,
        keep: impl FnOnce(Vec<u8>),
    ) -> bool {
        let mut slot = self.lock();
        // Other work may have begun since.
        let Some(running) = slot.as_mut().filter(|running| running.is_asked) else { return false };
        running.is_asked = false;
        if result.is_err() && running.stage != Stage::Save {
            running.job.has_failed = true;
            running.stage = if medium.is_kept { Stage::Save } else { Stage::Piece { blocks: 0 } };
            // Under the lock, here and below: a command that mends the failure, or ends it, saves something else.
            keep(running.job.section());
            self.occupy(Occupation::of(&running.job));
            return true;
        }
        if result.is_err() && running.job.is_over() {
            // What is saved would do it all again after a restart, to what is written meanwhile: once more.
            return true;
        }
        if let Some(section) = running.advance(medium) {
            keep(section);
        }
        if running.job.is_over() && matches!(running.stage, Stage::Piece { .. }) {
            *slot = None;
            self.occupy(Occupation::None);
        }
        true
    }

    /// Why a command cannot have the medium, and how far the work has come.
    pub(crate) fn sense(&self, medium: Medium) -> Option<SenseData> {
        use AdditionalSense as Code;
        let (key, code) = match self.occupation() {
            Occupation::None => return None,
            Occupation::Sanitizing => (SenseKey::NotReady, Code::SANITIZE_IN_PROGRESS),
            Occupation::Formatting => (SenseKey::NotReady, Code::FORMAT_IN_PROGRESS),
            Occupation::SanitizeFailed | Occupation::SanitizeFailedUnrestricted => {
                (SenseKey::MediumError, Code::SANITIZE_COMMAND_FAILED)
            }
            Occupation::FormatFailed => (SenseKey::MediumError, Code::MEDIUM_FORMAT_CORRUPTED),
        };
        let progress = (key == SenseKey::NotReady).then(|| self.progress(medium));
        Some(SenseData { progress, ..SenseData::new(key, code) })
    }

    /// Of 65536 parts, never all (SPC-4, progress indication).
    fn progress(&self, medium: Medium) -> u16 {
        let running = self.lock();
        let Some(job) = running.as_ref().map(|running| &running.job) else { return u16::MAX };
        let of_a_pass = u128::from(medium.blocks.max(1));
        let done = u128::from(job.pass) * of_a_pass + u128::from(job.position.min(medium.blocks));
        let parts = done * 65536 / (of_a_pass * u128::from(job.passes()));
        u16::try_from(parts).unwrap_or(u16::MAX)
    }
}

impl Running {
    fn new(job: Job, before: Option<Job>, stage: Stage) -> Running {
        Running { job, before, stage, is_asked: false, unsaved_bytes: 0 }
    }

    /// The next part of this pass; `left` blocks of it are not done.
    fn piece(&mut self, left: u64, medium: Medium) -> Io {
        let block_length = u64::from(medium.block_length_bytes);
        let piece_bytes =
            if self.job.method == Method::Erase { ERASE_PIECE_BYTES } else { PIECE_BYTES.into() };
        let blocks = left.min(piece_bytes / block_length);
        self.stage = Stage::Piece { blocks };
        let (offset_bytes, length_bytes) = (self.job.position * block_length, blocks * block_length);
        match &self.job.method {
            Method::Erase => Io::Zero { offset_bytes, length_bytes, unmap: medium.unmap, stable: false },
            Method::Overwrite { pattern, invert, .. } => {
                let flip = if *invert && self.job.pass % 2 == 1 { 0xff } else { 0 };
                let mut block: Vec<u8> =
                    pattern.iter().cycle().take(block_length as usize).map(|byte| byte ^ flip).collect();
                if medium.is_protected {
                    block.extend(UNCHECKED);
                }
                Io::WriteOwned { offset_bytes, bytes: block.repeat(blocks as usize), stable: false }
            }
        }
    }

    /// Goes from an operation that went well to the next stage. Answers what is to be saved, if that changes.
    fn advance(&mut self, medium: Medium) -> Option<Vec<u8>> {
        match self.stage {
            Stage::Armed => None,
            Stage::Piece { blocks } => {
                self.job.position += blocks;
                self.unsaved_bytes += blocks * u64::from(medium.block_length_bytes);
                if self.job.position >= medium.blocks || self.unsaved_bytes >= CHECKPOINT_BYTES {
                    self.stage = Stage::Flush;
                }
                None
            }
            Stage::Flush => {
                if self.job.position >= medium.blocks {
                    self.job.pass += 1;
                    self.job.position = 0;
                }
                self.unsaved_bytes = 0;
                self.stage = if medium.is_kept { Stage::Save } else { Stage::Piece { blocks: 0 } };
                Some(self.job.section())
            }
            // How far work has come only costs time after a crash where it could not be saved.
            Stage::Save => {
                self.stage = Stage::Piece { blocks: 0 };
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
