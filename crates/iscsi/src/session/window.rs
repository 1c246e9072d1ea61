//! The command window (RFC 7143, 4.2.2.1): which command numbers a target takes, and in what order.

use std::collections::VecDeque;

use lunette_wire::CmdSn;

/// What becomes of a non-immediate request with a given CmdSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is the next one: deliver it now.
    Next,
    /// It is inside the window but an earlier one is missing: keep it.
    Early,
    /// Outside the window, or there already: ignore it without a word, as the clause demands.
    Ignore,
}

/// Numbers of one session, with the requests that wait for an earlier one.
///
/// MaxCmdSN stays where it is while commands are executing and moves on by one for each that ends, so that an
/// initiator never has more than `depth` commands outstanding. It never moves backwards.
///
/// A target that was asked for more than it can serve narrows the window ([`Self::narrow`]): places of commands that end
/// are kept back until half are left, and given again one at a time while all goes well and nothing [holds](Self::hold) it.
#[derive(Debug)]
pub struct CommandWindow<T> {
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    depth: u32,
    /// Places that the initiator is to have, 1 to `depth`.
    wanted: u32,
    /// Places that it does not have, 0 to `depth` - 1.
    kept_back: u32,
    /// Commands that ended well since `wanted` changed.
    ended: u32,
    /// There is no room for a wider window.
    is_held: bool,
    /// Commands of the window that was too wide and may still be outstanding: they say nothing about the new width.
    of_before: u32,
    /// Slot `n` belongs to ExpCmdSN + n; the first is always empty.
    early: VecDeque<Option<T>>,
}

impl<T> CommandWindow<T> {
    /// A window of `depth` commands (1 to 65,535) that starts at `first`.
    #[must_use]
    pub fn new(first: CmdSn, depth: u16) -> Self {
        Self {
            exp_cmd_sn: first,
            max_cmd_sn: first.plus(u32::from(depth.max(1)) - 1),
            depth: depth.max(1).into(),
            wanted: depth.max(1).into(),
            kept_back: 0,
            ended: 0,
            is_held: false,
            of_before: 0,
            early: VecDeque::new(),
        }
    }

    /// The next number that is expected.
    #[must_use]
    pub const fn exp_cmd_sn(&self) -> CmdSn {
        self.exp_cmd_sn
    }

    /// The last number that is taken.
    #[must_use]
    pub const fn max_cmd_sn(&self) -> CmdSn {
        self.max_cmd_sn
    }

    /// Judges a number; after [`Admission::Next`] the number counts as received.
    pub fn admit(&mut self, cmd_sn: CmdSn) -> Admission {
        match self.judge(cmd_sn) {
            Admission::Next => {
                self.exp_cmd_sn = self.exp_cmd_sn.next();
                self.early.pop_front();
                Admission::Next
            }
            other => other,
        }
    }

    /// Like [`Self::admit`], without changing anything.
    #[must_use]
    pub fn judge(&self, cmd_sn: CmdSn) -> Admission {
        let ahead = cmd_sn.since(self.exp_cmd_sn);
        let open = self.max_cmd_sn.since(self.exp_cmd_sn);
        // A closed window has MaxCmdSN = ExpCmdSN - 1, which shows as the largest distance.
        if open == u32::MAX || ahead > open {
            Admission::Ignore
        } else if ahead == 0 {
            Admission::Next
        } else if self.early.get(ahead as usize).is_some_and(Option::is_some) {
            Admission::Ignore
        } else {
            Admission::Early
        }
    }

    /// True when a request with this number would be delivered now, and none after it.
    pub(crate) fn is_next_alone(&self, cmd_sn: CmdSn) -> bool {
        self.early.is_empty() && self.judge(cmd_sn) == Admission::Next
    }

    /// Counts the number as received for which [`Self::is_next_alone`] is true.
    pub(crate) fn take_next_alone(&mut self) {
        self.exp_cmd_sn = self.exp_cmd_sn.next();
    }

