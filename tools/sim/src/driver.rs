// SPDX-License-Identifier: GPL-2.0

//! The driver of a disk on top of the client's session: builds requests, and opens the disk on the
//! server again.
//!
//! A request is built and submitted in steps, and anything may happen between two of them: the
//! driver reads the phase of the session generation, then the queue state, then the connected
//! paths; a request that no path takes goes on the requeue list.

use ibnbd_proto::state::{QueueState, Standing};
use ibtrs_proto::errno::Errno;
use ibtrs_proto::failover::{Call, Entry, PhaseCheck};
use ibtrs_proto::handshake::RspExt;

use crate::client::Slot;
use crate::net::Io;
use crate::schedule::{Kind, Schedule, Time, MS};
use crate::world::{Bug, Ev, World};

/// A step of a request on its way from the driver to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Read the queue state.
    QueueState,
    /// Look at the set of paths.
    Submit,
    /// Put it on the requeue list.
    Requeue,
}

/// The disk as its driver has it.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Requests that wait for a tag.
    pub queue: Vec<u16>,
    /// Number under which the disk is open; 0 before the first connect.
    device: u32,
    standing: Standing,
    queue_state: QueueState,
    /// How often the server has lost the session.
    phase: u32,
    /// In which of these generations the server was asked to open it.
    asking: Option<u32>,
    timer: u32,
    /// It is to be asked once more.
    again: bool,
    steps: u64,
}

impl Disk {
    pub(crate) fn new(sch: &Schedule) -> Self {
        Self {
            queue: Vec::with_capacity(sch.requests.len()),
            device: 0,
            standing: Standing::Open,
            queue_state: QueueState::Live,
            phase: 0,
            asking: None,
            timer: 0,
            again: false,
            steps: 0,
        }
    }

    /// The session is connected: the first time, the disk is opened.
    pub(crate) fn first_connected(&mut self, ext: Option<RspExt>) {
        if self.device == 0 {
            // As the server counts them.
            self.device = ext.map_or(1, |ext| {
                let boot = u128::from_le_bytes(ext.server_run) as u32;
                boot << 16 | ext.session_gen
            });
        }
    }
}

