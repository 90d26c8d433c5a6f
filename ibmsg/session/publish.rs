// SPDX-License-Identifier: GPL-2.0

//! What programs publish, and to what they subscribe.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    End,
    Side, //
};
use crate::{
    channel::{
        Ask,
        Chan,
        Serving, //
    },
    publish::{
        Follower,
        Logs, //
    },
    types::now,
};

impl Follower for End {
    fn serve(&self) {
        let _ = self.change(Chan::has_news);
    }
}

impl End {
    /// The other program may subscribe to these logs, once the channel is accepted.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn serves(&self, logs: &Arc<Logs>) -> Result {
        let who: Arc<dyn Follower> = Arc::new(self.clone(), GFP_KERNEL_ACCOUNT)?;
        let serving = KBox::new(Serving::new(logs.clone(), who), GFP_KERNEL_ACCOUNT)?;
        let _ = self.with(|chan| chan.serves(serving));
        Ok(())
    }
}

impl Side {
    /// The program subscribes, or wants no more.
    ///
    /// # Errors
    ///
    /// See [`Chan::ask`].
    pub(crate) fn ask(&self, id: u32, ask: &mut Ask) -> Result {
        self.change(id, |chan| chan.ask(ask, now())).ok_or(EPIPE)?
    }
}
