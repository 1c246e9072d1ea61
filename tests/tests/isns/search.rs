//! `lunette discover --isns` and the library's function under it, against Open-iSNS and against the double.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread::JoinHandle;

use lunette_initiator::{Error, Options, Portal, discover_isns};
use lunette_target::config::IsnsConfig;
use lunette_tests::in_process::wait_until;
use lunette_tests::lunette::binary;
use lunette_tests::need_programs;
use lunette_tests::tgtd::free_portal;
use serde_json::Value as Json;

use crate::double::{DELIMITER, QUERY, REGISTER, Value, number, payload, pdu, receive, text, values};
use crate::open_isns::Isnsd;
use crate::target_with;

const DEREGISTER: u16 = 0x0004;
const NODE_TYPE: u32 = 33;
const GROUP_NAME: u32 = 48;
const GROUP_ADDRESS: u32 = 49;
const GROUP_PORT: u32 = 50;
const GROUP_TAG: u32 = 51;

const ME: &str = "iqn.2026-11.io.lunette:searching";
const FOUND: &str = "iqn.2026-11.io.lunette:found";

fn options() -> Options {
    let anybody = ME.parse().expect("a good name");
    Options { initiator_name: anybody, ..Options::new(ME.parse().expect("a good name"), portal(3260)) }
}

fn portal(port: u16) -> Portal {
    Portal::new("127.0.0.1", port)
}

fn discover(server: SocketAddr, more: &[&str]) -> Json {
    let mut command = Command::new(binary());
    command.args(["discover", "--isns", &server.to_string(), "--json", "--initiator-name", ME]).args(more);
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// RFC 7143: 4.2.7.
#[test]
fn what_a_real_server_knows_is_found_and_used() {
    need_programs!("isnsd", "isnsadm");
    let isnsd = Isnsd::start(free_portal().expect("a free port"));
    assert_eq!(discover(isnsd.portal(), &[])["targets"], Json::Array(vec![]));
    let target = target_with(isnsd.portal(), IsnsConfig::default());
    let name = format!("\"{}\"", target.name());
    wait_until("the target is registered", || isnsd.list("nodes").contains(&name));
    let found = discover(isnsd.portal(), &[]);
    assert_eq!(found["isns_server"], isnsd.portal().to_string());
    let ours = &found["targets"][0];
    assert_eq!(ours["name"], target.name());
    // A portal each of its two groups.
    let portals: Vec<String> =
        (target.portals().iter().zip([1, 2])).map(|(portal, group)| format!("{portal},{group}")).collect();
    let mut told: Vec<&str> =
        ours["portals"].as_array().expect("portals").iter().filter_map(Json::as_str).collect();
    told.sort_by_key(|portal| portal.rsplit_once(',').map(|(_, group)| group.to_owned()));
    assert_eq!(told, portals);
    assert_eq!(ours["units"][0]["size_bytes"], 1 << 20, "it is logged in to");
    let nodes = isnsd.list("nodes");
    assert!(!nodes.contains(ME), "nothing is left of the question: {nodes}");
}

/// It is somebody else's registration, and stays as it is.
#[test]
fn a_node_that_is_registered_already_is_left_alone() {
    let (at, server) = server(vec![0, 0, 3]);
    assert_eq!(discover_isns(&at, &options()).expect("an answer"), vec![]);
    let functions: Vec<u16> =
        server.join().expect("no panic").iter().map(|(function, _)| *function).collect();
    assert_eq!(functions, [QUERY, QUERY, REGISTER], "nothing is taken out");
}

/// What was asked: functions with their attributes.
type Asked = Vec<(u16, Vec<Value>)>;

/// A server that shows targets to nodes that it knows: answers so many questions of one connection.
fn server(statuses: Vec<u32>) -> (Portal, JoinHandle<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = portal(listener.local_addr().expect("an address").port());
    let thread = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut asked = Vec::new();
        let mut is_known = false;
        for status in statuses {
            let (function, transaction, bytes) = receive(&mut stream);
            asked.push((function, values(&bytes)));
            let mut told = vec![number(NODE_TYPE, 1), (DELIMITER, vec![])];
            if function == QUERY && is_known {
                told.extend(objects());
            }
            is_known |= function == REGISTER && status == 0;
            let answer = [&status.to_be_bytes()[..], &payload(&told)].concat();
            // What is asked over the connection in between is not the answer.
            stream.write_all(&pdu(0x000e, 99, &[])).expect("sent");
            stream.write_all(&pdu(function | 0x8000, transaction, &answer)).expect("sent");
        }
        asked
    });
    (at, thread)
}

fn objects() -> Vec<Value> {
    let address = |last: u8| [&[0; 10][..], &[0xff, 0xff, 192, 0, 2, last]].concat();
    let group = |last, of_tag: Value| {
        vec![text(GROUP_NAME, FOUND), (GROUP_ADDRESS, address(last)), number(GROUP_PORT, 3261), of_tag]
    };
    let mut objects = vec![text(32, FOUND), number(NODE_TYPE, 1), text(32, "no name"), number(NODE_TYPE, 1)];
    objects.extend(group(1, number(GROUP_TAG, 7)));
    objects.extend(group(2, (GROUP_TAG, vec![])));
    objects
}

#[test]
fn whom_the_server_does_not_know_registers_for_the_question() {
    // It does not say so, but shows nothing; or it refuses.
    for first in [0, 6] {
        let (at, server) = server(vec![first, first, 0, 0, 0]);
        let found = discover_isns(&at, &options()).expect("an answer");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].name.as_str(), FOUND);
        let portals: Vec<String> = found[0].portals.iter().map(ToString::to_string).collect();
        assert_eq!(portals, ["192.0.2.1:3261,7"]);
        let asked = server.join().expect("no panic");
        let functions: Vec<u16> = asked.iter().map(|(function, _)| *function).collect();
        assert_eq!(functions, [QUERY, QUERY, REGISTER, QUERY, DEREGISTER]);
        assert!(asked.iter().all(|(_, values)| values[0] == text(32, ME)), "it says who it is");
        assert!(asked[2].1.contains(&number(NODE_TYPE, 2)), "an initiator: {asked:?}");
    }
}

#[test]
fn a_refusal_says_why() {
    let (at, server) = server(vec![6, 6, 8]);
    let error = discover_isns(&at, &options()).expect_err("it is refused");
    server.join().expect("no panic");
    assert!(matches!(error, Error::NameService { .. }), "{error}");
    assert!(error.to_string().contains("status 8: this initiator may not ask"), "{error}");
}
