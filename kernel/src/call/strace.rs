//! A line for each call, with arguments, result, CPU and time: for people who port a program.
//!
//! The arguments are written when a call begins, with the paths and the first bytes that it names,
//! because a call may replace them. The line goes to standard error when the call ends, so the
//! lines are in the order of the ends. A call that does not return has no result. A page that an
//! argument names is brought in earlier than without; nothing else differs.
//!
//! Cost: one load for each call if there are no lines. Otherwise a line is one exit of the machine.

use super::{Call, Outcome, Stop, table};
use crate::channel::{self, MessageKind};
use crate::clock;
use crate::errno::Errno;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::task::Thread;
use crate::task::program::shown;
use crate::task::thread::Begun;
use crate::text::Text;
use crate::user::copy::User;
use alloc::string::String;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, Ordering};
use linux_raw_sys::errno::*;
use linux_raw_sys::general::__NR_brk;
use machine::Cpus;

/// The bytes of a buffer that are shown.
const SHOWN: u64 = 32;

/// Whether there are lines: none, for people, or JSON.
static FORM: AtomicU8 = AtomicU8::new(0);
const PEOPLE: u8 = 1;
const JSON: u8 = 2;

/// Begins with lines, for people or as JSON.
pub(crate) fn start(json: bool) {
    // Relaxed, here and below: only the number, and it is written before there are programs.
    FORM.store(if json { JSON } else { PEOPLE }, Ordering::Relaxed);
}

/// Whether there are lines. A load.
pub(super) fn is_on() -> bool {
    FORM.load(Ordering::Relaxed) != 0
}

/// A call begins.
#[cold]
pub(super) fn begin(call: &Call<'_>, number: usize) -> Begun {
    let json = FORM.load(Ordering::Relaxed) == JSON;
    let mut begun = Begun { at: clock::now(), number, arguments: Text::default() };
    let signature = table::find(number).map_or("aaaaaa", |entry| entry.signature());
    // Without memory the rest is missing.
    let _ = write_arguments(&mut begun.arguments, call, signature, json);
    begun
}

fn write_arguments(out: &mut Text, call: &Call<'_>, signature: &str, json: bool) -> fmt::Result {
    for (place, (kind, value)) in signature.bytes().zip(call.args).enumerate() {
        out.write_str(if place > 0 { ", " } else { "" })?;
        let quote = if json && !matches!(kind, b'd' | b'n') { "\"" } else { "" };
        out.write_str(quote)?;
        match kind {
            b'd' => write!(out, "{}", value as i32)?,
            b'n' => write!(out, "{}", value as i64)?,
            b'o' => write!(out, "{value:#o}")?,
            b'p' => match call.user().path(value) {
                Ok(path) => write_text(out, &path, json, false)?,
                Err(_) => write!(out, "{value:#x}")?,
            },
            b'w' => write_bytes(out, call.user(), [value, call.args[place + 1]], json)?,
            _ => write!(out, "{value:#x}")?,
        }
        out.write_str(quote)?;
    }
    Ok(())
}

/// The first bytes of a buffer of a program.
fn write_bytes(out: &mut Text, user: User<'_>, [at, len]: [u64; 2], json: bool) -> fmt::Result {
    let mut bytes = [0; SHOWN as usize];
    let part = &mut bytes[..len.min(SHOWN) as usize];
    match user.read_bytes(at, part) {
        Ok(()) => write_text(out, part, json, len > SHOWN),
        Err(_) => write!(out, "{at:#x}"),
    }
}

/// A text in quotes; in JSON, the quotes are those of a string already. Bytes that are not
/// printable become escapes that both forms have. `more`: it goes on.
fn write_text(out: &mut dyn Write, text: &[u8], json: bool, more: bool) -> fmt::Result {
    let quote = if json { "" } else { "\"" };
    out.write_str(quote)?;
    for byte in text {
        match byte {
            b'"' | b'\\' => write!(out, "\\{}", char::from(*byte))?,
            b'\n' => out.write_str("\\n")?,
            b'\t' => out.write_str("\\t")?,
            b' '..=b'~' => out.write_char(char::from(*byte))?,
            _ => write!(out, "\\u{byte:04x}")?,
        }
    }
    out.write_str(quote)?;
    out.write_str(if more { "..." } else { "" })
}

