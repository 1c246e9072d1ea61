//! The flags of `lunette advise`.

use clap::{Args, ValueEnum};
use lunette_initiator::TargetUrl;
use lunette_lab::DEPTH_MAX;
use lunette_link::Link;
use lunette_workload::model::Settings;
use lunette_workload::{Percent, Profile, Sizes, WorkloadError};

use super::paste::{ESXI_BUFFER_KIB, LINUX_WINDOW_SIZE};
use crate::initiator::{TimeOptions, URL_HELP};

pub(crate) const EXAMPLES: &str = "\
Examples:
  lunette advise --rtt 50ms --rate 155M
  lunette advise --rtt 10ms --rate 1G --loss 0.01% --size 256K --read 70 --depth 64 --settings rfc
  lunette advise --link oc3-50 --workload sql-64k --prove
  lunette advise --rtt 20ms --rate 1G --workload 4K:60,64K:40 --settings windows
  lunette advise iscsi://192.0.2.10/iqn.2026-11.io.lunette:vm/0 --json

Exit status: 0 when advice was given, 1 when something went wrong on this machine, 2 when the command line is wrong, 3 and more as for \
`lunette bench`, 125 when the advice was given, and the proof that --prove asks for could not be made.";

/// What is asked.
#[derive(Debug, Args)]
pub(crate) struct AdviseOptions {
    /// A disk: its path is measured, by reading for some seconds as fast as it goes
    #[arg(value_name = "URL", long_help = URL_HELP, conflicts_with_all = ["link", "settings"])]
    pub(super) url: Option<TargetUrl>,
    #[command(flatten)]
    pub(super) access: TimeOptions,
    /// Bits per second of the narrowest line: 155M, 1G
    #[arg(long, value_name = "RATE", required_unless_present_any = ["url", "link"])]
    pub(super) rate: Option<String>,
    /// The round trip: 50ms, 0.3ms
    #[arg(long, value_name = "TIME", required_unless_present_any = ["url", "link"])]
    pub(super) rtt: Option<String>,
    /// The share of packets that are lost: 0.01%
    #[arg(long, value_name = "PERCENT")]
    pub(super) loss: Option<String>,
    /// The longest packet in bytes [default: 1500]
    #[arg(long, value_name = "BYTES")]
    pub(super) mtu: Option<u16>,
    /// A link as `lunette wan` has it, instead of all these; the data of reads comes down, that of writes goes up
    #[arg(long, value_name = "LINK", conflicts_with_all = ["rate", "rtt", "loss", "mtu"])]
    pub(super) link: Option<Link>,
    /// What is done: a profile of `lunette bench`, as sql-64k, or sizes with their weights, as 4K:60,64K:40; other flags change parts of
    /// it [default: commands of 64K, half of them reads, 32 under way]
    #[arg(long, visible_alias = "profile", value_name = "PROFILE|SIZES", value_parser = parse_workload)]
    pub(super) workload: Option<Named>,
    /// The size of each command, or several with their weights [default: that of the workload]
    #[arg(long, value_name = "SIZES")]
    pub(super) size: Option<Sizes>,
    /// How many of a hundred commands read; the others write [default: that of the profile, else 50]
    #[arg(long, value_name = "PERCENT")]
    pub(super) read: Option<Percent>,
    /// Commands under way at once [default: that of the profile, else 32, the depth of a disk of Linux and ESXi]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub(super) depth: Option<u32>,
    /// Connections of the session
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(super) connections: u16,
    /// Whose defaults initiator and target have agreed on, and whose buffers the connections have
    #[arg(long, value_enum, value_name = "WHOSE", default_value = "linux")]
    pub(super) settings: Preset,
    /// Bytes that TCP may have under way on each connection [default: what was measured, or what the buffers of the initiator allow, and
    /// no more than this machine's TCP may]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(4096..))]
    pub(super) tcp_window: Option<u64>,
    /// Try it: measure the workload before and after on an emulated link like this one, with Lunette at both ends
    #[arg(long)]
    pub(super) prove: bool,
    /// Where all that is left to chance begins
    #[arg(long, value_name = "N", default_value_t = 1, requires = "prove")]
    pub(super) seed: u64,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A workload as it is asked for.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    /// With sizes, reads and a depth of its own.
    Profile(Profile),
    /// Sizes alone.
    Sizes(Sizes),
}

