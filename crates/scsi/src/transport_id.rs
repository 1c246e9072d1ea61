//! TransportIDs of iSCSI: how initiator ports are named in parameter data (SPC-4, TransportID for iSCSI).
//!
//! Two forms: 00b names an initiator device, that is all of its ports, 01b one port by name and ISID.

use crate::bytes::be16;

/// PROTOCOL IDENTIFIER of iSCSI, and the FORMAT CODEs above it.
const ISCSI: u8 = 0x05;
const FORMAT_PORT: u8 = 0x40;
const FORMAT_MASK: u8 = 0xc0;
const PROTOCOL_MASK: u8 = 0x0f;
const HEADER_BYTES: usize = 4;
/// ADDITIONAL LENGTH is at least this, and a multiple of four.
const NAME_FIELD_BYTES_MIN: usize = 20;
/// What stands between the name and the ISID.
pub(crate) const SEPARATOR: &str = ",i,0x";
const ISID_DIGITS: usize = 12;
/// The longest iSCSI name, in bytes (RFC 7143, 4.2.7.1).
const NAME_BYTES_MAX: usize = 223;

/// Whom a TransportID names. Names are in lower case, as iSCSI compares them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TransportId {
    /// All ports of an initiator, by its name.
    Device(String),
    /// One port: name, `,i,0x` and ISID.
    Port(String),
}

impl TransportId {
    /// Reads the TransportID at the front of `list`; answers with its length too.
    ///
    /// `None` where it is cut off, of another protocol, or names nothing that can be.
    pub(crate) fn parse(list: &[u8]) -> Option<(TransportId, usize)> {
        let first = *list.first()?;
        let length = HEADER_BYTES + usize::from(be16(list, 2)?);
        let field = list.get(HEADER_BYTES..length)?;
        let is_possible = first & PROTOCOL_MASK == ISCSI
            && field.len() >= NAME_FIELD_BYTES_MIN
            && field.len().is_multiple_of(4);
        let end = field.iter().position(|&byte| byte == 0)?;
        let name = str::from_utf8(&field[..end]).ok().filter(|_| is_possible)?.to_ascii_lowercase();
        let id = match first & FORMAT_MASK {
            0 if (1..=NAME_BYTES_MAX).contains(&name.len()) => TransportId::Device(name),
            FORMAT_PORT => {
                let (device, isid) = name.split_once(SEPARATOR)?;
                let is_port = (1..=NAME_BYTES_MAX).contains(&device.len())
                    && isid.len() == ISID_DIGITS
                    && isid.bytes().all(|digit| digit.is_ascii_hexdigit());
                is_port.then_some(TransportId::Port(name))?
            }
            _ => return None,
        };
        Some((id, length))
    }

    /// True for the initiator port with this name.
    pub(crate) fn names(&self, initiator_port: &str) -> bool {
        match self {
            TransportId::Port(name) => name == initiator_port,
            TransportId::Device(name) => initiator_of(initiator_port) == Some(name),
        }
    }
}

/// The name of the initiator whose port this is; `None`: it is not a port of iSCSI.
pub(crate) fn initiator_of(initiator_port: &str) -> Option<&str> {
    initiator_port.split_once(SEPARATOR).map(|(initiator, _)| initiator)
}

/// The TransportID of an initiator port.
pub(crate) fn compose(initiator_port: &str) -> Vec<u8> {
    let mut field = initiator_port.as_bytes().to_vec();
    // A null ends the name, and nulls fill the field.
    field.resize((field.len() + 1).next_multiple_of(4).max(NAME_FIELD_BYTES_MIN), 0);
    let [high, low] = (field.len() as u16).to_be_bytes();
    [&[FORMAT_PORT | ISCSI, 0, high, low], &field[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: &str = "iqn.2026-11.io.example:host,i,0x80000000000a";

    #[test]
    fn a_port_survives() {
        let bytes = compose(PORT);
        assert_eq!(bytes[..4], [0x45, 0, 0, 48]);
        assert_eq!(&bytes[4..48], PORT.as_bytes());
        assert_eq!(bytes[48..], [0; 4]);
        let longer = [&bytes[..], &[0xff; 9]].concat();
        assert_eq!(TransportId::parse(&longer), Some((TransportId::Port(PORT.into()), bytes.len())));
        assert_eq!(compose("a").len(), 24, "the shortest field");
    }

    #[test]
    fn a_device_names_all_its_ports() {
        let mut bytes = compose("IQN.2026-11.io.example:host");
        bytes[0] = 0x05;
        let (id, _) = TransportId::parse(&bytes).unwrap();
        assert_eq!(id, TransportId::Device("iqn.2026-11.io.example:host".into()));
        assert!(id.names(PORT));
        assert!(!id.names("iqn.2026-11.io.example:host2,i,0x80000000000a"));
        assert!(!id.names("iqn.2026-11.io.example:host"));
    }

    #[test]
    fn what_names_nothing_is_refused() {
        let good = compose(PORT);
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            TransportId::parse(&bytes)
        };
        assert_eq!(with(0, 0x46), None, "another protocol");
        assert_eq!(with(0, 0x85), None, "a format that is reserved");
        assert_eq!(with(3, 47), None, "no multiple of four");
        assert_eq!(with(3, 52), None, "longer than the list");
        assert_eq!(with(4 + PORT.len() - 1, b'g'), None, "no digit");
        assert_eq!(with(4 + PORT.len() - 1, 0), None, "an ISID too short");
        assert_eq!(with(6, 0xff), None, "no text");
        for length in 0..good.len() {
            assert_eq!(TransportId::parse(&good[..length]), None, "{length}");
        }
        let unended = [&[0x45, 0, 0, 20][..], &[b'a'; 20]].concat();
        assert_eq!(TransportId::parse(&unended), None, "no null");
    }
}
