//! Published figures: tables of facts, one file for each of the papers' tables.

/// A table: the names of its columns, then rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published(&'static str);

/// Tables 1 and 2 of Dalgic and others.
pub(crate) const DALGIC_TCP: Published =
    Published(include_str!("../../published/dalgic-tables1-2-tcp-mb-per-s.csv"));
/// Tables 3 to 5.
pub(crate) const DALGIC_SWEEP: Published =
    Published(include_str!("../../published/dalgic-tables3-5-iscsi-mb-per-s.csv"));
/// Table 6.
pub(crate) const DALGIC_LAN: Published =
    Published(include_str!("../../published/dalgic-table6-gige-lan-mb-per-s.csv"));
/// Appendix G of Trinkle.
pub(crate) const TRINKLE: Published = Published(include_str!("../../published/trinkle-appendix-g.csv"));
/// Table 2 of Lu and Du.
pub(crate) const LU_LIGHT: Published = Published(include_str!("../../published/lu-du-table2-latency-ms.csv"));
/// Table 3.
pub(crate) const LU_SPREAD: Published =
    Published(include_str!("../../published/lu-du-table3-read-variance-ms.csv"));
/// Figure 2.
pub(crate) const LU_HEAVY: Published =
    Published(include_str!("../../published/lu-du-figure2-heavy-load.csv"));
/// The trace.
pub(crate) const LU_TRACE: Published = Published(include_str!("../../published/lu-du-trace.csv"));
/// Table 4, files over SMB and over iSCSI.
pub(crate) const LU_FILES_SMB: Published =
    Published(include_str!("../../published/lu-du-table4-smb-vs-iscsi-ms.csv"));
/// Table 5, files over NFS and over iSCSI.
pub(crate) const LU_FILES_NFS: Published =
    Published(include_str!("../../published/lu-du-table5-nfs-vs-iscsi-ms.csv"));
/// The setup process.
pub(crate) const LU_LOGIN: Published = Published(include_str!("../../published/lu-du-login-ms.csv"));
/// What Trinkle's network and RAID reached (4.1).
pub(crate) const TRINKLE_BASELINE: Published =
    Published(include_str!("../../published/trinkle-baseline-mb-per-s.csv"));

impl Published {
    /// The values of this column in the rows that have these values in theirs.
    pub(crate) fn all(self, wanted: &[(&str, &str)], column: &str) -> Vec<f64> {
        let mut lines = self.0.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let place = |name: &str| names.iter().position(|column| *column == name);
        let rows = lines.filter_map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let has = |(name, value): &(&str, &str)| place(name).and_then(|at| cells.get(at)) == Some(value);
            let value = *cells.get(place(column)?)?;
            wanted.iter().all(has).then_some(value)?.parse().ok()
        });
        rows.collect()
    }

    /// The value of the only such row.
    pub(crate) fn one(self, wanted: &[(&str, &str)], column: &str) -> Option<f64> {
        let all = self.all(wanted, column);
        (all.len() == 1).then(|| all[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_their_values() {
        let find = |rtt| {
            let wanted =
                [("mode", "write-solicited"), ("request_kib", "64"), ("window", "32"), ("rtt_ms", rtt)];
            DALGIC_SWEEP.one(&wanted, "mb_per_s")
        };
        assert_eq!((find("50"), find("10"), find("7")), (Some(4.5), Some(19.3), None));
        assert_eq!(DALGIC_SWEEP.one(&[("window", "32")], "mb_per_s"), None, "several");
        assert!(DALGIC_SWEEP.all(&[("nothing", "32")], "mb_per_s").is_empty());
    }
}
