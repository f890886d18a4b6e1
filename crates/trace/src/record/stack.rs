//! Call stacks in a trace.
//!
//! A stack is recorded once, before the first call that has it, and has a number. Its frames are
//! places in files, not addresses of a process. So the same chain of calls is the same stack in
//! every process, wherever its libraries are mapped. The names of functions come after all calls.

/// The number of a call stack, from 1; 0 for none.
pub type StackId = u32;
/// The number of a file with code, from 1; 0 for none.
pub type ImageId = u32;

/// A file with code that is in a call stack. If it changes while the program runs, it has a new
/// number.
///
/// ```
/// use trace::record::*;
/// let image = Image { id: 1, dev: (8, 1), inode: 42, path: "/bin/x".into() };
/// assert_eq!(Record::Image(image.clone()), Record::Image(image));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its number in the trace.
    pub id: ImageId,
    /// Major and minor number of its device.
    pub dev: (u32, u32),
    /// Inode number; 0 for the vdso, and for what is no file with code: a script, whose places are
    /// numbered, and the names that a just-in-time compiler tells, with addresses of the process.
    pub inode: u64,
    /// Its path as the listing shows it, or `[vdso]`.
    pub path: String,
}

/// A place in code.
///
/// ```
/// use trace::record::Frame;
/// assert!(Frame { image: 0, address: 9 } < Frame { image: 1, address: 2 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The file; 0 for code outside of files, such as that of a just-in-time compiler.
    pub image: ImageId,
    /// The address after the call instruction, as the file's own symbols count it. Without a file,
    /// the address in the process.
    pub address: u64,
}

named! {
    /// The reason why a stack has no further frame.
    ///
    /// ```
    /// use trace::record::StackEnd;
    /// assert_eq!(StackEnd::ALL.map(StackEnd::name), ["root", "cut", "lost"]);
    /// ```
    StackEnd {
        /// The last frame is the first function of its thread.
        Root "root",
        /// It has as many frames as the tracer records.
        Cut "cut",
        /// The caller of the last frame could not be found: memory is unreadable or damaged, or the
        /// code has neither unwind tables nor frame pointers.
        Lost "lost",
    }
}

/// A call stack.
///
/// ```
/// use trace::record::*;
/// let frames = vec![Frame { image: 1, address: 0x1139 }];
/// let stack = Stack { id: 1, frames, end: StackEnd::Cut };
/// assert_eq!(Record::Stack(stack.clone()), Record::Stack(stack));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Its number in the trace.
    pub id: StackId,
    /// Its frames, the innermost first.
    pub frames: Vec<Frame>,
    /// The reason why there are no more.
    pub end: StackEnd,
}

/// A function at a place in code.
///
/// ```
/// use trace::record::*;
/// let frame = Frame { image: 1, address: 0x1139 };
/// let symbol = Symbol { frame, name: "main".into(), line: None };
/// assert_eq!(Record::Symbol(symbol.clone()), Record::Symbol(symbol));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The place.
    pub frame: Frame,
    /// The function's name, demangled. It has no tab.
    pub name: String,
    /// The source file and the line in it, if there is debug information.
    pub line: Option<(String, u32)>,
}
