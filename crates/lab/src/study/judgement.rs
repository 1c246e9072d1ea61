//! What a cell is judged to be limited by, from its own figures: whether it reaches what the model expects, what of this machine
//! was too slow where it does not, and what losses left.

mod slowness;

use std::time::Duration;

use lunette_workload::model::Limit;

use super::probe::{CommandTurn, HELD_UP, ORDER_CARRIES, STOOD_STILL, WINDOWS_CARRY};
use super::result::CellResult;
use crate::report::figure_text;

/// A thread with this share of a processor has no more to give: the rest goes to others, and to looking.
const BUSY: f64 = 0.9;
/// Nor has a machine whose processors are idle for less than this share.
const IDLE_MIN: f64 = 0.15;
/// Nor one that gets less than this share of the processor time that it wants, where what it does not get is worth a word: so
/// much of all there is.
const GIVEN_MIN: f64 = 0.5;
const TAKEN_MIN: f64 = 0.1;
/// Of what would come if a machine, or a thread, were at work all of the time, no less than this comes where it is the limit: work is
/// never at hand without a pause.
const NEARLY_BUSY: f64 = 0.75;
/// The share of what the model expects that a cell is to reach; one that reaches less is asked why. `dalgic-tcp` and `dalgic-sweep` are
/// to reach it in every cell: that is what this project promises of its target, and what `lunette lab check` looks at.
pub const REACHED: f64 = 0.95;
/// Studies of which every cell is to reach [`REACHED`] of the smaller of the link's payload rate and the model. The model's
/// figure is never more than the link's payload rate, which is one of its limits.
pub(crate) const HELD: [&str; 2] = ["dalgic-tcp", "dalgic-sweep"];
/// The limit of a cell that is behind its model for no reason that was measured.
pub(crate) const UNEXPLAINED: &str = "unexplained";
/// The limit of a session of several connections of which one held up the others.
const COMMAND_ORDER: &str = "command-order";
/// The limit of writes that wait to be asked for their data and go round together.
const TOGETHER: &str = "together";
/// Over ways as long as this and longer the target asks for data as the line carries it, so that commands do not go round together
/// (docs/decisions/0042).
const PACED: Duration = Duration::from_millis(5);
/// How far what came may be off what a reason says of it, on either side: windows of kernels are looked at fifty times a second, and
/// shares of processors are means.
const SAMPLED: f64 = 0.2;
/// What a reason may leave of what is missing, or account for beyond it.
const LEFT_MAX: f64 = 0.5;
/// How far a figure may be off another one before the report says why: of two figures of different hosts, and of one above the model.
pub(crate) const OFF: f64 = 0.1;

fn us(time: Duration) -> String {
    figure_text(time.as_secs_f64() * 1e6)
}

impl CellResult {
    /// Whether nobody can tell why it is what it is: its limit is `unexplained`, or it is better than the model by more than 10 % without
    /// a reason. That is a defect of the model, or of what is measured.
    #[must_use]
    pub fn is_unexplained(&self) -> bool {
        self.limit == UNEXPLAINED || (self.exceeds_model() && self.above.is_none())
    }

    /// Whether it is off the model by more than 10 %, on either side; nothing without one.
    #[must_use]
    pub fn is_off_model(&self) -> Option<bool> {
        let model = self.model.filter(|model| *model > 0.0)?;
        Some((self.measured / model - 1.0).abs() > OFF)
    }

    /// Whether it is better than the model by more than 10 %: then the model is wrong there.
    pub(crate) fn exceeds_model(&self) -> bool {
        self.model.is_some_and(|model| self.exceeds(model))
    }

    /// The same of what something else expects.
    pub(crate) fn exceeds(&self, expected: f64) -> bool {
        let (more, less) =
            if self.unit == "ms" { (expected, self.measured) } else { (self.measured, expected) };
        more > less * (1.0 + OFF)
    }

    /// How far it is from the model, on either side: the logarithm of the ratio; 0 without a model.
    pub(crate) fn distance_from_model(&self) -> f64 {
        self.model
            .filter(|model| *model > 0.0 && self.measured > 0.0)
            .map_or(0.0, |model| (self.measured / model).ln().abs())
    }

    /// What of this machine had nothing to spare: all processors together, or the one that a thread had.
    pub(crate) fn busy(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        let percent = |share: f64| share * 100.0;
        if self.idle < IDLE_MIN {
            reasons.push(format!(
                "all processors together were idle for {:.0} % of the time",
                percent(self.idle)
            ));
        }
        if 1.0 - self.stolen < GIVEN_MIN && self.stolen * (1.0 - self.idle) >= TAKEN_MIN {
            reasons.push(format!(
                "the host had given {:.0} % of the processor time that this machine wanted to others",
                percent(self.stolen)
            ));
        }
        if self.busiest >= BUSY {
            reasons.push(format!("one thread had {:.0} % of a processor", percent(self.busiest)));
        } else if self.loaded >= BUSY {
            reasons.push(format!(
                "one thread ran or waited for a processor for {:.0} % of the time",
                percent(self.loaded)
            ));
        }
        reasons
    }

