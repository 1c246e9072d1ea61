//! How much one session gets of a reactor at a time when it has company: what one of them moves, the others wait for.

/// What is read at a time from a connection, where several sessions are busy: some 20 microseconds of copying.
const READ_BYTES_MAX: usize = 64 << 10;

/// The same beside short commands of others.
const READ_BYTES_MAX_BESIDE_SHORT: usize = 32 << 10;

/// Data of the long reads that are begun in one turn, and of what is sent to one connection in it: some 20
/// microseconds. The first long read of a turn is always begun, however long it is.
const TURN_BYTES_MAX: usize = 128 << 10;

/// Answers of several connections that are ready before they are sent: more would have left the processor's second-level cache by then, and
/// the buffers that they free would be cold for the next ones.
const UNSENT_BYTES_MAX: usize = 128 << 10;

/// Shorter reads are only put off behind long ones of their own session: they are what those are put off for.
const LONG_READ_BYTES: usize = 32 << 10;

/// Reads from one session in a row after which it has the reactor to itself.
const READS_ALONE: u8 = 64;

/// For so many turns after a short command others are thought to come.
const TURNS_WITH_SHORT: u8 = 64;

/// How much one connection may be sent in a turn, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SendLimit {
    turn: u64,
    bytes_max: usize,
}

/// What one connection was sent in the turn that it was last sent something in.
#[derive(Debug, Default)]
pub(super) struct Sent {
    turn: u64,
    bytes: usize,
}

impl Sent {
    /// How much more it may be sent in this turn, in bytes.
    pub(super) const fn left(&mut self, limit: SendLimit) -> usize {
        if self.turn != limit.turn {
            *self = Self { turn: limit.turn, bytes: 0 };
        }
        limit.bytes_max.saturating_sub(self.bytes)
    }

    /// It was sent so much.
    pub(super) const fn note(&mut self, bytes: usize) {
        self.bytes += bytes;
    }
}

/// What the connections that were read last are to be sent.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    bytes: usize,
}

impl Unanswered {
    /// One of them is to be sent so much; whether all is to go out before more is read.
    pub(super) const fn note(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.bytes >= UNSENT_BYTES_MAX
    }
}

/// Whether a reactor's sessions take turns, and what this turn has begun.
#[derive(Debug, Default)]
pub(super) struct Company {
    last: Option<usize>,
    shared_reads_left: u8,
    begun_bytes: usize,
    turn: u64,
    /// Turns for which short commands are expected, and whose.
    short_left: u8,
    short: Option<usize>,
}

impl Company {
    /// A new turn.
    pub(super) const fn next_turn(&mut self) {
        self.begun_bytes = 0;
        self.turn += 1;
        self.short_left = self.short_left.saturating_sub(1);
    }

    /// A command of a session with so much data is carried out.
    pub(super) const fn note_command(&mut self, session: usize, data_bytes: usize) {
        if data_bytes < LONG_READ_BYTES {
            (self.short_left, self.short) = (TURNS_WITH_SHORT, Some(session));
        }
    }

    /// Whether a session's data of so many bytes is to be copied in pieces, between which others have their turn. Streams among
    /// themselves would only pay for it.
    pub(super) fn wants_pieces(&self, session: usize, data_bytes: usize) -> bool {
        self.has_short_of_others(Some(session)) && self.is_long(data_bytes)
    }

    fn has_short_of_others(&self, session: Option<usize>) -> bool {
        self.short_left > 0 && self.short != session
    }

    /// The most that is to be read at once from a connection of this session, which has something to read. One that has
    /// not logged in keeps nobody from anything.
    pub(super) fn read_bytes_max(&mut self, session: Option<usize>) -> usize {
        if session.is_none() {
            return READ_BYTES_MAX;
        }
        if std::mem::replace(&mut self.last, session).is_some_and(|last| Some(last) != session) {
            self.shared_reads_left = READS_ALONE;
        }
        if self.shared_reads_left == 0 {
            return usize::MAX;
        }
        self.shared_reads_left -= 1;
        if self.has_short_of_others(session) { READ_BYTES_MAX_BESIDE_SHORT } else { READ_BYTES_MAX }
    }

    /// Whether several sessions are busy.
    pub(super) const fn is_shared(&self) -> bool {
        self.shared_reads_left > 0
    }

