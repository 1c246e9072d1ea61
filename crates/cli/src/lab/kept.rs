//! Results that a directory has already: what took hours is not replaced by a part of it.

use std::fs;
use std::path::{Path, PathBuf};

use lunette_lab::StudyResult;
use serde::Deserialize;

use super::{RESULT_BYTES_MAX, text};
use crate::failure::Failure;
use crate::output;

const FORCE_HELP: &str = "--force replaces it, another --output keeps it";

/// What a cell varies, with its values.
type Parameters = Vec<(String, String)>;

#[derive(Deserialize)]
struct Cell {
    parameters: Parameters,
}

/// No more than what says which figures a result has, in whichever form it is.
#[derive(Default, Deserialize)]
struct Known {
    cells: Vec<Cell>,
    #[serde(default)]
    is_quick: bool,
    #[serde(default)]
    is_partial: bool,
}

impl Known {
    /// The result in this file; one without cells where there is nothing to lose.
    ///
    /// # Errors
    /// There is something that is no result, such as one that is damaged, and why it is none.
    fn read(path: &Path) -> Result<Known, String> {
        let length_bytes = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            _ => return Ok(Known::default()),
        };
        if length_bytes == 0 {
            return Ok(Known::default());
        }
        if length_bytes > RESULT_BYTES_MAX {
            return Err("it is too long".to_owned());
        }
        let text = fs::read(path).map_err(|error| error.to_string())?;
        serde_json::from_slice(&text).map_err(|error| error.to_string())
    }

    /// Its cells that are not among these.
    fn missing<'a>(&self, among: impl Iterator<Item = &'a Parameters> + Clone) -> Vec<&Parameters> {
        let own = self.cells.iter().map(|cell| &cell.parameters);
        own.filter(|own| !among.clone().any(|other| other == *own)).collect()
    }

    /// Whether its cells have more runs, and longer ones, than those of a quick run.
    fn is_whole(&self) -> bool {
        !self.is_quick && !self.cells.is_empty()
    }

    /// Whether it has what this result has not: cells, or runs of them.
    fn has_more_than(&self, result: &StudyResult) -> bool {
        let has_more_runs = result.is_quick || (result.is_partial && !self.is_partial);
        (self.is_whole() && has_more_runs)
            || !self.missing(result.cells.iter().map(|cell| &cell.parameters)).is_empty()
    }
}

/// Refuses a run that would leave out cells of the result in this file, be a quick one in the place of a whole one, or take the place
/// of something else.
///
/// # Errors
/// It would.
pub(super) fn check(path: &Path, planned: &[Parameters], is_quick: bool) -> Result<(), Failure> {
    let known = match Known::read(path) {
        Ok(known) => known,
        Err(why) => {
            let told = format!("{} has something that is no result of a study: {why}", path.display());
            return Err(Failure::local(told).with_help(FORCE_HELP));
        }
    };
    let lost = known.missing(planned.iter());
    let (path, count) = (path.display(), known.cells.len());
    let why = if let Some(first) = lost.first() {
        let (lost, first) = (lost.len(), text::cell(first));
        let others = if lost > 1 { ", and others" } else { "" };
        format!("{path} has {count} cells, and this run would measure {lost} of them not: {first}{others}")
    } else if is_quick && known.is_whole() {
        format!("{path} is the result of a whole run, of {count} cells, and this run is a quick one")
    } else {
        return Ok(());
    };
    Err(Failure::local(why).with_help(FORCE_HELP))
}

