//! What comes of a study: one object, which programs read and reports are made of.

use std::collections::BTreeMap;

use lunette_workload::model::Limit;
use serde::{Deserialize, Serialize};

use crate::{Host, Negotiated, Stage, ToldApart};

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
    /// What was measured: the median of the runs.
    pub measured: f64,
    /// What the model expects.
    pub model: Option<f64>,
    /// What was published.
    pub published: Option<f64>,
    /// Of all three.
    pub unit: String,
    /// What sets the limit: `link-rate`, `command-window`, `tcp-window`, `loss`; `machine` where less came and
    /// this machine was too slow; `store` where less came from a disk, `target` where that disk had nothing to do; `unexplained` where less
    /// came for no such reason; `not-recovered` where a run was not over in time, and stands as that time. Where there is no model: `store`,
    /// `machine`, `file-system`, `protocol`, `cache`, `round-trips`, `initiator`, `target`, `shared-link`, `loss-recovery`.
    pub limit: String,
    /// Each run.
    pub runs: Vec<f64>,
    /// (largest - smallest) / median.
    pub spread: f64,
    /// The share of one processor that this process had: the initiator and the emulated network.
    pub processor: f64,
    /// The share of all processors that nobody used.
    pub idle: f64,
    /// What else is told of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<Further>,
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

/// A process with one thread that does most of the work has no more to give than this share of a processor.
const BUSY: f64 = 0.8;
/// Nor has a machine whose processors are idle for less than this share.
const IDLE_MIN: f64 = 0.15;
/// What may be missing to the model before it is asked why.
const TOLERANCE: f64 = 0.9;
/// How much more than the model there may be before it is asked why.
const ABOVE: f64 = 0.1;

impl CellResult {
    /// A figure, and nothing else yet.
    pub(crate) fn of(runs: Vec<f64>, measured: f64, unit: &str) -> Self {
        Self {
            parameters: Vec::new(),
            link: None,
            measured,
            model: None,
            published: None,
            unit: unit.to_owned(),
            limit: String::new(),
            runs,
            spread: 0.0,
            processor: 0.0,
            idle: 1.0,
            further: Vec::new(),
            negotiated: None,
            cached: None,
            parts: None,
            why: None,
            above: None,
        }
    }

    /// Whether it is better than the model by more than 10 %: then the model is wrong there.
    pub(crate) fn exceeds_model(&self) -> bool {
        self.model.is_some_and(|model| {
            let (more, less) =
                if self.unit == "ms" { (model, self.measured) } else { (self.measured, model) };
            more > less * (1.0 + ABOVE)
        })
    }

    /// This process had all that one processor gives, or nobody had anything to spare.
    pub(crate) fn has_busy_machine(&self) -> bool {
        self.processor >= BUSY || self.idle < IDLE_MIN
    }

    /// Names the limit: the model's, unless less came than it expects: then this machine was busy or late with packets, or what
    /// stands beside the network was the limit, or the cell is a defect of the model or of what it measures.
    pub(crate) fn judge(&mut self, limit: Option<Limit>, is_late: bool, beside: Option<&str>) {
        let is_slow = self.model.is_some_and(|model| {
            if self.unit == "ms" {
                self.measured * TOLERANCE > model
            } else {
                self.measured < model * TOLERANCE
            }
        });
        self.limit = match limit {
            None => "none".to_owned(),
            Some(_) if is_slow && (is_late || self.has_busy_machine()) => "machine".to_owned(),
            Some(_) if is_slow => beside.unwrap_or("unexplained").to_owned(),
            Some(limit) => limit.word().to_owned(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn more_than_the_model_is_seen_of_rates_and_of_times() {
        let exceeds = |measured, unit| {
            let cell = CellResult { model: Some(100.0), ..CellResult::of(Vec::new(), measured, unit) };
            cell.exceeds_model()
        };
        assert_eq!([89.0, 109.0, 111.0].map(|measured| exceeds(measured, "MB/s")), [false, false, true]);
        assert_eq!([90.0, 92.0, 120.0].map(|measured| exceeds(measured, "ms")), [true, false, false]);
        assert!(!CellResult::of(Vec::new(), 5.0, "MB/s").exceeds_model(), "there is no model");
    }

    #[test]
    fn a_busy_machine_is_named() {
        let mut cell = CellResult {
            model: Some(100.0),
            processor: 1.5,
            idle: 0.5,
            ..CellResult::of(vec![50.0], 50.0, "MB/s")
        };
        cell.judge(Some(Limit::Link), false, None);
        assert_eq!(cell.limit, "machine");
        cell.processor = 0.3;
        cell.judge(Some(Limit::Link), false, None);
        assert_eq!(cell.limit, "unexplained");
        cell.judge(Some(Limit::Link), false, Some("store"));
        assert_eq!(cell.limit, "store");
        cell.idle = 0.1;
        cell.judge(Some(Limit::Link), false, None);
        assert_eq!(cell.limit, "machine");
        cell.idle = 0.5;
        cell.judge(Some(Limit::Link), true, None);
        assert_eq!(cell.limit, "machine");
        (cell.processor, cell.measured) = (1.5, 99.0);
        cell.judge(Some(Limit::Window), true, None);
        assert_eq!(cell.limit, "command-window");
        cell.judge(None, true, None);
        assert_eq!(cell.limit, "none");
    }
}
