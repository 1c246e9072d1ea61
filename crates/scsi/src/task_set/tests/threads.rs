//! Threads that would find a count or a wake-up lost.

use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::*;
use crate::priority::MIDDLE;

/// A thread's way to be woken.
#[derive(Debug)]
struct Bell(Mutex<Sender<()>>);

impl Wake for Bell {
    fn wake(&self, _: u64) {
        self.0.lock().unwrap().send(()).unwrap();
    }
}

/// One thread's commands, one at a time.
struct Worker {
    set: Arc<TaskSet>,
    member: Arc<Member>,
    bell: Arc<Bell>,
    rings: Receiver<()>,
}

impl Worker {
    fn wait(&self, entry: Entry) {
        if let Entry::Waits(ticket) = entry {
            while !self.set.take_turn(ticket) {
                self.rings.recv().unwrap();
            }
            // A ring may have come although the turn was seen before it; it belongs to nobody.
            while self.rings.try_recv().is_ok() {}
        }
    }

    fn turn(&self) -> Turn {
        Turn { waker: Arc::clone(&self.bell) as _, key: 0, passes_allegiance: false, rank: MIDDLE }
    }

    fn begin(&self, attribute: Attribute) {
        if !self.set.enter(&self.member, attribute) {
            self.wait(self.set.enter_late(&self.member, plain(attribute), self.turn()));
        }
    }
}

/// Threads race on the gate: who is alone adds to a number in two steps, which loses additions if another does the same,
/// and sees those that are not alone; a lost wake-up would never end.
#[allow(clippy::disallowed_methods, reason = "threads are what is tested here")]
#[test]
fn threads_do_not_meet_who_is_alone() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 3000;
    let set = Arc::new(TaskSet::default());
    let (sum, guests) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (sender, rings) = channel();
            let bell = Arc::new(Bell(Mutex::new(sender)));
            let worker = Worker { member: set.join(), set: Arc::clone(&set), bell, rings };
            let (sum, guests) = (Arc::clone(&sum), Arc::clone(&guests));
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    match (round * 7 + thread * 3) % 8 {
                        0 | 5 => {
                            worker.begin(Attribute::Simple);
                            worker.wait(worker.set.be_alone(&worker.member, false, worker.turn()));
                            assert_eq!(guests.load(Ordering::SeqCst), 0, "somebody is there");
                            let before = sum.load(Ordering::SeqCst);
                            thread::yield_now();
                            sum.store(before + 1, Ordering::SeqCst);
                            worker.set.leave_alone(&worker.member, Attribute::Simple);
                        }
                        3 => {
                            worker.begin(Attribute::Ordered);
                            assert_eq!(guests.load(Ordering::SeqCst), 0, "somebody is there");
                            let before = sum.load(Ordering::SeqCst);
                            thread::yield_now();
                            sum.store(before + 1, Ordering::SeqCst);
                            worker.set.leave(&worker.member, Attribute::Ordered, false);
                        }
                        choice => {
                            worker.begin(Attribute::Simple);
                            if choice == 4 {
                                worker.set.collect(&worker.member);
                                worker.wait(worker.set.go_on(&worker.member, worker.turn()));
                            }
                            guests.fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            guests.fetch_sub(1, Ordering::SeqCst);
                            worker.set.leave(&worker.member, Attribute::Simple, false);
                        }
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(sum.load(Ordering::SeqCst), (THREADS * ROUNDS * 3 / 8) as i64);
    assert!(set.lock().is_plain());
}
