//! Order, splits over PDUs, and any sequence of requests at all.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;

/// Runs a whole login: the texts of the operational stage one per request, each cut into parts by the C bit.
fn run(texts: &[Vec<u8>], part: usize) -> (SessionParameters, ConnectionParameters, Vec<(String, String)>) {
    let mut login = login();
    let mut told = Vec::new();
    for (index, whole) in texts.iter().enumerate() {
        let is_last = index + 1 == texts.len();
        let mut parts = whole.chunks(part).peekable();
        while let Some(bytes) = parts.next() {
            if parts.peek().is_some() {
                let more = LoginRequest { is_continued: true, ..request(OPERATIONAL, None) };
                let reply = respond(login.step(&more, bytes, &Directory));
                assert!(reply.text.is_empty());
                continue;
            }
            let next = is_last.then_some(FULL);
            match login.step(&request(OPERATIONAL, next), bytes, &Directory) {
                LoginStep::Respond(reply) => told.extend(owned(&answers(&reply))),
                LoginStep::Ready(outcome) => {
                    told.extend(last_answers(&outcome));
                    told.sort();
                    return (outcome.session, outcome.connection, told);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("the last request asks for the full feature phase");
}

fn offers() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let flag = || prop_oneof![Just("Yes".to_owned()), Just("No".to_owned())];
    let length = || (512..1u32 << 24).prop_map(|length| length.to_string());
    (flag(), flag(), length(), length(), length(), 1..40u32, any::<u8>()).prop_map(
        |(r2t, immediate, max, first, segment, r2ts, mask)| {
            let all = [
                ("InitialR2T", r2t),
                ("ImmediateData", immediate),
                ("MaxBurstLength", max),
                ("FirstBurstLength", first),
                ("MaxRecvDataSegmentLength", segment),
                ("MaxOutstandingR2T", r2ts.to_string()),
                ("HeaderDigest", "CRC32C,None".to_owned()),
                ("X-com.example.a", "1".to_owned()),
            ];
            all.into_iter()
                .enumerate()
                .filter(|(bit, _)| mask & 1 << bit != 0)
                .map(|(_, offer)| offer)
                .collect()
        },
    )
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn order_and_splits_make_no_difference(
        (plain, shuffled) in offers().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        first_length in 0usize..9, part in 20usize..400,
    ) {
        let joined = |offers: &[(&'static str, String)]| {
            let borrowed: Vec<_> = offers.iter().map(|(key, value)| (*key, value.as_str())).collect();
            text(&borrowed)
        };
        let mut at_once = with_names(&[]);
        at_once.extend(joined(&plain));
        let (head, tail) = shuffled.split_at(first_length.min(shuffled.len()));
        let mut spread = vec![with_names(&[])];
        spread.extend([joined(head), joined(tail)].into_iter().filter(|text| !text.is_empty()));
        prop_assert_eq!(run(&[at_once], LOGIN_SEGMENT_MAX), run(&spread, part));
    }

    #[test]
    fn any_requests_end_in_bounds(
        steps in proptest::collection::vec(
            (any::<[bool; 2]>(), 0u8..4, 0u8..4, proptest::collection::vec(0usize..12, 0..4), any::<bool>()),
            1..100,
        ),
    ) {
        let mut login = login();
        let mut requests = 0;
        for ([transit, is_continued], current, next, pieces, with_names_first) in steps {
            let stage = |code| LoginStage::from_code(code).unwrap_or(OPERATIONAL);
            let sent = LoginRequest { is_continued, ..request(stage(current), transit.then_some(stage(next))) };
            let mut bytes = if with_names_first && requests == 0 { with_names(&[]) } else { Vec::new() };
            for piece in pieces {
                bytes.extend_from_slice(PIECES[piece]);
            }
            requests += 1;
            match login.step(&sent, &bytes, &Directory) {
                LoginStep::Respond(reply) => {
                    prop_assert!(reply.text.len() <= LOGIN_SEGMENT_MAX);
                    prop_assert!(!reply.pdu.transit || transit);
                    prop_assert!(!(reply.pdu.transit && reply.pdu.is_continued));
                    prop_assert!(requests <= LOGIN_REQUESTS_MAX);
                }
                LoginStep::Ready(outcome) => {
                    prop_assert!(sent.transit && sent.next_stage == FULL);
                    prop_assert!(outcome.session.first_burst_length <= outcome.session.max_burst_length);
                    break;
                }
                LoginStep::Fail(reply, _) => {
                    prop_assert!(reply.pdu.status_class != 0);
                    break;
                }
                LoginStep::Drop(_) => prop_assert!(false, "nothing is dropped while the login is open"),
            }
        }
    }
}

const PIECES: [&[u8]; 12] = [
    b"AuthMethod=None\0",
    b"MaxBurstLength=512\0",
    b"FirstBurstLength=70000\0",
    b"HeaderDigest=CRC32C\0",
    b"X-a=b\0",
    b"X-b=b\0",
    b"InitiatorAlias=me\0",
    b"InitialR2T=",
    b"Yes\0",
    b"\0",
    b"\xff",
    b"SessionType=Normal\0",
];
