//! Where pages are kept. A task is answered only when its page is safe here.

pub mod sqlite;
