//! tests/conformance/libiscsi.toml: which families run against which unit, which tests are known to skip, which know
//! better than the standard, and why.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The file, below the repository's root.
pub(crate) const FILE: &str = "tests/conformance/libiscsi.toml";

/// The whole plan.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// How long one test may take; what takes longer hangs, and fails.
    pub(crate) time_limit_s: u64,
    /// Logical units; their position is their number.
    #[serde(rename = "unit")]
    pub(crate) units: Vec<Unit>,
    #[serde(rename = "run")]
    pub(crate) runs: Vec<Run>,
    #[serde(rename = "absent", default)]
    pub(crate) absent: Vec<Absent>,
    #[serde(rename = "skip", default)]
    skips: Vec<Known>,
    #[serde(rename = "tool_fault", default)]
    tool_faults: Vec<Known>,
}

/// One logical unit of the target under test.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unit {
    pub(crate) name: String,
    /// As `--lun` takes it, without the number; `{dir}` stands for a fresh directory.
    pub(crate) lun: String,
    /// Only those reach it who prove themselves with CHAP.
    #[serde(default)]
    pub(crate) chap: bool,
}

/// Families that run against each of some units.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) units: Vec<String>,
    /// A family ("Read10") or one test ("Read10.Async").
    pub(crate) tests: Vec<String>,
    /// Run each family in one process, for tests that lean on one another.
    #[serde(default)]
    pub(crate) together: bool,
    /// Give the tool the unit through two portals.
    #[serde(default)]
    pub(crate) multipath: bool,
}

/// A family that the installed tool does not have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Absent {
    pub(crate) family: String,
    pub(crate) reason: String,
}

/// Tests of which it is known that they do not pass on some units.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    units: Vec<String>,
    tests: Vec<String>,
    /// What the failure's text must contain; only where the tool is wrong.
    says: Option<String>,
    reason: String,
}

/// One test to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    /// The index of the unit in [`Plan::units`].
    pub(crate) unit: usize,
    /// "Family.Test".
    pub(crate) test: String,
    pub(crate) expected: Expected,
    /// Run the whole family in one process.
    pub(crate) together: bool,
    /// Give the tool the unit through two portals.
    pub(crate) multipath: bool,
}

/// What a test must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Pass.
    Pass,
    /// Skip, for this reason.
    Skip(String),
    /// Fail with this text although the target is right, for this reason.
    ToolFault { says: String, reason: String },
}

impl Case {
    /// The test's family.
    pub(crate) fn family(&self) -> &str {
        family(&self.test)
    }

    /// The test's name within its family.
    pub(crate) fn name(&self) -> &str {
        self.test.split_once('.').map_or(&self.test, |(_, name)| name)
    }
}

impl Plan {
    /// Reads the plan.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(FILE)).context(FILE)?;
        toml::from_str(&text).context(FILE)
    }

    /// Every test to run, in order. `list` is what the tool has, as "Family.Test".
    ///
    /// # Errors
    /// The plan names a unit, family or test that does not exist, lists one twice, leaves one out, or gives no reason: a plan
    /// that drifted from the tool must not pass silently.
    pub(crate) fn cases(&self, list: &[String]) -> Result<Vec<Case>> {
        for absent in &self.absent {
            let present = list.iter().any(|test| family(test) == absent.family);
            ensure!(!present, "{} is listed as absent, but the tool has it", absent.family);
            ensure!(!absent.reason.trim().is_empty(), "{}: absent without a reason", absent.family);
        }
        let mut known = self.known()?;
        let mut cases: Vec<Case> = Vec::new();
        for run in &self.runs {
            for (name, wanted) in
                run.units.iter().flat_map(|unit| run.tests.iter().map(move |test| (unit, test)))
            {
                let unit = self.unit(name)?;
                let mut found =
                    list.iter().filter(|test| *test == wanted || family(test) == wanted).peekable();
                ensure!(found.peek().is_some(), "the tool has no test or family {wanted}");
                for test in found {
                    let twice = cases.iter().any(|case| case.unit == unit && case.test == *test);
                    ensure!(!twice, "{test} runs twice on {name}");
                    let expected = known.remove(&(unit, test.as_str())).unwrap_or(Expected::Pass);
                    let (together, multipath) = (run.together, run.multipath);
                    cases.push(Case { unit, test: test.clone(), expected, together, multipath });
                }
            }
        }
        if let Some(((unit, test), _)) = known.first_key_value() {
            bail!("{test} is listed as known on {}, but does not run there", self.units[*unit].name);
        }
        let unplanned = list.iter().find(|test| !cases.iter().any(|case| case.test == **test));
        ensure!(
            unplanned.is_none(),
            "the tool has {}, which runs nowhere",
            unplanned.map_or("", |test| test)
        );
        Ok(cases)
    }

    /// What is known, by unit and test.
    fn known(&self) -> Result<BTreeMap<(usize, &str), Expected>> {
        let mut known = BTreeMap::new();
        for (entry, is_fault) in self
            .skips
            .iter()
            .map(|entry| (entry, false))
            .chain(self.tool_faults.iter().map(|entry| (entry, true)))
        {
            let Known { units, tests, says, reason } = entry;
            ensure!(!reason.trim().is_empty(), "{tests:?}: an entry without a reason");
            let expected = match (is_fault, says) {
                (false, None) => Expected::Skip(reason.clone()),
                (true, Some(says)) if !says.is_empty() => {
                    Expected::ToolFault { says: says.clone(), reason: reason.clone() }
                }
                _ => bail!("{tests:?}: \"says\" belongs to a tool_fault, and only there"),
            };
            for (unit, test) in units.iter().flat_map(|unit| tests.iter().map(move |test| (unit, test))) {
                let previous = known.insert((self.unit(unit)?, test.as_str()), expected.clone());
                ensure!(previous.is_none(), "{test} is listed twice for {unit}");
            }
        }
        Ok(known)
    }

    fn unit(&self, name: &str) -> Result<usize> {
        self.units.iter().position(|unit| unit.name == name).with_context(|| format!("no unit {name}"))
    }
}

