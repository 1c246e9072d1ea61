//! What comes of a study: one object, which programs read and reports are made of.

use lunette_workload::model::{Limit, in_turns};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::probe::{CommandTurn, WINDOWS_CARRY};
use super::versions::Identity;
use crate::report::figure_text;
use crate::{Host, Latency, Negotiated, Stage, ToldApart};

/// Everything about one run of a study.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StudyResult {
    /// The form of this object; it changes when a field changes its meaning.
    pub form: u32,
    /// The study's name.
    pub study: String,
    /// Whose it was.
    pub paper: String,
    /// What it asks.
    pub question: String,
    /// What differs from the paper.
    pub differs: String,
    /// Where figures have curves: the parameter that goes across, and that of which each value is a curve.
    #[serde(default)]
    pub axes: Option<(String, String)>,
    /// Where and when.
    pub host: Host,
    /// The versions of programs beside this one, by their names; nothing where one took no part, or does not say.
    #[serde(default)]
    pub versions: BTreeMap<String, Option<String>>,
    /// What targets say of themselves by INQUIRY, by their names; only those over a link.
    #[serde(default)]
    pub targets: BTreeMap<String, Identity>,
    /// The links by the names that cells have for them.
    pub link: BTreeMap<String, LinkFacts>,
    /// Where chance began.
    pub seed: u64,
    /// One short run a cell.
    pub is_quick: bool,
    /// It was ended early: cells are missing.
    pub is_partial: bool,
    /// What sessions agreed on; cells say which.
    pub negotiated: Vec<Negotiated>,
    /// The figures, in the order of the published table.
    pub cells: Vec<CellResult>,
}

/// A link, and how it was kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LinkFacts {
    /// Its properties.
    pub description: String,
    /// TCP's congestion control at both ends.
    #[serde(default)]
    pub congestion_control: String,
    /// How late the packets were, there and back, by their medians, in microseconds.
    pub late_us: u64,
    /// Packets that were lost because this machine was too slow.
    pub overrun: u64,
    /// No network, but a proxy that has delay and rate: TCP sees neither, nothing is lost, and how late it was is not known.
    #[serde(default)]
    pub proxy: bool,
    /// It was not what it should be, for one of these two reasons.
    pub is_doubtful: bool,
}

