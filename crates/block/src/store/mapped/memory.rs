//! How much memory there is.

use std::fs;
use std::path::Path;

/// Of this machine.
pub(super) fn machine_bytes() -> usize {
    let machine = rustix::system::sysinfo();
    (machine.totalram as usize).saturating_mul(machine.mem_unit as usize)
}

/// What this process may have: the machine's, or less where a control group has a bound.
pub(super) fn bytes_max() -> usize {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_bytes(&groups, Path::new("/sys/fs/cgroup"))
        .map_or_else(machine_bytes, |bytes| bytes.min(machine_bytes()))
}

/// The smallest bound of the groups in `/proc/PID/cgroup` and of those above them (cgroups(7)).
fn group_bytes(groups: &str, mounted: &Path) -> Option<usize> {
    let of_group = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let (root, file) = match controllers {
            "" => (mounted.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (mounted.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // A container may see its own group as the root, whatever its path says.
        let group = root.join(path);
        let above = group.ancestors().take_while(|group| group.starts_with(&root));
        above.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
    };
    groups.lines().filter_map(of_group).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_bound_of_a_group_and_those_above_it_counts() {
        let mounted = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = mounted.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.max", "4096\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "8192\n");
        assert_eq!(group_bytes("0::/a/b\n", mounted.path()), Some(4096));
        assert_eq!(group_bytes("1:cpu,cpuacct:/c\n3:memory:/c/d\n", mounted.path()), Some(8192));
        assert_eq!(group_bytes("0::/other\n7:pids:/\n", mounted.path()), None);
        assert_eq!(group_bytes("nonsense", mounted.path()), None);
        assert!(bytes_max() > 0 && bytes_max() <= machine_bytes());
    }
}
