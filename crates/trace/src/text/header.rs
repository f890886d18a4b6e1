//! The first line of a trace: the format's version, and the settings of the recorded kernel.

use std::{fmt, str::FromStr};

use super::error::Expected;

/// `# vmtrace 1 key=value ...`. Every word after the version is optional and kept unchanged.
///
/// ```
/// use trace::text::Header;
///
/// let header = Header::new().with("kernel", "6.18").with("page", "4096");
/// assert_eq!(header.to_string(), "# vmtrace 1 kernel=6.18 page=4096");
/// assert_eq!(header.get("kernel"), Some("6.18"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Header {
    text: String,
}

impl Header {
    /// The start of every header.
    const START: &str = "# vmtrace 1";

    /// A header without settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a setting. White space in `value` becomes `_`, because it would end the value.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        let value: String =
            value.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
        self.text.push_str(&format!(" {key}={value}"));
        self
    }

    /// The value of a setting, such as `kernel`, `page`, `overcommit` or `thp`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}

impl FromStr for Header {
    type Err = Expected;
    fn from_str(line: &str) -> Result<Self, Expected> {
        const WHAT: &str = "the header \"# vmtrace 1 ...\" of a recording";
        let text = line.strip_prefix(Self::START).ok_or(WHAT)?;
        if !text.is_empty() && !text.starts_with(' ') {
            return Err(WHAT.into());
        }
        let header = Header { text: text.to_string() };
        match header.get("page") {
            None | Some("4096") => Ok(header),
            Some(_) => Err("page=4096, the only supported page size".into()),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::START, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_bare_words_are_kept() {
        for line in [
            "# vmtrace 1",
            "# vmtrace 1 kernel=6.18 page=4096",
            "# vmtrace 1 a test  by hand, kernel=x",
        ] {
            assert_eq!(line.parse::<Header>().unwrap().to_string(), line);
        }
        let header: Header = "# vmtrace 1 kernel=6.18 thp=madvise".parse().unwrap();
        assert_eq!(
            (header.get("thp"), header.get("page"), header.get("")),
            (Some("madvise"), None, None)
        );
        assert_eq!(Header::new().with("kernel", "6 18\n").to_string(), "# vmtrace 1 kernel=6_18_");
    }

    #[test]
    fn other_versions_and_page_sizes_are_refused() {
        for line in
            ["", "# vmtrace", "# vmtrace 2", "# vmtrace 10", "X 1", "# vmtrace 1 page=16384"]
        {
            assert!(line.parse::<Header>().is_err(), "{line}");
        }
    }
}
