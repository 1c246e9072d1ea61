//! Whether results are what this project promises: how many cells reach what the link and the model let through, that none is off the model
//! without an explanation, that no run has failed or was not over in time, and whether each published figure that is another one has its
//! reason.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::notes::{in_words, lost, named};
use super::{figure_text, fixed, shown};
use crate::study::{CellResult, HELD, OFF, REACHED, StudyResult, TARGET, UNFINISHED, study};

/// What is to be said of one study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Its name.
    pub study: String,
    /// Every cell is to reach what the model expects.
    pub is_held: bool,
    /// Nothing was measured.
    pub is_missing: bool,
    /// One short run a cell: the figures are rough.
    pub is_quick: bool,
    /// What makes another study of it than the published one.
    pub altered: Option<String>,
    /// Cells of which runs have failed, those of other targets as well, each with its reason; each is a defect.
    pub failed: Vec<String>,
    /// Cells that the study has and the result has not.
    pub absent: usize,
    /// Cells that the result has more than once; each counts once.
    pub twice: Vec<String>,
    /// Cells that the study has not; they count nowhere.
    pub unknown: Vec<String>,
    /// Cells that reach what the model expects.
    pub reached: usize,
    /// Cells that have a model.
    pub modelled: usize,
    /// The other ones, each with its limit and reason. Counts only where the study is held to it.
    pub short: Vec<String>,
    /// Cells that are off the model by more than 10 %.
    pub off_model: usize,
    /// Cells whose limit nobody can tell, or that are better than the model without a reason; each is a defect.
    pub defects: Vec<String>,
    /// Cells of which a run was not over in time, so that their figure is a bound and no time; each is a defect.
    pub not_recovered: Vec<String>,
    /// Published figures that are off, those beside other targets as well.
    pub off: usize,
    /// Published figures.
    pub published: usize,
    /// Those that are off and have no reason beside them.
    pub unexplained: Vec<String>,
}

/// Looks at all results; those that are held to something come first, also where there is no result. What other targets reach
/// does not count, but a published figure that stands beside theirs is to have its reason as well.
#[must_use]
pub fn check(results: &[StudyResult]) -> Vec<Verdict> {
    let result = |name: &str| results.iter().find(|result| result.study == name);
    let held = HELD.into_iter().map(|name| result(name).map_or_else(|| Verdict::missing(name), Verdict::of));
    let others = results.iter().filter(|result| !HELD.contains(&&*result.study)).map(Verdict::of);
    held.chain(others).collect()
}

/// The cells of a result beside those of its study.
struct Sorted<'a> {
    /// Those that the study has, each once; also each with another target.
    all: Vec<&'a CellResult>,
    absent: usize,
    twice: Vec<String>,
    unknown: Vec<String>,
}

impl<'a> Sorted<'a> {
    fn of(result: &'a StudyResult) -> Self {
        // Where there is no such study, there is nothing to hold cells against.
        let known = study(&result.study).map(|study| study.parameters());
        let names: BTreeSet<&str> = known.iter().flatten().flatten().map(|(name, _)| *name).collect();
        // What is set for all cells is a parameter of each, and makes another study of it.
        let is_altered = result.altered.is_some();
        let is_own = |name: &str| names.contains(name) || (!is_altered && name != TARGET);
        let own = |cell: &'a CellResult| -> Vec<(&str, &str)> {
            let pairs = cell.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            pairs.filter(|(name, _)| is_own(name)).collect()
        };
        let known: Option<BTreeSet<Vec<(&str, &str)>>> = known.as_ref().map(|known| {
            known
                .iter()
                .map(|cell| cell.iter().map(|(name, value)| (*name, value.as_str())).collect())
                .collect()
        });
        // Ours is named only beside others.
        let target = |cell: &'a CellResult| {
            let named = cell.parameters.iter().find(|(name, _)| name == TARGET);
            named.filter(|_| !cell.is_ours()).map(|(_, value)| value)
        };
        let (mut all, mut twice, mut unknown) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let (mut seen, mut ours) = (BTreeSet::new(), BTreeSet::new());
        for cell in &result.cells {
            let words = || match &*in_words(&cell.parameters) {
                "" => "one without parameters".to_owned(),
                words => words.to_owned(),
            };
            if known.as_ref().is_some_and(|known| !known.contains(&own(cell))) {
                unknown.insert(words());
            } else if !seen.insert((own(cell), target(cell))) {
                twice.insert(words());
            } else {
                all.push(cell);
                if cell.is_ours() {
                    ours.insert(own(cell));
                }
            }
        }
        let absent = known.map_or(0, |known| known.difference(&ours).count());
        Self { all, absent, twice: twice.into_iter().collect(), unknown: unknown.into_iter().collect() }
    }
}

impl Verdict {
    fn missing(name: &str) -> Self {
        let absent = study(name).map_or(0, |study| study.size());
        Self {
            study: name.to_owned(),
            is_held: true,
            is_missing: true,
            is_quick: false,
            altered: None,
            failed: Vec::new(),
            absent,
            twice: Vec::new(),
            unknown: Vec::new(),
            reached: 0,
            modelled: 0,
            short: Vec::new(),
            off_model: 0,
            defects: Vec::new(),
            not_recovered: Vec::new(),
            off: 0,
            published: 0,
            unexplained: Vec::new(),
        }
    }

