//! `[limits]`: what the target grants, to one initiator and to all together.
//!
//! Not here: what follows from these numbers in a login (`lunette_iscsi::parameters`).

use std::fmt;
use std::str::FromStr;

use lunette_iscsi::parameters::{CONNECTIONS_MAX, DigestPolicy, TargetLimits};
use serde::de::{self, Deserialize, Deserializer};

use super::Invalid;
use super::size::Size;
use super::value::{self, Parsed, ValueError};

/// The smallest value of the length keys of RFC 7143, 13.12 to 13.14.
const LENGTH_MIN: u64 = 512;
/// The largest: 24 bits.
const LENGTH_MAX: u64 = (1 << 24) - 1;
/// A day is longer than anybody waits.
const TIME_MAX_S: u64 = 86_400;
/// Two of the longest commands, 16 MiB each.
const BUFFER_MEMORY_MIN: u64 = 32 << 20;
/// A bound that no machine reaches today.
const BUFFER_MEMORY_MAX: u64 = 1 << 50;

/// What the target grants. Every value has a range, which is checked where a file is read, and a default with a reason.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Commands that one session may have outstanding, 1 to 4096. Default 128: as much as Linux and ESXi queue.
    #[serde(deserialize_with = "ranged::<1, 4096, _, _>")]
    pub window_depth: u16,
    /// MaxRecvDataSegmentLength, the longest data segment that is received, in bytes, 512 to 2^24 - 1. Default 256 KiB:
    /// what Linux and libiscsi send at most.
    #[serde(deserialize_with = "ranged_bytes::<LENGTH_MIN, LENGTH_MAX, _, _>")]
    pub max_recv_data_segment_length_bytes: u32,
    /// FirstBurstLength, the most data that a command may send unasked, in bytes, 512 to 2^24 - 1 and not above
    /// `max_burst_length_bytes`. Default 256 KiB: what Linux and libiscsi offer; up to there a write needs no round
    /// trip of its own.
    #[serde(deserialize_with = "ranged_bytes::<LENGTH_MIN, LENGTH_MAX, _, _>")]
    pub first_burst_length_bytes: u32,
    /// MaxBurstLength, the most data that one R2T asks for, in bytes, 512 to 2^24 - 1. Default 16 MiB - 4 KiB, the
    /// largest multiple of 4 KiB: even the longest write then needs one round trip on a long link.
    #[serde(deserialize_with = "ranged_bytes::<LENGTH_MIN, LENGTH_MAX, _, _>")]
    pub max_burst_length_bytes: u32,
    /// MaxOutstandingR2T, R2Ts that one command may have outstanding, 1 to 65535. Default 16: what Windows offers;
    /// Linux, ESXi and libiscsi take 1 whatever the target says.
    #[serde(deserialize_with = "ranged::<1, 65535, _, _>")]
    pub max_outstanding_r2t: u16,
    /// MaxConnections, connections that one session may have, 1 to 32. Default 8: more than most hosts have links, while
    /// one session's share of `connections_max` stays small. Linux, ESXi and libiscsi use 1 whatever the target says.
    #[serde(deserialize_with = "ranged::<1, { CONNECTIONS_MAX as u64 }, _, _>")]
    pub max_connections: u16,
    /// ErrorRecoveryLevel, 0 to 2; the initiator may want less. Default 0: Linux, ESXi and libiscsi use no other, and above it
    /// reads are kept until they are acknowledged, are never sent straight from the page cache, and a write has one R2T at
    /// a time.
    #[serde(deserialize_with = "ranged::<0, 2, _, _>")]
    pub error_recovery_level: u8,
    /// DefaultTime2Wait, the least time before an initiator comes back for what a lost connection has left, in seconds, 0 to
    /// 3600; the larger of both sides' values holds. Default 0: at once.
    #[serde(deserialize_with = "ranged::<0, 3600, _, _>")]
    pub time2wait_s: u16,
    /// DefaultTime2Retain, how long after that a lost connection's tasks, and a session without a connection, are kept at
    /// ErrorRecoveryLevel 2, in seconds, 0 to 3600; the smaller of both sides' values holds. Below that level 0 is answered.
    /// Default 20, as in RFC 7143: a switch has failed over by then, and SCSI's own time limit (30 s and more) has not passed.
    #[serde(deserialize_with = "ranged::<0, 3600, _, _>")]
    pub time2retain_s: u16,
    /// Sessions without a connection that are kept for `time2retain_s` at a time, 0 to 65536; a further one ends at once, as at
    /// a lower level. Default 256: more hosts than one switch has, while strangers who come and go cost a bounded memory.
    #[serde(deserialize_with = "ranged::<0, 65536, _, _>")]
    pub retained_sessions_max: usize,
    /// HeaderDigest: `allow`, `require` or `refuse`. Default `allow`: the initiator knows its network.
    #[serde(deserialize_with = "digest_policy")]
    pub header_digest: DigestPolicy,
    /// DataDigest: `allow`, `require` or `refuse`. Default `allow`, as for `header_digest`.
    #[serde(deserialize_with = "digest_policy")]
    pub data_digest: DigestPolicy,
    /// Silence after which an initiator is asked whether it is still there (NOP-In), in seconds, 0 (never) to 86400.
    /// Default 30: with the timeout, a dead initiator is noticed within a minute, as with LIO and SCST.
    #[serde(deserialize_with = "ranged::<0, TIME_MAX_S, _, _>")]
    pub nop_interval_s: u32,
    /// How long the answer may take before the connection is dropped, in seconds, 1 to 86400. Default 30.
    #[serde(deserialize_with = "ranged::<1, TIME_MAX_S, _, _>")]
    pub nop_timeout_s: u32,
    /// How long a login may take from the first byte to the last, in seconds, 1 to 3600. Default 15: what LIO gives
    /// and what Linux waits for.
    #[serde(deserialize_with = "ranged::<1, 3600, _, _>")]
    pub login_timeout_s: u32,
    /// Failed logins that one address, or one CHAP name, may have against it at a time, 1 to 1000; with so many, a further
    /// one is put off (status 0301) without a look at its response. Default 10: enough for somebody who types a secret
    /// anew, and for some paths of a host whose secret is an old one.
    #[serde(deserialize_with = "ranged::<1, 1000, _, _>")]
    pub login_failures_max: u32,
    /// After how long one of them is forgiven, in seconds, 1 to 3600. Default 6: ten a minute, at which guessing even a
    /// poor secret takes years.
    #[serde(deserialize_with = "ranged::<1, 3600, _, _>")]
    pub login_failure_forgiven_s: u32,
    /// Connections that have not logged in yet, 1 to 65536; for one more the oldest goes. Default 512: a rack of hosts
    /// that start together, while what strangers can hold stays at a few MiB.
    #[serde(deserialize_with = "ranged::<1, 65536, _, _>")]
    pub half_open_max: usize,
    /// Connections in all, 1 to 1048576; one more is closed at once. Default 4096: more than one machine feeds, and a
    /// bound to the descriptors that are used.
    #[serde(deserialize_with = "ranged::<1, 1_048_576, _, _>")]
    pub connections_max: usize,
    /// Memory for the data of running commands, in bytes, 32 MiB to 1 PiB. No session takes more of it than it leaves to
    /// the others: one alone gets half, two a third each; half of it is for data that comes unasked. When nothing is left, a write waits
    /// until it is asked for its data, and any other command ends with TASK SET FULL and is tried again by its initiator, which is given
    /// a narrower command window for a while. Default 512 MiB: three sessions whose 128 commands have 1 MiB each, with as
    /// much left for a fourth.
    #[serde(deserialize_with = "ranged_bytes::<BUFFER_MEMORY_MIN, BUFFER_MEMORY_MAX, _, _>")]
    pub buffer_memory_bytes: u64,
    /// How long a drain waits for initiators to log out before it drops their connections, in seconds, 0 to 3600.
    /// Default 5: half of what service managers and containers give a process before they kill it.
    #[serde(deserialize_with = "ranged::<0, 3600, _, _>")]
    pub drain_timeout_s: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let negotiated = TargetLimits::default();
        Self {
            window_depth: 128,
            max_recv_data_segment_length_bytes: negotiated.max_recv_data_segment_length,
            first_burst_length_bytes: negotiated.first_burst_length,
            max_burst_length_bytes: negotiated.max_burst_length,
            max_outstanding_r2t: negotiated.max_outstanding_r2t,
            max_connections: negotiated.max_connections,
            error_recovery_level: negotiated.error_recovery_level,
            time2wait_s: negotiated.default_time2wait_s,
            time2retain_s: 20,
            retained_sessions_max: 256,
            header_digest: negotiated.header_digest,
            data_digest: negotiated.data_digest,
            nop_interval_s: 30,
            nop_timeout_s: 30,
            login_timeout_s: 15,
            login_failures_max: 10,
            login_failure_forgiven_s: 6,
            half_open_max: 512,
            connections_max: 4096,
            buffer_memory_bytes: 512 << 20,
            drain_timeout_s: 5,
        }
    }
}

