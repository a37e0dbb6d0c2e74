//! Single steps of each machine, and clients and servers together over a network that keeps no
//! order.

use super::*;
use fastrand::Rng;
use proptest::prelude::*;
use protocol::{ShardIndex, ShardSet};
use std::time::{Duration, Instant};

const SERVERS: u8 = 3;
const IDLE: Duration = Duration::from_secs(1);

fn owner(client: u64) -> LockOwner {
    LockOwner { client: SessionId::new(client), key: 0 }
}

fn lock(client: u64, start: u64, end: u64, access: Access) -> Lock {
    let range = LockRange::new(start, end).expect("not empty");
    Lock { owner: owner(client), file: Gfid::new(1), range, access }
}

fn table<T>(clients: u64) -> LockTable<T> {
    let mut table = LockTable::default();
    (0..clients).for_each(|client| table.join(SessionId::new(client)));
    table
}

#[test]
fn tries_are_refused_where_ranges_and_access_conflict() {
    let mut table = table::<u64>(3);
    assert_eq!(table.try_lock(lock(0, 0, 10, Access::Exclusive)), Ok(()));
    assert_eq!(table.try_lock(lock(1, 10, 20, Access::Shared)), Ok(()));
    assert_eq!(
        table.try_lock(lock(2, 10, 20, Access::Shared)),
        Ok(()),
        "shared locks are held together"
    );
    assert_eq!(
        table.try_lock(lock(0, 0, 5, Access::Exclusive)),
        Ok(()),
        "an owner does not conflict with itself"
    );
    let refused = table.try_lock(lock(2, 9, 11, Access::Exclusive));
    assert_eq!(
        refused,
        Err(Refused::Taken([owner(0), owner(1)].into_iter().collect())),
        "each holder once"
    );
    assert_eq!(
        table.try_lock(lock(9, 30, 40, Access::Shared)),
        Err(Refused::NoClient(SessionId::new(9)))
    );
    table.check_invariants();
    let whole = Lock { range: LockRange::WHOLE, ..lock(2, 0, 1, Access::Exclusive) };
    assert!(matches!(table.try_lock(whole), Err(Refused::Taken(_))));
    assert_eq!(LockRange::new(3, 3), None);
}

#[test]
fn waiters_are_served_in_turn_and_not_overtaken() {
    let mut table = table::<u64>(4);
    assert_eq!(table.lock(lock(0, 0, 10, Access::Shared), 0), Waited::Granted(0));
    assert_eq!(
        table.lock(lock(1, 0, 10, Access::Exclusive), 1),
        Waited::Queued([owner(0)].into_iter().collect())
    );
    assert!(
        matches!(table.try_lock(lock(2, 0, 10, Access::Shared)), Err(Refused::Taken(_))),
        "must not overtake"
    );
    assert!(
        matches!(table.lock(lock(2, 0, 10, Access::Shared), 2), Waited::Queued(holders) if holders.is_empty())
    );
    assert!(matches!(table.lock(lock(3, 5, 15, Access::Shared), 3), Waited::Queued(_)));
    table.check_invariants();
    assert_eq!(table.unlock(lock(1, 0, 10, Access::Exclusive)), Err(NotHeld), "it only waits");
    let grants = table.unlock(lock(0, 0, 10, Access::Shared)).expect("held");
    assert_eq!((grants.len(), grants[0].token, grants[0].is_contended), (1, 1, true));
    let grants = table.unlock(lock(1, 0, 10, Access::Exclusive)).expect("held");
    let got: Vec<(u64, bool)> =
        grants.iter().map(|grant| (grant.token, grant.is_contended)).collect();
    assert_eq!(got, [(2, false), (3, false)], "shared locks are granted together");
    table.check_invariants();
}

