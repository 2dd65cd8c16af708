//! Figures of the past.

use crate::http::json::Json;
use axum::extract::State;
use serde::Serialize;

use crate::http::access::Granted;
use crate::http::params::{Query, with_offset};
use crate::http::problem::{ApiResult, Code, Problem};
use crate::job::names::NAME_RULE;
use crate::job::{QueueName, Timestamp};
use crate::queue::Queues;
use crate::queue::series::{METRICS, Metric, SeriesAsk};
use crate::store::Subject;

/// How far back is looked where nothing else is said, in milliseconds.
const HOUR_MS: u64 = 3_600_000;
/// The rule for a moment.
const MOMENT_RULE: &str = "a time such as 2026-01-31T08:00:00.000Z (RFC 3339), from 1970 to 9999-12-30T22:00:00Z, or how long ago it is, such as \
     -90s, -30m, -6h or -7d";
/// The rule for the length of a step.
const STEP_RULE: &str = "milliseconds, or a number with ms, s, m, h or d behind it; not 0";

/// A figure of the past, in steps of equal length.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SeriesResponse {
    /// The figure.
    metric: String,
    /// The queue; absent where it is of all queues together.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<QueueName>,
    /// Whether it is of the queues beyond `limits.series_queues`, together; absent where it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    others: bool,
    /// Whether more queues moved on a server in that time than it keeps records of: what happened in this one may be among what
    /// happened in the others (`others=true`). A step in which nothing is known of it has no point then. Absent where it is not so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_partial: bool,
    /// How long a step is, in milliseconds: at least as long as was asked for, and as what is kept allows.
    step_ms: u64,
    /// What is known, the oldest first. A step in which no server was there has no point, and neither has one without anything to
    /// take a percentile or an age of.
    points: Vec<SeriesPoint>,
}

/// A figure of one step.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SeriesPoint {
    /// When the step began.
    at: Timestamp,
    /// The figure: how often something happened in the step, how many jobs there were at its end, or milliseconds.
    value: u64,
}

/// Returns milliseconds from a number with a unit behind it, or without one.
fn duration_ms(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at_checked(digits)?;
    let unit_ms = match unit {
        "" | "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => HOUR_MS,
        "d" => 24 * HOUR_MS,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ms)
}

/// A moment as it is said: by itself, or as how long ago it is.
#[derive(Debug, Clone, Copy)]
enum Moment {
    At(Timestamp),
    Ago(u64),
}

impl std::str::FromStr for Moment {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix('-') {
            Some(ago) => duration_ms(ago).map(Self::Ago).ok_or(()),
            None => {
                with_offset(text).parse().map(Self::At).or_else(|_| latest(&with_offset(text)).map(Self::At))
            }
        }
    }
}

/// Reads one of the last two days of the year 9999, which are later than any time that is known here: it is as late as all that is.
fn latest(text: &str) -> Result<Timestamp, ()> {
    let rest = text.strip_prefix("9999-12-3").ok_or(())?;
    format!("9998-12-3{rest}").parse::<Timestamp>().map_err(drop)?;
    Ok(Timestamp::from_millis(jiff::Timestamp::MAX.as_millisecond()))
}

impl Moment {
    fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(ms) => now.minus_ms(ms),
        }
    }
}

/// The length of a step.
struct Step(u64);

impl std::str::FromStr for Step {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        duration_ms(text).filter(|ms| *ms > 0).map(Self).ok_or(())
    }
}