/// No profile's name begins as a size does, so that each mistake has its own answer.
fn parse_workload(text: &str) -> Result<Named, String> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return text.parse().map(Named::Sizes).map_err(|error: WorkloadError| error.to_string());
    }
    let or = |error: WorkloadError| format!("{error}; or sizes with their weights, as 4K:60,64K:40");
    text.parse().map(Named::Profile).map_err(or)
}

/// Whose settings, each with a target that takes what is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// The defaults of RFC 7143, where nobody asks for more
    Rfc,
    /// What open-iscsi offers by default
    Linux,
    /// What Windows offers by default
    Windows,
    /// What ESXi offers by default
    Esxi,
    /// Lunette at both ends
    Lunette,
}

impl AdviseOptions {
    fn profile(&self) -> Option<&Profile> {
        match &self.workload {
            Some(Named::Profile(profile)) => Some(profile),
            _ => None,
        }
    }

    pub(super) fn sizes(&self) -> Sizes {
        let of_workload = self.workload.as_ref().map(|workload| match workload {
            Named::Profile(profile) => Sizes::one(profile.size_bytes),
            Named::Sizes(sizes) => sizes.clone(),
        });
        self.size.clone().or(of_workload).unwrap_or_else(|| Sizes::one(64 << 10))
    }

    pub(super) fn read_percent(&self) -> Percent {
        self.read.or(self.profile().map(|profile| profile.read)).unwrap_or(Percent::new(50))
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth.or(self.profile().map(|profile| profile.depth)).unwrap_or(32)
    }
}

impl Preset {
    /// What a connection may have under way, in bytes, of what comes down and of what goes up, where the initiator gives it buffers of
    /// a size of its own; nothing where they grow as the system has it. A Linux system lets programs ask for no larger ones than
    /// `buffers_max`, of one that receives and one that sends.
    pub(super) fn tcp_windows(self, buffers_max: Option<[u64; 2]>) -> Option<[u64; 2]> {
        match self {
            Self::Linux => {
                let allowed = buffers_max.unwrap_or([LINUX_WINDOW_SIZE; 2]);
                let [receive, send] = allowed.map(|bytes| bytes.min(LINUX_WINDOW_SIZE));
                // The system makes them twice as large (socket(7)). Half of a receive buffer is its own then, and a quarter of a send
                // buffer, as of those that grow.
                Some([receive, send / 2 * 3])
            }
            Self::Esxi => {
                let (receive, send, _) = ESXI_BUFFER_KIB;
                Some([receive, send].map(|kib| kib << 10))
            }
            Self::Rfc | Self::Windows | Self::Lunette => None,
        }
    }

    /// The settings, and MaxRecvDataSegmentLength of the initiator.
    pub(super) fn settings(self, window: u32, connections: u16) -> (Settings, u32) {
        let rfc = Settings {
            initial_r2t: true,
            immediate_data: true,
            first_burst_length: 65_536,
            max_burst_length: 262_144,
            max_outstanding_r2t: 1,
            max_recv_data_segment_length: 8192,
            connections,
            window,
        };
        let open_iscsi = Settings {
            initial_r2t: false,
            first_burst_length: 262_144,
            max_burst_length: 16_776_192,
            max_recv_data_segment_length: 262_144,
            ..rfc
        };
        match self {
            Self::Rfc => (rfc, 8192),
            Self::Linux => (open_iscsi, 262_144),
            Self::Windows => (
                Settings {
                    first_burst_length: 65_536,
                    max_burst_length: 262_144,
                    max_outstanding_r2t: 16,
                    ..open_iscsi
                },
                65_536,
            ),
            Self::Esxi => (Settings { max_burst_length: 262_144, ..open_iscsi }, 131_072),
            Self::Lunette => {
                (Settings { max_burst_length: 16_773_120, max_outstanding_r2t: 16, ..open_iscsi }, 262_144)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initiators_with_buffers_of_their_own_have_their_windows() {
        let kib = |down: u64, up: u64| Some([down << 10, up << 10]);
        assert_eq!(Preset::Linux.tcp_windows(Some([4 << 20; 2])), kib(512, 768));
        assert_eq!(Preset::Linux.tcp_windows(None), kib(512, 768));
        // net.core.rmem_max and wmem_max by default before Linux 6.18.
        assert_eq!(Preset::Linux.tcp_windows(Some([212_992; 2])), kib(208, 312));
        assert_eq!(Preset::Esxi.tcp_windows(Some([212_992; 2])), kib(256, 600));
        for preset in [Preset::Rfc, Preset::Windows, Preset::Lunette] {
            assert_eq!(preset.tcp_windows(Some([4 << 20; 2])), None);
        }
    }
}