/// A call ends, or is interrupted.
#[cold]
pub(super) fn end(thread: &Thread, begun: Begun, outcome: &Outcome) {
    let mut line = Text::default();
    // Without memory for a line there is none.
    let written = match FORM.load(Ordering::Relaxed) {
        JSON => write_json(&mut line, thread, &begun, outcome),
        _ => write_line(&mut line, thread, &begun, outcome),
    };
    if written.is_ok() {
        channel::write(MessageKind::Errors, &line.0);
    }
}

fn name_of(thread: &Thread) -> String {
    let name = *lock(thread.name());
    shown(&name)
}

fn write_line(out: &mut Text, thread: &Thread, begun: &Begun, outcome: &Outcome) -> fmt::Result {
    let Begun { at, number, arguments } = begun;
    let (seconds, micros) = (at / 1_000_000_000, at / 1000 % 1_000_000);
    let (cpu, tid) = (Kernel.current().index(), thread.tid());
    write!(out, "{seconds}.{micros:06} cpu{cpu} {tid} {} ", name_of(thread))?;
    match table::name(*number) {
        Some(name) => out.write_str(name)?,
        None => write!(out, "call {number}")?,
    }
    let arguments = core::str::from_utf8(&arguments.0).map_err(|_| fmt::Error)?;
    write!(out, "({arguments}) = ")?;
    match outcome {
        // An address, or a number that may be one.
        Ok(value) if *number == __NR_brk as usize || *value > i32::MAX as u64 => {
            write!(out, "{value:#x}")?
        }
        Ok(value) => write!(out, "{value}")?,
        Err(Stop::Yield) => out.write_str("0")?,
        Err(Stop::Errno(Errno(errno))) => match error(*errno) {
            Some(name) => write!(out, "-1 {name}")?,
            None => write!(out, "-{errno}")?,
        },
        Err(Stop::Interrupted) => out.write_str("? (a signal interrupts it)")?,
        Err(_) => out.write_str("?")?,
    }
    let took = clock::now().saturating_sub(*at) / 1000;
    writeln!(out, " <{}.{:06}>", took / 1_000_000, took % 1_000_000)
}

fn write_json(out: &mut Text, thread: &Thread, begun: &Begun, outcome: &Outcome) -> fmt::Result {
    let Begun { at, number, arguments } = begun;
    let (cpu, pid, tid) = (Kernel.current().index(), thread.process.pid, thread.tid());
    write!(out, "{{\"ns\": {at}, \"cpu\": {cpu}, \"pid\": {pid}, \"tid\": {tid}, \"name\": \"")?;
    write_text(out, name_of(thread).as_bytes(), true, false)?;
    let call = table::name(*number).unwrap_or_default();
    let arguments = core::str::from_utf8(&arguments.0).map_err(|_| fmt::Error)?;
    write!(out, "\", \"number\": {number}, \"call\": \"{call}\", \"args\": [{arguments}]")?;
    match outcome {
        Ok(value) => write!(out, ", \"result\": {}", *value as i64)?,
        Err(Stop::Yield) => out.write_str(", \"result\": 0")?,
        Err(Stop::Errno(Errno(errno))) => {
            let name = error(*errno).unwrap_or_default();
            write!(out, ", \"result\": -{errno}, \"error\": \"{name}\"")?;
        }
        Err(Stop::Interrupted) => out.write_str(", \"interrupted\": true")?,
        Err(_) => {}
    }
    writeln!(out, ", \"took_ns\": {}}}", clock::now().saturating_sub(*at))
}

macro_rules! errors {
    ($($name:ident)*) => {
        /// The name of an error number that the kernel returns.
        fn error(number: u32) -> Option<&'static str> {
            match number {
                $($name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

errors! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC
    ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP
    EIDRM ENODATA EPROTO EOVERFLOW ELIBBAD ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ECONNABORTED
    ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EALREADY
    EINPROGRESS ECANCELED EOWNERDEAD ENOTRECOVERABLE EHWPOISON
}
