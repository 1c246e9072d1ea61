//! What a user sets for all cells of a study, in the place of what the study chooses: keys of sessions, and what is around them.

use std::fmt;
use std::str::FromStr;

use lunette_initiator::{DigestWish, Wishes};
use lunette_workload::SIZE_BYTES_MAX;

use super::site::BLOCK_BYTES;
use crate::{DEPTH_MAX, LabError};

/// The lengths that keys take, in bytes (RFC 7143, 13.12 to 13.14).
const LENGTHS: std::ops::RangeInclusive<u32> = 512..=(1 << 24) - 1;
/// What our target takes for MaxConnections.
const CONNECTIONS_MAX: u32 = 32;
/// The lengths of packets that a link takes, in bytes (`lunette_link::Link`).
const MTUS: std::ops::RangeInclusive<u32> = 576..=65_535;
/// What TCP's buffers may hold, in bytes of data. The kernel has as much again for each, and a number of 31 bits for both.
const TCP_BUFFERS: std::ops::RangeInclusive<u32> = 4096..=128 << 20;
/// What sessions have where their depth is another one, in commands; our target's own default.
const WINDOW_MIN: u32 = 128;

/// What can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    HeaderDigest,
    DataDigest,
    MaxRecvDataSegmentLength,
    FirstBurstLength,
    MaxBurstLength,
    MaxOutstandingR2T,
    ImmediateData,
    InitialR2T,
    MaxConnections,
    Depth,
    RequestBytes,
    TcpBufferBytes,
    Mtu,
    Write,
}

impl Key {
    const ALL: [Self; 14] = [
        Self::HeaderDigest,
        Self::DataDigest,
        Self::MaxRecvDataSegmentLength,
        Self::FirstBurstLength,
        Self::MaxBurstLength,
        Self::MaxOutstandingR2T,
        Self::ImmediateData,
        Self::InitialR2T,
        Self::MaxConnections,
        Self::Depth,
        Self::RequestBytes,
        Self::TcpBufferBytes,
        Self::Mtu,
        Self::Write,
    ];

    /// As RFC 7143 writes it, if it is a key of that.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HeaderDigest => "HeaderDigest",
            Self::DataDigest => "DataDigest",
            Self::MaxRecvDataSegmentLength => "MaxRecvDataSegmentLength",
            Self::FirstBurstLength => "FirstBurstLength",
            Self::MaxBurstLength => "MaxBurstLength",
            Self::MaxOutstandingR2T => "MaxOutstandingR2T",
            Self::ImmediateData => "ImmediateData",
            Self::InitialR2T => "InitialR2T",
            Self::MaxConnections => "MaxConnections",
            Self::Depth => "depth",
            Self::RequestBytes => "request_bytes",
            Self::TcpBufferBytes => "tcp_buffer_bytes",
            Self::Mtu => "mtu",
            Self::Write => "write",
        }
    }

    /// What stands for each of its values, and which values there are.
    fn read(self, text: &str) -> Result<u32, String> {
        let word = |no: &str, yes: &str| match text {
            _ if text == no => Ok(0),
            _ if text == yes => Ok(1),
            _ => Err(format!("{yes} or {no}")),
        };
        let number = |range: std::ops::RangeInclusive<u32>| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            let found = text.parse().ok().filter(|number| is_plain && range.contains(number));
            found.ok_or_else(|| format!("{} to {}", range.start(), range.end()))
        };
        match self {
            Self::HeaderDigest | Self::DataDigest => word("None", "CRC32C"),
            Self::ImmediateData | Self::InitialR2T => word("No", "Yes"),
            Self::MaxRecvDataSegmentLength | Self::FirstBurstLength | Self::MaxBurstLength => number(LENGTHS),
            Self::MaxOutstandingR2T => number(1..=65_535),
            Self::MaxConnections => number(1..=CONNECTIONS_MAX),
            Self::Depth => number(1..=DEPTH_MAX),
            Self::RequestBytes => {
                let lengths = BLOCK_BYTES..=SIZE_BYTES_MAX;
                let whole = number(lengths.clone()).ok().filter(|length| length.is_multiple_of(BLOCK_BYTES));
                whole.ok_or_else(|| {
                    format!("a multiple of {BLOCK_BYTES} from {} to {}", lengths.start(), lengths.end())
                })
            }
            Self::TcpBufferBytes => number(TCP_BUFFERS),
            Self::Mtu => number(MTUS),
            Self::Write => word("back", "through"),
        }
    }
}