impl World<'_> {
    /// Begins with requests, as long as there are tags.
    pub(crate) fn dispatch(&mut self) {
        while self.client.disk.device != 0 && !self.client.disk.queue.is_empty() {
            let mut io_tags = 1..=usize::from(self.sch.depth);
            let free = |t: &usize| self.client.tags[*t].slot == Slot::Free;
            let Some(t) = io_tags.find(free) else {
                return;
            };
            let req = self.client.disk.queue.remove(0);
            let r = self.reqs[usize::from(req)];
            let phase = self.client.phase;
            let tag = &mut self.client.tags[t];
            tag.io = Io {
                tag: t as u8,
                req,
                sector: r.sector,
                write: r.write,
                device: 0,
            };
            tag.entry = Entry::NEW;
            tag.slot = Slot::Driver;
            tag.built = phase;
            self.then(t, Step::QueueState);
        }
    }

    /// The next step of a request: at once, or much later if its processor has other things to do.
    fn then(&mut self, t: usize, step: Step) {
        match self.kept_waiting() {
            0 => self.driver_step(t, step),
            lag => self.at(self.now + lag, Ev::Driver { tag: t as u8, step }),
        }
    }

    /// How long a processor does other things before it goes on with the driver's.
    fn kept_waiting(&mut self) -> Time {
        let slow = |k: &Kind| match *k {
            Kind::SlowDriver { extra, .. } => Some(extra),
            _ => None,
        };
        let Some(extra) = self.during(slow) else {
            return 0;
        };
        self.client.disk.steps += 1;
        let bits = self.chance(18, self.client.disk.steps);
        (bits & 1) * ((bits >> 8) % extra)
    }

    pub(crate) fn driver_step(&mut self, t: usize, step: Step) {
        match step {
            Step::QueueState => self.read_queue_state(t),
            Step::Submit => self.submit(t),
            Step::Requeue => self.requeue(t),
        }
    }

    fn read_queue_state(&mut self, t: usize) {
        match self.client.disk.queue_state {
            QueueState::Live => {
                self.client.tags[t].io.device = self.client.disk.device;
                self.then(t, Step::Submit);
            }
            QueueState::Quiesced => self.client.tags[t].slot = Slot::Queued,
            QueueState::Failing => self.end(t, Err(Errno::EIO), 0),
        }
    }

    fn submit(&mut self, t: usize) {
        if self.bug == Some(Bug::LatePhase) {
            self.client.tags[t].built = self.client.phase;
        }
        let mut checked = self.client.set_phase.check(self.client.tags[t].built);
        if self.bug == Some(Bug::NoPhaseCheck) {
            checked = PhaseCheck::Submit;
        }
        match checked {
            PhaseCheck::Stale => self.build_again(t),
            PhaseCheck::Submit if self.post(t) => {}
            PhaseCheck::Submit | PhaseCheck::Requeue => self.then(t, Step::Requeue),
        }
    }

    fn requeue(&mut self, t: usize) {
        let tag = self.client.tags[t];
        match self.client.fo.may_requeue(tag.built) {
            Err(Errno::ESTALE) if self.bug != Some(Bug::RequeueStale) => self.build_again(t),
            Err(errno) if errno != Errno::ESTALE => self.end(t, Err(errno), 0),
            _ => {
                let tag = &mut self.client.tags[t];
                tag.entry = self.client.fo.unsent(tag.entry);
                tag.slot = Slot::Requeue;
                self.requeue_all();
            }
        }
    }

    /// Puts a request back, before those that wait.
    fn build_again(&mut self, t: usize) {
        self.client.stale += 1;
        let tag = &mut self.client.tags[t];
        tag.slot = Slot::Free;
        self.client.disk.queue.insert(0, tag.io.req);
        self.at(self.now, Ev::Dispatch);
    }

    /// A request has ended.
    pub(crate) fn end(&mut self, t: usize, result: Result<u32, Errno>, arrival: u32) {
        let io = self.client.tags[t].io;
        if io.req == Io::OPEN {
            self.client.tags[t].slot = Slot::Free;
            let lag = self.chance(16, self.now) % MS + self.kept_waiting();
            return self.at(self.now + lag, Ev::Opened { result });
        }
        if result == Err(Errno::ESTALE) {
            return self.build_again(t);
        }
        self.client.tags[t].slot = Slot::Free;
        self.complete(io, result, arrival);
        self.at(self.now, Ev::Dispatch);
    }

    // --- calls of the driver

    /// Tells the driver what there is to tell, one call at a time.
    pub(crate) fn calls(&mut self) {
        if let Some(call) = self.client.fo.call() {
            let lag = self.chance(15, self.now) % MS + self.kept_waiting();
            self.at(self.now + lag, Ev::Call(call));
        }
    }

    pub(crate) fn called(&mut self, call: Call) {
        match call {
            Call::Down => {}
            Call::Up {
                session_lost: false,
            } => self.open_soon(),
            Call::Up { session_lost: true } => {
                self.client.session_lost += 1;
                let disk = &mut self.client.disk;
                disk.phase += 1;
                disk.standing = Standing::Reopening;
                disk.queue_state = disk.standing.queue_state();
                self.open_soon();
            }
        }
        let lag = self.chance(19, self.now) % (2 * MS);
        self.at(self.now + lag, Ev::CallReturns);
    }

    pub(crate) fn call_returns(&mut self) {
        self.client.fo.returned();
        self.client.phase = self.client.fo.phase();
        self.client.set_phase = self.client.fo.phase();
        self.requeue_all();
        self.calls();
    }

    // --- opening the disk again

    fn open_soon(&mut self) {
        if self.client.disk.standing.is_retried() {
            self.open_in(self.chance(25, self.now) % MS);
        }
    }

    fn open_in(&mut self, delay: Time) {
        self.client.disk.timer += 1;
        let timer = self.client.disk.timer;
        self.at(self.now + delay, Ev::TryOpen { timer });
    }

    pub(crate) fn try_open(&mut self, timer: u32) {
        let disk = &mut self.client.disk;
        if disk.timer != timer || disk.standing == Standing::Open {
            return;
        }
        if disk.asking.is_some() {
            disk.again = true;
            return;
        }
        disk.asking = Some(disk.phase);
        let tag = &mut self.client.tags[0];
        tag.io = Io {
            tag: 0,
            req: Io::OPEN,
            ..tag.io
        };
        tag.entry = Entry::ADMIN;
        tag.slot = Slot::Driver;
        // Such messages do not wait for a path.
        if !self.post(0) {
            self.end(0, Err(Errno::ENOTCONN), 0);
        }
    }

    pub(crate) fn opened(&mut self, result: Result<u32, Errno>) {
        let disk = &mut self.client.disk;
        let asked = disk.asking.take();
        let late = asked != Some(disk.phase) && self.bug != Some(Bug::OldAnswer);
        match result {
            Ok(device) if !late => {
                disk.standing = Standing::answered(Ok(()));
                disk.queue_state = disk.standing.queue_state();
                disk.device = device;
                self.dispatch_queued();
            }
            _ if std::mem::take(&mut disk.again) => self.open_in(0),
            // It is asked when the session comes back.
            _ if !self.client.fo.is_connected() => {}
            _ => self.open_in(20 * MS),
        }
    }

    /// Dispatches the queued requests again.
    fn dispatch_queued(&mut self) {
        for t in 0..self.client.tags.len() {
            let tag = &mut self.client.tags[t];
            if tag.slot == Slot::Queued {
                tag.slot = Slot::Free;
                self.client.disk.queue.insert(0, tag.io.req);
            }
        }
        self.at(self.now, Ev::Dispatch);
    }
}