    /// Whether a read of so much must let shorter commands go first.
    pub(super) const fn is_long(&self, data_bytes: usize) -> bool {
        self.is_shared() && data_bytes >= LONG_READ_BYTES
    }

    /// Whether a long read may begin in this turn; it counts if it may.
    pub(super) const fn may_begin(&mut self, data_bytes: usize) -> bool {
        let may = self.begun_bytes < TURN_BYTES_MAX;
        if may {
            self.begun_bytes += data_bytes;
        }
        may
    }

    /// The most that is to be sent to one connection in this turn.
    pub(super) const fn send_limit(&self) -> SendLimit {
        let bytes_max = if self.is_shared() { TURN_BYTES_MAX } else { usize::MAX };
        SendLimit { turn: self.turn, bytes_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Option<usize> = Some(0);
    const SECOND: Option<usize> = Some(1);

    #[test]
    fn who_is_alone_is_not_held_back() {
        let mut company = Company::default();
        assert_eq!(company.read_bytes_max(FIRST), usize::MAX);
        assert_eq!(company.read_bytes_max(None), READ_BYTES_MAX, "a login");
        assert_eq!(company.read_bytes_max(FIRST), usize::MAX);
        assert!(!company.is_long(1 << 20) && !company.is_shared());
        assert_eq!(company.send_limit().bytes_max, usize::MAX);
    }

    #[test]
    fn who_has_company_takes_turns_until_alone_again() {
        let mut company = Company::default();
        company.read_bytes_max(FIRST);
        assert_eq!(company.read_bytes_max(SECOND), READ_BYTES_MAX);
        assert!(company.is_long(LONG_READ_BYTES) && !company.is_long(LONG_READ_BYTES - 1));
        assert!(company.may_begin(1 << 20), "the first one of a turn");
        assert!(!company.may_begin(LONG_READ_BYTES));
        company.next_turn();
        assert!((0..4).all(|_| company.may_begin(LONG_READ_BYTES)));
        assert!(!company.may_begin(LONG_READ_BYTES));
        assert_eq!(company.send_limit(), SendLimit { turn: 1, bytes_max: TURN_BYTES_MAX });
        let reads = (0..1000).take_while(|_| company.read_bytes_max(SECOND) == READ_BYTES_MAX).count();
        assert_eq!((reads, company.is_shared()), (usize::from(READS_ALONE) - 1, false));
    }

    #[test]
    fn only_those_who_have_short_commands_beside_them_read_less_and_copy_in_pieces() {
        let mut company = Company::default();
        company.note_command(1, 0);
        company.read_bytes_max(FIRST);
        assert!(!company.wants_pieces(0, 1 << 20), "it is alone");
        company.read_bytes_max(SECOND);
        assert!(company.wants_pieces(0, 1 << 20) && !company.wants_pieces(0, LONG_READ_BYTES - 1));
        assert!(!company.wants_pieces(1, 1 << 20), "the short ones are its own");
        assert_eq!(company.read_bytes_max(SECOND), READ_BYTES_MAX);
        assert_eq!(company.read_bytes_max(FIRST), READ_BYTES_MAX_BESIDE_SHORT);
        (0..TURNS_WITH_SHORT).for_each(|_| company.next_turn());
        company.note_command(1, LONG_READ_BYTES);
        assert!(company.is_long(1 << 20) && !company.wants_pieces(0, 1 << 20), "streams among themselves");
    }

    #[test]
    fn short_answers_of_many_connections_go_out_while_they_are_in_the_cache() {
        let mut unsent = Unanswered::default();
        let read = (0..1000).take_while(|_| !unsent.note(16 << 10)).count();
        assert_eq!((read + 1) * (16 << 10), UNSENT_BYTES_MAX);
        assert!(!Unanswered::default().note(0), "nothing was asked for");
    }

    #[test]
    fn what_a_turn_has_sent_counts_until_the_next_one() {
        let mut company = Company::default();
        company.read_bytes_max(FIRST);
        company.read_bytes_max(SECOND);
        let mut sent = Sent::default();
        assert_eq!(sent.left(company.send_limit()), TURN_BYTES_MAX);
        sent.note(100 << 10);
        assert_eq!(sent.left(company.send_limit()), 28 << 10);
        // What is in the last write goes beyond it.
        sent.note(100 << 10);
        assert_eq!(sent.left(company.send_limit()), 0);
        company.next_turn();
        assert_eq!(sent.left(company.send_limit()), TURN_BYTES_MAX);
    }
}