/// A key with its value: `DataDigest=CRC32C`, `FirstBurstLength=65536`, `depth=8`, `mtu=9000`, `write=through`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    pub(crate) key: Key,
    /// A number, or 1 for what is on.
    number: u32,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| "give a key and its value, as DataDigest=CRC32C".to_owned())?;
        let key = Key::ALL.into_iter().find(|key| key.name().eq_ignore_ascii_case(name));
        let key = key.ok_or_else(|| {
            let names = Key::ALL.map(Key::name).join(", ");
            format!("{name:?} is no key that can be set; there are {names}")
        })?;
        let number = key.read(value).map_err(|values| format!("{} is {values}", key.name()))?;
        Ok(Self { key, number })
    }
}

impl Setting {
    /// Its value as it is given.
    pub(crate) fn value(self) -> String {
        match (self.key, self.number) {
            (Key::HeaderDigest | Key::DataDigest, 0) => "None".to_owned(),
            (Key::HeaderDigest | Key::DataDigest, _) => "CRC32C".to_owned(),
            (Key::ImmediateData | Key::InitialR2T, 0) => "No".to_owned(),
            (Key::ImmediateData | Key::InitialR2T, _) => "Yes".to_owned(),
            (Key::Write, 0) => "back".to_owned(),
            (Key::Write, _) => "through".to_owned(),
            (_, number) => number.to_string(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key.name(), self.value())
    }
}

/// What is set, in one text.
pub(crate) fn text(settings: &[Setting]) -> String {
    settings.iter().map(Setting::to_string).collect::<Vec<_>>().join(", ")
}

/// The keys that are set, in one text.
pub(crate) fn names(settings: &[Setting]) -> String {
    settings.iter().map(|setting| setting.key.name()).collect::<Vec<_>>().join(", ")
}

/// Sees whether they go together.
///
/// # Errors
/// One is given twice, or FirstBurstLength is above MaxBurstLength (RFC 7143, 13.14).
pub(crate) fn check(settings: &[Setting]) -> Result<(), LabError> {
    for (at, setting) in settings.iter().enumerate() {
        if settings[..at].iter().any(|before| before.key == setting.key) {
            return Err(LabError::Plan(format!("{} is set twice", setting.key.name())));
        }
    }
    let (first, burst) = (find(settings, Key::FirstBurstLength), find(settings, Key::MaxBurstLength));
    if first.zip(burst).is_some_and(|(first, burst)| first > burst) {
        return Err(LabError::Plan("FirstBurstLength must not be above MaxBurstLength".to_owned()));
    }
    Ok(())
}

/// The number of one of them.
pub(crate) fn find(settings: &[Setting], key: Key) -> Option<u32> {
    settings.iter().find(|setting| setting.key == key).map(|setting| setting.number)
}

/// What TCP's buffers are to hold, in bytes of data.
pub(crate) fn tcp_buffer(settings: &[Setting]) -> Option<usize> {
    find(settings, Key::TcpBufferBytes).and_then(|bytes| usize::try_from(bytes).ok())
}

/// Has a session wish for them. The length of a burst that is not set follows the other one.
pub(crate) fn wish(settings: &[Setting], wishes: &mut Wishes) {
    let digest = |number| if number == 1 { DigestWish::Required } else { DigestWish::Refused };
    for Setting { key, number } in settings.iter().copied() {
        match key {
            Key::HeaderDigest => wishes.header_digest = digest(number),
            Key::DataDigest => wishes.data_digest = digest(number),
            Key::MaxRecvDataSegmentLength => wishes.max_recv_data_segment_length = number,
            Key::FirstBurstLength => {
                wishes.first_burst_length = number;
                wishes.max_burst_length = wishes.max_burst_length.max(number);
            }
            Key::MaxBurstLength => {
                wishes.max_burst_length = number;
                wishes.first_burst_length = wishes.first_burst_length.min(number);
            }
            // Read as a number of 16 bits.
            Key::MaxOutstandingR2T => {
                wishes.max_outstanding_r2t = u16::try_from(number).unwrap_or(u16::MAX);
            }
            Key::ImmediateData => wishes.immediate_data = number == 1,
            Key::InitialR2T => wishes.initial_r2t = number == 1,
            // These are not of a session's keys alone, or of none.
            Key::MaxConnections
            | Key::Depth
            | Key::RequestBytes
            | Key::TcpBufferBytes
            | Key::Mtu
            | Key::Write => {}
        }
    }
}

/// What a target of ours has to grant for it, as its configuration says it; empty where nothing is set.
fn limits(settings: &[Setting]) -> String {
    let mut lines = String::new();
    let mut add = |name: &str, value: u32| lines += &format!("{name} = {value}\n");
    let (first, burst) = (find(settings, Key::FirstBurstLength), find(settings, Key::MaxBurstLength));
    for Setting { key, number } in settings.iter().copied() {
        match key {
            Key::MaxRecvDataSegmentLength => add("max_recv_data_segment_length_bytes", number),
            Key::FirstBurstLength => add("first_burst_length_bytes", number),
            Key::MaxBurstLength => {
                add("max_burst_length_bytes", number);
                // Its own FirstBurstLength must not be above it.
                if first.is_none() {
                    add("first_burst_length_bytes", number.min(256 << 10));
                }
            }
            Key::MaxOutstandingR2T => add("max_outstanding_r2t", number),
            Key::MaxConnections => add("max_connections", number),
            Key::Depth => add("window_depth", number.max(WINDOW_MIN)),
            // It takes what is wished for, or has nothing to do with it; its disk is no limit.
            Key::HeaderDigest
            | Key::DataDigest
            | Key::ImmediateData
            | Key::InitialR2T
            | Key::RequestBytes
            | Key::TcpBufferBytes
            | Key::Mtu
            | Key::Write => {}
        }
    }
    if let (Some(first), None) = (first, burst)
        && first > (1 << 24) - 4096
    {
        add("max_burst_length_bytes", first);
    }
    if lines.is_empty() { lines } else { format!("[limits]\n{lines}") }
}

/// A link with the MTU that is set, as a link is written.
pub(crate) fn link(settings: &[Setting], link: &str) -> String {
    let Some(mtu) = find(settings, Key::Mtu) else { return link.to_owned() };
    let kept = link.split(',').filter(|part| !part.trim_start().starts_with("mtu="));
    let mtu = format!("mtu={mtu}");
    kept.chain([&*mtu]).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",")
}