/// One figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CellResult {
    /// What is varied here.
    pub parameters: Vec<(String, String)>,
    /// The name of its link; none without a network.
    pub link: Option<String>,
    /// What was measured: the median of the runs, and of logins their mean.
    pub measured: f64,
    /// What the model expects.
    pub model: Option<f64>,
    /// Why there is no model, where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_absent: Option<String>,
    /// What was published.
    pub published: Option<f64>,
    /// Of all three.
    pub unit: String,
    /// What sets the limit: `link-rate`, `command-window`, `tcp-window`, `loss`, also where packets were lost beside what the model knows; `machine` where
    /// less came and this machine was too slow; `store` where less came from a disk, `target` where that disk had nothing to do; `unexplained` where less
    /// came for no such reason; `not-recovered` where a run was not over in time, and stands as that time. Where there is no model: `store`,
    /// `machine`, `file-system`, `protocol`, `cache`, `round-trips`, `initiator`, `target`, `shared-link`, `loss-recovery`.
    pub limit: String,
    /// Each run.
    pub runs: Vec<f64>,
    /// (largest - smallest) / median; none of a single run, which tells nothing of that.
    pub spread: Option<f64>,
    /// The share of one processor that this process had: the initiator and the emulated network.
    pub processor: f64,
    /// The share of all processors that nobody used.
    pub idle: f64,
    /// The largest share of a processor that one thread had: of this process or of the target. 0 where the system does not tell.
    #[serde(default)]
    pub busiest: f64,
    /// The largest share of the time in which one of these threads ran or waited for a processor that others had. 0 where the system does not tell.
    #[serde(default)]
    pub loaded: f64,
    /// How many processors all of these threads together had on average. 0 where the system does not tell.
    #[serde(default)]
    pub together: f64,
    /// How many processors were at work on average, for whomever. 0 where the system does not tell.
    #[serde(default)]
    pub processors: f64,
    /// How late packets were, there and back, by their medians, in microseconds.
    #[serde(default)]
    pub late_us: u64,
    /// Packets that were lost because this machine was too slow.
    #[serde(default)]
    pub overrun: u64,
    /// Packets that were lost on the line, as its description has it.
    #[serde(default)]
    pub lost: u64,
    /// Packets that were lost because the line's queues had no room.
    #[serde(default)]
    pub dropped: u64,
    /// What of this machine was the limit, with figures, where the limit is `machine`.
    #[serde(default)]
    pub machine: Option<String>,
    /// The figures that another limit follows from, where it is not the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// How long single operations took, or logins, where the figure is a time: of the run with the median, or of all logins.
    #[serde(default)]
    pub times: Option<Times>,
    /// What was published of that.
    #[serde(default)]
    pub published_times: Option<Times>,
    /// What else is told of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<Further>,
    /// What TEST UNIT READY took on the idle link in this session, in microseconds: the round trip that the model has. A slow target lowers what is
    /// expected of it by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<f64>,
    /// Which of the agreements.
    pub negotiated: Option<usize>,
    /// The largest share of a cold image that this machine's page cache had when a run began; none without such an image, and where the
    /// kernel cannot tell.
    #[serde(default)]
    pub cached: Option<f64>,
    /// Where the time of an operation went, in the run with the median, of those cells whose figures are times of operations on our target.
    #[serde(default)]
    pub parts: Option<LatencyParts>,
    /// Why the published figure is off by more than 10 %, where the study tells.
    #[serde(default)]
    pub why: Option<String>,
    /// Why it is better than the model by more than 10 %, where it is.
    #[serde(default)]
    pub above: Option<String>,
}

/// A figure beside that of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Further {
    /// What it is.
    pub name: String,
    /// What was measured: the median of the runs.
    pub measured: f64,
    /// What was published.
    #[serde(default)]
    pub published: Option<f64>,
    /// Of both.
    pub unit: String,
}

impl Further {
    pub(crate) fn new(name: &str, measured: f64, unit: &str) -> Self {
        Self { name: name.to_owned(), measured, published: None, unit: unit.to_owned() }
    }

    /// The medians of what runs tell, by name, with what was published of it.
    pub(crate) fn medians(runs: &[&[Self]], published: &[(&'static str, f64)]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for one in runs.iter().copied().flatten() {
            if !all.iter().any(|known| known.name == one.name) {
                let own = runs.iter().copied().flatten().filter(|other| other.name == one.name);
                let measured = median(own.map(|own| own.measured).collect()).unwrap_or(one.measured);
                let published = published.iter().find(|named| named.0 == one.name).map(|named| named.1);
                all.push(Self { measured, published, ..one.clone() });
            }
        }
        all
    }
}

/// A table of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// What it is of.
    pub title: String,
    /// The names of its columns.
    pub columns: Vec<String>,
    /// Its rows, each with as many texts.
    pub rows: Vec<Vec<String>>,
}

/// The standard deviation of just these values: the root of their mean squared distance from their mean.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len().max(1) as f64).sqrt()
}

/// Their mean; 0 without any.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// How long single operations took, or logins, in milliseconds. What is not known is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub of: Option<u64>,
    /// The shortest.
    pub min: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// Nine of ten took no longer.
    pub p90: Option<f64>,
    /// 99 of a hundred.
    pub p99: Option<f64>,
    /// 999 of a thousand.
    pub p999: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// The standard deviation.
    pub standard_deviation: Option<f64>,
}

impl Times {
    pub(crate) fn of(latency: &Latency) -> Self {
        let ms = |us: f64| Some(us / 1e3);
        Self {
            of: Some(latency.operations),
            min: ms(latency.min),
            p50: ms(latency.p50),
            mean: ms(latency.mean),
            p90: ms(latency.p90),
            p99: ms(latency.p99),
            p999: ms(latency.p999),
            max: ms(latency.max),
            standard_deviation: ms(latency.standard_deviation),
        }
    }

