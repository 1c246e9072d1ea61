//! libiscsi's conformance tool against the release binary: one process a test, each under a time limit, so that a crash
//! or a hang of either side costs one test. What skips must be what the plan says skips.
//!
//! Each unit has a target of its own, because some tests reset the whole target, and several units are tested at a time,
//! because many tests do little but wait.

mod output;
mod plan;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use lunette_tests::lunette::Lunette;
use lunette_tests::packages::{find_program, package_of};
use lunette_tests::process::{Finished, run};
use lunette_tests::skip::is_ci;

use crate::failures::Failures;
use crate::report::{Report, Tally};
use crate::workspace::Workspace;
use output::{Outcome, parse};
use plan::{Case, Expected, Plan};

const TOOL: &str = "iscsi-test-cu";
/// How a line about a test that failed begins.
const FAILED: &str = "FAILED";
const LIST_LIMIT: Duration = Duration::from_secs(30);
/// Who reaches a unit behind CHAP, and by what.
const USER: &str = "conformance";
const SECRET: &str = "C7_secret-of-tool";

/// Units that are tested at a time.
const UNITS_AT_A_TIME: usize = 4;

/// The end of the name of tests that close a connection without a logout, log in by another one, and want the nexus of the first
/// to be lost by then. The target's thread that has to notice may wait for a processor for that long, so nothing else is tested
/// meanwhile. A virtual machine's host may give that processor to others all the same, which is why such a test has some tries;
/// each is told.
const ALONE: &str = ".ITNexusLoss";
const TRIES: u32 = 3;

/// Held for reading by each run of the tool, for writing by one that is to be alone.
static RUNNING: RwLock<()> = RwLock::new(());

/// What to run.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Only this family ("Read10") or test ("Read10.Async")
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Print the tool's whole output of tests that did not pass
    #[arg(long)]
    verbose: bool,
    /// Run the first unit's tests against this logical unit of any target instead, which LOSES ITS DATA; what skips is
    /// only listed
    #[arg(long, value_name = "iscsi://HOST:PORT/NAME/LUN")]
    url: Option<String>,
}

impl Options {
    /// True if a foreign target is tested and no binary of ours is needed.
    pub(crate) fn is_foreign(&self) -> bool {
        self.url.is_some()
    }
}

