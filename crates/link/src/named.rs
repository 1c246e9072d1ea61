//! Links that have names: those of the papers that the lab repeats, and some that people meet.

/// A link with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedLink {
    /// How it is asked for.
    pub name: &'static str,
    /// What it is, in the form that a [`Link`](crate::Link) is read from.
    pub description: &'static str,
    /// What it stands for.
    pub stands_for: &'static str,
}

/// An Ethernet frame has 38 bytes besides its packet: preamble and delimiter 8, header 14, check sequence 4, gap 12
/// (IEEE 802.3, 3.1.1, 4.4.2).
macro_rules! ethernet {
    ($description:literal) => {
        concat!($description, ",overhead=38")
    };
}

const LINKS: &[NamedLink] = &[
    NamedLink { name: "local", description: "mtu=65535", stands_for: "no network: neither rate nor delay" },
    NamedLink {
        name: "lan-100",
        description: ethernet!("rate=100M,rtt=0.2ms"),
        stands_for: "Fast Ethernet through one switch",
    },
    NamedLink {
        name: "gige",
        description: ethernet!("rate=1G,rtt=0.1ms"),
        stands_for: "Gigabit Ethernet through one switch",
    },
    NamedLink {
        name: "gige-jumbo",
        description: ethernet!("rate=1G,rtt=0.1ms,mtu=9000"),
        stands_for: "the same with jumbo frames",
    },
    NamedLink {
        name: "campus",
        description: ethernet!("rate=100M,rtt=2ms,jitter=0.3ms,mtu=1400"),
        stands_for: "Fast Ethernet through a firewall and a VPN, which takes its part of the MTU; nothing is encrypted, so the time that takes is not in it",
    },
    // The emulator of that study counted the bits of packets: it reports 19.3 MB/s of data for 155 Mb/s.
    NamedLink {
        name: "oc3-0",
        description: "rate=155M,rtt=0ms",
        stands_for: "an OC-3 line as Dalgic and others emulated it, without delay",
    },
    NamedLink {
        name: "oc3-2",
        description: "rate=155M,rtt=2ms",
        stands_for: "the same with 2 ms there and back",
    },
    NamedLink { name: "oc3-10", description: "rate=155M,rtt=10ms", stands_for: "the same with 10 ms" },
    NamedLink { name: "oc3-50", description: "rate=155M,rtt=50ms", stands_for: "the same with 50 ms" },
    NamedLink {
        name: "transatlantic",
        description: "rate=1G,rtt=80ms,loss=0.001%",
        stands_for: "a leased gigabit between continents",
    },
    NamedLink {
        name: "lte",
        description: "up.rate=15M,down.rate=50M,rtt=45ms,jitter=8ms/50%,loss=0.1%,mtu=1430",
        stands_for: "a mobile network on a good day",
    },
];

/// All links that have names.
#[must_use]
pub const fn named_links() -> &'static [NamedLink] {
    LINKS
}
