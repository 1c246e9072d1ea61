//! The client against servers of any kind, in virtual time.

use super::*;
use crate::attributes::Attributes;
use crate::message::tests::{answer, response};
use crate::notification::tests::{inquiry_of, notification_of};
use crate::registration::tests::{listening, registration};
use lunette_cases::cases;
use proptest::prelude::*;

const REGISTER: u16 = 1;
const QUERY: u16 = 2;
const DEREGISTER: u16 = 4;
const REGISTER_NOTIFICATION: u16 = 5;
const NODES: [&str; 2] = ["iqn.2026-11.io.lunette:0", "iqn.2026-11.io.lunette:1"];
const REMOVED: u32 = 0x10;
const ADDED: u32 = 0x08;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The function of what is sent next.
fn sent(client: &mut Client, now: Duration) -> u16 {
    let Step::Send(bytes) = client.next(now) else { panic!("something to send") };
    u16::from_be_bytes([bytes[2], bytes[3]])
}

fn answered_with(
    client: &mut Client,
    function: u16,
    status: u32,
    told: &[u8],
    now: Duration,
) -> Option<News> {
    client.received(&response(&answer(function, client.transaction, status, told)), now)
}

fn answered(client: &mut Client, function: u16, status: u32, now: Duration) -> Option<News> {
    answered_with(client, function, status, &[], now)
}

/// The answer of a server that knows a node.
fn known(client: &mut Client, node: &str, now: Duration) -> Option<News> {
    let told = Attributes::default().text(tag::ISCSI_NAME, node).empty(tag::DELIMITER);
    answered_with(client, QUERY, 0, told.text(tag::ISCSI_NAME, node).as_bytes(), now)
}

/// Sends and answers all of a registration; then each node has seen itself.
fn registers(client: &mut Client, notifications: usize, now: Duration) {
    assert_eq!(sent(client, now), REGISTER);
    assert!(matches!(answered(client, REGISTER, 0, now), Some(News::Registered { .. })));
    for _ in 0..notifications {
        assert_eq!(sent(client, now), REGISTER_NOTIFICATION);
        assert_eq!(answered(client, REGISTER_NOTIFICATION, 0, now), None);
    }
    for _ in 0..notifications.max(1) {
        assert_eq!(sent(client, now), QUERY);
        assert_eq!(known(client, NODES[0], now), None);
    }
}

/// A client that has connected at second 0.
fn connected(registration: Registration) -> Client {
    let mut client = Client::default();
    assert_eq!(client.next(seconds(0)), Step::Connect);
    client.connected(registration, seconds(0));
    client
}

/// A client that has registered at second 0, with a period of 120 seconds.
fn registered(registration: Registration) -> Client {
    let notifications = if registration.listeners.is_empty() { 0 } else { registration.nodes.len() };
    let mut client = connected(registration);
    registers(&mut client, notifications, seconds(0));
    client
}

#[test]
fn it_registers_and_shows_that_it_is_there_and_leaves() {
    let mut client = registered(registration(2));
    assert_eq!(client.next(seconds(1)), Step::Wait(seconds(40)));
    assert_eq!(sent(&mut client, seconds(40)), QUERY);
    assert_eq!(known(&mut client, NODES[0], seconds(41)), None);
    assert_eq!(client.next(seconds(41)), Step::Wait(seconds(81)));
    client.leave();
    assert_eq!(sent(&mut client, seconds(50)), DEREGISTER);
    assert_eq!(answered(&mut client, DEREGISTER, 0, seconds(50)), Some(News::Deregistered));
    assert_eq!(client.next(seconds(50)), Step::End);
}

#[test]
fn a_server_that_has_forgotten_it_is_told_again() {
    // Some say so, others find nothing.
    for status in [9, 0] {
        let mut client = registered(listening(1));
        let (_, news) = client.asked(&inquiry_of("storage1"));
        assert_eq!(news, [News::Inquired]);
        assert_eq!(sent(&mut client, seconds(40)), QUERY);
        assert_eq!(answered(&mut client, QUERY, status, seconds(40)), Some(News::Forgotten));
        registers(&mut client, 1, seconds(40));
    }
}

