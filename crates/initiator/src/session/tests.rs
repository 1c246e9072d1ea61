//! What becomes of requests when the session's thread ends.

use super::*;
use crate::engine::Waker;

fn shared() -> Arc<Shared> {
    let facts = Facts {
        parameters: SessionParameters::default(),
        connections: Vec::new(),
        paths: Vec::new(),
        events: Vec::new(),
        is_over: false,
    };
    let (requests, thread) = (Mutex::default(), Mutex::default());
    let waker = Waker::new().expect("an event descriptor");
    Arc::new(Shared { requests, waker, facts: Mutex::new(facts), thread })
}

fn command() -> (Request, oneshot::Receiver<Completion>) {
    let (sender, receiver) = oneshot::channel();
    let asker = Asker { answer: sender, asked_at: Instant::now() };
    (Request::Command(Command::new(Lun::default(), [0; 6]).reading(vec![7]), asker), receiver)
}

fn is_refused(mut receiver: oneshot::Receiver<Completion>) -> bool {
    let completion = receiver.try_recv().expect("an answer").expect("it is there already");
    completion.buffer == [7] && matches!(completion.result, Err(CommandError::NotSent(_)))
}

#[test]
fn what_is_asked_before_and_after_the_end_of_the_thread_is_refused() {
    let shared = shared();
    let (before, answer) = command();
    shared.ask(before);
    drop(Closing(&shared));
    assert!(is_refused(answer) && lock(&shared.facts).is_over);
    let (after, answer) = command();
    shared.ask(after);
    assert!(is_refused(answer));
    let (sender, mut left) = oneshot::channel();
    shared.ask(Request::LogOut(sender));
    assert!(left.try_recv().is_err(), "who waits sees the end of the channel");
}

#[test]
fn the_end_of_the_thread_by_a_panic_is_an_end_too() {
    let shared = shared();
    let of_thread = Arc::clone(&shared);
    let thread = std::thread::spawn(move || {
        let _closing = Closing(&of_thread);
        panic!("as a test");
    });
    assert!(thread.join().is_err());
    let (after, answer) = command();
    shared.ask(after);
    assert!(is_refused(answer));
}
