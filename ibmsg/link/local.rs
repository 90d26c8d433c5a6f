// SPDX-License-Identifier: GPL-2.0

//! The link between the programs of one machine.
//!
//! Frames pass through memory. There is one connection at a time. It is never lost, except in tests
//! ([`Local::new`]) and after a breach of the protocol, and then comes back a little later.

use ibmsg_proto::channel::Conn;
use kernel::{
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    }, //
};
use kx::{
    deque::Deque,
    work::{
        DelayedWork,
        Queue,
        WorkItem, //
    }, //
};

use super::{
    Arrived,
    Connection,
    Frame,
    Upper, //
};

/// Bytes of a frame.
const FRAME: usize = 4096;
/// Frames that may be on their way in one direction.
const RECEIVES: usize = 64;
/// Buffers for frames that are kept.
const KEPT: usize = 8;
/// Frames that arrive before other work of the machine gets its turn.
const BATCH: usize = 32;
/// For how long a frame waits for memory, and a lost connection is lost, in milliseconds.
const PAUSE_MS: u32 = 10;

/// The work items: frames to the client's side, to the server's side, and the connection itself.
const TO_CLIENT: u64 = 0;
const TO_SERVER: u64 = 1;
const CONTROL: u64 = 2;

/// Frames in one direction.
struct Lane {
    frames: Deque<(Frame, usize)>,
    kept: Deque<KVec<u8>>,
}

struct State {
    /// The connection that there is.
    on: Option<Conn>,
    /// The last connection.
    epoch: u32,
    /// Frames that are delivered until the connection is lost, in tests. Those that were sent do not
    /// count: where sending is faster, none would arrive.
    left: Option<u32>,
    /// The connection has failed.
    has_failed: bool,
    lanes: [Lane; 2],
}

/// The link.
#[pin_data]
pub(crate) struct Local {
    /// The client's side and the server's.
    uppers: [Arc<dyn Upper>; 2],
    /// Held while the connection changes.
    #[pin]
    changing: Mutex<bool>,
    #[pin]
    state: SpinLockIrq<State>,
    /// In tests: the connection is lost after about this many frames. 0: never.
    loss: u32,
    #[pin]
    to_client: DelayedWork<Self, TO_CLIENT>,
    #[pin]
    to_server: DelayedWork<Self, TO_SERVER>,
    #[pin]
    control: DelayedWork<Self, CONTROL>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self, TO_CLIENT>> for Local { self.to_client }
    impl HasWork<DelayedWork<Self, TO_SERVER>> for Local { self.to_server }
    impl HasWork<DelayedWork<Self, CONTROL>> for Local { self.control }
}

impl WorkItem<TO_CLIENT> for Local {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Some(ms) = this.deliver(0) {
            this.to_client.enqueue_in(this.clone(), ms);
        }
    }
}

impl WorkItem<TO_SERVER> for Local {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Some(ms) = this.deliver(1) {
            this.to_server.enqueue_in(this.clone(), ms);
        }
    }
}

impl WorkItem<CONTROL> for Local {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let is_closed = this.changing.lock();
        if *is_closed {
            return;
        }
        match this.disconnect() {
            true => {
                this.control.enqueue_in(this.clone(), PAUSE_MS);
            }
            false => this.connect(),
        }
    }
}

/// One side of the connection.
struct Side {
    link: Arc<Local>,
    id: Conn,
    /// The other side.
    to: usize,
}

