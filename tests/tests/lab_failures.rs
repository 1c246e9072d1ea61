//! `lunette lab`: what becomes of a study of which runs fail.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunette_tests::lunette::binary;
use lunette_tests::need_programs;
use lunette_tests::process::{run, started_by};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Far more than a short study takes.
const LIMIT: Duration = Duration::from_secs(300);
/// What says that this machine may make no network.
const LACK: &str = "there is no emulated network";

/// A running study, killed with its test, and the directory of its result.
struct Running {
    child: Child,
    output: TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What has come of a study.
struct Ended {
    status: Option<i32>,
    said: String,
    /// Null where none was written.
    result: Value,
    output: TempDir,
}

impl Running {
    fn start(binary: &Path, study: &str, arguments: &[&str]) -> Result<Self> {
        let output = tempfile::tempdir()?;
        let mut command = Command::new(binary);
        command.args(["lab", "run", study, "--quick", "--quiet", "--output"]).arg(output.path());
        command
            .args(arguments)
            .env("TMPDIR", output.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Ok(Self { child: command.spawn()?, output })
    }

    /// Waits for something; nothing if the study has ended before.
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(u32) -> Option<T>) -> Result<Option<T>> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self.child.id()) {
                return Ok(Some(found));
            }
            if self.child.try_wait()?.is_some() {
                return Ok(None);
            }
            ensure!(begun.elapsed() < LIMIT, "{what} does not come");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end.
    fn end(mut self, study: &str) -> Result<Ended> {
        let mut said = String::new();
        self.child.stderr.take().context("a stream")?.read_to_string(&mut said)?;
        let status = self.child.wait()?.code();
        let text = fs::read_to_string(self.output.path().join(format!("{study}.json")));
        let result = text.map_or(Ok(Value::Null), |text| serde_json::from_str(&text))?;
        let output = std::mem::replace(&mut self.output, tempfile::tempdir()?);
        Ok(Ended { status, said, result, output })
    }

    /// Says why there was nothing to be seen, where this machine cannot have it.
    fn lacking(mut self) -> Result<()> {
        let mut said = String::new();
        self.child.stderr.take().context("a stream")?.read_to_string(&mut said)?;
        ensure!(said.contains(LACK), "it has ended: {said}");
        lunette_skip::record_lacking(said.trim());
        Ok(())
    }
}

/// A target of a study that has a session, by a word of its command: a connection to port 3260 is established in its network
/// (proc(5), `net/tcp`).
fn target_with_session(study: u32, word: &str) -> Option<u32> {
    let processes = started_by(study).unwrap_or_default().into_iter();
    let mut targets = processes.filter(|(_, arguments)| arguments.contains(word)).map(|process| process.0);
    targets.find(|target| {
        let table = fs::read_to_string(format!("/proc/{target}/net/tcp")).unwrap_or_default();
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1).is_some_and(|local| local.ends_with(":0CBC")) && words.get(3) == Some(&"01")
        })
    })
}

fn kill(process: u32) -> Result<()> {
    Ok(kill_process(Pid::from_raw(process.cast_signed()).context("a process")?, Signal::KILL)?)
}

fn list<'a>(result: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    result[name].as_array().with_context(|| format!("{name}: {result}"))
}

/// Six cells of one link, of a second or so each.
const SIX: [&str; 4] = ["--only", "rtt_ms=2", "--only", "request_kib=8"];

#[test]
fn a_target_that_is_killed_costs_a_run_and_the_study_goes_on() -> Result<()> {
    let mut running = Running::start(binary(), "dalgic-sweep", &SIX)?;
    let Some(target) = running.until("a session", |study| target_with_session(study, " serve "))? else {
        return running.lacking();
    };
    kill(target)?;
    let Ended { status, said, result, output } = running.end("dalgic-sweep")?;
    let (cells, failed) = (list(&result, "cells")?, list(&result, "failed")?);
    // One run was lost, and with it a cell, unless the target was between two runs.
    ensure!(status == Some(1) && failed.len() == 1 && failed[0]["runs"] == 1, "{status:?} {said} {result}");
    let lost = usize::from(failed[0]["is_measured"] == false);
    assert_eq!((cells.len(), &result["is_partial"]), (6 - lost, &false.into()), "{result}");
    ensure!(cells.iter().all(|cell| cell["measured"].as_f64() > Some(0.0)), "{result}");
    let reason = failed[0]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("the target has ended by itself (signal: 9"), "{reason}");
    // At once, and at the end.
    ensure!(
        said.contains("lunette: dalgic-sweep, mode ") && said.contains(" has failed: the target"),
        "{said}"
    );
    ensure!(said.contains("error: dalgic-sweep: runs of a cell have failed: "), "{said}");
    let directory = output.path().to_str().context("a name")?;
    let lab = |command: &str| run(Command::new(binary()).args(["lab", command, directory]), LIMIT);
    let checked = lab("check")?;
    ensure!(
        !checked.success() && checked.output.contains("; runs of 1 cells have failed"),
        "{}",
        checked.output
    );
    ensure!(lab("report")?.success(), "there is a report");
    for name in ["report.html", "report.md"] {
        let page = fs::read_to_string(output.path().join(name))?;
        ensure!(page.contains("Runs that have failed") && page.contains("signal: 9"), "{name}: {page}");
    }
    Ok(())
}

