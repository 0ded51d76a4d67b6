//! How much memory a run may use.

/// Used where the system does not say how much memory there is: 16 GiB.
const FALLBACK: u64 = 16 << 30;

/// Bytes of main memory of this machine.
pub(super) fn physical() -> u64 {
    #[cfg(target_os = "linux")]
    {
        let info = rustix::system::sysinfo();
        let bytes = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
        if bytes > 0 {
            return bytes;
        }
    }
    FALLBACK
}
