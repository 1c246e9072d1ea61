//! Why nothing could be measured.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use lunette_workload::WorkloadError;

/// Each is a sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no session.
    #[error(transparent)]
    Initiator(#[from] lunette_initiator::Error),
    /// The workload does not fit the disk.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The plan is not one that can be carried out.
    #[error("{0}")]
    Plan(String),
    /// This machine lacks something that a study cannot do without.
    #[error("it needs {0}")]
    Needs(String),
    /// The disk does not take commands.
    #[error("the disk is not ready: {0}")]
    NotReady(String),
    /// There is no emulated network.
    #[error("there is no emulated network: {0}")]
    Network(#[from] lunette_wan::WanError),
    /// The system refuses something.
    #[error("the system refuses {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// What a target has written of its tasks' times cannot be had.
    #[error("the target's times of its tasks cannot be read from {}: {source}", path.display())]
    Times {
        /// Where they were to be.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The target of an emulated link has ended by itself.
    #[error("the target has ended by itself ({status}){}", seen.as_ref().map(|seen| format!(": {seen}")).unwrap_or_default())]
    TargetEnded {
        /// How it has ended.
        status: ExitStatus,
        /// What was seen of that, by whoever used it.
        seen: Option<Box<LabError>>,
    },
    /// What failed before is not tried any more.
    #[error("{0}")]
    GivenUp(String),
    /// A thread of the measurement has ended without a result: a defect.
    #[error("a thread of the measurement panicked")]
    Panicked,
}

impl LabError {
    /// Whether another target may have caused it, and not the plan or this process.
    pub(crate) const fn may_be_of_a_target(&self) -> bool {
        !self.is_of_plan() && !matches!(self, Self::Panicked)
    }

    /// Whether what was asked for cannot be had here, whatever is tried.
    pub(crate) const fn is_of_plan(&self) -> bool {
        matches!(self, Self::Plan(_) | Self::Needs(_))
    }

    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    pub(crate) fn times(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Times { path: path.to_owned(), source }
    }
}
