//! Sockets of the family AF_UNIX: streams, datagrams, and sequences of packets.
//!
//! | module | contents |
//! |---|---|
//! | `message` | the messages in a socket's inbox; files in flight |
//! | `transfer` | messages go into inboxes and out of them |
//! | `names` | sockets get names, and are found by them |
//!
//! A message lies in the inbox of the socket that receives it. Connected sockets know each other
//! by weak references, so they keep no cycle alive. The description of a socket closes it
//! ([`Socket::close`]): its inbox and its queue of connections are empty from then on. So dropping
//! a `Socket` only frees memory, and may be done with a lock held.
//!
//! # Locks
//! `LINKS` (one for all changes of links: listen, connect, accept, close); then the state of one
//! socket, and never of two. `NAMED` is held with no other. Nothing that may close a file is
//! dropped with one of them held. A socket tells of a change ([`Changed`]) with none held.

pub(crate) mod message;
mod names;
mod transfer;

pub(crate) use transfer::{Extra, Taken};

use super::inode::{Inode, InodeKind};
use super::open::{Mode, Open};
use super::ready::{Changed, READABLE, WRITABLE};
use crate::errno::Errno;
use crate::lock::lock;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;
use linux_raw_sys::errno::{
    ECONNREFUSED, ECONNRESET, EINVAL, EISCONN, ENOTCONN, EPERM, EPROTOTYPE,
};
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLRDHUP};
use message::{Credentials, Message};
use spin::mutex::SpinMutex;

/// The bytes that an inbox holds.
pub(crate) const ROOM: usize = 212_992;
/// The datagrams that an inbox holds of senders to which it is not connected, besides one.
const DATAGRAMS: usize = 10;
/// The most connections that wait to be accepted.
const BACKLOG: usize = 4096;

static LINKS: SpinMutex<()> = SpinMutex::new(());

/// An address without its family: a path with the zero behind it, or an abstract name.
pub(crate) type Name = Arc<Vec<u8>>;

/// The key by which a socket with a name is found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// As in Linux, each type has abstract names of its own.
    Abstract(u8, Name),
    /// The number of the inode at a path.
    Inode(u64),
}

/// The sockets with a name that are not closed.
static NAMED: SpinMutex<BTreeMap<Key, Weak<Socket>>> = SpinMutex::new(BTreeMap::new());

/// The type of a socket, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    Stream = 1,
    Datagram = 2,
    Packets = 5,
}

/// The connection of a socket: none, those that wait to be accepted, or the peer.
enum Link {
    None,
    /// It accepts connections, for the process with this number.
    Listens {
        queue: VecDeque<Arc<Open>>,
        most: usize,
        pid: u32,
    },
    Peer {
        peer: Weak<Socket>,
        name: Option<Name>,
        of: Credentials,
    },
}

struct State {
    name: Option<Name>,
    /// Its place in `NAMED`: none of an accepted connection, which has the name of another.
    key: Option<Key>,
    link: Link,
    inbox: VecDeque<Message>,
    /// The room that the inbox uses.
    used: usize,
    /// Nothing is received, or sent, any more.
    no_receive: bool,
    no_send: bool,
    closed: bool,
    /// It is a connection that was not accepted.
    waits: bool,
    /// An error that the next call tells of; 0 for none.
    error: u32,
    /// Connected datagram sockets that wait for room here.
    blocked: Vec<Weak<Socket>>,
}

/// A socket.
pub(crate) struct Socket {
    pub(crate) kind: Type,
    state: SpinMutex<State>,
    /// The inboxes, and queues of connections, that hold its description; and the sockets that its
    /// inbox holds. Both change with the lock of `message`.
    in_flight: AtomicU32,
    holds: Arc<AtomicU32>,
    pub(crate) options: Options,
    pub(crate) changed: Changed,
}

