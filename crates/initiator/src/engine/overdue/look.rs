//! Which commands are overdue by the clock, and when to look again.

use std::time::Duration;

use super::flow::Flow;

/// A command that is a task, as a look at the clock sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) place: u32,
    /// None: it is never overdue.
    pub(super) limit: Option<Duration>,
    pub(super) begun_at: Duration,
    /// None: it has not left.
    pub(super) moved_at: Option<Duration>,
    pub(super) is_being_ended: bool,
}

/// What is overdue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// The answers to these.
    Answers(Vec<u32>),
    /// Room in the command window, for this one.
    Window(u32),
}

/// A look at all commands, the oldest first. A command's time is counted from when it, or one before it that is still under
/// way, last got on, and [`Flow`] says whether it may be behind data. One that has not left waits for those that have; without any,
/// it is the target that lets none in.
#[derive(Debug)]
pub(super) struct Look {
    now: Duration,
    /// When anything last got on, what is over included.
    all_moved_at: Duration,
    flow: Flow,
    moved_at: Duration,
    late: Vec<u32>,
    next: Option<Duration>,
    is_any_under_way: bool,
    unsent: Option<(u32, Duration, Duration)>,
}

impl Look {
    pub(super) const fn new(now: Duration, all_moved_at: Duration, flow: Flow) -> Self {
        Self {
            now,
            all_moved_at,
            flow,
            moved_at: Duration::ZERO,
            late: Vec::new(),
            next: None,
            is_any_under_way: false,
            unsent: None,
        }
    }

    pub(super) fn at(&mut self, command: Waiting) {
        self.is_any_under_way |= command.moved_at.is_some();
        if command.is_being_ended {
            return;
        }
        let Some(moved_at) = command.moved_at else {
            let unsent = command.limit.map(|limit| (command.place, command.begun_at, limit));
            self.unsent = self.unsent.or(unsent);
            return;
        };
        self.moved_at = self.moved_at.max(moved_at);
        let Some(limit) = command.limit else { return };
        match self.flow.due(self.now, self.moved_at, limit) {
            None => self.late.push(command.place),
            due => self.is_due(due),
        }
    }

    fn is_due(&mut self, due: Option<Duration>) {
        self.next = [self.next, due].into_iter().flatten().min();
    }

    /// What is overdue, and when to look again.
    pub(super) fn result(mut self) -> (Late, Option<Duration>) {
        if let Some((place, begun_at, limit)) = self.unsent {
            let since = if self.is_any_under_way { self.now } else { begun_at.max(self.all_moved_at) };
            match since.checked_add(limit) {
                Some(due) if self.now >= due => return (Late::Window(place), self.next),
                due => self.is_due(due),
            }
        }
        (Late::Answers(self.late), self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Under way since `begun` seconds, and getting on last after `moved` seconds; it may take 60 s.
    fn command(place: u32, begun: u64, moved: Option<u64>) -> Waiting {
        let (limit, moved_at) = (Some(s(60)), moved.map(s));
        Waiting { place, limit, begun_at: s(begun), moved_at, is_being_ended: false }
    }

    fn look(now: u64, all_moved_at: u64, commands: &[Waiting]) -> (Late, Option<Duration>) {
        look_at(now, all_moved_at, Flow::default(), commands)
    }

    fn look_at(now: u64, all_moved_at: u64, flow: Flow, commands: &[Waiting]) -> (Late, Option<Duration>) {
        let mut look = Look::new(s(now), s(all_moved_at), flow);
        commands.iter().for_each(|command| look.at(*command));
        look.result()
    }

    #[test]
    fn a_command_has_its_time_from_when_it_last_got_on() {
        let commands = [command(1, 0, Some(0)), command(2, 10, Some(70))];
        assert_eq!(look(59, 70, &commands), (Late::Answers(vec![]), Some(s(60))));
        assert_eq!(look(60, 70, &commands), (Late::Answers(vec![1]), Some(s(130))));
    }

    #[test]
    fn what_waits_behind_data_that_comes_is_not_overdue() {
        let commands = [command(1, 0, Some(100)), command(2, 0, Some(0)), command(3, 0, Some(0))];
        assert_eq!(look(101, 100, &commands), (Late::Answers(vec![]), Some(s(160))));
        // So may an old one be behind the data of younger ones, until what has left since its time was over is answered.
        let commands = [command(1, 0, Some(0)), command(2, 0, Some(100))];
        let flow = Flow { moved_at: s(100), answered_sent_at: s(59) };
        assert_eq!(look_at(101, 100, flow, &commands), (Late::Answers(vec![]), Some(s(116))));
        let flow = Flow { answered_sent_at: s(60), ..flow };
        assert_eq!(look_at(101, 100, flow, &commands), (Late::Answers(vec![1]), Some(s(160))));
    }

    #[test]
    fn one_that_is_being_ended_is_left_to_that() {
        let ended = Waiting { is_being_ended: true, ..command(1, 0, Some(0)) };
        assert_eq!(look(600, 0, &[ended]), (Late::Answers(vec![]), None));
        let endless = Waiting { limit: None, ..command(1, 0, Some(0)) };
        assert_eq!(look(600, 0, &[endless]), (Late::Answers(vec![]), None));
        let for_ever = Waiting { limit: Some(Duration::MAX), ..command(1, 0, Some(1)) };
        assert_eq!(look(600, 1, &[for_ever]), (Late::Answers(vec![]), Some(Duration::MAX)));
    }

    #[test]
    fn the_window_may_stay_closed_as_long_as_something_is_under_way() {
        let unsent = command(2, 0, None);
        let endless = Waiting { limit: None, ..command(1, 0, Some(0)) };
        assert_eq!(look(600, 0, &[endless, unsent]), (Late::Answers(vec![]), Some(s(660))));
        assert_eq!(look(600, 541, &[unsent]), (Late::Answers(vec![]), Some(s(601))));
        assert_eq!(look(600, 540, &[unsent]), (Late::Window(2), None));
    }
}
