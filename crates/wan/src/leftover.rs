//! What is found of a network whose process is gone: processes that have its mark in their environment.
//!
//! The mark is the process's number and when it began, which no other process of this boot has. A mark alone would not do: in another
//! namespace of process numbers nobody is found by it. So those are left over, too, only in whose network there is no end of a link.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::process::geteuid;

use crate::emulator::{FAR, NEAR};
use crate::inhabitants::{end_all, file, network_of, processes};

/// The variable with the mark.
const VARIABLE: &str = "LUNETTE_NETWORK";

/// Processes of a network that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The process that carried the network's packets, which is gone.
    pub owner: u32,
    /// Those that are left, in order.
    pub processes: Vec<u32>,
}

/// Marks a command as one of a network that a process carries.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn mark(command: &mut Command, owner: u32) -> io::Result<()> {
    let began = began(owner).ok_or_else(|| io::Error::other("a process does not say when it began"))?;
    command.env(VARIABLE, format!("{owner}/{began}"));
    Ok(())
}

/// Of no network.
pub(crate) fn unmark(command: &mut Command) {
    command.env_remove(VARIABLE);
}

/// When a process began, in clock ticks since the system did (proc(5), stat); none of one that has ended, waited for or not.
fn began(pid: u32) -> Option<u64> {
    began_in(&fs::read_to_string(file(pid, "stat")).ok()?)
}

fn began_in(stat: &str) -> Option<u64> {
    // Behind the name, which may have anything in it, the state is the first of all.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| !has_ended)
}

fn owner_in(environment: &[u8]) -> Option<(u32, u64)> {
    let value = environment.split(|byte| *byte == 0).find_map(|variable| {
        variable.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_owned)
    })?;
    let (owner, began) = std::str::from_utf8(&value).ok()?.split_once('/')?;
    Some((owner.parse().ok()?, began.parse().ok()?))
}

/// The process that is gone and whose network this one was in; none if it was in none, or that is there.
fn owner_gone(pid: u32) -> Option<u32> {
    let (owner, since) = owner_in(&fs::read(file(pid, "environ")).ok()?)?;
    let table = fs::read_to_string(file(pid, "net/dev")).ok()?;
    let has_end = |table: &str| {
        let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
        names.into_iter().any(|name| name == NEAR.name || name == FAR.name)
    };
    // Another user's are his own affair.
    let is_this_users = fs::metadata(file(pid, "")).is_ok_and(|process| process.uid() == geteuid().as_raw());
    // Whoever asks from there is no leftover, nor is who has left for the machine's own network.
    let elsewhere = [std::process::id(), 1].map(network_of);
    let is_elsewhere = network_of(pid).is_none_or(|network| elsewhere.contains(&Some(network)));
    (is_this_users && began(owner) != Some(since) && !is_elsewhere && !has_end(&table)).then_some(owner)
}

/// What networks have left that are gone, as far as this user may know.
#[must_use]
pub fn leftovers() -> Vec<Leftover> {
    let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in processes() {
        if let Some(owner) = owner_gone(pid) {
            found.entry(owner).or_default().push(pid);
        }
    }
    let leftover = |(owner, mut processes): (u32, Vec<u32>)| {
        processes.sort_unstable();
        Leftover { owner, processes }
    };
    found.into_iter().map(leftover).collect()
}

/// Ends all of that; answers what there was, and what is there all the same.
#[must_use]
pub fn end_leftovers() -> (Vec<Leftover>, Vec<Leftover>) {
    let found = leftovers();
    let find = || leftovers().into_iter().flat_map(|leftover| leftover.processes).collect();
    end_all(find, |pid| owner_gone(pid).is_some());
    (found, leftovers())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_and_nothing_else_is_one() {
        assert_eq!(owner_in(b"A=b\0LUNETTE_NETWORK=12/345\0C=d\0"), Some((12, 345)));
        for other in [&b""[..], b"XLUNETTE_NETWORK=1/2\0", b"LUNETTE_NETWORK=\0", b"LUNETTE_NETWORK=1\0"] {
            assert_eq!(owner_in(other), None, "{other:?}");
        }
        assert_eq!(owner_in(b"LUNETTE_NETWORK=\xff/1\0"), None);
    }

    #[test]
    fn who_has_ended_and_is_not_waited_for_is_gone() {
        let stat = |state: &str| format!("7 (a ) b) {state} 1 7 7 0 -1 4 0 0 0 0 1 2 0 0 20 0 1 0 4711 0 0");
        assert_eq!(began_in(&stat("S")), Some(4711));
        assert_eq!((began_in(&stat("Z")), began_in(&stat("X")), began_in("7 (a) S 1")), (None, None, None));
    }

    #[test]
    fn who_is_there_is_known_by_when_he_began() {
        let own = std::process::id();
        let mut command = Command::new("true");
        mark(&mut command, own).expect("this process is there");
        let value = command.get_envs().find(|pair| pair.0 == VARIABLE).and_then(|pair| pair.1);
        let value = value.expect("a mark").to_str().expect("digits");
        assert_eq!(value.split_once('/').expect("two numbers").0, own.to_string());
        assert_eq!(owner_gone(own), None);
        assert!(mark(&mut command, u32::MAX).is_err());
    }
}