/// The options that a program sets. All accesses are relaxed: only numbers.
#[derive(Default)]
pub(crate) struct Options {
    /// It receives credentials (SO_PASSCRED).
    pub(crate) credentials: AtomicU32,
    /// Microseconds after which receiving and sending give up; 0: never.
    pub(crate) timeouts: [core::sync::atomic::AtomicU64; 2],
}

impl Socket {
    pub(crate) fn new(kind: Type) -> Arc<Socket> {
        Socket::with(kind, 0)
    }

    fn with(kind: Type, in_flight: u32) -> Arc<Socket> {
        let state = State {
            name: None,
            key: None,
            link: Link::None,
            inbox: VecDeque::new(),
            used: 0,
            no_receive: false,
            no_send: false,
            closed: false,
            waits: in_flight > 0,
            error: 0,
            blocked: Vec::new(),
        };
        Arc::new(Socket {
            kind,
            state: SpinMutex::new(state),
            in_flight: AtomicU32::new(in_flight),
            holds: Arc::new(AtomicU32::new(0)),
            options: Options::default(),
            changed: Changed::new(),
        })
    }

    /// A description of a socket.
    ///
    /// # Errors
    /// ENFILE, ENOSPC: the budget is used up.
    pub(crate) fn open(self: &Arc<Self>, flags: u32) -> Result<Arc<Open>, Errno> {
        let node = Inode::new(InodeKind::Socket, 0o777)?;
        Open::with(node, None, Mode::READ_WRITE, flags, Some(Arc::clone(self)))
    }

    /// Connects two new sockets.
    pub(crate) fn connect_pair(one: &Arc<Socket>, other: &Arc<Socket>, pid: u32) {
        let of = Credentials::of(pid);
        for (this, peer) in [(one, other), (other, one)] {
            lock(&this.state).link = Link::Peer { peer: Arc::downgrade(peer), name: None, of };
        }
    }

    /// Its own name.
    pub(crate) fn name(&self) -> Option<Name> {
        lock(&self.state).name.clone()
    }

    /// The name of its peer, and the credentials that it had.
    ///
    /// # Errors
    /// ENOTCONN.
    pub(crate) fn peer_name(&self) -> Result<(Option<Name>, Credentials), Errno> {
        match &lock(&self.state).link {
            Link::Peer { name, of, .. } => Ok((name.clone(), *of)),
            _ => Err(Errno(ENOTCONN)),
        }
    }

    pub(crate) fn peer(&self) -> Option<Arc<Socket>> {
        match &lock(&self.state).link {
            Link::Peer { peer, .. } => peer.upgrade(),
            _ => None,
        }
    }

    pub(crate) fn listens(&self) -> bool {
        matches!(lock(&self.state).link, Link::Listens { .. })
    }

    /// Takes the pending error.
    pub(crate) fn take_error(&self) -> u32 {
        core::mem::take(&mut lock(&self.state).error)
    }

    /// Accepts connections from now on.
    ///
    /// # Errors
    /// EINVAL: it has no name, or is connected.
    pub(crate) fn listen(&self, most: usize, pid: u32) -> Result<(), Errno> {
        {
            let _links = lock(&LINKS);
            let mut state = lock(&self.state);
            let (new, named) = (most.min(BACKLOG), state.name.is_some());
            match &mut state.link {
                Link::Listens { most, .. } => *most = new,
                Link::None if named => {
                    state.link = Link::Listens { queue: VecDeque::new(), most: new, pid };
                }
                _ => return Err(Errno(EINVAL)),
            }
        }
        // Calls that wait for room in the queue look again.
        self.changed.wake_all();
        Ok(())
    }

