//! The order of commands that come on several connections of one session (RFC 7143, 4.2.2.1).
//!
//! Sockets are read in the order in which they are ready, which is not that of the numbers. What a connection has brought before its
//! number is next is held, as if it had not been read yet, while the other connections may have what is missing: until the turn after
//! has read them, at most. So commands that only overtook each other between two sockets still go the short way, and only what is
//! early then is kept by the session (docs/decisions/0010).

use std::ops::Range;

use lunette_wire::{Bhs, CmdSn, Opcode};

use super::connection::{Stage, Token};
use super::{Reactor, SCRATCH_BYTES};

/// Connections whose bytes are held at a time, each in a scratch buffer of its own. What further ones bring early is kept by the session.
const HELD_MAX: usize = 8;

/// What one connection has brought and has to wait for another.
struct Held {
    token: Token,
    /// The place of its session.
    session: usize,
    /// The number that is not next yet.
    cmd_sn: CmdSn,
    scratch: Vec<u8>,
    /// Where in it the bytes lie; they begin with the command of that number.
    bytes: Range<usize>,
    /// Of these bytes so many commands may still be ended at once.
    at_once_left: u16,
    /// Some of it was held before this turn began.
    is_due: bool,
}

impl Held {
    /// Only the last `length` bytes are to be held on, which begin with another early command; false where there are none. They
    /// wait no longer than what was before them: what came together waits for several numbers as long as for one.
    fn keep_last(&mut self, length: usize) -> bool {
        let start = self.bytes.end.saturating_sub(length).max(self.bytes.start);
        let rest = self.scratch.get(start..self.bytes.end).unwrap_or_default();
        let Some(first) = rest.first_chunk() else { return false };
        (self.cmd_sn, self.bytes.start) = (cmd_sn(first), start);
        true
    }
}

/// What is held of all sessions of a reactor.
#[derive(Default)]
pub(super) struct Order {
    held: Vec<Held>,
    /// Scratch buffers that nothing is held in.
    spare: Vec<Vec<u8>>,
}

impl Order {
    /// True while nothing is held.
    pub(super) const fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn has_room(&self) -> bool {
        self.held.len() < HELD_MAX
    }

    /// A new turn, the last one for what is held now.
    pub(super) fn next_turn(&mut self) {
        self.held.iter_mut().for_each(|held| held.is_due = true);
    }

    /// Whether bytes of a connection are held: they come before what its socket has.
    pub(super) fn holds(&self, token: Token) -> bool {
        self.held.iter().any(|held| held.token == token)
    }

    /// A scratch buffer, in place of one in which something is to be held.
    pub(super) fn scratch(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| vec![0; SCRATCH_BYTES])
    }

    fn take(&mut self, is_wanted: impl FnMut(&Held) -> bool) -> Option<Held> {
        self.held.iter().position(is_wanted).map(|at| self.held.swap_remove(at))
    }
}

impl Reactor {
    /// The session of a connection, if other connections of it may have what comes before what this one has, and there is room to hold
    /// that meanwhile.
    pub(super) fn session_to_wait_for(&self, connection: usize) -> Option<usize> {
        let Stage::FullFeature { session, .. } = self.connections.get(connection)?.stage else { return None };
        let has_others = self.sessions.get(session)?.links.len() > 1;
        (has_others && self.order.has_room()).then_some(session)
    }

    /// Whether a PDU is a command that its session would keep until another one has come.
    pub(super) fn is_early(&self, session: usize, bhs: &Bhs) -> bool {
        bhs[0] == Opcode::ScsiCommand as u8
            && self.sessions.get(session).is_some_and(|session| session.core.is_early(cmd_sn(bhs)))
    }

    /// Holds `bytes` of a scratch buffer, which begin with an early command.
    pub(super) fn hold(&mut self, connection: usize, scratch: Vec<u8>, bytes: Range<usize>) {
        let of = self.connections.get(connection).map(|of| (of.token, &of.stage));
        let first = scratch.get(bytes.clone()).and_then(|bytes| bytes.first_chunk());
        let (Some((token, &Stage::FullFeature { session, .. })), Some(first)) = (of, first) else {
            // The connection has ended.
            return self.order.spare.push(scratch);
        };
        let (cmd_sn, at_once_left) = (cmd_sn(first), self.at_once_left);
        self.order.held.push(Held { token, session, cmd_sn, scratch, bytes, at_once_left, is_due: false });
    }

    /// Goes on with what is held, as far as its numbers are next.
    pub(super) fn take_in_order(&mut self) {
        while let Some(held) = self.order.take(|held| {
            let session = self.sessions.get(held.session);
            session.is_none_or(|session| !session.core.is_early(held.cmd_sn))
        }) {
            self.go_on_with(held, true);
        }
    }

