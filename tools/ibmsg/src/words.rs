// SPDX-License-Identifier: GPL-2.0

//! What error numbers mean, and what can be done.

use std::io;

use rustix::io::Errno;

/// What has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Opening the device.
    Open,
    /// Binding a portal.
    Bind,
    /// Asking for a channel.
    Connect,
    /// The portal refuses; the error number is its reason.
    Refused,
    /// Answering an offer.
    Accept,
    /// Reading.
    Read,
    /// Writing a message.
    Write,
    /// A message was not delivered; the error number is that of its receipt.
    Undelivered,
    /// A request has no answer; the error number is that of the kernel's reply.
    Unanswered,
    /// The channel has ended.
    Closed,
    /// Publishing memory, or taking it back.
    Map,
    /// Using memory of the other program.
    Copy,
}

/// The text of an error number.
pub fn name(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.strip_suffix(&format!(" (os error {errno})")) {
        Some(text) => format!("{text} ({errno})"),
        None => text,
    }
}

fn known(doing: Doing, errno: Errno) -> Option<&'static str> {
    use Doing::{
        Accept, Bind, Closed, Connect, Copy, Map, Open, Refused, Unanswered, Undelivered, Write,
    };
    Some(match (doing, errno) {
        (Open, Errno::NOENT) => "there is no /dev/ibmsg: the module ibmsg is not loaded",
        (Open, Errno::ACCESS | Errno::PERM) => "this user may not open /dev/ibmsg",
        (Bind, Errno::ADDRINUSE) => "another program has bound that name",
        (Bind, Errno::ACCESS) => "this user may not bind that portal",
        (Bind | Connect, Errno::DQUOT) => "a limit of this user, or of the session",
        (Bind | Connect, Errno::NOBUFS) => "all channels together take as much memory as they may",
        (Bind | Connect, Errno::INVAL) => "a name or the terms are impossible",
        (Connect, Errno::NODEV) => "there is no such session",
        (Connect, Errno::ACCESS) => "this user may not open channels over that session",
        (Refused, Errno::ACCESS) => "the portal's program, or a rule for the portal, does not let this machine in",
        (Refused, Errno::SHUTDOWN) => "the session was closed while the program waited",
        (Closed, Errno::ACCESS) => "a rule for the portal does not let the client's machine in any more",
        (Connect, Errno::TIMEDOUT) => "the portal has not answered in time",
        (Connect, Errno::INTR) => "a signal came before the portal's answer",
        (Refused, Errno::NOENT) => "no program has bound that portal, or it was closed",
        (Refused, Errno::AGAIN) => "too many programs wait at the portal",
        (Refused, Errno::DQUOT) => "a limit of the portal, of its user, or of this host",
        (Refused, Errno::NOBUFS) => "the portal's machine has no room for another channel",
        (Refused, Errno::ADDRNOTAVAIL) => "the portal's machine has not closed an old channel with the next number",
        (Accept, Errno::NOENT) => "the program that has asked does not wait any more",
        (Write, Errno::PIPE) => "the channel is closed",
        (Write, Errno::MSGSIZE) => "the message is longer than the other program takes",
        (Write, Errno::AGAIN) => "there is no room for the message now",
        (Write, Errno::OPNOTSUPP) => "the other program answers no requests",
        (Write, Errno::NOENT) => "the request was answered before",
        (Undelivered, Errno::CANCELED) => "not delivered: the other program has not received it, and will not",
        (Undelivered, Errno::TIMEDOUT) => "the time is over: it may have been delivered, or not",
        (Undelivered, Errno::CONNABORTED) => "the other machine has lost the channel: it may have been delivered, or not",
        (Unanswered, Errno::CANCELED) => "the request was not delivered",
        (Unanswered, Errno::CONNRESET) => "the other program has received the request, and has closed the channel without an answer",
        (Unanswered, Errno::TIMEDOUT) => "no answer in time; the request may have been executed",
        (Unanswered, Errno::CONNABORTED) => "the other machine has lost the channel; the request may have been executed",
        (Closed, Errno::SHUTDOWN) => "the client's session was closed",
        (Closed, Errno::CONNABORTED) => "the other machine has lost the channel",
        (Map | Copy, Errno::NOMEM) => "the limit of locked memory, or no memory",
        (Map | Copy, Errno::OPNOTSUPP) => "the channel has no memory, or the memory is that of a file",
        (Map | Copy, Errno::PIPE) => "the channel is closed",
        (Map, Errno::NOBUFS) => "the channel has as much published memory as it may",
        (Copy, Errno::STALE) => "the other program has not published that memory, or has taken it back",
        (Copy, Errno::ACCESS) => "the other program does not allow that",
        (Copy, Errno::RANGE) => "that is outside of what the other program has published",
        (Copy, Errno::NOBUFS) => "the other machine has no room for a registration",
        (Copy, Errno::IO) => "a part may have been written, and no more will be",
        (Copy, Errno::CANCELED) => "nothing was copied: the channel was closed before",
        (Copy, Errno::TIMEDOUT) => "the time is over: the rest may still be copied, or not",
        (Copy, Errno::CONNABORTED) => "the channel has ended: it may have been copied, or not",
        _ => return None,
    })
}

