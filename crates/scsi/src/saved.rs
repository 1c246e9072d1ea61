//! What a logical unit keeps over a restart: named sections of bytes, and the two parts that they are stored as.
//!
//! It is not the file: the driver stores the parts together and brings them back (`Io::SaveState`). What a section means is
//! known to the module that writes it. Persistent reservations are a part of their own, because they may be lost alone:
//! SPC-4 says what comes of that, and of the loss of nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bytes::{be16, be32};

/// What the driver knows of a unit's state when it makes the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved<'a> {
    /// Nothing can be kept over a restart; commands that ask for it are refused.
    Nowhere,
    /// The same, and what somebody else keeps counts as it was at the start.
    Elsewhere {
        /// [`UnitState::settings`]
        settings: &'a [u8],
        /// [`UnitState::reservations`]; `None`: they were stored, and cannot be read any more.
        reservations: Option<&'a [u8]>,
    },
    /// There is a place, and nothing in it yet.
    Nothing,
    /// What [`crate::LogicalUnit::state`] returned before, as it was stored last.
    Parts {
        /// [`UnitState::settings`]
        settings: &'a [u8],
        /// [`UnitState::reservations`]; `None`: they were stored, and cannot be read any more.
        reservations: Option<&'a [u8]>,
    },
}

/// All that a unit keeps over a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// All but the other part. Without it, the unit cannot be made again.
    pub settings: Vec<u8>,
    /// Persistent reservations; empty where none are to be kept. If they are lost alone, the unit can be made, and refuses commands
    /// until an initiator has replaced them (SPC-4, recoverable loss of persistent reservation information).
    pub reservations: Vec<u8>,
}

impl UnitState {
    /// What the driver knows after it has read this back.
    pub fn saved(&self) -> Saved<'_> {
        Saved::Parts { settings: &self.settings, reservations: Some(&self.reservations) }
    }
}

/// Why stored bytes are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedFault {
    /// They are of a version that is not known here.
    Version(u16),
    /// They belong to another volume.
    Owner,
    /// They end too early, are too many, or contradict themselves.
    Damaged,
}

impl fmt::Display for SavedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SavedFault::Version(version) => write!(f, "it has version {version}, which is not known here"),
            SavedFault::Owner => write!(f, "it belongs to another volume"),
            SavedFault::Damaged => write!(f, "it is damaged"),
        }
    }
}

/// The parts of a unit's state. The discriminant is stored and never used again for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Section {
    /// Persistent reservations with APTPL, stored as a part of their own.
    Reservations = 1,
    /// States of target port groups that are not the initial ones.
    AccessStates = 2,
    /// What SET IDENTIFYING INFORMATION has written.
    IdentifyingInformation = 3,
    /// SANITIZE or FORMAT UNIT that has not ended.
    Work = 10,
    /// Saved mode pages.
    ModePages = 11,
    /// Blocks that are marked as unreadable.
    Marks = 20,
}

impl Section {
    /// What the settings are made of.
    const SETTINGS: [Section; 5] = [
        Section::AccessStates,
        Section::IdentifyingInformation,
        Section::Work,
        Section::ModePages,
        Section::Marks,
    ];
}

const VERSION: u16 = 1;
/// Version, the block length that sections count in (two bytes, zeros in what an earlier program has stored), the unit's UUID.
const HEADER_BYTES: usize = 20;
/// Which section, two reserved bytes, its length.
const SECTION_HEADER_BYTES: usize = 8;

/// The sections of one unit as they are to be stored.
#[derive(Debug)]
pub(crate) struct SavedState {
    owner: [u8; 16],
    block_length_bytes: u32,
    is_kept: bool,
    /// Something was changed that no command sees stored any more.
    is_owed: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    sections: BTreeMap<u16, Vec<u8>>,
    images: Images,
}

/// The images of a state that were taken to be stored, by their numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Images {
    taken: u64,
    /// The newest that is stored, or may be.
    stored: u64,
    /// The same, when the last was taken.
    stored_before: u64,
}

/// How many images were taken, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken(u64);

