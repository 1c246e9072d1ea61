//! Lu and Du, tables 4 and 5: files over iSCSI, NFS and SMB.

use super::files::ShareKind;
use super::probe::{Figure, FilesProbe, Job, SIZES_KIB, Scheme};
use super::published::{LU_FILES_NFS, LU_FILES_SMB, Published};
use super::{Cell, Probe, Study, parameters};

/// Both tables.
pub(crate) const FILES: Study = Study {
    name: "lu-files",
    paper: "Lu and Du, Performance Study of iSCSI-Based Storage Subsystems",
    question: "how long one file takes over iSCSI, NFS and SMB, each a new one, opened, read or written and closed, without caches (tables 4 and 5)",
    differs: "One disk image with ext2: for iSCSI at the near end, on lunette attach (which neither reads ahead nor answers \
              early here) and a loop device, else at the far end below Debian's nfs-ganesha (NFS 3 over TCP, the client a library: LOOKUP, ACCESS, \
              READ; CREATE, WRITE with FILE_SYNC) or smbd (the client one smbclient for all files; each write is stable). Over iSCSI files are \
              written with O_SYNC, which leaves their names for later; `iscsi-sync` is mounted with `sync`, so that names are stable \
              too, as on the file system below the servers. Before a scheme is measured everything is mounted anew and out of the \
              caches. The paper has NFS 2, and an older SMB above NTFS, whose own iSCSI figures (table 4) are not beside ours; it does not say over \
              which of its networks it measured, so its figures stand at both. The paper's campus network was encrypted; ours is not. It needs root.",
    axes: Some(("size_kib", "scheme")),
    cells,
};

const SCHEMES: [(&str, Scheme, Option<Published>); 5] = [
    ("direct", Scheme::Direct, None),
    ("iscsi", Scheme::Iscsi { is_synchronous: false }, Some(LU_FILES_NFS)),
    ("iscsi-sync", Scheme::Iscsi { is_synchronous: true }, None),
    ("nfs", Scheme::Share(ShareKind::Nfs), Some(LU_FILES_NFS)),
    ("smb", Scheme::Share(ShareKind::Smb), Some(LU_FILES_SMB)),
];

fn cells(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (told, is_deviation) in [("mean", false), ("deviation", true)] {
        for network in ["gige", "campus"] {
            for (op, writes) in [("read", false), ("write", true)] {
                for (scheme, job, table) in SCHEMES {
                    // Without a network there is one of them.
                    let link = (job != Scheme::Direct).then(|| network.to_owned());
                    if link.is_none() && network == "campus" {
                        continue;
                    }
                    for size_kib in SIZES_KIB {
                        let size = size_kib.to_string();
                        let wanted = [("scheme", scheme), ("op", op), ("size_kib", &*size)];
                        let column = if is_deviation { "std_ms" } else { "mean_ms" };
                        cells.push(Cell {
                            parameters: parameters([
                                ("figure", told.to_owned()),
                                ("network", if link.is_some() { network } else { "none" }.to_owned()),
                                ("op", op.to_owned()),
                                ("scheme", scheme.to_owned()),
                                ("size_kib", size.clone()),
                            ]),
                            link: link.clone(),
                            probe: Probe::Files(FilesProbe {
                                job: Job::Each(job),
                                figure: Figure::Each { writes, size_kib, is_deviation },
                            }),
                            published: table.and_then(|table| table.one(&wanted, column)),
                            published_times: None,
                            beside: Vec::new(),
                            of_peers: Vec::new(),
                        });
                    }
                }
            }
        }
    }
    cells
}
