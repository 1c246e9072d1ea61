//! Space that is reserved before anything is written to it (the anchored blocks of SBC-3).

use std::fs;
use std::path::Path;
use std::process::Command;

use lunette_block::*;
use rustix::fs::FallocateFlags;
use tempfile::TempDir;

use crate::common::{Bench, LoopDevice, Mount, class, file_spec, spec};

const SIZE_BYTES: u64 = 4 << 20;

/// A file system of 16 MiB that keeps space for files which nothing was written to, and tells it.
fn small() -> Option<(Mount, LoopDevice, TempDir)> {
    let directory = TempDir::new().unwrap();
    let image = directory.path().join("system");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-b", "4096", "-m", "0"]).arg(&image).output();
    if !made.is_ok_and(|output| output.status.success()) {
        lunette_skip::record_lacking("no mkfs.ext4");
        return None;
    }
    let device = LoopDevice::attach(&image, &[])?;
    let place = directory.path().join("mounted");
    fs::create_dir(&place).unwrap();
    let mount = Mount::new(&[device.path.to_str().unwrap()], &place)?;
    Some((mount, device, directory))
}

fn open(path: &Path) -> Bench {
    Bench::open(&file_spec(path, Some(SIZE_BYTES)))
}

/// Others take all that is left of a file system.
fn take_all(path: &Path) {
    let file = fs::File::create(path).unwrap();
    let mut taken_bytes = 0;
    for length in [1 << 20, 65536, 4096] {
        while rustix::fs::fallocate(&file, FallocateFlags::empty(), taken_bytes, length).is_ok() {
            taken_bytes += length;
        }
    }
}

/// Lengths and what they have.
fn found(bench: &mut Bench) -> Vec<(u64, Allocation)> {
    let mut found: Vec<(u64, Allocation)> = Vec::new();
    for extent in bench.extents(0..SIZE_BYTES) {
        match found.last_mut() {
            Some((length, same)) if *same == extent.allocation => *length += extent.length,
            _ => found.push((extent.length, extent.allocation)),
        }
    }
    found
}

#[test]
fn zeroed_ranges_keep_their_space_when_the_file_system_is_full() {
    let Some((mount, _device, _directory)) = small() else { return };
    let mut bench = open(&mount.path.join("a.img"));
    assert!(bench.volume.features().reserves);
    bench.write(0, &[7; 65536], true).unwrap();
    bench.zero(0..1 << 20, false).unwrap();
    let told = [(1 << 20, Allocation::Reserved), (SIZE_BYTES - (1 << 20), Allocation::Hole)];
    assert_eq!(found(&mut bench), told);
    assert!(bench.read(0, 1 << 20).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(found(&mut bench), told, "it was only read");
    take_all(&mount.path.join("others"));
    assert_eq!(class(bench.write(2 << 20, &[8; 1 << 20], true)), ErrorClass::NoSpace);
    drop(bench);
    let mut bench = open(&mount.path.join("a.img"));
    for offset in (0..1 << 20).step_by(65536) {
        bench.write(offset, &[9; 65536], true).unwrap();
    }
    assert!(bench.read(0, 1 << 20).unwrap().iter().all(|&byte| byte == 9));
    assert_eq!(class(bench.zero(3 << 20..SIZE_BYTES, false)), ErrorClass::NoSpace);
}

#[test]
fn data_in_the_page_cache_alone_is_no_reserved_space() {
    let Some((mount, _device, _directory)) = small() else { return };
    let mut bench = open(&mount.path.join("a.img"));
    bench.zero(0..1 << 20, false).unwrap();
    bench.write(65536, &[3; 65536], false).unwrap();
    bench.write(2 << 20, &[3; 65536], false).unwrap();
    let told = [
        (65536, Allocation::Reserved),
        (65536, Allocation::Data),
        ((1 << 20) - 131_072, Allocation::Reserved),
        (1 << 20, Allocation::Hole),
        (65536, Allocation::Data),
        ((2 << 20) - 65536, Allocation::Hole),
    ];
    assert_eq!(found(&mut bench), told);
    bench.unmap(0..1 << 20).unwrap();
    let told =
        [(2 << 20, Allocation::Hole), (65536, Allocation::Data), ((2 << 20) - 65536, Allocation::Hole)];
    assert_eq!(found(&mut bench), told);
}

fn is_kernel_before_6_5() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    version < (6, 5)
}

