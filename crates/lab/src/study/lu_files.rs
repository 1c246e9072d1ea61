//! Lu and Du, tables 4 and 5: files over iSCSI, NFS and SMB.

use super::files::ShareKind;
use super::probe::{Figure, FilesProbe, Job, SIZES_KIB, Scheme};
use super::published::{LU_FILES_NFS, LU_FILES_SMB, Published};
use super::result::{CellResult, Summary};
use super::{Cell, Probe, Study, parameters};
use crate::report::figure_text;

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
              caches. The paper has NFS 2, and an older SMB above NTFS, so that its own iSCSI figures of table 4 stand in that table alone, and no cell is held to them; it does not say over \
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

/// What is measured: the paper's columns, and whether each is a deviation.
const FIGURES: [(&str, &str, bool); 2] = [("mean", "mean_ms", false), ("deviation", "std_ms", true)];
const NETWORKS: [&str; 2] = ["gige", "campus"];
const OPERATIONS: [(&str, bool); 2] = [("read", false), ("write", true)];

/// The paper's two tables with every row of them, beside what was measured here.
pub(super) fn tables(cells: &[CellResult]) -> Vec<Summary> {
    let of_table = |title: &str, table: Published, share: &str| {
        let measured = |own: &[(&str, &str)]| {
            let has = |cell: &CellResult, pair: &(&str, &str)| {
                cell.parameters.iter().any(|own| (&*own.0, &*own.1) == *pair)
            };
            let cell = cells.iter().find(|cell| own.iter().all(|pair| has(cell, pair)));
            cell.map_or_else(|| "-".to_owned(), |cell| figure_text(cell.measured))
        };
        let mut rows = Vec::new();
        for (op, _) in OPERATIONS {
            for scheme in ["iscsi", share] {
                for size_kib in SIZES_KIB {
                    let size = size_kib.to_string();
                    let own = [("scheme", scheme), ("op", op), ("size_kib", &*size)];
                    let mut row = [scheme, op, &*size].map(str::to_owned).to_vec();
                    row.extend(FIGURES.map(|(_, column, _)| {
                        table.one(&own, column).map_or_else(|| "-".to_owned(), figure_text)
                    }));
                    for network in NETWORKS {
                        let of = |figure| [&own[..], &[("figure", figure), ("network", network)]].concat();
                        row.extend(FIGURES.map(|(figure, ..)| measured(&of(figure))));
                    }
                    rows.push(row);
                }
            }
        }
        let mut columns =
            ["scheme", "op", "size_kib", "published mean", "published deviation"].map(str::to_owned).to_vec();
        columns.extend(
            NETWORKS
                .iter()
                .flat_map(|network| FIGURES.map(|(figure, ..)| format!("{figure} here, {network}"))),
        );
        Summary { title: title.to_owned(), columns, rows }
    };
    vec![
        of_table(
            "Table 4, every row of it, in ms: SMB and iSCSI; the paper's iSCSI is above NTFS, for which nothing stands here: beside it is ext2 over iSCSI",
            LU_FILES_SMB,
            "smb",
        ),
        of_table("Table 5, every row of it, in ms: NFS and iSCSI", LU_FILES_NFS, "nfs"),
    ]
}

fn cells(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (told, column, is_deviation) in FIGURES {
        for network in NETWORKS {
            for (op, writes) in OPERATIONS {
                for (scheme, job, table) in SCHEMES {
                    // Without a network there is one of them.
                    let link = (job != Scheme::Direct).then(|| network.to_owned());
                    if link.is_none() && network == "campus" {
                        continue;
                    }
                    for size_kib in SIZES_KIB {
                        let size = size_kib.to_string();
                        let wanted = [("scheme", scheme), ("op", op), ("size_kib", &*size)];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_both_tables_is_told_beside_what_was_measured() {
        let parameters =
            |cell: Cell| cell.parameters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let measured = |(at, cell)| CellResult {
            parameters: parameters(cell),
            ..CellResult::of(Vec::new(), at as f64, "ms")
        };
        let cells: Vec<CellResult> = cells(1).into_iter().enumerate().map(measured).collect();
        let tables = tables(&cells);
        for (summary, table) in tables.iter().zip([LU_FILES_SMB, LU_FILES_NFS]) {
            let rows = &summary.rows;
            assert!(
                rows.iter().all(|row| row.len() == summary.columns.len() && !row.contains(&"-".to_owned()))
            );
            for (at, column) in [(3, "mean_ms"), (4, "std_ms")] {
                let mut told: Vec<String> = rows.iter().map(|row| row[at].clone()).collect();
                let mut published: Vec<String> =
                    table.all(&[], column).into_iter().map(figure_text).collect();
                told.sort();
                published.sort();
                assert_eq!(told, published, "{column}");
            }
        }
        // Each figure stands in the row and the column that are its own.
        let (row, columns) = (&tables[0].rows[1], &tables[0].columns);
        assert_eq!(row[..5].join(" "), "iscsi read 4 20.5 25.4");
        let figure = |figure: &str, network: &str| {
            let own = [figure, network, "read", "iscsi", "4"];
            let cell = cells.iter().find(|cell| cell.parameters.iter().map(|pair| &*pair.1).eq(own));
            figure_text(cell.expect("a cell").measured)
        };
        assert_eq!(columns[7..], ["mean here, campus", "deviation here, campus"]);
        assert_eq!(row[7..], [figure("mean", "campus"), figure("deviation", "campus")]);
    }
}
