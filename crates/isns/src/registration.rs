//! What a target says of itself: one network entity with its portals, nodes and portal groups (RFC 4171, 3, 5.6.5.1), and
//! what it wants to hear (5.6.5.5).

use std::net::SocketAddr;

use crate::attributes::{Attributes, Transport, tag};
use crate::message::{PAYLOAD_MAX, Request, function};
use crate::notification::WANTED;

/// Entity Protocol: iSCSI (6.2.2).
pub(crate) const ISCSI: u32 = 2;
/// iSCSI Node Type: the bit for a target (6.4.2).
const TARGET: u32 = 1;
/// Room for what a request has besides its nodes: the names of entity and source.
const HEAD_MAX: usize = 1024;
/// Inquiries, or our own signs of life, in each registration period: two of three may get lost.
pub(crate) const SIGNS_OF_LIFE: u32 = 3;

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
    /// How inquiries and notifications are taken.
    pub transport: Transport,
    /// Where they are taken, on addresses of portals. Empty: the server is asked for none.
    pub listeners: Vec<SocketAddr>,
}

impl Default for Registration {
    /// Nothing to be known of.
    fn default() -> Self {
        let transport = Transport::Tcp;
        Self { entity: String::new(), period_s: 0, nodes: Vec::new(), transport, listeners: Vec::new() }
    }
}