/// Whoever looks may be an initiator that does it in a loop: what others have written waits for its time all the same.
#[test]
fn a_look_writes_nothing_back() {
    const TRIES: usize = 40;
    let Some((mount, device, _directory)) = small() else { return };
    let name = device.path.file_name().unwrap().to_str().unwrap();
    let statistics = format!("/sys/block/{name}/stat");
    // The fifth number: writes that the device has done.
    let writes = || -> u64 {
        fs::read_to_string(&statistics).unwrap().split_whitespace().nth(4).unwrap().parse().unwrap()
    };
    let mut bench = open(&mount.path.join("a.img"));
    // The kernel may write back what it likes in between, but not each time.
    let is_quiet = (0..TRIES).any(|byte| {
        bench.zero(0..1 << 20, false).unwrap();
        bench.flush().unwrap();
        bench.write(65536, &[byte as u8; 4096], false).unwrap();
        bench.write(2 << 20, &[byte as u8; 65536], false).unwrap();
        let before = writes();
        let told = [
            (65536, Allocation::Reserved),
            (4096, Allocation::Data),
            ((1 << 20) - 69632, Allocation::Reserved),
            (1 << 20, Allocation::Hole),
            (65536, Allocation::Data),
            ((2 << 20) - 65536, Allocation::Hole),
        ];
        assert_eq!(found(&mut bench), told);
        writes() == before
    });
    if !is_quiet && is_kernel_before_6_5() {
        return lunette_skip::record_lacking(
            "this kernel cannot tell what its page cache has still to write back (Linux 6.5 can)",
        );
    }
    assert!(is_quiet, "{TRIES} looks have each had something written");
}

/// The kernel tells as many extents as fit a call; the next call goes on where it stopped.
#[test]
fn a_range_in_many_pieces_is_told_in_several_answers() {
    let Some((mount, _device, _directory)) = small() else { return };
    let mut bench = open(&mount.path.join("a.img"));
    for offset in (0..SIZE_BYTES).step_by(8192) {
        bench.zero(offset..offset + 4096, false).unwrap();
    }
    let pairs = [(4096, Allocation::Reserved), (4096, Allocation::Hole)];
    assert_eq!(found(&mut bench), pairs.repeat(512));
    for offset in (0..SIZE_BYTES).step_by(8192) {
        bench.write(offset, &[1; 4096], false).unwrap();
    }
    assert_eq!(found(&mut bench), [(4096, Allocation::Data), (4096, Allocation::Hole)].repeat(512));
}

#[test]
fn who_cannot_tell_or_keep_it_does_not_offer_it() {
    let directory = TempDir::new().unwrap();
    let Some(mount) = Mount::new(&["-t", "tmpfs", "tmpfs"], directory.path()) else { return };
    let path = mount.path.join("a.img");
    assert!(!open(&path).volume.features().reserves, "tmpfs does not tell");
    for store in [StoreSpec::Memory { size_bytes: 1 << 20 }, StoreSpec::Null { size_bytes: 1 << 20 }] {
        assert!(!Volume::open(&spec(store, EngineKind::Auto)).unwrap().features().reserves);
    }
    let Some((mount, _device, _directory)) = small() else { return };
    let path = mount.path.join("a.img");
    for other in [
        VolumeSpec { provisioning: Provisioning::Thick, ..file_spec(&path, Some(SIZE_BYTES)) },
        VolumeSpec { read_only: true, ..file_spec(&path, None) },
    ] {
        assert!(!Volume::open(&other).unwrap().features().reserves);
    }
    let path = mount.path.join("b.img");
    let protected = VolumeSpec { protection: Some(1), ..file_spec(&path, Some(SIZE_BYTES)) };
    assert!(!Volume::open(&protected).unwrap().features().reserves, "its information is in a sparse file");
}
