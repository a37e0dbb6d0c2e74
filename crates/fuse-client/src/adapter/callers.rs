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

/// Signals that wait for the thread, or for its process; bit 0 for signal 1.
pub fn pending(status: &str) -> u64 {
    signals(status, "SigPnd:") | signals(status, "ShdPnd:")
}

/// Signals in a field of a status.
pub fn signals(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_gone_is_whatever_is_asked() {
        assert!(!is_so(std::process::id(), |_| false));
        assert!(is_so(std::process::id(), |status| status.contains("SigPnd:")));
        assert!(!is_so(0, |_| true));
        assert!(is_so(u32::MAX, |_| false));
    }
}