#[test]
fn what_a_lost_client_held_is_free_and_what_it_still_sends_takes_nothing() {
    let mut table = table::<u64>(3);
    table.try_lock(lock(0, 0, 10, Access::Exclusive)).expect("free");
    assert!(matches!(table.lock(lock(1, 0, 10, Access::Exclusive), 1), Waited::Queued(_)));
    assert!(matches!(table.lock(lock(2, 0, 10, Access::Exclusive), 2), Waited::Queued(_)));
    assert!(table.leave(SessionId::new(1)).is_empty(), "one that waits gives nobody anything");
    let grants = table.leave(SessionId::new(0));
    assert_eq!(grants.iter().map(|grant| grant.token).collect::<Vec<_>>(), [2]);
    assert_eq!(table.lock(lock(0, 20, 30, Access::Shared), 7), Waited::NoClient(7));
    assert_eq!(table.unlock(lock(0, 0, 10, Access::Exclusive)), Err(NotHeld));
    table.check_invariants();
    table.unlock(lock(2, 0, 10, Access::Exclusive)).expect("held");
    assert!(table.is_empty());
}

fn shard(index: u8) -> ShardIndex {
    ShardIndex::new(index)
}

fn asked(requests: &Requests) -> Vec<(u8, Ask)> {
    requests.iter().map(|request| (request.server.get(), request.ask)).collect()
}

#[test]
fn a_refusal_anywhere_leads_to_phase_two() {
    let mut lock = Acquisition::new(ShardSet::first(SERVERS));
    assert_eq!(asked(&lock.acquire()), [(0, Ask::TryLock), (1, Ask::TryLock), (2, Ask::TryLock)]);
    assert_eq!(lock.on_reply(shard(2), true), Ok(Requests::new()));
    assert_eq!(
        lock.on_reply(shard(2), true),
        Err(Unexpected { server: shard(2) }),
        "it has answered"
    );
    assert_eq!(lock.on_reply(shard(0), false), Ok(Requests::new()));
    let undo = lock.on_reply(shard(1), true).expect("asked");
    assert_eq!(asked(&undo), [(1, Ask::Unlock), (2, Ask::Unlock)]);
    assert_eq!(lock.on_reply(shard(1), true), Ok(Requests::new()));
    assert_eq!(asked(&lock.on_reply(shard(2), true).expect("asked")), [(0, Ask::Lock)]);
    assert_eq!(
        lock.on_reply(shard(0), false),
        Err(Unexpected { server: shard(0) }),
        "a wait is not refused"
    );
    assert_eq!(asked(&lock.on_reply(shard(0), true).expect("asked")), [(1, Ask::Lock)]);
    assert_eq!(asked(&lock.on_reply(shard(1), true).expect("asked")), [(2, Ask::Lock)]);
    assert!(!lock.is_held());
    assert_eq!(lock.on_reply(shard(2), true), Ok(Requests::new()));
    assert!(lock.is_held());
    assert_eq!(lock.release().len(), 3);
    (0..SERVERS)
        .for_each(|server| assert_eq!(lock.on_reply(shard(server), true), Ok(Requests::new())));
    assert!(lock.is_free());
    let counts = LockCounts { acquisitions: 1, fallbacks: 1, round_trips: 6, requests: 11 };
    assert_eq!(lock.counts(), counts);
}

/// Answers everything that is asked, granted; what starts.
fn grant_all(file: &mut FileLock<u32>, mut actions: Actions<u32>) -> Vec<u32> {
    let mut started = Vec::new();
    while !actions.is_empty() {
        let mut next = Actions::new();
        for action in actions {
            match action {
                Action::Start(operation) => started.push(operation),
                Action::Ask(request, _) => {
                    let reply = Reply { is_granted: true, is_contended: false };
                    next.extend(file.on_reply(request.server, reply).expect("asked"));
                }
            }
        }
        actions = next;
    }
    started
}