impl SavedState {
    /// Reads what was stored for the unit whose UUID is `owner`, but for its reservations: whether those are lost is seen
    /// elsewhere. Answers, too, the length of the blocks that it counts in, as far as that is known; what is stored next counts in
    /// blocks of `block_length_bytes`, so whoever has a section that counts blocks sets it anew.
    ///
    /// # Errors
    /// [`SavedFault`]; a section that is not known counts as damage, because dropping it would lose what it keeps.
    pub(crate) fn restore(
        owner: [u8; 16],
        block_length_bytes: u32,
        saved: Saved<'_>,
    ) -> Result<(SavedState, Option<u32>), SavedFault> {
        let (counted_in, sections) = match saved {
            Saved::Nowhere | Saved::Nothing => (None, BTreeMap::new()),
            Saved::Parts { settings, .. } | Saved::Elsewhere { settings, .. } => parse(owner, settings)?,
        };
        let is_kept = !matches!(saved, Saved::Nowhere | Saved::Elsewhere { .. });
        let kept = Mutex::new(Kept { sections, images: Images::default() });
        let state = SavedState { owner, block_length_bytes, is_kept, is_owed: AtomicBool::new(false), kept };
        Ok((state, counted_in))
    }

    /// False: nothing outlives the process.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// What was changed could not be stored, or nobody waits for that any more: the unit itself sees to it.
    pub(crate) fn owe(&self) {
        self.is_owed.store(self.is_kept, Ordering::Release);
    }

