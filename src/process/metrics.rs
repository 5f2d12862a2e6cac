//! What the system counts about this process.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use tidings_metrics::{Exposition, Metric, MetricsSource, resident_bytes};

/// Reads the metrics of this process.
#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    started_unix_s: u64,
}

impl ProcessMetrics {
    /// To be created at the start of the process.
    #[expect(clippy::disallowed_methods, reason = "the time of the start")]
    pub(crate) fn new() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_unix_s: started.as_secs() }
    }
}

impl MetricsSource for ProcessMetrics {
    fn add_to(&self, text: &mut Exposition) {
        text.add(PROCESS, self);
    }
}

/// The names are those of the client libraries of Prometheus. A system without `/proc` has fewer.
static PROCESS: &[Metric<ProcessMetrics>] = &[
    Metric::counter("process_cpu_seconds_total", &[], "CPU time of the process.", |_, out| {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = std::time::Duration::try_from(time).unwrap_or_default();
        out.float(&[], seconds.as_secs_f64());
    }),
    Metric::gauge("process_resident_memory_bytes", &[], "Resident memory.", |_, out| {
        out.value(resident_bytes());
    }),
    Metric::gauge("process_open_fds", &[], "Open file descriptors.", |_, out| {
        out.value(open_descriptors());
    }),
    Metric::gauge("process_max_fds", &[], "The limit of open file descriptors.", |_, out| {
        out.value(getrlimit(Resource::Nofile).current);
    }),
    Metric::gauge(
        "process_start_time_seconds",
        &[],
        "When the process was started, in seconds since 1970.",
        |it, out| out.value(it.started_unix_s),
    ),
    Metric::gauge("tidings_build_info", &["version"], "Always 1.", |_, out| {
        out.labelled(&[env!("CARGO_PKG_VERSION")], 1);
    }),
];

/// Since Linux 6.2 the size of the directory is the number of descriptors. Earlier ones list it,
/// which opens one more.
fn open_descriptors() -> Option<u64> {
    let directory = "/proc/self/fd";
    match fs::metadata(directory).ok()?.len() {
        0 => Some(fs::read_dir(directory).ok()?.count().saturating_sub(1) as u64),
        count => Some(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_keeps_to_the_conventions_and_every_metric_is_known_here() {
        tidings_metrics::check_table(PROCESS);
        let mut text = Exposition::new(tidings_metrics::Format::Classic);
        ProcessMetrics::new().add_to(&mut text);
        let text = text.finish();
        for metric in PROCESS {
            let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
            let sample = text.lines().find(|line| line.starts_with(metric.name));
            assert!(sample.is_some_and(|sample| value(sample) > 0.0), "{}: {text}", metric.name);
        }
    }
}
