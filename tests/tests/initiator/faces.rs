//! The asynchronous and the blocking face of a session.

use lunette_initiator::{Command, CommandError, Function, Session, blocking};
use lunette_tests::in_process::InProcess;

use lunette_tests::engine::{lun, options, pattern, read, write};

fn ready(session: &blocking::Session) {
    let ready = || session.execute(Command::new(lun(0), [0; 6])).is_good();
    assert!((0..16).any(|_| ready()), "the unit does not get ready");
}

#[test]
fn one_session_serves_many_threads() {
    let target = InProcess::start(&["mem:64M"]);
    let session = blocking::Session::connect(options(target.name(), target.portal())).expect("a session");
    ready(&session);
    assert!(session.handle().login_record().attempts.len() == 1 && session.handle().connections().len() == 1);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let session = session.clone();
            scope.spawn(move || {
                let data = |index: u64| pattern(thread * 100 + index, 4096);
                let writes = (0..20).map(|index| write(0, (thread * 20 + index) * 8, 8, data(index)));
                assert!(session.execute_all(writes).iter().all(lunette_initiator::Completion::is_good));
                let reads = (0..20).map(|index| read(0, (thread * 20 + index) * 8, 8, 512));
                for (index, completion) in session.execute_all(reads).iter().enumerate() {
                    assert!(completion.is_good() && completion.data() == data(index as u64));
                    let times = completion.times;
                    assert!(times.sent <= times.first_byte && times.first_byte <= Some(times.done));
                }
            });
        }
    });
    assert_eq!(session.manage(Function::LogicalUnitReset(lun(0).field())), Ok(0));
    session.log_out();
    assert!(session.handle().is_over());
    let late = session.execute(Command::new(lun(0), [0; 6]));
    assert!(matches!(late.result, Err(CommandError::NotSent(_))), "{:?}", late.result);
    session.log_out();
}

#[test]
fn a_handle_is_for_any_thread_and_its_end_logs_out() {
    fn is_for_any_thread<T: Send + Sync + Clone + 'static>(_: &T) {}
    let target = InProcess::start(&["mem:16M"]);
    let session = blocking::Session::connect(options(target.name(), target.portal())).expect("a session");
    let handle: Session = session.handle().clone();
    is_for_any_thread(&handle);
    ready(&session);
    // Who does not wait for an answer loses nothing but the answer.
    drop(handle.submit(read(0, 0, 8, 512)));
    ready(&session);
    assert!(format!("{handle:?}").contains("is_over: false"));
    drop((session, handle));
    // The same identity again, which would replace a session that is still there, and be told in the log.
    let peer = |text: &str| target.log_with(text).len();
    lunette_tests::in_process::wait_until("the target has seen a logout", || peer("connection ended") > 0);
}

#[test]
fn a_connection_that_fails_is_an_error_of_connect() {
    let free = lunette_tests::tgtd::free_portal().expect("a free port");
    let error =
        blocking::Session::connect(options("iqn.2026-11.io.lunette:x", free)).expect_err("nobody listens");
    assert!(error.to_string().contains("cannot connect"), "{error}");
}
