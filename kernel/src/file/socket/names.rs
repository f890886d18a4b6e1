//! Addresses of sockets: paths, and names in a space of their own, which begin with a zero.

use super::{Key, NAMED, Name, Socket, Type};
use crate::errno::Errno;
use crate::file::inode::{Inode, InodeKind};
use crate::file::tree;
use crate::lock::lock;
use crate::path::Start;
use alloc::collections::btree_map::Entry;
use alloc::format;
use alloc::sync::{Arc, Weak};
use linux_raw_sys::errno::{EADDRINUSE, ECONNREFUSED, EEXIST, EINVAL, ENOSPC};

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
        let node = Inode::new(InodeKind::Socket, mode)?;
        let used = |error| if error == Errno(EEXIST) { Errno(EADDRINUSE) } else { error };
        tree::insert(&found.parent, &found.name, &node).map_err(used)?;
        let mut whole = path.to_vec();
        whole.push(0);
        self.set_name(Key::Inode(node.number), Arc::new(whole)).inspect_err(|_| {
            // Another thread was faster. It may have replaced the entry, too.
            let _ = tree::remove(&found, false);
        })
    }

    fn bind_abstract(self: &Arc<Self>, name: &[u8]) -> Result<(), Errno> {
        let name = Arc::new(name.to_vec());
        self.set_name(Key::Abstract(self.kind as u8, Arc::clone(&name)), name)
    }

    /// # Errors
    /// EADDRINUSE. EINVAL: it has one. Nothing has changed.
    fn set_name(self: &Arc<Self>, key: Key, name: Name) -> Result<(), Errno> {
        match lock(&NAMED).entry(key.clone()) {
            Entry::Occupied(_) => return Err(Errno(EADDRINUSE)),
            Entry::Vacant(place) => _ = place.insert(Arc::downgrade(self)),
        }
        let mut state = lock(&self.state);
        if state.name.is_some() {
            drop(state);
            lock(&NAMED).remove(&key);
            return Err(Errno(EINVAL));
        }
        (state.name, state.key) = (Some(name), Some(key));
        Ok(())
    }

    /// The socket that has a name; of this type, if the name is abstract.
    ///
    /// # Errors
    /// ECONNREFUSED: none has it any more, or the path leads to no socket. Those of a walk.
    pub(crate) fn find(kind: Type, name: &[u8], start: &Start) -> Result<Arc<Socket>, Errno> {
        let key = match path(name) {
            Some(path) => match start.find(path, true)? {
                node if matches!(node.kind, InodeKind::Socket) => Key::Inode(node.number),
                _ => return Err(Errno(ECONNREFUSED)),
            },
            None => Key::Abstract(kind as u8, Arc::new(name.to_vec())),
        };
        let socket = lock(&NAMED).get(&key).and_then(Weak::upgrade);
        socket.filter(|socket| !lock(&socket.state).closed).ok_or(Errno(ECONNREFUSED))
    }
}
