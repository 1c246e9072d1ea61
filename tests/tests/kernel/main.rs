//! The Linux kernel in a virtual machine. Its initiator against the binary: file systems, restarts, multipath, growth, and
//! what the programs of sg3-utils make of a unit. Its NBD client on an attached disk. Our initiator against its target
//! (LIO). The cells of the lab that have an end there. Skipped, visibly, where no machine can be booted.

mod failures;
mod filesystems;
mod lab;
mod lio;
mod nbd;
mod units;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::panic;
use std::path::Path;

use lunette_tests::lunette::{Launch, Lunette, TARGET_NAME};
use lunette_tests::vm::{Ended, Guest, HOST, HUNG, Network};

const PORT: u16 = 3260;

/// Runs a test, and once more where one of its guests has hung: of some hundreds of emulated ones one does, and says nothing.
fn again_if_a_guest_hangs(test: fn()) {
    let Err(panicked) = panic::catch_unwind(test) else { return };
    let said = panicked.downcast_ref::<String>().filter(|said| said.contains(HUNG));
    let Some(said) = said else { panic::resume_unwind(panicked) };
    // Of a test that passes nothing else is shown.
    let _ = writeln!(io::stderr(), "once more, for a guest has hung: {said}");
    test();
}

/// A portal at one of the host's addresses.
fn portal(address: &str) -> SocketAddr {
    format!("{address}:{PORT}").parse().expect("an address")
}

/// `lunette serve` on the first path with this unit.
fn serve(network: &Network, lun: &str) -> Launch {
    network.serve().portal(portal(HOST)).luns([lun])
}

/// The image file of unit 0.
fn image(directory: &Path) -> String {
    directory.join("disk.img").display().to_string()
}

/// Boots a guest that knows the target.
fn boot(network: &Network, portals: &[&str], more: &[(&str, &str)], script: &str) -> Guest {
    let portals: Vec<String> = portals.iter().map(|address| portal(address).to_string()).collect();
    let portals = portals.join(" ");
    let mut environment = vec![("PORTALS", portals.as_str()), ("TARGET", TARGET_NAME)];
    environment.extend(more);
    Guest::start(network, &environment, script).expect("a guest")
}

/// Waits for the script's end; what it left, unless it failed.
fn finish(guest: Guest, target: &Lunette) -> Ended {
    guest.finish().unwrap_or_else(|error| panic!("{error:#}\nthe target's log:\n{}", target.log()))
}
