//! What a target says of itself: one network entity with its portals, nodes and portal groups (RFC 4171, 3, 5.6.5.1).

use std::net::SocketAddr;

use crate::message::{Attributes, Function, PAYLOAD_MAX, Request, tag};

/// Entity Protocol: iSCSI (6.2.2).
const ISCSI: u32 = 2;
/// iSCSI Node Type: the bit for a target (6.4.2).
const TARGET: u32 = 1;
/// Room for what a request has besides its nodes: the names of entity and source.
const HEAD_MAX: usize = 1024;

/// One iSCSI target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its iSCSI name.
    pub name: String,
    /// Its name for people.
    pub alias: Option<String>,
    /// Where it is reached, each with its portal group tag.
    pub portals: Vec<(SocketAddr, u16)>,
}

/// One network entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// What tells it from all others at the server, 1 to 255 bytes.
    pub entity: String,
    /// After how long without a word the server may forget it, in seconds.
    pub period_s: u32,
    /// The targets.
    pub nodes: Vec<Node>,
}

impl Registration {
    /// Its portals, each once.
    fn portals(&self) -> Vec<SocketAddr> {
        let mut portals: Vec<SocketAddr> =
            self.nodes.iter().flat_map(|node| &node.portals).map(|(portal, _)| *portal).collect();
        portals.sort_unstable();
        portals.dedup();
        portals
    }

    /// Who speaks (5.6.1): one node for all.
    fn source(&self) -> Attributes {
        let name = self.nodes.first().map_or("", |node| node.name.as_str());
        Attributes::default().text(tag::ISCSI_NAME, name)
    }

    fn request(&self, function: Function, replaces: bool, attributes: &Attributes) -> Request {
        let head = self.source().text(tag::ENTITY_IDENTIFIER, &self.entity).empty(tag::DELIMITER);
        Request { function, replaces, attributes: head.and(attributes) }
    }

    /// The requests that register everything; the first one replaces what the server knew before. As many nodes share a
    /// request as fit into one PDU.
    pub(crate) fn register(&self) -> Vec<Request> {
        let portals = self.portals();
        let entity = Attributes::default()
            .text(tag::ENTITY_IDENTIFIER, &self.entity)
            .number(tag::ENTITY_PROTOCOL, ISCSI)
            .number(tag::REGISTRATION_PERIOD, self.period_s);
        let mut body = portals
            .iter()
            .fold(entity, |body, &portal| body.address((tag::PORTAL_ADDRESS, tag::PORTAL_PORT), portal));
        let mut requests = Vec::new();
        for node in &self.nodes {
            let node = describe(node, &portals);
            if body.len() + node.len() + HEAD_MAX > PAYLOAD_MAX {
                let replaces = requests.is_empty();
                requests.push(self.request(Function::Register, replaces, &std::mem::take(&mut body)));
            }
            body = body.and(&node);
        }
        let replaces = requests.is_empty();
        requests.push(self.request(Function::Register, replaces, &body));
        requests
    }

    /// A question that shows the server that somebody is there.
    pub(crate) fn keep_alive(&self) -> Request {
        self.request(Function::Query, false, &Attributes::default().empty(tag::REGISTRATION_PERIOD))
    }

    /// Takes the entity out, with all that belongs to it (5.6.5.4).
    pub(crate) fn deregister(&self) -> Request {
        let what = self.source().empty(tag::DELIMITER).text(tag::ENTITY_IDENTIFIER, &self.entity);
        Request { function: Function::Deregister, replaces: false, attributes: what }
    }
}

/// A node, and its group at each portal of the entity. An empty tag says that the portal does not lead to it; a server would
/// take it for a way otherwise (3.4).
fn describe(node: &Node, portals: &[SocketAddr]) -> Attributes {
    let mut body =
        Attributes::default().text(tag::ISCSI_NAME, &node.name).number(tag::ISCSI_NODE_TYPE, TARGET);
    if let Some(alias) = &node.alias {
        body = body.text(tag::ISCSI_ALIAS, alias);
    }
    for &portal in portals {
        body = body
            .text(tag::GROUP_ISCSI_NAME, &node.name)
            .address((tag::GROUP_ADDRESS, tag::GROUP_PORT), portal);
        let group = node.portals.iter().find(|(at, _)| *at == portal);
        body = match group {
            Some((_, group)) => body.number(tag::GROUP_TAG, (*group).into()),
            None => body.empty(tag::GROUP_TAG),
        };
    }
    body
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn registration(nodes: usize) -> Registration {
        let portal = "192.0.2.1:3260".parse().unwrap();
        let node = |index| Node {
            name: format!("iqn.2026-11.io.lunette:{index}"),
            alias: None,
            portals: vec![(portal, 1)],
        };
        Registration { entity: "storage1".into(), period_s: 120, nodes: (0..nodes).map(node).collect() }
    }

    #[test]
    fn many_nodes_take_several_requests_and_the_first_one_replaces() {
        let few = registration(3).register();
        assert_eq!((few.len(), few[0].replaces), (1, true));
        let many = registration(2000).register();
        assert!(many.len() > 1);
        for (index, request) in many.iter().enumerate() {
            assert_eq!(request.replaces, index == 0);
            assert!(request.attributes.len() <= PAYLOAD_MAX);
        }
    }

    #[test]
    fn a_portal_that_does_not_lead_to_a_node_has_an_empty_tag() {
        let mut two = registration(2);
        two.nodes[1].portals = vec![("192.0.2.2:3260".parse().unwrap(), 7)];
        let bytes = two.register()[0].encode(1);
        let count = |part: &[u8]| bytes.windows(part.len()).filter(|window| *window == part).count();
        assert_eq!(count(&[0, 0, 0, 51, 0, 0, 0, 0]), 2);
        assert_eq!(count(&[0, 0, 0, 51, 0, 0, 0, 4, 0, 0, 0, 7]), 1);
    }
}