/// The step. `binary` may be missing only for a foreign target.
pub(crate) fn step(workspace: &Workspace, report: &mut Report, binary: Option<&Path>, options: &Options) {
    report.step("conformance: iscsi-test-cu --dataloss --allow-sanitize", |failures| {
        if find_program(TOOL).is_none() {
            let package = package_of(TOOL).unwrap_or_default();
            ensure!(!is_ci(), "{TOOL} is not installed (Debian package {package})");
            println!("SKIPPED: {TOOL} is not installed (Debian package {package})");
            return Ok(Tally::SKIPPED);
        }
        let plan = Plan::load(workspace.root())?;
        let mut cases = plan.cases(&tests_of_tool()?)?;
        if let Some(only) = &options.only {
            let family = format!("{only}.");
            cases.retain(|case| case.test == *only || case.test.starts_with(&family));
            ensure!(!cases.is_empty(), "the plan has no test {only}");
        }
        let mut tally = Tally::default();
        for absent in &plan.absent {
            println!("skipped  {:<32} {}", absent.family, absent.reason);
            tally.skipped += 1;
        }
        if let Some(url) = &options.url {
            cases.retain(|case| case.unit == 0 && !case.multipath);
            for case in &mut cases {
                case.expected = Expected::Pass;
            }
            tally
                .add(run_cases(&plan, &cases, options, &|_, _| url.clone(), &mut |line| println!("{line}"))?);
            return Ok(tally);
        }
        let binary = binary.context("no binary to test")?;
        let next = AtomicUsize::new(0);
        let failures = Mutex::new(failures);
        let results = std::thread::scope(|scope| {
            let work = || -> Result<Tally> {
                let mut tally = Tally::default();
                while let number = next.fetch_add(1, Ordering::Relaxed)
                    && number < plan.units.len()
                {
                    tally.add(test_unit(&plan, number, &cases, options, binary, &failures)?);
                }
                Ok(tally)
            };
            let threads: Vec<_> = (0..UNITS_AT_A_TIME).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        for result in results {
            tally.add(result.map_err(|_| anyhow!("a thread of the conformance run has panicked"))??);
        }
        Ok(tally)
    });
}

/// Tests one unit, and says so when that is over.
fn test_unit(
    plan: &Plan,
    number: usize,
    cases: &[Case],
    options: &Options,
    binary: &Path,
    failures: &Mutex<&mut Failures>,
) -> Result<Tally> {
    let cases: Vec<Case> = cases.iter().filter(|case| case.unit == number).cloned().collect();
    if cases.is_empty() {
        return Ok(Tally::default());
    }
    let directory = tempfile::tempdir()?;
    let lun = plan.units[number].lun.replace("{dir}", &directory.path().to_string_lossy());
    let lun = format!("{number}={lun}");
    let mut command = Lunette::command(binary).luns([lun]).args(["--portal", "127.0.0.1:0"]);
    let has_chap = plan.units[number].chap;
    if has_chap {
        let file = directory.path().join("secret");
        std::fs::write(&file, SECRET)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
        command = command.args(["--chap-user", &format!("{USER}=file:{}", file.display())]);
    }
    let target = command.start()?;
    let url = |portal, unit| {
        let url = target.url_through(portal, unit);
        if has_chap { url.replacen("://", &format!("://{USER}%{SECRET}@"), 1) } else { url }
    };
    let mut lines = Vec::new();
    let result = run_cases(plan, &cases, options, &url, &mut |line| lines.push(line));
    println!("{}", lines.join("\n"));
    for failed in lines.into_iter().filter(|line| line.starts_with(FAILED)) {
        failures.lock().unwrap_or_else(PoisonError::into_inner).keep(failed);
    }
    let tally = result?;
    target.stop().context("the target after the conformance run")?;
    Ok(tally)
}

fn run_cases(
    plan: &Plan,
    cases: &[Case],
    options: &Options,
    url: &dyn Fn(usize, usize) -> String,
    say: &mut dyn FnMut(String),
) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut last: Option<(usize, String, Finished)> = None;
    for case in cases {
        let what = if case.together { case.family() } else { &case.test };
        let is_done = last.as_ref().is_some_and(|(unit, run, _)| *unit == case.unit && run == what);
        if !is_done {
            let limit = Duration::from_secs(plan.time_limit_s);
            let portals = if case.multipath { 0..2 } else { 0..1 };
            let once = || run(&mut tool(what, portals.clone().map(|portal| url(portal, case.unit))), limit);
            let finished = if case.test.ends_with(ALONE) {
                let _alone = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
                let mut finished = once()?;
                for number in 2..=TRIES {
                    if !matches!(outcome(case, &finished), Outcome::Failed(_)) {
                        break;
                    }
                    say(format!("again    {what}: try {number} of {TRIES}"));
                    finished = once()?;
                }
                finished
            } else {
                let _beside_others = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
                once()?
            };
            last = Some((case.unit, what.to_owned(), finished));
        }
        let Some((_, _, finished)) = &last else { continue };
        let outcome = outcome(case, finished);
        let (counts, word, why) = judge(case, &outcome, options.url.is_some());
        tally.add(counts);
        let name = format!("{}@{}", case.test, plan.units[case.unit].name);
        say(format!("{word:<8} {name:<40} {:>6.2} s  {why}", finished.elapsed.as_secs_f64()));
        if options.verbose && outcome != Outcome::Passed {
            say(finished.output.clone());
        }
    }
    Ok(tally)
}

fn tool(test: &str, urls: impl Iterator<Item = String>) -> Command {
    let mut command = Command::new(TOOL);
    command.args(["-V", "--dataloss", "--allow-sanitize", "--test", &format!("ALL.{test}")]).args(urls);
    command
}

fn outcome(case: &Case, finished: &Finished) -> Outcome {
    let by_itself = finished.status.is_some_and(|status| status.signal().is_none());
    let ending = (!by_itself).then(|| finished.ending());
    parse(&finished.output, case.name(), ending.as_deref())
}

/// What an outcome counts as, the word for it, and the reason.
fn judge(case: &Case, outcome: &Outcome, foreign: bool) -> (Tally, &'static str, String) {
    match (outcome, &case.expected) {
        (Outcome::Passed, Expected::Pass) => (Tally::PASSED, "passed", String::new()),
        (Outcome::Skipped(_), Expected::Skip(reason)) => (Tally::SKIPPED, "skipped", reason.clone()),
        (Outcome::Failed(why), Expected::ToolFault { says, reason }) if why.contains(says) => {
            (Tally::SKIPPED, "skipped", reason.clone())
        }
        (Outcome::Skipped(said), Expected::Pass) if foreign => (Tally::SKIPPED, "skipped", said.clone()),
        (Outcome::Skipped(said), _) => {
            (Tally::FAILED, FAILED, format!("skipped, and {} has no reason for it: {said}", plan::FILE))
        }
        (Outcome::Passed, Expected::Skip(reason) | Expected::ToolFault { reason, .. }) => {
            (Tally::FAILED, FAILED, format!("passed, but {} says it does not: {reason}", plan::FILE))
        }
        (Outcome::Failed(why), _) => (Tally::FAILED, FAILED, why.clone()),
    }
}

/// All tests that the installed tool has, as "Family.Test".
fn tests_of_tool() -> Result<Vec<String>> {
    let finished = run(Command::new(TOOL).arg("--list"), LIST_LIMIT)?;
    // The tool ends its list with status 10.
    let tests = finished.output.lines().filter_map(|line| line.trim().strip_prefix("ALL."));
    let tests: Vec<String> = tests.filter(|test| test.contains('.')).map(str::to_owned).collect();
    ensure!(!tests.is_empty(), "{TOOL} --list: {}: {}", finished.ending(), finished.output);
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(expected: &Expected, outcome: &Outcome, foreign: bool) -> Tally {
        let test = "Read10.Async".to_owned();
        judge(
            &Case { unit: 0, test, expected: expected.clone(), together: false, multipath: false },
            outcome,
            foreign,
        )
        .0
    }

    #[test]
    fn what_is_known_must_happen_and_nothing_else() {
        let skipped = Outcome::Skipped("said".to_owned());
        let failed = Outcome::Failed("1. x.c:98  - CU_FAIL".to_owned());
        let known_skip = Expected::Skip("why".to_owned());
        let fault = |says: &str| Expected::ToolFault { says: says.to_owned(), reason: "why".to_owned() };
        assert_eq!(judged(&Expected::Pass, &Outcome::Passed, false), Tally::PASSED);
        assert_eq!(judged(&known_skip, &skipped, false), Tally::SKIPPED);
        assert_eq!(judged(&fault("x.c:98"), &failed, false), Tally::SKIPPED);
        assert_eq!(judged(&Expected::Pass, &skipped, true), Tally::SKIPPED);
        for (expected, outcome) in [
            (Expected::Pass, &skipped),
            (Expected::Pass, &failed),
            (known_skip.clone(), &Outcome::Passed),
            (known_skip, &failed),
            (fault("x.c:98"), &Outcome::Passed),
            (fault("x.c:98"), &skipped),
            (fault("other.c:1"), &failed),
        ] {
            assert_eq!(judged(&expected, outcome, false), Tally::FAILED, "{expected:?} {outcome:?}");
        }
    }
}
