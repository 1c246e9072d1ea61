//! Why a disk does not do what it was asked for, and what each protocol calls that.

use lunette_initiator::CommandError;
use lunette_nbd::Errno;
use lunette_scsi::client::{ProbeError, Sense, Unfit};
use lunette_scsi::{AdditionalSense, SenseKey, Status};

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The unit is read-only for us, or another initiator has reserved it.
    #[error("not permitted: {0}")]
    NotPermitted(String),
    /// The target's store is full.
    #[error("no space: {0}")]
    NoSpace(String),
    /// The range is not the disk's.
    #[error("beyond the end of the disk")]
    Beyond,
    /// The target does not have a command, or not in this form.
    #[error("{1}")]
    Unfit(Unfit, String),
    /// The target does not answer, or is busy all the time.
    #[error("{0}")]
    Unanswered(String),
    /// A lost path has left what may still be carried out.
    #[error("{0}")]
    GhostLeft(String),
    /// The target failed.
    #[error("{0}")]
    Io(String),
}

impl DiskError {
    /// What NBD calls it.
    #[must_use]
    pub fn nbd(&self) -> Errno {
        match self {
            DiskError::NotPermitted(_) => Errno::NotPermitted,
            DiskError::NoSpace(_) => Errno::NoSpace,
            DiskError::Beyond => Errno::Invalid,
            DiskError::Unfit(..) | DiskError::Unanswered(_) | DiskError::GhostLeft(_) | DiskError::Io(_) => {
                Errno::Io
            }
        }
    }

    pub(super) fn of_command(name: &str, error: &CommandError) -> DiskError {
        DiskError::Unanswered(format!("{name}: {error}"))
    }

    /// A command was refused.
    pub(super) fn refused(name: &str, status: Option<Status>, sense: Option<&Sense>) -> DiskError {
        let said = match (sense, status) {
            (Some(sense), _) => sense.to_string(),
            (None, Some(status)) => status.name().to_owned(),
            (None, None) => "a status that is not known".to_owned(),
        };
        let text = format!("the target refused {name}: {said}");
        match (status, sense.and_then(Sense::key)) {
            (Some(Status::ReservationConflict), _) => DiskError::NotPermitted(text),
            (_, Some(SenseKey::DataProtect)) => {
                let is_full =
                    sense.is_some_and(|sense| sense.code == AdditionalSense::SPACE_ALLOCATION_FAILED);
                if is_full { DiskError::NoSpace(text) } else { DiskError::NotPermitted(text) }
            }
            _ => match sense.and_then(Sense::unfit) {
                Some(unfit) => DiskError::Unfit(unfit, text),
                None => DiskError::Io(text),
            },
        }
    }
}

/// Why a disk cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The unit does not say what has to be known.
    #[error("{0}")]
    Probe(ProbeError),
    /// A command was not answered.
    #[error("{0}")]
    Command(CommandError),
    /// It is no disk, or not ready.
    #[error("{0}")]
    NoDisk(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_kind() {
        let sense = |key: u8, asc: u8, ascq: u8| {
            let mut bytes = [0; 18];
            (bytes[0], bytes[2], bytes[7], bytes[12], bytes[13]) = (0x70, key, 10, asc, ascq);
            Sense::decode(&bytes)
        };
        let nbd =
            |status, sense: Option<Sense>| DiskError::refused("WRITE(10)", status, sense.as_ref()).nbd();
        assert_eq!(nbd(Some(Status::ReservationConflict), None), Errno::NotPermitted);
        assert_eq!(nbd(Some(Status::CheckCondition), sense(7, 0x27, 0)), Errno::NotPermitted);
        assert_eq!(nbd(Some(Status::CheckCondition), sense(7, 0x27, 7)), Errno::NoSpace);
        assert_eq!(nbd(Some(Status::CheckCondition), sense(3, 0x11, 0)), Errno::Io);
        assert_eq!(nbd(None, None), Errno::Io);
        assert_eq!(DiskError::Beyond.nbd(), Errno::Invalid);
    }
}