    /// Whether something is owed. Nothing is from now on: who asks stores it, or owes it again.
    pub(crate) fn take_debt(&self) -> bool {
        self.is_owed.swap(false, Ordering::AcqRel)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn section(&self, section: Section) -> Option<Vec<u8>> {
        self.lock().sections.get(&(section as u16)).cloned()
    }

    /// What is to be stored of a section from now on; nothing for no bytes. It is stable when an `Io::SaveState` that is
    /// asked for afterwards has ended well.
    pub(crate) fn set_section(&self, section: Section, bytes: Vec<u8>) {
        let sections = &mut self.lock().sections;
        if bytes.is_empty() {
            sections.remove(&(section as u16));
        } else {
            sections.insert(section as u16, bytes);
        }
    }

    /// The images that were taken by now.
    pub(crate) fn taken(&self) -> Taken {
        Taken(self.lock().images.taken)
    }

    /// The image that was taken last was not stored, for sure.
    pub(crate) fn note_stands(&self) {
        let images = &mut self.lock().images;
        images.stored = images.stored_before;
    }

    /// False: no image that was taken after those is stored, for sure.
    pub(crate) fn may_be_stored_since(&self, taken: Taken) -> bool {
        self.lock().images.stored > taken.0
    }

    /// Both parts, of one moment.
    pub(crate) fn image(&self) -> UnitState {
        let kept = &mut *self.lock();
        let images = &mut kept.images;
        *images = Images { taken: images.taken + 1, stored: images.taken + 1, stored_before: images.stored };
        let mut settings = Vec::new();
        settings.extend(VERSION.to_be_bytes());
        settings.extend((self.block_length_bytes as u16).to_be_bytes());
        settings.extend(self.owner);
        let mut reservations = Vec::new();
        for (&section, bytes) in &kept.sections {
            if section == Section::Reservations as u16 {
                reservations.clone_from(bytes);
                continue;
            }
            settings.extend(section.to_be_bytes());
            settings.extend([0; 2]);
            settings.extend((bytes.len() as u32).to_be_bytes());
            settings.extend(bytes);
        }
        UnitState { settings, reservations }
    }
}

type Parsed = (Option<u32>, BTreeMap<u16, Vec<u8>>);

/// The block length, where it was stored, and the sections.
fn parse(owner: [u8; 16], bytes: &[u8]) -> Result<Parsed, SavedFault> {
    let version = be16(bytes, 0).ok_or(SavedFault::Damaged)?;
    if version != VERSION {
        return Err(SavedFault::Version(version));
    }
    let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(SavedFault::Damaged)?;
    if header[4..] != owner {
        return Err(SavedFault::Owner);
    }
    let counted_in = match be16(header, 2) {
        Some(0) => None,
        Some(length @ (512 | 4096)) => Some(u32::from(length)),
        _ => return Err(SavedFault::Damaged),
    };
    let mut sections = BTreeMap::new();
    while !rest.is_empty() {
        let (header, body) = rest.split_at_checked(SECTION_HEADER_BYTES).ok_or(SavedFault::Damaged)?;
        let (Some(section), Some(length)) = (be16(header, 0), be32(header, 4)) else {
            return Err(SavedFault::Damaged);
        };
        let (content, after) = body.split_at_checked(length as usize).ok_or(SavedFault::Damaged)?;
        let is_known = Section::SETTINGS.iter().any(|&known| known as u16 == section);
        if !is_known || content.is_empty() || sections.insert(section, content.to_vec()).is_some() {
            return Err(SavedFault::Damaged);
        }
        rest = after;
    }
    Ok((counted_in, sections))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: [u8; 16] = [7; 16];

    fn restore(saved: Saved<'_>) -> (SavedState, Option<u32>) {
        SavedState::restore(OWNER, 512, saved).unwrap()
    }

    fn image() -> UnitState {
        let (state, counted_in) = restore(Saved::Nothing);
        assert_eq!(counted_in, None);
        state.set_section(Section::Reservations, vec![1, 2, 3]);
        state.set_section(Section::Marks, vec![4, 5, 6]);
        state.image()
    }

    #[test]
    fn what_was_stored_comes_back() {
        let image = image();
        let (restored, counted_in) = restore(image.saved());
        assert_eq!(counted_in, Some(512));
        assert_eq!(restored.section(Section::Marks), Some(vec![4, 5, 6]));
        assert_eq!(restored.image(), UnitState { reservations: Vec::new(), ..image.clone() });
        restored.set_section(Section::Reservations, vec![1, 2, 3]);
        assert_eq!(restored.image(), image);
        restored.set_section(Section::Marks, Vec::new());
        assert_eq!(restored.section(Section::Marks), None);
        assert_eq!(restored.image().reservations, [1, 2, 3]);
        assert!(restored.is_kept());
        assert!(!restore(Saved::Nowhere).0.is_kept());
        let mut earlier = image;
        earlier.settings[2..4].fill(0);
        assert_eq!(restore(earlier.saved()).1, None, "what an earlier program has stored");
    }

    #[test]
    fn images_that_were_surely_not_stored_are_told_from_all_others() {
        let (state, _) = restore(Saved::Nothing);
        let first = state.taken();
        state.image();
        let second = state.taken();
        assert!(state.may_be_stored_since(first) && !state.may_be_stored_since(second));
        state.note_stands();
        assert!(!state.may_be_stored_since(first));
        state.image();
        state.image();
        state.note_stands();
        assert!(state.may_be_stored_since(second), "the one before the last may be");
        assert!(!state.may_be_stored_since(state.taken()));
    }

    #[test]
    fn damage_is_an_error() {
        let image = image().settings;
        let fault = |owner, settings: &[u8]| {
            SavedState::restore(owner, 512, Saved::Parts { settings, reservations: None }).unwrap_err()
        };
        for length in (0..image.len()).filter(|&length| length != HEADER_BYTES) {
            assert_eq!(fault(OWNER, &image[..length]), SavedFault::Damaged, "{length}");
        }
        let with = |at: usize, value: u8| {
            let mut changed = image.clone();
            changed[at] = value;
            fault(OWNER, &changed)
        };
        assert_eq!(with(1, 2), SavedFault::Version(2));
        assert_eq!(with(3, 8), SavedFault::Damaged, "a block length that no unit has");
        assert_eq!(with(HEADER_BYTES + 1, 99), SavedFault::Damaged, "a section that is not known");
        assert_eq!(with(HEADER_BYTES + 1, 1), SavedFault::Damaged, "reservations in the wrong part");
        assert_eq!(with(HEADER_BYTES + 7, 0), SavedFault::Damaged, "an empty section");
        assert_eq!(fault([8; 16], &image), SavedFault::Owner);
        let twice = [&image[..], &image[HEADER_BYTES..]].concat();
        assert_eq!(fault(OWNER, &twice), SavedFault::Damaged, "a section twice");
    }
}
