//! Reads the fields of one line. Each has a name for the error message.

use std::ops::Range;

use vma::VmFlags;

use super::error::Expected;

/// The rest of a line; `None` after its last field.
pub(super) struct Fields<'a> {
    rest: Option<&'a str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Fields { rest: Some(line) }
    }

    /// Takes the next field, up to a space.
    pub(super) fn word(&mut self, what: &'static str) -> Result<&'a str, Expected> {
        let rest = self.rest.ok_or(what)?;
        let (word, rest) = match rest.split_once(' ') {
            Some((word, rest)) => (word, Some(rest)),
            None => (rest, None),
        };
        if word.is_empty() {
            return Err(what.into());
        }
        self.rest = rest;
        Ok(word)
    }

    /// Takes the rest of the line, with its spaces.
    pub(super) fn tail(&mut self, what: &'static str) -> Result<&'a str, Expected> {
        self.rest.take().filter(|rest| !rest.is_empty()).ok_or(what.into())
    }

    /// Checks that nothing is left.
    pub(super) fn end(&self) -> Result<(), Expected> {
        match self.rest {
            None => Ok(()),
            Some(_) => Err("the end of the line".into()),
        }
    }

    /// Whether anything is left.
    pub(super) fn more(&self) -> bool {
        self.rest.is_some()
    }

    /// The next field, without taking it. Empty at the end of the line.
    pub(super) fn peek(&self) -> &'a str {
        self.rest.and_then(|rest| rest.split(' ').next()).unwrap_or("")
    }

    pub(super) fn hex(&mut self, what: &'static str) -> Result<usize, Expected> {
        let word = self.word(what)?;
        hex(word).ok_or(what.into())
    }

    pub(super) fn hash(&mut self, what: &'static str) -> Result<u64, Expected> {
        self.hex(what).map(|value| value as u64)
    }

    pub(super) fn decimal<T: std::str::FromStr>(
        &mut self,
        what: &'static str,
    ) -> Result<T, Expected> {
        let word = self.word(what)?;
        decimal(word).ok_or(what.into())
    }

    /// Takes the value of `key=`, up to the next space.
    pub(super) fn keyed(&mut self, key: &str, what: &'static str) -> Result<&'a str, Expected> {
        self.word(what)?.strip_prefix(key).ok_or(what.into())
    }

    pub(super) fn keyed_hex(&mut self, key: &str, what: &'static str) -> Result<usize, Expected> {
        hex(self.keyed(key, what)?).ok_or(what.into())
    }

    pub(super) fn flags(&mut self) -> Result<VmFlags, Expected> {
        const WHAT: &str = "VmFlags such as rd,wr,mr,mw,me, or - for none";
        match self.word(WHAT)? {
            "-" => Ok(VmFlags::empty()),
            word => word.parse().map_err(|_| WHAT.into()),
        }
    }

    /// The start and end of a VMA: whole pages, not empty.
    pub(super) fn range(&mut self) -> Result<Range<usize>, Expected> {
        let start =
            self.page("the start of a VMA, a multiple of 0x1000 in hexadecimal without 0x")?;
        let end = self.page("the end of a VMA, a multiple of 0x1000 in hexadecimal without 0x")?;
        if start < end { Ok(start..end) } else { Err("a VMA whose start is below its end".into()) }
    }

    /// The major and minor number of a device.
    pub(super) fn device(&mut self) -> Result<(u32, u32), Expected> {
        const DEV: &str = "the device, major:minor";
        let (major, minor) = self.word(DEV)?.split_once(':').ok_or(DEV)?;
        let number = |word| hex(word).and_then(|n| u32::try_from(n).ok()).ok_or(DEV);
        Ok((number(major)?, number(minor)?))
    }

    /// The address of a page.
    pub(super) fn page(&mut self, what: &'static str) -> Result<usize, Expected> {
        let address = self.hex(what)?;
        if address.is_multiple_of(4096) { Ok(address) } else { Err(what.into()) }
    }
}

/// Parses digits only, without a sign or a prefix.
pub(super) fn hex(word: &str) -> Option<usize> {
    let digits = word.bytes().all(|b| b.is_ascii_hexdigit());
    if digits { usize::from_str_radix(word, 16).ok() } else { None }
}

/// Parses digits only. `FromStr` alone would accept a plus sign.
pub(super) fn decimal<T: std::str::FromStr>(word: &str) -> Option<T> {
    let digits = word.bytes().all(|b| b.is_ascii_digit());
    if digits { word.parse().ok() } else { None }
}
