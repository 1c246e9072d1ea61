//! Whether an answer may still be behind data: on a narrow link what was asked for first may come last, and the answer to an
//! ABORT TASK comes behind all that the target has sent before it. Only silence counts, or that younger requests are answered.

use std::time::Duration;

/// How often something is looked at within its limit while data comes or goes.
const LOOKS: u32 = 4;

/// What has come and gone in a session.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct Flow {
    /// When data last came or left, or a command was answered.
    pub(in crate::engine) moved_at: Duration,
    /// When the youngest command left of which something has come.
    pub(in crate::engine) answered_sent_at: Duration,
}

impl Flow {
    /// When it may be seen that something is late which may be waited for so long since `since`; none: it is late.
    pub(super) fn due(&self, now: Duration, since: Duration, limit: Duration) -> Option<Duration> {
        let due = since.saturating_add(limit);
        if now < due {
            return Some(due);
        }
        // It is not behind data if what left only now has been answered before it.
        if self.answered_sent_at >= due {
            return None;
        }
        let silent = self.moved_at.saturating_add(limit);
        (now < silent).then(|| silent.min(now.saturating_add(limit / LOOKS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Waited for since the tenth second, for 60 s.
    fn due(now: u64, moved_at: u64, answered_sent_at: u64) -> Option<Duration> {
        Flow { moved_at: s(moved_at), answered_sent_at: s(answered_sent_at) }.due(s(now), s(10), s(60))
    }

    #[test]
    fn silence_counts() {
        assert_eq!(due(69, 5, 5), Some(s(70)));
        assert_eq!(due(70, 5, 5), None);
    }

    #[test]
    fn an_answer_may_be_behind_data_that_comes() {
        assert_eq!(due(70, 69, 65), Some(s(85)));
        assert_eq!(due(270, 225, 65), Some(s(285)));
        assert_eq!(due(285, 225, 65), None);
        assert_eq!(due(71, 12, 12), Some(s(72)));
    }

    #[test]
    fn it_is_not_behind_data_when_what_left_after_its_limit_is_answered() {
        assert_eq!(due(75, 74, 69), Some(s(90)));
        assert_eq!(due(75, 74, 70), None);
    }

    #[test]
    fn without_end_is_without_end() {
        let flow = Flow { moved_at: s(1), answered_sent_at: s(1) };
        assert_eq!(flow.due(s(600), s(1), Duration::MAX), Some(Duration::MAX));
    }
}
