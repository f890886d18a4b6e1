//! What a program is told of a signal (`siginfo_t`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const SI_USER: i32 = 0;
pub(crate) const SI_KERNEL: i32 = 0x80;
pub(crate) const SI_TKILL: i32 = -6;
const SI_ASYNCNL: i32 = -60;
const CLD_EXITED: i32 = 1;
const CLD_KILLED: i32 = 2;

/// The part of a `siginfo_t` that Linux keeps: the rest is zero. It has no padding.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Info {
    pub(crate) number: i32,
    errno: i32,
    pub(crate) code: i32,
    gap: u32,
    /// As the code says: the sender and a value; an address; a child and its status.
    fields: [u64; 4],
}

/// A `siginfo_t` as a program sees it.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct WholeInfo {
    pub(crate) info: Info,
    rest: [u64; 10],
}

impl Info {
    fn new(number: u8, code: i32, fields: [u64; 4]) -> Info {
        Info { number: number.into(), errno: 0, code, gap: 0, fields }
    }

    /// A signal of the kernel, without details.
    pub(crate) fn kernel(number: u8) -> Info {
        Info::new(number, SI_KERNEL, [0; 4])
    }

    /// A signal that a process has sent. Its user is root.
    pub(crate) fn sent(number: u8, code: i32, pid: u32) -> Info {
        Info::new(number, code, [pid.into(), 0, 0, 0])
    }

    /// A signal for an instruction or an access.
    pub(crate) fn fault(number: u8, code: i32, address: u64) -> Info {
        Info::new(number, code, [address, 0, 0, 0])
    }

    /// The end of a child: `killed` if a signal ended it. `ticks`: how long it has run.
    pub(crate) fn child(number: u8, pid: u32, killed: bool, status: u8, ticks: u64) -> Info {
        let code = if killed { CLD_KILLED } else { CLD_EXITED };
        Info::new(number, code, [pid.into(), status.into(), ticks, 0])
    }

    pub(crate) fn number(&self) -> u8 {
        self.number as u8
    }

    pub(crate) fn whole(self) -> WholeInfo {
        WholeInfo { info: self, rest: [0; 10] }
    }
}

impl WholeInfo {
    /// Whether Linux knows the layout of this code, so that nothing beyond [`Info`] counts. Else
    /// the rest must be zero.
    pub(crate) fn is_complete(&self) -> bool {
        let known = match self.info.code {
            SI_KERNEL | SI_ASYNCNL | -7..=6 => true,
            // Codes of faults: SIGILL, SIGFPE, SIGSEGV.
            code @ 7.. => match self.info.number {
                4 => code <= 11,
                8 => code <= 15,
                11 => code <= 10,
                _ => false,
            },
            _ => false,
        };
        known || self.rest == [0; 10]
    }
}

const _: () = assert!(size_of::<Info>() == 48 && size_of::<WholeInfo>() == 128);