#[test]
fn where_no_target_can_be_had_any_more_its_cells_have_failed() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("lunette");
    fs::copy(binary(), &program)?;
    let only = ["--only", "request_kib=8", "--only", "window=1", "--only", "mode=read"];
    let mut running = Running::start(&program, "dalgic-sweep", &only)?;
    let Some(target) = running.until("a session", |study| target_with_session(study, " serve "))? else {
        return running.lacking();
    };
    // Whoever is to be the next target ends at once.
    fs::remove_file(&program)?;
    symlink("/bin/false", &program)?;
    kill(target)?;
    let Ended { status, said, result, .. } = running.end("dalgic-sweep")?;
    let (cells, failed) = (list(&result, "cells")?, list(&result, "failed")?);
    // One cell on each link: four links, of none of which a target can be had.
    ensure!(status == Some(1) && cells.is_empty() && failed.len() == 4, "{status:?} {said} {result}");
    assert_eq!(result["is_partial"], false, "{result}");
    ensure!(said.contains("; nothing more is measured there"), "{said}");
    ensure!(said.contains("error: dalgic-sweep: runs of 4 cells have failed: "), "{said}");
    Ok(())
}

#[test]
fn a_target_that_nobody_has_asked_for_is_left_out_when_it_fails() {
    need_programs!("tgtd", "tgtadm");
    // Where this machine stands still between what is seen and the kill, tgtd has been measured by then; not each time.
    let is_left_out = (0..3).any(|_| left_out().expect("a study"));
    assert!(is_left_out, "it was killed too late three times");
}

/// Says whether tgtd was killed before all of it was measured.
fn left_out() -> Result<bool> {
    let only = ["--only", "profile=max-iops", "--only", "frames=standard", "--only", "initiator=physical"];
    let mut running = Running::start(binary(), "trinkle-profiles", &only)?;
    let Some(peer) = running.until("a session", |study| target_with_session(study, "tgtd"))? else {
        return running.lacking().map(|()| true);
    };
    kill(peer)?;
    let Ended { status, said, result, .. } = running.end("trinkle-profiles")?;
    ensure!(status == Some(0) && list(&result, "failed")?.is_empty(), "{status:?} {said} {result}");
    let target = |cell: &Value| {
        let parameters = cell["parameters"].as_array().into_iter().flatten();
        parameters.filter(|pair| pair[0] == "target").find_map(|pair| Some(pair[1].as_str()?.to_owned()))
    };
    let targets: Vec<_> = list(&result, "cells")?.iter().filter_map(target).collect();
    if !said.contains("is left out: ") && targets.contains(&"tgtd".to_owned()) {
        return Ok(false);
    }
    ensure!(targets.contains(&"lunette".to_owned()) && !targets.contains(&"tgtd".to_owned()), "{targets:?}");
    let told = "tgtd, which nobody has asked for, is left out, for it has failed: ";
    ensure!(result["differs"].as_str().is_some_and(|differs| differs.contains(told)), "{result}");
    ensure!(result["targets"]["tgtd"].is_null() && said.contains("tgtd is left out: "), "{said} {result}");
    Ok(true)
}

#[test]
fn who_is_interrupted_keeps_what_was_measured() -> Result<()> {
    let mut running = Running::start(binary(), "dalgic-sweep", &SIX)?;
    let Some(_) = running.until("a session", |study| target_with_session(study, " serve "))? else {
        return running.lacking();
    };
    kill_process(Pid::from_child(&running.child), Signal::INT)?;
    let Ended { status, said, result, output } = running.end("dalgic-sweep")?;
    ensure!(status == Some(1) && said.contains("ended early, on request"), "{status:?}: {said}");
    ensure!(said.contains("error: dalgic-sweep was ended early, with "), "{said}");
    if result.is_null() {
        ensure!(said.contains("dalgic-sweep.json is not written, for this run has no cells"), "{said}");
        return Ok(());
    }
    ensure!(list(&result, "failed")?.is_empty() && result["is_partial"] == true, "{result}");
    let measured = list(&result, "cells")?.len();
    ensure!((1..6).contains(&measured), "all was measured, or nothing: {result}");
    let reported = run(Command::new(binary()).args(["lab", "report"]).arg(output.path()), LIMIT)?;
    ensure!(reported.success(), "{}", reported.output);
    assert_eq!(reported.output.contains("dalgic-sweep has no cells"), measured == 0, "{}", reported.output);
    Ok(())
}

#[test]
fn what_a_killed_study_has_in_temporary_files_is_removed_at_once() -> Result<()> {
    let mut running = Running::start(binary(), "dalgic-sweep", &SIX)?;
    let Some(study) =
        running.until("a session", |study| target_with_session(study, " serve ").map(|_| study))?
    else {
        return running.lacking();
    };
    // As a peer has them; the other one is of a process that lives.
    let directory = |pid: u32| running.output.path().join(format!("lunette-lab-{pid}-77"));
    let (own, others) = (directory(study), directory(std::process::id()));
    fs::create_dir(&own)?;
    fs::write(own.join("istgt.conf"), "")?;
    fs::create_dir(&others)?;
    running.child.kill()?;
    running.child.wait()?;
    let begun = Instant::now();
    while own.exists() {
        ensure!(begun.elapsed() < Duration::from_secs(120), "{} is still there", own.display());
        thread::sleep(Duration::from_millis(5));
    }
    ensure!(others.exists(), "it is another one's");
    Ok(())
}
