//! Messages go into inboxes, and out of them.

use super::message::{Credentials, Message, OVERHEAD, Passed};
use super::{DATAGRAMS, Link, Name, ROOM, Socket, Type};
use crate::errno::Errno;
use crate::file::open::Open;
use crate::file::ready::{READABLE, WRITABLE};
use crate::lock::lock;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::mem;
use linux_raw_sys::errno::{ECONNREFUSED, EINVAL, EMSGSIZE, ENOMEM, ENOTCONN, EPERM, EPIPE};

/// The files and credentials that a sender adds to the bytes of a message.
pub(crate) struct Extra {
    /// The files that it passes: none when they are sent.
    pub(crate) files: Vec<Arc<Open>>,
    pub(crate) of: Credentials,
}

/// Bytes, or a message, that a receiver has taken out of an inbox, and their sender.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) count: usize,
    /// The length of the message, of which the rest is lost.
    pub(crate) whole: usize,
    pub(crate) files: Vec<Arc<Open>>,
    pub(crate) from: Option<Name>,
    pub(crate) of: Option<Credentials>,
    /// The message, of all sockets but streams.
    pub(crate) message: Option<Message>,
}

impl Socket {
    /// Sends bytes: of a stream as many as there is room for, of others a whole message. `to` is
    /// the target of a datagram, if it is not the peer. `None`: there is no room. Returns how many.
    ///
    /// # Errors
    /// EPIPE, ENOTCONN, ECONNREFUSED, EMSGSIZE; EPERM: the target is connected to another socket.
    /// ETOOMANYREFS, ENOBUFS, ENOMEM. Nothing was sent.
    pub(crate) fn send(
        self: &Arc<Self>,
        to: Option<&Arc<Socket>>,
        bytes: &[u8],
        extra: &mut Extra,
    ) -> Result<Option<usize>, Errno> {
        let (name, peer) = {
            let mut state = lock(&self.state);
            if state.no_send {
                return Err(Errno(EPIPE));
            }
            if state.error != 0 {
                return Err(Errno(mem::take(&mut state.error)));
            }
            let peer = match &state.link {
                Link::Peer { peer, .. } => Some(peer.upgrade()),
                _ => None,
            };
            (state.name.clone(), peer)
        };
        let to = match (to, peer) {
            (Some(to), _) => Arc::clone(to),
            (None, Some(Some(peer))) => peer,
            (None, Some(None)) if self.kind == Type::Datagram => {
                // As in Linux, the socket forgets a peer that has gone.
                self.set_peer(None)?;
                return Err(Errno(ECONNREFUSED));
            }
            (None, Some(None)) => return Err(Errno(EPIPE)),
            (None, None) => return Err(Errno(ENOTCONN)),
        };
        let sent = match self.kind {
            Type::Stream => to.put_stream(bytes, name, extra),
            _ => self.put_message(&to, bytes, name, extra),
        }?;
        if sent.is_some() {
            to.changed.wake(READABLE);
        }
        Ok(sent)
    }

    fn put_stream(
        &self,
        bytes: &[u8],
        name: Option<Name>,
        extra: &mut Extra,
    ) -> Result<Option<usize>, Errno> {
        // Before the lock: `Passed` has one of its own, and is dropped after the state's.
        let mut passed = match extra.files.is_empty() {
            true => None,
            false => Some(Passed::new(&mut extra.files, self)?),
        };
        let put = (|| {
            let mut state = lock(&self.state);
            if state.no_receive || state.closed {
                return Err(Errno(EPIPE));
            }
            let weight = if passed.is_some() { OVERHEAD } else { 0 };
            let room = ROOM.saturating_sub(state.used + weight);
            if room == 0 {
                return Ok(None);
            }
            let bytes = &bytes[..bytes.len().min(room)];
            let joined = match state.inbox.back_mut() {
                Some(last) if passed.is_none() => last.join(bytes, extra.of),
                _ => 0,
            };
            state.used += joined;
            let rest = &bytes[joined..];
            if rest.is_empty() && passed.is_none() {
                return Ok(Some(joined));
            }
            let message = state.inbox.try_reserve(1).map_err(|_| Errno(ENOMEM));
            let message = message.and_then(|()| Message::new(rest, extra.of, name, true));
            match message {
                Ok(mut message) => {
                    message.passed = passed.take();
                    state.used += rest.len() + weight;
                    state.inbox.push_back(message);
                    Ok(Some(bytes.len()))
                }
                Err(_) if joined > 0 => Ok(Some(joined)),
                Err(error) => Err(error),
            }
        })();
        if let Some(passed) = passed {
            extra.files = passed.take();
        }
        put
    }

    fn put_message(
        self: &Arc<Self>,
        to: &Arc<Socket>,
        bytes: &[u8],
        name: Option<Name>,
        extra: &mut Extra,
    ) -> Result<Option<usize>, Errno> {
        if bytes.len() > ROOM - OVERHEAD {
            return Err(Errno(EMSGSIZE));
        }
        if !to.takes_from(self) {
            return Err(Errno(EPERM));
        }
        let mut message = Message::new(bytes, extra.of, name, false)?;
        if !extra.files.is_empty() {
            message.passed = Some(Passed::new(&mut extra.files, to)?);
        }
        let refused = {
            let mut state = lock(&to.state);
            if state.closed && self.kind == Type::Datagram {
                Some((message, Err(Errno(ECONNREFUSED))))
            } else if state.no_receive || state.closed {
                Some((message, Err(Errno(EPIPE))))
            } else if state.is_full_for(self, bytes.len()) {
                Some((message, Ok(None)))
            } else if state.inbox.try_reserve(1).is_err() {
                Some((message, Err(Errno(ENOMEM))))
            } else {
                state.used += bytes.len() + OVERHEAD;
                state.inbox.push_back(message);
                None
            }
        };
        match refused {
            None => Ok(Some(bytes.len())),
            Some((mut message, outcome)) => {
                extra.files = message.passed.take().map(Passed::take).unwrap_or_default();
                outcome
            }
        }
    }