    fn of(result: &StudyResult) -> Self {
        let Sorted { all, absent, twice, unknown } = Sorted::of(result);
        let cells: Vec<&CellResult> = all.iter().copied().filter(|cell| cell.is_ours()).collect();
        let modelled: Vec<bool> = cells.iter().filter_map(|cell| cell.reaches_model()).collect();
        // What is unexplained is told as such.
        let (defects, explained): (Vec<&CellResult>, Vec<&CellResult>) =
            cells.iter().partition(|cell| cell.is_unexplained());
        let not_recovered = explained.iter().filter(|cell| cell.limit == UNFINISHED);
        let short = explained.iter().filter(|cell| cell.reaches_model() == Some(false));
        let is_off = |cell: &&&CellResult| cell.is_off_published() == Some(true);
        let off: Vec<&CellResult> = all.iter().filter(is_off).copied().collect();
        Self {
            study: result.study.clone(),
            is_held: HELD.contains(&&*result.study),
            is_missing: false,
            is_quick: result.is_quick,
            altered: result.altered.clone(),
            failed: result.failed.iter().map(lost).collect(),
            absent,
            twice,
            unknown,
            reached: modelled.iter().filter(|reaches| **reaches).count(),
            modelled: modelled.len(),
            short: short.map(|cell| told(cell)).collect(),
            off_model: cells.iter().filter(|cell| cell.is_off_model() == Some(true)).count(),
            defects: defects.iter().map(|cell| told(cell)).collect(),
            not_recovered: not_recovered.map(|cell| told(cell)).collect(),
            off: off.len(),
            published: all.iter().filter(|cell| cell.is_off_published().is_some()).count(),
            unexplained: off.iter().filter(|cell| cell.why.is_none()).map(|cell| named(cell)).collect(),
        }
    }

    /// Whether all is as it is to be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        let is_reached = !self.is_held || (self.short.is_empty() && self.absent == 0);
        !self.is_missing
            && self.altered.is_none()
            && is_reached
            && self.twice.is_empty()
            && self.unknown.is_empty()
            && self.failed.is_empty()
            && self.defects.is_empty()
            && self.not_recovered.is_empty()
            && self.unexplained.is_empty()
    }
}

/// What a cell has of what it is to have, and what the limit is.
fn told(cell: &CellResult) -> String {
    let (measured, unit) = (figure_text(cell.measured), &cell.unit);
    let machine = cell
        .machine
        .as_ref()
        .or(cell.because.as_ref())
        .map(|machine| format!(": {machine}"))
        .unwrap_or_default();
    let figures = match cell.model.filter(|model| *model > 0.0 && cell.measured > 0.0) {
        Some(model) => {
            let reached = if unit == "ms" { model / cell.measured } else { cell.measured / model };
            format!("{measured} of {} {unit}, {} %", figure_text(model), percent(reached))
        }
        None => format!("{measured} {unit}"),
    };
    format!("{}: {figures}; {}{machine}", named(cell), cell.limit)
}

/// Rounded down, so that nothing looks as if it reached what it does not reach.
pub(super) fn percent(share: f64) -> String {
    fixed((share * 1000.0).floor() / 10.0, 1)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reached, modelled, .. } = self;
        let study = shown(&self.study);
        if self.is_missing {
            return write!(f, "{study}: there is no result");
        }
        write!(f, "{study}:")?;
        if *modelled > 0 {
            let percent = REACHED * 100.0;
            write!(
                f,
                " {reached} of {modelled} cells reach {percent:.0} % of what link and model let through;"
            )?;
        }
        let off = OFF * 100.0;
        if *modelled > 0 {
            write!(f, " {} are off the model by more than {off:.0} %;", self.off_model)?;
        }
        if !self.defects.is_empty() {
            write!(f, " {} are unexplained;", self.defects.len())?;
        }
        if !self.not_recovered.is_empty() {
            write!(f, " {} have not recovered;", self.not_recovered.len())?;
        }
        if self.published == 0 {
            write!(f, " nothing was published")?;
        } else {
            let explained = self.off - self.unexplained.len();
            write!(
                f,
                " {} of {} published figures are off by more than {off:.0} %, {explained} of them with the reason",
                self.off, self.published
            )?;
        }
        if self.absent > 0 {
            write!(f, "; {} cells were not measured", self.absent)?;
        }
        for (cells, what) in [(&self.twice, "there more than once"), (&self.unknown, "none of the study's")] {
            if !cells.is_empty() {
                write!(f, "; {} cells are {what}", cells.len())?;
            }
        }
        if !self.failed.is_empty() {
            write!(f, "; runs of {} cells have failed", self.failed.len())?;
        }
        if let Some(altered) = &self.altered {
            write!(f, "; it is another study: {}", shown(altered))?;
        }
        f.write_str(if self.is_quick { "; short runs" } else { "" })?;
        for line in &self.failed {
            write!(f, "\n  failed: {}", shown(line))?;
        }
        for line in &self.twice {
            write!(f, "\n  more than once: {}", shown(line))?;
        }
        for line in &self.unknown {
            write!(f, "\n  none of the study's: {}", shown(line))?;
        }
        for line in &self.short {
            write!(f, "\n  less: {}", shown(line))?;
        }
        for line in &self.defects {
            write!(f, "\n  unexplained: {}", shown(line))?;
        }
        for line in &self.not_recovered {
            write!(f, "\n  not recovered: {}", shown(line))?;
        }
        for line in &self.unexplained {
            write!(f, "\n  without a reason: {}", shown(line))?;
        }
        Ok(())
    }
}
