//! Results that a directory has already: what took hours is not replaced by a part of it.

use std::fs;
use std::path::{Path, PathBuf};

use lunette_lab::StudyResult;
use serde::Deserialize;

use super::RESULT_BYTES_MAX;
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
#[derive(Deserialize)]
struct Cells {
    cells: Vec<Cell>,
}

/// The cells of the result in this file; none where it is no result.
fn cells(path: &Path) -> Vec<Parameters> {
    let is_short = fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() <= RESULT_BYTES_MAX);
    let text = is_short.then(|| fs::read(path).ok()).flatten().unwrap_or_default();
    let known: Option<Cells> = serde_json::from_slice(&text).ok();
    known.into_iter().flat_map(|known| known.cells).map(|cell| cell.parameters).collect()
}

/// How many of these are not among others.
fn missing<'a>(of: &[Parameters], among: impl Iterator<Item = &'a Parameters> + Clone) -> usize {
    of.iter().filter(|own| !among.clone().any(|other| other == *own)).count()
}

/// Refuses a run that would leave out cells of the result in this file.
///
/// # Errors
/// It would.
pub(super) fn check(path: &Path, planned: &[Parameters]) -> Result<(), Failure> {
    let known = cells(path);
    let lost = missing(&known, planned.iter());
    if lost == 0 {
        return Ok(());
    }
    let (path, count) = (path.display(), known.len());
    Err(Failure::local(format!("{path} has {count} cells, and this run would measure {lost} of them not"))
        .with_help(FORCE_HELP))
}

/// Writes a result. One that lacks cells of what the file has goes beside it, which is told, unless it may be replaced; one without any
/// cell never replaces another one.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(path: &Path, result: &StudyResult, may_replace: bool) -> Result<Option<String>, Failure> {
    let known = cells(path);
    let lost = missing(&known, result.cells.iter().map(|cell| &cell.parameters));
    if lost == 0 || (may_replace && !result.cells.is_empty()) {
        return output::write(path, result, output::Form::Lines).map(|()| None);
    }
    let beside = beside(path);
    output::write(&beside, result, output::Form::Lines)?;
    let (count, came, path, beside) = (known.len(), result.cells.len(), path.display(), beside.display());
    Ok(Some(format!("{path} keeps its {count} cells, and {beside} has the {came} of this run")))
}

/// No report looks there.
fn beside(path: &Path) -> PathBuf {
    path.with_extension("new.json")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn result(values: &[&str]) -> Value {
        let cell = |value: &&str| {
            json!({
                "parameters": [["rtt_ms", value]], "link": null, "measured": 1.0, "model": null, "published": null, "unit": "MB/s",
                "limit": "store", "runs": [1.0], "spread": null, "processor": 0.0, "idle": 1.0, "negotiated": null
            })
        };
        json!({
            "form": 2, "study": "made-up", "paper": "", "question": "", "differs": "", "link": {}, "seed": 1, "is_quick": true,
            "is_partial": true, "negotiated": [], "cells": values.iter().map(cell).collect::<Vec<_>>(),
            "host": lunette_lab::Host::look()
        })
    }

    fn parsed(values: &[&str]) -> StudyResult {
        serde_json::from_value(result(values)).expect("a result")
    }

    fn planned(values: &[&str]) -> Vec<Parameters> {
        values.iter().map(|value| vec![("rtt_ms".to_owned(), (*value).to_owned())]).collect()
    }

    fn held(path: &Path) -> usize {
        cells(path).len()
    }

    #[test]
    fn a_run_of_fewer_cells_is_refused_where_there_are_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.json");
        check(&path, &planned(&["0"])).expect("there is nothing");
        fs::write(&path, "no result").expect("written");
        check(&path, &planned(&["0"])).expect("there is no result");
        fs::write(&path, result(&["0", "2", "4"]).to_string()).expect("written");
        check(&path, &planned(&["0", "2", "4", "8"])).expect("all of it, and more");
        for fewer in [&["0"][..], &["0", "2", "8"]] {
            let failure = check(&path, &planned(fewer)).expect_err("it would be lost");
            let told = format!("{failure:?}");
            assert!(told.contains("made-up.json has 3 cells") && told.contains("--force"), "{told}");
        }
    }

    #[test]
    fn what_came_of_a_run_that_was_ended_does_not_replace_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.json");
        let write =
            |values: &[&str], may_replace| write(&path, &parsed(values), may_replace).expect("written");
        assert_eq!(write(&["0", "2"], false), None, "there is nothing yet");
        let told = write(&["0"], false).unwrap_or_default();
        assert!(told.contains("keeps its 2 cells, and ") && told.contains("made-up.new.json"), "{told}");
        assert_eq!((held(&path), held(&beside(&path))), (2, 1));
        assert!(write(&[], true).is_some(), "nothing replaces nothing");
        assert_eq!((held(&path), held(&beside(&path))), (2, 0));
        assert_eq!(write(&["0"], true), None, "it may be replaced");
        assert_eq!(held(&path), 1);
        assert_eq!(write(&["0", "2"], false), None, "it has all of it");
        assert_eq!(held(&path), 2);
    }
}
