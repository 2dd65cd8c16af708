//! Which jobs an operation is about: its wire form and its record, of which each queue has a [`Filter`].

use serde::{Deserialize, Serialize};

use crate::job::filter::{ERROR_MAX, FIELDS_MAX};
use crate::job::names::NAME_RULE;
use crate::job::spec::Headers;
use crate::job::{
    BatchId, FieldIs, Filter, GroupName, HeaderIs, JobKey, QueueName, QueuePattern, Span, Timestamp, Visible,
    WorkerName,
};

/// What is wrong with a range in which there is nothing.
const EMPTY_RANGE: &str = "leaves nothing between it and the beginning of its range";

/// Which jobs are meant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OperationFilter)]
pub struct BulkFilter {
    /// Only jobs of this queue, or of the queues whose names begin so: `mail.*`. Default: of all queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePattern>,
    /// Only jobs of the queues whose names begin so, as a search says it: `mail.` is `"queue": "mail.*"`, which the operation shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub queue_prefix: Option<String>,
    /// Only jobs in this state. Default: in each that the action concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Visible>,
    /// Only jobs in one of these states; instead of `state`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<Visible>,
    /// Only jobs pushed with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<JobKey>,
    /// Only jobs of this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Only jobs that were dead-lettered into their queue.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dead_lettered: bool,
    /// Only jobs of this batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchId>,
    /// Only jobs that this worker reserved last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
    /// Only jobs whose last error has this text in it, as it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 512)]
    pub error: Option<String>,
    /// Only jobs whose last error is of this group, as `GET /v1/dead` names it; empty: those without an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 512)]
    pub error_group: Option<String>,
    /// Only jobs whose payloads have these values, by the paths of their fields: `{"user.id": 42}`.
    #[serde(
        default,
        skip_serializing_if = "Headers::is_empty",
        deserialize_with = "crate::job::headers::distinct"
    )]
    #[schema(value_type = OperationConditions)]
    pub payload: Headers,
    /// Only jobs with these headers.
    #[serde(
        default,
        skip_serializing_if = "Headers::is_empty",
        deserialize_with = "crate::job::headers::distinct"
    )]
    #[schema(value_type = OperationConditions)]
    pub headers: Headers,
    /// Only jobs from this time on: by `finished_at` of done and dead jobs, else by `created_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Only jobs from before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    /// Only jobs that died at this time or later: by `finished_at` of dead jobs, else by `dead_lettered_from.at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_from: Option<Timestamp>,
    /// Only jobs that died before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_before: Option<Timestamp>,
    /// Only jobs pushed at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_from: Option<Timestamp>,
    /// Only jobs pushed before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_before: Option<Timestamp>,
    /// Only jobs done or dead at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_from: Option<Timestamp>,
    /// Only jobs done or dead before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_before: Option<Timestamp>,
    /// Only jobs whose `run_at` is this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at_from: Option<Timestamp>,
    /// Only jobs whose `run_at` is before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at_before: Option<Timestamp>,
    /// Only jobs of this priority or a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_min: Option<i32>,
    /// Only jobs of this priority or a lower one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_max: Option<i32>,
    /// Only jobs delivered so often or more from their queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_min: Option<u32>,
    /// Only jobs delivered so often or less from their queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
}

/// The schema of conditions on payloads and on headers.
#[derive(Debug)]
pub struct OperationConditions;

impl utoipa::PartialSchema for OperationConditions {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::AdditionalProperties;
        use utoipa::openapi::{ObjectBuilder, Type};
        let text = "Paths of fields, or names of headers, and the JSON values that they must have: up to 16, of 1024 bytes each.";
        let conditions = ObjectBuilder::new().schema_type(Type::Object).description(Some(text));
        let conditions = conditions.max_properties(Some(FIELDS_MAX));
        conditions.additional_properties(Some(AdditionalProperties::FreeForm(true))).into()
    }
}

impl utoipa::ToSchema for OperationConditions {}

impl BulkFilter {
    /// Returns whether all jobs of the queues are meant that are in the state.
    pub fn is_whole(&self) -> bool {
        Self { queue: None, state: None, states: Vec::new(), ..self.clone() } == Self::default()
    }

    /// Returns the states of the jobs that are meant; none: each that the action concerns.
    pub fn states(&self) -> Vec<Visible> {
        self.state.map_or_else(|| self.states.clone(), |state| vec![state])
    }

