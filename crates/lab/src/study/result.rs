//! What comes of a study: one object, which programs read and reports are made of.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::statistics::{mean, median};
use super::times::{LatencyParts, Times};
use super::versions::Identity;
use crate::{Host, Negotiated};

/// The form that results have.
pub const FORM: u32 = 2;

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
    /// How many cells had more runs than the others because of what came of theirs: nobody could explain it, or it was behind the model in
    /// a study that is held to it. None of the others had such a second chance.
    #[serde(default)]
    pub cells_with_more_runs: usize,
    /// It was ended early: cells are missing that have not failed.
    pub is_partial: bool,
    /// The parameters that all cells were to have: the study's others are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<(String, String)>,
    /// How many cells the study has, beside the same targets; 0 where an older result does not say.
    #[serde(default)]
    pub cells_in_study: usize,
    /// What this machine lacks, each with how many cells are left out for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<Lacking>,
    /// What sessions agreed on; cells say which.
    pub negotiated: Vec<Negotiated>,
    /// What makes another study of it: what all cells over a link have in the place of what the study chooses, or no network at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altered: Option<String>,
    /// The figures, in the order of the published table.
    pub cells: Vec<CellResult>,
    /// The cells of which runs have failed, in the same order; those without any other run have no figure.
    #[serde(default)]
    pub failed: Vec<Failed>,
}

/// A cell of which runs have failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failed {
    /// What is varied here.
    pub parameters: Vec<(String, String)>,
    /// The name of its link; none without a network.
    pub link: Option<String>,
    /// How many have failed, or were not tried any more for what had failed before.
    pub runs: usize,
    /// Whether it has others, and with them a figure among the cells.
    pub is_measured: bool,
    /// Why the first of them failed.
    pub reason: String,
}

/// Something that this machine lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacking {
    /// What it is, with what to install.
    pub what: String,
    /// How many cells are left out for it.
    pub cells: usize,
}

/// A link, and how it was kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LinkFacts {
    /// Its properties.
    pub description: String,
    /// TCP's congestion control at both ends.
    #[serde(default)]
    pub congestion_control: String,
    /// How late the packets were taken in and sent on, there and back, by their medians, in microseconds; through a proxy, sent on.
    pub late_us: u64,
    /// Packets that were lost because this machine was too slow.
    pub overrun: u64,
    /// What 48 bytes took there and back by plain TCP while nothing else was on it, in microseconds, where somebody has asked for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo_us: Option<f64>,
    /// No network, but a proxy that has delay and rate: TCP sees neither, nothing is lost, and how late bytes were taken in is not known.
    #[serde(default)]
    pub proxy: bool,
    /// How much of what was written on the disks of each target before they were read was read back, beside the link and the clock, and
    /// was right, in bytes; by the names of targets. A target that is not here was not read, or has its content from elsewhere.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub read_back_bytes: BTreeMap<String, u64>,
    /// It was not what it should be: because packets were late or lost, or because this machine was slower with packets than the link
    /// ([`lunette_wan::Keeping::doubt`]).
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
    /// What sets the limit: `link-rate`, `command-window`, `tcp-window`, `loss`, also where packets were lost beside what the model
    /// knows; `command-order` where connections waited for each other's commands besides; `together` where writes were asked for
    /// their data together; `ends` where less came by what initiator and target take for a command at rest; `machine` where less came
    /// and this machine was too slow; `store` where less came from a disk, `target` where that disk had nothing to do; `unexplained`
    /// where less came for no such reason; `not-recovered` where a run was not over in time, and stands as that time. Where there is
    /// no model: `store`, `machine`, `processing` where processors had the most of the time and none was full, `overlap` where disk and
    /// processors went on side by side and neither had half of it, `file-system`, `protocol`, `cache`, `round-trips`, `initiator`,
    /// `target`, `shared-link`, `loss-recovery`, and `floor` where a recovery was over before it could be told.
    pub limit: String,
    /// Each run.
    pub runs: Vec<f64>,
    /// (largest - smallest) / median, and of logins / mean; none of a single run, which tells nothing of that.
    pub spread: Option<f64>,
    /// The share of one processor that this process had: the initiator and the emulated network. Where this is no workload on a
    /// disk, older results have 0 and did not measure it.
    pub processor: f64,
    /// The share of all processors that nobody used.
    pub idle: f64,
    /// The largest share of a processor that one thread had: of this process or of the target. 0 where the system does not tell.
    #[serde(default)]
    pub busiest: f64,
    /// The largest share of the time in which one of these threads ran or waited for a processor that others had. 0 where the
    /// system does not tell.
    #[serde(default)]
    pub loaded: f64,
    /// How many processors all of these threads together had on average. 0 where the system does not tell.
    #[serde(default)]
    pub together: f64,
    /// How many processors were at work on average, or wanted to be, for whomever. 0 where the system does not tell.
    #[serde(default)]
    pub processors: f64,
    /// The share of the processor time that this machine wanted and its host gave to others. 0 where nothing is known of that, or
    /// too little to tell.
    #[serde(default)]
    pub stolen: f64,
    /// The same while the model's round trip was measured, in the run whose model is told.
    #[serde(default)]
    pub echo_stolen: f64,
    /// How late packets were, there and back, by their medians, in microseconds; through a proxy 0, which tells it of its link alone.
    #[serde(default)]
    pub late_us: u64,
    /// Packets that were lost because this machine was too slow.
    #[serde(default)]
    pub overrun: u64,
    /// The share of one direction's packets that took this machine longer than the line, of the direction that had more of them; 0 of few
    /// packets ([`lunette_wan::Keeping::outpaced_share`]).
    #[serde(default)]
    pub outpaced: f64,
    /// Packets that were lost on the line, as its description has it.
    #[serde(default)]
    pub lost: u64,
    /// Packets that were lost because the line's queues had no room.
    #[serde(default)]
    pub dropped: u64,
    /// Packets of both kinds before it was measured, while TCP came to its windows.
    #[serde(default)]
    pub lost_before: u64,
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
    /// What TEST UNIT READY took in this session before it had anything else to do, in microseconds; beside other traffic where
    /// there is some. It is the round trip that the model has where `model_round_trip_us` is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<f64>,
    /// What 48 bytes, as a command and its response have, took there and back by plain TCP on the idle link, in microseconds. None of
    /// it is this project's; what TEST UNIT READY takes beyond it is the part of initiator and target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo_us: Option<f64>,
    /// The round trip that the model has, in microseconds: what as many bytes as a command's took by plain TCP on the idle link, but for
    /// their time on the line; of reads and writes, and of the turns of a write, the mean. Through a proxy it is `round_trip_us`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_round_trip_us: Option<f64>,
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