    /// What of this machine was at work for nearly all of the time, and would have been for all of it before as much had come as the
    /// model expects: our own work grows with what comes, and that of others stays.
    fn nearly_busy(&self, model: f64) -> Option<String> {
        let reached = if self.unit == "ms" { model / self.measured } else { self.measured / model };
        let at_work = 1.0 - self.idle;
        let total = (self.processors / at_work).round().max(1.0);
        let own = (self.together / total).min(at_work);
        let others = (at_work * (1.0 - self.stolen) - own).max(0.0);
        // `used` is our share of what others leave.
        let told = |who: &str, share: f64, used: f64| {
            let at_most = if self.unit == "ms" { self.measured * used } else { self.measured / used };
            (used >= NEARLY_BUSY && used > reached).then(|| {
                format!(
                    "{who} at work for {:.0} % of the time, and would have been for all of it at {} of what the model expects",
                    share * 100.0,
                    figure_text(at_most)
                )
            })
        };
        let all = told("all processors together were", at_work, own / (1.0 - others));
        all.or_else(|| told("one thread was", self.busiest, self.busiest))
    }

    /// Whether [`Self::busy`] tells anything.
    pub(crate) fn has_busy_machine(&self) -> bool {
        !self.busy().is_empty()
    }

    /// Whether it reaches [`REACHED`] of what is expected; of a time, that it is no longer than that.
    fn reaches(&self, expected: f64) -> bool {
        if self.unit == "ms" {
            self.measured * REACHED <= expected
        } else {
            self.measured >= expected * REACHED
        }
    }

    /// Whether what a reason makes of what is expected is what came: within [`SAMPLED`] of it on either side, and half as far from it as
    /// what is expected itself, or nearer. Who accounts for a sliver of what is missing explains nothing, nor who does for far more.
    pub(crate) fn is_near(&self, predicted: f64, expected: f64) -> bool {
        let distance = |figure: f64| (self.measured / figure).ln().abs();
        (self.measured / predicted - 1.0).abs() <= SAMPLED
            && distance(predicted) <= distance(expected) * LEFT_MAX
    }

    /// The same of what this machine, or both ends, make of what the model expects; of that no less comes.
    fn is_left(&self, predicted: f64, model: f64) -> bool {
        self.reaches(predicted) && self.is_near(predicted, model)
    }

    /// Whether it reaches [`REACHED`] of what the model expects, which is never more than the link carries; nothing without a model.
    #[must_use]
    pub fn reaches_model(&self) -> Option<bool> {
        self.model.map(|model| self.reaches(model))
    }

    /// Whether the published figure is off by more than 10 %; nothing without one.
    #[must_use]
    pub fn is_off_published(&self) -> Option<bool> {
        let published = self.published.filter(|published| *published > 0.0)?;
        Some((self.measured / published - 1.0).abs() > OFF)
    }

    /// Names the limit: the model's, unless less came than it expects: then initiator and target took their part of each round
    /// trip, this machine was busy or late with packets, packets were lost, a host had given processors to others, what stands
    /// beside the network was the limit, or the cell is a defect of the model or of what it measures. `turn` is how long a
    /// command takes by the model.
    pub(crate) fn judge(&mut self, limit: Option<Limit>, turn: Option<&CommandTurn>, beside: Option<&str>) {
        (self.machine, self.because) = (None, None);
        self.limit = match (limit, self.model) {
            (Some(limit), Some(model)) if !self.reaches(model) => {
                self.machine = self.too_slow(limit, model, turn);
                // Where round trips are the limit, and nothing else is known to have cost more.
                let is_only = |turn: &&CommandTurn| {
                    limit == Limit::Window
                        && !self.has_busy_machine()
                        && self.overrun + self.packets_lost() == 0
                        && self.lost_to_others() <= self.lost_at_ends(model, turn)
                };
                let ends = turn.filter(is_only).and_then(|turn| self.ends(model, turn));
                if ends.is_some() {
                    (self.machine, self.because) = (None, ends);
                    "ends"
                } else if self.machine.is_some() {
                    "machine"
                } else if let Some((of_losses, because)) = self.losses(model) {
                    self.because = Some(because);
                    of_losses
                } else if let Some(because) = turn
                    .filter(|_| beside.is_none() && self.packets_lost() == 0)
                    .and_then(|turn| self.together(model, turn))
                {
                    self.because = Some(because);
                    TOGETHER
                } else {
                    self.machine = self.stolen(limit, model, turn).or_else(|| self.nearly_busy(model));
                    if self.machine.is_some() { "machine" } else { beside.unwrap_or(UNEXPLAINED) }
                }
            }
            (Some(limit), _) => limit.word(),
            (None, _) => "none",
        }
        .to_owned();
    }

    /// Packets that TCP has made up for while it was measured, or whose loss still has its windows small.
    const fn packets_lost(&self) -> u64 {
        self.lost + self.dropped + self.lost_before
    }

