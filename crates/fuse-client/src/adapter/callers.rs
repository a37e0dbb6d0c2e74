//! What `/proc` tells of the threads that wait for answers.

/// Is this so of a thread's `/proc/<thread>/status`, or is it gone? One in another PID namespace
/// (0) cannot be seen: it is not.
pub fn is_so(thread: u32, of_status: fn(&str) -> bool) -> bool {
    if thread == 0 {
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => of_status(&status),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Is the thread of the machine's root, and with the right to administer it? Root of a user
/// namespace is another user here. One that is gone, or in another PID namespace (0), is not.
pub fn is_administrator(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    thread != 0 && administers(&status)
}

fn administers(status: &str) -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    // Real, effective, saved, and that of the file system, which counts.
    let is_root = uids.split_whitespace().nth(3) == Some("0");
    is_root && bits(status, "CapEff:") & CAP_SYS_ADMIN != 0
}

/// Signals that wait for the thread, or for its process; bit 0 for signal 1.
pub fn pending(status: &str) -> u64 {
    bits(status, "SigPnd:") | bits(status, "ShdPnd:")
}

/// Bits in a field of a status: signals, or capabilities.
pub fn bits(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_with_its_rights_is_an_administrator() {
        let status = |uid: u32, caps: u64| format!("Uid:\t7\t7\t7\t{uid}\nCapEff:\t{caps:016x}\n");
        assert!(administers(&status(0, u64::MAX)));
        assert!(!administers(&status(7, u64::MAX)), "root of a user namespace, maybe");
        assert!(!administers(&status(0, !(1 << 21))));
        assert!(!administers("") && !is_administrator(0) && !is_administrator(u32::MAX));
    }

    #[test]
    fn a_thread_that_is_gone_is_whatever_is_asked() {
        assert!(!is_so(std::process::id(), |_| false));
        assert!(is_so(std::process::id(), |status| status.contains("SigPnd:")));
        assert!(!is_so(0, |_| true));
        assert!(is_so(u32::MAX, |_| false));
    }
}
