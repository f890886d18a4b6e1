//! The advice of madvise(2), with its properties: one table.

macro_rules! advices {
    ($($name:ident = $number:literal: $properties:expr;)*) => {
        /// The advice of madvise, with Linux's numbers.
        ///
        /// ```
        /// use vma::Advice;
        /// assert_eq!(Advice::from_number(10), Some(Advice::DontFork));
        /// assert!(Advice::DontFork.changes_vmas() && !Advice::Free.changes_vmas());
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[allow(missing_docs)] // the names are those of the manual page
        pub enum Advice {
            $($name = $number,)*
        }

        impl Advice {
            /// All of it.
            pub const ALL: &[Advice] = &[$(Advice::$name,)*];

            const fn properties(self) -> u8 {
                match self {
                    $(Advice::$name => $properties,)*
                }
            }
        }
    };
}

/// It changes VMAs, and not only their pages.
const VMAS: u8 = 1;
/// It takes pages away for good, which a seal forbids for memory that may not be written.
const DISCARDS: u8 = 2;
/// A seal forbids it, too.
const SEALED: u8 = 4;
/// The program sees no other contents, so another process may give it (process_madvise(2)).
const GENTLE: u8 = 8;
/// None of these.
const PLAIN: u8 = 0;

advices! {
    Normal = 0: VMAS;
    Random = 1: VMAS;
    Sequential = 2: VMAS;
    WillNeed = 3: GENTLE;
    DontNeed = 4: DISCARDS;
    Free = 8: DISCARDS;
    Remove = 9: DISCARDS;
    DontFork = 10: VMAS | SEALED;
    DoFork = 11: VMAS;
    Mergeable = 12: VMAS;
    Unmergeable = 13: VMAS;
    HugePage = 14: VMAS;
    NoHugePage = 15: VMAS;
    DontDump = 16: VMAS;
    DoDump = 17: VMAS;
    WipeOnFork = 18: VMAS | SEALED;
    KeepOnFork = 19: VMAS;
    Cold = 20: GENTLE;
    PageOut = 21: GENTLE;
    PopulateRead = 22: PLAIN;
    PopulateWrite = 23: VMAS;
    DontNeedLocked = 24: DISCARDS;
    Collapse = 25: GENTLE;
    GuardInstall = 102: VMAS | SEALED;
    GuardRemove = 103: PLAIN;
}

impl Advice {
    /// The advice with that number, if there is one.
    pub fn from_number(number: u32) -> Option<Advice> {
        Advice::ALL.iter().copied().find(|advice| *advice as u32 == number)
    }

    /// Whether it changes VMAs, and not only their pages.
    pub fn changes_vmas(self) -> bool {
        self.properties() & VMAS != 0
    }

    /// Whether it takes pages away for good.
    pub fn discards(self) -> bool {
        self.properties() & DISCARDS != 0
    }

    /// Whether it changes nothing that the program sees, so that process_madvise(2) may give it.
    pub fn is_gentle(self) -> bool {
        self.properties() & GENTLE != 0
    }

    /// Whether a seal forbids it for memory that may not be written.
    pub(crate) fn is_sealed_off(self) -> bool {
        self.properties() & (DISCARDS | SEALED) != 0
    }
}