    /// Of a few times, of which there are no percentiles.
    pub(crate) fn of_few(times: &[f64]) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        Self {
            of: Some(times.len() as u64),
            min: times.iter().copied().reduce(f64::min),
            p50: median(times.to_vec()),
            mean: Some(mean(times)),
            max: times.iter().copied().reduce(f64::max),
            standard_deviation: Some(deviation(times)),
            ..Self::default()
        }
    }

    /// With their names, in the order of their size as a rule.
    pub(crate) const fn named(&self) -> [(&'static str, Option<f64>); 8] {
        [
            ("min", self.min),
            ("50 %", self.p50),
            ("mean", self.mean),
            ("90 %", self.p90),
            ("99 %", self.p99),
            ("99.9 %", self.p999),
            ("max", self.max),
            ("deviation", self.standard_deviation),
        ]
    }
}

/// The mean parts of a latency in milliseconds, as `lunette bench --target-times` tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyParts {
    /// Until the command left.
    pub command_window: f64,
    /// The way there and back.
    pub network: f64,
    /// Until the data was there that R2Ts had asked for.
    pub r2t_wait: f64,
    /// At the target besides.
    pub target_queue: f64,
    /// In the store.
    pub store: f64,
    /// From the answer's first byte to its last.
    pub reply: f64,
    /// All of them together.
    #[serde(default)]
    pub whole: f64,
    /// How many operations these are the means of: those that both sides have written down.
    #[serde(default)]
    pub operations: u64,
    /// Of how many that were measured.
    #[serde(default)]
    pub of: u64,
}

impl LatencyParts {
    pub(crate) fn of(told: &ToldApart) -> Self {
        let ms = |stage: &Stage| stage.mean / 1e3;
        Self {
            command_window: ms(&told.command_window),
            network: ms(&told.network),
            r2t_wait: ms(&told.r2t_wait),
            target_queue: ms(&told.target_queue),
            store: ms(&told.store),
            reply: ms(&told.reply),
            whole: ms(&told.whole),
            operations: told.operations,
            of: told.of,
        }
    }

    /// With their names, in the order of time.
    pub(crate) const fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("command window", self.command_window),
            ("network", self.network),
            ("R2T wait", self.r2t_wait),
            ("target queue", self.target_queue),
            ("store", self.store),
            ("reply", self.reply),
        ]
    }
}

/// The middle one, or the mean of the two in the middle; nothing without any.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// A thread with this share of a processor has no more to give: the rest goes to others, and to looking.
const BUSY: f64 = 0.9;
/// Nor has a machine whose processors are idle for less than this share.
const IDLE_MIN: f64 = 0.15;
/// The share of what the model expects that a cell is to reach; one that reaches less is asked why. `dalgic-tcp` and `dalgic-sweep` are
/// to reach it in every cell: that is what this project promises of its target, and what `lunette lab check` looks at.
pub const REACHED: f64 = 0.95;
/// The limit of a cell that is behind its model for no reason that was measured.
pub(crate) const UNEXPLAINED: &str = "unexplained";
/// How far what came may be off what a kernel's windows let through, which are looked at fifty times a second.
const SAMPLED: f64 = 0.2;
/// How far a figure may be off another one before the report says why: of two figures of different hosts, and of one above the model.
pub(crate) const OFF: f64 = 0.1;

impl CellResult {
    /// A figure, and nothing else yet.
    pub(crate) fn of(runs: Vec<f64>, measured: f64, unit: &str) -> Self {
        Self {
            parameters: Vec::new(),
            link: None,
            measured,
            model: None,
            model_absent: None,
            published: None,
            unit: unit.to_owned(),
            limit: String::new(),
            runs,
            spread: None,
            processor: 0.0,
            idle: 1.0,
            further: Vec::new(),
            busiest: 0.0,
            loaded: 0.0,
            together: 0.0,
            processors: 0.0,
            late_us: 0,
            overrun: 0,
            lost: 0,
            dropped: 0,
            machine: None,
            because: None,
            times: None,
            published_times: None,
            round_trip_us: None,
            negotiated: None,
            cached: None,
            parts: None,
            why: None,
            above: None,
        }
    }

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
        self.model.is_some_and(|model| {
            let (more, less) =
                if self.unit == "ms" { (model, self.measured) } else { (self.measured, model) };
            more > less * (1.0 + OFF)
        })
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

