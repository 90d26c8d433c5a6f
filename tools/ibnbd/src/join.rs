// SPDX-License-Identifier: GPL-2.0

//! How a client joins a server: a token, which the server's operator hands over, becomes a key that
//! both ends keep.
//!
//! | Module | Contents |
//! |---|---|
//! | [`token`] | the line that is handed over |
//! | [`pending`] | the tokens that a server has issued, and that nobody has used |
//! | [`handshake`] | the messages by which both ends make the key |
//! | [`address`] | the addresses of a server |
//! | [`joined`] | the servers that a client has joined |
//! | [`store`] | keys that survive a reboot |
//! | [`left`] | keys of hosts whose removal was interrupted |

pub mod address;
pub mod handshake;
pub mod joined;
pub mod left;
pub mod pending;
pub mod store;
pub mod token;
