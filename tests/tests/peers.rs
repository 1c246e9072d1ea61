//! Foreign initiators against the binary: libiscsi's tools and QEMU's block driver, with real data.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lunette_tests::lunette::{Lunette, TARGET_NAME};
use lunette_tests::need_programs;
use lunette_tests::process::Finished;
use lunette_tests::tool::{tool, tool_output};

fn qemu_io(url: &str, commands: &[&str]) -> Finished {
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(url);
    tool("qemu-io", arguments)
}

fn qemu_io_ok(url: &str, commands: &[&str]) {
    let finished = qemu_io(url, commands);
    assert!(finished.success(), "qemu-io {commands:?}: {}:\n{}", finished.ending(), finished.output);
}

#[test]
fn iscsi_ls_finds_the_target_and_its_units() {
    need_programs!("iscsi-ls");
    let target = Lunette::serve().luns(["0=mem:8M", "1=mem:16M", "7=null:1T"]).start().expect("a target");
    let output = tool_output("iscsi-ls", ["-s", &target.portal_url()]);
    let found = format!("Target:{TARGET_NAME} Portal:{},1", target.portal());
    assert!(output.lines().any(|line| line.trim() == found), "{output}");
    for lun in ["Lun:0 ", "Lun:1 ", "Lun:7 "] {
        let line =
            output.lines().find(|line| line.starts_with(lun)).unwrap_or_else(|| panic!("{lun}: {output}"));
        assert!(line.contains("Type:DIRECT_ACCESS"), "{line}");
    }
    assert!(!output.contains("Lun:2 "), "{output}");
    target.stop().expect("a clean end");
}

#[test]
fn iscsi_inq_reads_the_identity_and_every_page() {
    need_programs!("iscsi-inq");
    let target = Lunette::serve()
        .luns(["0=mem:8M,serial=SN-0815,vendor=ACME,product=Disk"])
        .start()
        .expect("a target");
    let url = target.url(0);
    let standard = tool_output("iscsi-inq", [&url]);
    for text in
        ["Peripheral Qualifier:CONNECTED", "Type:DIRECT_ACCESS", "CmdQue:1", "Vendor:ACME", "Product:Disk"]
    {
        assert!(standard.contains(text), "{text} in {standard}");
    }
    // The tool takes page codes in decimal: 00, 80, 83, B0, B1, B2. It cannot read 86.
    for (page, text) in [
        ("0", "DEVICE_IDENTIFICATION"),
        ("128", "SN-0815"),
        ("131", "Designator"),
        ("176", "maximum transfer length:"),
        ("177", "Medium Rotation Rate:"),
        ("178", "lbpws:1"),
    ] {
        let output = tool_output("iscsi-inq", ["-e", "1", "-c", page, &url]);
        assert!(output.contains(text), "page {page}: {output}");
    }
    target.stop().expect("a clean end");
}

#[test]
fn iscsi_readcapacity16_sees_the_size_that_was_configured() {
    need_programs!("iscsi-readcapacity16");
    let target =
        Lunette::serve().luns(["0=mem:8M", "1=mem:16M,block=4096", "2=null:3T"]).start().expect("a target");
    for (lun, bytes, block_bytes) in [(0, 8 << 20, 512), (1, 16 << 20, 4096), (2, 3_u64 << 40, 512)] {
        let output = tool_output("iscsi-readcapacity16", [&target.url(lun)]);
        for text in [
            format!("RETURNED LOGICAL BLOCK ADDRESS:{}\n", bytes / block_bytes - 1),
            format!("LOGICAL BLOCK LENGTH IN BYTES:{block_bytes}\n"),
            format!("Total size:{bytes}\n"),
        ] {
            assert!(output.contains(&text), "{text} in {output}");
        }
    }
    target.stop().expect("a clean end");
}

#[test]
fn iscsi_perf_reads_for_a_while_without_an_error() {
    need_programs!("iscsi-perf");
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    for arguments in [["-m", "32", "-b", "8", "-r"], ["-m", "8", "-b", "1024", "-l"]] {
        let output = tool_output("iscsi-perf", arguments.iter().chain(&["-t", "1", &target.url(0)]));
        let (_, rest) = output.rsplit_once("iops average ").unwrap_or_else(|| panic!("{output}"));
        let average: u64 = rest.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        assert!(average > 0 && output.contains("finished."), "{output}");
    }
    target.stop().expect("a clean end");
}

