//! The processors that this thread may use.

use std::io;
use std::mem;

/// The allowed processors, ascending.
pub(crate) fn allowed() -> Result<Vec<usize>, String> {
    // SAFETY: a set of processors is plain bits, and none is set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the call writes within the set.
    let result = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) };
    if result != 0 {
        return Err(format!("cannot read the allowed processors: {}", io::Error::last_os_error()));
    }
    // SAFETY: the number is below the set's size.
    let has = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(has).collect())
}

/// Restricts this thread, and the programs that it starts from now on, to these processors.
pub(crate) fn allow(cpus: &[usize]) -> Result<(), String> {
    // SAFETY: as above.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below the set's size.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the call reads within the set.
    let result = unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &set) };
    if result != 0 {
        return Err(format!(
            "cannot stay on the processors {cpus:?}: {}",
            io::Error::last_os_error()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_where_it_is_put() {
        let all = allowed().unwrap();
        let last = *all.last().unwrap();
        allow(&[last]).unwrap();
        assert_eq!(allowed().unwrap(), [last]);
        allow(&all).unwrap();
        assert!(allow(&[]).is_err());
        assert_eq!(allowed().unwrap(), all);
    }
}
