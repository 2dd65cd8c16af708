//! Keeps the metrics small: what was observed since the last time becomes part of the histograms. Otherwise
//! every single observation would be kept until somebody asks for the metrics.

use std::time::Duration;

use async_trait::async_trait;
use metrics_exporter_prometheus::PrometheusHandle;

use super::driver::{Run, Task};
use crate::queue::Error;

/// See the module's documentation.
pub struct MetricsUpkeep(PrometheusHandle);

impl MetricsUpkeep {
    /// Keeps these metrics small.
    pub fn new(metrics: PrometheusHandle) -> Self {
        Self(metrics)
    }
}

#[async_trait]
impl Task for MetricsUpkeep {
    fn name(&self) -> &'static str {
        "metrics_upkeep"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(2)
    }

    async fn run_once(&self) -> Result<Run, Error> {
        self.0.run_upkeep();
        Ok(Run::default())
    }
}
