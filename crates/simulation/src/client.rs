//! Clients: what their sessions do, and what comes of it.

use crate::disk::{OBJECTS, SECTOR, SECTORS, Tags, object, sector_bytes};
use crate::world::{Check, Client, Conn, Msg, N, Read, Rep, World, si, sid};
use ec_store::pg::{Action, NewWrite, PgSession, Piece, SessionSettings};
use protocol::monitor::MonitorRequest;
use protocol::namespace::LeaseMode;
use protocol::shard::Op;
use protocol::{Rule, Seq, ShardSet};
use std::ops::Range;

/// What a write does, as the checker knows it.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Whose.
    pub session: usize,
    /// Its number.
    pub seq: u64,
    /// What is done.
    pub op: Op,
    /// To which sectors.
    pub range: Range<usize>,
    /// Of which shards.
    pub touch: ShardSet,
    /// New tags of the data shards.
    pub tags: [Tags; 2],
    /// End of user data.
    pub end: u64,
}

/// What an object holds: a tag for each sector of both data shards, and the end of user data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Content {
    /// Tags.
    pub data: [Tags; 2],
    /// End of user data.
    pub end: u64,
}

impl Content {
    /// With a write.
    pub fn take(&mut self, e: &Effect) {
        for i in (0..2).filter(|&i| e.touch.contains(si(i))) {
            self.data[i][e.range.clone()].copy_from_slice(&e.tags[i][e.range.clone()]);
        }
        self.end = match e.op {
            Op::Truncate | Op::Delete => e.end,
            _ => self.end.max(e.end),
        };
    }

    /// The piece of a shard.
    pub fn piece(&self, i: usize) -> Tags {
        std::array::from_fn(|at| {
            if i == 2 { self.data[0][at] ^ self.data[1][at] } else { self.data[i][at] }
        })
    }
}

impl World {
    /// The next client mounts.
    pub fn open(&mut self) {
        let name = String::new();
        self.mon_now += std::time::Duration::from_millis(1);
        self.mon.handle(MonitorRequest::OpenSession { name }, self.mon_now);
        self.take_map();
        let s = self.clients.len();
        let settings = SessionSettings { rules: self.rules, ..SessionSettings::default() };
        let mut machine = PgSession::new(sid(s), self.map().view, settings);
        (0..N).for_each(|i| machine.connection(self.now, si(i), true));
        let known = self.maps.len() - 1;
        self.clients.push(Client {
            run: true,
            closed: false,
            machine,
            known,
            leases: self.no_holdings(),
            last: [0; OBJECTS],
            read: None,
            writes: 0,
            reported: 0,
            stable: 0,
        });
        self.net.push(Default::default());
        self.lines.push(Default::default());
    }

    /// A client unmounts: everything is stable, and it holds nothing.
    pub fn close(&mut self, s: usize) -> Check {
        self.clients[s].machine.close();
        self.pump(s)?;
        (self.clients[s].run, self.clients[s].closed) = (false, true);
        self.mon_now += std::time::Duration::from_millis(1);
        self.mon.handle(MonitorRequest::CloseSession { session: sid(s) }, self.mon_now);
        self.take_map();
        self.cover("a session closes");
        Ok(())
    }

    /// May it close?
    pub fn can_close(&self, s: usize) -> bool {
        let client = &self.clients[s];
        let idle = client.run && client.stable == client.writes && client.read.is_none();
        idle && client.leases.is_empty() && self.is_live(s)
    }

    /// A session learns a newer map; one that finds itself dead there ends.
    pub fn learn(&mut self, s: usize, v: u32) -> Check {
        let (first, last) = (self.clients[s].known + 1, self.maps.len() - 1);
        let known = if v.is_multiple_of(3) { first } else { last };
        self.clients[s].known = known;
        if !self.maps[known].table.live.contains(&sid(s)) {
            self.stop_client(s);
            return Ok(());
        }
        let view = self.maps[known].view;
        self.clients[s].machine.learn(self.now, view);
        self.pump(s)
    }

    /// The connection is gone: what was on its way may still arrive, late.
    pub fn reset(&mut self, s: usize, i: usize) {
        let conn = std::mem::take(&mut self.net[s][i]);
        self.net[s][i] = Conn { old_req: conn.req, old_rep: conn.rep, ..Conn::default() };
        self.clients[s].machine.connection(self.now, si(i), false);
        self.clients[s].machine.connection(self.now, si(i), true);
    }