    /// Returns it as it is stored: what has an older name has that, so that servers of older versions can read it where nothing is
    /// asked that they do not know. Else the first field that does not fit, and what is wrong with it.
    pub fn settled(mut self) -> Result<Self, (&'static str, String)> {
        if let Some(prefix) = self.queue_prefix.take() {
            if self.queue.is_some() {
                return Err(("/filter/queue_prefix", "cannot be combined with queue".to_owned()));
            }
            let rule = |_| ("/filter/queue_prefix", format!("must be the beginning of a name: {NAME_RULE}"));
            self.queue = Some(format!("{prefix}*").parse().map_err(rule)?);
        }
        if self.state.is_some() && !self.states.is_empty() {
            return Err(("/filter/states", "cannot be combined with state".to_owned()));
        }
        if let [state] = self.states[..] {
            (self.state, self.states) = (Some(state), Vec::new());
        }
        Ok(self)
    }

    /// Returns whether all jobs of the queues are meant that are in the state, or those of them from a time: a job that cannot be read is
    /// judged by that as well.
    pub fn is_of_time(&self) -> bool {
        Self { from: None, before: None, ..self.clone() }.is_whole()
    }

    /// Returns when the jobs died that are meant.
    pub fn died(&self) -> Span<Timestamp> {
        Span { from: self.died_from, before: self.died_before }
    }

    fn created(&self) -> Span<Timestamp> {
        Span { from: self.created_from, before: self.created_before }
    }

    fn finished(&self) -> Span<Timestamp> {
        Span { from: self.finished_from, before: self.finished_before }
    }

    fn run_at(&self) -> Span<Timestamp> {
        Span { from: self.run_at_from, before: self.run_at_before }
    }

    fn priority(&self) -> Span<i64> {
        Span {
            from: self.priority_min.map(i64::from),
            before: self.priority_max.map(|max| i64::from(max) + 1),
        }
    }

    fn attempts(&self) -> Span<i64> {
        Span {
            from: self.attempts_min.map(i64::from),
            before: self.attempts_max.map(|max| i64::from(max) + 1),
        }
    }

    /// Returns the first range in which there is nothing.
    fn empty_range(&self) -> Option<&'static str> {
        let ranges = [
            ("/filter/created_before", self.created().is_empty()),
            ("/filter/finished_before", self.finished().is_empty()),
            ("/filter/run_at_before", self.run_at().is_empty()),
            ("/filter/priority_max", self.priority().is_empty()),
            ("/filter/attempts_max", self.attempts().is_empty()),
        ];
        ranges.into_iter().find_map(|(pointer, is_empty)| is_empty.then_some(pointer))
    }

    /// Returns the jobs that are meant in one queue and in these states, whatever their time of [`from`](Self::from) and
    /// [`before`](Self::before).
    pub fn in_queue(&self, queue: QueueName, states: Vec<Visible>) -> Filter {
        let fields = self.payload.iter().filter_map(|(path, value)| FieldIs::new(path, value.as_str()).ok());
        let headers =
            self.headers.iter().filter_map(|(name, value)| HeaderIs::new(name, value.as_str()).ok());
        Filter {
            states,
            key: self.key.clone(),
            group: self.group.clone(),
            batch: self.batch.clone(),
            worker: self.worker.clone(),
            error: self.error.clone(),
            error_group: self.error_group.clone(),
            payload: fields.collect(),
            headers: headers.collect(),
            created: self.created(),
            finished: self.finished(),
            run_at: self.run_at(),
            priority: self.priority(),
            attempts: self.attempts(),
            ..Filter::all(queue)
        }
    }

    /// Returns the first condition that nothing can meet, and what is wrong with it.
    pub(super) fn fault(&self) -> Option<(&'static str, String)> {
        let is_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > ERROR_MAX);
        let too_long = || format!("must be at most {ERROR_MAX} bytes long");
        if self.error.as_ref().is_some_and(String::is_empty) {
            return Some(("/filter/error", "must not be empty".to_owned()));
        }
        for (pointer, text) in [("/filter/error", &self.error), ("/filter/error_group", &self.error_group)] {
            if is_long(text) {
                return Some((pointer, too_long()));
            }
        }
        for (pointer, conditions) in [("/filter/payload", &self.payload), ("/filter/headers", &self.headers)]
        {
            if conditions.len() > FIELDS_MAX {
                return Some((pointer, format!("must have at most {FIELDS_MAX} conditions")));
            }
        }
        if (1..self.states.len()).any(|n| self.states[..n].contains(&self.states[n])) {
            return Some(("/filter/states", "must not have a state twice".to_owned()));
        }
        if let Some(pointer) = self.empty_range() {
            return Some((pointer, EMPTY_RANGE.to_owned()));
        }
        let wrong_field =
            self.payload.iter().find_map(|(path, value)| FieldIs::new(path, value.as_str()).err());
        let wrong_header =
            self.headers.iter().find_map(|(name, value)| HeaderIs::new(name, value.as_str()).err());
        wrong_field
            .map(|wrong| ("/filter/payload", wrong))
            .or(wrong_header.map(|wrong| ("/filter/headers", wrong)))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}
