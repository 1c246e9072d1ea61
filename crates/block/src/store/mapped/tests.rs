use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn file_of(data: &[u8]) -> (File, Arc<OwnedFd>) {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(data, 0).unwrap();
    let same = file.try_clone().unwrap();
    (file, Arc::new(same.into()))
}

fn read(mapping: &Mapping, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0xee; length];
    mapping.read(offset, &mut buffer).then_some(buffer)
}

#[test]
fn what_was_just_written_is_read_without_a_call_wherever_it_begins_and_ends() {
    let mut data = pattern(300_000);
    let (file, fd) = file_of(&data);
    let mapping = Mapping::of(&fd).unwrap();
    for (offset, length) in
        [(0, 512), (65_000, 4096), (65_536, READ_BYTES_MAX), (100_001, 65_536), (299_999, 1)]
    {
        assert_eq!(
            read(&mapping, offset, length).as_deref(),
            data.get(offset as usize..offset as usize + length)
        );
    }
    assert_eq!(read(&mapping, 0, 0), None, "nothing is no read");
    assert_eq!(read(&mapping, 0, READ_BYTES_MAX + 1), None, "it is long");
    assert_eq!(read(&mapping, 4 << 20, 512), None, "it is not in the mapping");
    assert_eq!(read(&mapping, u64::MAX - 5, 512), None);
    data[70_000..70_600].fill(9);
    file.write_all_at(&[9; 600], 70_000).unwrap();
    assert_eq!(read(&mapping, 69_000, 4096).as_deref(), data.get(69_000..73_096));
}

#[test]
fn what_the_page_cache_does_not_have_is_not_read() {
    let (file, fd) = file_of(&pattern(REGION_BYTES));
    file.set_len(8 * REGION_BYTES as u64).unwrap();
    let mapping = Mapping::of(&fd).unwrap();
    assert!(read(&mapping, 0, 512).is_some());
    assert_eq!(read(&mapping, 3 * REGION_BYTES as u64, 512), None, "nobody has read the hole");
    assert_eq!(read(&mapping, REGION_BYTES as u64 - 100, 512), None, "it ends in the hole");
    file.write_all_at(&[7; REGION_BYTES], 3 * REGION_BYTES as u64).unwrap();
    mapping.forget(3 * REGION_BYTES as u64 + 5, 1);
    assert_eq!(read(&mapping, 3 * REGION_BYTES as u64, 512), Some(vec![7; 512]));
    assert!(mapping.is_cached(100, REGION_BYTES as u64 - 100));
    assert!(!mapping.is_cached(100, 4 * REGION_BYTES as u64), "part of it is a hole");
    assert!(!mapping.is_cached(0, u64::MAX));
    mapping.forget(0, u64::MAX);
    mapping.forget(u64::MAX, 1);
}

#[test]
fn a_file_that_grew_is_read_where_it_is_longer_now() {
    let (file, fd) = file_of(&pattern(WINDOW_BYTES));
    let mapping = Mapping::of(&fd).unwrap();
    file.write_all_at(&[5; 3 * REGION_BYTES], WINDOW_BYTES as u64).unwrap();
    assert_eq!(read(&mapping, WINDOW_BYTES as u64 + 4096, 4096), Some(vec![5; 4096]));
    assert_eq!(read(&mapping, 2 * WINDOW_BYTES as u64, 512), None, "it is not mapped so far");
}