    /// Carries out what a session wants done.
    pub fn pump(&mut self, s: usize) -> Check {
        while let Some(action) = self.clients[s].machine.next_action() {
            match action {
                Action::Send { shard, request } => {
                    self.net[s][usize::from(shard.get())].req.push_back(Msg::Send(request));
                }
                Action::Reported(seq) => {
                    self.clients[s].reported = seq.get();
                    self.note(|| format!("session {s} reports up to {seq}"));
                }
                Action::Stable(seq) => {
                    self.clients[s].stable = seq.get();
                    self.cover("stable advances");
                    self.note(|| format!("session {s} is stable up to {seq}"));
                }
                Action::ShardLost(i) => {
                    return Err(format!(
                        "no-lost-ack: in-sync shard {i} lost a stable record of session {s}"
                    ));
                }
                Action::Fenced => self.cover("a session finds itself fenced"),
                Action::NeedMap(_) | Action::ShardFailed(_) => {}
            }
        }
        let client = &mut self.clients[s];
        let current =
            |read: &Read| read.parts.iter().all(|(i, a, _)| client.machine.is_current(si(*i), *a));
        // Rule: ReadAttempt
        if client.read.as_ref().is_some_and(|read| !current(read)) {
            client.read = None;
            self.cover("a read is started over");
        }
        self.read_again(s);
        self.check_kept(s)
    }

    /// Without the rule ReadAttempt a read goes on in the new attach of a shard that has not
    /// answered.
    fn read_again(&mut self, s: usize) {
        let client = &mut self.clients[s];
        let Some(read) = client.read.as_mut().filter(|_| !self.rules.on(Rule::ReadAttempt)) else {
            return;
        };
        for (i, attach, _) in read.parts.iter_mut().filter(|part| part.2.is_none()) {
            let Some(token) =
                client.machine.read_token(si(*i)).filter(|token| token.attach != *attach)
            else {
                continue;
            };
            *attach = token.attach;
            let request = token.request(object(read.object), 0, (SECTOR * SECTORS) as u32);
            self.net[s][*i].req.push_back(Msg::Read(read.id, request));
        }
    }

    /// A session takes a message.
    pub fn reply(&mut self, s: usize, i: usize, rep: Rep) -> Check {
        match rep {
            Rep::Ack(ack) => self.clients[s].machine.ack(self.now, si(i), &ack),
            Rep::Val { id, attach, tags } => {
                let any = !self.rules.on(Rule::ReplyAid); // Rule: ReplyAid
                let Some(read) = self.clients[s].read.as_mut().filter(|r| r.id == id) else {
                    return Ok(());
                };
                let Some(part) =
                    read.parts.iter_mut().find(|p| p.0 == i && (p.1.get() == attach || any))
                else {
                    return Ok(());
                };
                part.2 = tags;
                if tags.is_none() {
                    self.clients[s].read = None;
                } else {
                    self.check_read(s)?;
                }
            }
        }
        self.pump(s)
    }

    fn check_read(&mut self, s: usize) -> Check {
        let Some(read) =
            self.clients[s].read.take_if(|read| read.parts.iter().all(|part| part.2.is_some()))
        else {
            return Ok(());
        };
        let piece = |i: usize| read.parts.iter().find(|part| part.0 == i).and_then(|part| part.2);
        let xor = |a: Tags, b: Tags| -> Tags { std::array::from_fn(|at| a[at] ^ b[at]) };
        let (a, b, p) = (piece(0), piece(1), piece(2));
        let data = [a.or_else(|| Some(xor(b?, p?))), b.or_else(|| Some(xor(a?, p?)))];
        for (got, want) in data.iter().zip(&read.want) {
            if got.is_some_and(|got| got != *want) {
                let from: Vec<usize> = read.parts.iter().map(|part| part.0).collect();
                return Err(format!(
                    "order: session {s} reads {got:x?} of object {} from {from:?}, not {want:x?}",
                    read.object
                ));
            }
        }
        self.cover("read");
        // the kernel's page locks keep reads and the same mount's writes apart
        let unwritten = self.ghost.order[read.object]
            .last()
            .is_none_or(|last| last.session != s || last.seq < read.begun);
        if data.iter().all(Option::is_some)
            && unwritten
            && self.may_use(s, read.object, LeaseMode::Read)
        {
            self.clients[s].leases.files[read.object].cached = Some(read.want);
        }
        Ok(())
    }

