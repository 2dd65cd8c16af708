//! Bodies of requests.

use super::payload::quoted;

/// A JSON object whose values may be JSON as it was typed.
#[derive(Debug, Default)]
pub struct Body(Vec<String>);

impl Body {
    /// Adds fields that are JSON already: `"payload":1`.
    pub fn fields(mut self, fields: impl Into<String>) -> Self {
        self.0.extend(Some(fields.into()).filter(|fields| !fields.is_empty()));
        self
    }

    /// Adds a field with this JSON, if there is any.
    pub fn raw(mut self, name: &str, json: Option<impl std::fmt::Display>) -> Self {
        if let Some(json) = json {
            self.0.push(format!("{}:{json}", quoted(name)));
        }
        self
    }

    /// Adds a field with this text, if there is any.
    pub fn text(self, name: &str, text: Option<&str>) -> Self {
        self.raw(name, text.map(quoted))
    }

    /// Adds a field with these texts, if there are any.
    pub fn texts(self, name: &str, texts: &[String]) -> Self {
        let list: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
        self.raw(name, (!list.is_empty()).then(|| format!("[{}]", list.join(","))))
    }

    /// Adds `true`, if it is so.
    pub fn flag(self, name: &str, is_so: bool) -> Self {
        self.raw(name, is_so.then_some(true))
    }

    /// Returns its text.
    pub fn json(&self) -> String {
        format!("{{{}}}", self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_not_there() {
        let body =
            Body::default().fields("").text("a\"", Some("b\u{1b}")).raw("n", None::<u8>).texts("t", &[]);
        assert_eq!(
            body.flag("f", false).fields("\"payload\":1.10").json(),
            r#"{"a\"":"b\u001b","payload":1.10}"#
        );
        assert_eq!(Body::default().json(), "{}");
    }
}