impl Limits {
    /// What a login may agree to, as the negotiation takes it. What is no limit here keeps that crate's default.
    #[must_use]
    pub fn to_target_limits(&self) -> TargetLimits {
        TargetLimits {
            max_recv_data_segment_length: self.max_recv_data_segment_length_bytes,
            max_burst_length: self.max_burst_length_bytes,
            first_burst_length: self.first_burst_length_bytes,
            max_outstanding_r2t: self.max_outstanding_r2t,
            max_connections: self.max_connections,
            error_recovery_level: self.error_recovery_level,
            default_time2wait_s: self.time2wait_s,
            // Below level 2 nothing is retained.
            default_time2retain_s: if self.error_recovery_level > 1 { self.time2retain_s } else { 0 },
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            command_window: self.window_depth.into(),
            ..TargetLimits::default()
        }
    }

    /// Checks the rules between limits.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.first_burst_length_bytes > self.max_burst_length_bytes {
            // 13.14 demands it of what is negotiated, so the target must not ask for anything else.
            let message = format!(
                "first_burst_length_bytes ({}) must not be above max_burst_length_bytes ({})",
                self.first_burst_length_bytes, self.max_burst_length_bytes
            );
            return Err(Invalid::new(["limits".into(), "first_burst_length_bytes".into()], message));
        }
        Ok(())
    }
}

