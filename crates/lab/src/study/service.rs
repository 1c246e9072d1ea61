//! A second target at the far end of a site, for one run: with another store, other users, or more targets.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Child;

use lunette_initiator::{IscsiName, Lun, Options, Portal};
use lunette_wan::FAR;

use super::memory::MemoryBound;
use super::site::{Site, TARGET, serve, timing};
use crate::LabError;

/// Where it listens.
pub(crate) const PORT: u16 = 3261;

/// It ends when it is dropped.
pub(crate) struct Service(Child);

impl Service {
    /// Starts it. `targets` is what the configuration has behind the portals; secrets are variables and their values.
    pub(crate) fn start(
        site: &Site,
        binary: &Path,
        targets: &str,
        secrets: &[(&str, &str)],
    ) -> Result<Self, LabError> {
        let targets = with_limits(targets, &site.ends().limits);
        let targets = site.ends().with_write(&targets);
        let configuration = format!("portals = [\"{}:{PORT}\"]\n\n{targets}\n", FAR.ipv4);
        serve(site.emulator()?, binary, &configuration, secrets).map(Self)
    }

    /// Puts it under a bound of memory.
    pub(crate) fn bind(&self, bound: &MemoryBound) -> io::Result<()> {
        bound.take_in(self.0.id())
    }

    /// What it has had read from disks so far, in bytes (proc(5), `read_bytes`).
    pub(crate) fn read_bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/io", self.0.id()))?;
        let value = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.trim().parse().ok());
        value.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// How to log in to its first target.
    pub(crate) fn options() -> Result<(Options, Lun), LabError> {
        let name = IscsiName::parse(TARGET).map_err(|error| LabError::Plan(error.to_string()))?;
        let mut options = Options::new(name, Portal::new(FAR.ipv4.to_string(), PORT));
        options.timing = timing();
        Ok((options, Lun::default()))
    }

    /// The configuration of a target with one unit; `more` are further lines of the unit.
    pub(crate) fn target(name: &str, store: &str, more: &str) -> String {
        let store = quoted(store);
        format!("[[target]]\nname = \"{name}\"\n\n[[target.lun]]\nnumber = 0\nstore = {store}\n{more}\n")
    }
}

/// A configuration whose table of limits, its last if it has one, has those of another, too; for what both limit, the other's.
fn with_limits(targets: &str, limits: &str) -> String {
    const TABLE: &str = "[limits]";
    let Some((before, own)) = targets.split_once(TABLE).filter(|_| limits.contains(TABLE)) else {
        return format!("{targets}\n{limits}");
    };
    let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    let others: Vec<String> = limits.lines().map(key).collect();
    let mut kept: Vec<&str> = own.lines().collect();
    kept.retain(|line| !line.trim().is_empty() && !others.contains(&key(line)));
    format!("{before}\n{limits}\n{}\n", kept.join("\n"))
}

/// A string of TOML (TOML 1.0.0, String): what would end it, begin an escape, or may not be in it is escaped.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            _ if character.is_control() => quoted += &format!("\\u{:04X}", u32::from(character)),
            _ => quoted.push(character),
        }
    }
    quoted + "\""
}

impl Drop for Service {
    fn drop(&mut self) {
        // What it was to make stable, a flush has made so.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Option<String> {
        let table: toml::Table = format!("text = {}\n", quoted(text)).parse().ok()?;
        Some(table.get("text")?.as_str()?.to_owned())
    }

    #[test]
    fn what_is_set_replaces_what_a_study_limits() {
        let target = Service::target(TARGET, "mem:1M", "");
        for (own, set, window, length) in [
            ("", "", None, None),
            ("\n[limits]\nlength = 1\n", "", None, Some(1)),
            ("", "[limits]\nwindow = 2\n", Some(2), None),
            ("\n[limits]\nlength = 1\n", "[limits]\nwindow = 2\n", Some(2), Some(1)),
            ("\n[limits]\nlength = 1\n", "[limits]\nlength = 3\nwindow = 2\n", Some(2), Some(3)),
        ] {
            let text = with_limits(&format!("{target}{own}"), set);
            let table: toml::Table = text.parse().expect("a configuration");
            let of = |key: &str| table.get("limits")?.get(key)?.as_integer();
            assert_eq!((of("window"), of("length")), (window, length), "{text}");
            assert!(table.contains_key("target"), "{text}");
        }
    }

    #[test]
    fn names_that_a_debugger_would_write_in_another_way_are_read_as_they_are() {
        for text in [
            "/var/tmp/a \"b\" \\u0041",
            "/tmp/tab\t\u{1b}\u{7f}\u{85}\r\n",
            "/tmp/it's\0",
            "/tmp/\u{200b}\u{e9}\u{301}",
        ] {
            assert_eq!(read(text).as_deref(), Some(text));
        }
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(256))]

        #[test]
        fn every_string_is_read_as_it_is(text in any::<String>()) {
            prop_assert_eq!(read(&text), Some(text));
        }
    }
}
