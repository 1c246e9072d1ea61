//! What of this machine was too slow for what the model expects: work for each command, packets that were late, processors that its host
//! had given to others. Each with its figure, where that is what came.

use std::time::Duration;

use lunette_wan::OUTPACED_SHARE;
use lunette_workload::model::{Limit, in_turns};

use super::{PACED, us};
use crate::report::figure_text;
use crate::study::probe::{CommandTurn, WINDOWS_CARRY};
use crate::study::result::CellResult;

/// What a host gives to others for less than this share of the time is no reason of anything, and of more than that no more is believed.
const LOST_MIN: f64 = 0.01;
const LOST_MAX: f64 = 0.5;

impl CellResult {
    /// What processors had to do for each command is more than the model knows: what is left of what it expects, where that is
    /// what came. What plain TCP costs both ends is in the model already, and data is worked on while the line carries more of it.
    fn worked(&self, limit: Limit, model: f64, turn: &CommandTurn) -> Option<String> {
        let commands = f64::from(turn.commands);
        let is_known = self.together > 0.0 && self.processors > 0.0 && self.idle < 1.0;
        if turn.commands == 0 || !is_known || self.measured <= 0.0 {
            return None;
        }
        let is_time = self.unit == "ms";
        let turn_s = turn.time.as_secs_f64();
        let took_s = if is_time { self.measured / 1e3 } else { turn_s * model / self.measured };
        // What others do on this machine is no work for this command.
        let each_s = self.together * took_s / commands;
        let processors = (self.processors / (1.0 - self.idle)).round().max(1.0);
        let shared_s = each_s / processors;
        let is_full = limit == Limit::Link && turn.commands > 1;
        let line_s = if is_full { turn_s / commands } else { turn.line.as_secs_f64() };
        let trips_s = turn.round_trip.as_secs_f64() * turn.round_trips;
        let at_ends_s = turn.at_ends.as_secs_f64() * turn.round_trips;
        let figure = |slowed_s: f64| if is_time { slowed_s * 1e3 } else { model * turn_s / slowed_s };
        let alone_s = (trips_s + at_ends_s.max(each_s - line_s) - shared_s).max(0.0);
        let met = figure(commands / in_turns(turn.commands, alone_s, &[line_s, shared_s]));
        if self.is_left(met, model) {
            return Some(format!(
                "both ends and the network worked {} us for each command, which makes {} of what the model expects",
                figure_text(each_s * 1e6),
                figure_text(met)
            ));
        }
        // What came in one packet is answered in one, and waits for the last of it where work takes longest.
        let busiest_s = self.busiest * took_s / commands;
        let line_s = line_s.max(turn.line.as_secs_f64());
        let together = figure(trips_s + at_ends_s + commands * line_s.max(busiest_s));
        // A full line is another matter ([`Self::together`]), and so are long ways, where data is asked for in turn.
        let is_apart = turn.is_asked && (limit == Limit::Link || turn.round_trip >= PACED);
        (turn.is_packed && !is_apart && busiest_s > 0.0 && self.is_left(together, model)).then(|| {
            format!(
                "one thread worked {} us for each command, and commands that came in one packet go round together: {} of them one after the other there, and \
                 a round trip, make {} of what the model expects",
                figure_text(busiest_s * 1e6),
                turn.commands,
                figure_text(together)
            )
        })
    }

    /// What is left of what the model expects where this machine waited for processors that its host had given to others. Our
    /// threads are taken to have lost as much for what they had as all of this machine, and to have waited for all of that one
    /// after the other; more than half of the time is not excused so. Where round trips are the limit, what both ends take for a
    /// command at rest may be missing besides. Nothing where that explains nothing.
    pub(super) fn stolen(&self, limit: Limit, model: f64, turn: Option<&CommandTurn>) -> Option<String> {
        let lost = self.lost_to_others();
        if lost < LOST_MIN {
            return None;
        }
        let kept = 1.0 - lost.min(LOST_MAX);
        let left = |figure: f64| if self.unit == "ms" { figure / kept } else { figure * kept };
        let told = |left: f64, besides: &str| {
            format!(
                "the host had given {:.1} % of the processor time that this machine wanted to others, which is {:.1} % of the time for what our threads had, \
                 and leaves {} of what the model expects{besides}",
                self.stolen * 100.0,
                lost * 100.0,
                figure_text(left)
            )
        };
        let alone = left(model);
        if self.is_left(alone, model) {
            return Some(told(alone, ""));
        }
        let turn = turn.filter(|turn| limit == Limit::Window && !turn.ends.is_zero())?;
        let both = left(self.slowed(model, turn, turn.ends.as_secs_f64()));
        let besides =
            || format!(", with {} us more for each round trip, which are what both ends take", us(turn.ends));
        self.is_left(both, model).then(|| told(both, &besides()))
    }

    /// The share of the time that both ends take for what commands take at rest.
    pub(super) fn lost_at_ends(&self, model: f64, turn: &CommandTurn) -> f64 {
        let slowed = self.slowed(model, turn, turn.ends.as_secs_f64());
        1.0 - (slowed / model).min(model / slowed)
    }

    /// The share of the time in which our threads waited for what the host had given to others, if they did so one after the other.
    pub(super) fn lost_to_others(&self) -> f64 {
        if self.stolen < 1.0 { self.together * self.stolen / (1.0 - self.stolen) } else { 1.0 }
    }

    /// Packets that were late: what that leaves of what the model expects, where that is what came. Those that its round trip was
    /// measured with were late as well, and whatever they were is a part of what it has beside the link's.
    fn late(&self, model: f64, turn: &CommandTurn) -> Option<String> {
        let late = Duration::from_micros(self.late_us).saturating_sub(turn.at_ends);
        let slowed = self.slowed(model, turn, late.as_secs_f64());
        self.is_left(slowed, model).then(|| {
            format!(
                "packets were {} us late there and back, {} us more than all that a round trip took at rest beside the link's, which makes {} of what the model \
                 expects",
                self.late_us,
                us(late),
                figure_text(slowed)
            )
        })
    }

    /// Packets for which this machine had no time, where TCP's windows let through what came after that; where nobody knows what they let
    /// through, whatever came.
    fn lost_here_left(&self, model: f64) -> Option<String> {
        let lost = self.lost_here()?;
        if self.figure(WINDOWS_CARRY).is_none() {
            return Some(lost);
        }
        self.losses(model).map(|(_, because)| because)
    }

    /// What of this machine was too slow for what the model expects, if anything was.
    pub(super) fn too_slow(&self, limit: Limit, model: f64, turn: Option<&CommandTurn>) -> Option<String> {
        let mut reasons = self.busy();
        reasons.extend(self.lost_here_left(model));
        // Who waits for round trips does not come at the line's rate, whatever single bursts took.
        if limit == Limit::Link && self.outpaced > OUTPACED_SHARE {
            reasons.push(format!(
                "{:.0} % of the packets of one direction took this machine longer than the line",
                self.outpaced * 100.0
            ));
        }
        reasons.extend(turn.and_then(|turn| self.worked(limit, model, turn)));
        reasons.extend(turn.and_then(|turn| self.late(model, turn)));
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }
}
