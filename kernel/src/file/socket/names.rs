//! Addresses of sockets: paths, and names in a space of their own, which begin with a zero.

use super::{Socket, Type};
use crate::errno::Errno;
use crate::file::inode::{Inode, InodeKind};
use crate::file::tree;
use crate::lock::lock;
use crate::path::Start;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use linux_raw_sys::errno::{EADDRINUSE, ECONNREFUSED, EEXIST, EINVAL, ENOSPC};
use spin::mutex::SpinMutex;

/// An address without its family: a path with the zero behind it, or an abstract name.
pub(crate) type Name = Arc<Vec<u8>>;

/// As in Linux, each type has names of its own.
static ABSTRACT: SpinMutex<BTreeMap<(u8, Name), Weak<Socket>>> = SpinMutex::new(BTreeMap::new());

/// The socket that has forgotten its name.
pub(super) fn forget(name: &Name, socket: &Arc<Socket>) {
    let (key, mut names) = ((socket.kind as u8, Arc::clone(name)), lock(&ABSTRACT));
    if names.get(&key).is_some_and(|of| of.as_ptr() == Arc::as_ptr(socket)) {
        names.remove(&key);
    }
}

/// The path of a name, unless it is abstract.
fn path(name: &[u8]) -> Option<&[u8]> {
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    (len > 0).then(|| &name[..len])
}

impl Socket {
    /// Gives a socket a name. An empty one is chosen here.
    ///
    /// # Errors
    /// EINVAL: it has one. EADDRINUSE. Those of a walk, and of a new inode.
    pub(crate) fn bind(
        self: &Arc<Self>,
        name: &[u8],
        start: &Start,
        mode: u32,
    ) -> Result<(), Errno> {
        if name.is_empty() {
            if self.name().is_some() {
                return Ok(());
            }
            for number in 0..1 << 20 {
                match self.bind_abstract(format!("\0{number:05x}").as_bytes()) {
                    Err(Errno(EADDRINUSE)) => {}
                    done => return done,
                }
            }
            return Err(Errno(ENOSPC));
        }
        let Some(path) = path(name) else {
            // As in Linux, a path is looked at first.
            return if self.name().is_none() {
                self.bind_abstract(name)
            } else {
                Err(Errno(EINVAL))
            };
        };
        let found = start.walk_to_name(path)?;
        if found.node.is_some() {
            return Err(Errno(EADDRINUSE));
        }
        let node = Inode::new(InodeKind::Name(Arc::downgrade(self)), mode)?;
        let used = |error| if error == Errno(EEXIST) { Errno(EADDRINUSE) } else { error };
        tree::insert(&found.parent, &found.name, &node).map_err(used)?;
        let mut whole = path.to_vec();
        whole.push(0);
        if self.set_name(Arc::new(whole)) {
            return Ok(());
        }
        // Another thread was faster. It may have replaced the entry, too.
        let _ = tree::remove(&found, false);
        Err(Errno(EINVAL))
    }

    fn bind_abstract(self: &Arc<Self>, name: &[u8]) -> Result<(), Errno> {
        let name = Arc::new(name.to_vec());
        let key = (self.kind as u8, Arc::clone(&name));
        {
            let mut names = lock(&ABSTRACT);
            if names.contains_key(&key) {
                return Err(Errno(EADDRINUSE));
            }
            names.insert(key, Arc::downgrade(self));
        }
        if self.set_name(Arc::clone(&name)) {
            return Ok(());
        }
        forget(&name, self);
        Err(Errno(EINVAL))
    }

    /// Returns false if it has one.
    fn set_name(&self, name: Name) -> bool {
        let mut state = lock(&self.state);
        let free = state.name.is_none();
        if free {
            state.name = Some(name);
        }
        free
    }

    /// The socket that has a name; of this type, if the name is abstract.
    ///
    /// # Errors
    /// ECONNREFUSED: none has it any more. Those of a walk.
    pub(crate) fn find(kind: Type, name: &[u8], start: &Start) -> Result<Arc<Socket>, Errno> {
        let socket = match path(name) {
            Some(path) => match &start.find(path, true)?.kind {
                InodeKind::Name(socket) => socket.upgrade(),
                _ => None,
            },
            None => {
                let key = (kind as u8, Arc::new(name.to_vec()));
                lock(&ABSTRACT).get(&key).and_then(Weak::upgrade)
            }
        };
        socket.filter(|socket| !lock(&socket.state).closed).ok_or(Errno(ECONNREFUSED))
    }
}
