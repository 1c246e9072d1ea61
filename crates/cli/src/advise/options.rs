//! The flags of `lunette advise`.

use clap::{Args, ValueEnum};
use lunette_initiator::TargetUrl;
use lunette_lab::DEPTH_MAX;
use lunette_link::Link;
use lunette_workload::model::Settings;
use lunette_workload::{Percent, Profile, Sizes, WorkloadError};

use crate::initiator::{TimeOptions, URL_HELP};

pub(crate) const EXAMPLES: &str = "\
Examples:
  lunette advise --rtt 50ms --rate 155M
  lunette advise --rtt 10ms --rate 1G --loss 0.01% --size 256K --read 70 --depth 64 --settings rfc
  lunette advise --link oc3-50 --profile sql-64k --prove
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
    /// A link as `lunette wan` has it, instead of all these; of one whose directions differ, the slower one counts
    #[arg(long, value_name = "LINK", conflicts_with_all = ["rate", "rtt", "loss", "mtu"])]
    pub(super) link: Option<Link>,
    /// A workload with a name, as `lunette bench` has them; other flags change parts of it
    #[arg(long, value_name = "NAME")]
    pub(super) profile: Option<Profile>,
    /// The size of each command [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) size: Option<u32>,
    /// How many of a hundred commands read; the others write [default: 50]
    #[arg(long, value_name = "PERCENT")]
    pub(super) read: Option<Percent>,
    /// Commands under way at once [default: 32, the depth of a disk of Linux and ESXi]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub(super) depth: Option<u32>,
    /// Connections of the session
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(super) connections: u16,
    /// What initiator and target have agreed on
    #[arg(long, value_enum, value_name = "WHOSE", default_value = "linux")]
    pub(super) settings: Preset,
    /// Bytes that TCP may have under way on each connection [default: what was measured, or what this machine's TCP may]
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

fn parse_size(text: &str) -> Result<u32, String> {
    let sizes: Sizes = text.parse().map_err(|error: WorkloadError| error.to_string())?;
    if sizes.iter().count() == 1 { Ok(sizes.largest()) } else { Err("give one size, as 64K".to_owned()) }
}

/// Whose settings, each with a target that takes what is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// The defaults of RFC 7143, where nobody asks for more
    Rfc,
    /// What open-iscsi offers by default
    Linux,
    /// What ESXi offers by default
    Esxi,
    /// Lunette at both ends
    Lunette,
}

impl AdviseOptions {
    pub(super) fn size_bytes(&self) -> u32 {
        self.size.or(self.profile.map(|profile| profile.size_bytes)).unwrap_or(64 << 10)
    }

    pub(super) fn read_percent(&self) -> Percent {
        self.read.or(self.profile.map(|profile| profile.read)).unwrap_or(Percent::new(50))
    }

    pub(super) fn window(&self) -> u32 {
        self.depth.or(self.profile.map(|profile| profile.depth)).unwrap_or(32)
    }
}

impl Preset {
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
            Self::Esxi => (Settings { max_burst_length: 262_144, ..open_iscsi }, 131_072),
            Self::Lunette => {
                (Settings { max_burst_length: 16_773_120, max_outstanding_r2t: 16, ..open_iscsi }, 262_144)
            }
        }
    }
}