/// Without the handler this would end the process.
#[test]
fn a_file_that_became_shorter_is_never_read_again() {
    let (file, fd) = file_of(&pattern(4 * REGION_BYTES));
    let (_other_file, other_fd) = file_of(&pattern(REGION_BYTES));
    let (mapping, other) = (Mapping::of(&fd).unwrap(), Mapping::of(&other_fd).unwrap());
    let far = 2 * REGION_BYTES as u64;
    assert!(read(&mapping, far, 4096).is_some());
    file.set_len(REGION_BYTES as u64).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(read(&mapping, far, 4096), None));
        }
    });
    assert_eq!(read(&mapping, 0, 512), None, "what else is not there?");
    assert!(read(&other, 0, 512).is_some(), "another mapping has nothing to do with it");
    drop(mapping);
    // The next one takes the place of the broken one.
    file.set_len(4 * REGION_BYTES as u64).unwrap();
    file.write_all_at(&pattern(4 * REGION_BYTES), 0).unwrap();
    assert!(read(&Mapping::of(&fd).unwrap(), far, 4096).is_some());
}

/// In a process of its own, since it does not survive.
#[test]
fn the_bus_errors_of_others_end_the_process_as_ever() {
    const CHILD: &str = "LUNETTE_TEST_BUS_ERROR";
    if std::env::var_os(CHILD).is_some() {
        let (_file, fd) = file_of(&pattern(REGION_BYTES));
        assert!(read(&Mapping::of(&fd).unwrap(), 0, 512).is_some(), "the handler is there");
        let (file, fd) = file_of(&pattern(REGION_BYTES));
        let start = map(fd.as_fd(), WINDOW_BYTES).unwrap();
        file.set_len(0).unwrap();
        // SAFETY: it is mapped, and what comes of it is what is tested.
        let byte = unsafe { start.read_volatile() };
        unreachable!("{byte} was read, and nobody is told");
    }
    let name = "store::mapped::tests::the_bus_errors_of_others_end_the_process_as_ever";
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
}

#[test]
fn windows_that_nobody_reads_go_for_others() {
    let page_tables: &'static PageTables = Box::leak(Box::new(PageTables::new(1)));
    let data = pattern(3 * WINDOW_BYTES);
    let (_file, fd) = file_of(&data);
    let mapping = Mapping::with_page_tables(&fd, page_tables).unwrap();
    let second = REGIONS_OF_WINDOW;
    assert!(mapping.has(0, 5000) && mapping.has(1, 5500));
    assert!(!mapping.has(second, 6400), "the first one was read lately");
    assert!(!mapping.has(second, 7000), "that is believed for a second");
    assert!(mapping.has(second, 7400));
    assert!(!mapping.has(0, 7400), "now that one was");
    assert!(mapping.has(1, 8400));
    assert_eq!(read(&mapping, 70_000, 512).as_deref(), data.get(70_000..70_512), "it is what it was");
}

#[test]
fn the_kernel_is_asked_once_a_second() {
    let (file, fd) = file_of(&pattern(REGION_BYTES));
    file.set_len(2 * REGION_BYTES as u64).unwrap();
    let mapping = Mapping::of(&fd).unwrap();
    assert!(!mapping.has(1, 5000));
    file.write_all_at(&[7; REGION_BYTES], REGION_BYTES as u64).unwrap();
    assert!(!mapping.has(1, 5999));
    assert!(mapping.has(1, 6000));
}

#[test]
fn reads_that_had_to_wait_are_left_to_calls_for_a_while() {
    let (_file, fd) = file_of(&pattern(REGION_BYTES));
    let mapping = Mapping::of(&fd).unwrap();
    assert!(read(&mapping, 0, 512).is_some());
    mapping.pauses.begin(coarse_ms());
    assert_eq!(read(&mapping, 0, 512), None);
}

#[test]
fn what_may_be_read_by_others_only_is_not_mapped() {
    if !rustix::process::geteuid().is_root() {
        return lunette_skip::record_lacking("only root can be somebody else");
    }
    let mut theirs = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut theirs, &pattern(REGION_BYTES)).unwrap();
    let read_only = Arc::new(OwnedFd::from(File::open(theirs.path()).unwrap()));
    assert!(Mapping::of(&read_only).is_some(), "it is our own");
    std::os::unix::fs::chown(theirs.path(), Some(65_534), None).unwrap();
    assert!(Mapping::of(&read_only).is_none());
}
