//! Workloads with names: the ten access profiles of Trinkle's comparison of iSCSI targets, table 3.3.

use crate::{Percent, Sizes, Spread, Workload, WorkloadError};

/// A workload with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// How it is asked for.
    pub name: &'static str,
    /// The size of each operation in bytes.
    pub size_bytes: u32,
    /// How many of a hundred operations read.
    pub read: Percent,
    /// How many of a hundred do not go on where the last one ended.
    pub random: Percent,
    /// Operations under way at once.
    pub depth: u32,
}

const fn profile(name: &'static str, size_bytes: u32, read: u8, random: u8, depth: u32) -> Profile {
    Profile { name, size_bytes, read: Percent::new(read), random: Percent::new(random), depth }
}

const PROFILES: [Profile; 10] = [
    profile("max-throughput", 512 << 10, 100, 0, 32),
    profile("max-iops", 512, 100, 0, 32),
    profile("max-write-throughput", 512 << 10, 0, 100, 32),
    profile("max-write-iops", 512, 0, 100, 32),
    profile("exchange-2003", 4 << 10, 60, 80, 12),
    profile("exchange-2007", 8 << 10, 55, 80, 12),
    profile("sql-16k", 16 << 10, 66, 100, 16),
    profile("sql-64k", 64 << 10, 66, 100, 16),
    profile("web-server", 8 << 10, 95, 75, 4),
    profile("workstation", 8 << 10, 80, 80, 4),
];

/// All of them.
#[must_use]
pub const fn profiles() -> &'static [Profile] {
    &PROFILES
}

pub(crate) fn names() -> String {
    PROFILES.map(|profile| profile.name).join(", ")
}

impl Profile {
    /// What it does.
    #[must_use]
    pub fn workload(&self) -> Workload {
        Workload {
            sizes: Sizes::one(self.size_bytes),
            read: self.read,
            random: self.random,
            spread: Spread::Uniform,
        }
    }
}

impl std::str::FromStr for Profile {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let found = PROFILES.iter().find(|profile| profile.name == text).copied();
        found.ok_or_else(|| WorkloadError::Profile { name: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_by_their_names() {
        for profile in profiles() {
            assert_eq!(profile.name.parse(), Ok(*profile));
            assert_eq!(profile.workload().sizes.largest(), profile.size_bytes);
        }
        let error = "sql".parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains("sql-64k"), "{error}");
    }
}