    /// Keeps a request that [`Self::judge`] called early.
    pub fn park(&mut self, cmd_sn: CmdSn, request: T) {
        let ahead = cmd_sn.since(self.exp_cmd_sn) as usize;
        debug_assert!(self.judge(cmd_sn) == Admission::Early);
        if self.early.len() <= ahead {
            self.early.resize_with(ahead + 1, || None);
        }
        self.early[ahead] = Some(request);
    }

    /// Takes the next kept request whose turn has come, if any, and counts its number as received.
    pub fn next_parked(&mut self) -> Option<T> {
        let request = self.early.front_mut()?.take()?;
        self.early.pop_front();
        self.exp_cmd_sn = self.exp_cmd_sn.next();
        Some(request)
    }

    /// A command that was delivered has ended: one more may come, unless the window is to become narrower.
    pub fn release(&mut self) {
        self.kept_back += 1;
        if self.of_before > 0 {
            self.of_before -= 1;
        } else if self.wanted < self.depth {
            self.ended += 1;
            // A window's worth of commands went well with this width.
            if self.ended >= self.wanted && !self.is_held {
                self.ended = 0;
                self.wanted += 1;
            }
        }
        while self.kept_back > self.depth - self.wanted {
            self.kept_back -= 1;
            self.max_cmd_sn = self.max_cmd_sn.next();
        }
    }

    /// More came than can be served: halves the window, at most once for the commands of one window.
    pub fn narrow(&mut self) {
        self.narrow_to(self.wanted / 2);
    }

    /// As [`Self::narrow`], to so many places where it has more.
    pub fn narrow_to(&mut self, places: u32) {
        if self.of_before == 0 {
            self.of_before = self.depth - self.kept_back;
            self.wanted = self.wanted.min(places).max(1);
            self.ended = 0;
        }
    }

    /// Whether the window stays as it is, however well things go, or may become wider again.
    pub const fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// True while the initiator is to have fewer places than were agreed on.
    #[must_use]
    pub const fn is_narrow(&self) -> bool {
        self.wanted < self.depth
    }

    /// Takes out what waits and is `unwanted`. Its numbers count as never received.
    pub fn discard(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        self.early.iter_mut().filter_map(|slot| slot.take_if(|request| unwanted(request))).collect()
    }

