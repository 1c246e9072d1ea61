//! Persistent reservations as bytes, for what must outlive the process (SPC-4, APTPL).

use super::{Key, REGISTRANTS_MAX, Registrant, Reservation, ReservationType, Reservations};
use crate::bytes::{be16, be64};
use crate::device::TargetPort;
use crate::nexus::NexusName;
use crate::saved::SavedFault;

const VERSION: u8 = 1;
/// Version, type of the reservation (0: none), place of its holder (all ones: none).
const HEADER_BYTES: usize = 4;
/// In the place of the type: the reservations were lost, and nobody has replaced them yet.
const LOST: u8 = 0xff;
/// Key, target port, length of the initiator port's name.
const REGISTRANT_BYTES: usize = 12;
const NO_HOLDER: u16 = u16::MAX;
/// The longest name of an initiator port: an iSCSI name, ",i,0x" and twelve digits.
const NAME_BYTES_MAX: usize = 223 + 5 + 12;

impl Reservations {
    /// What is to be kept; nothing unless somebody asked for it (APTPL). PRGENERATION starts at 0 with the process. That they are
    /// lost is kept too, or another restart would end it.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        if self.is_lost {
            return vec![VERSION, LOST];
        }
        if !self.aptpl || self.registrants.is_empty() {
            return Vec::new();
        }
        let kind = self.reservation.as_ref().map_or(0, |reservation| reservation.kind as u8);
        let holder = self.reservation.as_ref().and_then(|reservation| reservation.holder.as_ref());
        let place = holder
            .and_then(|holder| self.registrants.iter().position(|registrant| registrant.nexus == *holder))
            .map_or(NO_HOLDER, |place| place as u16);
        let mut bytes = vec![VERSION, kind];
        bytes.extend(place.to_be_bytes());
        for Registrant { nexus, key } in &self.registrants {
            bytes.extend(key.0.to_be_bytes());
            bytes.extend(nexus.target_port.id().to_be_bytes());
            bytes.extend((nexus.initiator_port.len() as u16).to_be_bytes());
            bytes.extend(nexus.initiator_port.as_bytes());
        }
        bytes
    }

    /// The inverse of [`Reservations::to_bytes`]; `None` for bytes that cannot be read any more, and bytes that it cannot have
    /// returned: reservations that are lost.
    ///
    /// # Errors
    /// [`SavedFault::Version`]: they are not lost, but nobody here can read them.
    pub(crate) fn from_bytes(bytes: Option<&[u8]>) -> Result<Reservations, SavedFault> {
        match bytes {
            Some([]) => Ok(Reservations::default()),
            Some(&[version, ..]) if version != VERSION => Err(SavedFault::Version(version.into())),
            bytes => Ok(bytes.and_then(parse).unwrap_or_else(Reservations::lost)),
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Reservations> {
    let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let mut reservations = Reservations { aptpl: true, ..Reservations::default() };
    while !rest.is_empty() {
        let (fixed, after) = rest.split_at_checked(REGISTRANT_BYTES)?;
        let key = Key(be64(fixed, 0)?);
        let target_port = TargetPort::new(be16(fixed, 8)?)?;
        let (name, after) = after.split_at_checked(be16(fixed, 10)?.into())?;
        let name = str::from_utf8(name).ok().filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len()))?;
        let nexus = NexusName { initiator_port: name.into(), target_port };
        let is_new = key != Key::NONE && reservations.key_of(&nexus).is_none();
        if !is_new || reservations.registrants.len() == REGISTRANTS_MAX {
            return None;
        }
        reservations.registrants.push(Registrant { nexus, key });
        rest = after;
    }
    let kind = header[1];
    let holder = match be16(header, 2)? {
        NO_HOLDER => None,
        place => Some(reservations.registrants.get(usize::from(place))?.nexus.clone()),
    };
    reservations.reservation = match kind {
        0 => None,
        code => Some(Reservation { kind: ReservationType::from_code(code)?, holder }),
    };
    let holder_fits = match &reservations.reservation {
        None => be16(header, 2)? == NO_HOLDER,
        Some(reservation) => reservation.kind.is_held_by_all() == reservation.holder.is_none(),
    };
    (holder_fits && !reservations.registrants.is_empty()).then_some(reservations)
}

#[cfg(test)]
mod tests {
    use super::super::Registration;
    use super::*;

    fn nexus(number: u16) -> NexusName {
        let target_port = TargetPort::new(number).unwrap();
        NexusName { initiator_port: "iqn.host,i,0x800000000001".into(), target_port }
    }

    fn registered(kind: Option<ReservationType>, aptpl: bool) -> Reservations {
        let mut reservations = Reservations::default();
        for number in [1, 2] {
            let registration = Registration {
                key: None,
                new_key: Key(0xa0 + u64::from(number)),
                specified: None,
                elsewhere: Vec::new(),
                aptpl,
            };
            reservations.register(&nexus(number), &registration).unwrap();
        }
        if let Some(kind) = kind {
            reservations.reserve(&nexus(2), Key(0xa2), kind).unwrap();
        }
        reservations
    }

    #[test]
    fn what_is_kept_comes_back() {
        for kind in ReservationType::ALL.map(Some).into_iter().chain([None]) {
            let reservations = registered(kind, true);
            let restored = Reservations::from_bytes(Some(&reservations.to_bytes())).unwrap();
            assert_eq!(restored, Reservations { generation: 0, ..reservations });
        }
        assert!(registered(None, false).to_bytes().is_empty(), "nobody asked");
        assert_eq!(Reservations::from_bytes(Some(&[])), Ok(Reservations::default()));
    }

    #[test]
    fn a_loss_is_kept_until_it_is_mended() {
        let lost = Reservations::from_bytes(None).unwrap();
        assert_eq!(lost, Reservations::lost());
        assert_eq!(Reservations::from_bytes(Some(&lost.to_bytes())), Ok(lost));
    }

    #[test]
    fn damage_is_a_loss() {
        let bytes = registered(Some(ReservationType::ExclusiveAccess), true).to_bytes();
        let one = HEADER_BYTES + (bytes.len() - HEADER_BYTES) / 2;
        for length in 1..bytes.len() {
            let result = Reservations::from_bytes(Some(&bytes[..length]));
            assert_eq!(result, Ok(Reservations::lost()), "{length}, {one}");
        }
        let with = |at: usize, value: u8| {
            let mut changed = bytes.clone();
            changed[at] = value;
            Reservations::from_bytes(Some(&changed))
        };
        assert_eq!(with(0, 2), Err(SavedFault::Version(2)));
        for (at, value, what) in [
            (1, 2, "type"),
            (1, 0, "a holder without a reservation"),
            (1, 7, "a holder where all hold"),
            (3, 2, "holder"),
            (2, 0xff, "holder"),
            (HEADER_BYTES + 7, 0, "key"),
            (HEADER_BYTES + 9, 0, "target port"),
            (HEADER_BYTES + 9, 2, "twice"),
            (HEADER_BYTES + 12, 0xff, "name"),
        ] {
            assert_eq!(with(at, value), Ok(Reservations::lost()), "{what}");
        }
    }
}
