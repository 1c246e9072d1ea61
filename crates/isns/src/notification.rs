//! What a server says of its own accord: state change notifications and entity status inquiries, and our answers
//! (RFC 4171, 5.6.5.8, 5.6.5.13, 5.7.5.8, 5.7.5.13, 6.4.4).

use crate::attributes::{Attributes, Values, number, tag, text};
use crate::message::{ServerRequest, function, status};

/// The longest inquiry that is answered, in bytes: four attributes, of which the entity's identifier is the longest.
const INQUIRY_LENGTH_MAX: usize = 512;

/// The iSCSI node SCN bitmap (6.4.4).
mod bit {
    pub(super) const INITIATOR_AND_SELF_ONLY: u32 = 1 << 7;
    pub(super) const OBJECT_REMOVED: u32 = 1 << 4;
    pub(super) const OBJECT_ADDED: u32 = 1 << 3;
    pub(super) const OBJECT_UPDATED: u32 = 1 << 2;
    pub(super) const MEMBER_REMOVED: u32 = 1 << 1;
    pub(super) const MEMBER_ADDED: u32 = 1;
}

/// What a target asks to be told of: initiators that come and go, and whatever becomes of itself.
pub(crate) const WANTED: u32 =
    bit::INITIATOR_AND_SELF_ONLY | bit::OBJECT_REMOVED | bit::OBJECT_ADDED | bit::OBJECT_UPDATED;

/// What has become of a node (6.4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event(u32);

impl Event {
    /// It is not at the server any more, or not in sight.
    #[must_use]
    pub fn is_removed(self) -> bool {
        self.0 & (bit::OBJECT_REMOVED | bit::MEMBER_REMOVED) != 0
    }

    /// It is new at the server, or in sight now.
    #[must_use]
    pub fn is_added(self) -> bool {
        self.0 & (bit::OBJECT_ADDED | bit::MEMBER_ADDED) != 0
    }
}

/// One node of which a notification tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) event: Event,
    pub(crate) node: String,
}

/// What the server wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// To know whether a portal of this entity is there.
    Inquiry { entity: String },
    /// To tell one of our nodes of others, or of itself.
    Notification { destination: String, changes: Vec<Change> },
    /// To be seen; nobody answers that (5.6.5.14).
    Heartbeat,
}

impl ServerRequest {
    /// What it is about, or the status that says why that cannot be told.
    pub(crate) fn notice(&self) -> Result<Notice, u32> {
        let read = match self.function {
            function::INQUIRY if self.payload.len() > INQUIRY_LENGTH_MAX => None,
            function::INQUIRY => inquiry(&self.payload),
            function::NOTIFICATION => notification(&self.payload),
            function::HEARTBEAT => Some(Notice::Heartbeat),
            _ => return Err(status::NOT_SUPPORTED),
        };
        read.ok_or(status::FORMAT_ERROR)
    }

    /// The answer to an inquiry, which has all that came (5.7.5.13).
    pub(crate) fn inquiry_answer(&self) -> Vec<u8> {
        self.answer(status::SUCCESSFUL, &self.payload)
    }

    /// The answer to a notification, which names whom it reached (5.7.5.8).
    pub(crate) fn notification_answer(&self, destination: &str) -> Vec<u8> {
        let attributes = Attributes::default().text(tag::ISCSI_NAME, destination);
        self.answer(status::SUCCESSFUL, attributes.as_bytes())
    }
}

/// The four attributes of an inquiry, in their order.
fn inquiry(payload: &[u8]) -> Option<Notice> {
    let values: Vec<(u32, &[u8])> = Values::new(payload).collect::<Result<_, _>>().ok()?;
    let tags = [tag::TIMESTAMP, tag::ENTITY_IDENTIFIER, tag::PORTAL_ADDRESS, tag::PORTAL_PORT];
    let has_tags = values.iter().map(|(tag, _)| *tag).eq(tags);
    let (_, entity) = values.get(1).filter(|_| has_tags)?;
    Some(Notice::Inquiry { entity: text(entity)?.to_owned() })
}

