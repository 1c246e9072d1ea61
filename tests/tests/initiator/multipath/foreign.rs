//! The same with targets that are not ours: tgtd and istgt, each with two portals of one group. Neither can be made to hold a
//! write, so that a path dies wherever its writes happen to be; what must hold then holds at any moment.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lunette_initiator::{Portal, TargetUrl};
use lunette_tests::istgt::Istgt;
use lunette_tests::need_programs;
use lunette_tests::tgtd::Tgtd;

use super::*;

const WRITES: u64 = 64;
/// Several bursts, so that some writes are not begun, some half there, and some done.
const WRITE_BYTES: u32 = 4 * BURST_BYTES;
const BURST_BYTES: u32 = 16 << 10;

/// A unit behind two portals, with a relay to each.
struct Foreign {
    url: TargetUrl,
    block_bytes: u32,
    relays: [Relay; 2],
}

impl Foreign {
    fn new(url: &str, block_bytes: u32, portals: [SocketAddr; 2]) -> Self {
        Self { url: url.parse().expect("a good URL"), block_bytes, relays: portals.map(Relay::to) }
    }

    fn options(&self) -> Options {
        let path = |relay: &Relay| {
            let mut options = self.url.options();
            options.wishes.max_burst_length = BURST_BYTES;
            options.wishes.first_burst_length = BURST_BYTES;
            options.portals = vec![Portal::new(relay.address.ip().to_string(), relay.address.port())];
            PathOptions::new(options, self.url.lun)
        };
        let timing = PathTiming { failback: Duration::ZERO, recovery: 10 * LIMIT, ..PathTiming::default() };
        let paths = self.relays.iter().map(path).collect();
        Options { policy: Policy::RoundRobin, timing, ..Options::new(paths) }
    }

    fn blocks(&self) -> u32 {
        WRITE_BYTES / self.block_bytes
    }

    fn begin_writes(&self, paths: &mut Paths, seed: u64) -> Vec<CommandId> {
        let command = |number: u64| {
            let data = pattern(seed + number, WRITE_BYTES as usize);
            let lba = number * u64::from(self.blocks());
            write(self.url.lun.number(), lba, self.blocks(), data).replaying(Replay::Always)
        };
        (0..WRITES).map(|number| paths.engine.submit(command(number))).collect()
    }

    fn assert_content(&self, paths: &mut Paths, seed: u64) {
        for number in 0..WRITES {
            let lba = number * u64::from(self.blocks());
            let back = paths.execute(read(self.url.lun.number(), lba, self.blocks(), self.block_bytes));
            assert!(back.data() == pattern(seed + number, WRITE_BYTES as usize), "{seed}: write {number}");
        }
    }

    /// Each path dies in its turn under 64 writes, of which some were answered. Those of the next turn are to the same blocks,
    /// and nothing old may come after them.
    fn loses_and_doubles_nothing(&self) {
        let mut paths = Paths::connect(self.options());
        for (turn, seed) in [(0, 1000), (1, 2000)] {
            let ids = self.begin_writes(&mut paths, seed);
            paths.wait_until("the first ends", |paths| {
                ids.iter().filter(|id| paths.done.contains_key(id)).count() >= 4
            });
            paths.news.clear();
            self.relays[turn].close();
            paths.wait_until("the loss", |paths| paths.is_lost(turn));
            self.relays[turn].open();
            paths.wait_for_all();
            for id in &ids {
                assert!(paths.done[id].is_good(), "{seed}: {:?}", paths.done[id].result);
            }
            self.assert_content(&mut paths, seed);
            paths.wait_until("both paths", |paths| paths.engine.paths().iter().all(|path| path.is_in_use));
        }
        let infos = paths.engine.paths();
        assert!(infos.iter().all(|path| path.sent > 0), "{infos:?}");
        paths.engine.close().expect("a logout");
    }
}

fn image(directory: &Path) -> PathBuf {
    let image = directory.join("disk.img");
    File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
    image
}

#[test]
fn a_path_to_tgtd_that_dies_under_64_writes_loses_and_doubles_nothing() {
    need_programs!("tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let mut tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    let url = tgtd.add_file(&image(directory.path())).expect("a unit");
    let portals = [tgtd.portal(), tgtd.add_portal().expect("a portal")];
    Foreign::new(&url, 512, portals).loses_and_doubles_nothing();
}

#[test]
fn a_path_to_istgt_that_dies_under_64_writes_loses_and_doubles_nothing() {
    need_programs!("istgt");
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let istgt = Istgt::start_with(directory.path(), &image, 4096, 2).expect("istgt");
    let portals = [istgt.portals()[0], istgt.portals()[1]];
    Foreign::new(&istgt.url(), 4096, portals).loses_and_doubles_nothing();
}

/// SendTargets tells both portals, and the paths that are made of them are used. (tgtd tells only the one that was asked.)
#[test]
fn the_portals_of_istgt_are_found() {
    need_programs!("istgt");
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let istgt = Istgt::start_with(directory.path(), &image, 512, 2).expect("istgt");
    let url: TargetUrl = istgt.url().parse().expect("a good URL");
    let found = Options::discover(PathOptions::new(url.options(), url.lun)).expect("an answer");
    assert_eq!(found.paths.len(), 2);
    let mut paths = Paths::connect(Options { policy: Policy::RoundRobin, ..found });
    for lba in 0..8 {
        assert!(paths.execute(write(0, lba, 1, block(lba))).is_good());
        assert!(paths.execute(read(0, lba, 1, 512)).data() == block(lba));
    }
    assert_eq!(paths.sent(), [8, 8]);
    paths.engine.close().expect("a logout");
}