/// Writes a result. One that has less than what the file has goes beside it, which is told, unless it may be replaced; one without any
/// cell is written nowhere, unless its runs have failed and there is nothing else.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(path: &Path, result: &StudyResult, may_replace: bool) -> Result<Option<String>, Failure> {
    let known = Known::read(path);
    let came = result.cells.len();
    let keeps = match &known {
        Ok(known) if known.has_more_than(result) => Some(format!("keeps its {} cells", known.cells.len())),
        Ok(_) => None,
        Err(_) => Some("stays as it is".to_owned()),
    };
    let keeps = keeps.map(|keeps| format!("{} {keeps}", path.display()));
    match keeps {
        None if came == 0 && result.failed.is_empty() => {
            Ok(Some(format!("{} is not written, for this run has no cells", path.display())))
        }
        Some(keeps) if came == 0 => Ok(Some(format!("{keeps}, for this run has none"))),
        Some(keeps) if !may_replace => {
            let beside = beside(path);
            output::write(&beside, result, output::Form::Lines)?;
            Ok(Some(format!("{keeps}, and {} has the {came} cells of this run", beside.display())))
        }
        _ => output::write(path, result, output::Form::Lines).map(|()| None),
    }
}

/// A name that nothing has yet, and where no report looks.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.with_extension("new.json");
    let mut number = 2_u32;
    while beside.symlink_metadata().is_ok() {
        beside = path.with_extension(format!("new-{number}.json"));
        number += 1;
    }
    beside
}

#[cfg(test)]
mod tests {
    use lunette_lab::Failed;
    use serde_json::{Value, json};

    use super::*;

    fn result(values: &[&str], is_quick: bool) -> Value {
        let cell = |value: &&str| {
            json!({
                "parameters": [["rtt_ms", value]], "link": null, "measured": 1.0, "model": null, "published": null, "unit": "MB/s",
                "limit": "store", "runs": [1.0], "spread": null, "processor": 0.0, "idle": 1.0, "negotiated": null
            })
        };
        json!({
            "form": 2, "study": "made-up", "paper": "", "question": "", "differs": "", "link": {}, "seed": 1,
            "is_quick": is_quick, "is_partial": false, "negotiated": [], "cells": values.iter().map(cell).collect::<Vec<_>>(),
            "host": lunette_lab::Host::look()
        })
    }

    fn parsed(values: &[&str], is_quick: bool) -> StudyResult {
        serde_json::from_value(result(values, is_quick)).expect("a result")
    }

    fn planned(values: &[&str]) -> Vec<Parameters> {
        values.iter().map(|value| vec![("rtt_ms".to_owned(), (*value).to_owned())]).collect()
    }

    fn held(path: &Path) -> usize {
        Known::read(path).expect("a result").cells.len()
    }

    /// What is refused, with its help.
    fn refused(path: &Path, values: &[&str], is_quick: bool) -> String {
        format!("{:?}", check(path, &planned(values), is_quick).expect_err("it would be lost"))
    }