#[test]
fn each_policy_keeps_the_lock_for_as_long_as_it_says() {
    let now = Instant::now();
    let servers = ShardSet::first(SERVERS);
    let run = |policy| {
        let mut file = FileLock::new(policy, servers);
        let mut started = Vec::new();
        for operation in 0..2 {
            let actions = file.submit(operation, Access::Shared);
            started.extend(grant_all(&mut file, actions));
        }
        let started_beside = started.len();
        while let Some(operation) = started.pop() {
            let actions = file.finish(Access::Shared, now);
            started.extend(grant_all(&mut file, actions));
            assert!(operation < 2);
        }
        (file, started_beside)
    };
    let (file, beside) = run(Policy::EveryOperation);
    assert_eq!(
        (file.counts().acquisitions, file.counts().round_trips, beside, file.is_free()),
        (2, 4, 1, true)
    );
    let (mut file, beside) = run(Policy::Eager { idle: IDLE });
    assert_eq!(
        (file.counts().acquisitions, file.counts().round_trips, beside, file.is_free()),
        (1, 1, 2, false)
    );
    assert!(file.expire(now).is_empty());
    let actions = file.expire(now + IDLE);
    grant_all(&mut file, actions);
    assert!(file.is_free());
    let (mut file, beside) = run(Policy::AtOpen);
    assert_eq!((file.counts().acquisitions, beside), (1, 2));
    assert!(file.expire(now + IDLE).is_empty());
    let actions = file.submit(2, Access::Exclusive);
    assert_eq!(
        grant_all(&mut file, actions),
        [2],
        "a shared lock is given back for an exclusive one"
    );
    assert_eq!(file.counts().round_trips, 3);
    assert!(file.on_wanted().is_empty(), "not before the write has ended");
    let actions = file.finish(Access::Exclusive, now);
    grant_all(&mut file, actions);
    assert!(file.is_free());
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
enum Message {
    Ask {
        from: usize,
        file: usize,
        request: Request,
        access: Access,
    },
    Reply {
        to: usize,
        file: usize,
        server: ShardIndex,
        reply: Reply,
    },
    Wanted {
        to: usize,
        file: usize,
    },
    /// The server sees that the client is gone.
    Gone {
        client: usize,
        server: ShardIndex,
    },
}

struct Client {
    files: Vec<FileLock<Access>>,
    /// Operations to submit, by file.
    left: Vec<(usize, Access)>,
    /// Operations under way.
    running: Vec<(usize, Access)>,
    /// Operations submitted that have not ended.
    open: usize,
    is_dead: bool,
}

/// Clients and servers, each message delivered in any order.
struct World {
    rng: Rng,
    policy: Policy,
    clients: Vec<Client>,
    servers: Vec<LockTable<usize>>,
    network: Vec<Message>,
    done: usize,
    now: Instant,
}

impl World {
    fn new(seed: u64, policy: Policy, clients: usize, files: usize, operations: usize) -> World {
        let mut rng = Rng::with_seed(seed);
        let mut client = || Client {
            files: (0..files).map(|_| FileLock::new(policy, ShardSet::first(SERVERS))).collect(),
            left: (0..operations)
                .map(|_| {
                    (
                        rng.usize(..files),
                        if rng.bool() { Access::Shared } else { Access::Exclusive },
                    )
                })
                .collect(),
            running: Vec::new(),
            open: 0,
            is_dead: false,
        };
        let clients: Vec<Client> = (0..clients).map(|_| client()).collect();
        let servers = (0..SERVERS).map(|_| table(clients.len() as u64)).collect();
        World { rng, policy, clients, servers, network: Vec::new(), done: 0, now: Instant::now() }
    }

    /// One step, drawn at random: a submission, the end of an operation, or a delivery. `false` if
    /// nothing can happen.
    fn step(&mut self) -> bool {
        let alive = |client: &&usize| !self.clients[**client].is_dead;
        let all: Vec<usize> = (0..self.clients.len()).collect();
        let submits =
            all.iter().filter(alive).filter(|client| !self.clients[**client].left.is_empty());
        let ends =
            all.iter().filter(alive).filter(|client| !self.clients[**client].running.is_empty());
        let (submits, ends): (Vec<usize>, Vec<usize>) =
            (submits.copied().collect(), ends.copied().collect());
        let choices = submits.len() + ends.len() + self.network.len();
        if choices == 0 {
            return false;
        }
        match self.rng.usize(..choices) {
            n if n < submits.len() => self.submit(submits[n]),
            n if n < submits.len() + ends.len() => self.end(ends[n - submits.len()]),
            n => {
                let message = self.network.swap_remove(n - submits.len() - ends.len());
                self.deliver(message);
            }
        }
        self.check();
        true
    }

    fn submit(&mut self, client: usize) {
        let Some((file, access)) = self.clients[client].left.pop() else { return };
        self.clients[client].open += 1;
        let actions = self.clients[client].files[file].submit(access, access);
        self.act(client, file, actions);
    }

    fn end(&mut self, client: usize) {
        let at = self.rng.usize(..self.clients[client].running.len());
        let (file, access) = self.clients[client].running.swap_remove(at);
        self.done += 1;
        self.clients[client].open -= 1;
        let actions = self.clients[client].files[file].finish(access, self.now);
        self.act(client, file, actions);
    }

    fn act(&mut self, client: usize, file: usize, actions: Actions<Access>) {
        for action in actions {
            match action {
                Action::Ask(request, access) => {
                    self.network.push(Message::Ask { from: client, file, request, access })
                }
                Action::Start(access) => self.clients[client].running.push((file, access)),
            }
        }
    }

    fn kill(&mut self, client: usize) {
        let dead = &mut self.clients[client];
        dead.is_dead = true;
        dead.left.clear();
        dead.running.clear();
        for server in 0..SERVERS {
            self.network.push(Message::Gone { client, server: shard(server) });
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Ask { from, file, request, access } => self.serve(from, file, request, access),
            Message::Gone { client, server } => {
                let grants =
                    self.servers[usize::from(server.get())].leave(SessionId::new(client as u64));
                self.tell(server, grants);
            }
            Message::Reply { to, .. } | Message::Wanted { to, .. } if self.clients[to].is_dead => {}
            Message::Reply { to, file, server, reply } => {
                let actions = self.clients[to].files[file].on_reply(server, reply).expect("asked");
                self.act(to, file, actions);
            }
            Message::Wanted { to, file } => {
                let actions = self.clients[to].files[file].on_wanted();
                self.act(to, file, actions);
            }
        }
    }

    fn serve(&mut self, from: usize, file: usize, request: Request, access: Access) {
        let Request { server, ask } = request;
        let range = LockRange::WHOLE;
        let lock = Lock { owner: owner(from as u64), file: Gfid::new(file as u128), range, access };
        let table = &mut self.servers[usize::from(server.get())];
        let reply = |is_granted| Message::Reply {
            to: from,
            file,
            server,
            reply: Reply { is_granted, is_contended: false },
        };
        let (answer, holders, grants) = match ask {
            Ask::TryLock => match table.try_lock(lock) {
                Ok(()) => (Some(reply(true)), Holders::new(), Vec::new()),
                Err(Refused::Taken(holders)) => (Some(reply(false)), holders, Vec::new()),
                Err(Refused::NoClient(_)) => (None, Holders::new(), Vec::new()),
            },
            Ask::Lock => match table.lock(lock, from) {
                Waited::Granted(_) => (Some(reply(true)), Holders::new(), Vec::new()),
                Waited::Queued(holders) => (None, holders, Vec::new()),
                Waited::NoClient(_) => (None, Holders::new(), Vec::new()),
            },
            Ask::Unlock => {
                (Some(reply(true)), Holders::new(), table.unlock(lock).unwrap_or_default())
            }
        };
        table.check_invariants();
        self.network.extend(answer);
        self.network
            .extend(holders.iter().map(|h| Message::Wanted { to: h.client.get() as usize, file }));
        self.tell(server, grants);
    }

    fn tell(&mut self, server: ShardIndex, grants: Vec<Grant<usize>>) {
        for Grant { lock, is_contended, token } in grants {
            let reply = Reply { is_granted: true, is_contended };
            self.network.push(Message::Reply {
                to: token,
                file: lock.file.get() as usize,
                server,
                reply,
            });
        }
    }

    /// Nobody writes a file that another client has an operation on; in one client, as the policy
    /// says.
    fn check(&self) {
        for (at, client) in self.clients.iter().enumerate() {
            for (file, access) in &client.running {
                let others = self.clients.iter().enumerate().filter(|(other, _)| *other != at);
                let beside =
                    others.flat_map(|(_, other)| &other.running).filter(|(other, _)| other == file);
                let is_alone = beside.clone().count() == 0;
                let is_shared = *access == Access::Shared
                    && beside.clone().all(|(_, other)| *other == Access::Shared);
                assert!(is_alone || is_shared, "two clients are at file {file}");
                let own = client.running.iter().filter(|(other, _)| other == file).count();
                match self.policy {
                    Policy::EveryOperation => assert!(is_alone && own == 1),
                    Policy::Eager { .. } => {
                        assert!(is_alone && (own == 1 || *access == Access::Shared))
                    }
                    Policy::AtOpen => {}
                }
            }
        }
    }

    /// Lets everything happen that can; then nobody waits any more.
    fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100_000, "the clients do not get on");
        }
        for client in self.clients.iter().filter(|client| !client.is_dead) {
            assert!(client.left.is_empty() && client.open == 0, "somebody waits for ever");
        }
    }

    fn expire(&mut self) {
        self.now += IDLE;
        for client in 0..self.clients.len() {
            for file in 0..self.clients[client].files.len() {
                if !self.clients[client].is_dead {
                    let actions = self.clients[client].files[file].expire(self.now);
                    self.act(client, file, actions);
                }
            }
        }
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::EveryOperation),
        Just(Policy::Eager { idle: IDLE }),
        Just(Policy::AtOpen)
    ]
}

