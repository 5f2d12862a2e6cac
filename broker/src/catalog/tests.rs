//! Catalogs on real and simulated disks.
