// SPDX-License-Identifier: GPL-2.0

//! Examples in the help of commands that need no further words.

pub(crate) const LIST: &str = "\
Examples:
  ibnbd list
  ibnbd list --columns disk,state,device
  ibnbd list -o json";

pub(crate) const SHOW: &str = "\
Examples:
  ibnbd show ibnbd0
  ibnbd show /dev/disk/by-id/ibnbd-web1-disk1  by a link to the disk
  ibnbd show s                                a session
  ibnbd show s/10.0.1.1                       one of its paths";

pub(crate) const SESSIONS: &str = "\
Examples:
  ibnbd sessions
  ibnbd sessions --columns session,state,paths";

pub(crate) const PATHS: &str = "\
Examples:
  ibnbd paths
  ibnbd paths s                               only those of the session s";

pub(crate) const STATS: &str = "\
Examples:
  ibnbd stats
  ibnbd stats ibnbd0 --reset                  and its percentiles start again
  ibnbd stats s --columns path,reads,writes";

pub(crate) const UNMAP: &str = "\
Examples:
  ibnbd unmap ibnbd0
  ibnbd unmap ibnbd0 ibnbd1 --persist         nor will they be mapped at the next boot
  ibnbd unmap disk1@s                         by its name on the server, and its session
  ibnbd unmap --unused
  ibnbd unmap --unused web1/disk1             by its session and its name on the server";

pub(crate) const REMAP: &str = "\
Example:
  ibnbd remap ibnbd0";

pub(crate) const RESIZE: &str = "\
Examples:
  ibnbd resize ibnbd0 20G
  ibnbd resize ibnbd0 41943040s               in sectors of 512 bytes";

pub(crate) const POLICY: &str = "\
Examples:
  ibnbd policy s                              says which it is
  ibnbd policy s round-robin";

pub(crate) const CLIENTS: &str = "\
Examples:
  ibnbd clients
  ibnbd clients -o json";

pub(crate) const DISCONNECT: &str = "\
Examples:
  ibnbd disconnect web1
  ibnbd disconnect web1 10.0.1.2              only its path from that address";

pub(crate) const CLOSE: &str = "\
Examples:
  ibnbd close disk1                           for all clients
  ibnbd close disk1 web1                      only for the session web1";

pub(crate) const DRAIN: &str = "\
Examples:
  ibnbd drain                                 before work on the server
  ibnbd drain --downtime 10m                  the same; clients know how long to wait
  ibnbd drain --undo";

pub(crate) const REPORT: &str = "\
Example:
  ibnbd report --file report.txt";

pub(crate) const WATCH: &str = "\
Examples:
  ibnbd watch
  ibnbd watch -n 1                            ends after the first event
  ibnbd watch -o json";

pub(crate) const SAVE: &str = "\
Examples:
  ibnbd save --dry-run                        shows the files as they would be
  ibnbd save
  ibnbd save --prune                          what the machine has not leaves the files";

pub(crate) const COMPLETIONS: &str = "\
Example:
  ibnbd completions bash >/etc/bash_completion.d/ibnbd";

pub(crate) const MANPAGES: &str = "\
Example:
  ibnbd manpages /usr/local/share/man/man1";

pub(crate) const PATH_ADD: &str = "\
Examples:
  ibnbd path add s 10.0.2.1
  ibnbd path add s 10.0.2.2,10.0.2.1          from that address of this machine";

pub(crate) const PATH_REMOVE: &str = "\
Example:
  ibnbd path remove s 10.0.2.1";

pub(crate) const PATH_RECONNECT: &str = "\
Example:
  ibnbd path reconnect s 10.0.2.1";

pub(crate) const PATH_DISCONNECT: &str = "\
Example:
  ibnbd path disconnect s 10.0.2.1";

pub(crate) const PATH_DRAIN: &str = "\
Examples:
  ibnbd path drain s 10.0.2.1                 before work on the link
  ibnbd path drain s 10.0.2.1 --undo";

pub(crate) const PATH_REAUTH: &str = "\
Example:
  ibnbd path reauth s";

pub(crate) const EXPORT_LIST: &str = "\
Examples:
  ibnbd export list
  ibnbd export list --directory /dev/ibnbd-exports";

pub(crate) const EXPORT_REMOVE: &str = "\
Examples:
  ibnbd export remove disk1
  ibnbd export remove disk1 --force           also if clients use it: their I/O fails
  ibnbd export remove --all                   before ibnbd_server is unloaded";

pub(crate) const EXPORT_ALLOW: &str = "\
Example:
  ibnbd export allow disk1 web1 web2";

pub(crate) const EXPORT_DENY: &str = "\
Example:
  ibnbd export deny disk1 web2";

pub(crate) const EXPORT_ENABLE: &str = "\
Example:
  ibnbd export enable disk1";

pub(crate) const EXPORT_DISABLE: &str = "\
Example:
  ibnbd export disable disk1";

pub(crate) const HOST_LIST: &str = "\
Examples:
  ibnbd host list
  ibnbd host list -o json";

pub(crate) const HOST_ADD: &str = "\
Examples:
  ibnbd host add web1
  ibnbd host add web1 --address 10.0.1.0/24 --max-paths 2 --max-iops 5000";

pub(crate) const HOST_REMOVE: &str = "\
Examples:
  ibnbd host remove web1
  ibnbd host remove web1 --force              also if it is connected";

pub(crate) const PORT_LIST: &str = "\
Example:
  ibnbd port list";

pub(crate) const PORT_REMOVE: &str = "\
Example:
  ibnbd port remove left";

pub(crate) const KEY_LIST: &str = "\
Example:
  ibnbd key list";

pub(crate) const KEY_REMOVE: &str = "\
Examples:
  ibnbd key remove web1
  ibnbd key remove web1 --id web1-2026";
