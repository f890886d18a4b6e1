//! The description of a signal that a program gets or sends (`siginfo_t`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const SI_USER: i32 = 0;
pub(crate) const SI_KERNEL: i32 = 0x80;
pub(crate) const SI_TKILL: i32 = -6;
const SI_TIMER: i32 = -2;
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
    /// Of a timer's signal: the number of the setting. Programs see 0.
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

    /// A signal of a timer: its number, its value, and the number of its setting, which is not 0.
    pub(super) fn timer(number: u8, id: u32, value: u64, setting: u32) -> Info {
        Info { gap: setting, ..Info::new(number, SI_TIMER, [id.into(), value, 0, 0]) }
    }

    pub(super) fn is_of_timer(&self) -> bool {
        self.gap != 0
    }

    /// Takes the number of the setting out, which programs do not see. None: no timer's signal.
    pub(super) fn take_setting(&mut self) -> Option<u32> {
        let setting = core::mem::take(&mut self.gap);
        (setting != 0).then_some(setting)
    }

    /// The number of the timer.
    pub(super) fn timer_id(&self) -> u32 {
        self.fields[0] as u32
    }

    pub(super) fn set_overrun(&mut self, overrun: u32) {
        self.fields[0] = self.fields[0] & 0xffff_ffff | u64::from(overrun) << 32;
    }

    /// The same without the number of a timer's setting, which only the kernel may give.
    pub(crate) fn of_program(self) -> Info {
        Info { gap: 0, ..self }
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
