//! Which of several connections takes a command: the target executes them in order, so that one that comes late holds up all behind it.

use super::*;

const WRITE: u32 = 32 << 10;

/// A session with so many connections and a window for so many commands, whose writes go unasked.
fn session(connections: u16, window: u32) -> (Session, Vec<ConnectionId>) {
    let parameters = SessionParameters {
        max_connections: connections,
        initial_r2t: false,
        first_burst_length: WRITE,
        ..SessionParameters::default()
    };
    let mut session = Session::new(parameters, CMD_SN, Settings::default());
    let login = |cid| LoggedIn {
        cid: Cid(cid),
        parameters: ConnectionParameters::default(),
        exp_stat_sn: STAT_SN,
        exp_cmd_sn: CMD_SN,
        max_cmd_sn: CMD_SN.plus(window - 1),
    };
    let ids = (0..connections).map(|cid| session.add_connection(NOW, &login(cid)).expect("a connection"));
    let ids = ids.collect();
    (session, ids)
}

fn write(session: &mut Session, count: usize) {
    for _ in 0..count {
        session.submit(&Command { write_length: WRITE, ..Command::default() }).expect("a task");
    }
}

/// How many writes leave on a connection, with all of their data.
fn leave(session: &mut Session, id: ConnectionId, budget: usize) -> usize {
    let mut outbox = Outbox::default();
    session.transmit(NOW, id, budget, &mut outbox);
    outbox.pdus.iter().filter(|pdu| pdu.begins.is_some()).count()
}

#[test]
fn a_full_connection_takes_no_more_where_there_are_others() {
    let (mut session, ids) = session(3, 64);
    session.set_full(ids[1], true);
    write(&mut session, 4);
    assert_eq!(ids.iter().map(|id| leave(&mut session, *id, usize::MAX)).collect::<Vec<_>>(), [2, 0, 2]);
    // Nobody takes any: they wait, and the first that can has them.
    ids.iter().for_each(|id| session.set_full(*id, true));
    write(&mut session, 1);
    assert!(ids.iter().all(|id| !session.has_work(*id)));
    session.set_full(ids[1], false);
    assert_eq!(leave(&mut session, ids[1], usize::MAX), 1);
}

#[test]
fn what_has_not_left_is_bounded_on_each_of_several_and_in_turn() {
    let (mut session, ids) = session(2, 64);
    write(&mut session, 10);
    let waiting = |session: &Session| session.waiting.len();
    // 64 KiB each.
    assert_eq!(waiting(&session), 6);
    // The one that has sent takes the next one, and then it is the other one's turn.
    assert_eq!(leave(&mut session, ids[0], usize::MAX), 2);
    assert_eq!((waiting(&session), session.has_work(ids[0])), (5, true));
    assert_eq!(leave(&mut session, ids[1], usize::MAX), 2);
    assert_eq!((waiting(&session), session.has_work(ids[0]), session.has_work(ids[1])), (2, true, true));
    let mut left = 4;
    while ids.iter().any(|id| session.has_work(*id)) {
        left += ids.iter().map(|id| leave(&mut session, *id, 1)).sum::<usize>();
    }
    assert_eq!((left, waiting(&session)), (10, 0));
}

#[test]
fn one_that_is_alone_takes_all() {
    let (mut session, ids) = session(1, 64);
    session.set_full(ids[0], true);
    write(&mut session, 40);
    assert_eq!((session.waiting.len(), leave(&mut session, ids[0], usize::MAX)), (0, 40));
}
