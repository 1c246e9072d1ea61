//! Real file systems, with what can be negotiated: digests, CHAP both ways, 512-byte and 4096-byte blocks.

use lunette_tests::lunette::TARGET_NAME;
use lunette_tests::need_guest;
use lunette_tests::vm::HOST;

use crate::{again_if_a_guest_hangs, boot, finish, image, serve};

const SCRIPT: &str = include_str!("../../vm/scripts/filesystem.sh");
const SECRET: &str = "a secret of 22 letters";
const TARGET_SECRET: &str = "another of 20 letter";

#[test]
fn ext4_with_digests_and_mutual_chap() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let directory = tempfile::tempdir().expect("a directory");
        let secret = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("a file");
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                .expect("a file");
            format!("file:{}", path.display())
        };
        let user = format!("guest={}", secret("user", SECRET));
        let mutual = format!("{TARGET_NAME}={}", secret("target", TARGET_SECRET));
        let target = serve(&network, &format!("0={},size=512M", image(directory.path())))
            .args(["--chap-user", &user, "--chap-mutual", &mutual])
            .start()
            .expect("a target");
        let environment = [
            ("FILE_SYSTEM", "ext4"),
            ("BLOCK", "512"),
            ("DIGEST", "CRC32C"),
            ("CHAP_USER", "guest"),
            ("CHAP_SECRET", SECRET),
            ("TARGET_SECRET", TARGET_SECRET),
        ];
        finish(boot(&network, &[HOST], &environment, SCRIPT), &target);
        target.stop().expect("a clean end");
    });
}

#[test]
fn xfs_on_4096_byte_blocks_written_back() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let directory = tempfile::tempdir().expect("a directory");
        let target =
            serve(&network, &format!("0={},size=512M,block=4096,write=back", image(directory.path())))
                .start()
                .expect("a target");
        let environment = [("FILE_SYSTEM", "xfs"), ("BLOCK", "4096"), ("DIGEST", "None")];
        finish(boot(&network, &[HOST], &environment, SCRIPT), &target);
        target.stop().expect("a clean end");
    });
}
