//! Writes whose fate is unknown: a path has died with them under way, and its I_T nexus may still carry them out, at any time
//! until it is ended. What they may change is kept here, so that nothing newer is written there before.

use std::time::Duration;

use crate::engine::replay::{Kind, REQUEST_SENSE};

/// What a command may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Nothing,
    /// These blocks, the end not included.
    Blocks {
        start: u64,
        end: u64,
    },
    /// Anything of the unit.
    Unit,
}

impl Extent {
    /// Of a command of this kind (SBC-3, 5).
    pub(crate) fn of(kind: Kind, cdb: &[u8]) -> Self {
        let field = |from: usize, length: usize| -> Option<u64> {
            let bytes = cdb.get(from..from + length)?;
            Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        };
        let blocks = |lba: Option<u64>, count: Option<u64>| match (lba, count) {
            (Some(start), Some(count)) => Self::Blocks { start, end: start.saturating_add(count) },
            _ => Self::Unit,
        };
        match (kind, cdb.first().copied().unwrap_or(0)) {
            (Kind::Reads | Kind::Flushes, _) | (Kind::Other, REQUEST_SENSE) => Self::Nothing,
            (Kind::Other, _) => Self::Unit,
            // A transfer length of 0 is 256 blocks in the shortest form.
            (Kind::Writes, 0x0a) => blocks(
                field(1, 3).map(|lba| lba & 0x1f_ffff),
                field(4, 1).map(|count| if count == 0 { 256 } else { count }),
            ),
            (Kind::Writes, 0x2a | 0x2e) => blocks(field(2, 4), field(7, 2)),
            (Kind::Writes, 0xaa | 0xae) => blocks(field(2, 4), field(6, 4)),
            (Kind::Writes, 0x8a | 0x8e) => blocks(field(2, 8), field(10, 4)),
            (Kind::Writes, _) => Self::Unit,
        }
    }

    /// Whether both may change the same.
    pub(crate) fn meets(self, other: Self) -> bool {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => false,
            (Self::Unit, _) | (_, Self::Unit) => true,
            (Self::Blocks { start, end }, Self::Blocks { start: from, end: to }) => start < to && from < end,
        }
    }
}

/// An I_T nexus: a path's initiator port with the target port group that it led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nexus {
    pub(crate) path: usize,
    pub(crate) portal_group_tag: Option<u16>,
}

#[derive(Debug, Clone, Copy)]
struct Ghost {
    nexus: Nexus,
    extent: Extent,
    /// Whose it is: what is sent again is the same.
    serial: u64,
    since: Duration,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ghosts(Vec<Ghost>);

impl Ghosts {
    /// A command with this serial number may still be carried out.
    pub(crate) fn note(&mut self, now: Duration, nexus: Nexus, serial: u64, extent: Extent) {
        if extent != Extent::Nothing {
            self.0.push(Ghost { nexus, extent, serial, since: now });
        }
    }

    /// A nexus was ended: nothing of it comes any more.
    pub(crate) fn laid(&mut self, nexus: Nexus) {
        // A group without a tag is not known to be the same.
        self.0.retain(|ghost| ghost.nexus != nexus || nexus.portal_group_tag.is_none());
    }

    /// The unit was reset, at a time when the connections of these had been closed for so long that nothing of them was on
    /// its way any more.
    pub(crate) fn reset(&mut self, at: Duration, life: Duration) {
        self.0.retain(|ghost| !ghost.is_outlived(at, life));
    }

    /// Whether what a command changes may be changed by an older one afterwards.
    pub(crate) fn haunt(&self, extent: Extent, serial: u64) -> bool {
        self.haunting(extent, serial).next().is_some()
    }