    /// Connects to a socket that listens. `None`: its queue is full.
    ///
    /// # Errors
    /// EISCONN, EINVAL; EPROTOTYPE; ECONNREFUSED: it does not listen. ENFILE, ENOSPC. Nothing has
    /// changed.
    pub(crate) fn connect(
        self: &Arc<Self>,
        to: &Arc<Socket>,
        pid: u32,
    ) -> Result<Option<()>, Errno> {
        if self.kind != to.kind {
            return Err(Errno(EPROTOTYPE));
        }
        // In flight: the queue of `to` holds it.
        let accepted = Socket::with(self.kind, 1);
        let open = accepted.open(0)?;
        {
            let _links = lock(&LINKS);
            let name = {
                let state = lock(&self.state);
                match state.link {
                    Link::None => state.name.clone(),
                    Link::Peer { .. } => return Err(Errno(EISCONN)),
                    Link::Listens { .. } => return Err(Errno(EINVAL)),
                }
            };
            let (listener, of) = {
                let mut state = lock(&to.state);
                let listener = state.name.clone();
                let refused = state.no_receive;
                let Link::Listens { queue, most, pid } = &mut state.link else {
                    return Err(Errno(ECONNREFUSED));
                };
                if refused {
                    return Err(Errno(ECONNREFUSED));
                }
                if queue.len() > *most {
                    return Ok(None);
                }
                queue.try_reserve(1).map_err(|_| Errno(linux_raw_sys::errno::ENOMEM))?;
                queue.push_back(open);
                (listener, Credentials::of(*pid))
            };
            {
                let mut state = lock(&accepted.state);
                state.name = listener.clone();
                let peer = Arc::downgrade(self);
                state.link = Link::Peer { peer, name, of: Credentials::of(pid) };
            }
            let peer = Arc::downgrade(&accepted);
            lock(&self.state).link = Link::Peer { peer, name: listener, of };
        }
        to.changed.wake(READABLE);
        self.changed.wake(WRITABLE);
        Ok(Some(()))
    }

    /// Sets the peer of a datagram socket; none with `None`.
    ///
    /// # Errors
    /// EPROTOTYPE. ECONNREFUSED: it is closed. EPERM: it is connected to another.
    pub(crate) fn set_peer(self: &Arc<Self>, to: Option<&Arc<Socket>>) -> Result<(), Errno> {
        let link = match to {
            None => Link::None,
            Some(to) if to.kind != self.kind => return Err(Errno(EPROTOTYPE)),
            Some(to) if !to.takes_from(self) => return Err(Errno(EPERM)),
            Some(to) => {
                let (name, of) = (to.name(), Credentials::of(0));
                Link::Peer { peer: Arc::downgrade(to), name, of }
            }
        };
        let _links = lock(&LINKS);
        lock(&self.state).link = link;
        Ok(())
    }

    /// Whether a datagram socket takes messages from another: it is connected to no third one.
    fn takes_from(&self, other: &Arc<Socket>) -> bool {
        match &lock(&self.state).link {
            Link::Peer { peer, .. } => peer.as_ptr() == Arc::as_ptr(other),
            _ => true,
        }
    }

    /// The next connection. `None`: there is none.
    ///
    /// # Errors
    /// EINVAL: it does not listen, or receives no more.
    pub(crate) fn next_connection(&self) -> Result<Option<Arc<Open>>, Errno> {
        let next = {
            let _links = lock(&LINKS);
            let mut state = lock(&self.state);
            let ended = state.no_receive;
            match &mut state.link {
                Link::Listens { queue, .. } if !ended => queue.pop_front(),
                _ => return Err(Errno(EINVAL)),
            }
        };
        if next.is_some() {
            // A call that connects may have waited for room.
            self.changed.wake(0);
        }
        Ok(next)
    }

    /// A connection could not be accepted: it comes first again. Without memory it is lost.
    pub(crate) fn put_back(&self, open: Arc<Open>) {
        let mut refused = Some(open);
        {
            let _links = lock(&LINKS);
            let mut state = lock(&self.state);
            if let Link::Listens { queue, .. } = &mut state.link
                && queue.try_reserve(1).is_ok()
                && let Some(open) = refused.take()
            {
                queue.push_front(open);
            }
        }
        drop(refused);
        self.changed.wake(READABLE);
    }