/// How much of what a server may do is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Notifications, and inquiries that keep the registration.
    Inquiries,
    /// Notifications alone.
    Notifications,
    /// To keep the registration, as every server does.
    Plain,
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

    /// The most that it can ask for.
    pub(crate) fn service(&self) -> Service {
        if self.listeners.is_empty() { Service::Plain } else { Service::Inquiries }
    }

    /// How far apart inquiries are to be, in seconds.
    pub(crate) fn inquiry_interval_s(&self) -> u32 {
        self.period_s / SIGNS_OF_LIFE
    }

    /// Who speaks (5.6.1): one node for all.
    fn source(&self) -> Attributes {
        let name = self.nodes.first().map_or("", |node| node.name.as_str());
        Attributes::default().text(tag::ISCSI_NAME, name)
    }

    fn part(&self, replaces: bool, attributes: &Attributes) -> Request {
        let head = self.source().text(tag::ENTITY_IDENTIFIER, &self.entity).empty(tag::DELIMITER);
        Request { function: function::REGISTER, replaces, attributes: head.and(attributes) }
    }

    /// The requests that register everything; the first one replaces what the server knew before. As many nodes share a
    /// request as fit into one PDU.
    pub(crate) fn register(&self, service: Service) -> Vec<Request> {
        let portals = self.portals();
        let entity = Attributes::default()
            .text(tag::ENTITY_IDENTIFIER, &self.entity)
            .number(tag::ENTITY_PROTOCOL, ISCSI)
            .number(tag::REGISTRATION_PERIOD, self.period_s);
        let mut body = portals.iter().fold(entity, |body, &portal| self.portal(body, portal, service));
        let mut requests = Vec::new();
        for node in &self.nodes {
            let node = describe(node, &portals);
            if body.len() + node.len() + HEAD_MAX > PAYLOAD_MAX {
                let replaces = requests.is_empty();
                requests.push(self.part(replaces, &std::mem::take(&mut body)));
            }
            body = body.and(&node);
        }
        let replaces = requests.is_empty();
        requests.push(self.part(replaces, &body));
        requests
    }

    /// A portal, with the ports that are listened on at its address (6.3.4, 6.3.5, 6.3.7).
    fn portal(&self, body: Attributes, portal: SocketAddr, service: Service) -> Attributes {
        let body = body.address((tag::PORTAL_ADDRESS, tag::PORTAL_PORT), portal);
        let listener = self.listeners.iter().find(|listener| listener.ip() == portal.ip());
        let Some(listener) = listener.filter(|_| service != Service::Plain) else { return body };
        let body = match service {
            Service::Inquiries => body.number(tag::INQUIRY_INTERVAL, self.inquiry_interval_s()).port(
                tag::INQUIRY_PORT,
                listener.port(),
                self.transport,
            ),
            _ => body,
        };
        body.port(tag::NOTIFICATION_PORT, listener.port(), self.transport)
    }

    /// The requests that have each node told of changes (5.6.5.5).
    pub(crate) fn register_notifications(&self) -> impl Iterator<Item = Request> {
        self.nodes.iter().map(|node| {
            let name = || Attributes::default().text(tag::ISCSI_NAME, &node.name);
            let attributes = name().and(&name()).empty(tag::DELIMITER).number(tag::ISCSI_SCN_BITMAP, WANTED);
            Request { function: function::REGISTER_NOTIFICATION, replaces: false, attributes }
        })
    }

    /// A node's question for its own name, which shows the server that somebody is there (6.2.6).
    pub(crate) fn check(&self, node: usize) -> Request {
        let name = self.nodes.get(node).map_or("", |node| node.name.as_str());
        let name = || Attributes::default().text(tag::ISCSI_NAME, name);
        let attributes = name().and(&name()).empty(tag::DELIMITER).empty(tag::ISCSI_NAME);
        Request { function: function::QUERY, replaces: false, attributes }
    }

    /// Takes the entity out, with all that belongs to it, the wish for notifications too (5.6.5.4).
    pub(crate) fn deregister(&self) -> Request {
        let what = self.source().empty(tag::DELIMITER).text(tag::ENTITY_IDENTIFIER, &self.entity);
        Request { function: function::DEREGISTER, replaces: false, attributes: what }
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
        let nodes = (0..nodes).map(node).collect();
        Registration { entity: "storage1".into(), period_s: 120, nodes, ..Registration::default() }
    }

    /// As above, with a port for what the server has to say.
    pub(crate) fn listening(nodes: usize) -> Registration {
        Registration { listeners: vec!["192.0.2.1:40000".parse().unwrap()], ..registration(nodes) }
    }

    fn count(request: &Request, part: &[u8]) -> usize {
        request.encode(1).windows(part.len()).filter(|window| *window == part).count()
    }

    #[test]
    fn many_nodes_take_several_requests_and_the_first_one_replaces() {
        let few = registration(3).register(Service::Plain);
        assert_eq!((few.len(), few[0].replaces), (1, true));
        let many = registration(2000).register(Service::Plain);
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
        let request = &two.register(Service::Plain)[0];
        assert_eq!(count(request, &[0, 0, 0, 51, 0, 0, 0, 0]), 2);
        assert_eq!(count(request, &[0, 0, 0, 51, 0, 0, 0, 4, 0, 0, 0, 7]), 1);
    }

    #[test]
    fn a_portal_that_is_listened_on_has_the_ports_that_are_asked_for() {
        let mut two = listening(1);
        two.nodes[0].portals.push(("192.0.2.2:3260".parse().unwrap(), 1));
        two.transport = Transport::Udp;
        let interval = [0, 0, 0, 19, 0, 0, 0, 4, 0, 0, 0, 40];
        let inquiry_port = [0, 0, 0, 20, 0, 0, 0, 4, 0, 1, 0x9c, 0x40];
        let notification_port = [0, 0, 0, 23, 0, 0, 0, 4, 0, 1, 0x9c, 0x40];
        for (service, inquiries, notifications) in
            [(Service::Inquiries, 1, 1), (Service::Notifications, 0, 1), (Service::Plain, 0, 0)]
        {
            let request = &two.register(service)[0];
            assert_eq!(count(request, &interval), inquiries);
            assert_eq!(count(request, &inquiry_port), inquiries);
            assert_eq!(count(request, &notification_port), notifications);
        }
    }

    #[test]
    fn a_node_asks_for_initiators_and_for_itself() {
        let requests: Vec<_> = listening(2).register_notifications().collect();
        assert_eq!((requests.len(), requests[1].function), (2, 5));
        // The name as source and as key, 26 bytes and what fills the last word.
        let name = [&[0, 0, 0, 32, 0, 0, 0, 28][..], b"iqn.2026-11.io.lunette:1", &[0; 4]].concat();
        let wanted = [&name[..], &name, &[0; 8], &[0, 0, 0, 35, 0, 0, 0, 4, 0, 0, 0, 0x9c]].concat();
        assert_eq!(requests[1].attributes.as_bytes(), wanted);
    }
}