    #[test]
    fn a_run_of_fewer_cells_is_refused_where_there_are_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.json");
        check(&path, &planned(&["0"]), true).expect("there is nothing");
        fs::write(&path, "").expect("written");
        check(&path, &planned(&["0"]), true).expect("there is no result");
        fs::write(&path, result(&["0", "2", "4"], true).to_string()).expect("written");
        check(&path, &planned(&["0", "2", "4", "8"]), true).expect("all of it, and more");
        for (fewer, named) in [
            (&["0"][..], "2 of them not: rtt_ms 2, and others"),
            (&["0", "2", "8"], "1 of them not: rtt_ms 4"),
        ] {
            let told = refused(&path, fewer, true);
            assert!(told.contains("made-up.json has 3 cells") && told.contains(named), "{told}");
            assert!(told.contains(FORCE_HELP), "{told}");
        }
    }

    #[test]
    fn a_quick_run_is_refused_where_there_is_a_whole_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.json");
        fs::write(&path, result(&["0", "2"], false).to_string()).expect("written");
        check(&path, &planned(&["0", "2"]), false).expect("it is a whole one");
        let told = refused(&path, &["0", "2", "4"], true);
        assert!(told.contains("made-up.json is the result of a whole run, of 2 cells"), "{told}");
        assert!(told.contains(FORCE_HELP), "{told}");
        fs::write(&path, result(&["0", "2"], true).to_string()).expect("written");
        check(&path, &planned(&["0", "2"]), true).expect("neither is a whole one");
        fs::write(&path, result(&[], false).to_string()).expect("written");
        check(&path, &planned(&["0", "2"]), true).expect("there is nothing to lose");
    }

    #[test]
    fn what_came_of_a_run_that_was_ended_does_not_replace_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.json");
        let [new, new_2, new_3] = ["made-up.new.json", "made-up.new-2.json", "made-up.new-3.json"]
            .map(|name| path.with_file_name(name));
        let write =
            |values: &[&str], may_replace| write(&path, &parsed(values, true), may_replace).expect("written");
        assert_eq!(write(&["0", "2", "4"], false), None, "there is nothing yet");
        let told = write(&["0", "2"], false).unwrap_or_default();
        assert!(told.contains("keeps its 3 cells, and ") && told.contains("made-up.new.json"), "{told}");
        let told = write(&["0"], false).unwrap_or_default();
        assert!(told.contains("made-up.new-2.json has the 1 cells of this run"), "{told}");
        for may_replace in [false, true] {
            let told = write(&[], may_replace).unwrap_or_default();
            assert!(told.contains("made-up.json keeps its 3 cells, for this run has none"), "{told}");
        }
        assert_eq!([&path, &new, &new_2].map(|path| held(path)), [3, 2, 1]);
        assert!(!new_3.exists(), "nothing is not written beside it");
        assert_eq!(write(&["0"], true), None, "it may be replaced");
        assert_eq!(held(&path), 1);
        assert_eq!(write(&["0", "2"], false), None, "it has all of it");
        assert_eq!(held(&path), 2);
    }

    #[test]
    fn fewer_runs_of_the_same_cells_do_not_replace_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.json");
        let whole = parsed(&["0"], false);
        let ended = StudyResult { is_partial: true, ..whole.clone() };
        let write = |result: &StudyResult| write(&path, result, false).expect("written");
        assert_eq!(write(&parsed(&["0"], true)), None, "there is nothing yet");
        assert_eq!(write(&ended), None, "its runs are longer than the quick ones");
        assert_eq!(write(&whole), None, "it has all runs");
        assert!(write(&ended).is_some() && write(&parsed(&["0"], true)).is_some());
        let known = Known::read(&path).expect("a result");
        assert!(!known.is_partial && known.is_whole());
    }

    #[test]
    fn what_is_no_result_is_not_replaced_unasked() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.json");
        let whole = result(&["0", "2"], false).to_string();
        let damaged = &whole[..whole.len() / 2];
        fs::write(&path, damaged).expect("written");
        let told = refused(&path, &["0", "2"], false);
        assert!(
            told.contains("made-up.json has something that is no result") && told.contains(FORCE_HELP),
            "{told}"
        );
        let (some, none) = (parsed(&["0"], true), parsed(&[], true));
        let told = write(&path, &some, false).expect("written").unwrap_or_default();
        assert!(
            told.contains("made-up.json stays as it is, and ") && told.contains("made-up.new.json"),
            "{told}"
        );
        assert!(write(&path, &none, true).expect("nothing to write").is_some());
        assert_eq!(fs::read_to_string(&path).expect("it is there"), damaged);
        assert_eq!(write(&path, &some, true).expect("written"), None);
        assert_eq!(held(&path), 1);
    }

    #[test]
    fn what_was_ended_before_its_first_cell_is_written_nowhere() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.json");
        let none = parsed(&[], true);
        let told = write(&path, &none, false).expect("nothing to write").unwrap_or_default();
        assert!(told.ends_with("made-up.json is not written, for this run has no cells"), "{told}");
        assert!(!path.exists());
        // Why runs have failed is worth knowing.
        let (parameters, reason) = (planned(&["0"]).remove(0), "the disk was full".to_owned());
        let failed = vec![Failed { parameters, link: None, runs: 1, is_measured: false, reason }];
        let failed = StudyResult { failed, ..none };
        assert_eq!(write(&path, &failed, false).expect("written"), None);
        assert!(path.exists());
    }
}