/// The one that is told, when, and then for each kind of event its bitmap and the nodes that it happened to. Discovery domains
/// between them are of no use to us.
fn notification(payload: &[u8]) -> Option<Notice> {
    let mut values = Values::new(payload);
    let (tag::ISCSI_NAME, destination) = values.next()?.ok()? else { return None };
    let (tag::TIMESTAMP, _) = values.next()?.ok()? else { return None };
    let mut changes = Vec::new();
    let mut event = None;
    for value in values {
        match value.ok()? {
            (tag::ISCSI_SCN_BITMAP, bitmap) => event = Some(Event(number(bitmap)?)),
            (tag::ISCSI_NAME, node) => changes.push(Change { event: event?, node: text(node)?.to_owned() }),
            _ => {}
        }
    }
    Some(Notice::Notification { destination: text(destination)?.to_owned(), changes })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::message::tests::{pdu, request};
    use lunette_cases::cases;
    use proptest::prelude::*;

    pub(crate) fn inquiry_of(entity: &str) -> ServerRequest {
        let attributes = Attributes::default()
            .bytes(tag::TIMESTAMP, &[0; 8])
            .text(tag::ENTITY_IDENTIFIER, entity)
            .address((tag::PORTAL_ADDRESS, tag::PORTAL_PORT), "192.0.2.1:3260".parse().unwrap());
        request(&pdu(13, 0x4c00, 5, attributes.as_bytes()))
    }

    pub(crate) fn notification_of(destination: &str, changes: &[(u32, &str)]) -> ServerRequest {
        let head = Attributes::default().text(tag::ISCSI_NAME, destination).bytes(tag::TIMESTAMP, &[0; 8]);
        let attributes = changes.iter().fold(head, |attributes, &(bitmap, node)| {
            // A discovery domain, as a management notification has it.
            let attributes = attributes.number(tag::ISCSI_SCN_BITMAP, bitmap).text(tag::ISCSI_NAME, node);
            attributes.number(2065, 1)
        });
        request(&pdu(8, 0x4c00, 6, attributes.as_bytes()))
    }

    #[test]
    fn an_inquiry_comes_back_as_it_was() {
        let inquiry = inquiry_of("storage1");
        assert_eq!(inquiry.notice(), Ok(Notice::Inquiry { entity: "storage1".into() }));
        let answer = inquiry.inquiry_answer();
        let head = [&[0, 1, 0x80, 13][..], &(4 + inquiry.payload.len() as u16).to_be_bytes()].concat();
        assert_eq!(answer[..6], head);
        assert_eq!(answer[6..16], [0x8c, 0, 0, 5, 0, 0, 0, 0, 0, 0]);
        assert_eq!(answer[16..], inquiry.payload);
    }

    #[test]
    fn a_notification_names_nodes_and_what_became_of_them() {
        let notification =
            notification_of("iqn.a:1", &[(0x10, "iqn.b:1"), (0x08, "iqn.c:1"), (4, "iqn.a:1")]);
        let Ok(Notice::Notification { destination, changes }) = notification.notice() else {
            panic!("a notification")
        };
        assert_eq!(destination, "iqn.a:1");
        let told: Vec<_> = changes
            .iter()
            .map(|change| (change.node.as_str(), change.event.is_removed(), change.event.is_added()))
            .collect();
        assert_eq!(told, [("iqn.b:1", true, false), ("iqn.c:1", false, true), ("iqn.a:1", false, false)]);
        let answer = notification.notification_answer(&destination);
        assert_eq!(answer[..6], [0, 1, 0x80, 8, 0, 20]);
        assert_eq!(answer[12..], [&[0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 8][..], b"iqn.a:1\0"].concat());
    }

    #[test]
    fn what_lacks_a_part_is_a_format_error_and_the_unknown_is_not_supported() {
        let whole = notification_of("iqn.a:1", &[(0x10, "iqn.b:1")]);
        for length in (0..28).step_by(4) {
            let cut = ServerRequest { payload: whole.payload[..length].to_vec(), ..whole.clone() };
            assert_eq!(cut.notice(), Err(2), "{length}");
        }
        let no_bitmap = Attributes::default().text(tag::ISCSI_NAME, "iqn.a:1").bytes(tag::TIMESTAMP, &[0; 8]);
        let no_bitmap = no_bitmap.text(tag::ISCSI_NAME, "iqn.b:1");
        assert_eq!(request(&pdu(8, 0x4c00, 6, no_bitmap.as_bytes())).notice(), Err(2));
        let inquiry = inquiry_of("storage1");
        let cut =
            ServerRequest { payload: inquiry.payload[..inquiry.payload.len() - 12].to_vec(), ..inquiry };
        assert_eq!(cut.notice(), Err(2));
        let long = ServerRequest { payload: vec![0; INQUIRY_LENGTH_MAX + 4], ..cut };
        assert_eq!(long.notice(), Err(2));
        assert_eq!(ServerRequest { function: 9, ..long.clone() }.notice(), Err(15));
        assert_eq!(ServerRequest { function: 14, ..long }.notice(), Ok(Notice::Heartbeat));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn any_notification_is_read_as_it_was_written(
            changes in prop::collection::vec((any::<u32>(), "[a-z0-9:.-]{1,223}"), 0..8),
            at in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let written: Vec<(u32, &str)> = changes.iter().map(|(bitmap, node)| (*bitmap, &node[..])).collect();
            let whole = notification_of("iqn.a:1", &written);
            let Ok(Notice::Notification { changes: read, .. }) = whole.notice() else { panic!("read") };
            let read: Vec<(u32, &str)> = read.iter().map(|change| (change.event.0, &change.node[..])).collect();
            prop_assert_eq!(read, written);
            // One wrong byte may change what it says, but no more than that.
            let mut spoilt = whole;
            let at = at.index(spoilt.payload.len());
            spoilt.payload[at] = byte;
            if let Ok(Notice::Notification { changes: read, .. }) = spoilt.notice() {
                prop_assert!(read.iter().all(|change| change.node.len() <= 255));
            }
        }
    }
}
