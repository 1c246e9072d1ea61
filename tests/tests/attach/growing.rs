//! A disk that becomes larger or smaller while it is attached (SBC-3, CAPACITY DATA HAS CHANGED).

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lunette_tests::attach::{Attached, can_mount};
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::lunette::{Launch, Lunette};

use super::pattern;

const MIB: u64 = 1 << 20;
const ENOSPC: u32 = 28;

fn set_length(image: &Path, bytes: u64) {
    let image = OpenOptions::new().write(true).open(image).expect("the image");
    image.set_len(bytes).expect("another length");
}

fn serve(image: &Path) -> Launch {
    Lunette::serve().luns([format!("0={},write=back", image.display())])
}

fn says(attached: &Attached, words: &str) -> bool {
    attached.log().contains(words)
}

#[test]
fn nbd_clients_that_connect_again_see_what_has_been_added() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(8 * MIB)).expect("an image");
    let target = serve(&image).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut old = attached.client().expect("a client");
    set_length(&image, 12 * MIB);
    // Reads in order: what is read ahead may be what the unit tells it with.
    let mut at = 0;
    wait_until("the disk has grown", || {
        old.read(at % (8 * MIB), 4096).expect("data");
        at += 4096;
        says(
            &attached,
            "the disk has grown from 8 MiB to 12 MiB; NBD clients have that size when they connect again",
        )
    });
    assert_eq!(attached.next_ready().expect("once more").size_bytes, 12 * MIB);
    let (data, end) = (pattern(1, 4096), 12 * MIB - 4096);
    assert_eq!(old.write(end, &data).expect("an answer"), ENOSPC, "it was told another size");
    let mut new = attached.client().expect("another client");
    assert_eq!(new.write(end, &data).expect("an answer"), 0);
    assert_eq!(new.write(end + 1, &data).expect("an answer"), ENOSPC);
    assert_eq!(new.flush().expect("an answer"), 0);
    assert!(fs::read(&image).expect("the image")[end as usize..] == data);

    // It is the larger one that has to be there after a restart.
    let portal = target.portal();
    target.kill().expect("killed");
    let target = serve(&image).portal(portal).start().expect("the target again");
    assert_eq!(new.read(end, 4096).expect("data"), data);
    assert_eq!(old.read(0, 512).expect("data"), [0; 512]);
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

/// Nobody uses it, and the session in which it would have said so is gone.
#[test]
fn what_has_been_added_while_the_target_was_away_is_served() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    fs::write(&image, pattern(4, 8 << 20)).expect("an image");
    let target = serve(&image).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let portal = target.portal();
    target.kill().expect("killed");
    set_length(&image, 12 * MIB);
    let target = serve(&image).portal(portal).start().expect("the target again");
    assert_eq!(attached.next_ready().expect("once more").size_bytes, 12 * MIB, "{}", attached.log());
    let mut client = attached.client().expect("a client");
    assert!(client.read(4 * MIB, 4096).expect("data") == pattern(4, 8 << 20)[4 << 20..][..4096]);
    let data = pattern(5, 4096);
    assert_eq!(client.write(12 * MIB - 4096, &data).expect("an answer"), 0);
    assert_eq!(client.flush().expect("an answer"), 0);
    assert!(fs::read(&image).expect("the image")[12 * (1 << 20) - 4096..] == data);
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

#[test]
fn the_file_grows_with_the_disk() {
    if !can_mount() {
        return;
    }
    let [images, directory] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let image = images.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(8 * MIB)).expect("an image");
    let target = serve(&image).start().expect("a target");
    let attached = Attached::mount(&target.url(0), directory.path(), &[]).expect("attached");
    let file = OpenOptions::new().read(true).write(true).open(attached.file()).expect("the file");
    let length = || file.metadata().expect("its size").len();
    assert_eq!(length(), 8 * MIB);
    set_length(&image, 9 * MIB);
    wait_until("the file has grown", || {
        file.read_exact_at(&mut [0; 512], 0).expect("data");
        length() == 9 * MIB
    });
    let (data, end) = (pattern(2, 4096), 9 * MIB - 4096);
    file.write_all_at(&data, end).expect("written");
    file.sync_all().expect("stable");
    let mut read = vec![0; 4096];
    file.read_exact_at(&mut read, end).expect("data");
    assert!(read == data && fs::read(&image).expect("the image")[end as usize..] == data);
    assert_eq!(file.write_at(&data, end + 1).expect_err("no further").kind(), ErrorKind::StorageFull);
    drop(file);
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

#[test]
fn what_has_gone_is_an_error_and_no_data() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    fs::write(&image, pattern(3, 8 << 20)).expect("an image");
    let target = serve(&image).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    set_length(&image, 4 * MIB);
    wait_until("the disk has shrunk", || {
        client.read(0, 512).expect("data");
        says(&attached, "the disk has shrunk from 8 MiB to 4 MiB")
    });
    assert!(client.read(5 * MIB, 512).is_err());
    assert_eq!(client.read(4 * MIB - 512, 512).expect("data"), pattern(3, 4 << 20)[(4 << 20) - 512..]);
    assert_ne!(client.write(5 * MIB, &[1; 512]).expect("an answer"), 0);
    assert_eq!(client.flush().expect("an answer"), 0, "nothing was answered that is not there");
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

/// Where the target sends asynchronous messages nobody has to use the disk for it.
#[test]
fn a_message_of_the_target_is_enough() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(8 * MIB)).expect("an image");
    let target = InProcess::start_with(&[&format!("0=file:{}", image.display())], |config| {
        config.targets[0].scsi_events = true;
    });
    let url = format!("iscsi://{}/{}/0", target.portal(), target.name());
    let attached = Attached::start(&url, &[]).expect("attached");
    set_length(&image, 10 * MIB);
    assert_eq!(attached.next_ready().expect("once more").size_bytes, 10 * MIB, "{}", attached.log());
    attached.detach().expect("all is stable");
}
