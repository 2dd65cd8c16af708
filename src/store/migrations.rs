//! The list of migrations: each store has a file of each name.

/// Returns `(name, text)` of every migration, in order: the files of this folder in `migrations/`, with this ending.
/// Only for files that are two folders below `src/`.
macro_rules! migrations {
    ($folder:literal, $ending:literal) => {
        $crate::store::migrations::migrations! { $folder, $ending:
            "0001_jobs"
            "0002_counters"
            "0003_routes"
            "0004_schedules"
            "0005_workers"
            "0006_batches"
            "0007_groups"
            "0008_semaphores"
            "0009_anchors"
            "0010_access"
            "0011_key_limits"
            "0012_contract"
            "0013_binary"
            "0014_series"
            "0015_operations"
            "0016_came_at"
            "0017_bounds"
        }
    };
    ($folder:literal, $ending:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../migrations/", $folder, "/", $name, $ending))),)*]
    };
}
pub(super) use migrations;
