//! The processors that this thread may use.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// In place of a thread's number: this thread.
const THIS: Pid = Pid::from_raw(0);

/// The allowed processors, ascending.
pub(crate) fn allowed() -> Result<Vec<usize>, String> {
    let set = sched_getaffinity(THIS)
        .map_err(|error| format!("cannot read the allowed processors: {error}"))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).collect())
}

/// Restricts this thread, and the programs that it starts from now on, to these processors.
pub(crate) fn allow(cpus: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    cpus.iter()
        .try_for_each(|&cpu| set.set(cpu))
        .and_then(|()| sched_setaffinity(THIS, &set))
        .map_err(|error| format!("cannot stay on the processors {cpus:?}: {error}"))
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