    /// May it start a read there, from these shards?
    pub fn may_read(&self, s: usize, o: usize, mask: u32) -> bool {
        let client = &self.clients[s];
        let readable = client.machine.readable();
        let lease = self.may_use(s, o, LeaseMode::Read);
        lease && client.read.is_none() && shards(mask).all(|i| readable.contains(si(i)))
    }

    /// Starts a read.
    pub fn read(&mut self, s: usize, o: usize, mask: u32) {
        self.reads += 1;
        let (id, want) = (self.reads, self.content(o).data);
        let mut parts = Vec::new();
        for i in shards(mask) {
            let Some(token) = self.clients[s].machine.read_token(si(i)) else { return };
            let request = token.request(object(o), 0, (SECTOR * SECTORS) as u32);
            self.net[s][i].req.push_back(Msg::Read(id, request));
            parts.push((i, token.attach, None));
        }
        self.clients[s].read =
            Some(Read { id, object: o, begun: self.clients[s].writes + 1, want, parts });
    }

    /// Writes.
    pub fn write(&mut self, s: usize, o: usize, v: u32) -> Check {
        let mut bits = v;
        let mut draw = |n: u32| {
            let x = bits % n;
            bits /= n;
            x as usize
        };
        let op = match draw(8) {
            0 if self.bounds.ops => [Op::Punch, Op::Truncate, Op::Delete, Op::Write][draw(4)],
            _ => Op::Write,
        };
        let all = ShardSet::first(N as u8);
        let touch = if op == Op::Write {
            [all, all.without(si(0)), all.without(si(1))][draw(3)]
        } else {
            all
        };
        let from = draw(SECTORS as u32);
        let to = from + 1 + draw((SECTORS - from) as u32);
        let range = match op {
            Op::Truncate => from..SECTORS,
            Op::Delete => 0..SECTORS,
            _ => from..to,
        };
        let seq = self.clients[s].writes + 1;
        let mut tags = [[0; SECTORS]; 2];
        if op == Op::Write {
            let fresh = |i: usize, at: usize| {
                1 << 60 | (s as u64 + 1) << 40 | seq << 20 | (i as u64) << 8 | (at as u64 + 1)
            };
            for (i, tags) in tags.iter_mut().enumerate() {
                range
                    .clone()
                    .for_each(|at| tags[at] = fresh(i, at).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            }
        }
        let end = if op == Op::Delete { 0 } else { 1 + draw(4096) as u64 };
        let effect = Effect { session: s, seq, op, range: range.clone(), touch, tags, end };
        let mut content = self.content(o);
        content.take(&effect);
        let pieces = touch.iter().map(|i| {
            let piece = content.piece(usize::from(i.get()));
            let data = if op == Op::Write {
                sector_bytes(piece[range.clone()].iter().copied())
            } else {
                Default::default()
            };
            let length = if matches!(op, Op::Write | Op::Punch) { range.len() * SECTOR } else { 0 };
            let offset = if op == Op::Delete { 0 } else { (range.start * SECTOR) as u64 };
            (i, Piece { offset, length: length as u32, data, data_crc: None })
        });
        let write = NewWrite { object: object(o), op, logical_end: end, pieces: pieces.collect() };
        if let Ok(got) = self.clients[s].machine.write(self.now, write) {
            assert_eq!(got, Seq::new(seq));
            (self.clients[s].writes, self.clients[s].last[o]) = (seq, seq);
            let file = &mut self.clients[s].leases.files[o];
            file.holder.write_begins();
            file.cached = file.cached.map(|_| content.data);
            self.note(|| {
                format!(
                    "session {s}'s write {seq}: {op:?} {range:?} of object {o}, shards {touch:?}"
                )
            });
            self.ghost.order[o].push(effect);
        }
        self.pump(s)
    }
}

/// The shards of a mask.
pub fn shards(mask: u32) -> impl Iterator<Item = usize> {
    (0..N).filter(move |i| mask >> i & 1 == 1)
}
