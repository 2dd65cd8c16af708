//! The text format of Prometheus, for figures that are kept elsewhere than in its recorder.

use std::fmt::{Display, Write as _};

use crate::telemetry::catalog::Metric;

/// A page of metrics.
#[derive(Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// A page that begins with this text.
    pub fn new(text: String) -> Self {
        Self { text }
    }

    /// Begins a metric. Its head is written with its first series.
    pub fn metric(&mut self, metric: Metric) -> Series<'_> {
        Series { page: self, metric, is_begun: false }
    }

    /// Writes a metric that has one series without labels, if there is a value.
    pub fn single(&mut self, metric: Metric, value: Option<impl Display>) {
        if let Some(value) = value {
            self.metric(metric).put(&[], value);
        }
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        self.text
    }

    fn write(&mut self, arguments: std::fmt::Arguments<'_>) {
        let _ = self.text.write_fmt(arguments); // writing to a String cannot fail
    }
}

/// The series of one metric.
pub struct Series<'a> {
    page: &'a mut Page,
    metric: Metric,
    is_begun: bool,
}

impl Series<'_> {
    /// Writes a series: the values of its labels in their order, and its own.
    pub fn put(&mut self, labels: &[&str], value: impl Display) {
        self.begin();
        self.line("", labels, None, value);
    }

    /// Writes a histogram: how many observations lie within each bound, how many there are, and their sum.
    pub fn histogram(
        &mut self,
        labels: &[&str],
        within: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        self.begin();
        for (bound, count) in within {
            self.line("_bucket", labels, Some(&bound), count);
        }
        self.line("_bucket", labels, Some(&"+Inf"), count);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            let Metric { name, kind, help, .. } = self.metric;
            let kind = kind.as_str();
            self.page.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        }
    }

    fn line(&mut self, suffix: &str, labels: &[&str], bound: Option<&dyn Display>, value: impl Display) {
        let Self { page, metric, .. } = self;
        page.write(format_args!("{}{suffix}", metric.name));
        let mut separator = '{';
        for (name, value) in metric.labels.iter().zip(labels) {
            page.write(format_args!("{separator}{name}=\"{}\"", Escaped(value)));
            separator = ',';
        }
        if let Some(bound) = bound {
            page.write(format_args!("{separator}le=\"{bound}\""));
            separator = ',';
        }
        let end = if separator == ',' { "}" } else { "" };
        page.write(format_args!("{end} {value}\n"));
    }
}

/// The value of a label as the format wants it.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.0.contains(['\\', '"', '\n']) {
            return f.write_str(self.0);
        }
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::catalog::{JOBS, QUEUE_RUN_SECONDS, QUEUES, WORKERS};

    #[test]
    fn series_are_written_under_one_head() {
        let mut page = Page::new("# before\n".to_owned());
        page.single(QUEUES, Some(7));
        page.single(WORKERS, None::<u64>);
        let mut jobs = page.metric(JOBS);
        jobs.put(&["a\"b\\c\nd", "ready"], 1);
        jobs.put(&["e", "dead"], 0);
        page.metric(QUEUE_RUN_SECONDS).histogram(&["a"], [(0.5, 1), (60.0, 3)].into_iter(), 4, 70.25);
        let text = page.finish();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(
            lines,
            [
                "# before",
                "# TYPE tailback_queues gauge",
                "tailback_queues 7",
                "# TYPE tailback_jobs gauge",
                r#"tailback_jobs{queue="a\"b\\c\nd",state="ready"} 1"#,
                r#"tailback_jobs{queue="e",state="dead"} 0"#,
                "# TYPE tailback_queue_job_run_seconds histogram",
                r#"tailback_queue_job_run_seconds_bucket{queue="a",le="0.5"} 1"#,
                r#"tailback_queue_job_run_seconds_bucket{queue="a",le="60"} 3"#,
                r#"tailback_queue_job_run_seconds_bucket{queue="a",le="+Inf"} 4"#,
                r#"tailback_queue_job_run_seconds_sum{queue="a"} 70.25"#,
                r#"tailback_queue_job_run_seconds_count{queue="a"} 4"#,
            ]
        );
        assert_eq!(text.matches("# HELP").count(), 3);
    }
}