/// A directory tree with what a file system finds hard: many small files, a large one, a sparse one, links.
fn make_tree(root: &Path) {
    let fill = |seed: u32, length: u32| -> Vec<u8> {
        (0..length).map(|index| (index.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
    };
    for directory in 0..8 {
        let path = root.join(format!("directory-{directory}"));
        fs::create_dir_all(&path).expect("a directory");
        for file in 0..32 {
            fs::write(path.join(format!("file-{file}")), fill(directory * 32 + file, file * 97))
                .expect("a file");
        }
    }
    fs::write(root.join("large"), fill(1, 9 << 20)).expect("a file");
    let sparse = fs::File::create(root.join("sparse")).expect("a file");
    sparse.set_len(20 << 20).expect("a length");
    std::os::unix::fs::symlink("directory-0/file-1", root.join("link")).expect("a link");
}

fn copy_a_file_system_there_and_back(lun: &str) {
    need_programs!("mke2fs", "e2fsck", "qemu-img");
    let directory = tempfile::tempdir().expect("a directory");
    let (tree, image, back) =
        (directory.path().join("tree"), directory.path().join("ext4.img"), directory.path().join("back.img"));
    fs::create_dir(&tree).expect("a directory");
    make_tree(&tree);
    let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    tool_output("mke2fs", ["-q", "-t", "ext4", "-d", &path(&tree), &path(&image), "64M"]);

    let served = path(&directory.path().join("served.img"));
    let lun = lun.replace("{served}", &served);
    let target = match Lunette::serve().luns([&lun]).start() {
        Ok(target) => target,
        // No O_DIRECT below this directory, or no io_uring: the unit says so and is not served.
        Err(error) if error.to_string().contains("cannot be served") => {
            return eprintln!("SKIPPED, {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let url = target.url(0);
    tool_output("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", &path(&image), &url]);
    tool_output("qemu-img", ["convert", "-f", "raw", "-O", "raw", &url, &path(&back)]);
    target.stop().expect("a clean end");

    assert!(fs::read(&image).expect("the image") == fs::read(&back).expect("its copy"), "the copy differs");
    tool_output("e2fsck", ["-f", "-n", &path(&back)]);
    if Path::new(&served).exists() {
        tool_output("e2fsck", ["-f", "-n", &served]);
    }
}

#[test]
fn qemu_img_copies_a_file_system_through_a_file() {
    copy_a_file_system_there_and_back("0=file:{served},size=64M");
}

#[test]
fn qemu_img_copies_a_file_system_through_a_write_back_file_of_4096_byte_blocks() {
    copy_a_file_system_there_and_back("0=file:{served},size=64M,write=back,block=4096");
}

#[test]
fn qemu_img_copies_a_file_system_through_the_synchronous_engine() {
    copy_a_file_system_there_and_back("0=file:{served},size=64M,engine=sync");
}

#[test]
fn qemu_img_copies_a_file_system_past_the_page_cache() {
    copy_a_file_system_there_and_back("0=file:{served},size=64M,engine=direct");
    copy_a_file_system_there_and_back("0=file:{served},size=64M,engine=uring");
    copy_a_file_system_there_and_back("0=file:{served},size=64M,engine=uring,write=back");
}

#[test]
fn qemu_img_copies_a_file_system_through_memory() {
    copy_a_file_system_there_and_back("0=mem:64M");
}

/// What changes a unit, and what must be found on it afterwards.
const CHANGES: &[&str] = &[
    "write -P 0xa5 0 4M",
    "write -P 0x5a 1M 64k",
    "write -f -P 0x11 8M 4k",
    "write -z 64k 128k",
    "write -z -u 2M 1M",
    "discard 0 64k",
    "aio_write -P 0x22 16M 1M",
    "aio_write -P 0x33 17M 1M",
    "aio_flush",
    "write -P 0x77 67104768 4k",
    "flush",
];
const FOUND: &[&str] = &[
    "read -P 0 0 192k",
    "read -P 0xa5 192k 832k",
    "read -P 0x5a 1M 64k",
    "read -P 0 2M 1M",
    "read -P 0x11 8M 4k",
    "read -P 0x22 16M 1M",
    "read -P 0x33 17M 1M",
    "read -P 0x77 67104768 4k",
];

fn change_with_qemu_io(options: &str, through_the_target: bool) {
    need_programs!("qemu-io");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("patterns.img");
    let path = file.to_str().expect("a path in UTF-8");
    let target =
        Lunette::serve().luns([format!("0=file:{path},size=64M{options}")]).start().expect("a target");
    let url = target.url(0);
    qemu_io_ok(&url, CHANGES);
    if through_the_target {
        qemu_io_ok(&url, FOUND);
        // The check must be able to fail, and the end of the unit is one.
        assert!(!qemu_io(&url, &["read -P 0xa6 8M 4k"]).success());
    }
    assert!(!qemu_io(&url, &["write 64M 4k"]).success());
    target.stop().expect("a clean end");
    qemu_io_ok(path, FOUND);

    // What was discarded and zeroed takes no room: 4 MiB + 2 MiB of patterns less more than a MiB of zeroes.
    use std::os::unix::fs::MetadataExt;
    let allocated = fs::metadata(&file).expect("the file").blocks() * 512;
    assert!((2 << 20..6 << 20).contains(&allocated), "{allocated} bytes are allocated");
}

#[test]
fn qemu_io_finds_its_patterns_again() {
    change_with_qemu_io("", true);
}

#[test]
fn qemu_io_finds_its_patterns_again_with_write_back() {
    change_with_qemu_io(",write=back,engine=sync", true);
}

/// QEMU 7.2 cannot read a thin unit with 4096-byte blocks through iSCSI: it asks itself for the status of 2^31 - 512
/// bytes, and asserts that this is whole blocks. So it only writes here, and the image is read.
#[test]
fn qemu_io_writes_blocks_of_4096_bytes() {
    change_with_qemu_io(",block=4096", false);
}

#[test]
fn qemu_io_cannot_write_a_read_only_unit() {
    need_programs!("qemu-io");
    let target = Lunette::serve().luns(["0=mem:64M,ro"]).start().expect("a target");
    assert!(
        qemu_io(&target.url(0), &["read -P 0 0 4k"]).success() || {
            // QEMU opens for writing unless it is told otherwise.
            tool("qemu-io", ["-r", "-f", "raw", "-c", "read -P 0 0 4k", &target.url(0)]).success()
        }
    );
    assert!(!qemu_io(&target.url(0), &["write 0 4k"]).success(), "a read-only unit was written");
    target.stop().expect("a clean end");
}

#[test]
fn qemu_goes_on_after_the_target_was_killed_and_started_again() {
    need_programs!("qemu-img");
    let directory = tempfile::tempdir().expect("a directory");
    let lun = format!("0=file:{},size=64M,write=back", directory.path().join("disk.img").display());
    let first = Lunette::serve().luns([&lun]).start().expect("a target");
    let (portal, url) = (first.portal(), first.url(0));
    let worker = std::thread::spawn(move || {
        tool_output("qemu-img", ["bench", "-f", "raw", "-t", "none", "-w", "-c", "200000", "-d", "8", &url])
    });
    let logged_in = |line: &str| line.contains("logged in");
    assert!(first.wait_for_log(Duration::from_secs(20), logged_in).is_some(), "{}", first.log());
    std::thread::sleep(Duration::from_millis(300));
    assert!(!worker.is_finished(), "too fast to be interrupted");
    first.kill().expect("a kill");
    let second = Lunette::serve().portal(portal).luns([&lun]).start().expect("a second target");
    let output = worker.join().expect("QEMU notices nothing but a pause");
    assert!(output.contains("Run completed"), "{output}");
    assert!(second.log().lines().any(logged_in), "{}", second.log());
    second.stop().expect("a clean end");
}

#[test]
fn qemu_io_works_with_header_digests() {
    need_programs!("qemu-io");
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    let options = format!(
        "driver=iscsi,transport=tcp,portal={},target={TARGET_NAME},lun=0,header-digest=crc32c",
        target.portal()
    );
    let commands = ["-c", "write -P 0x5a 4k 1M", "-c", "read -P 0x5a 4k 1M"];
    tool_output("qemu-io", ["--image-opts", &options].iter().chain(&commands));
    target.stop().expect("a clean end");
}