#[test]
fn a_server_that_never_shows_a_node_to_itself_is_not_told_again_and_again() {
    let mut client = connected(listening(1));
    assert_eq!(sent(&mut client, seconds(0)), REGISTER);
    assert!(answered(&mut client, REGISTER, 0, seconds(0)).is_some());
    assert_eq!(sent(&mut client, seconds(0)), REGISTER_NOTIFICATION);
    assert_eq!(answered(&mut client, REGISTER_NOTIFICATION, 0, seconds(0)), None);
    assert_eq!(sent(&mut client, seconds(0)), QUERY);
    assert_eq!(answered(&mut client, QUERY, 5, seconds(0)), None);
    client.asked(&notification_of(NODES[0], &[(REMOVED, NODES[0])]));
    for now in [0, 40, 80].map(seconds) {
        assert_eq!(sent(&mut client, now), QUERY);
        assert_eq!(answered(&mut client, QUERY, 0, now), None);
    }
}

#[test]
fn a_server_may_shorten_the_period() {
    let mut client = connected(registration(1));
    assert_eq!(sent(&mut client, seconds(0)), REGISTER);
    let period = Attributes::default().number(tag::REGISTRATION_PERIOD, 30);
    assert!(answered_with(&mut client, REGISTER, 0, period.as_bytes(), seconds(0)).is_some());
    assert_eq!(sent(&mut client, seconds(0)), QUERY);
    assert_eq!(known(&mut client, NODES[0], seconds(0)), None);
    assert_eq!(client.next(seconds(0)), Step::Wait(seconds(10)));
}

#[test]
fn failures_are_tried_again_after_longer_pauses() {
    let mut client = Client::default();
    let mut now = seconds(0);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        assert_eq!(client.next(now), Step::Connect);
        client.failed(now);
        let Step::Wait(until) = client.next(now) else { panic!("a pause") };
        pauses.push((until - now).as_secs());
        now = until;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    client.leave();
    assert_eq!(client.next(now), Step::End);
}

#[test]
fn a_refusal_and_silence_are_failures() {
    let mut client = connected(registration(1));
    assert_eq!(sent(&mut client, seconds(0)), REGISTER);
    assert_eq!(answered(&mut client, REGISTER, 3, seconds(0)), Some(News::Refused(3)));
    assert_eq!(client.next(seconds(0)), Step::Disconnect);
    assert_eq!(client.next(seconds(0)), Step::Wait(seconds(1)));
    let mut silent = registered(registration(2));
    assert_eq!(sent(&mut silent, seconds(40)), QUERY);
    assert_eq!(silent.next(seconds(49)), Step::Wait(seconds(50)));
    assert_eq!(silent.next(seconds(50)), Step::Disconnect);
    assert!(matches!(silent.next(seconds(50)), Step::Wait(_)));
}

#[test]
fn an_answer_to_something_else_is_passed_over() {
    let mut client = registered(registration(2));
    assert_eq!(answered(&mut client, REGISTER, 3, seconds(1)), None);
    assert_eq!(sent(&mut client, seconds(40)), QUERY);
    client.transaction -= 1;
    assert_eq!(answered(&mut client, QUERY, 9, seconds(40)), None);
    client.transaction += 1;
    client.leave();
    assert_eq!(sent(&mut client, seconds(41)), DEREGISTER);
    assert_eq!(client.next(seconds(43)), Step::Disconnect, "nobody waits long for a server at the end");
    assert_eq!(client.next(seconds(43)), Step::End);
}

#[test]
fn a_server_that_cannot_inquire_or_notify_is_asked_for_less() {
    let mut client = connected(listening(2));
    assert_eq!(sent(&mut client, seconds(0)), REGISTER);
    assert_eq!(answered(&mut client, REGISTER, 21, seconds(0)), Some(News::Reduced(21)));
    assert_eq!(sent(&mut client, seconds(0)), REGISTER);
    let registered = Some(News::Registered { with_inquiries: false });
    assert_eq!(answered(&mut client, REGISTER, 0, seconds(0)), registered);
    assert_eq!(sent(&mut client, seconds(0)), REGISTER_NOTIFICATION);
    assert_eq!(answered(&mut client, REGISTER_NOTIFICATION, 17, seconds(0)), Some(News::Reduced(17)));
    assert_eq!(sent(&mut client, seconds(0)), QUERY, "the second node is not refused as well");

    client.failed(seconds(2));
    assert_eq!(client.next(seconds(3)), Step::Connect);
    client.connected(listening(2), seconds(3));
    for news in [News::Reduced(18), News::Refused(18)] {
        assert_eq!(sent(&mut client, seconds(3)), REGISTER);
        assert_eq!(answered(&mut client, REGISTER, 18, seconds(3)), Some(news));
    }
}