/// What an error number means there.
pub fn meaning(doing: Doing, errno: i32) -> String {
    match (known(doing, Errno::from_raw_os_error(errno)), doing) {
        (Some(words), _) => words.to_owned(),
        (None, Doing::Refused) => format!("the portal's program refuses: {}", name(errno)),
        (None, _) => name(errno),
    }
}

/// What can be done about it.
pub fn advice(doing: Doing, errno: i32) -> Option<&'static str> {
    use Doing::{Bind, Connect, Open, Refused, Unanswered};
    Some(match (doing, Errno::from_raw_os_error(errno)) {
        (Open, Errno::NOENT) => "modprobe ibmsg",
        (Open, Errno::ACCESS | Errno::PERM) => "see the permissions of /dev/ibmsg, which is for everyone unless udev has a rule",
        (Bind, Errno::ADDRINUSE) => "see `ibmsg portals` for the program that has it",
        (Bind | Connect | Refused, Errno::DQUOT) => "close channels, ask for smaller windows, or raise the parameter user_mib of the module or the limits of the portal, session or host",
        (Bind | Connect | Refused, Errno::NOBUFS) => "close channels, ask for smaller windows, or raise the parameter total_mib of the module",
        (Bind, Errno::ACCESS) => {
            "run it as root, or add the user to allowed_uids in /sys/kernel/config/ibmsg/portals/NAME (messages.md, \"Who may use it\")"
        }
        (Connect, Errno::ACCESS) => {
            "run it as root, or add the user to allowed_uids in /sys/kernel/config/ibmsg/sessions/NAME (messages.md, \"Who may use it\")"
        }
        (Refused, Errno::ACCESS) => {
            "load the session's key on both machines, or add the session to allowed_hosts of the portal; the log of the portal's machine says which"
        }
        (Connect, Errno::NODEV) => "the session with this machine is `local`",
        (Connect, Errno::TIMEDOUT) => "see whether the portal's program reads its offers: `ibmsg portals`",
        (Refused, Errno::NOENT) => "start the program that binds it; `ibmsg portals` lists the portals of this machine",
        (Refused, Errno::AGAIN | Errno::ADDRNOTAVAIL) => "try again",
        (Unanswered, Errno::CANCELED) => "send it again",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Doing; 10] = [
        Doing::Open,
        Doing::Bind,
        Doing::Connect,
        Doing::Refused,
        Doing::Accept,
        Doing::Read,
        Doing::Write,
        Doing::Undelivered,
        Doing::Unanswered,
        Doing::Closed,
    ];

    #[test]
    fn every_number_has_words() {
        for doing in ALL {
            for errno in 1..134 {
                let words = meaning(doing, errno);
                assert!(words.len() > 4 && !words.contains("os error"), "{words}");
                // Advice for what has no explanation would be a guess.
                if advice(doing, errno).is_some() {
                    let errno = Errno::from_raw_os_error(errno);
                    assert!(known(doing, errno).is_some(), "{doing:?} {errno:?}");
                }
            }
        }
        assert_eq!(name(2), "No such file or directory (2)");
        assert_eq!(
            meaning(Doing::Refused, 1),
            "the portal's program refuses: Operation not permitted (1)"
        );
    }

    /// The tables of the page say which numbers there are.
    #[test]
    fn the_numbers_of_the_page_are_explained() {
        let page = include_str!("../../../Documentation/messages.md");
        let numbers = [
            ("ENOENT", Errno::NOENT),
            ("EAGAIN", Errno::AGAIN),
            ("EDQUOT", Errno::DQUOT),
            ("ENOBUFS", Errno::NOBUFS),
            ("ENODEV", Errno::NODEV),
            ("EINTR", Errno::INTR),
            ("ETIMEDOUT", Errno::TIMEDOUT),
            ("ECANCELED", Errno::CANCELED),
            ("ECONNRESET", Errno::CONNRESET),
            ("ECONNABORTED", Errno::CONNABORTED),
            ("EADDRNOTAVAIL", Errno::ADDRNOTAVAIL),
            ("EACCES", Errno::ACCESS),
            ("ESHUTDOWN", Errno::SHUTDOWN),
        ];
        for (title, doing) in [
            ("| errno of `IBMSG_IOC_CONNECT` |", Doing::Connect),
            ("| reason of a refusal |", Doing::Refused),
            ("| `status` of a receipt |", Doing::Undelivered),
            ("| `status` of a reply with", Doing::Unanswered),
        ] {
            let (_, table) = page.split_once(title).expect(title);
            let (table, _) = table.split_once("\n\n").expect("the end of a table");
            let mut found = 0;
            for (name, errno) in numbers {
                if table.contains(&format!("`{name}`")) {
                    assert!(known(doing, errno).is_some(), "{name} in {title}");
                    found += 1;
                }
            }
            assert!(found >= 3, "{title}");
        }
    }
}
