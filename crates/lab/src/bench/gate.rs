//! Where workers wait for each other, so that they begin together or not at all.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::monitor::Monitor;

/// How often who waits, for others or for a session, looks whether the measurement is to end.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// So many are still to come.
    Waiting(u32),
    Open,
    /// One of them will not come.
    Closed,
}

impl Gate {
    pub(super) const fn new(workers: u32) -> Self {
        Self { state: Mutex::new(State::Waiting(workers)), changed: Condvar::new() }
    }

    /// The place of one worker.
    pub(super) const fn place(&self) -> Place<'_> {
        Place { gate: self, is_passing: false }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever lets go of it without passing, a panic on the way too, closes the gate for all.
#[derive(Debug)]
pub(super) struct Place<'a> {
    gate: &'a Gate,
    is_passing: bool,
}

impl Place<'_> {
    /// Waits for all; false if one of them does not come, or the measurement is to end before they are there.
    pub(super) fn pass(mut self, monitor: &Monitor) -> bool {
        self.is_passing = true;
        let mut state = self.gate.lock();
        if let State::Waiting(missing) = *state {
            *state = if missing > 1 { State::Waiting(missing - 1) } else { State::Open };
        }
        while matches!(*state, State::Waiting(_)) {
            if monitor.is_stopped() {
                *state = State::Closed;
                break;
            }
            let waited = self.gate.changed.wait_timeout(state, LOOK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.gate.changed.notify_all();
        *state == State::Open
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_passing {
            *self.gate.lock() = State::Closed;
            self.gate.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Three come to a gate for that many; what each of them is told. Nothing of whoever panics.
    fn come(
        workers: u32,
        monitor: &Monitor,
        pass: fn(u32, Place<'_>, &Monitor) -> bool,
    ) -> Vec<Option<bool>> {
        let gate = Gate::new(workers);
        thread::scope(|scope| {
            let comers: Vec<_> = (0..3)
                .map(|number| {
                    let place = gate.place();
                    scope.spawn(move || pass(number, place, monitor))
                })
                .collect();
            comers.into_iter().map(|comer| comer.join().ok()).collect()
        })
    }

    #[test]
    fn all_pass_or_none() {
        let running = Monitor::default();
        let together = come(3, &running, |_, place, monitor| place.pass(monitor));
        assert_eq!(together, [Some(true); 3]);
        let one_fails = come(3, &running, |number, place, monitor| number != 1 && place.pass(monitor));
        assert_eq!(one_fails, [Some(false); 3]);
        let one_panics = come(3, &running, |number, place, monitor| {
            assert_ne!(number, 1, "as planned");
            place.pass(monitor)
        });
        assert_eq!(one_panics, [Some(false), None, Some(false)]);
    }

    #[test]
    fn who_waits_goes_when_it_is_to_end() {
        // A fourth one never comes.
        let monitor = Monitor::default();
        let stopped = come(4, &monitor, |number, place, monitor| {
            if number == 2 {
                monitor.stop();
            }
            place.pass(monitor)
        });
        assert_eq!(stopped, [Some(false); 3]);
        // Those that are all there begin, and see for themselves.
        let there = come(3, &monitor, |number, place, monitor| {
            thread::sleep(LOOK_INTERVAL * number / 100);
            place.pass(monitor)
        });
        assert!(there == [Some(true); 3] || there == [Some(false); 3], "{there:?}");
    }
}
