//! Commands that have ended and whose end the initiator has not acknowledged (RFC 7143, 7.1.3): status, sense data and the
//! data of reads, kept to be sent again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use lunette_wire::target::ScsiResponse;
use lunette_wire::{Cid, DataSn, InitiatorTaskTag, LunField, StatSn, TargetTransferTag};

use super::super::Share;
use super::super::segments::{Cut, Mark};
use super::super::task::{Allegiance, TagHasher};

/// Names an answer; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct AnswerId(u64);

#[cfg(test)]
impl AnswerId {
    pub(super) const fn for_test(number: u64) -> Self {
        Self(number)
    }
}

/// The data of a read.
#[derive(Debug)]
pub(in super::super) struct ReadData<D> {
    /// None once all of it was acknowledged, or when it was forgotten to stay within the bound.
    pub(super) handle: Option<D>,
    /// Bytes of memory that are kept with it: more than are sent where a command brings more than its initiator takes.
    kept_bytes: u64,
    pub(super) cut: Cut,
    /// Everything before it has arrived.
    pub(super) from: Mark,
    /// It has been sent at least once.
    pub(super) is_sent: bool,
    /// Its last PDU asks for an acknowledgement.
    pub(super) asks: bool,
}

impl<D: Share> ReadData<D> {
    /// `data_sn`: of its first PDU, which counts on from the R2Ts of its command (4.2.2.4).
    pub(in super::super) fn new(handle: D, cut: Cut, data_sn: DataSn) -> Self {
        let from = Mark { data_sn, offset: 0 };
        let kept_bytes = u64::from(cut.total).max(handle.kept_bytes() as u64);
        Self { handle: Some(handle), kept_bytes, cut, from, is_sent: false, asks: false }
    }
}

impl<D> ReadData<D> {
    /// One behind the last DataSN.
    pub(super) fn end(&self) -> DataSn {
        self.from.data_sn.plus(self.cut.count(self.from))
    }

    /// The initiator has all data before `exp_data_sn`; false for a number that says nothing new, or that was not sent.
    pub(super) fn acknowledge(&mut self, exp_data_sn: DataSn) -> bool {
        let is_news =
            self.is_sent && self.from.data_sn.precedes(exp_data_sn) && !self.end().precedes(exp_data_sn);
        if is_news {
            self.from = self.cut.after(self.from, exp_data_sn.since(self.from.data_sn));
        }
        is_news
    }

    /// All of it has arrived.
    pub(super) const fn is_acknowledged(&self) -> bool {
        self.from.offset == self.cut.total
    }

    /// Not acknowledged, and gone.
    pub(super) const fn is_forgotten(&self) -> bool {
        self.handle.is_none() && !self.is_acknowledged()
    }
}

/// The end of a command.
#[derive(Debug)]
pub(in super::super) struct Answer<D> {
    pub(super) allegiance: Allegiance,
    /// The status number on the connection that it is allegiant to; none before it was sent there.
    pub(super) stat_sn: Option<StatSn>,
    /// It has been sent, on whatever connection.
    pub(super) was_sent: bool,
    pub(super) lun: LunField,
    /// The response but for its numbers.
    pub(super) response: ScsiResponse,
    /// Its data segment.
    pub(super) sense: Vec<u8>,
    pub(super) is_bidirectional: bool,
    pub(super) data: Option<ReadData<D>>,
}

impl<D> Answer<D> {
    /// True when it belongs to this connection.
    pub(in super::super) fn is_of(&self, cid: Cid) -> bool {
        self.allegiance == Allegiance::To(cid)
    }

    pub(super) const fn tag(&self) -> InitiatorTaskTag {
        self.response.initiator_task_tag
    }

    /// The status goes out in the last Data-In PDU (11.7.3); never after an R-Data SNACK (11.16.3), nor where data goes both
    /// ways.
    pub(super) fn is_collapsed(&self) -> bool {
        self.response.snack_tag == 0
            && !self.is_bidirectional
            && self.data.as_ref().is_some_and(|data| data.handle.is_some())
    }
}

/// All of a session.
#[derive(Debug)]
pub(in super::super) struct Answers<D> {
    by_id: BTreeMap<AnswerId, Answer<D>>,
    by_tag: HashMap<InitiatorTaskTag, AnswerId, BuildHasherDefault<TagHasher>>,
    /// Those whose data is kept, oldest first.
    with_data: BTreeSet<AnswerId>,
    data_bytes: u64,
    data_bytes_max: u64,
    next_id: u64,
}