impl Local {
    /// Makes the link between two sides, with its first connection. In tests, each connection is lost after
    /// about `loss` frames, with those that are on their way.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(
        queue: Arc<Queue>,
        uppers: [Arc<dyn Upper>; 2],
        loss: u32,
    ) -> Result<Arc<Self>> {
        let lane = || {
            let mut lane = Lane {
                frames: Deque::new(),
                kept: Deque::new(),
            };
            // One more for a frame that is put back.
            lane.frames.reserve(RECEIVES + 1, GFP_KERNEL)?;
            lane.kept.reserve(KEPT, GFP_KERNEL)?;
            Ok::<_, Error>(lane)
        };
        let state = State {
            on: None,
            epoch: 0,
            left: None,
            has_failed: false,
            lanes: [lane()?, lane()?],
        };
        let (to_server, control) = (queue.clone(), queue.clone());
        let this = Arc::pin_init(
            pin_init!(Self {
                uppers,
                changing <- new_mutex!(false, "Local::changing"),
                state <- new_spinlock_irq!(state, "Local::state"),
                loss,
                to_client <- kx::new_delayed_work!(queue, "Local::to_client"),
                to_server <- kx::new_delayed_work!(to_server, "Local::to_server"),
                control <- kx::new_delayed_work!(control, "Local::control"),
            }),
            GFP_KERNEL,
        )?;
        let changing = this.changing.lock();
        this.connect();
        drop(changing);
        Ok(this)
    }

    /// Makes a connection; the caller holds `changing`.
    fn connect(self: &Arc<Self>) {
        let mut state = self.state.lock();
        // One connection in 10 ms: that many never come.
        state.epoch = state.epoch.wrapping_add(1);
        let id = Conn {
            epoch: state.epoch,
            cid: 0,
        };
        state.on = Some(id);
        state.has_failed = false;
        // Not the same number each time, so that other frames are lost.
        let vary = state.epoch.wrapping_mul(2_654_435_761) >> 16;
        state.left = match self.loss {
            0 => None,
            loss => Some(loss / 2 + vary % loss + 1),
        };
        drop(state);
        // CAST: A small constant.
        let receives = RECEIVES as u32;
        // The server comes first, as the client sends at once.
        for side in [1, 0] {
            let connection = Arc::new(
                Side {
                    link: self.clone(),
                    id,
                    to: 1 - side,
                },
                GFP_KERNEL,
            );
            let result = match (connection, self.uppers.get(side)) {
                (Ok(connection), Some(upper)) => upper.connected(id, connection, receives),
                _ => Err(ENOMEM),
            };
            if result.is_err() {
                return self.fail(id);
            }
        }
    }

    /// Ends the connection, if it has failed; the caller holds `changing`. Returns whether it has.
    fn disconnect(&self) -> bool {
        let mut state = self.state.lock();
        let Some(id) = state.on.filter(|_| state.has_failed) else {
            return false;
        };
        state.on = None;
        let State { lanes, .. } = &mut *state;
        for lane in lanes {
            while lane.frames.pop_front().is_some() {}
        }
        drop(state);
        for upper in &self.uppers {
            upper.lost(id);
        }
        true
    }

    fn fail(self: &Arc<Self>, id: Conn) {
        let mut state = self.state.lock();
        if state.on == Some(id) {
            state.has_failed = true;
            drop(state);
            self.control.enqueue(self.clone());
        }
    }

    /// Ends the connection for good.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn close(self: &Arc<Self>) {
        let mut changing = self.changing.lock();
        *changing = true;
        self.state.lock().has_failed = true;
        self.disconnect();
        drop(changing);
        self.control.disable_sync();
        self.to_client.disable_sync();
        self.to_server.disable_sync();
    }

    fn wake(self: &Arc<Self>, side: usize) {
        match side {
            0 => self.to_client.enqueue(self.clone()),
            _ => self.to_server.enqueue(self.clone()),
        };
    }

    /// Delivers frames to a side. Returns after how many milliseconds to go on; `None`: when there is
    /// another frame.
    fn deliver(self: &Arc<Self>, side: usize) -> Option<u32> {
        let upper = self.uppers.get(side)?;
        for _ in 0..BATCH {
            let mut state = self.state.lock();
            let id = state.on?;
            if let Some(left) = &mut state.left {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    // Whatever is on its way is lost.
                    drop(state);
                    self.fail(id);
                    return None;
                }
            }
            let (frame, mut done) = state.lanes.get_mut(side)?.frames.pop_front()?;
            drop(state);
            let bytes = frame.bytes.get(..frame.len).unwrap_or(&[]);
            let arrived = upper.arrived(id, bytes, &mut done);
            let mut state = self.state.lock();
            // Otherwise the frame is dropped, after the lock.
            let is_on = state.on == Some(id);
            let lane = state.lanes.get_mut(side)?;
            match arrived {
                Arrived::Done => {
                    let rest = lane.kept.push_back(frame.bytes);
                    drop(state);
                    drop(rest);
                }
                Arrived::Later if is_on => {
                    let rest = lane.frames.push_front((frame, done));
                    drop(state);
                    drop(rest);
                    return Some(PAUSE_MS);
                }
                Arrived::Later => {
                    drop(state);
                }
            }
        }
        Some(0)
    }
}

impl Connection for Side {
    fn room(&self) -> Option<Frame> {
        let mut state = self.link.state.lock();
        let kept = state.lanes.get_mut(self.to)?.kept.pop_front();
        drop(state);
        Frame::new(kept, FRAME)
    }

    fn send(&self, frame: Frame) {
        let mut state = self.link.state.lock();
        if state.on != Some(self.id) || state.has_failed {
            return;
        }
        let is_sent = match state.lanes.get_mut(self.to) {
            // No more than there are credits for.
            Some(lane) if lane.frames.len() < RECEIVES => lane.frames.push_back((frame, 0)).is_ok(),
            _ => false,
        };
        drop(state);
        match is_sent {
            true => self.link.wake(self.to),
            false => self.link.fail(self.id),
        }
    }

    fn fail(&self, why: &str) {
        pr_warn!("connection {} is given up: {}\n", self.id.epoch, why);
        self.link.fail(self.id);
    }
}
