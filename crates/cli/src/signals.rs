//! What is known of signals before any is waited for.

use signal_hook::consts::SIGHUP;

/// Whoever has started this process wants it to outlive its terminal, as nohup does.
pub(crate) fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}
