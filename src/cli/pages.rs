//! Lists that come in pages.

use serde::de::DeserializeOwned;

use super::Context;
use super::client::{Call, query};
use super::failure::{DONE, Failure};
use super::shown::shown;
use super::table::{Table, Tone};

/// How much of a list is wanted.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Paging {
    /// How many on a page (1 to 1000)
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Go on from this cursor
    #[arg(long, allow_hyphen_values = true)]
    cursor: Option<String>,
    /// All pages
    #[arg(long)]
    all: bool,
}

/// A page of a list.
pub trait Page: DeserializeOwned {
    /// Returns where the next page begins, if there is one.
    fn cursor(&self) -> Option<&str>;
}

/// Declares a page whose list is in this field.
macro_rules! page {
    ($page:ident, $field:ident: $item:ty) => {
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(default)]
        struct $page {
            $field: Vec<$item>,
            cursor: Option<String>,
        }
        impl $crate::cli::pages::Page for $page {
            fn cursor(&self) -> Option<&str> {
                self.cursor.as_deref()
            }
        }
    };
}
pub(crate) use page;

/// Prints a list: each page as it comes, as a table or as it is.
pub async fn print<P: Page>(
    context: &Context,
    path: &str,
    parameters: &[(&str, Option<String>)],
    paging: &Paging,
    table: impl AsyncFn(&P) -> Result<Table, Failure>,
) -> Result<u8, Failure> {
    let mut cursor = paging.cursor.clone();
    loop {
        let mut all = parameters.to_vec();
        all.extend([("limit", Some(paging.limit.to_string())), ("cursor", cursor.take())]);
        let answer = context.client.call(&Call::get(query(path, &all))).await?;
        let page: P = answer.read()?;
        let more = page.cursor();
        if context.out.is_json {
            context.out.body(&answer.body)?;
        } else {
            context.out.table(&table(&page).await?, "none")?;
            if let Some(more) = more.filter(|_| !paging.all) {
                let text = format!("there are more: --all, or --cursor {}", shown(more));
                context.out.line(context.out.paint(Tone::Dim, &text))?;
            }
        }
        cursor = more.filter(|_| paging.all).map(str::to_owned);
        if cursor.is_none() {
            return Ok(DONE);
        }
    }
}
