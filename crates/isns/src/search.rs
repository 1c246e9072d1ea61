//! An initiator's question for targets (RFC 4171, 5.6.5.2, 5.7.5.2): which there are for it, and through which portals.
//!
//! A server answers a node by the discovery domains that it shares with others. One that does not know the node may refuse it, or
//! show it nothing: then the node is registered, as an initiator, asks again, and is taken out. A node that it does know is left
//! as it is: its registration belongs to somebody else, and nothing is an answer, too.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::attributes::{Attributes, number, tag, text};
use crate::message::{Request, Response, function, status};
use crate::registration::ISCSI;

/// iSCSI Node Type: the bits for a target and for an initiator (6.4.2).
const TARGET: u32 = 1;
const INITIATOR: u32 = 2;

/// A target that a server knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTarget {
    /// Its iSCSI name, as the server has it: 1 to 255 bytes without control characters.
    pub name: String,
    /// Where it is reached, each with its portal group tag if the server tells it. May be empty.
    pub portals: Vec<(SocketAddr, Option<u16>)>,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchStep {
    /// Send this.
    Send(Vec<u8>),
    /// Wait for another message: this one answered nothing that was asked.
    Wait,
    /// These are the targets.
    Done(Vec<FoundTarget>),
    /// The server refused with this status (5.4).
    Refused(u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Asks as whoever the server takes it for.
    Asking,
    /// Asks whether the server knows it; it was answered already if `is_answered`.
    AskingOfSelf {
        is_answered: bool,
    },
    Registering {
        is_answered: bool,
    },
    /// Asks as a node that the server knows.
    AskingAgain,
    /// Takes itself out, and has this to say then.
    Leaving(SearchStep),
}

/// One search.
#[derive(Debug)]
pub struct Search {
    /// The initiator's iSCSI name.
    name: String,
    state: State,
    function: u16,
    transaction: u16,
}

impl Search {
    /// Begins a search on behalf of the initiator of this name, with the first request.
    #[must_use]
    pub fn begin(name: &str) -> (Self, Vec<u8>) {
        let mut search = Self { name: name.to_owned(), state: State::Asking, function: 0, transaction: 0 };
        let request = search.send(&search.question());
        (search, request)
    }

    /// Takes an answer.
    pub fn received(&mut self, response: &Response) -> SearchStep {
        if (response.function, response.transaction) != (self.function, self.transaction) {
            return SearchStep::Wait;
        }
        let is_good = response.status == status::SUCCESSFUL;
        match std::mem::replace(&mut self.state, State::Asking) {
            State::Asking => {
                let found = if is_good { targets(response) } else { Vec::new() };
                if !found.is_empty() {
                    return SearchStep::Done(found);
                }
                self.go_on(State::AskingOfSelf { is_answered: is_good }, &self.question_of_self())
            }
            State::AskingOfSelf { is_answered: true } if self.is_named_in(response) => {
                SearchStep::Done(Vec::new())
            }
            State::AskingOfSelf { is_answered } => {
                self.go_on(State::Registering { is_answered }, &self.registration())
            }
            State::Registering { .. } if is_good => self.go_on(State::AskingAgain, &self.question()),
            // It has an entity already, although the server did not tell.
            State::Registering { is_answered: true } if response.status == status::INVALID_REGISTRATION => {
                SearchStep::Done(Vec::new())
            }
            State::Registering { .. } => SearchStep::Refused(response.status),
            State::AskingAgain => {
                // A server may say of nothing that there is no such entry.
                let end = match response.status {
                    status::SUCCESSFUL | status::NO_SUCH_ENTRY => SearchStep::Done(targets(response)),
                    status => SearchStep::Refused(status),
                };
                self.go_on(State::Leaving(end), &self.deregistration())
            }
            // The server forgets it by and by in any case.
            State::Leaving(end) => end,
        }
    }

    fn go_on(&mut self, state: State, request: &Request) -> SearchStep {
        self.state = state;
        SearchStep::Send(self.send(request))
    }

    fn send(&mut self, request: &Request) -> Vec<u8> {
        self.function = request.function;
        self.transaction = self.transaction.wrapping_add(1);
        request.encode(self.transaction)
    }

    fn source(&self) -> Attributes {
        Attributes::default().text(tag::ISCSI_NAME, &self.name)
    }

    /// All targets, and all portal groups that belong to them.
    fn question(&self) -> Request {
        let wanted = [
            tag::ISCSI_NAME,
            tag::ISCSI_NODE_TYPE,
            tag::GROUP_ISCSI_NAME,
            tag::GROUP_ADDRESS,
            tag::GROUP_PORT,
            tag::GROUP_TAG,
        ];
        let key = self.source().number(tag::ISCSI_NODE_TYPE, TARGET).empty(tag::DELIMITER);
        let attributes = wanted.into_iter().fold(key, Attributes::empty);
        Request { function: function::QUERY, replaces: false, attributes }
    }

    fn question_of_self(&self) -> Request {
        let key = Attributes::default().text(tag::ISCSI_NAME, &self.name).empty(tag::DELIMITER);
        let attributes = self.source().and(&key).empty(tag::ISCSI_NAME);
        Request { function: function::QUERY, replaces: false, attributes }
    }

    /// Whether a good answer speaks of this node.
    fn is_named_in(&self, response: &Response) -> bool {
        let is_name = |(found, value): (u32, &[u8])| {
            found == tag::ISCSI_NAME && text(value).is_some_and(|name| name.eq_ignore_ascii_case(&self.name))
        };
        response.status == status::SUCCESSFUL && response.told().any(is_name)
    }

    /// The initiator alone in an entity of its name.
    fn registration(&self) -> Request {
        let attributes = (self.source().text(tag::ENTITY_IDENTIFIER, &self.name).empty(tag::DELIMITER))
            .text(tag::ENTITY_IDENTIFIER, &self.name)
            .number(tag::ENTITY_PROTOCOL, ISCSI)
            .text(tag::ISCSI_NAME, &self.name)
            .number(tag::ISCSI_NODE_TYPE, INITIATOR);
        Request { function: function::REGISTER, replaces: false, attributes }
    }

    fn deregistration(&self) -> Request {
        let attributes = self.source().empty(tag::DELIMITER).text(tag::ENTITY_IDENTIFIER, &self.name);
        Request { function: function::DEREGISTER, replaces: false, attributes }
    }
}

/// A portal group as far as it has been read.
#[derive(Debug, Default)]
struct Group {
    node: Option<String>,
    address: Option<IpAddr>,
    port: Option<u16>,
    tag: Option<u16>,
    /// Its tag has no value: the portal does not lead to the node (3.4).
    is_closed: bool,
}

/// The targets of an answer. Objects come one behind the other, each beginning with its key.
fn targets(response: &Response) -> Vec<FoundTarget> {
    let mut nodes: Vec<(String, bool)> = Vec::new();
    let mut groups: Vec<Group> = Vec::new();
    for (found, value) in response.told() {
        let group = groups.last_mut();
        match (found, group) {
            (tag::ISCSI_NAME, _) => nodes.extend(text(value).map(|name| (name.to_owned(), true))),
            (tag::ISCSI_NODE_TYPE, _) => {
                if let (Some((_, is_target)), Some(kind)) = (nodes.last_mut(), number(value)) {
                    *is_target = kind & TARGET != 0;
                }
            }
            (tag::GROUP_ISCSI_NAME, _) => {
                groups.push(Group { node: text(value).map(str::to_owned), ..Group::default() });
            }
            (tag::GROUP_ADDRESS, Some(group)) => group.address = address(value),
            (tag::GROUP_PORT, Some(group)) => {
                // The bit above the port's is for UDP, which iSCSI does not use.
                group.port = number(value).and_then(|port| u16::try_from(port).ok());
            }
            (tag::GROUP_TAG, Some(group)) => {
                group.tag = number(value).and_then(|tag| u16::try_from(tag).ok());
                group.is_closed = value.is_empty();
            }
            _ => {}
        }
    }
    let mut targets: Vec<FoundTarget> = Vec::new();
    // Names are compared without regard to case, as iSCSI's are.
    let mut places = BTreeMap::new();
    for (name, _) in nodes.into_iter().filter(|(_, is_target)| *is_target) {
        places.entry(name.to_ascii_lowercase()).or_insert_with(|| {
            targets.push(FoundTarget { name, portals: Vec::new() });
            targets.len() - 1
        });
    }
    for group in groups.into_iter().filter(|group| !group.is_closed) {
        let (Some(node), Some(ip), Some(port)) = (group.node, group.address, group.port) else { continue };
        let portal = (SocketAddr::new(ip, port), group.tag);
        let of = places.get(&node.to_ascii_lowercase()).and_then(|place| targets.get_mut(*place));
        if let Some(target) = of.filter(|target| port != 0 && !target.portals.contains(&portal)) {
            target.portals.push(portal);
        }
    }
    targets
}

/// An address of 16 bytes; an IPv4 address is mapped into IPv6 (6.3.1).
fn address(value: &[u8]) -> Option<IpAddr> {
    let octets: [u8; 16] = value.try_into().ok()?;
    Some(Ipv6Addr::from(octets)).filter(|ip| !ip.is_unspecified()).map(|ip| IpAddr::V6(ip).to_canonical())
}

#[cfg(test)]
mod tests {
    use lunette_cases::cases;
    use proptest::prelude::*;

    use super::*;
    use crate::message::tests::{answer, response};

    const NAME: &str = "iqn.2026-11.io.lunette:me";

    /// An answer to a question: the key, the delimiter, and what is told.
    fn told(transaction: u16, attributes: &Attributes) -> Response {
        let key = Attributes::default().number(tag::ISCSI_NODE_TYPE, TARGET).empty(tag::DELIMITER);
        response(&answer(function::QUERY, transaction, 0, key.and(attributes).as_bytes()))
    }

    fn node(name: &str, kind: u32) -> Attributes {
        Attributes::default().text(tag::ISCSI_NAME, name).number(tag::ISCSI_NODE_TYPE, kind)
    }

    fn group(name: &str, portal: &str, of_tag: Option<u32>) -> Attributes {
        let group = Attributes::default()
            .text(tag::GROUP_ISCSI_NAME, name)
            .address((tag::GROUP_ADDRESS, tag::GROUP_PORT), portal.parse().unwrap());
        match of_tag {
            Some(of_tag) => group.number(tag::GROUP_TAG, of_tag),
            None => group.empty(tag::GROUP_TAG),
        }
    }

    #[test]
    fn targets_come_with_the_portals_that_lead_to_them() {
        let (mut search, first) = Search::begin(NAME);
        assert_eq!(first[2..4], [0, 2], "a query");
        let attributes = (node("iqn.a:1", 1).and(&node("iqn.a:2", 3)).and(&node("iqn.a:host", 2)))
            .and(&group("iqn.a:1", "192.0.2.1:3260", Some(1)))
            .and(&group("iqn.a:1", "[2001:db8::1]:3261", Some(2)))
            .and(&group("iqn.a:1", "192.0.2.9:3260", None))
            .and(&group("IQN.A:2", "192.0.2.1:3260", Some(7)))
            .and(&group("iqn.a:nobody", "192.0.2.1:3260", Some(1)));
        assert_eq!(search.received(&told(9, &attributes)), SearchStep::Wait, "another transaction");
        let SearchStep::Done(found) = search.received(&told(1, &attributes)) else { panic!("targets") };
        let portal = |at: &str, of_tag| (at.parse().unwrap(), Some(of_tag));
        let portals = vec![portal("192.0.2.1:3260", 1), portal("[2001:db8::1]:3261", 2)];
        let wanted = [
            FoundTarget { name: "iqn.a:1".into(), portals },
            FoundTarget { name: "iqn.a:2".into(), portals: vec![portal("192.0.2.1:3260", 7)] },
        ];
        assert_eq!(found, wanted);
    }

    /// Answers what is sent with a status; the function that was asked for.
    fn next(search: &mut Search, transaction: u16, of: u16, status: u32) -> SearchStep {
        search.received(&response(&answer(of, transaction, status, &[])))
    }

    fn function_of(step: &SearchStep) -> u16 {
        let SearchStep::Send(bytes) = step else { panic!("{step:?}") };
        u16::from_be_bytes([bytes[2], bytes[3]])
    }

    #[test]
    fn whom_the_server_does_not_know_is_registered_for_the_question_and_taken_out() {
        for first in [0, 6] {
            let (mut search, _) = Search::begin(NAME);
            let step = next(&mut search, 1, function::QUERY, first);
            assert_eq!(function_of(&step), function::QUERY, "does it know me?");
            let step = next(&mut search, 2, function::QUERY, first);
            assert_eq!(function_of(&step), function::REGISTER);
            let step = next(&mut search, 3, function::REGISTER, 0);
            assert_eq!(function_of(&step), function::QUERY);
            let step = search.received(&told(4, &node("iqn.a:1", 1)));
            assert_eq!(function_of(&step), function::DEREGISTER);
            let end = next(&mut search, 5, function::DEREGISTER, 11);
            let found = FoundTarget { name: "iqn.a:1".into(), portals: vec![] };
            assert_eq!(end, SearchStep::Done(vec![found]), "whatever the server says to the farewell");
        }
    }

    #[test]
    fn a_refusal_is_told_and_nothing_is_left_behind() {
        let (mut search, _) = Search::begin(NAME);
        next(&mut search, 1, function::QUERY, 6);
        next(&mut search, 2, function::QUERY, 6);
        assert_eq!(next(&mut search, 3, function::REGISTER, 3), SearchStep::Refused(3));
        let (mut search, _) = Search::begin(NAME);
        next(&mut search, 1, function::QUERY, 6);
        next(&mut search, 2, function::QUERY, 6);
        next(&mut search, 3, function::REGISTER, 0);
        let step = next(&mut search, 4, function::QUERY, 11);
        assert_eq!(function_of(&step), function::DEREGISTER);
        assert_eq!(next(&mut search, 5, function::DEREGISTER, 0), SearchStep::Refused(11));
    }

    #[test]
    fn a_node_that_is_registered_already_is_left_alone() {
        let (mut search, _) = Search::begin(NAME);
        next(&mut search, 1, function::QUERY, 0);
        let myself = Attributes::default().text(tag::ISCSI_NAME, &NAME.to_uppercase());
        assert_eq!(search.received(&told(2, &myself)), SearchStep::Done(vec![]));
        // One that the server keeps to itself, but does not let move (5.6.5.1).
        let (mut search, _) = Search::begin(NAME);
        next(&mut search, 1, function::QUERY, 0);
        next(&mut search, 2, function::QUERY, 0);
        assert_eq!(next(&mut search, 3, function::REGISTER, 3), SearchStep::Done(vec![]));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn whatever_a_server_tells_has_names_and_ends(
            answers in prop::collection::vec((0..2u32, prop::collection::vec(any::<u8>(), 0..30)), 1..6),
            tags in prop::collection::vec(prop::sample::select(vec![32u32, 33, 48, 49, 50, 51]), 30),
        ) {
            let (mut search, mut request) = Search::begin(NAME);
            let mut turns = 0;
            for (status, bytes) in &answers {
                let mut attributes = Attributes::default().empty(tag::DELIMITER);
                for (at, piece) in bytes.chunks(5).enumerate() {
                    attributes = attributes.bytes(tags[at], piece);
                }
                let header = |at: usize| u16::from_be_bytes([request[at], request[at + 1]]);
                let bytes = answer(header(2), header(8), *status, attributes.as_bytes());
                match search.received(&response(&bytes)) {
                    SearchStep::Send(next) => request = next,
                    SearchStep::Wait => prop_assert!(false, "it was asked for"),
                    SearchStep::Done(found) => {
                        prop_assert!(found.iter().all(|target| !target.name.is_empty()));
                        break;
                    }
                    SearchStep::Refused(status) => {
                        prop_assert_ne!(status, 0);
                        break;
                    }
                }
                turns += 1;
                prop_assert!(turns < 5);
            }
        }
    }
}
