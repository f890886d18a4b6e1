//! Call sites: where a program asked for memory.
//!
//! The innermost frames of most stacks are those of malloc and of what it calls. The site is the
//! caller of the outermost such function, and of the libraries of C and C++ around it. If the
//! whole stack is in such libraries, as at the start of a program, the site is the innermost
//! function that does not allocate, by its name.
//!
//! If a script is in the stack, the site is its innermost line, by the interpreter's or a library's
//! function that would be the site otherwise.

use std::collections::BTreeMap;

use super::{Function, Owned, SiteCounts, Stacks};
use crate::{record::Op, report::OwnerNow};

/// A place that makes one kind of call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Site {
    pub(crate) op: Op,
    /// The function, with its line if that is known.
    pub(crate) place: String,
    /// The function of a library that it called, such as malloc.
    pub(crate) via: Option<String>,
}

/// The beginnings of names of files that provide memory for others.
const FILES: &str = "\
    [vdso] ld-2 ld-linux ld-musl ld.so libc++ libc- libc. libjemalloc libmimalloc libpthread \
    libstdc++ libtcmalloc";

/// Functions that allocate memory for their callers, and may be linked into the program.
const FUNCTIONS: &str = "\
    aligned_alloc allocate_stack brk calloc free libc_calloc libc_free libc_malloc libc_memalign \
    libc_realloc madvise malloc memalign minimal_malloc mmap mmap64 morecore mprotect mremap \
    munmap posix_memalign pthread_create pvalloc realloc reallocarray sbrk shmat shmdt syscall \
    valloc";

/// The beginnings of names of such functions in C++, Rust and CPython.
const BEGINNINGS: [&str; 20] = [
    "<alloc::",
    "__brk_call",
    "__pthread_create",
    "__rust_",
    "__rustc::",
    "PyMem_",
    "PyObject_Calloc",
    "PyObject_Malloc",
    "PyObject_Realloc",
    "_PyMem_",
    "_PyObject_Arena",
    "_PyObject_Calloc",
    "_PyObject_Malloc",
    "_PyObject_Realloc",
    "alloc::",
    "operator delete",
    "operator new",
    "std::__new_allocator",
    "std::allocator",
    "std::sys::alloc",
];

/// The beginnings of names of a C library's own functions, which may be linked into the program.
const INTERNAL: &str = "_IO_ __libc_ __pthread_ _dl_ _int_ _start";

impl Function<'_> {
    /// Whether it allocates for its caller, by its name.
    fn allocates(&self) -> bool {
        self.symbol.is_some_and(|symbol| {
            // Versions, parameters and marks of the compiler are no part of the name.
            let name = symbol.name.split(['@', '(', '.']).next().unwrap_or_default();
            let name = name.trim_start_matches("__GI_").trim_start_matches('_');
            FUNCTIONS.split(' ').any(|known| known == name)
                || BEGINNINGS.iter().any(|known| symbol.name.starts_with(known))
        })
    }

    /// Whether it belongs to a library that allocates for others.
    fn is_internal(&self) -> bool {
        let starts =
            |name: &str, known: &str| known.split(' ').any(|known| name.starts_with(known));
        self.file().is_some_and(|file| starts(file, FILES))
            || self.symbol.is_some_and(|symbol| starts(&symbol.name, INTERNAL))
    }
}

/// The site in a stack, and the function that it called, as positions from the innermost.
fn site(functions: &[Function<'_>]) -> (usize, Option<usize>) {
    let script = |built_in: bool| {
        let is = |one: &Function<'_>| one.is_script() && (built_in || !one.is_built_in());
        functions.iter().position(is)
    };
    match script(false).or_else(|| script(true)) {
        Some(at) => (at, at.checked_sub(1).map(|last| native_site(&functions[..=last]).0)),
        None => native_site(functions),
    }
}

/// The same of functions without a script.
fn native_site(functions: &[Function<'_>]) -> (usize, Option<usize>) {
    let allocator = functions.iter().rposition(Function::allocates);
    let from = allocator.map_or(0, |at| at + 1);
    let outside = functions[from..].iter().position(|function| !function.is_internal());
    match outside {
        Some(more) => (from + more, (from + more).checked_sub(1)),
        None if from < functions.len() => (from, allocator),
        None => (0, None),
    }
}

impl Stacks {
    /// The call sites that own something now, those that own most first.
    pub(crate) fn owners_now(&mut self, owned: Owned) -> Vec<OwnerNow> {
        let end = self.end.replace(owned);
        let sites = self.sites();
        let others = self.others();
        self.end = end;
        let owner = |(site, by, count): (String, Option<String>, SiteCounts)| OwnerNow {
            site,
            by,
            calls: count.calls,
            mapped: count.at_end,
            at_peak: count.at_peak,
        };
        let others = ["execve", "(unknown)"].map(String::from).into_iter().zip(others);
        let others = others.map(|(name, count)| (name, None, count));
        let sites = sites.into_iter().map(|(site, count)| (site.place, site.via, count));
        let all = sites.chain(others).map(owner);
        let mut all: Vec<_> = all.filter(|one| one.mapped > 0 || one.at_peak > 0).collect();
        all.sort_by_key(|one| std::cmp::Reverse((one.mapped, one.at_peak)));
        all
    }

    /// The call sites with their counts. The sum is that of all calls.
    pub(crate) fn sites(&self) -> BTreeMap<Site, SiteCounts> {
        let mut sites = BTreeMap::<Site, SiteCounts>::new();
        for (id, op, count) in self.counts() {
            let functions: Vec<Function<'_>> =
                self.stack(id).map(|stack| self.functions(stack).collect()).unwrap_or_default();
            let (at, via) = site(&functions);
            let place = functions.get(at).map_or_else(|| "(no stack)".into(), Function::place);
            let via = via.map(|via| functions[via].name());
            sites.entry(Site { op, place, via }).or_default().add(count);
        }
        sites
    }
}