/// Guards the properties below against worlds in which nobody meets anybody.
#[test]
fn clients_of_one_file_do_meet() {
    for policy in [Policy::EveryOperation, Policy::Eager { idle: IDLE }, Policy::AtOpen] {
        let mut fallbacks = 0;
        for seed in 0..20 {
            let mut world = World::new(seed, policy, 3, 1, 6);
            world.settle();
            fallbacks +=
                world.clients.iter().map(|client| client.files[0].counts().fallbacks).sum::<u64>();
        }
        assert!(fallbacks >= 20, "{policy:?}: only {fallbacks} locks were refused at first");
    }
}

proptest! {
    #[test]
    fn clients_exclude_each_other_get_on_and_leave_nothing(
        seed in any::<u64>(), policy in policies(), clients in 1usize..5, files in 1usize..3, operations in 1usize..8,
    ) {
        let mut world = World::new(seed, policy, clients, files, operations);
        world.settle();
        prop_assert_eq!(world.done, clients * operations);
        world.expire();
        world.settle();
        if policy == Policy::AtOpen {
            (0..clients).for_each(|client| world.kill(client));
            world.settle();
        }
        prop_assert!(world.servers.iter().all(LockTable::is_empty), "something is left held");
    }

    #[test]
    fn a_client_that_is_lost_holds_nobody_up(
        seed in any::<u64>(), policy in policies(), clients in 2usize..5, steps in 0usize..60,
    ) {
        let mut world = World::new(seed, policy, clients, 2, 6);
        for _ in 0..steps {
            world.step();
        }
        world.kill(0);
        world.settle();
        (1..clients).for_each(|client| world.kill(client));
        world.settle();
        prop_assert!(world.servers.iter().all(LockTable::is_empty), "something is left held");
    }
}
