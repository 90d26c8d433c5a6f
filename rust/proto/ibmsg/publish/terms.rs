// SPDX-License-Identifier: GPL-2.0

//! What a side says about subscriptions when a channel is opened.

/// The most subscriptions of [`PublishTerms`].
pub const MAX_SUBSCRIPTIONS: u16 = 1024;

/// Subscriptions on a channel. OPEN has the most that the client makes, ACCEPT the most that the server serves; the
/// smaller number counts. The peer knows nothing of subscriptions if they are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishTerms {
    subscriptions: u16,
}

impl PublishTerms {
    /// Terms of `subscriptions` at a time. `None` if that is 0 or more than [`MAX_SUBSCRIPTIONS`].
    pub const fn new(subscriptions: u16) -> Option<Self> {
        match subscriptions {
            1..=MAX_SUBSCRIPTIONS => Some(Self { subscriptions }),
            _ => None,
        }
    }

    /// Subscriptions: 1 to [`MAX_SUBSCRIPTIONS`].
    pub const fn subscriptions(&self) -> u16 {
        self.subscriptions
    }

    /// How many subscriptions a channel may have whose sides say these; 0 if one of them says nothing.
    pub const fn agreed(client: Option<Self>, server: Option<Self>) -> u16 {
        match (client, server) {
            (Some(client), Some(server)) if client.subscriptions < server.subscriptions => {
                client.subscriptions
            }
            (Some(_), Some(server)) => server.subscriptions,
            _ => 0,
        }
    }
}
