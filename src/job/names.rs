//! Names: 1 to 128 of `A-Za-z0-9._:-`, the first a letter or a digit.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

/// The rule that every name follows, in the words of an error response.
pub const NAME_RULE: &str = "1 to 128 of A-Z a-z 0-9 . _ : -, the first a letter or a digit";

/// The longest name, in bytes.
pub const NAME_MAX: usize = 128;

pub(super) fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= NAME_MAX
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(b))
}

/// The error of a text that breaks the rule of its type; shows the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be {0}")]
pub struct InvalidText(pub &'static str);

/// What of the rule for a text the OpenAPI document can say.
pub(crate) struct TextForm {
    /// The longest text, in characters.
    pub max_length: usize,
    /// A regular expression, if one says the rule.
    pub pattern: Option<&'static str>,
}

/// The form of a name.
pub(crate) const NAME_FORM: TextForm =
    TextForm { max_length: NAME_MAX, pattern: Some("^[A-Za-z0-9][A-Za-z0-9._:-]*$") };

impl TextForm {
    /// A text that is at most this long.
    pub const fn up_to(max_length: usize) -> Self {
        Self { max_length, pattern: None }
    }

    /// Returns the schema of a type of this form.
    pub fn schema(&self, description: &str) -> utoipa::openapi::Schema {
        let text = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String);
        let text = text.description(Some(description)).min_length(Some(1)).max_length(Some(self.max_length));
        text.pattern(self.pattern).into()
    }
}

macro_rules! text_type {
    ($(#[doc = $doc:literal])+ $name:ident, $valid:expr, $rule:expr, $form:expr) => {
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Returns the text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $form.schema(concat!($($doc, "\n"),+).trim()).into()
            }
        }

        impl utoipa::ToSchema for $name {}

        impl std::str::FromStr for $name {
            type Err = $crate::job::names::InvalidText;

            fn from_str(text: &str) -> Result<Self, $crate::job::names::InvalidText> {
                if $valid(text) { Ok(Self(text.into())) } else { Err($crate::job::names::InvalidText($rule)) }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}
pub(crate) use text_type;

text_type! {
    /// The name of a queue. A queue exists as soon as it is named.
    QueueName, is_name, NAME_RULE, NAME_FORM
}

text_type! {
    /// The name of a group: jobs of one queue that are delivered one after the other.
    GroupName, is_name, NAME_RULE, NAME_FORM
}

text_type! {
    /// The name of a semaphore.
    SemaphoreName, is_name, NAME_RULE, NAME_FORM
}

text_type! {
    /// The name that a worker gives itself when it reserves.
    WorkerName, is_name, NAME_RULE, NAME_FORM
}

/// The rule for a [`WorkerVersion`], in the words of an error response.
pub const VERSION_RULE: &str = "1 to 128 bytes of text without control characters";

pub(super) fn is_version(text: &str) -> bool {
    (1..=128).contains(&text.len()) && !text.contains(char::is_control)
}

text_type! {
    /// What a worker says that it runs, for people to read.
    WorkerVersion, is_version, VERSION_RULE, TextForm::up_to(128)
}

/// The rule for a [`JobKey`], in the words of an error response.
pub const KEY_RULE: &str = "1 to 256 bytes of text without NUL";

fn is_key(text: &str) -> bool {
    (1..=256).contains(&text.len()) && !text.contains('\0')
}

text_type! {
    /// The producer's own name for a job, unique within the queue it is pushed to.
    JobKey, is_key, KEY_RULE, TextForm::up_to(256)
}

/// The rule for a [`QueuePattern`], in the words of an error response.
pub const PATTERN_RULE: &str =
    "a queue name, or the beginning of queue names followed by one *, such as mail.*";

/// What a worker may reserve from: one queue, or every queue whose name begins with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum QueuePattern {
    /// The queue of this name.
    One(QueueName),
    /// Every queue whose name begins with this text (which may be empty).
    Prefix(Arc<str>),
}

impl QueuePattern {
    /// Whether this pattern matches the queue.
    pub fn matches(&self, queue: &QueueName) -> bool {
        self.matches_text(queue.as_str())
    }

    /// Whether this pattern matches a name, of whatever it is.
    pub fn matches_text(&self, name: &str) -> bool {
        match self {
            Self::One(one) => one.as_str() == name,
            Self::Prefix(prefix) => name.starts_with(&**prefix),
        }
    }

    /// Returns whether this pattern matches whatever the other one matches.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::One(name)) => self.matches(name),
            (Self::One(_), Self::Prefix(_)) => false,
            (Self::Prefix(ours), Self::Prefix(theirs)) => theirs.starts_with(&**ours),
        }
    }
}

impl utoipa::PartialSchema for QueuePattern {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let form =
            TextForm { max_length: NAME_MAX + 1, pattern: Some(r"^([A-Za-z0-9][A-Za-z0-9._:-]*\*?|\*)$") };
        form.schema("A queue, or with a `*` at the end every queue whose name begins so: `mail.*`.").into()
    }
}

impl utoipa::ToSchema for QueuePattern {}

impl std::str::FromStr for QueuePattern {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        match text.strip_suffix('*') {
            Some("") => Ok(Self::Prefix("".into())),
            Some(prefix) if is_name(prefix) => Ok(Self::Prefix(prefix.into())),
            Some(_) => Err(InvalidText(PATTERN_RULE)),
            None => text.parse().map(Self::One).map_err(|_| InvalidText(PATTERN_RULE)),
        }
    }
}

impl fmt::Display for QueuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(name) => name.fmt(f),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

impl serde::Serialize for QueuePattern {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for QueuePattern {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule() {
        let longest = "a".repeat(128);
        for good in ["a", "0", "mail.out:v1_x-y", longest.as_str()] {
            assert!(good.parse::<QueueName>().is_ok(), "{good}");
        }
        let too_long = "a".repeat(129);
        for bad in ["", ".a", "-a", "a b", "a/b", "ä", "a*", too_long.as_str()] {
            assert!(bad.parse::<QueueName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_is_a_name_or_a_prefix() {
        let mail: QueuePattern = "mail.*".parse().unwrap();
        assert!(mail.matches(&"mail.out".parse().unwrap()));
        assert!(!mail.matches(&"mailer".parse().unwrap()));
        assert!("*".parse::<QueuePattern>().unwrap().matches(&"x".parse().unwrap()));
        for bad in ["", "a*b", "a**", ".x*"] {
            assert!(bad.parse::<QueuePattern>().is_err(), "{bad}");
        }
    }
}
