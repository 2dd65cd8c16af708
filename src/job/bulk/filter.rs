//! Which jobs an operation is about: its wire form and its record, of which each queue has a [`Filter`].

use serde::{Deserialize, Serialize};

use crate::job::filter::{ERROR_MAX, FIELDS_MAX};
use crate::job::spec::Headers;
use crate::job::{
    BatchId, FieldIs, Filter, GroupName, HeaderIs, JobKey, QueueName, QueuePattern, Span, Timestamp, Visible,
    WorkerName,
};

/// Which jobs are meant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OperationFilter)]
pub struct BulkFilter {
    /// Only jobs of this queue, or of the queues whose names begin so: `mail.*`. Default: of all queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePattern>,
    /// Only jobs in this state. Default: in each that the action concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Visible>,
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
    #[serde(default, skip_serializing_if = "Headers::is_empty")]
    #[schema(value_type = OperationConditions)]
    pub payload: Headers,
    /// Only jobs with these headers.
    #[serde(default, skip_serializing_if = "Headers::is_empty")]
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
        Self { queue: None, state: None, ..self.clone() } == Self::default()
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

    /// Returns the jobs that are meant in one queue and in these states, whatever their time.
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
