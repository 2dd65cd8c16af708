//! Values that are out of their range, and where in a request they are.

/// A value that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pointer} {detail}")]
pub struct Invalid {
    /// Where it is, as a JSON pointer (RFC 6901); empty for the whole.
    pub pointer: String,
    /// What would be right.
    pub detail: String,
    /// Whether it is longer than a limit of the configuration allows.
    pub is_too_large: bool,
}

impl Invalid {
    /// A value at this JSON pointer, and what would be right.
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into(), is_too_large: false }
    }

    /// A value that is longer than a limit of the configuration allows.
    pub fn too_large(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { is_too_large: true, ..Self::new(pointer, detail) }
    }

    /// The same value, seen from a request that has it under this pointer.
    pub fn under(self, prefix: &str) -> Self {
        Self { pointer: format!("{prefix}{}", self.pointer), ..self }
    }
}