    /// Names the limit: the model's, unless less came than it expects: then this machine was busy or late with packets, or what
    /// stands beside the network was the limit, or packets were lost, or the cell is a defect of the model or of what it measures. `turn` is how
    /// long a command takes by the model.
    pub(crate) fn judge(&mut self, limit: Option<Limit>, turn: Option<&CommandTurn>, beside: Option<&str>) {
        (self.machine, self.because) = (None, None);
        self.limit = match (limit, self.model) {
            (Some(limit), Some(model)) if !self.reaches(model) => {
                self.machine = self.too_slow(limit, model, turn);
                if self.machine.is_some() {
                    "machine"
                } else {
                    self.because = self.losses(model, turn);
                    let of_losses = self.because.as_ref().map(|_| Limit::Loss.word());
                    of_losses.or(beside).unwrap_or(UNEXPLAINED)
                }
            }
            (Some(limit), _) => limit.word(),
            (None, _) => "none",
        }
        .to_owned();
    }

    /// What the losses of this run left, where that is what came: by what the kernels' congestion windows let through meanwhile.
    fn losses(&self, model: f64, turn: Option<&CommandTurn>) -> Option<String> {
        let packets = self.lost + self.dropped;
        let carried = self.further.iter().find(|one| one.name == WINDOWS_CARRY)?.measured;
        let is_delayed = turn.is_some_and(|turn| !turn.round_trip.is_zero());
        // Without delay it is the least that goes through, for some does while losses are repaired.
        let is_it = self.measured >= carried * (1.0 - SAMPLED)
            && (!is_delayed || self.measured <= carried * (1.0 + SAMPLED));
        (packets > 0 && self.unit == "MB/s" && carried < model * REACHED && is_it).then(|| {
            format!(
                "{} packets were lost on the line and {} for want of room in its queues, and what TCP's congestion windows let through meanwhile is {} MB/s",
                self.lost,
                self.dropped,
                figure_text(carried)
            )
        })
    }

