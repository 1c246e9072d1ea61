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

/// What is to become of the saved state after an operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Nothing; the operation was none of the work that there is.
    NotMine,
    /// Nothing.
    Same,
    /// This; nothing for no bytes.
    Now(Vec<u8>),
}

impl Work {
    /// The work that was left when the unit was last served; `None` where the bytes cannot be that.
    pub(crate) fn restore(section: Option<&[u8]>) -> Option<Work> {
        let job = match section {
            Some(bytes) => Some(saved::job(bytes)?),
            None => None,
        };
        let occupation = job.as_ref().map_or(Occupation::None, Occupation::of);
        let running = job.map(|job| Running::new(job, None, Stage::Piece { blocks: 0 }));
        Some(Work { occupation: AtomicU8::new(occupation as u8), running: Mutex::new(running) })
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

    /// Takes work on, in place of what failed before; nothing is done before [`Self::launch`]. Answers what is to be
    /// saved, or that other work is going on.
    pub(crate) fn arm(&self, purpose: Purpose, method: Method) -> Option<Vec<u8>> {
        let mut running = self.lock();
        if self.is_going_on() {
            return None;
        }
        let job = Job { purpose, method, pass: 0, position: 0, has_failed: false };
        let bytes = saved::bytes(&job);
        self.occupy(Occupation::of(&job));
        let before = running.take().map(|failed| failed.job);
        *running = Some(Running::new(job, before, Stage::Armed));
        Some(bytes)
    }

    /// What was armed is begun.
    pub(crate) fn launch(&self) {
        if let Some(running) = self.lock().as_mut() {
            running.stage = Stage::Piece { blocks: 0 };
        }
    }

    /// What was armed does not begin. If it was to make good what had failed, that is there again; otherwise the medium
    /// stays closed until the saved state surely has nothing of it: the work must not begin after a restart either.
    /// `keep` is told what is to be saved.
    pub(crate) fn withdraw(&self, keep: impl FnOnce(Vec<u8>)) {
        let mut running = self.lock();
        let Some(running) = running.as_mut().filter(|running| running.stage == Stage::Armed) else { return };
        match running.before.take() {
            Some(failed) => running.job = failed,
            None => running.job.pass = running.job.passes(),
        }
        running.stage = Stage::Save;
        self.occupy(Occupation::of(&running.job));
        // Under the lock: the driver must not save before.
        keep(running.job.section());
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

    /// The operation that [`Self::next`] told has ended.
    pub(crate) fn done(&self, medium: Medium, result: Result<(), IoError>) -> Kept {
        let mut slot = self.lock();
        // Other work may have begun since.
        let Some(running) = slot.as_mut().filter(|running| running.is_asked) else { return Kept::NotMine };
        running.is_asked = false;
        if result.is_err() && running.stage != Stage::Save {
            running.job.has_failed = true;
            running.stage = if medium.is_kept { Stage::Save } else { Stage::Piece { blocks: 0 } };
            self.occupy(Occupation::of(&running.job));
            return Kept::Now(running.job.section());
        }
        if result.is_err() && running.job.is_over() {
            // What is saved would do it all again after a restart, to what is written meanwhile: once more.
            return Kept::Same;
        }
        let kept = running.advance(medium);
        if running.job.is_over() && matches!(running.stage, Stage::Piece { .. }) {
            *slot = None;
            self.occupy(Occupation::None);
        }
        kept
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

    /// Goes from an operation that went well to the next stage.
    fn advance(&mut self, medium: Medium) -> Kept {
        match self.stage {
            Stage::Armed => Kept::Same,
            Stage::Piece { blocks } => {
                self.job.position += blocks;
                self.unsaved_bytes += blocks * u64::from(medium.block_length_bytes);
                if self.job.position >= medium.blocks || self.unsaved_bytes >= CHECKPOINT_BYTES {
                    self.stage = Stage::Flush;
                }
                Kept::Same
            }
            Stage::Flush => {
                if self.job.position >= medium.blocks {
                    self.job.pass += 1;
                    self.job.position = 0;
                }
                self.unsaved_bytes = 0;
                self.stage = if medium.is_kept { Stage::Save } else { Stage::Piece { blocks: 0 } };
                Kept::Now(self.job.section())
            }
            // How far work has come only costs time after a crash where it could not be saved.
            Stage::Save => {
                self.stage = Stage::Piece { blocks: 0 };
                Kept::Same
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEDIUM: Medium =
        Medium { blocks: 5000, block_length_bytes: 512, unmap: true, is_kept: true, is_protected: false };

    fn overwrite(passes: u8, invert: bool) -> Method {
        Method::Overwrite { pattern: vec![0xa5, 0x00, 0xff], passes, invert }
    }

    const SANITIZE: Purpose = Purpose::Sanitize { unrestricted_exit: false };

    /// Does all work, and tells what was written to each block and what was saved last.
    fn finish(work: &Work) -> (Vec<Vec<u8>>, Vec<Io>) {
        let (mut disk, mut others) = (vec![Vec::new(); MEDIUM.blocks as usize], Vec::new());
        while let Some(io) = work.next(MEDIUM) {
            match io {
                Io::WriteOwned { offset_bytes, bytes, .. } => {
                    for (index, block) in bytes.chunks(512).enumerate() {
                        disk[offset_bytes as usize / 512 + index] = block.to_vec();
                    }
                }
                other => others.push(other),
            }
            work.done(MEDIUM, Ok(()));
        }
        (disk, others)
    }

    #[test]
    fn every_block_gets_the_pattern_from_its_start() {
        for (invert, first) in [(false, 0xa5), (true, 0x5a)] {
            let work = Work::restore(None).unwrap();
            assert!(work.next(MEDIUM).is_none());
            assert!(work.arm(SANITIZE, overwrite(2, invert)).is_some());
            assert!(work.next(MEDIUM).is_none(), "not before it is sure to outlive a crash");
            assert!(work.arm(SANITIZE, Method::Erase).is_none(), "one at a time");
            work.launch();
            let (disk, others) = finish(&work);
            assert!(disk.iter().all(|block| block[..2] == [first, first ^ 0xa5] && block.len() == 512));
            assert_eq!(others, [Io::Flush, Io::SaveState, Io::Flush, Io::SaveState]);
            assert_eq!(work.occupation(), Occupation::None);
        }
    }

    #[test]
    fn progress_grows_and_never_says_all() {
        let work = Work::restore(None).unwrap();
        work.arm(SANITIZE, overwrite(3, true));
        work.launch();
        let mut last = 0;
        while work.next(MEDIUM).is_some() {
            let sense = work.sense(MEDIUM).unwrap();
            assert_eq!((sense.key, sense.code), (SenseKey::NotReady, AdditionalSense::SANITIZE_IN_PROGRESS));
            assert!(sense.progress.unwrap() >= last);
            last = sense.progress.unwrap();
            work.done(MEDIUM, Ok(()));
        }
        assert!(last > 60000);
        assert_eq!(work.sense(MEDIUM), None);
    }

    #[test]
    fn it_goes_on_after_a_restart_at_any_moment() {
        for stop_after in 0..12 {
            let work = Work::restore(None).unwrap();
            let mut saved = work.arm(SANITIZE, overwrite(2, true)).unwrap();
            work.launch();
            for _ in 0..stop_after {
                if work.next(MEDIUM).is_none() {
                    break;
                }
                if let Kept::Now(bytes) = work.done(MEDIUM, Ok(())) {
                    saved = bytes;
                }
            }
            let section = (!saved.is_empty()).then_some(&saved[..]);
            let after = Work::restore(section).unwrap();
            assert_eq!(after.is_going_on(), section.is_some());
            let (disk, _) = finish(&after);
            assert!(section.is_none() || disk.iter().all(|block| block[0] == 0x5a), "{stop_after}");
        }
    }

    #[test]
    fn a_failure_stays_until_it_is_taken_away() {
        for (unrestricted_exit, occupation) in
            [(false, Occupation::SanitizeFailed), (true, Occupation::SanitizeFailedUnrestricted)]
        {
            let work = Work::restore(None).unwrap();
            work.arm(Purpose::Sanitize { unrestricted_exit }, Method::Erase);
            work.launch();
            assert!(work.next(MEDIUM).is_some());
            let Kept::Now(saved) = work.done(MEDIUM, Err(IoError::Hardware)) else { panic!("it is kept") };
            assert_eq!(work.occupation(), occupation);
            assert_eq!(work.next(MEDIUM), Some(Io::SaveState));
            assert_eq!(work.done(MEDIUM, Ok(())), Kept::Same);
            assert_eq!(work.next(MEDIUM), None);
            let after = Work::restore(Some(&saved)).unwrap();
            assert_eq!((after.occupation(), after.next(MEDIUM)), (occupation, None));
            assert_eq!(
                after.sense(MEDIUM),
                Some(SenseData::new(SenseKey::MediumError, AdditionalSense::SANITIZE_COMMAND_FAILED))
            );
            after.forget_failure();
            assert_eq!(after.occupation(), Occupation::None);
        }
    }

    /// The driver had an operation of what failed before.
    #[test]
    fn what_ends_late_is_not_taken_for_other_work() {
        let work = Work::restore(None).unwrap();
        work.arm(SANITIZE, Method::Erase);
        work.launch();
        assert!(work.next(MEDIUM).is_some());
        work.done(MEDIUM, Err(IoError::Hardware));
        assert_eq!(work.next(MEDIUM), Some(Io::SaveState));
        assert!(work.arm(SANITIZE, Method::Erase).is_some());
        work.launch();
        assert_eq!(work.done(MEDIUM, Err(IoError::Hardware)), Kept::NotMine);
        assert_eq!(work.occupation(), Occupation::Sanitizing);
        finish(&work);
        assert_eq!(work.occupation(), Occupation::None);
    }

    #[test]
    fn a_try_that_does_not_begin_frees_nothing() {
        let work = Work::restore(None).unwrap();
        let withdrawn = || {
            let mut section = None;
            work.withdraw(|bytes| section = Some(bytes));
            section
        };
        work.arm(SANITIZE, Method::Erase);
        work.launch();
        assert_eq!(withdrawn(), None, "it has begun");
        assert!(work.next(MEDIUM).is_some());
        let Kept::Now(failed) = work.done(MEDIUM, Err(IoError::Hardware)) else { panic!("it is kept") };
        assert!(work.arm(SANITIZE, Method::Erase).is_some());
        assert_eq!(withdrawn(), Some(failed));
        assert_eq!(work.occupation(), Occupation::SanitizeFailed);
        work.forget_failure();
        work.arm(SANITIZE, Method::Erase);
        assert_eq!(withdrawn(), Some(Vec::new()));
        assert_eq!(work.occupation(), Occupation::Sanitizing, "until that is saved");
        finish(&work);
        assert_eq!(work.occupation(), Occupation::None);
    }

    #[test]
    fn a_medium_that_changes_its_size_is_treated_to_its_end() {
        let work = Work::restore(None).unwrap();
        work.arm(Purpose::Format, overwrite(1, false));
        work.launch();
        assert!(work.next(MEDIUM).is_some());
        work.done(MEDIUM, Ok(()));
        let cut = Medium { blocks: 100, ..MEDIUM };
        assert_eq!(work.next(cut), Some(Io::Flush));
        work.done(cut, Ok(()));
        assert_eq!(work.next(cut), Some(Io::SaveState));
        work.done(cut, Ok(()));
        assert_eq!(work.occupation(), Occupation::None);
    }
}
