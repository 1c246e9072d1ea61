//! Keeps a read-modify-write apart from the other writes of its volume.
//!
//! Past the page cache a write that does not fill whole blocks of the device has to read them, change its part and
//! write them back. A write beside it in the same block would be undone. So whole writes share the gate, and a
//! read-modify-write has it alone. Who waits to have it alone goes before those who come later; those who wait to share it
//! go, all at once, before the next one who wants it alone. So neither kind can keep the other out.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    sharing: usize,
    alone: bool,
    waiting_alone: usize,
    waiting_to_share: usize,
    /// How often somebody has left who had the gate alone.
    round: u64,
    /// Those who waited to share the gate when this round began, and have not entered yet.
    let_in: usize,
}

/// One write among others. It may be given up on another thread than it was taken on.
#[derive(Debug)]
pub(crate) struct Shared(Arc<Gate>);

/// The only write.
#[derive(Debug)]
pub(crate) struct Alone(Arc<Gate>);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters for a write of whole blocks if nobody has, or waits for, the gate alone.
    pub(crate) fn try_share(self: &Arc<Self>) -> Option<Shared> {
        let mut state = self.lock();
        if state.alone || state.waiting_alone > 0 {
            return None;
        }
        state.sharing += 1;
        Some(Shared(Arc::clone(self)))
    }

    /// Enters for a write of whole blocks; waits where [`Gate::try_share`] would not enter.
    pub(crate) fn share(self: &Arc<Self>) -> Shared {
        let mut state = self.lock();
        let came_in = state.round;
        state.waiting_to_share += 1;
        while state.round == came_in && (state.alone || state.waiting_alone > 0) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting_to_share -= 1;
        if state.round != came_in {
            state.let_in -= 1;
        }
        state.sharing += 1;
        Shared(Arc::clone(self))
    }

    /// Enters alone, once all others have left.
    pub(crate) fn alone(self: &Arc<Self>) -> Alone {
        let mut state = self.lock();
        state.waiting_alone += 1;
        while state.alone || state.sharing > 0 || state.let_in > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting_alone -= 1;
        state.alone = true;
        Alone(Arc::clone(self))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.sharing -= 1;
        if state.sharing == 0 && state.waiting_alone > 0 {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.alone = false;
        state.round += 1;
        state.let_in = state.waiting_to_share;
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn who_waits_to_be_alone_goes_before_later_ones() {
        let gate = Arc::new(Gate::default());
        let first = gate.try_share().unwrap();
        let second = gate.share();
        let waits = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || drop(gate.alone()))
        };
        while gate.lock().waiting_alone == 0 {
            thread::yield_now();
        }
        assert!(gate.try_share().is_none());
        drop((first, second));
        waits.join().unwrap();
        assert!(gate.try_share().is_some());
    }

    #[test]
    fn who_shares_gets_in_between_those_who_leave_no_gap() {
        const ROUNDS: usize = 2000;
        let gate = Arc::new(Gate::default());
        let rounds = Arc::new(AtomicUsize::new(0));
        let shares = {
            let (gate, rounds) = (Arc::clone(&gate), Arc::clone(&rounds));
            move || {
                let _shared = gate.share();
                rounds.swap(ROUNDS, Ordering::SeqCst)
            }
        };
        let writes = |gate: Arc<Gate>, rounds: Arc<AtomicUsize>| {
            move || {
                while rounds.load(Ordering::SeqCst) < ROUNDS {
                    let _alone = gate.alone();
                    rounds.fetch_add(1, Ordering::SeqCst);
                    // It leaves only when the other one waits, so the gate is never free.
                    while gate.lock().waiting_alone == 0 && rounds.load(Ordering::SeqCst) < ROUNDS {
                        thread::yield_now();
                    }
                }
            }
        };
        let first = gate.alone();
        let writers = [(); 2].map(|()| thread::spawn(writes(Arc::clone(&gate), Arc::clone(&rounds))));
        while gate.lock().waiting_alone < 2 {
            thread::yield_now();
        }
        let shares = thread::spawn(shares);
        while gate.lock().waiting_to_share == 0 {
            thread::yield_now();
        }
        drop(first);
        assert_eq!(shares.join().unwrap(), 0, "it waited while others had the gate alone");
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    }

    #[test]
    fn alone_is_alone() {
        let gate = Arc::new(Gate::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
                thread::spawn(move || {
                    for turn in 0..500 {
                        if (turn + thread) % 3 == 0 {
                            let _alone = gate.alone();
                            assert_eq!(inside.load(Ordering::SeqCst), 0);
                        } else {
                            let _shared = gate.share();
                            inside.fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let state = gate.lock();
        assert_eq!((state.sharing, state.alone, state.waiting_alone), (0, false, 0));
        assert_eq!((state.waiting_to_share, state.let_in), (0, 0));
    }
}
