//! Opening a disk: login, and everything that has to be known of the unit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::Duration;

use lunette_initiator::Lun;
use lunette_initiator::blocking::{Session, wait};
use lunette_scsi::Status;
use lunette_scsi::client::{Next, Probe, Reply, SameBlocks, UnitFacts, UnitIdentity};

use super::error::OpenError;
use super::link::Link;
use super::ranges::Ranges;
use super::space::tells_space;
use super::unit::Unit;

/// How long a busy unit is left alone.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest block that there is a use for, in bytes.
const BLOCK_BYTES_MAX: u32 = 1 << 16;

impl Unit {
    /// Asks the unit everything that has to be known. With `read_only` nothing is ever changed.
    ///
    /// # Errors
    /// [`OpenError`]
    pub(super) fn open(session: Session, lun: Lun, read_only: bool) -> Result<Unit, OpenError> {
        let link = Link::new(session, lun);
        let facts = probe(&link)?;
        if let Some(sense) = &facts.not_ready {
            return Err(OpenError::NoDisk(format!("the unit is not ready: {sense}")));
        }
        let kind = facts.inquiry.device_type.name();
        let capacity = facts
            .capacity
            .ok_or_else(|| OpenError::NoDisk(format!("the unit has no capacity; it is a {kind}")))?;
        let block_bytes = capacity.block_length_bytes;
        let is_size = block_bytes.is_power_of_two()
            && block_bytes <= BLOCK_BYTES_MAX
            && capacity
                .blocks
                .checked_mul(block_bytes.into())
                .is_some_and(|bytes| i64::try_from(bytes).is_ok());
        if !is_size {
            let message = format!("{} blocks of {block_bytes} bytes cannot be attached", capacity.blocks);
            return Err(OpenError::NoDisk(message));
        }
        // Behind the same number there may be another disk when the session comes back.
        link.session.handle().guard(link.lun, UnitIdentity::of(&facts).growing());
        let same = if facts.has_write_same { SameBlocks::of(&facts.limits) } else { SameBlocks::none() };
        Ok(Unit {
            same: Mutex::new(same),
            tells_space: AtomicBool::new(tells_space(&facts)),
            blocks: AtomicU64::new(capacity.blocks),
            told_blocks: AtomicU64::new(capacity.blocks),
            block_bytes,
            is_read_only: read_only || facts.is_write_protected(),
            facts,
            link,
            ranges: Ranges::default(),
            gate: RwLock::new(()),
            repairs: AtomicU64::new(0),
        })
    }
}

/// Asks the unit all that there is to ask.
pub(super) fn probe(link: &Link) -> Result<UnitFacts, OpenError> {
    let mut probe = Probe::new().with_write_same();
    let mut under_way = VecDeque::new();
    loop {
        match probe.proceed() {
            Next::Send(ticket, command) => {
                let buffer = vec![0; command.data_in_bytes() as usize];
                under_way.push_back((ticket, link.begin(&command, buffer)));
            }
            Next::Wait => {
                // Those of one line come in about the order in which they were sent.
                let Some((ticket, submitted)) = under_way.pop_front() else {
                    return Err(OpenError::NoDisk("no answer is under way that is waited for".to_owned()));
                };
                let ended = wait(submitted);
                match &ended.result {
                    Ok(status) => {
                        let code = Status::from_code(status.code);
                        probe.answered(
                            ticket,
                            Reply { status: code, sense: &status.sense, data: ended.data() },
                        );
                    }
                    Err(_) if !link.session.handle().is_over() && probe.failed(ticket) => {}
                    Err(error) => return Err(OpenError::Command(error.clone())),
                }
            }
            Next::Pause => {
                thread::sleep(PAUSE);
                probe.rested();
            }
            Next::Done => break,
        }
    }
    probe.into_facts().map_err(OpenError::Probe)
}