#[test]
fn a_server_whose_inquiries_do_not_arrive_is_asked_for_none() {
    let mut client = registered(listening(1));
    assert_eq!(sent(&mut client, seconds(40)), QUERY);
    assert_eq!(answered(&mut client, QUERY, 9, seconds(40)), Some(News::OutOfReach));
    assert_eq!(sent(&mut client, seconds(40)), REGISTER);
    let registered = Some(News::Registered { with_inquiries: false });
    assert_eq!(answered(&mut client, REGISTER, 0, seconds(40)), registered);
}

#[test]
fn only_its_own_entity_and_nodes_are_answered_for() {
    let mut client = registered(listening(1));
    let status = |answer: &[u8]| u32::from_be_bytes(answer[12..16].try_into().unwrap());
    for (request, wanted) in [
        (inquiry_of("storage1"), 0),
        (inquiry_of("STORAGE1"), 0),
        (inquiry_of("storage2"), 9),
        (notification_of(NODES[0], &[]), 0),
        (notification_of(NODES[1], &[]), 9),
    ] {
        let (answer, _) = client.asked(&request);
        assert_eq!(status(&answer.unwrap()), wanted, "{request:?}");
    }
    client.failed(seconds(1));
    let (answer, _) = client.asked(&inquiry_of("storage1"));
    assert_eq!(status(&answer.unwrap()), 0, "the portal is there, whatever became of the connection");
}

#[test]
fn what_becomes_of_initiators_is_told_and_bounded() {
    let mut client = registered(listening(1));
    let changes = [(ADDED, "iqn.a:1"), (REMOVED, "iqn.a:2")];
    let (_, news) = client.asked(&notification_of(NODES[0], &changes));
    let told: Vec<_> = news
        .iter()
        .map(|news| match news {
            News::Changed { node, event } => (&node[..], event.is_added(), event.is_removed()),
            _ => panic!("{news:?}"),
        })
        .collect();
    assert_eq!(told, [("iqn.a:1", true, false), ("iqn.a:2", false, true)]);
    let (_, news) = client.asked(&notification_of(NODES[0], &[(ADDED, "iqn.a:1"); OTHERS_MAX + 5]));
    assert_eq!((news.len(), news.last()), (OTHERS_MAX + 1, Some(&News::More(5))));
    assert_eq!(client.next(seconds(1)), Step::Wait(seconds(40)), "the server is not asked about others");
}

#[test]
fn a_node_that_was_taken_out_is_registered_again_at_once() {
    let mut client = registered(listening(2));
    let (_, news) = client.asked(&notification_of(NODES[0], &[(REMOVED, NODES[1])]));
    assert_eq!(news, [News::Doubted]);
    let Step::Send(question) = client.next(seconds(1)) else { panic!("a question") };
    assert!(question.windows(NODES[1].len()).any(|window| window == NODES[1].as_bytes()));
    assert_eq!(answered(&mut client, QUERY, 0, seconds(1)), Some(News::Forgotten));
    registers(&mut client, 2, seconds(1));
    assert_eq!(client.next(seconds(1)), Step::Wait(seconds(41)));
}

#[test]
fn a_registration_that_is_told_of_does_not_bring_another() {
    let mut client = registered(listening(1));
    let mut now = seconds(0);
    for pause in [0, 1, 1] {
        // The server tells of our own registration, which has replaced an older one.
        client.asked(&notification_of(NODES[0], &[(REMOVED, NODES[0]), (ADDED, NODES[0])]));
        if pause > 0 {
            assert_eq!(client.next(now), Step::Wait(now + seconds(pause)));
            now += seconds(pause);
        }
        assert_eq!(sent(&mut client, now), QUERY);
        assert_eq!(known(&mut client, NODES[0], now), None);
        assert!(matches!(client.next(now), Step::Wait(_)));
    }
}