    /// A connection has got a descriptor.
    pub(crate) fn accepted(&self) {
        lock(&self.state).waits = false;
        message::lands(self);
    }

    /// Ends receiving, sending, or both: shutdown(2). As in Linux, it need not be connected.
    pub(crate) fn shut_down(&self, receive: bool, send: bool) {
        let peer = {
            let mut state = lock(&self.state);
            state.no_receive |= receive;
            state.no_send |= send;
            match &state.link {
                Link::Peer { peer, .. } if self.kind != Type::Datagram => peer.upgrade(),
                _ => None,
            }
        };
        if let Some(peer) = peer {
            {
                let mut state = lock(&peer.state);
                state.no_receive |= send;
                state.no_send |= receive;
            }
            peer.changed.wake_all();
        }
        self.changed.wake_all();
    }

    /// Its description has ended. No lock is held.
    pub(super) fn close(self: &Arc<Self>) {
        let (link, inbox, key, blocked, waits) = {
            let _links = lock(&LINKS);
            let mut state = lock(&self.state);
            (state.no_receive, state.no_send, state.closed) = (true, true, true);
            let link = core::mem::replace(&mut state.link, Link::None);
            let key = state.key.take();
            let blocked = core::mem::take(&mut state.blocked);
            (link, core::mem::take(&mut state.inbox), key, blocked, state.waits)
        };
        if let Some(key) = key {
            lock(&NAMED).remove(&key);
        }
        if let (Link::Peer { peer, .. }, true) = (&link, self.kind != Type::Datagram)
            && let Some(peer) = peer.upgrade()
        {
            {
                let mut state = lock(&peer.state);
                (state.no_receive, state.no_send) = (true, true);
                if !inbox.is_empty() || waits {
                    state.error = ECONNRESET;
                }
            }
            peer.changed.wake_all();
        }
        self.changed.wake_all();
        blocked.iter().filter_map(Weak::upgrade).for_each(|one| one.changed.wake(WRITABLE));
        // Messages, and connections that were not accepted.
        drop(inbox);
        drop(link);
    }

    /// The events for which it is ready.
    pub(super) fn ready(self: &Arc<Self>) -> u32 {
        let flag = |events, is: bool| if is { events } else { 0 };
        let connects = self.kind != Type::Datagram;
        let (mut found, peer, listens) = {
            let state = lock(&self.state);
            let (mut waiting, mut listens) = (!state.inbox.is_empty(), false);
            if let Link::Listens { queue, .. } = &state.link {
                (waiting, listens) = (!queue.is_empty(), true);
            }
            let found = flag(POLLERR, state.error != 0)
                | flag(POLLHUP, state.no_receive && state.no_send)
                | flag(POLLRDHUP | READABLE, state.no_receive)
                | flag(READABLE, waiting)
                | flag(POLLHUP, connects && matches!(state.link, Link::None));
            let peer = match &state.link {
                Link::Peer { peer, .. } => peer.upgrade(),
                _ => None,
            };
            (found, peer, listens)
        };
        let room = peer.is_none_or(|peer| peer.has_room_for(self));
        found |= flag(WRITABLE | linux_raw_sys::general::POLLWRBAND, !listens && room);
        found
    }

    /// The bytes that can be read now; of datagrams, those of the first.
    ///
    /// # Errors
    /// EINVAL: it listens.
    pub(crate) fn readable(&self) -> Result<usize, Errno> {
        let state = lock(&self.state);
        match (&state.link, self.kind) {
            (Link::Listens { .. }, _) => Err(Errno(EINVAL)),
            (_, Type::Datagram) => Ok(state.inbox.front().map_or(0, Message::left)),
            _ => Ok(state.inbox.iter().map(Message::left).sum()),
        }
    }
}
