//! Lists of queues, with their figures where they are asked for.

use std::collections::BTreeMap;

use axum::extract::State;
use serde::Serialize;

use super::queues::{QueueResponse, prefix};
use super::stats::{CountsView, PercentilesView, WaitingView, rounded};
use crate::http::access::Granted;
use crate::http::json::Json;
use crate::http::params::{Query, cursor};
use crate::http::problem::{ApiResult, Problem};
use crate::job::{QueueName, Timestamp};
use crate::queue::Queues;
use crate::queue::attention::{Attention, Reason};
use crate::queue::history::{STEP_MS, Steps, Sum};
use crate::queue::listing::{ListAsk, Listed, ListedQueue, Needing, Position, Sort};
use crate::queue::meter::Event;

/// Queues.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueuesPage {
    /// The queues that have settings or jobs.
    queues: Vec<QueueOfList>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
    /// What the figures have in common, where they are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    figures: Option<FiguresOfList>,
}

/// A queue, its settings and, where they are asked for, its figures.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ListedQueue)]
pub struct QueueOfList {
    #[serde(flatten)]
    queue: QueueResponse,
    /// Its figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    figures: Option<QueueFigures>,
}

/// What the figures of a list have in common.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ListFigures)]
pub struct FiguresOfList {
    /// When reading them began, by the store's clock: about a second ago, or longer where reading them takes long.
    at: Timestamp,
    /// How many queues there are in all pages of the list.
    matched: u64,
    /// How many queues need attention, by the reason: of all whose names begin with `prefix`, whatever `attention` asks for.
    #[schema(value_type = AttentionCounts)]
    attention: BTreeMap<&'static str, u64>,
    /// Of how many of these queues it is not known yet whether they need attention for some reason: what holds their blocked jobs, since
    /// when their oldest job has been ready, or what happened in them.
    unjudged: u64,
    /// How long a step of the sparklines is, in milliseconds.
    step_ms: u64,
    /// When the first step of each sparkline begins: a quarter of an hour ago, or when this server began to know.
    sparkline_from: Timestamp,
}

/// The schema of how many queues need attention.
#[derive(Debug)]
pub struct AttentionCounts;

impl utoipa::PartialSchema for AttentionCounts {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        let count = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
        let count = count.format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)));
        let text = "How many queues need attention, by the reason.";
        let counts = ObjectBuilder::new().schema_type(Type::Object).description(Some(text));
        counts.additional_properties(Some(count)).into()
    }
}

impl utoipa::ToSchema for AttentionCounts {}

/// The figures of a queue of a list.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ListedFigures)]
pub struct QueueFigures {
    /// How many jobs are in each state, of all servers.
    counts: CountsView,
    /// With very many scheduled jobs, those that became due a moment ago may still be counted as `scheduled`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    split_is_approximate: bool,
    /// Since when the oldest ready job has been ready; absent where none is, and beyond the 10,000 queues with the most unfinished jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ready_at: Option<Timestamp>,
    /// The age of that job at the time `at` of the list, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ready_age_ms: Option<u64>,
    /// Whether that job was looked up more than 30 s ago, and jobs have left the queue since: it may be another one by now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oldest_is_approximate: bool,
    /// How often things happened, on all servers, over the last minute.
    rates_per_s: ListedRates,
    /// How much of the last minute was seen, in milliseconds.
    rates_over_ms: u64,
    /// Whether more queues moved than are counted one by one, so that some of what happened is in the total only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    rates_are_partial: bool,
    /// The time from due to delivery; absent where nothing was delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_time_ms: Option<PercentilesView>,
    /// The time from delivery to commit; absent where nothing was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_time_ms: Option<PercentilesView>,
    /// The calls that wait for jobs.
    waiting: WaitingView,
    /// How many named workers hold jobs of the queue.
    workers: u64,
    /// What happened within the last quarter of an hour, step by step; absent where nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    sparkline: Option<Sparkline>,
    /// Why the queue needs attention, the most urgent reason first; empty where it needs none.
    attention: Vec<Attention>,
    /// Whether that may not be all: something that it takes to judge the queue is not known yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    attention_is_partial: bool,
}

