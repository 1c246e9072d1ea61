use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn file_of(data: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(data, 0).unwrap();
    file
}

/// Of a file on whatever file system the tests have.
fn mapping_of(file: &File) -> Mapping {
    Mapping::with_page_tables(file.as_fd(), &PAGE_TABLES).unwrap()
}

fn read(mapping: &Mapping, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0xee; length];
    mapping.read(offset, &mut buffer).then_some(buffer)
}

#[test]
fn what_was_just_written_is_read_without_a_call_wherever_it_begins_and_ends() {
    let mut data = pattern(300_000);
    let file = file_of(&data);
    let mapping = mapping_of(&file);
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
    let file = file_of(&pattern(REGION_BYTES));
    file.set_len(8 * REGION_BYTES as u64).unwrap();
    let mapping = mapping_of(&file);
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
fn what_was_counted_is_believed_of_long_reads_alone() {
    let region = REGION_BYTES as u64;
    let file = file_of(&pattern(REGION_BYTES));
    file.set_len(4 * region).unwrap();
    let mapping = mapping_of(&file);
    assert!(!mapping.was_counted(0, region), "nobody has");
    mapping.note_counted(0, 3 * region - 4096);
    assert!(mapping.was_counted(0, region) && mapping.was_counted(100, 3 * region - 4196));
    assert!(!mapping.was_counted(2 * region, region), "its end was not counted");
    assert!(!mapping.was_counted(3 * region, 512) && !mapping.was_counted(0, u64::MAX));
    assert_eq!(read(&mapping, region, 512), None, "pages whose reading has only begun are counted, too");
    mapping.forget(region, 1);
    assert!(mapping.was_counted(0, region) && !mapping.was_counted(0, region + 1));
}

/// Pages that are partly there are told from each other.
#[test]
fn pages_of_a_region_are_looked_at_apart() {
    let file = file_of(&[]);
    file.set_len(2 * REGION_BYTES as u64).unwrap();
    let page = page_bytes();
    let Some(pages) = REGION_BYTES.checked_div(page).filter(|&pages| pages >= 4) else { return };
    for nth in [1, pages - 1, pages] {
        file.write_all_at(&vec![7; page], (nth * page) as u64).unwrap();
    }
    let mapping = mapping_of(&file);
    assert_eq!(read(&mapping, page as u64, page), Some(vec![7; page]));
    assert_eq!(read(&mapping, page as u64, page + 1), None);
    assert_eq!(read(&mapping, 0, 1), None);
    assert_eq!(
        read(&mapping, ((pages - 1) * page) as u64, 2 * page),
        Some(vec![7; 2 * page]),
        "over a region's end"
    );
    assert_eq!(read(&mapping, (pages * page) as u64 + 1, page), None);
}

#[test]
fn what_a_file_grew_by_is_left_to_calls() {
    let file = file_of(&pattern(1000));
    let mapping = mapping_of(&file);
    file.write_all_at(&[5; REGION_BYTES], 1000).unwrap();
    assert!(read(&mapping, 488, 512).is_some());
    assert_eq!(read(&mapping, 512, 512), None);
    assert_eq!(read(&mapping, 4096, 512), None);
}

/// Without the handler this would end the process.
#[test]
fn a_file_that_became_shorter_is_never_read_again() {
    let file = file_of(&pattern(4 * REGION_BYTES));
    let other_file = file_of(&pattern(REGION_BYTES));
    let (mapping, other) = (mapping_of(&file), mapping_of(&other_file));
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
    assert!(read(&mapping_of(&file), far, 4096).is_some());
}

/// In a process of its own, since it does not survive.
#[test]
fn the_bus_errors_of_others_end_the_process_as_ever() {
    const CHILD: &str = "LUNETTE_TEST_BUS_ERROR";
    if std::env::var_os(CHILD).is_some() {
        let file = file_of(&pattern(REGION_BYTES));
        assert!(read(&mapping_of(&file), 0, 512).is_some(), "the handler is there");
        let file = file_of(&pattern(REGION_BYTES));
        let start = map(file.as_fd(), WINDOW_BYTES).unwrap().as_ptr();
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
fn what_has_no_page_tables_is_left_to_calls_and_still_told() {
    let page_tables: &'static PageTables = Box::leak(Box::new(PageTables::new(2)));
    let file = file_of(&pattern(2 * WINDOW_BYTES));
    let mapping = Mapping::with_page_tables(file.as_fd(), page_tables).unwrap();
    let second = WINDOW_BYTES as u64;
    assert!(read(&mapping, second, 512).is_some());
    assert_eq!(read(&mapping, 0, 512), None);
    assert_eq!(read(&mapping, second - 100, 512), None, "it begins there");
    assert!(mapping.is_cached(0, 2 * second));
}

#[test]
fn the_kernel_is_asked_once_a_second_and_less_often_if_it_is_of_no_use() {
    let file = file_of(&pattern(REGION_BYTES));
    file.set_len(2 * REGION_BYTES as u64).unwrap();
    let mapping = mapping_of(&file);
    assert!(!mapping.has(1, 1, 5000));
    file.write_all_at(&[7; REGION_BYTES], REGION_BYTES as u64).unwrap();
    assert!(!mapping.has(1, 1, 9000));
    assert!(mapping.has(1, 1, 11_000));
}

#[test]
fn reads_that_had_to_wait_are_left_to_calls_for_a_while() {
    let file = file_of(&pattern(REGION_BYTES));
    let mapping = mapping_of(&file);
    assert!(read(&mapping, 0, 512).is_some());
    mapping.pauses.begin(coarse_ms() + 60_000);
    assert_eq!(read(&mapping, 0, 512), None);
}

/// To whoever may not write a file, and does not own it, the kernel says that all of it is there.
#[test]
fn a_file_of_which_the_kernel_does_not_tell_the_truth_is_not_mapped() {
    if !rustix::process::geteuid().is_root() {
        return lunette_skip::record_lacking("only root can be somebody else");
    }
    let theirs = tempfile::NamedTempFile::new().unwrap();
    theirs.as_file().write_all_at(&pattern(REGION_BYTES), 0).unwrap();
    let file = File::open(theirs.path()).unwrap();
    assert!(Mapping::with_page_tables(file.as_fd(), &PAGE_TABLES).is_some(), "it is our own");
    std::thread::spawn(move || {
        // SAFETY: it takes a number, and changes this thread alone, which ends below.
        unsafe { libc::setfsuid(65_534) };
        assert!(Mapping::with_page_tables(file.as_fd(), &PAGE_TABLES).is_none());
    })
    .join()
    .unwrap();
}

#[test]
fn what_others_may_change_elsewhere_is_not_mapped() {
    let process = File::open("/proc/version").unwrap();
    assert!(!is_of_this_machine(process.as_fd()));
    assert!(Mapping::of(process.as_fd()).is_none());
}

#[test]
fn zeroes_at_the_end_of_a_page_are_what_a_cut_leaves() {
    let of = |offset, data: &[u8]| ends_in_a_zero(4096, offset, data);
    let mut data = vec![7; 12 << 10];
    assert!(!of(0, &data) && !of(3 * 512, &data));
    for zero in [4095, 8191] {
        data[zero] = 0;
        assert!(of(0, &data) && !of(512, &data), "{zero}");
        data[zero] = 7;
    }
    data[4095 - 512] = 0;
    assert!(of(512, &data) && of(0, &data[..4096 - 512]) && !of(0, &data));
    assert!(!of(0, &[]));
}