    /// The same, and then with what has been held for a turn, early or not.
    pub(super) fn take_due(&mut self) {
        self.take_in_order();
        while let Some(held) = self.order.take(|held| held.is_due) {
            self.go_on_with(held, false);
            self.take_in_order();
        }
    }

    fn go_on_with(&mut self, mut held: Held, may_wait: bool) {
        let token = held.token;
        let Some(connection) = self.connection(token) else { return self.order.spare.push(held.scratch) };
        let mut receiver = std::mem::take(&mut connection.receiver);
        let bytes = held.scratch.get(held.bytes.clone()).unwrap_or_default();
        let outcome = self.parse(token.index, &mut receiver, bytes, (held.at_once_left, may_wait));
        held.at_once_left = self.at_once_left;
        let left = *outcome.as_ref().unwrap_or(&0);
        let has_ended =
            !self.connection(token).is_some_and(|of| matches!(of.stage, Stage::FullFeature { .. }));
        if !has_ended && held.keep_last(left) {
            self.order.held.push(held);
        } else {
            self.order.spare.push(held.scratch);
        }
        self.received(token.index, receiver, outcome.map(|_| ()));
    }
}

fn cmd_sn(bhs: &Bhs) -> CmdSn {
    CmdSn(u32::from_be_bytes([bhs[24], bhs[25], bhs[26], bhs[27]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(order: &mut Order, index: usize, cmd_sn: u32) {
        let (token, cmd_sn) = (Token { index, generation: 1 }, CmdSn(cmd_sn));
        let scratch = order.scratch();
        assert_eq!(scratch.len(), SCRATCH_BYTES, "as long as what is read into");
        order.held.push(Held {
            token,
            session: 0,
            cmd_sn,
            scratch,
            bytes: 0..48,
            at_once_left: 1,
            is_due: false,
        });
    }

    #[test]
    fn what_is_held_waits_for_its_number_or_for_the_next_turn() {
        let mut order = Order::default();
        held(&mut order, 3, 20);
        held(&mut order, 4, 10);
        assert!(order.holds(Token { index: 3, generation: 1 }));
        assert!(!order.holds(Token { index: 3, generation: 2 }), "a later connection in the same place");
        assert!(order.take(|held| held.is_due).is_none());
        let next = order.take(|held| held.cmd_sn == CmdSn(10)).expect("the one whose number it is");
        assert_eq!(next.token.index, 4);
        order.next_turn();
        held(&mut order, 4, 30);
        let due = order.take(|held| held.is_due).expect("the one that has waited");
        assert_eq!(due.token.index, 3);
        assert!(
            order.take(|held| held.is_due).is_none() && !order.is_empty(),
            "the other has its turn still"
        );
    }

    /// However many numbers it has to wait for: a ping behind early commands waits for one turn.
    #[test]
    fn what_is_behind_several_early_commands_waits_no_longer() {
        let mut order = Order::default();
        held(&mut order, 3, 20);
        let command = lunette_wire::initiator::ScsiCommand { cmd_sn: CmdSn(22), ..Default::default() };
        let mut first = order.take(|_| true).expect("what is held");
        first.bytes = 0..144;
        first.scratch[96..144].copy_from_slice(&command.encode(0));
        order.held.push(first);
        order.next_turn();
        let mut first = order.take(|held| held.cmd_sn == CmdSn(20)).expect("its number has come");
        assert!(first.keep_last(48));
        assert_eq!((first.cmd_sn, first.bytes.clone()), (CmdSn(22), 96..144));
        order.held.push(first);
        let mut due = order.take(|held| held.is_due).expect("the turn is the last one for all of it");
        assert!(!due.keep_last(0), "all has been gone on with");
    }

    #[test]
    fn buffers_are_bounded_and_used_again() {
        let mut order = Order::default();
        for index in 0..HELD_MAX {
            assert!(order.has_room());
            held(&mut order, index, 1);
        }
        assert!(!order.has_room());
        let place = order.held[0].scratch.as_ptr();
        let first = order.take(|_| true).expect("one of them");
        order.spare.push(first.scratch);
        assert!(order.has_room());
        let again = order.scratch();
        assert_eq!(again.as_ptr(), place);
    }

    #[test]
    fn the_number_of_a_command_is_where_the_standard_says() {
        let command =
            lunette_wire::initiator::ScsiCommand { cmd_sn: CmdSn(0x0102_0304), ..Default::default() };
        assert_eq!(cmd_sn(&command.encode(0)), CmdSn(0x0102_0304));
    }
}