impl CellResult {
    /// Whether it is of our own target, and not of one of those beside it.
    pub(crate) fn is_ours(&self) -> bool {
        !self.parameters.iter().any(|(name, value)| name == "target" && value != "lunette")
    }

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
            stolen: 0.0,
            echo_stolen: 0.0,
            late_us: 0,
            overrun: 0,
            outpaced: 0.0,
            lost: 0,
            dropped: 0,
            lost_before: 0,
            machine: None,
            because: None,
            times: None,
            published_times: None,
            round_trip_us: None,
            echo_us: None,
            model_round_trip_us: None,
            negotiated: None,
            cached: None,
            parts: None,
            why: None,
            above: None,
        }
    }
}

/// A figure beside that of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Further {
    /// What it is.
    pub name: String,
    /// What was measured: the median of the runs, and of logins their mean.
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

    /// The medians of what runs tell, or the means where the cell's figure is one, by name, with what was published of it.
    pub(crate) fn of_runs(runs: &[&[Self]], published: &[(&'static str, f64)], is_mean: bool) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for one in runs.iter().copied().flatten() {
            if !all.iter().any(|known| known.name == one.name) {
                let own = runs.iter().copied().flatten().filter(|other| other.name == one.name);
                let own: Vec<f64> = own.map(|own| own.measured).collect();
                let measured = if is_mean { mean(&own) } else { median(own).unwrap_or(one.measured) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_figures_are_medians_of_the_runs_that_have_them() {
        let one = |measured| vec![Further::new("snd_cwnd", measured, "KB")];
        let runs = [one(3.0), one(9.0), [one(5.0), vec![Further::new("least", 1.0, "ms")]].concat()];
        let runs: Vec<&[Further]> = runs.iter().map(Vec::as_slice).collect();
        let all = Further::of_runs(&runs, &[("least", 1.7)], false);
        let told: Vec<_> = all.iter().map(|one| (&*one.name, one.measured, one.published)).collect();
        assert_eq!(told, [("snd_cwnd", 5.0, None), ("least", 1.0, Some(1.7))]);
        let means = Further::of_runs(&runs, &[], true);
        assert_eq!((means[0].measured, means[1].measured), (17.0 / 3.0, 1.0), "as their cell's figure");
    }
}