    /// Drops everything that waits, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.early).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn in_order_early_duplicate_and_outside() {
        let mut window = CommandWindow::new(CmdSn(0xffff_fffe), 4);
        assert_eq!(window.max_cmd_sn(), CmdSn(1));
        assert_eq!(window.admit(CmdSn(0)), Admission::Early);
        window.park(CmdSn(0), "two ahead");
        assert_eq!(window.admit(CmdSn(0)), Admission::Ignore);
        assert_eq!(window.admit(CmdSn(2)), Admission::Ignore);
        assert_eq!(window.admit(CmdSn(0xffff_fffd)), Admission::Ignore);
        assert_eq!(window.admit(CmdSn(0xffff_fffe)), Admission::Next);
        assert_eq!(window.next_parked(), None);
        assert_eq!(window.admit(CmdSn(0xffff_ffff)), Admission::Next);
        assert_eq!(window.next_parked(), Some("two ahead"));
        assert_eq!(window.exp_cmd_sn(), CmdSn(1));
    }

    #[test]
    fn what_is_discarded_may_come_again() {
        let mut window = CommandWindow::new(CmdSn(0), 8);
        for early in 1..4 {
            window.park(CmdSn(early), early);
        }
        assert_eq!(window.discard(|&early| early != 2), [1, 3]);
        assert_eq!(window.judge(CmdSn(2)), Admission::Ignore);
        assert_eq!(window.judge(CmdSn(3)), Admission::Early);
        assert_eq!(window.admit(CmdSn(0)), Admission::Next);
        assert_eq!(window.next_parked(), None);
        assert_eq!(window.admit(CmdSn(1)), Admission::Next);
        assert_eq!(window.next_parked(), Some(2));
        assert_eq!(window.exp_cmd_sn(), CmdSn(3));
    }

    #[test]
    fn a_closed_window_takes_nothing_until_a_command_ends() {
        let mut window = CommandWindow::<()>::new(CmdSn(10), 1);
        assert_eq!(window.admit(CmdSn(10)), Admission::Next);
        assert_eq!(window.admit(CmdSn(11)), Admission::Ignore);
        window.release();
        assert_eq!(window.admit(CmdSn(11)), Admission::Next);
    }

    /// Commands that fit into the window when none is outstanding.
    fn width(window: &CommandWindow<()>) -> u32 {
        window.max_cmd_sn().next().since(window.exp_cmd_sn())
    }

    /// Fills the window and lets all commands of it end.
    fn serve_all(window: &mut CommandWindow<()>) {
        let outstanding = width(window);
        for _ in 0..outstanding {
            assert_eq!(window.admit(window.exp_cmd_sn()), Admission::Next);
        }
        assert_eq!(width(window), 0, "it is full");
        (0..outstanding).for_each(|_| window.release());
    }

    #[test]
    fn overload_halves_the_window_and_calm_opens_it_again() {
        let mut window = CommandWindow::<()>::new(CmdSn(0xffff_ff00), 64);
        (0..64).for_each(|_| assert_ne!(window.admit(window.exp_cmd_sn()), Admission::Ignore));
        (0..64).for_each(|_| {
            window.narrow();
            window.release();
        });
        assert_eq!(width(&window), 32, "halved once, not for each command");
        let mut widths = vec![32];
        while width(&window) < 64 {
            serve_all(&mut window);
            widths.push(width(&window));
            assert!(widths.len() < 100, "it opens again: {widths:?}");
        }
        assert!(widths.is_sorted() && widths.len() > 20, "a little at a time: {widths:?}");
        serve_all(&mut window);
        assert_eq!(width(&window), 64, "never beyond what was agreed on");
    }

    #[test]
    fn a_window_opens_only_when_nothing_holds_it() {
        let mut window = CommandWindow::<()>::new(CmdSn(0), 16);
        window.narrow_to(3);
        assert!(window.is_narrow());
        window.hold(true);
        (0..20).for_each(|_| serve_all(&mut window));
        assert_eq!(width(&window), 3);
        window.hold(false);
        serve_all(&mut window);
        assert_eq!(width(&window), 4);
        (0..20).for_each(|_| serve_all(&mut window));
        assert!(!window.is_narrow());
    }

    #[test]
    fn a_window_never_closes_for_good() {
        let mut window = CommandWindow::<()>::new(CmdSn(0), 5);
        for _ in 0..50 {
            window.narrow();
            serve_all(&mut window);
            assert!(width(&window) >= 1);
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Whatever arrives in whatever order: each number is delivered at most once, in order, without gaps.
        #[test]
        fn never_opens_twice_for_one_number(
            first: u32, depth in 1u16..40,
            arrivals in proptest::collection::vec((0u32..60, any::<bool>(), any::<bool>()), 0..200),
        ) {
            let mut window = CommandWindow::new(CmdSn(first), depth);
            let mut delivered = Vec::new();
            for (ahead, release, narrow) in arrivals {
                let cmd_sn = CmdSn(first).plus(ahead);
                match window.admit(cmd_sn) {
                    Admission::Next => {
                        delivered.push(ahead);
                        while let Some(parked) = window.next_parked() {
                            delivered.push(parked);
                        }
                    }
                    Admission::Early => window.park(cmd_sn, ahead),
                    Admission::Ignore => {}
                }
                if narrow {
                    window.narrow();
                }
                if release && window.max_cmd_sn().since(CmdSn(first)) < 1000 {
                    window.release();
                }
                prop_assert!(window.max_cmd_sn().next().since(window.exp_cmd_sn()) < 2000);
            }
            let expected: Vec<u32> = (0..delivered.len() as u32).collect();
            prop_assert_eq!(delivered, expected);
        }
    }
}
