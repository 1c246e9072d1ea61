//! Where the cells of a link with one target are measured. A run that fails leaves a network and a target of which nobody knows
//! anything any more: whoever comes next has new ones, as long as it is worth trying.

use std::time::Duration;

use super::peer::Peer;
use crate::LabError;

/// So often in a row is tried to open a site.
const OPENINGS: usize = 2;
/// So long may runs take that fail one after the other, if there are at least so many of them: a target that hangs would take hours.
const FAILING_MAX: Duration = Duration::from_secs(300);
const FAILURES_MIN: u32 = 2;

/// A site (`super::site::Site`) that is opened when it is needed.
#[derive(Debug)]
pub(super) struct Stand<S> {
    /// Whose target is there; none: ours.
    pub(super) peer: Option<Peer>,
    site: Option<S>,
    /// Runs that have failed since the last one that went well, and what they took.
    failures: u32,
    failing: Duration,
    /// Why nothing more is measured here.
    gone: Option<String>,
}

impl<S> Stand<S> {
    /// One that nobody has opened yet.
    pub(super) const fn new(peer: Option<Peer>) -> Self {
        Self { peer, site: None, failures: 0, failing: Duration::ZERO, gone: None }
    }

    /// Sees to it that there is a site; true if it is a new one.
    ///
    /// # Errors
    /// It cannot be opened. Then this is given up, unless what was asked for is at fault.
    pub(super) fn enter(&mut self, mut open: impl FnMut() -> Result<S, LabError>) -> Result<bool, LabError> {
        if self.site.is_some() {
            return Ok(false);
        }
        if let Some(reason) = &self.gone {
            return Err(LabError::GivenUp(reason.clone()));
        }
        let mut opened = open();
        for _ in 1..OPENINGS {
            match opened {
                Err(error) if !error.is_of_plan() => opened = open(),
                _ => break,
            }
        }
        match opened {
            Ok(site) => {
                self.site = Some(site);
                Ok(true)
            }
            Err(error) => {
                self.gone = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// The site, while there is one.
    pub(super) const fn site(&self) -> Option<&S> {
        self.site.as_ref()
    }

    /// The same, to be looked after.
    pub(super) const fn site_mut(&mut self) -> Option<&mut S> {
        self.site.as_mut()
    }

    /// A run went well.
    pub(super) fn has_carried(&mut self) {
        (self.failures, self.failing) = (0, Duration::ZERO);
    }

    /// A run has failed, and has taken so long; answers the site, which is not used any more.
    pub(super) fn has_failed(&mut self, took: Duration, why: &LabError) -> Option<S> {
        self.failures += 1;
        self.failing += took;
        if self.failures >= FAILURES_MIN && self.failing >= FAILING_MAX {
            self.gone = Some(why.to_string());
        }
        self.site.take()
    }

    /// Why nothing more is measured here, if so.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Result<u32, LabError> {
        Err(LabError::NotReady("it has ended".to_owned()))
    }

    #[test]
    fn a_site_is_opened_anew_when_a_run_has_failed() {
        let mut stand = Stand::new(None);
        assert_eq!(stand.enter(|| Ok(1)).ok(), Some(true));
        stand.has_carried();
        assert_eq!((stand.enter(|| Ok(2)).ok(), stand.site()), (Some(false), Some(&1)));
        assert_eq!(stand.has_failed(Duration::ZERO, &LabError::Panicked), Some(1));
        assert_eq!((stand.enter(|| Ok(3)).ok(), stand.site()), (Some(true), Some(&3)));
    }

    #[test]
    fn who_cannot_be_opened_twice_in_a_row_is_given_up() {
        let mut stand = Stand::new(None);
        let mut tries = vec![Ok(7), refused()];
        assert!(stand.enter(|| tries.pop().expect("two tries")).is_ok() && stand.gone().is_none());
        stand.has_failed(Duration::ZERO, &LabError::Panicked);
        let mut tried = 0;
        let refused = stand.enter(|| {
            tried += 1;
            refused()
        });
        assert!(refused.is_err() && tried == 2);
        assert!(stand.gone().is_some_and(|reason| reason.contains("it has ended")));
        let refused = stand.enter(|| panic!("it is not tried any more"));
        assert!(refused.is_err_and(|error| error.to_string().contains("it has ended")));
    }

    #[test]
    fn what_was_asked_for_is_not_tried_again() {
        let mut tried = 0;
        let refused = Stand::<u32>::new(None).enter(|| {
            tried += 1;
            Err(LabError::Plan("there is no such congestion control".to_owned()))
        });
        assert!(refused.is_err() && tried == 1);
    }

    #[test]
    fn runs_that_hang_are_not_tried_for_ever_and_short_ones_are() {
        let short = Duration::from_millis(100);
        let is_gone_after = |took: &[Option<Duration>]| {
            let mut stand = Stand::new(None);
            for took in took {
                assert!(stand.enter(|| Ok(1)).is_ok());
                match took {
                    Some(took) => drop(stand.has_failed(*took, &LabError::Panicked)),
                    None => stand.has_carried(),
                }
            }
            stand.gone().is_some()
        };
        assert!(!is_gone_after(&[Some(short); 100]));
        assert!(!is_gone_after(&[Some(FAILING_MAX)]), "the next one has a try");
        assert!(is_gone_after(&[Some(FAILING_MAX), Some(short)]));
        assert!(!is_gone_after(&[Some(FAILING_MAX), None, Some(short), Some(short)]));
    }
}