    fn haunting(&self, extent: Extent, serial: u64) -> impl Iterator<Item = &Ghost> {
        self.0.iter().filter(move |ghost| ghost.serial != serial && ghost.extent.meets(extent))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The path of the first.
    pub(crate) fn path(&self) -> Option<usize> {
        self.0.first().map(|ghost| ghost.nexus.path)
    }

    /// When a reset can end all of them; none where one's time is never over.
    pub(crate) fn all_outlived_at(&self, life: Duration) -> Option<Duration> {
        let ends = self.0.iter().map(|ghost| ghost.since.checked_add(life));
        ends.reduce(|latest, end| Some(latest?.max(end?))).flatten()
    }

    /// Whether a nexus of this path has any.
    pub(crate) fn nexus_of(&self, path: usize) -> Option<Nexus> {
        self.0
            .iter()
            .map(|ghost| ghost.nexus)
            .find(|nexus| nexus.path == path && nexus.portal_group_tag.is_some())
    }

    /// When a reset can end all that haunt this command; none where there are none, or one's time is never over.
    pub(crate) fn outlived_at(&self, extent: Extent, serial: u64, life: Duration) -> Option<Duration> {
        let ends = self.haunting(extent, serial).map(|ghost| ghost.since.checked_add(life));
        ends.reduce(|latest, end| Some(latest?.max(end?))).flatten()
    }

    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }
}

impl Ghost {
    fn is_outlived(&self, at: Duration, life: Duration) -> bool {
        self.since.checked_add(life).is_some_and(|end| at >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_read_from_all_forms_of_a_write() {
        let of = |cdb: &[u8]| Extent::of(Kind::Writes, cdb);
        let blocks = |start, end| Extent::Blocks { start, end };
        assert_eq!(of(&[0x0a, 0xe1, 2, 3, 0, 0]), blocks(0x01_0203, 0x01_0303));
        assert_eq!(of(&[0x2a, 0, 0, 0, 1, 0, 0, 0, 8, 0]), blocks(256, 264));
        assert_eq!(of(&[0xaa, 0, 0, 0, 1, 0, 0, 0, 0, 8, 0, 0]), blocks(256, 264));
        assert_eq!(of(&[0x8a, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]), blocks(1 << 32, (1 << 32) + 2));
        assert_eq!(of(&[0x8a, 0]), Extent::Unit, "cut off");
        assert_eq!(Extent::of(Kind::Other, &[0x42]), Extent::Unit);
        assert_eq!(Extent::of(Kind::Flushes, &[0x35]), Extent::Nothing);
        assert_eq!(Extent::of(Kind::Other, &[0x03]), Extent::Nothing, "it only takes what is told once");
    }

    #[test]
    fn extents_meet_where_they_have_a_block_in_common() {
        let (low, high) = (Extent::Blocks { start: 0, end: 8 }, Extent::Blocks { start: 8, end: 9 });
        assert!(!low.meets(high) && low.meets(low) && low.meets(Extent::Unit));
        assert!(!Extent::Unit.meets(Extent::Nothing));
    }

    #[test]
    fn a_ghost_stays_until_its_nexus_is_ended_or_its_time_is_over() {
        let nexus = |tag| Nexus { path: 1, portal_group_tag: tag };
        let (life, extent) = (Duration::from_secs(120), Extent::Blocks { start: 0, end: 8 });
        let mut ghosts = Ghosts::default();
        ghosts.note(Duration::from_secs(1), nexus(Some(3)), 7, extent);
        assert!(ghosts.haunt(extent, 8) && !ghosts.haunt(extent, 7), "its own repetition is the same");
        ghosts.laid(nexus(Some(4)));
        ghosts.reset(Duration::from_secs(120), life);
        assert!(ghosts.haunt(extent, 8), "another group's nexus, and too early");
        ghosts.laid(nexus(Some(3)));
        assert_eq!(ghosts.len(), 0);
        ghosts.note(Duration::from_secs(1), nexus(None), 7, extent);
        ghosts.laid(nexus(None));
        assert!(ghosts.haunt(extent, 8), "who knows whether it was the same");
        assert_eq!(ghosts.outlived_at(extent, 8, life), Some(Duration::from_secs(121)));
        assert_eq!(ghosts.outlived_at(extent, 7, life), None);
        assert_eq!(ghosts.outlived_at(extent, 8, Duration::MAX), None, "never");
        ghosts.reset(Duration::from_secs(121), life);
        assert_eq!(ghosts.len(), 0);
    }
}
