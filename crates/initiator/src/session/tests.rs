//! What becomes of requests when the session's thread ends, and who is told of what.

use super::*;
use crate::engine::Waker;
use crate::{Data, Status};

fn shared() -> Arc<Shared> {
    let facts = Facts {
        parameters: SessionParameters::default(),
        connections: Vec::new(),
        paths: Vec::new(),
        events: Vec::new(),
        ghost_left: None,
        is_over: false,
    };
    let (requests, thread) = (Mutex::default(), Mutex::default());
    let waker = Waker::new().expect("an event descriptor");
    Arc::new(Shared { requests, waker, facts: Mutex::new(facts), thread })
}

fn command() -> (Request, oneshot::Receiver<Completion>) {
    let (sender, receiver) = oneshot::channel();
    let asker = Asker { answer: sender, asked_at: Instant::now(), lun: Lun::default().field() };
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

/// An engine that gives a command the place of the last one that has ended, and ends all of them together when it is told how.
#[derive(Default)]
struct Places {
    free: Vec<u32>,
    serial: u64,
    under_way: Vec<(CommandId, Command)>,
}

impl Places {
    /// Ends all commands with this status.
    fn end_all(&mut self, code: u8) -> Vec<Completion> {
        let ended = std::mem::take(&mut self.under_way);
        self.free.extend(ended.iter().map(|(id, _)| id.place));
        let complete = |(id, command): (CommandId, Command)| Completion {
            id,
            result: Ok(Status { code, ..Status::default() }),
            buffer: match command.data {
                Data::In(buffer) | Data::Out(buffer) => buffer,
                Data::None => Vec::new(),
            },
            received: 0,
            times: Times::default(),
            attempts: 1,
            session: 0,
        };
        ended.into_iter().map(complete).collect()
    }
}

impl Drive for Places {
    fn submit(&mut self, command: Command) -> CommandId {
        self.serial += 1;
        let place = self.free.pop().unwrap_or(self.under_way.len() as u32);
        let id = CommandId { place, serial: self.serial };
        self.under_way.push((id, command));
        id
    }

    fn guard(&mut self, _: Lun, _: UnitIdentity) {}

    fn manage(&mut self, _: Function) -> Result<RequestId, CommandError> {
        Err(CommandError::NotSent("it has none".to_owned()))
    }

    fn log_out(&mut self) {}

    fn poll(&mut self, _: &mut Vec<Completion>) -> Result<(), Error> {
        Ok(())
    }

    fn event(&mut self) -> Option<EngineEvent> {
        None
    }

    fn outstanding(&self) -> usize {
        self.under_way.len()
    }

    fn is_over(&self) -> bool {
        false
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn waker(&self) -> Waker {
        Waker::new().expect("an event descriptor")
    }

    fn connections(&self) -> Vec<ConnectionInfo> {
        Vec::new()
    }

    fn parameters(&self) -> SessionParameters {
        SessionParameters::default()
    }

    fn paths(&self) -> Vec<PathInfo> {
        Vec::new()
    }

    fn login_record(&self) -> LoginRecord {
        LoginRecord::default()
    }
}

/// Merged reads that fail together are tried one by one, in the places of others that have ended in the same moment.
#[test]
fn everybody_is_answered_when_reads_are_tried_again() {
    const BLOCK_BYTES: u32 = 512;
    let shared = shared();
    let mut driver = Driver::of(Places::default(), &shared);
    let unit = Lun::default();
    driver.shared.ask(Request::Merge(
        unit,
        Some(Merging { block_length_bytes: BLOCK_BYTES, command_bytes_max: 1 << 20 }),
    ));
    let read = |lba: u8| {
        let (sender, receiver) = oneshot::channel();
        let command = Command::new(unit, [0x28, 0, 0, 0, 0, lba, 0, 0, 1, 0]).reading(vec![lba; 512]);
        let asker = Asker { answer: sender, asked_at: Instant::now(), lun: unit.field() };
        shared.ask(Request::Command(command, asker));
        receiver
    };
    // Pairs of neighbours, three at once, and one alone behind them.
    let mut answers: Vec<_> = [0, 1, 10, 11, 20, 21, 30].into_iter().map(read).collect();
    driver.take_requests();
    assert_eq!(driver.engine.outstanding(), 4);
    let mut failed = driver.engine.end_all(2);
    driver.answer_all(&mut failed);
    assert_eq!(driver.engine.outstanding(), 6, "each of the pairs again, alone");
    let alone = answers.pop().expect("the last").try_recv().expect("not dropped").expect("answered");
    assert_eq!(alone.result.map(|status| status.code), Ok(2));
    let mut good = driver.engine.end_all(0);
    driver.answer_all(&mut good);
    for (mut answer, lba) in answers.into_iter().zip([0, 1, 10, 11, 20, 21]) {
        let completion = answer.try_recv().expect("not dropped").expect("answered");
        assert_eq!((completion.result.map(|status| status.code), completion.buffer), (Ok(0), vec![lba; 512]));
    }
}

/// A unit tells each of them once.
#[test]
fn an_attention_that_nobody_waits_for_is_an_event() {
    let shared = shared();
    let mut driver = Driver::of(Places::default(), &shared);
    let attention = |response_code, sense_key| {
        let (request, receiver) = command();
        shared.ask(request);
        driver.take_requests();
        drop(receiver);
        let mut ended = driver.engine.end_all(2);
        for completion in &mut ended {
            let sense = vec![response_code, 0, sense_key, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 9, 0, 0, 0, 0];
            completion.result = completion.result.clone().map(|status| Status { sense, ..status });
        }
        driver.answer_all(&mut ended);
        std::mem::take(&mut lock(&shared.facts).events)
    };
    let mut attention = attention;
    assert!(matches!(&attention(0x70, 6)[..], [EngineEvent::Attention { sense, .. }] if sense[12] == 0x2a));
    assert!(attention(0x70, 3).is_empty(), "an error is nobody's business");
    assert!(matches!(&attention(0x71, 3)[..], [EngineEvent::Attention { sense, .. }] if sense[0] == 0x71));
}