    /// What processors had to do for each command is more than the model knows: what is left of what it expects, where that is what came. Nothing where
    /// that explains nothing.
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
        // What a command without data costs both ends is in the model already; of many together it is less for each.
        let known_s = if turn.commands == 1 { turn.at_ends.as_secs_f64() } else { 0.0 };
        let beyond_s = (each_s - known_s).max(0.0);
        let processors = (self.processors / (1.0 - self.idle)).round().max(1.0);
        let shared_s = beyond_s / processors;
        let least_s = turn.round_trip.as_secs_f64() * turn.round_trips + turn.at_ends.as_secs_f64();
        let (alone_s, line_s) = if limit == Limit::Link && turn.commands > 1 {
            (least_s, turn_s / commands)
        } else {
            (turn_s, 0.0)
        };
        let figure = |slowed_s: f64| if is_time { slowed_s * 1e3 } else { model * turn_s / slowed_s };
        let each =
            format!("both ends and the network worked {} us for each command", figure_text(each_s * 1e6));
        let met_s = commands / in_turns(turn.commands, alone_s + beyond_s - shared_s, &[line_s, shared_s]);
        if met_s > turn_s && self.reaches(figure(met_s)) {
            return Some(format!(
                "{each}, which makes {} of what the model expects",
                figure_text(figure(met_s))
            ));
        }
        // What came in one packet is answered in one.
        let line_s = line_s.max(turn.line.as_secs_f64());
        let together_s = least_s + commands * (line_s + shared_s);
        (turn.is_packed && together_s > turn_s && self.reaches(figure(together_s))).then(|| {
            format!(
                "{each}, and commands that came in one packet go round together: {} of them one after the other on the line and the processors make {} of \
                 what the model expects, at least",
                turn.commands,
                figure_text(figure(together_s))
            )
        })
    }

    /// What of this machine was too slow for what the model expects, if anything was.
    fn too_slow(&self, limit: Limit, model: f64, turn: Option<&CommandTurn>) -> Option<String> {
        let mut reasons = self.busy();
        if self.overrun > 0 {
            reasons.push(format!("{} packets were lost here and not on the link", self.overrun));
        }
        let late = self.late_us as f64 / 1e6;
        reasons.extend(turn.and_then(|turn| self.worked(limit, model, turn)));
        if let Some(turn) = turn.filter(|_| self.late_us > 0) {
            // Each round trip of a command takes so much more.
            let more = late * turn.round_trips;
            let turn_s = turn.time.as_secs_f64();
            let slowed =
                if self.unit == "ms" { model + more * 1e3 } else { model * turn_s / (turn_s + more) };
            if self.reaches(slowed) {
                reasons.push(format!(
                    "packets were {} us late there and back, which makes {} of what the model expects",
                    self.late_us,
                    figure_text(slowed)
                ));
            }
        }
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn further_figures_are_medians_of_the_runs_that_have_them() {
        let one = |measured| vec![Further::new("snd_cwnd", measured, "KB")];
        let runs = [one(3.0), one(9.0), [one(5.0), vec![Further::new("least", 1.0, "ms")]].concat()];
        let runs: Vec<&[Further]> = runs.iter().map(Vec::as_slice).collect();
        let all = Further::medians(&runs, &[("least", 1.7)]);
        let told: Vec<_> = all.iter().map(|one| (&*one.name, one.measured, one.published)).collect();
        assert_eq!(told, [("snd_cwnd", 5.0, None), ("least", 1.0, Some(1.7))]);
    }

    #[test]
    fn a_few_times_have_a_mean_and_no_percentiles() {
        let times = Times::of_few(&[1.0, 2.0, 6.0]);
        assert_eq!((times.of, times.min, times.p50, times.mean), (Some(3), Some(1.0), Some(2.0), Some(3.0)));
        let deviation = times.standard_deviation.expect("a deviation");
        assert!((deviation - (14.0_f64 / 3.0).sqrt()).abs() < 1e-9 && times.p99.is_none(), "{times:?}");
        assert_eq!(Times::of_few(&[]), Times::default());
    }

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
        ] {
            let (limit, machine) = judged(change, Some("store"));
            assert!(
                limit == "machine" && machine.as_ref().is_some_and(|why| why.contains(told)),
                "{machine:?}"
            );
        }
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
        }
    }

    #[test]
    fn late_packets_excuse_no_more_than_they_cost() {
        // 2 ms and two round trips: 100 us late each make 100 of 110.
        let of = |ms| turn(Duration::from_millis(ms), 2.0, 1);
        let judged = |measured, late_us, turn: Option<CommandTurn>| {
            let mut cell = CellResult { late_us, ..cell(measured, "MB/s") };
            cell.judge(Some(Limit::Window), turn.as_ref(), None);
            (cell.limit, cell.machine.unwrap_or_default())
        };
        let (limit, machine) = judged(90.0, 100, Some(of(2)));
        assert!(
            limit == "machine" && machine.contains("100 us late there and back, which makes 90.9"),
            "{machine}"
        );
        assert_eq!(judged(80.0, 100, Some(of(2))).0, "unexplained");
        // It makes no difference where a command takes long, and none is known where nobody knows how long.
        assert_eq!(judged(90.0, 100, Some(of(50))).0, "unexplained");
        assert_eq!(judged(90.0, 9000, None).0, "unexplained");
        let mut slow = CellResult { late_us: 9000, ..cell(109.0, "ms") };
        slow.judge(Some(Limit::Window), Some(&turn(Duration::from_millis(100), 1.0, 1)), None);
        assert_eq!(slow.limit, "machine");
    }

    /// Judged with so much of two processors at work for it, and half of one for others.
    fn worked(measured: f64, together: f64, limit: Limit, turn: &CommandTurn) -> (String, String) {
        let processors = together + 0.5;
        let idle = 1.0 - processors / 2.0;
        let mut cell = CellResult { together, processors, idle, ..cell(measured, "MB/s") };
        cell.judge(Some(limit), Some(turn), None);
        (cell.limit, cell.machine.unwrap_or_default())
    }

    #[test]
    fn processors_excuse_no_more_than_they_worked() {
        // 200 us by the model, and 250 came: of 125 us of work 50 are the round trip's at rest.
        let one = turn(Duration::from_micros(200), 1.0, 1);
        let (limit, machine) = worked(80.0, 0.5, Limit::Window, &one);
        assert_eq!(limit, "machine");
        assert_eq!(
            machine,
            "both ends and the network worked 125 us for each command, which makes 72.7 of what the model expects"
        );
        // 400 came, and the processors had work for a tenth of that.
        assert_eq!(worked(50.0, 0.1, Limit::Window, &one).0, "unexplained");
        assert_eq!(worked(80.0, 0.0, Limit::Window, &one).0, "unexplained", "nobody knows");
        // A full line with many commands under way has work for processors to be done meanwhile.
        let many = turn(Duration::from_millis(100), 1.0, 32);
        assert_eq!(worked(85.0, 1.0, Limit::Link, &many).0, "unexplained");
    }

    #[test]
    fn commands_of_one_packet_go_round_together() {
        // 32 commands in 160 us, and 260 came.
        let apart = turn(Duration::from_micros(160), 1.0, 32);
        let packed = CommandTurn { is_packed: true, ..apart };
        assert_eq!(worked(61.5, 0.6, Limit::Window, &apart).0, "unexplained");
        let (limit, machine) = worked(61.5, 0.6, Limit::Window, &packed);
        assert!(limit == "machine" && machine.contains("32 of them one after the other"), "{machine}");
        assert_eq!(worked(30.0, 0.6, Limit::Window, &packed).0, "unexplained");
    }

    #[test]
    fn losses_are_a_limit_by_what_windows_let_through() {
        let judged = |measured, carried, dropped, round_trip| {
            let mut cell = CellResult {
                dropped,
                further: vec![Further::new(WINDOWS_CARRY, carried, "MB/s")],
                ..cell(measured, "MB/s")
            };
            let turn = CommandTurn { round_trip, ..turn(Duration::from_millis(9), 1.0, 0) };
            cell.judge(Some(Limit::Link), Some(&turn), None);
            (cell.limit, cell.because.unwrap_or_default())
        };
        let (near, far) = (Duration::ZERO, Duration::from_millis(9));
        let (limit, because) = judged(80.0, 84.0, 3, far);
        assert!(limit == "loss" && because.contains("3 for want of room"), "{because}");
        for (measured, carried, dropped, round_trip) in [
            // Nothing was lost; windows let all of it through; far more, or less, came than they let through.
            (80.0, 84.0, 0, far),
            (80.0, 99.0, 3, far),
            (40.0, 84.0, 3, far),
            (80.0, 40.0, 3, far),
            (40.0, 84.0, 3, near),
        ] {
            assert_eq!(
                judged(measured, carried, dropped, round_trip).0,
                "unexplained",
                "{measured} {carried}"
            );
        }
        assert_eq!(judged(80.0, 40.0, 3, near).0, "loss", "something goes through while losses are repaired");
    }

    #[test]
    fn published_figures_are_off_from_a_tenth_on() {
        let off = |measured, published| CellResult { published, ..cell(measured, "MB/s") }.is_off_published();
        assert_eq!((off(91.0, Some(100.0)), off(111.0, Some(100.0))), (Some(false), Some(true)));
        assert_eq!((off(1.0, None), off(1.0, Some(0.0))), (None, None));
    }
}
