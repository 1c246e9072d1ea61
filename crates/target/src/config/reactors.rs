//! `[reactors]`: the threads that serve connections, where they run and how they wait.
//!
//! A NUMA node is looked up when its name is read. Not here: whether this process may use the processors; that shows
//! when a [`crate::Server`] starts.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use serde::de::{self, Visitor};

use super::Invalid;
use super::value::{Parsed, ValueError};

/// A bound that no machine reaches today.
const REACTORS_MAX: usize = 1024;

/// Where the kernel tells which processors each NUMA node has.
const NODES: &str = "/sys/devices/system/node";

/// How connections are served.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reactors {
    /// How many, 1 to 1024. Default `None`: one for each of `cores`; without those one for each processor that the
    /// process may use, because a connection lives on one thread and more threads than processors only take turns.
    pub count: Option<usize>,
    /// The processors that they stay on, one each; a NUMA node stands for its processors. Default `None`: the scheduler chooses;
    /// pinning showed no gain where other programs share the processors (docs/decisions/0015).
    #[serde(deserialize_with = "cores")]
    pub cores: Option<Cores>,
    /// Whether they stay awake while they wait.
    #[serde(deserialize_with = "poll")]
    pub poll: Poll,
}

/// Whether a thread stays awake while it waits for commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Poll {
    /// Only while that pays, as it has lately shown.
    #[default]
    Adaptive,
    /// It never sleeps: it takes a whole processor, and answers without being woken.
    Always,
    /// It sleeps at once, and takes no more of a processor than its commands do.
    Never,
}

impl FromStr for Poll {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        match word {
            "adaptive" => Ok(Self::Adaptive),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(ValueError(format!(
                "{word:?} is not known; use adaptive (awake while that pays), always (never asleep) or never (always \
                 asleep)"
            ))),
        }
    }
}

fn poll<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Poll, D::Error> {
    deserializer.deserialize_any(PollVisitor)
}

/// A word; files of earlier versions say true and false.
struct PollVisitor;

impl Visitor<'_> for PollVisitor {
    type Value = Poll;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"adaptive\", \"always\" or \"never\"")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Poll, E> {
        word.parse().map_err(E::custom)
    }

    fn visit_bool<E: de::Error>(self, is_always: bool) -> Result<Poll, E> {
        Ok(if is_always { Poll::Always } else { Poll::Adaptive })
    }
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

/// Processors by number, each once, in the order given; prints as such a list is read: `0-3,6`.
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

    /// Reads a list of numbers, ranges and NUMA nodes: `0-3,6`, `node0`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::read(text, Path::new(NODES))
    }
}

impl Cores {
    fn read(text: &str, nodes: &Path) -> Result<Self, ValueError> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            let is_node = part.strip_prefix("node").is_some_and(|number| number.parse::<u16>().is_ok());
            let list = if is_node { list_of(part, nodes)? } else { part.to_owned() };
            for core in list.split(',').map(range).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
                if numbers.contains(&core) {
                    return Err(ValueError(format!("processor {core} is given twice")));
                }
                numbers.push(core);
            }
        }
        Ok(Self(numbers))
    }
}

/// `3` or `0-3`.
fn range(part: &str) -> Result<RangeInclusive<usize>, ValueError> {
    let bad = || {
        ValueError(format!(
            "{part:?} is no list of processors; write it as 0-3,6 or node0 (lscpu shows what there is)"
        ))
    };
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let number = |digits: &str| digits.trim().parse::<usize>().map_err(|_| bad());
    let range = number(first)?..=number(last)?;
    if range.is_empty() || *range.end() >= REACTORS_MAX { Err(bad()) } else { Ok(range) }
}

/// The processors of a NUMA node, as the kernel lists them: `0-3,6`.
fn list_of(node: &str, nodes: &Path) -> Result<String, ValueError> {
    let path = nodes.join(node).join("cpulist");
    let advice = "`lscpu` shows the nodes and their processors, which can be given by number";
    match std::fs::read_to_string(&path) {
        Ok(list) if list.trim().is_empty() => {
            Err(ValueError(format!("{node} has no processors, only memory; {advice}")))
        }
        Ok(list) => Ok(list.trim().to_owned()),
        Err(error) => Err(ValueError(format!("{node}: {}: {error}; {advice}", path.display()))),
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
        for text in ["node", "node-1", "nodes", "node0-1", "Node0"] {
            assert!(text.parse::<Cores>().unwrap_err().to_string().contains("or node0 (lscpu"), "{text}");
        }
        assert_eq!("0-2,1".parse::<Cores>().unwrap_err().to_string(), "processor 1 is given twice");
    }

    #[test]
    fn a_node_stands_for_its_processors() {
        let nodes = tempfile::tempdir().unwrap();
        for (node, list) in [("node0", "0-1,4\n"), ("node1", "2-3\n"), ("node2", "\n")] {
            let node = nodes.path().join(node);
            std::fs::create_dir(&node).unwrap();
            std::fs::write(node.join("cpulist"), list).unwrap();
        }
        let read = |text| Cores::read(text, nodes.path()).map_err(|error| error.to_string());
        for (text, numbers) in
            [("node0", vec![0, 1, 4]), ("node1,node0", vec![2, 3, 0, 1, 4]), ("7, node1", vec![7, 2, 3])]
        {
            assert_eq!(read(text), Ok(Cores(numbers)), "{text}");
        }
        assert_eq!(read("node1,3"), Err("processor 3 is given twice".into()));
        let advice = "`lscpu` shows the nodes and their processors, which can be given by number";
        assert_eq!(read("node2"), Err(format!("node2 has no processors, only memory; {advice}")));
        let path = nodes.path().join("node3/cpulist");
        assert_eq!(
            read("node3"),
            Err(format!("node3: {}: No such file or directory (os error 2); {advice}", path.display()))
        );
    }

    #[test]
    fn a_count_must_fit_the_cores() {
        let read =
            |text: &str| toml::from_str::<Reactors>(text).unwrap().validate().map_err(|e| e.to_string());
        assert_eq!(read("count = 2\ncores = \"0-1\""), Ok(()));
        assert_eq!(
            read("count = 3\ncores = \"0-1\""),
            Err("there are 3 reactors and 2 cores for them; leave count out".into())
        );
        assert_eq!(read("count = 0"), Err("must be 1 to 1024, not 0".into()));
        assert_eq!(toml::from_str::<Reactors>("").unwrap(), Reactors::default());
    }

    #[test]
    fn how_they_wait_is_a_word() {
        let read = |text: &str| toml::from_str::<Reactors>(text).map(|reactors| reactors.poll);
        for (word, poll) in [("adaptive", Poll::Adaptive), ("always", Poll::Always), ("never", Poll::Never)] {
            assert_eq!(read(&format!("poll = \"{word}\"")).unwrap(), poll);
        }
        assert_eq!((read("poll = true"), read("poll = false")), (Ok(Poll::Always), Ok(Poll::Adaptive)));
        let error = read("poll = \"now\"").unwrap_err().to_string();
        assert!(error.contains("\"now\" is not known; use adaptive"), "{error}");
        let error = read("poll = 1").unwrap_err().to_string();
        assert!(error.contains("expected \"adaptive\", \"always\" or \"never\""), "{error}");
    }
}
