//! Published figures for the same work, for orientation only: they were measured on another
//! machine, so they are not used in ratios within a run.
//!
//! "Linux" is the maple tree of Linux 6.12 in its user-space build, with gap tracking and RCU mode.
//! "rbtree" is the kernel's tree before it, with gaps. Nanoseconds an operation, at 100 to
//! 1,000,000 ranges.

use crate::case::Case;

/// One row for the sizes of [`crate::cli::SIZES`].
pub(crate) struct Published {
    pub(crate) case: Case,
    pub(crate) linux: [f64; 5],
    pub(crate) rbtree: [f64; 5],
}

/// The names of the two, among those of maps.
pub(crate) const LINUX: &str = "Linux's maple tree, published";
pub(crate) const RBTREE: &str = "Linux's rbtree, published";

impl Published {
    /// The unit of the figures.
    pub(crate) fn unit(&self) -> &'static str {
        if self.case == Case::Duplicate { "ns/entry" } else { "ns/op" }
    }
}

const fn row(case: Case, linux: [f64; 5], rbtree: [f64; 5]) -> Published {
    Published { case, linux, rbtree }
}

pub(crate) const ROWS: [Published; 12] = [
    row(Case::Load, [26., 37., 52., 85., 222.], [22., 37., 65., 184., 952.]),
    row(Case::LoadDependent, [26., 37., 52., 87., 308.], [22., 37., 66., 193., 956.]),
    row(Case::Iterate, [7.0, 7.7, 7.8, 9.2, 36.], [2.0, 4.4, 5.2, 18., 153.]),
    row(Case::InsertRandom, [200., 269., 291., 399., 867.], [63., 81., 114., 256., 1159.]),
    row(Case::InsertAscending, [128., 161., 189., 217., 240.], [17., 21., 32., 60., 108.]),
    row(Case::Move, [126., 187., 237., 352., 522.], [50., 76., 109., 255., 869.]),
    row(Case::Resize, [102., 151., 199., 253., 402.], [14., 37., 71., 174., 723.]),
    row(Case::EraseOver, [556., 546., 981., 1355., 2341.], [341., 269., 504., 1077., 3091.]),
    row(Case::GapUp, [32., 44., 62., 93., 346.], [27., 45., 82., 212., 1258.]),
    row(Case::GapDown, [41., 55., 78., 114., 385.], [31., 50., 97., 242., 1648.]),
    row(Case::MapUnmap, [391., 474., 573., 866., 1292.], [137., 204., 297., 485., 1550.]),
    // Nanoseconds for each entry.
    row(Case::Duplicate, [6.2, 3.2, 3.5, 5.0, 33.], [11., 8.7, 14., 95., 156.]),
];

/// Bytes for each range: with holes between ranges, and touching.
pub(crate) const LINUX_BYTES: (&str, &str) = ("45 to 49", "26 to 27");
pub(crate) const RBTREE_BYTES: (&str, &str) = ("64", "64");

/// The row of a case.
pub(crate) fn find(case: Case) -> Option<&'static Published> {
    ROWS.iter().find(|row| row.case == case)
}

/// The published figure for a size, if there is one.
pub(crate) fn at(row: &[f64; 5], size: usize) -> Option<f64> {
    crate::cli::SIZES.iter().position(|&known| known == size).map(|at| row[at])
}
