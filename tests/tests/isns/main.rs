//! The registration with iSNS servers, and the question for targets: a real server, and one that says what a test wants
//! (RFC 4171; RFC 7143, 4.2.7).
//!
//! Not here: the client's states in virtual time (`crates/isns`).

mod double;
mod open_isns;
mod search;

use std::net::SocketAddr;

use lunette_target::config::{Config, IsnsConfig};
use lunette_tests::in_process::InProcess;

/// One target at two portals in two groups.
fn target_with(server: SocketAddr, isns: IsnsConfig) -> InProcess {
    InProcess::start_with(&["0=mem:1M"], |config: &mut Config| {
        config.portals.push("127.0.0.2:0".parse().expect("an address"));
        config.portals[1].group = 2;
        config.isns = IsnsConfig {
            servers: vec![server.to_string().parse().expect("an address")],
            entity: Some("lunette-tests".to_owned()),
            ..isns
        };
    })
}