/// How often things happened, per second.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ListedRates {
    /// Jobs that were stored.
    pushed: f64,
    /// Jobs that were committed or moved on.
    finished: f64,
    /// Attempts that failed: rolled back, or taken back from their workers.
    failed: f64,
    /// Jobs that died.
    dead: f64,
}

/// How often things happened in each step, the oldest first; the last step is the one under way. Divided by the length of a step, a rate.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Sparkline {
    /// Jobs that were stored.
    pushed: Vec<u32>,
    /// Jobs that were committed or moved on.
    finished: Vec<u32>,
    /// Attempts that failed.
    failed: Vec<u32>,
}

impl From<Steps> for Sparkline {
    fn from(steps: Steps) -> Self {
        let of = |figure: fn(&Sum) -> u32| steps.iter().map(figure).collect();
        Self { pushed: of(|sum| sum.pushed), finished: of(|sum| sum.finished), failed: of(|sum| sum.failed) }
    }
}

/// The rule for an order.
const SORT_RULE: &str = "one of name, ready, scheduled, reserved, blocked, dead, done, oldest, pushed, finished, failed, waiting, \
     queue_time_p95, run_time_p95 and attention, with a - before it for the largest first";
/// The rule for the attention that queues need.
const ATTENTION_RULE: &str = "must be true, false, or one or several, with commas, of: starved, stuck, blocked, failing, growing, dead, paused";

/// List the queues
///
/// Returns the queues that have settings or jobs, by name. With `figures=true`, or where `sort` or `attention` is given, each has its
/// figures, as they were about a second ago; without them the list costs less and is of this moment. With figures, all pages are of the
/// moment of the first one, for as long as half a minute passes between two of them at most and the same server answers. Otherwise the
/// next page goes on behind the value of the cursor: a queue whose figure has passed it meanwhile may come twice or not at all, and the
/// next list has it; by name none does. What has no value to be sorted by (no ready job, no percentile) comes last in either direction.
#[utoipa::path(get, path = "/v1/queues", operation_id = "list_queues", tag = "queues",
    params(("prefix" = Option<String>, Query, description = "Only queues whose names begin so", max_length = 128),
        ("sort" = Option<String>, Query, description = "By what: `name`, `ready`, `scheduled`, `reserved`, `blocked`, `dead`, `done`, \
            `oldest` (the age of the oldest ready job), `pushed`, `finished`, `failed` (per second), `waiting`, `queue_time_p95`, \
            `run_time_p95` or `attention` (how urgent); with a `-` before it the largest first. Default: `name`.",
            pattern = "^-?[a-z0-9_]+$", max_length = 32),
        ("attention" = Option<String>, Query, description = "`true`: only queues that need attention; or for which reasons, with commas \
            between them: `starved`, `stuck`, `blocked`, `failing`, `growing`, `dead`, `paused`", max_length = 100),
        ("figures" = Option<bool>, Query, description = "Whether the figures are shown. Default: whether `sort` or `attention` is given."),
        ("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page, of a list of the same order")),
    responses((status = 200, description = "The queues", body = QueuesPage)))]
