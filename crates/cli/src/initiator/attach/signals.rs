//! What signals do. While the disk is opened one ends the process at once. Afterwards the first one detaches and the second one ends
//! the process; but SIGHUP only detaches, since who closes a terminal may send it twice. What `lunette detach` asks for does not count
//! either: nobody was told then what the next signal does.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Shared, spawn};
use crate::failure::{Failure, say};
use crate::signals::ignores_hangup;

/// The status that a second signal ends with: what was not flushed may not be stable.
const CUT_OFF: i32 = 1;

/// Tells the thread that heeds signals how far the disk is. Dropped before [`Heeded::shown`], there will be none.
pub(super) struct Heeded {
    is_opening: Arc<Mutex<bool>>,
    shown: Sender<Arc<Shared>>,
}

impl Heeded {
    /// It is opened; from here on something may be mounted.
    pub(super) fn opened(&self) {
        *self.is_opening.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// It is there for others.
    pub(super) fn shown(self, shared: Arc<Shared>) {
        // The thread is there as long as the process.
        let _ = self.shown.send(shared);
    }
}

/// Begins to heed signals.
///
/// # Errors
/// The system refuses.
pub(super) fn heed() -> Result<Heeded, Failure> {
    let heeded = [SIGTERM, SIGINT].into_iter().chain((!ignores_hangup()).then_some(SIGHUP));
    let signals = Signals::new(heeded).map_err(|error| Failure::new("cannot wait for signals", &error))?;
    let is_opening = Arc::new(Mutex::new(true));
    let (sender, shown) = channel();
    let opening = Arc::clone(&is_opening);
    spawn("signals", move || run(signals, &opening, &shown))?;
    Ok(Heeded { is_opening, shown: sender })
}

fn run(mut signals: Signals, is_opening: &Mutex<bool>, shown: &Receiver<Arc<Shared>>) {
    let mut signals = signals.forever();
    let Some(mut signal) = signals.next() else { return };
    // Held until the process has ended, so that nothing is mounted meanwhile.
    let is_opening = is_opening.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(shared) = (!*is_opening).then(|| shown.recv().ok()).flatten() else {
        say("lunette: ended by a signal before the disk was there; nothing was written");
        std::process::exit(128 + signal);
    };
    let mut is_first = true;
    loop {
        if signal == SIGHUP {
            say("lunette: detaching as soon as nobody uses it");
        } else if std::mem::take(&mut is_first) {
            say("lunette: detaching as soon as nobody uses it; a second signal ends at once");
        } else {
            say(
                "lunette: ending at once; what was not flushed may be lost, and what a lost path has left may come late",
            );
            std::process::exit(CUT_OFF);
        }
        shared.is_detached.store(true, Ordering::SeqCst);
        shared.stop();
        let Some(next) = signals.next() else { return };
        signal = next;
    }
}
