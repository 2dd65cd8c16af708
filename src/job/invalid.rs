//! Values that are out of their range, and where in a request they are.

/// A value that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pointer} {detail}")]
pub struct Invalid {
    /// Where it is, as a JSON pointer (RFC 6901); empty for the whole.
    pub pointer: String,
    /// What would be right.
    pub detail: String,
}

impl Invalid {
    /// A value at this JSON pointer, and what would be right.
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }

    /// The same value, seen from a request that has it under this pointer.
    pub fn under(self, prefix: &str) -> Self {
        Self { pointer: format!("{prefix}{}", self.pointer), ..self }
    }
}