    /// Packets for which this machine had no time.
    fn lost_here(&self) -> Option<String> {
        (self.overrun > 0).then(|| format!("{} packets were lost here and not on the link", self.overrun))
    }

    fn figure(&self, name: &str) -> Option<f64> {
        self.further.iter().find(|one| one.name == name).map(|one| one.measured)
    }

    /// What the losses of this run left, where that is what came, and its name: by what the kernels' congestion windows let
    /// through meanwhile, or by what they did while connections waited for each other's commands.
    fn losses(&self, model: f64) -> Option<(&'static str, String)> {
        let packets = self.packets_lost();
        let off = |carried: f64| (self.measured / carried - 1.0).abs();
        let is_it = |carried: &f64| *carried < model * REACHED && self.is_near(*carried, model);
        if packets + self.overrun == 0 || self.unit != "MB/s" {
            return None;
        }
        let (windows, order) = (self.figure(WINDOWS_CARRY), self.figure(ORDER_CARRIES));
        let of_windows = windows.filter(is_it);
        let held_up = self.figure(HELD_UP).unwrap_or_default();
        // Who is held up loses no more than the time.
        let missing = 1.0 - self.measured / windows.unwrap_or(model).min(model);
        let is_long_enough = held_up > 0.0 && missing <= held_up / 100.0 + SAMPLED;
        let of_order = order.filter(|carried| is_long_enough && is_it(carried));
        let of_order = of_order.filter(|order| of_windows.is_none_or(|windows| off(*order) < off(windows)));
        let before = match self.lost_before {
            0 => String::new(),
            before => format!(", {before} of both before it was measured"),
        };
        let on_the_line = (packets > 0).then(|| {
            let (lost, dropped) = (self.lost, self.dropped);
            format!(
                "{lost} packets were lost on the line and {dropped} for want of room in its queues{before}"
            )
        });
        let lost: Vec<String> = self.lost_here().into_iter().chain(on_the_line).collect();
        let lost = format!(
            "{}, and what TCP's congestion windows let through meanwhile is {} MB/s",
            lost.join(", "),
            figure_text(windows?)
        );
        let stood_still = self.figure(STOOD_STILL).filter(|percent| *percent > 0.0).map(|percent| {
            format!("; for {percent:.0} % of the time a connection stood still, for nothing of what it had under way came")
        });
        let lost = lost + &stood_still.unwrap_or_default();
        if let Some(order) = of_order {
            let because = format!(
                "{lost}; of that it is {} MB/s where commands are taken in their order: for {held_up:.0} % of the time a connection repaired losses, stood still or had more to \
                 send than its window let go, and another one had nothing to send",
                figure_text(order)
            );
            return Some((COMMAND_ORDER, because));
        }
        of_windows.map(|_| (Limit::Loss.word(), lost))
    }

    /// What initiator and target take for a command without data, beyond what its bytes take by plain TCP, is in each round trip of
    /// a command: what that leaves of what the model expects, where that is what came.
    fn ends(&self, model: f64, turn: &CommandTurn) -> Option<String> {
        let slowed = self.slowed(model, turn, turn.ends.as_secs_f64());
        (!turn.ends.is_zero() && self.is_left(slowed, model)).then(|| {
            format!(
                "at rest TEST UNIT READY took {} us more there and back than its 48 bytes by plain TCP, which are what both ends take; that makes {} of what the model \
                 expects",
                us(turn.ends),
                figure_text(slowed)
            )
        })
    }

    /// Of writes that wait to be asked for their data the next commands wait on the line behind the data of all that were asked for
    /// at once. So they arrive and are asked for at once again, and in each turn the line is empty for a round trip: what that
    /// leaves of what the model expects, where that is what came.
    fn together(&self, model: f64, turn: &CommandTurn) -> Option<String> {
        let round_trip = turn.round_trip + turn.at_ends;
        let full = turn.line * turn.commands;
        // A line that is empty sooner lets the next commands go before.
        if !turn.is_asked || turn.commands < 2 || full <= round_trip || turn.round_trip >= PACED {
            return None;
        }
        let (all_s, model_s) = ((full + round_trip).as_secs_f64(), turn.time.as_secs_f64());
        let slower = (all_s / model_s).max(1.0);
        let left = if self.unit == "ms" { model * slower } else { model / slower };
        self.is_left(left, model).then(|| {
            format!(
                "commands wait on the line behind the data of all that were asked for together, and go round together: where the line has nothing to carry for a \
                 round trip of {} us in each turn, that makes {} of what the model expects",
                us(round_trip),
                figure_text(left)
            )
        })
    }

    /// The model knows networks alone. Of commands that are alone, the target has written down how long they were there, in its queue and
    /// its store: what is to be expected with that, where that is what came.
    pub(crate) fn at_the_target(&self, model: f64) -> Option<String> {
        let parts = self.parts.filter(|_| self.unit == "ms")?;
        let there = parts.target_queue + parts.store;
        let with_target = model + there;
        self.is_left(with_target, model).then(|| {
            format!(
                "an operation was at the target for {} us, as that has written down, {} of them in its store, which makes {} of what the model of the network expects",
                figure_text(there * 1e3),
                figure_text(parts.store * 1e3),
                figure_text(with_target)
            )
        })
    }

