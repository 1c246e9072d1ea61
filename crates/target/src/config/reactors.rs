//! `[reactors]`: the threads that serve connections, where they run and how they wait.
//!
//! Not here: whether this machine has the processors; that shows when a [`crate::Server`] starts.

use std::fmt;
use std::str::FromStr;

use super::Invalid;
use super::value::{Parsed, ValueError};

/// A bound that no machine reaches today.
const REACTORS_MAX: usize = 1024;

/// How connections are served.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reactors {
    /// How many, 1 to 1024. Default `None`: one for each of `cores`; without those one for each processor that the
    /// process may use, because a connection lives on one thread and more threads than processors only take turns.
    pub count: Option<usize>,
    /// The processors that they stay on, one each. Default `None`: the scheduler chooses; pinning showed no gain where
    /// other programs share the processors (docs/decisions/0015).
    #[serde(deserialize_with = "cores")]
    pub cores: Option<Cores>,
    /// Whether they never sleep: each then takes a whole processor, and answers without being woken. Default false: a
    /// reactor stays awake only while that pays.
    pub poll: bool,
}

fn cores<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Cores>, D::Error> {
    let Parsed(cores) = serde::Deserialize::deserialize(deserializer)?;
    Ok(Some(cores))
}

impl Reactors {
    /// Checks the rules between values.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let at = |key: &str| ["reactors".into(), key.into()];
        match (self.count, &self.cores) {
            (Some(count), _) if !(1..=REACTORS_MAX).contains(&count) => {
                Err(Invalid::new(at("count"), format!("must be 1 to {REACTORS_MAX}, not {count}")))
            }
            (Some(count), Some(cores)) if count != cores.numbers().len() => Err(Invalid::new(
                at("count"),
                format!(
                    "there are {count} reactors and {} cores for them; leave count out",
                    cores.numbers().len()
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Processors by number, each once, in the order given; prints as it is read: `0-3,6`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// The numbers; never empty.
    #[must_use]
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }
}

impl FromStr for Cores {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = |part: &str| {
            ValueError(format!(
                "{part:?} is no list of processors; write it as 0-3,6 (lscpu shows what there is)"
            ))
        };
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| digits.trim().parse::<usize>().map_err(|_| bad(part));
            let range = number(first)?..=number(last)?;
            if range.is_empty() || *range.end() >= REACTORS_MAX {
                return Err(bad(part));
            }
            for core in range {
                if numbers.contains(&core) {
                    return Err(ValueError(format!("processor {core} is given twice")));
                }
                numbers.push(core);
            }
        }
        Ok(Self(numbers))
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        while let [first, ..] = rest {
            let run = rest.iter().zip(*first..).take_while(|(core, wanted)| *core == wanted).count();
            let comma = if rest.len() == self.0.len() { "" } else { "," };
            match run {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", first + run - 1)?,
            }
            rest = &rest[run..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_and_printed() {
        for (text, numbers, printed) in
            [("0", vec![0], "0"), ("0-3,6", vec![0, 1, 2, 3, 6], "0-3,6"), ("5,2,3", vec![5, 2, 3], "5,2-3")]
        {
            let cores: Cores = text.parse().unwrap();
            assert_eq!((cores.numbers(), cores.to_string().as_str()), (&*numbers, printed));
        }
        for text in ["", "a", "1-", "3-1", "0-100000", "-1", "1,,2", "99999999999999999999"] {
            assert!(
                text.parse::<Cores>().unwrap_err().to_string().contains("no list of processors"),
                "{text}"
            );
        }
        assert_eq!("0-2,1".parse::<Cores>().unwrap_err().to_string(), "processor 1 is given twice");
    }

    #[test]
    fn a_count_must_fit_the_cores() {
        let read =
            |text: &str| toml::from_str::<Reactors>(text).unwrap().validate().map_err(|e| e.to_string());
        assert_eq!(read("count = 2\ncores = \"0-1\"\npoll = true"), Ok(()));
        assert_eq!(
            read("count = 3\ncores = \"0-1\""),
            Err("there are 3 reactors and 2 cores for them; leave count out".into())
        );
        assert_eq!(read("count = 0"), Err("must be 1 to 1024, not 0".into()));
        assert_eq!(toml::from_str::<Reactors>("").unwrap(), Reactors::default());
    }
}