pub async fn list(State(queues): State<Queues>, by: Granted, query: Query) -> ApiResult<Json<QueuesPage>> {
    let query = query.only(&["prefix", "sort", "attention", "figures", "limit", "cursor"])?;
    let sort = query.get::<Sort>("sort", SORT_RULE)?;
    let needing = needing(&query)?;
    let figures = query.get::<bool>("figures", "true or false")?;
    let is_plain = sort.unwrap_or(Sort::BY_NAME) == Sort::BY_NAME && needing.is_none();
    if !figures.unwrap_or(sort.is_some() || needing.is_some()) && is_plain {
        return plain(&queues, &by, &query).await;
    }
    let ask = ListAsk {
        prefix: prefix(&query)?.unwrap_or_default(),
        needing: needing.unwrap_or(Needing::AnyOrNone),
        sort: sort.unwrap_or(Sort::BY_NAME),
        after: query.cursor::<Position>()?,
        limit: query.limit()?,
    };
    if ask.after.as_ref().is_some_and(|after| after.sort != ask.sort) {
        return Err(Problem::parameter(
            "cursor",
            format!("must be of a list that is sorted by {}", ask.sort),
        ));
    }
    let listed = queues.listed(&ask, &by.caller.reach()).await?;
    Ok(Json(QueuesPage::new(listed, figures.unwrap_or(true))))
}

async fn plain(queues: &Queues, by: &Granted, query: &Query) -> ApiResult<Json<QueuesPage>> {
    let (prefix, after) = (prefix(query)?.unwrap_or_default(), query.cursor::<QueueName>()?);
    let page = queues.list(&prefix, after.as_ref(), query.limit()?, &by.caller.reach()).await?;
    let plain = |view| QueueOfList { queue: QueueResponse::from(view), figures: None };
    Ok(Json(QueuesPage {
        queues: page.items.into_iter().map(plain).collect(),
        cursor: page.next.as_ref().map(cursor),
        figures: None,
    }))
}

/// Returns which queues are meant by the attention that they need, if anything is said of it.
fn needing(query: &Query) -> ApiResult<Option<Needing>> {
    let Some(text) = query.get::<String>("attention", "a text")? else { return Ok(None) };
    match text.as_str() {
        "true" => Ok(Some(Needing::Any)),
        "false" => Ok(None),
        _ => {
            let needed =
                query.words("attention", "").map_err(|_| Problem::parameter("attention", ATTENTION_RULE));
            Ok(Some(Needing::Some(needed?)))
        }
    }
}

impl QueuesPage {
    fn new(listed: Listed, shows_figures: bool) -> Self {
        let Listed { at, queues, matched, attention, unjudged, steps_from, next } = listed;
        let figures = FiguresOfList {
            at,
            matched,
            attention: Reason::ALL.iter().map(|reason| reason.as_str()).zip(attention).collect(),
            unjudged,
            step_ms: STEP_MS.unsigned_abs(),
            sparkline_from: steps_from,
        };
        let queue = |listed: ListedQueue| {
            let ListedQueue { view, queue, workers, steps } = listed;
            let counts = queue.counts.clone();
            let figures = QueueFigures {
                counts: counts.counts.into(),
                split_is_approximate: counts.split_is_approximate,
                oldest_ready_at: counts.oldest_ready,
                oldest_ready_age_ms: counts.oldest_ready.map(|oldest| at.ms_since(oldest)),
                oldest_is_approximate: counts.oldest_is_approximate,
                rates_per_s: ListedRates {
                    pushed: rounded(queue.flow.rate(Event::Pushed)),
                    finished: rounded(queue.finished_per_s()),
                    failed: rounded(queue.failed_per_s()),
                    dead: rounded(queue.flow.rate(Event::Dead)),
                },
                rates_over_ms: queue.flow.over_ms,
                rates_are_partial: queue.flow.is_partial,
                queue_time_ms: queue.flow.queue_time.map(Into::into),
                run_time_ms: queue.flow.run_time.map(Into::into),
                waiting: WaitingView { here: queue.waiting_here, elsewhere: queue.waiting_elsewhere },
                workers,
                sparkline: steps.map(Into::into),
                attention: queue.attention,
                attention_is_partial: queue.is_unjudged,
            };
            QueueOfList { queue: view.into(), figures: shows_figures.then_some(figures) }
        };
        Self {
            queues: queues.into_iter().map(queue).collect(),
            cursor: next.as_ref().map(cursor),
            figures: shows_figures.then_some(figures),
        }
    }
}