    /// Whether a peer that sends here is told that it can. If not, it is told later.
    pub(super) fn has_room_for(&self, from: &Arc<Socket>) -> bool {
        let mut state = lock(&self.state);
        match self.kind {
            Type::Datagram => {
                let full = state.is_full_for(from, 0);
                let known = |one: &Weak<Socket>| one.as_ptr() == Arc::as_ptr(from);
                if full && !state.blocked.iter().any(known) {
                    // Those that are there have a budget; those that have gone have none.
                    state.blocked.retain(|one| one.strong_count() > 0);
                    if state.blocked.try_reserve(1).is_err() {
                        return true;
                    }
                    state.blocked.push(Arc::downgrade(from));
                }
                !full
            }
            _ => state.used <= ROOM / 4,
        }
    }

    /// Takes bytes of a stream, up to the end of the first message that passes files; or the next
    /// message. `None`: there is none. A count of 0 is the end.
    ///
    /// # Errors
    /// EINVAL, ENOTCONN: it is not connected. The pending error.
    pub(crate) fn take(&self, into: &mut [u8], look: bool) -> Result<Option<Taken>, Errno> {
        let (mut taken, mut passed) = (Taken::default(), None);
        let (peer, blocked, told) = {
            let mut state = lock(&self.state);
            match (&state.link, self.kind) {
                (Link::Peer { .. }, _) | (_, Type::Datagram) => {}
                (_, Type::Stream) => return Err(Errno(EINVAL)),
                (_, Type::Packets) => return Err(Errno(ENOTCONN)),
            }
            if state.inbox.is_empty() {
                if state.error != 0 {
                    return Err(Errno(mem::take(&mut state.error)));
                }
                return Ok(state.no_receive.then_some(taken));
            }
            let before = state.used;
            match self.kind {
                Type::Stream => state.take_stream(into, look, &mut taken, &mut passed),
                _ => state.take_message(look, &mut taken)?,
            }
            let peer = match &state.link {
                Link::Peer { peer, .. } if state.used < before => peer.upgrade(),
                _ => None,
            };
            let told = state.used <= ROOM / 4 || self.kind != Type::Stream;
            let blocked = if look { Vec::new() } else { mem::take(&mut state.blocked) };
            (peer, blocked, told)
        };
        if let Some(message) = &mut taken.message {
            passed = message.passed.take();
        }
        if let Some(passed) = passed {
            taken.files = passed.take();
        }
        if let Some(peer) = peer {
            peer.changed.wake(if told { WRITABLE } else { 0 });
        }
        if self.kind == Type::Datagram && !look {
            // Those that wait for room here.
            self.changed.wake(0);
            blocked.iter().filter_map(Weak::upgrade).for_each(|one| one.changed.wake(WRITABLE));
        }
        Ok(Some(taken))
    }

    /// Gives bytes of a stream back that could not be delivered.
    pub(crate) fn untake(&self, bytes: &[u8], of: Credentials) {
        let Ok(message) = Message::new(bytes, of, None, false) else { return };
        let mut state = lock(&self.state);
        // There was room: without memory they are lost.
        if !state.closed && state.inbox.try_reserve(1).is_ok() {
            state.used += bytes.len();
            state.inbox.push_front(message);
        }
    }
}

impl super::State {
    fn take_stream(
        &mut self,
        into: &mut [u8],
        look: bool,
        taken: &mut Taken,
        passed: &mut Option<Passed>,
    ) {
        let mut index = 0;
        while taken.count < into.len()
            && let Some(first) = self.inbox.get_mut(index)
        {
            let of = *taken.of.get_or_insert(first.of);
            if of != first.of {
                break;
            }
            taken.from = first.from.clone();
            let count = first.left().min(into.len() - taken.count);
            into[taken.count..][..count].copy_from_slice(&first.bytes()[..count]);
            taken.count += count;
            let passes = first.passed.is_some();
            if look {
                taken.files = first.passed.as_ref().map(Passed::look).unwrap_or_default();
                index += 1;
            } else {
                *passed = first.passed.take();
                first.skip(count);
                self.used -= count + if passes { OVERHEAD } else { 0 };
                if first.left() == 0 {
                    self.inbox.pop_front();
                }
            }
            if passes {
                break;
            }
        }
        taken.whole = taken.count;
    }

    fn take_message(&mut self, look: bool, taken: &mut Taken) -> Result<(), Errno> {
        let message = match look {
            true => match self.inbox.front().map(Message::look).transpose()? {
                Some((message, files)) => {
                    taken.files = files;
                    Some(message)
                }
                None => None,
            },
            false => self.inbox.pop_front(),
        };
        let Some(message) = message else { return Err(Errno(EINVAL)) };
        if !look {
            self.used -= message.left() + OVERHEAD;
        }
        (taken.count, taken.whole) = (message.left(), message.left());
        (taken.from, taken.of) = (message.from.clone(), Some(message.of));
        taken.message = Some(message);
        Ok(())
    }

    /// Whether there is no room for a message of this sender.
    fn is_full_for(&self, from: &Arc<Socket>, bytes: usize) -> bool {
        let back = match &self.link {
            Link::Peer { peer, .. } => peer.as_ptr() == Arc::as_ptr(from),
            _ => false,
        };
        let many = !back && self.inbox.len() > DATAGRAMS;
        many || !self.inbox.is_empty() && self.used + bytes + OVERHEAD > ROOM
    }
}
