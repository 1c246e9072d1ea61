//! What a unit's work asks for, step by step, over failures and restarts.

use super::*;

const MEDIUM: Medium =
    Medium { blocks: 5000, block_length_bytes: 512, unmap: true, is_kept: true, is_protected: false };

fn overwrite(passes: u8, invert: bool) -> Method {
    Method::Overwrite { pattern: vec![0xa5, 0x00, 0xff], passes, invert }
}

const SANITIZE: Purpose = Purpose::Sanitize { unrestricted_exit: false };

/// Takes work on, and tells what is to be saved.
fn arm(work: &Work, purpose: Purpose, method: Method) -> Option<Vec<u8>> {
    let mut kept = None;
    work.arm(purpose, method, |section| kept = Some(section)).then_some(kept).flatten()
}

/// Ends an operation: whether it was the work's, and what is to be saved from now on.
fn done(work: &Work, medium: Medium, result: Result<(), IoError>) -> (bool, Option<Vec<u8>>) {
    let mut kept = None;
    (work.done(medium, result, |section| kept = Some(section)), kept)
}

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
        done(work, MEDIUM, Ok(()));
    }
    (disk, others)
}

#[test]
fn every_block_gets_the_pattern_from_its_start() {
    for (invert, first) in [(false, 0xa5), (true, 0x5a)] {
        let work = Work::restore(None, true).unwrap().0;
        assert!(work.next(MEDIUM).is_none());
        assert!(arm(&work, SANITIZE, overwrite(2, invert)).is_some());
        assert!(work.next(MEDIUM).is_none(), "not before it is sure to outlive a crash");
        assert!(arm(&work, SANITIZE, Method::Erase).is_none(), "one at a time");
        work.launch();
        let (disk, others) = finish(&work);
        assert!(disk.iter().all(|block| block[..2] == [first, first ^ 0xa5] && block.len() == 512));
        assert_eq!(others, [Io::Flush, Io::SaveState, Io::Flush, Io::SaveState]);
        assert_eq!(work.occupation(), Occupation::None);
    }
}

#[test]
fn progress_grows_and_never_says_all() {
    let work = Work::restore(None, true).unwrap().0;
    arm(&work, SANITIZE, overwrite(3, true));
    work.launch();
    let mut last = 0;
    while work.next(MEDIUM).is_some() {
        let sense = work.sense(MEDIUM).unwrap();
        assert_eq!((sense.key, sense.code), (SenseKey::NotReady, AdditionalSense::SANITIZE_IN_PROGRESS));
        assert!(sense.progress.unwrap() >= last);
        last = sense.progress.unwrap();
        done(&work, MEDIUM, Ok(()));
    }
    assert!(last > 60000);
    assert_eq!(work.sense(MEDIUM), None);
}

#[test]
fn it_goes_on_after_a_restart_at_any_moment() {
    for stop_after in 0..12 {
        let work = Work::restore(None, true).unwrap().0;
        let mut saved = arm(&work, SANITIZE, overwrite(2, true)).unwrap();
        work.launch();
        for _ in 0..stop_after {
            if work.next(MEDIUM).is_none() {
                break;
            }
            if let (_, Some(bytes)) = done(&work, MEDIUM, Ok(())) {
                saved = bytes;
            }
        }
        let section = (!saved.is_empty()).then_some(&saved[..]);
        let after = Work::restore(section, true).unwrap().0;
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
        let work = Work::restore(None, true).unwrap().0;
        arm(&work, Purpose::Sanitize { unrestricted_exit }, Method::Erase);
        work.launch();
        assert!(work.next(MEDIUM).is_some());
        let saved = done(&work, MEDIUM, Err(IoError::Hardware)).1.expect("it is kept");
        assert_eq!(work.occupation(), occupation);
        assert_eq!(work.next(MEDIUM), Some(Io::SaveState));
        assert_eq!(done(&work, MEDIUM, Ok(())), (true, None));
        assert_eq!(work.next(MEDIUM), None);
        let after = Work::restore(Some(&saved), true).unwrap().0;
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
    let work = Work::restore(None, true).unwrap().0;
    arm(&work, SANITIZE, Method::Erase);
    work.launch();
    assert!(work.next(MEDIUM).is_some());
    done(&work, MEDIUM, Err(IoError::Hardware));
    assert_eq!(work.next(MEDIUM), Some(Io::SaveState));
    assert!(arm(&work, SANITIZE, Method::Erase).is_some());
    work.launch();
    assert_eq!(done(&work, MEDIUM, Err(IoError::Hardware)), (false, None));
    assert_eq!(work.occupation(), Occupation::Sanitizing);
    finish(&work);
    assert_eq!(work.occupation(), Occupation::None);
}

#[test]
fn a_try_that_does_not_begin_frees_nothing() {
    let work = Work::restore(None, true).unwrap().0;
    let withdrawn = || {
        let mut section = None;
        work.withdraw(|bytes| {
            section = Some(bytes);
            true
        });
        section
    };
    arm(&work, SANITIZE, Method::Erase);
    work.launch();
    assert_eq!(withdrawn(), None, "it has begun");
    assert!(work.next(MEDIUM).is_some());
    let failed = done(&work, MEDIUM, Err(IoError::Hardware)).1.expect("it is kept");
    assert!(arm(&work, SANITIZE, Method::Erase).is_some());
    assert_eq!(withdrawn(), Some(failed));
    assert_eq!(work.occupation(), Occupation::SanitizeFailed);
    work.forget_failure();
    arm(&work, SANITIZE, Method::Erase);
    assert_eq!(withdrawn(), Some(Vec::new()));
    assert_eq!(work.occupation(), Occupation::Sanitizing, "until that is saved");
    finish(&work);
    assert_eq!(work.occupation(), Occupation::None);
}

#[test]
fn a_medium_that_changes_its_size_is_treated_to_its_end() {
    let work = Work::restore(None, true).unwrap().0;
    arm(&work, Purpose::Format, overwrite(1, false));
    work.launch();
    assert!(work.next(MEDIUM).is_some());
    done(&work, MEDIUM, Ok(()));
    let cut = Medium { blocks: 100, ..MEDIUM };
    assert_eq!(work.next(cut), Some(Io::Flush));
    done(&work, cut, Ok(()));
    assert_eq!(work.next(cut), Some(Io::SaveState));
    done(&work, cut, Ok(()));
    assert_eq!(work.occupation(), Occupation::None);
}

/// What is decided and what is to be saved of it go together: another thread cannot come between.
#[test]
fn what_is_to_be_saved_is_told_before_anybody_else_decides() {
    let work = Work::restore(None, true).unwrap().0;
    let mut told = 0;
    let mut keep = |_: Vec<u8>| {
        assert!(work.running.try_lock().is_err());
        told += 1;
    };
    assert!(work.arm(SANITIZE, Method::Erase, &mut keep));
    work.launch();
    while work.next(MEDIUM).is_some() {
        assert!(work.done(MEDIUM, Ok(()), &mut keep));
    }
    assert!(work.arm(SANITIZE, Method::Erase, &mut keep));
    work.launch();
    assert!(work.next(MEDIUM).is_some());
    assert!(work.done(MEDIUM, Err(IoError::Hardware), &mut keep));
    work.put_failure_back(&mut keep);
    work.leave_failure_out(&mut keep);
    assert!(work.arm(SANITIZE, Method::Erase, &mut keep));
    assert!(!work.withdraw(|section| {
        keep(section);
        true
    }));
    assert_eq!(told, 8);
}