/// Get a figure of the past
///
/// Of one queue, or of all queues together, on all servers, for up to a week. What happened is known at once on the server
/// that did it, and within about ten seconds on others: of queues beyond the 500 busiest within about a minute. The steps are as short as what is kept allows, and as long as is asked for: ten seconds for
/// an hour of the busiest queues and of all together, a minute for a day, ten minutes for a week: 1,450 points at most.
/// With `step` as long as the time itself, percentiles are of all of it.
#[utoipa::path(get, path = "/v1/series", operation_id = "get_series", tag = "operations",
    params(("metric" = String, Query, max_length = 64, description = "The figure: `pushed`, `reserved`, `committed`, `rolled_back`, \
            `moved`, `lapsed`, `expired`, `dead` or `cancelled` (how often that happened); `depth_ready`, `depth_scheduled`, \
            `depth_reserved`, `depth_blocked` or `depth_dead` (how many jobs there were); `oldest_ready_age_ms`; `queue_time_p50`, \
            `_p90`, `_p95` or `_p99` (from due to delivery), `run_time_p50`, `_p90`, `_p95` or `_p99` (from delivery to commit), in \
            milliseconds, at most 6.25 % off"),
        ("queue" = Option<QueueName>, Query, description = "The queue. Default: all queues together, which needs a key for all of them."),
        ("others" = Option<bool>, Query, description = "`true`: of the queues beyond `limits.series_queues`, together, of which a server keeps no records one by one. Needs a key for all queues."),
        ("from" = Option<String>, Query, max_length = 64, description = "Since when: a time (RFC 3339), or how long ago (`-90s`, `-30m`, `-6h`, `-7d`). Default: an hour before `to`."),
        ("to" = Option<String>, Query, max_length = 64, description = "Until when, likewise. Default: now."),
        ("step" = Option<String>, Query, max_length = 64, description = "How long a step is at least: milliseconds, or a number with a unit (`10s`, `1m`, `1h`, `1d`). Default: so long that there are a few hundred of them.")),
    responses((status = 200, description = "The figure", body = SeriesResponse)))]
pub async fn series(
    State(queues): State<Queues>,
    by: Granted,
    query: Query,
) -> ApiResult<Json<SeriesResponse>> {
    let query = query.only(&["queue", "others", "metric", "from", "to", "step"])?;
    let queue: Option<QueueName> = query.get("queue", NAME_RULE)?;
    let names = || METRICS.map(|(name, _)| name).join(", ");
    let known = |name: &String| Metric::named(name).ok_or_else(|| unknown(&names()));
    let name: Option<String> = query.get("metric", "a name")?;
    let name = name.ok_or_else(|| unknown(&names()))?;
    let metric = known(&name)?;
    let now = queues.now()?;
    let to = query.get::<Moment>("to", MOMENT_RULE)?.map_or(now, |to| to.from(now));
    let from = query.get::<Moment>("from", MOMENT_RULE)?.map_or(to.minus_ms(HOUR_MS), |from| from.from(now));
    if from >= to {
        return Err(Problem::parameter("from", "must be before to"));
    }
    let step_ms = query.get::<Step>("step", STEP_RULE)?.map(|Step(ms)| ms);
    let others = query.get("others", "true or false")?.unwrap_or(false);
    let subject = match &queue {
        Some(_) if others => return Err(Problem::parameter("others", "cannot be combined with queue")),
        Some(queue) => {
            by.in_queue(queue)?;
            Subject::Queue(queue.clone())
        }
        None if by.caller.is_limited() => {
            let detail = "without queue, this is about all queues, and the key is for some queues only";
            return Err(Problem::new(Code::Forbidden, detail));
        }
        None if others => Subject::Others,
        None => Subject::All,
    };
    let series = queues.series(SeriesAsk { subject, metric, from, to, step_ms }).await?;
    let points = series.points.into_iter().map(|(at, value)| SeriesPoint { at, value }).collect();
    let (step_ms, is_partial) = (series.step_ms, series.is_partial);
    Ok(Json(SeriesResponse { metric: name, queue, others, is_partial, step_ms, points }))
}

fn unknown(names: &str) -> Problem {
    Problem::parameter("metric", format!("must be one of: {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_units() {
        for (text, ms) in [("1", 1), ("10s", 10_000), ("1m", 60_000), ("250ms", 250), ("7d", 604_800_000)] {
            assert_eq!(duration_ms(text), Some(ms));
        }
        for text in ["", "s", "-1s", "1 s", "1w", "1.5h", "99999999999999999999", "9999999999999999d", "1é"]
        {
            assert_eq!(duration_ms(text), None, "{text}");
        }
        assert!("0".parse::<Step>().is_err());
    }

    #[test]
    fn the_end_of_the_last_year_is_a_time() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        for text in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999+00:00", "9999-12-30T23:00:00Z"] {
            assert!(text.parse::<Moment>().unwrap().from(now) > now, "{text}");
        }
        for text in ["9999-12-32T00:00:00Z", "9999-12-31", "9999-12-31T25:00:00Z"] {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
    }
}
