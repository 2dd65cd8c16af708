//! Lines of the log: as `tracing` writes them, with the trace that they belong to, where there is one.

use std::fmt::{Error, Result};

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::trace;

/// Writes lines with the field `trace_id` behind all others.
pub struct Traced<F> {
    lines: F,
    is_json: bool,
}

impl<F> Traced<F> {
    /// Lines for people.
    pub fn human(lines: F) -> Self {
        Self { lines, is_json: false }
    }

    /// Lines that are JSON objects.
    pub fn json(lines: F) -> Self {
        Self { lines, is_json: true }
    }
}

impl<S, N, F> FormatEvent<S, N> for Traced<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> Result {
        let Some(id) = trace::current_id() else {
            return self.lines.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.lines.format_event(context, Writer::new(&mut line), event)?;
        if self.is_json {
            let object = line.trim_end().strip_suffix('}').ok_or(Error)?;
            writeln!(writer, "{object},\"trace_id\":\"{id:032x}\"}}")
        } else {
            writeln!(writer, "{} trace_id={id:032x}", line.trim_end())
        }
    }
}