/// What of the settings the two ends of a link have besides sessions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends {
    /// What every target of ours has to grant: a `[limits]` table, or nothing.
    pub(crate) limits: String,
    /// What TCP's buffers hold, in bytes of data; none: what the system finds out.
    pub(crate) tcp_buffer_bytes: Option<usize>,
    /// The write mode of all disks of our targets; none: each study's own.
    pub(crate) write: Option<String>,
}

impl Ends {
    pub(crate) fn of(settings: &[Setting]) -> Self {
        let write = settings.iter().find(|setting| setting.key == Key::Write);
        Self {
            limits: limits(settings),
            tcp_buffer_bytes: tcp_buffer(settings),
            write: write.map(|setting| setting.value()),
        }
    }

    /// A target's configuration whose disks have the write mode that is set.
    pub(crate) fn with_write(&self, configuration: &str) -> String {
        self.write.as_ref().map_or_else(|| configuration.to_owned(), |mode| with_write(mode, configuration))
    }
}

/// A target's configuration whose disks all have a write mode.
fn with_write(mode: &str, configuration: &str) -> String {
    let mut text = String::new();
    for line in configuration.lines().filter(|line| !line.starts_with("write = ")) {
        text += line;
        text.push('\n');
        if line.starts_with("store = ") {
            text += &format!("write = \"{mode}\"\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Setting> {
        text.split(' ').map(|one| one.parse().expect("a setting")).collect()
    }

    #[test]
    fn settings_are_read_as_they_are_printed() {
        for text in [
            "HeaderDigest=CRC32C",
            "DataDigest=None",
            "MaxRecvDataSegmentLength=16777215",
            "FirstBurstLength=512",
            "MaxOutstandingR2T=65535",
            "ImmediateData=No",
            "InitialR2T=Yes",
            "MaxConnections=32",
            "depth=4096",
            "request_bytes=16777216",
            "tcp_buffer_bytes=65536",
            "mtu=9000",
            "write=back",
            "write=through",
        ] {
            assert_eq!(text.parse::<Setting>().map(|setting| setting.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("datadigest=CRC32C".parse::<Setting>().map(|setting| setting.key), Ok(Key::DataDigest));
        for (text, answer) in [
            ("depth", "give a key and its value"),
            ("Depth=0", "depth is 1 to 4096"),
            ("MaxBurstLength=511", "512 to 16777215"),
            ("MaxBurstLength=+512", "512 to 16777215"),
            ("InitialR2T=1", "Yes or No"),
            ("DataDigest=MD5", "CRC32C or None"),
            ("request_bytes=0", "request_bytes is a multiple of 512 from 512 to 16777216"),
            ("request_bytes=1000", "a multiple of 512"),
            ("request_bytes=64K", "a multiple of 512"),
            ("request_bytes=16777728", "from 512 to 16777216"),
            ("tcp_buffer_bytes=4095", "tcp_buffer_bytes is 4096 to 134217728"),
            ("mtu=575", "mtu is 576 to 65535"),
            ("mtu=65536", "576 to 65535"),
            ("write=behind", "write is through or back"),
            ("ErrorRecoveryLevel=1", "there are HeaderDigest, DataDigest, MaxRecvDataSegmentLength"),
        ] {
            let refused = text.parse::<Setting>().expect_err(text);
            assert!(refused.contains(answer), "{refused}");
        }
    }

    #[test]
    fn bursts_keep_their_order() {
        assert!(check(&read("FirstBurstLength=65536 MaxBurstLength=65536")).is_ok());
        assert!(check(&read("FirstBurstLength=65537 MaxBurstLength=65536")).is_err());
        assert!(check(&read("depth=1 depth=2")).is_err());
        for text in
            ["FirstBurstLength=16777215", "MaxBurstLength=512", "FirstBurstLength=512 MaxBurstLength=1024"]
        {
            let mut wishes = Wishes::default();
            wish(&read(text), &mut wishes);
            assert!(wishes.first_burst_length <= wishes.max_burst_length, "{text}");
            // A target takes its part of it.
            let limits: toml::Table = limits(&read(text)).parse().expect("TOML");
            let limit = |name: &str, default: i64| {
                limits["limits"].get(name).map_or(Some(default), toml::Value::as_integer)
            };
            let first = limit("first_burst_length_bytes", 256 << 10).expect("a number");
            assert!(first <= limit("max_burst_length_bytes", (1 << 24) - 4096).expect("a number"), "{text}");
        }
        assert_eq!(limits(&read("DataDigest=CRC32C InitialR2T=Yes write=back mtu=9000")), "");
        assert_eq!(limits(&read("depth=4")), "[limits]\nwindow_depth = 128\n");
    }

    #[test]
    fn a_link_has_the_mtu_that_is_set() {
        use lunette_link::Link;

        let settings = read("mtu=9000 depth=2");
        for (text, expected) in [
            ("gige", "gige,mtu=9000"),
            ("gige-jumbo,rtt=2ms", "gige-jumbo,rtt=2ms,mtu=9000"),
            ("gige,mtu=1500,loss=1%", "gige,loss=1%,mtu=9000"),
            ("mtu=1500", "mtu=9000"),
        ] {
            let set = link(&settings, text);
            assert_eq!(set, expected);
            let (set, own) = (set.parse::<Link>().expect("a link"), text.parse::<Link>().expect("a link"));
            assert_eq!((set.mtu, &set.up, &set.down), (9000, &own.up, &own.down), "{text}");
            assert_eq!(link(&read("depth=2"), text), text);
        }
    }

    #[test]
    fn every_disk_has_the_write_mode_that_is_set() {
        let unit = "[[target.lun]]\nnumber = 0\nstore = \"mem:1M\"\n";
        let text = format!("[[target]]\nname = \"x\"\n\n{unit}write = \"back\"\n\n{unit}\n[limits]\nx = 1\n");
        let through = Ends::of(&read("write=through")).with_write(&text);
        let table: toml::Table = through.parse().expect("TOML");
        let luns = table["target"][0]["lun"].as_array().expect("units");
        assert!(
            luns.len() == 2 && luns.iter().all(|lun| lun["write"].as_str() == Some("through")),
            "{through}"
        );
        assert!(table.contains_key("limits"), "{through}");
        assert_eq!(Ends::of(&read("mtu=1500")).with_write(&text), text);
    }
}
