// SPDX-License-Identifier: GPL-2.0

//! The end of a path.

use crate::path::Path;
use ibtrs_proto::fsm::server_path::{
    Event,
    State, //
};
use kernel::sync::Arc;
use kx::work::WorkItem;

impl Path {
    /// Ends the connections and waits for the requests in service.
    ///
    /// Nobody else waits for this: other paths, other sessions and admissions go
    /// on if a disk takes for ever.
    fn tear_down(self: &Arc<Self>) {
        self.beat.disable_sync();
        self.zombie.disable_sync();
        self.fences.disable_sync();
        self.hide();
        let mut cons = self.cons.lock();
        let qps = core::mem::take(&mut cons.qps);
        let removal = cons.removal.take();
        drop(cons);
        drop(removal);
        for qp in qps.iter().flatten() {
            // The client is to learn of all at once; closing waits for each.
            qp.disconnect();
        }
        for qp in qps.iter().flatten() {
            qp.close();
        }
        // Nothing comes in any more.
        self.drop_waiting();
        // Waits for the requests that are with the service.
        drop(qps);
        self.cons.lock().info_rsp = None;
    }
}

/// First the end of the path, then of the session if it was the last one.
impl WorkItem<4> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        match this.state() {
            State::Closed => this.session.path_gone(&this),
            _ => {
                this.tear_down();
                this.event(Event::CloseDone);
            }
        }
    }
}