/// A plain whole number.
struct Number(u64);

impl FromStr for Number {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        text.parse().map(Self).map_err(|_| ValueError(format!("{text:?} is not a whole number here")))
    }
}

fn ranged<'de, const MIN: u64, const MAX: u64, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let Parsed(Number(number)) = Deserialize::deserialize(deserializer)?;
    within::<MIN, MAX, T>(number).ok_or_else(|| out_of_range(number, MIN, MAX))
}

/// As `ranged`, with units: `"64K"`.
fn ranged_bytes<'de, const MIN: u64, const MAX: u64, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let Parsed(size): Parsed<Size> = Deserialize::deserialize(deserializer)?;
    within::<MIN, MAX, T>(size.bytes()).ok_or_else(|| {
        let text =
            |bytes| Size::from_bytes(bytes).map_or_else(|_| bytes.to_string(), |size| size.to_string());
        out_of_range(size, text(MIN), text(MAX))
    })
}

fn within<const MIN: u64, const MAX: u64, T: TryFrom<u64>>(number: u64) -> Option<T> {
    (MIN..=MAX).contains(&number).then(|| T::try_from(number).ok()).flatten()
}

fn out_of_range<T: fmt::Display, E: de::Error>(found: impl fmt::Display, min: T, max: T) -> E {
    E::custom(format!("must be {min} to {max}, not {found}"))
}

