//! The results of operations, as a program sees them.

use crate::ops::Join;
use mm::*;

/// The result of an operation, as a program sees it: words, and an error. Frames and addresses that
/// the space has chosen are not in it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct OpResult {
    pub(crate) words: Vec<u64>,
    pub(crate) error: Option<Failed>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    Errno(i32),
    Fault(&'static str),
}

impl std::fmt::Display for OpResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<_> = self.words.iter().map(|word| format!("{word:#x}")).collect();
        match (self.error, words.is_empty()) {
            (None, true) => f.write_str("ok"),
            (None, false) => f.write_str(&words.join(" ")),
            (Some(Failed::Errno(number)), true) => write!(f, "errno {number}"),
            (Some(Failed::Errno(number)), _) => write!(f, "{} errno {number}", words.join(" ")),
            (Some(Failed::Fault(name)), true) => f.write_str(name),
            (Some(Failed::Fault(name)), _) => write!(f, "{} {name}", words.join(" ")),
        }
    }
}

impl OpResult {
    pub(crate) fn words(words: impl IntoIterator<Item = u64>) -> OpResult {
        OpResult { words: words.into_iter().collect(), error: None }
    }

    /// The result of a part, after this one. Returns whether the operation goes on.
    pub(crate) fn then(&mut self, part: OpResult, join: Join) -> bool {
        self.words.extend(part.words);
        self.error = part.error.or(self.error);
        self.error.is_none() || join == Join::GoOn
    }
}

pub(crate) fn fault_name(error: FaultError) -> &'static str {
    match error {
        FaultError::Unmapped(_) => "unmapped",
        FaultError::Denied(..) => "denied",
        FaultError::Guard(_) => "guard",
        FaultError::Object(..) => "beyond the end",
        FaultError::Poisoned(_) => "poisoned",
        FaultError::UserFault(_) => "the monitor was asked",
        FaultError::OutOfMemory(_) | FaultError::GroupLimit => "no memory",
        _ => "the tables are corrupt",
    }
}

impl From<Error> for OpResult {
    fn from(error: Error) -> OpResult {
        OpResult { words: Vec::new(), error: Some(Failed::Errno(error.errno())) }
    }
}

impl From<FaultError> for OpResult {
    fn from(error: FaultError) -> OpResult {
        OpResult { words: Vec::new(), error: Some(Failed::Fault(fault_name(error))) }
    }
}

impl From<CopyError> for OpResult {
    fn from(error: CopyError) -> OpResult {
        error.error.into()
    }
}

impl From<Resolved> for OpResult {
    fn from(error: Resolved) -> OpResult {
        error.error.into()
    }
}

impl From<ObjectError> for OpResult {
    fn from(error: ObjectError) -> OpResult {
        Error::from(error).into()
    }
}

pub(crate) fn done<T, E: Into<OpResult>>(result: Result<T, E>) -> OpResult {
    result.map_or_else(Into::into, |_| OpResult::default())
}

pub(crate) fn word<E: Into<OpResult>>(result: Result<u64, E>) -> OpResult {
    result.map_or_else(Into::into, |word| OpResult::words([word]))
}

impl OpResult {
    /// The words of a call that has succeeded.
    pub(crate) fn with<I: IntoIterator<Item = u64>>(self, words: impl FnOnce() -> I) -> OpResult {
        match self.error {
            None => OpResult::words(words()),
            Some(_) => self,
        }
    }
}