impl<D> Answers<D> {
    pub(in super::super) fn new(data_bytes_max: u64) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_tag: HashMap::default(),
            with_data: BTreeSet::new(),
            data_bytes: 0,
            data_bytes_max,
            next_id: 1,
        }
    }

    /// Keeps an answer. Data of the oldest ones is forgotten where there is too much.
    pub(super) fn insert(&mut self, mut answer: Answer<D>) -> AnswerId {
        let id = AnswerId(self.next_id);
        self.next_id += 1;
        if let Some(data) = &mut answer.data {
            self.data_bytes += data.kept_bytes;
            self.with_data.insert(id);
            // So much is kept that an acknowledgement is worth a PDU.
            data.asks = self.data_bytes > self.data_bytes_max / 2;
        }
        self.by_tag.insert(answer.tag(), id);
        self.by_id.insert(id, answer);
        while self.data_bytes > self.data_bytes_max
            && let Some(&oldest) = self.with_data.first()
            && oldest != id
        {
            self.drop_data(oldest);
        }
        id
    }

    /// Bytes of memory of all data that is kept.
    pub(super) const fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Keeps no more data than this from now on; the oldest is forgotten.
    pub(super) fn bound_data(&mut self, bytes_max: u64) {
        self.data_bytes_max = bytes_max;
        while self.data_bytes > bytes_max
            && let Some(&oldest) = self.with_data.first()
        {
            self.drop_data(oldest);
        }
    }

    #[cfg(test)]
    pub(super) const fn skip_to_for_test(&mut self, next_id: u64) {
        self.next_id = next_id;
    }

    pub(super) fn get(&self, id: AnswerId) -> Option<&Answer<D>> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: AnswerId) -> Option<&mut Answer<D>> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn find(&self, tag: InitiatorTaskTag) -> Option<AnswerId> {
        self.by_tag.get(&tag).copied()
    }

    /// The answer to this tag, if it belongs to the connection.
    pub(super) fn find_on(&self, tag: InitiatorTaskTag, cid: Cid) -> Option<AnswerId> {
        self.find(tag).filter(|&id| self.get(id).is_some_and(|answer| answer.is_of(cid)))
    }

    pub(super) fn remove(&mut self, id: AnswerId) -> Option<Answer<D>> {
        self.drop_data(id);
        let answer = self.by_id.remove(&id)?;
        if self.by_tag.get(&answer.tag()) == Some(&id) {
            self.by_tag.remove(&answer.tag());
        }
        Some(answer)
    }

    /// Removes the answer to this tag: it has arrived, or nobody waits for it.
    pub(in super::super) fn remove_tag(&mut self, tag: InitiatorTaskTag) {
        if let Some(&id) = self.by_tag.get(&tag) {
            self.remove(id);
        }
    }

    pub(in super::super) fn retain(&mut self, mut wanted: impl FnMut(&Answer<D>) -> bool) {
        let unwanted: Vec<AnswerId> =
            self.by_id.iter().filter(|(_, answer)| !wanted(answer)).map(|(&id, _)| id).collect();
        for id in unwanted {
            self.remove(id);
        }
    }

    /// Those that wait for a new allegiance, and the oldest of them.
    pub(super) fn waiting(&self) -> (usize, Option<AnswerId>) {
        let mut waiting = self.by_id.iter().filter(|(_, answer)| answer.allegiance.cid().is_none());
        let oldest = waiting.next().map(|(&id, _)| id);
        (usize::from(oldest.is_some()) + waiting.count(), oldest)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Answer<D>> {
        self.by_id.values_mut()
    }

    /// Gives the data of an answer back.
    pub(super) fn drop_data(&mut self, id: AnswerId) {
        if self.with_data.remove(&id)
            && let Some(data) = self.by_id.get_mut(&id).and_then(|answer| answer.data.as_mut())
        {
            data.handle = None;
            self.data_bytes -= data.kept_bytes;
        }
    }

    /// The tag under which the data of an answer is acknowledged; never the reserved value.
    pub(super) const fn transfer_tag(id: AnswerId) -> TargetTransferTag {
        TargetTransferTag((id.0 & 0x7fff_ffff) as u32)
    }

    /// The answer that had this tag, or `None` for a tag that was never given out. It may be gone.
    pub(super) fn of_transfer_tag(&self, tag: TargetTransferTag) -> Option<AnswerId> {
        let back = (self.next_id as u32).wrapping_sub(tag.0) & 0x7fff_ffff;
        let id = self.next_id.checked_sub(back.into())?;
        (tag.0 >> 31 == 0 && back != 0 && id != 0).then_some(AnswerId(id))
    }
}