fn digest_policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DigestPolicy, D::Error> {
    let word = String::deserialize(deserializer)?;
    value::parse_digest_policy(&word).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Limits, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn nothing_said_means_the_defaults() {
        let limits = read("").unwrap();
        assert_eq!(limits, Limits::default());
        assert_eq!(limits.max_burst_length_bytes, 16 * 1024 * 1024 - 4096);
        limits.validate().unwrap();
        assert_eq!(limits.to_target_limits(), TargetLimits::default());
    }

    #[test]
    fn every_limit_can_be_set() {
        let limits = read(
            "window_depth = 64\nmax_recv_data_segment_length_bytes = \"64K\"\n\
             first_burst_length_bytes = 65536\nmax_burst_length_bytes = \"1M\"\nmax_outstanding_r2t = 1\n\
             max_connections = 2\nerror_recovery_level = 2\ntime2wait_s = 3\ntime2retain_s = 60\n\
             retained_sessions_max = 9\nheader_digest = \"require\"\ndata_digest = \"refuse\"\nnop_interval_s = 0\nnop_timeout_s = 5\n\
             login_timeout_s = 60\nlogin_failures_max = 3\nlogin_failure_forgiven_s = 60\nhalf_open_max = 8\nconnections_max = 100\nbuffer_memory_bytes = \"1G\"\n\
             drain_timeout_s = 0\n",
        );
        let wanted = Limits {
            window_depth: 64,
            max_recv_data_segment_length_bytes: 65536,
            first_burst_length_bytes: 65536,
            max_burst_length_bytes: 1 << 20,
            max_outstanding_r2t: 1,
            max_connections: 2,
            error_recovery_level: 2,
            time2wait_s: 3,
            time2retain_s: 60,
            retained_sessions_max: 9,
            header_digest: DigestPolicy::Required,
            data_digest: DigestPolicy::Refused,
            nop_interval_s: 0,
            nop_timeout_s: 5,
            login_timeout_s: 60,
            login_failures_max: 3,
            login_failure_forgiven_s: 60,
            half_open_max: 8,
            connections_max: 100,
            buffer_memory_bytes: 1 << 30,
            drain_timeout_s: 0,
        };
        assert_eq!(limits.as_ref(), Ok(&wanted));
        let negotiated = TargetLimits {
            max_recv_data_segment_length: 65536,
            max_burst_length: 1 << 20,
            first_burst_length: 65536,
            max_outstanding_r2t: 1,
            max_connections: 2,
            error_recovery_level: 2,
            default_time2wait_s: 3,
            default_time2retain_s: 60,
            header_digest: DigestPolicy::Required,
            data_digest: DigestPolicy::Refused,
            command_window: 64,
            ..TargetLimits::default()
        };
        assert_eq!(wanted.to_target_limits(), negotiated);
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        for (text, message) in [
            ("window_depth = 0", "must be 1 to 4096, not 0"),
            ("window_depth = 70000", "must be 1 to 4096, not 70000"),
            ("window_depth = -1", "\"-1\" is not a whole number here"),
            ("window_depth = 1.5", "invalid type: floating point `1.5`, expected a string or a whole number"),
            ("max_connections = 33", "must be 1 to 32, not 33"),
            ("max_burst_length_bytes = \"16M\"", "must be 512 to 16777215, not 16M"),
            ("buffer_memory_bytes = 1024", "must be 32M to 1P, not 1K"),
            (
                "header_digest = \"yes\"",
                "\"yes\" is not known; use allow (the initiator decides), require or refuse",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn bursts_must_fit_each_other() {
        let limits = Limits { max_burst_length_bytes: 65536, ..Limits::default() };
        let message = limits.validate().unwrap_err().to_string();
        assert_eq!(
            message,
            "first_burst_length_bytes (262144) must not be above max_burst_length_bytes (65536)"
        );
    }
}