/// "Read10" of "Read10.Simple".
fn family(test: &str) -> &str {
    test.split('.').next().unwrap_or(test)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "time_limit_s = 1\n[[unit]]\nname = \"thin\"\nlun = \"mem:1G\"\n";

    fn cases(text: &str) -> Result<Vec<Case>> {
        let list = ["Read10.Simple", "Read10.Async", "Unmap.Simple"].map(str::to_owned);
        toml::from_str::<Plan>(&format!("{UNIT}{text}"))?.cases(&list)
    }

    #[test]
    fn expands_families_and_attaches_reasons() {
        let cases = cases(
            "[[run]]\nunits = [\"thin\"]\ntests = [\"Read10\", \"Unmap.Simple\"]\n\
             [[skip]]\nunits = [\"thin\"]\ntests = [\"Read10.Async\"]\nreason = \"too small\"\n\
             [[tool_fault]]\nunits = [\"thin\"]\ntests = [\"Unmap.Simple\"]\nsays = \"x.c:1\"\nreason = \"its own\"\n\
             [[absent]]\nfamily = \"iSCSINop\"\nreason = \"newer\"\n",
        )
        .expect("a good plan");
        let found: Vec<_> = cases.into_iter().map(|case| (case.test, case.expected)).collect();
        let fault = Expected::ToolFault { says: "x.c:1".to_owned(), reason: "its own".to_owned() };
        let expected = [
            ("Read10.Simple", Expected::Pass),
            ("Read10.Async", Expected::Skip("too small".to_owned())),
            ("Unmap.Simple", fault),
        ];
        assert_eq!(found, expected.map(|(test, expected)| (test.to_owned(), expected)));
    }

    #[test]
    fn refuses_a_plan_that_drifted() {
        let run = "[[run]]\nunits = [\"thin\"]\ntests = [\"Unmap\"]\n";
        for (text, why) in [
            (run.to_owned(), "the tool has Read10.Simple, which runs nowhere"),
            ("[[run]]\nunits = [\"thin\"]\ntests = [\"Gone\"]\n".to_owned(), "no test or family Gone"),
            ("[[run]]\nunits = [\"fat\"]\ntests = [\"Unmap\"]\n".to_owned(), "no unit fat"),
            (format!("{run}{run}"), "runs twice"),
            (
                format!("{run}[[skip]]\nunits = [\"thin\"]\ntests = [\"Read10.Async\"]\nreason = \"r\"\n"),
                "does not run there",
            ),
            (
                format!("{run}[[skip]]\nunits = [\"thin\"]\ntests = [\"Unmap.Simple\"]\nreason = \" \"\n"),
                "without a reason",
            ),
            (
                format!(
                    "{run}[[tool_fault]]\nunits = [\"thin\"]\ntests = [\"Unmap.Simple\"]\nreason = \"r\"\n"
                ),
                "\"says\" belongs",
            ),
            (format!("{run}[[absent]]\nfamily = \"Unmap\"\nreason = \"r\"\n"), "but the tool has it"),
        ] {
            let error = cases(&text).expect_err(&text);
            assert!(error.to_string().contains(why), "{error} for {text}");
        }
    }

    #[test]
    fn the_committed_plan_can_be_read() {
        let plan: Plan =
            toml::from_str(include_str!("../../../tests/conformance/libiscsi.toml")).expect("a plan");
        assert!(!plan.units.is_empty() && !plan.runs.is_empty());
    }
}
