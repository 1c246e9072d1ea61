//! The directory with the sockets by which this user's processes find each other.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

/// Finds or makes the part of it that is for `what`: in the user's directory for such things, or else in one that only this user
/// can write to.
///
/// # Errors
/// It cannot be made, or belongs to somebody else; the text names it.
pub(crate) fn directory(what: &str) -> io::Result<PathBuf> {
    let user = rustix::process::getuid();
    // Another user's, which `su` or `sudo` may have left in the environment, is not for this one.
    let own = |directory: &PathBuf| {
        fs::metadata(directory)
            .is_ok_and(|metadata| metadata.uid() == user.as_raw() && metadata.mode() & 0o022 == 0)
    };
    let base = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own) {
        Some(directory) => directory.join("lunette"),
        None if user.is_root() => PathBuf::from("/run/lunette"),
        None => std::env::temp_dir().join(format!("lunette-{}", user.as_raw())),
    };
    let path = base.join(what);
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("no directory {}: {error}", path.display()));
    DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
    let metadata = fs::symlink_metadata(&base).map_err(failed)?;
    if metadata.uid() != user.as_raw() || metadata.mode() & 0o022 != 0 {
        let text = format!("{} is not a directory that only this user writes to", base.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(path)
}