    /// What is left of what the model expects where each round trip of a command takes so much more, in seconds.
    fn slowed(&self, model: f64, turn: &CommandTurn, more_s: f64) -> f64 {
        let (turn_s, more_s) = (turn.time.as_secs_f64(), more_s * turn.round_trips);
        if self.unit == "ms" { model + more_s * 1e3 } else { model * turn_s / (turn_s + more_s) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Further;
    use super::super::times::LatencyParts;
    use super::*;

    #[test]
    fn more_than_the_model_is_seen_of_rates_and_of_times() {
        let exceeds = |measured, unit| {
            let cell = CellResult { model: Some(100.0), ..CellResult::of(Vec::new(), measured, unit) };
            cell.exceeds_model()
        };
        assert_eq!([89.0, 109.0, 111.0].map(|measured| exceeds(measured, "MB/s")), [false, false, true]);
        assert_eq!([90.0, 92.0, 120.0].map(|measured| exceeds(measured, "ms")), [true, false, false]);
        assert!(!CellResult::of(Vec::new(), 5.0, "MB/s").exceeds_model(), "there is no model");
    }

    fn cell(measured: f64, unit: &str) -> CellResult {
        CellResult { model: Some(100.0), idle: 0.5, ..CellResult::of(vec![measured], measured, unit) }
    }

    #[test]
    fn what_the_host_gave_to_others_is_missing() {
        // Half a processor had, and a fifth of what was wanted not: an eighth of the time.
        let judged = |change: &dyn Fn(&mut CellResult), measured, limit, ends_us| {
            let turn = CommandTurn {
                time: Duration::from_micros(1000),
                round_trips: 1.0,
                round_trip: Duration::ZERO,
                at_ends: Duration::from_micros(150),
                commands: 0,
                line: Duration::ZERO,
                is_packed: false,
                is_asked: false,
                ends: Duration::from_micros(ends_us),
            };
            let mut cell = CellResult { stolen: 0.2, together: 0.5, ..cell(measured, "MB/s") };
            change(&mut cell);
            cell.judge(Some(limit), Some(&turn), None);
            (cell.limit, cell.machine.unwrap_or_default())
        };
        let as_it_is = &|_: &mut CellResult| ();
        let (limit, told) = judged(as_it_is, 85.0, Limit::Link, 0);
        assert!(
            limit == "machine"
                && told.contains("20.0 % of the processor time")
                && told.contains("leaves 87.5"),
            "{told}"
        );
        let as_a_time = &|cell: &mut CellResult| (cell.unit, cell.measured) = ("ms".to_owned(), 115.0);
        assert_eq!(judged(as_a_time, 0.0, Limit::Link, 0).0, "machine");
        // 100 us more of 1000 leave 91, and seven eighths of that are 80: for the host, not for the ends alone.
        let (limit, told) = judged(as_it_is, 78.0, Limit::Window, 100);
        assert!(limit == "machine" && told.contains("100 us more for each round trip"), "{told}");
        assert_eq!(judged(as_it_is, 78.0, Limit::Link, 100).0, UNEXPLAINED, "a full line waits for nobody");
        assert_eq!(judged(as_it_is, 82.0, Limit::Link, 0).0, UNEXPLAINED);
        // However many processors there are and whatever was taken from others on them.
        let all_gone = &|cell: &mut CellResult| (cell.stolen, cell.together) = (0.49, 8.0);
        assert_eq!(judged(all_gone, 48.0, Limit::Link, 0).0, "machine");
        assert_eq!(judged(all_gone, 47.0, Limit::Link, 0).0, UNEXPLAINED);
        let (limit, told) = judged(&|cell| cell.stolen = 0.51, 5.0, Limit::Window, 0);
        assert!(limit == "machine" && told.contains("had given 51 %"), "it is hardly there: {told}");
        let idle = &|cell: &mut CellResult| (cell.stolen, cell.together, cell.idle) = (0.6, 0.02, 0.97);
        assert_eq!(judged(idle, 5.0, Limit::Window, 0).0, UNEXPLAINED, "most of little");
        let little = &|cell: &mut CellResult| cell.stolen = 0.015;
        assert_eq!(judged(little, 94.9, Limit::Link, 0).0, UNEXPLAINED);
    }

    #[test]
    fn what_is_reached_is_the_models_limit_however_busy_the_machine_is() {
        let mut busy = CellResult { idle: 0.0, busiest: 1.0, overrun: 9, ..cell(95.1, "MB/s") };
        busy.judge(Some(Limit::Window), None, None);
        assert_eq!(
            (&*busy.limit, &busy.machine, busy.reaches_model()),
            ("command-window", &None, Some(true))
        );
        let mut slow = cell(105.2, "ms");
        slow.judge(Some(Limit::Window), None, None);
        assert_eq!((&*slow.limit, slow.reaches_model()), ("command-window", Some(true)));
        let mut none = CellResult { model: None, ..busy };
        none.judge(None, None, None);
        assert_eq!((&*none.limit, none.reaches_model()), ("none", None));
    }

    #[test]
    fn the_machine_is_an_excuse_only_with_a_figure() {
        // This process had more than a processor, and that alone is none: it has many threads.
        let idle = CellResult { processor: 1.5, busiest: 0.85, ..cell(94.0, "MB/s") };
        let judged = |change: &dyn Fn(&mut CellResult), beside| {
            let mut cell = idle.clone();
            change(&mut cell);
            cell.judge(Some(Limit::Link), None, beside);
            (cell.limit, cell.machine)
        };
        assert_eq!(judged(&|_| {}, None), ("unexplained".to_owned(), None));
        assert_eq!(judged(&|_| {}, Some("store")), ("store".to_owned(), None));
        for (change, told) in [
            (
                &(|cell: &mut CellResult| cell.idle = 0.07) as &dyn Fn(&mut CellResult),
                "idle for 7 % of the time",
            ),
            (&|cell| cell.busiest = 0.97, "one thread had 97 % of a processor"),
            (&|cell| cell.loaded = 0.95, "one thread ran or waited for a processor for 95 % of the time"),
            (&|cell| cell.overrun = 3, "3 packets were lost here"),
            (&|cell| cell.outpaced = 0.61, "61 % of the packets of one direction took this machine longer"),
        ] {
            let (limit, machine) = judged(change, Some("store"));
            assert!(
                limit == "machine" && machine.as_ref().is_some_and(|why| why.contains(told)),
                "{machine:?}"
            );
        }
    }

    #[test]
    fn work_that_would_be_more_than_there_is_is_an_excuse_before_all_is_used_up() {
        // Of two processors; ours are half of what is at work where nothing else is said.
        let judged = |measured, idle, busiest, change: &dyn Fn(&mut CellResult)| {
            let (processors, together) = (2.0 * (1.0 - idle), 1.0 - idle);
            let mut cell = CellResult { idle, busiest, processors, together, ..cell(measured, "MB/s") };
            change(&mut cell);
            cell.judge(Some(Limit::Link), None, None);
            (cell.limit, cell.machine.unwrap_or_default())
        };
        let as_it_is = &|_: &mut CellResult| ();
        let (limit, machine) = judged(60.0, 0.5, 0.84, as_it_is);
        assert!(
            limit == "machine"
                && machine.contains("84 % of the time, and would have been for all of it at 71.4"),
            "{machine}"
        );
        // 15 % are others', and ours are 65 of 85.
        let ours = &|cell: &mut CellResult| cell.together = 1.3;
        let (limit, machine) = judged(60.0, 0.2, 0.5, ours);
        assert!(
            limit == "machine" && machine.contains("80 % of the time") && machine.contains("at 78.5 of"),
            "{machine}"
        );
        // There is room for what is missing; it is the others' work; the host took what was missing; it is not that much.
        assert_eq!(judged(86.0, 0.5, 0.84, as_it_is).0, UNEXPLAINED);
        assert_eq!(judged(86.0, 0.2, 0.5, ours).0, UNEXPLAINED);
        assert_eq!(
            judged(60.0, 0.2, 0.5, as_it_is).0,
            UNEXPLAINED,
            "a third of what others leave is not used"
        );
        assert_eq!(judged(60.0, 0.2, 0.5, &|cell| cell.together = 0.4).0, UNEXPLAINED);
        assert_eq!(judged(60.0, 0.2, 0.5, &|cell| (cell.stolen, cell.together) = (0.1, 0.8)).0, UNEXPLAINED);
        assert_eq!(judged(60.0, 0.26, 0.74, &|cell| cell.together = 1.48).0, UNEXPLAINED);
        // Of a time that is longer than expected, the same.
        let as_a_time = &|cell: &mut CellResult| (cell.unit, cell.measured) = ("ms".to_owned(), 160.0);
        assert_eq!(judged(0.0, 0.5, 0.84, as_a_time).0, "machine");
        // What losses left is told first.
        let further = vec![Further::new(WINDOWS_CARRY, 62.0, "MB/s")];
        let mut lost = CellResult { idle: 0.2, busiest: 0.84, lost: 3, further, ..cell(60.0, "MB/s") };
        lost.judge(Some(Limit::Link), Some(&turn(Duration::from_millis(9), 1.0, 0)), None);
        assert_eq!(lost.limit, "loss");
    }

    /// A turn of so many commands over a link of 100 us, which takes so long by the model.
    fn turn(time: Duration, round_trips: f64, commands: u32) -> CommandTurn {
        CommandTurn {
            time,
            round_trips,
            round_trip: Duration::from_micros(100),
            at_ends: Duration::from_micros(50),
            commands,
            line: Duration::from_micros(4),
            is_packed: false,
            is_asked: false,
            ends: Duration::ZERO,
        }
    }

    #[test]
    fn what_both_ends_take_is_told_as_theirs() {
        // 2 ms and two round trips: 100 us more for each make 100 of 110.
        let judged = |measured, ends_us, change: &dyn Fn(&mut CellResult)| {
            let ends = Duration::from_micros(ends_us);
            let turn = CommandTurn { ends, ..turn(Duration::from_millis(2), 2.0, 1) };
            let mut cell = cell(measured, "MB/s");
            change(&mut cell);
            cell.judge(Some(Limit::Window), Some(&turn), None);
            (cell.limit, cell.machine, cell.because.unwrap_or_default())
        };
        let (limit, machine, because) = judged(90.0, 100, &|_| ());
        assert_eq!((&*limit, machine), ("ends", None));
        assert!(
            because.contains("100 us more there and back") && because.contains("makes 90.9"),
            "{because}"
        );
        // It is not enough; there is none; and processors had nothing to spare.
        assert_eq!(judged(80.0, 100, &|_| ()).0, "unexplained");
        assert_eq!(judged(90.0, 0, &|_| ()).0, "unexplained");
        assert_eq!(judged(90.0, 100, &|cell| cell.idle = 0.1).0, "machine");
        // What was lost is told, and a full line has no room for that excuse.
        assert_eq!(judged(90.0, 100, &|cell| cell.overrun = 1).0, "machine");
        assert_eq!(judged(90.0, 100, &|cell| cell.lost = 1).0, "unexplained");
        assert_eq!(
            judged(90.0, 100, &|cell| cell.lost_before = 1).0,
            "unexplained",
            "its window is small still"
        );
        // Packets that were late as well are not needed for it.
        assert_eq!(judged(90.0, 100, &|cell| cell.late_us = 100).0, "ends");
        // Nor is it the ends where the host had taken more; where it had taken less it is.
        assert_eq!(judged(90.0, 100, &|cell| (cell.stolen, cell.together) = (0.2, 0.5)).0, "machine");
        assert_eq!(judged(90.0, 100, &|cell| (cell.stolen, cell.together) = (0.1, 0.2)).0, "ends");
    }

    #[test]
    fn late_packets_excuse_no_more_and_no_less_than_they_cost() {
        // 2 ms and two round trips: 150 us late, of which 50 are in them at rest, make 100 of 110.
        let of = |ms| turn(Duration::from_millis(ms), 2.0, 1);
        let judged = |measured, late_us, turn: Option<CommandTurn>| {
            let mut cell = CellResult { late_us, ..cell(measured, "MB/s") };
            cell.judge(Some(Limit::Window), turn.as_ref(), None);
            (cell.limit, cell.machine.unwrap_or_default())
        };
        let (limit, machine) = judged(90.0, 150, Some(of(2)));
        assert!(
            limit == "machine"
                && machine.contains("150 us late there and back, 100 us more")
                && machine.contains("which makes 90.9"),
            "{machine}"
        );
        assert_eq!(judged(80.0, 150, Some(of(2))).0, "unexplained");
        // 80 would be left.
        assert_eq!(judged(94.0, 300, Some(of(2))).0, "unexplained", "that is three times what is missing");
        assert_eq!(judged(94.0, 50, Some(of(2))).0, "unexplained", "the model has it already");
        // It makes no difference where a command takes long, and none is known where nobody knows how long.
        assert_eq!(judged(90.0, 150, Some(of(50))).0, "unexplained");
        assert_eq!(judged(90.0, 9000, None).0, "unexplained");
        let mut slow = CellResult { late_us: 9000, ..cell(109.0, "ms") };
        slow.judge(Some(Limit::Window), Some(&turn(Duration::from_millis(100), 1.0, 1)), None);
        assert_eq!(slow.limit, "machine");
    }

    #[test]
    fn who_accounts_for_far_more_than_is_missing_or_a_sliver_of_it_explains_nothing() {
        let near = |measured, predicted, unit| cell(measured, unit).is_near(predicted, 100.0);
        let told = [92.0, 89.0, 74.0, 72.0].map(|predicted| near(81.0, predicted, "MB/s"));
        assert_eq!(told, [false, true, true, false]);
        let told = [98.0, 96.0, 92.0, 90.0].map(|predicted| near(94.0, predicted, "MB/s"));
        assert_eq!(told, [false, true, true, false]);
        assert_eq!([110.0, 120.0, 160.0].map(|predicted| near(120.0, predicted, "ms")), [true, true, false]);
    }

    /// Judged with so much of two processors at work for it, two thirds of that in one thread, and half of one for others.
    fn worked(measured: f64, together: f64, limit: Limit, turn: &CommandTurn) -> (String, String) {
        let processors = together + 0.5;
        let idle = 1.0 - processors / 2.0;
        let busiest = together / 1.5;
        let mut cell = CellResult { together, processors, idle, busiest, ..cell(measured, "MB/s") };
        cell.judge(Some(limit), Some(turn), None);
        (cell.limit, cell.machine.unwrap_or_default())
    }

    #[test]
    fn processors_excuse_no_more_and_no_less_than_they_worked() {
        // 200 us by the model, and 250 came: of 150 us of work 50 are the round trip's at rest, and 4 go on beside the line.
        let one = turn(Duration::from_micros(200), 1.0, 1);
        let (limit, machine) = worked(80.0, 0.6, Limit::Window, &one);
        assert_eq!(limit, "machine");
        assert_eq!(
            machine,
            "both ends and the network worked 150 us for each command, which makes 80.0 of what the model expects"
        );
        // 400 came, and the processors had work for a tenth of that.
        assert_eq!(worked(50.0, 0.1, Limit::Window, &one).0, "unexplained");
        assert_eq!(worked(80.0, 0.0, Limit::Window, &one).0, "unexplained", "nobody knows");
        // 222 came, and 222 us of work make 322.
        assert_eq!(worked(90.0, 1.0, Limit::Window, &one).0, "unexplained", "it was not all in the way");
        // 100 of 156 us go on while the line carries data.
        let long =
            CommandTurn { line: Duration::from_micros(100), ..turn(Duration::from_micros(250), 1.0, 1) };
        assert_eq!(worked(80.0, 0.5, Limit::Window, &long).0, "unexplained");
        // A full line with many commands under way has work for processors to be done meanwhile.
        let many = turn(Duration::from_millis(100), 1.0, 32);
        assert_eq!(worked(85.0, 1.0, Limit::Link, &many).0, "unexplained");
    }

    #[test]
    fn commands_of_one_packet_go_round_together() {
        // 32 commands in 160 us, and 260 came: with 4.9 us of one thread for each it would be 306.
        let apart = turn(Duration::from_micros(160), 1.0, 32);
        let packed = CommandTurn { is_packed: true, ..apart };
        assert_eq!(worked(61.5, 0.9, Limit::Window, &apart).0, "unexplained");
        let (limit, machine) = worked(61.5, 0.9, Limit::Window, &packed);
        assert!(
            limit == "machine"
                && machine.starts_with("one thread worked 4.88 us for each command")
                && machine.contains("32 of them one after the other there")
                && machine.contains("make 52.3"),
            "{machine}"
        );
        assert_eq!(worked(30.0, 0.9, Limit::Window, &packed).0, "unexplained");
        assert_eq!(
            worked(80.0, 0.9, Limit::Window, &packed).0,
            "unexplained",
            "they did not wait for each other"
        );
        let asked = CommandTurn { is_asked: true, ..packed };
        assert_eq!(worked(61.5, 0.9, Limit::Window, &asked).0, "machine");
        assert_eq!(worked(61.5, 0.9, Limit::Link, &asked).0, "unexplained", "a full line");
        let far = CommandTurn { round_trip: PACED, ..asked };
        assert_eq!(worked(61.5, 0.9, Limit::Window, &far).0, "unexplained", "asked for in turn");
    }

    #[test]
    fn the_time_at_the_target_is_beside_the_model_of_the_network() {
        let told = |measured, unit, store_ms: Option<f64>| {
            let parts =
                store_ms.map(|store| LatencyParts { store, target_queue: 1.0, ..LatencyParts::default() });
            CellResult { parts, ..cell(measured, unit) }.at_the_target(100.0)
        };
        let because = told(110.0, "ms", Some(7.0)).unwrap_or_default();
        assert!(
            because.contains("at the target for 8000 us") && because.contains("7000 of them in its store"),
            "{because}"
        );
        assert!(because.contains("makes 108"), "{because}");
        assert_eq!(told(110.0, "ms", Some(3.0)), None, "that is less than half of what is missing");
        assert_eq!(told(110.0, "ms", Some(40.0)), None, "it explains too much");
        assert_eq!(told(110.0, "ms", None), None);
        assert_eq!(told(90.0, "MB/s", Some(7.0)), None, "times are of times");
    }

    #[test]
    fn writes_that_go_round_together_leave_the_line_empty_for_a_round_trip() {
        // 40 commands in 2 ms on a full line, and 150 us in each turn without one: 93.0 are left.
        let line = Duration::from_micros(50);
        let asked = CommandTurn { is_asked: true, line, ..turn(Duration::from_millis(2), 2.0, 40) };
        let judged = |measured, turn: &CommandTurn, change: &dyn Fn(&mut CellResult), beside| {
            let mut cell = cell(measured, "MB/s");
            change(&mut cell);
            cell.judge(Some(Limit::Link), Some(turn), beside);
            (cell.limit, cell.because.unwrap_or_default())
        };
        let as_it_is = &|_: &mut CellResult| ();
        let (limit, because) = judged(89.0, &asked, as_it_is, None);
        assert!(limit == "together" && because.contains("150 us in each turn, that makes 93.0"), "{because}");
        assert_eq!(judged(88.0, &asked, as_it_is, None).0, "unexplained", "it is less than that");
        // The model knows already that the line is empty in between.
        let met = CommandTurn { time: Duration::from_micros(2150), ..asked };
        assert_eq!(judged(94.0, &met, as_it_is, None).0, "unexplained");
        assert_eq!(judged(89.0, &asked, as_it_is, Some("store")).0, "store");
        assert_eq!(judged(89.0, &asked, &|cell| cell.dropped = 1, None).0, "unexplained");
        assert_eq!(judged(89.0, &asked, &|cell| cell.lost_before = 1, None).0, "unexplained");
        let as_a_time = &|cell: &mut CellResult| (cell.unit, cell.measured) = ("ms".to_owned(), 113.0);
        assert_eq!(judged(0.0, &asked, as_a_time, None).0, "together");
        for other in [
            CommandTurn { commands: 1, ..asked },
            CommandTurn { is_asked: false, ..asked },
            CommandTurn { line: Duration::from_micros(3), ..asked },
            CommandTurn { round_trip: PACED, time: Duration::from_millis(100), ..asked },
        ] {
            assert_eq!(judged(93.0, &other, as_it_is, None).0, "unexplained", "{other:?}");
        }
    }

    #[test]
    fn losses_are_a_limit_by_what_windows_let_through() {
        let judged =
            |measured, carried, dropped| after_losses(measured, dropped, &[(WINDOWS_CARRY, carried)]);
        let (limit, because) = judged(80.0, 84.0, 3);
        assert!(limit == "loss" && because.contains("3 for want of room"), "{because}");
        // Nothing was lost; windows let all of it through; far less came, or more, than they let through, or than is missing.
        for (measured, carried, dropped) in
            [(80.0, 84.0, 0), (80.0, 99.0, 3), (40.0, 84.0, 3), (80.0, 40.0, 3), (94.0, 80.0, 3)]
        {
            assert_eq!(judged(measured, carried, dropped).0, "unexplained", "{measured} {carried}");
        }
        // Those that this machine lost excuse what they cost, too, and no more.
        let lost_here = |carried| {
            let further = vec![Further::new(WINDOWS_CARRY, carried, "MB/s")];
            let mut cell = CellResult { overrun: 2, further, ..cell(80.0, "MB/s") };
            cell.judge(Some(Limit::Link), Some(&turn(Duration::from_millis(9), 1.0, 0)), None);
            (cell.limit, cell.machine.unwrap_or_default())
        };
        let (limit, machine) = lost_here(84.0);
        assert!(limit == "machine" && machine.starts_with("2 packets were lost here"), "{machine}");
        assert!(!machine.contains("on the line") && machine.ends_with("is 84.0 MB/s"), "{machine}");
        assert_eq!([99.0, 40.0].map(|carried| lost_here(carried).0), ["unexplained"; 2]);
        let (limit, because) = after_losses(80.0, 3, &[(WINDOWS_CARRY, 84.0), (STOOD_STILL, 12.0)]);
        assert!(
            limit == "loss" && because.contains("12 % of the time a connection stood still"),
            "{because}"
        );
    }

    /// What a cell that has lost so many packets is told to be limited by, and why.
    fn after_losses(measured: f64, dropped: u64, figures: &[(&str, f64)]) -> (String, String) {
        let further = figures.iter().map(|(name, measured)| Further::new(name, *measured, "")).collect();
        let mut cell = CellResult { dropped, further, ..cell(measured, "MB/s") };
        cell.judge(Some(Limit::Link), Some(&turn(Duration::from_millis(9), 1.0, 0)), None);
        (cell.limit, cell.because.unwrap_or_default())
    }

    #[test]
    fn connections_that_wait_for_each_other_are_a_limit_of_their_own() {
        let judged = |measured, windows, order, held_up| {
            after_losses(measured, 3, &[(WINDOWS_CARRY, windows), (ORDER_CARRIES, order), (HELD_UP, held_up)])
        };
        let (limit, because) = judged(60.0, 99.0, 62.0, 28.0);
        assert!(limit == "command-order" && because.contains("it is 62.0 MB/s"), "{because}");
        assert!(because.contains("for 28 % of the time"), "{because}");
        // The nearer one is it, and nobody was held up, or that is not what came.
        assert_eq!(judged(60.0, 62.0, 52.0, 28.0).0, "loss");
        assert_eq!(judged(60.0, 70.0, 62.0, 28.0).0, "command-order");
        assert_eq!(judged(60.0, 99.0, 62.0, 0.0).0, "unexplained");
        assert_eq!(judged(60.0, 99.0, 90.0, 28.0).0, "unexplained");
        assert_eq!(judged(60.0, 99.0, 62.0, 15.0).0, "unexplained", "two fifths are missing");
    }

    #[test]
    fn published_figures_are_off_from_a_tenth_on() {
        let off = |measured, published| CellResult { published, ..cell(measured, "MB/s") }.is_off_published();
        assert_eq!((off(91.0, Some(100.0)), off(111.0, Some(100.0))), (Some(false), Some(true)));
        assert_eq!((off(1.0, None), off(1.0, Some(0.0))), (None, None));
    }
}
