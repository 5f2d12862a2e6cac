//! Recognises file systems that other machines change without inotify events here.

use std::path::Path;

/// NFS, SMB (three kinds), 9P, AFS (two), Coda, Ceph, FUSE (sshfs, s3fs, virtiofs ..), NCP, Lustre,
/// GFS2, OCFS2, `BeeGFS`, GPFS, and shared folders of virtual machines (two kinds).
const SHARED_FILE_SYSTEMS: [u32; 18] = [
    0x6969,
    0x517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x0102_1997,
    0x5346_414F,
    0x6B41_4653,
    0x7375_7245,
    0x00C3_6400,
    0x6573_5546,
    0x564C,
    0x0BD0_0BD0,
    0x0116_1970,
    0x7461_636F,
    0x1983_0326,
    0x4750_4653,
    0x786F_4256,
    0xBACB_ACBC,
];

/// Whether other machines may change this path.
pub(super) fn is_shared(path: &Path) -> bool {
    // Only the lower 32 bits are the type, and some systems sign-extend them.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits count")]
    rustix::fs::statfs(path).is_ok_and(|stat| SHARED_FILE_SYSTEMS.contains(&(stat.f_type as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_file_systems_are_not_shared() {
        for local in ["/dev/shm", "/proc", "/no/such/place"] {
            assert!(!is_shared(Path::new(local)), "{local}");
        }
    }
}
