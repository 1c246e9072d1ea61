//! A unit that is sanitized goes on when the session of who wants it is lost, and so does who waits for the end.

use std::thread;
use std::time::{Duration, Instant};

use lunette_block::OperationKind;
use lunette_tests::commands::command;
use lunette_tests::in_process::InProcess;
use lunette_tests::relay::Relay;

/// Long enough for SANITIZE to be answered, and for several questions of how far it is.
const A_WHILE: Duration = Duration::from_secs(3);

#[test]
fn a_sanitize_is_waited_for_over_the_loss_of_its_session() {
    let target = InProcess::start(&["mem:8M"]);
    let relay = Relay::to(target.portal());
    let url = format!("iscsi://{}/{}/0", relay.address, target.name());
    target.hold(0, OperationKind::Write);
    thread::scope(|scope| {
        let erase = scope.spawn(|| command(&["erase", &url, "--yes", "--method", "sanitize-overwrite"]));
        target.wait_for_calls(0, OperationKind::Write, 1);
        for _ in 0..2 {
            thread::sleep(A_WHILE);
            relay.cut();
        }
        thread::sleep(A_WHILE);
        assert!(!erase.is_finished(), "{:?}", erase.join());
        let since = Instant::now();
        target.faults(0).clear();
        let said = erase.join().expect("its end");
        assert_eq!(said.status, Some(0), "{said:?}");
        assert!(said.out.contains("erased 8 MiB") && said.err.contains("logged in again"), "{said:?}");
        // It does not wait for a session to be given up.
        assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    });
}