#[test]
fn registrations_that_do_not_last_are_repeated_after_longer_pauses() {
    let mut client = registered(listening(1));
    let mut now = seconds(0);
    for pause in [0, 1, 2, 4, 8] {
        client.asked(&notification_of(NODES[0], &[(REMOVED, NODES[0])]));
        if pause > 0 {
            assert_eq!(client.next(now), Step::Wait(now + seconds(pause)));
            now += seconds(pause);
        }
        assert_eq!(sent(&mut client, now), QUERY);
        assert_eq!(answered(&mut client, QUERY, 9, now), Some(News::Forgotten));
        registers(&mut client, 1, now);
    }
}

/// What may happen to a client at any moment.
#[derive(Debug, Clone)]
enum Happening {
    Answer { status: u32, knows_node: bool },
    Notification { bitmap: u32, node: usize },
    Inquiry,
    Failure,
    Time(u64),
    Leave,
}

fn happening() -> impl Strategy<Value = Happening> {
    let status = prop_oneof![4 => Just(0), 1 => prop::sample::select(vec![3, 6, 9, 17, 21])];
    prop_oneof![
        8 => (status, any::<bool>())
            .prop_map(|(status, knows_node)| Happening::Answer { status, knows_node }),
        3 => (any::<u32>(), 0_usize..3).prop_map(|(bitmap, node)| Happening::Notification { bitmap, node }),
        2 => Just(Happening::Inquiry),
        1 => Just(Happening::Failure),
        4 => (0_u64..90).prop_map(Happening::Time),
        1 => Just(Happening::Leave),
    ]
}

proptest! {
    #![proptest_config(cases(256))]

    /// One request at a time, none without a connection, never busy without an end, and an end after a farewell.
    #[test]
    fn whatever_happens_the_client_goes_on(
        nodes in 1_usize..3,
        listens: bool,
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        let mut client = Client::default();
        let mut now = seconds(0);
        let (mut is_connected, mut awaits) = (false, None);
        let what = if listens { listening(nodes) } else { registration(nodes) };
        for happening in happenings.into_iter().chain([Happening::Leave, Happening::Failure]) {
            match happening {
                Happening::Answer { status, knows_node } => if let Some(function) = awaits.take() {
                    let name = Attributes::default().empty(tag::DELIMITER).text(tag::ISCSI_NAME, NODES[0]);
                    let told: &[u8] = if knows_node { name.as_bytes() } else { &[] };
                    answered_with(&mut client, function, status, told, now);
                }
                Happening::Notification { bitmap, node } => {
                    let node = NODES.get(node).copied().unwrap_or("iqn.other:1");
                    prop_assert!(client.asked(&notification_of(NODES[0], &[(bitmap, node)])).0.is_some());
                }
                Happening::Inquiry => prop_assert!(client.asked(&inquiry_of("storage1")).0.is_some()),
                Happening::Failure => {
                    (is_connected, awaits) = (false, None);
                    client.failed(now);
                }
                Happening::Time(passed) => now += seconds(passed),
                Happening::Leave => {
                    awaits = None;
                    client.leave();
                }
            }
            for turn in 0.. {
                prop_assert!(turn < 4, "busy without an end");
                match client.next(now) {
                    Step::Connect => {
                        prop_assert!(!is_connected && !client.is_leaving);
                        is_connected = true;
                        client.connected(what.clone(), now);
                    }
                    Step::Send(bytes) => {
                        prop_assert!(is_connected && awaits.is_none());
                        awaits = Some(u16::from_be_bytes([bytes[2], bytes[3]]));
                    }
                    Step::Disconnect => (is_connected, awaits) = (false, None),
                    Step::Wait(until) => {
                        prop_assert!(until > now);
                        break;
                    }
                    Step::End => break,
                }
            }
        }
        prop_assert_eq!(client.next(now), Step::End);
    }
}
