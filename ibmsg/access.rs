// SPDX-License-Identifier: GPL-2.0

//! The operator's rules: who may use which portals and sessions of this machine.
//!
//! Without a rule for a portal, only a network administrator (`CAP_NET_ADMIN`) may bind it, and every machine
//! that has proved a key may use it. Without a rule for a session, only a network administrator may open
//! channels over it. A rule admits further users, and restricts machines.

use ibmsg_proto::{
    access::{
        may_use,
        Entry,
        ListError,
        Peer,
        Refusal,
        Rule, //
    },
    refused::Reason, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use kx::cred::{
    current_euid,
    is_in_egroup,
    is_net_admin, //
};

use crate::{
    limits::{
        self,
        Account,
        Accounts,
        Denied, //
    },
    types::Name, //
};

/// Users, groups or hosts that the operator admits.
pub(crate) struct List<T: Ord> {
    pub(crate) has_all: bool,
    entries: RBTree<T, ()>,
}

impl<T: Ord> List<T> {
    /// Nobody, or everybody.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    fn without_entries(has_all: bool) -> Result<Arc<Self>> {
        let entries = RBTree::new();
        Ok(Arc::new(Self { has_all, entries }, GFP_KERNEL)?)
    }

    /// The list of an operator.
    ///
    /// # Errors
    ///
    /// `Err(Ok(_))`: a wrong entry; `Err(Err(_))`: [`ENOMEM`].
    pub(crate) fn new(
        words: impl Iterator<Item = Result<Entry<T>, ListError>>,
    ) -> Result<Arc<Self>, Result<ListError, Error>> {
        let (mut has_all, mut entries) = (false, RBTree::new());
        for word in words {
            match word.map_err(Ok)? {
                Entry::Any => has_all = true,
                Entry::One(one) => {
                    entries
                        .try_create_and_insert(one, (), GFP_KERNEL)
                        .map_err(Err)?;
                }
            }
        }
        Arc::new(Self { has_all, entries }, GFP_KERNEL).map_err(|e| Err(e.into()))
    }

    fn has(&self, one: &T) -> bool {
        self.has_all || self.entries.get(one).is_some()
    }

    /// The entries besides `any`, sorted.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &T> {
        self.entries.keys()
    }
}

/// Users and groups of this machine.
#[derive(Clone)]
pub(crate) struct Users {
    pub(crate) uids: Arc<List<u32>>,
    pub(crate) gids: Arc<List<u32>>,
}

impl Users {
    fn none() -> Result<Self> {
        Ok(Self {
            uids: List::without_entries(false)?,
            gids: List::without_entries(false)?,
        })
    }

    /// Whether the current task is one of them.
    fn have_current(&self) -> bool {
        let gids = &self.gids;
        self.uids.has(&current_euid())
            || gids.has_all
            || gids.entries().any(|gid| is_in_egroup(*gid))
    }
}

/// The rule for a portal.
pub(crate) struct PortalRule {
    /// Those who may bind it.
    users: Users,
    /// Sessions whose programs may open channels to it; `local` stands for this machine.
    pub(crate) hosts: Arc<List<Name>>,
    pub(crate) admits_unauthenticated: bool,
    account: Arc<Account>,
}

/// The rule for a session of this machine, as a client.
struct SessionRule {
    /// Those who may open channels over it.
    users: Users,
    account: Arc<Account>,
}

impl SessionRule {
    /// The accounts of a channel over a session with this rule.
    fn accounts(rule: Option<&KBox<Self>>) -> Accounts {
        let account = rule.map(|rule| (rule.account.clone(), Denied::Session));
        [account, None, None]
    }
}

struct Rules {
    portals: RBTree<Name, KBox<PortalRule>>,
    sessions: RBTree<Name, KBox<SessionRule>>,
    /// Of sessions of other machines with this one, that is, of hosts.
    hosts: RBTree<Name, Arc<Account>>,
}

impl Rules {
    /// The accounts of a channel of a peer to a portal.
    fn accounts_at(&self, portal: &Name, peer: Peer, session: &Name) -> Accounts {
        let rule = self.portals.get(portal);
        let portal = rule.map(|rule| (rule.account.clone(), Denied::Portal));
        // A name that was not proved is nobody's.
        let host = match peer {
            Peer::Unauthenticated => None,
            Peer::Local | Peer::Authenticated => self.hosts.get(session),
        };
        let host = host.map(|account| (account.clone(), Denied::Host));
        [portal, host, None]
    }
}

/// All rules.
#[pin_data]
pub(crate) struct Access {
    #[pin]
    rules: SpinLockIrq<Rules>,
}

/// A directory of rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Portal,
    Session,
    Host,
}

impl Access {
    /// No rules.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new() -> Result<Arc<Self>> {
        let rules = Rules {
            portals: RBTree::new(),
            sessions: RBTree::new(),
            hosts: RBTree::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                rules <- new_spinlock_irq!(rules, "Access::rules"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a rule without limits that admits no users and every host that has authenticated. There is none of
    /// this name. Returns its account.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn add(&self, kind: Kind, name: Name) -> Result<Arc<Account>> {
        let account = Account::new()?;
        let own = account.clone();
        match kind {
            Kind::Portal => {
                let rule = PortalRule {
                    users: Users::none()?,
                    hosts: List::without_entries(true)?,
                    admits_unauthenticated: false,
                    account: own,
                };
                let rule = KBox::new(rule, GFP_KERNEL)?;
                let node = RBTreeNode::new(name, rule, GFP_KERNEL)?;
                let former = self.rules.lock().portals.insert(node);
                drop(former);
            }
            Kind::Session => {
                let users = Users::none()?;
                let rule = KBox::new(
                    SessionRule {
                        users,
                        account: own,
                    },
                    GFP_KERNEL,
                )?;
                let node = RBTreeNode::new(name, rule, GFP_KERNEL)?;
                let former = self.rules.lock().sessions.insert(node);
                drop(former);
            }
            Kind::Host => {
                let node = RBTreeNode::new(name, own, GFP_KERNEL)?;
                let former = self.rules.lock().hosts.insert(node);
                drop(former);
            }
        }
        Ok(account)
    }

    /// Removes a rule.
    pub(crate) fn remove(&self, kind: Kind, name: &Name) {
        match kind {
            Kind::Portal => {
                let node = self.rules.lock().portals.remove_node(name);
                drop(node);
            }
            Kind::Session => {
                let node = self.rules.lock().sessions.remove_node(name);
                drop(node);
            }
            Kind::Host => {
                let node = self.rules.lock().hosts.remove_node(name);
                drop(node);
            }
        }
    }

    /// Calls a function with the rule for a portal, under a spinlock: it returns what is to be dropped.
    ///
    /// # Errors
    ///
    /// [`ENOENT`]
    pub(crate) fn with_portal<R>(
        &self,
        name: &Name,
        f: impl FnOnce(&mut PortalRule) -> R,
    ) -> Result<R> {
        let mut rules = self.rules.lock();
        let rule = rules.portals.get_mut(name).ok_or(ENOENT)?;
        Ok(f(rule))
    }

    /// The same with the users of the rule for a portal or session.
    ///
    /// # Errors
    ///
    /// [`ENOENT`]; a host has no users.
    pub(crate) fn with_users<R>(
        &self,
        kind: Kind,
        name: &Name,
        f: impl FnOnce(&mut Users) -> R,
    ) -> Result<R> {
        let mut rules = self.rules.lock();
        let users = match kind {
            Kind::Portal => rules.portals.get_mut(name).map(|rule| &mut rule.users),
            Kind::Session => rules.sessions.get_mut(name).map(|rule| &mut rule.users),
            Kind::Host => None,
        };
        Ok(f(users.ok_or(ENOENT)?))
    }

    /// Whether the current task may bind a portal.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`EACCES`]
    pub(crate) fn check_bind(&self, portal: &Name) -> Result {
        let users = self.with_users(Kind::Portal, portal, |users| users.clone());
        if users.is_ok_and(|users| users.have_current()) || is_net_admin() {
            return Ok(());
        }
        kx::pr_warn_ratelimited!(
            "portal {}: not bound: uid {} has no CAP_NET_ADMIN, and is not in allowed_uids or allowed_gids of portals/{} (EACCES)\n",
            portal, current_euid(), portal
        );
        Err(EACCES)
    }

    /// Whether the current task may open channels over a session. Returns the accounts of such a channel.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`EACCES`]
    pub(crate) fn check_connect(&self, session: &Name) -> Result<Accounts> {
        let rules = self.rules.lock();
        let rule = rules.sessions.get(session);
        let (users, accounts) = (
            rule.map(|rule| rule.users.clone()),
            SessionRule::accounts(rule),
        );
        drop(rules);
        if users.is_some_and(|users| users.have_current()) || is_net_admin() {
            return Ok(accounts);
        }
        limits::refuse(&accounts, Reason::Rule);
        kx::pr_warn_ratelimited!(
            "session {}: no channel: uid {} has no CAP_NET_ADMIN, and is not in allowed_uids or allowed_gids of sessions/{} (EACCES)\n",
            session, current_euid(), session
        );
        Err(EACCES)
    }

    /// The accounts of a channel over a session.
    ///
    /// # Context
    ///
    /// *any*
    pub(crate) fn accounts_over(&self, session: &Name) -> Accounts {
        SessionRule::accounts(self.rules.lock().sessions.get(session))
    }

    /// Whether a peer's program may open a channel to a portal. `asks`: its program asks for peers that have
    /// proved nothing. Returns the accounts of the channel.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// Why not.
    pub(crate) fn check_peer(
        &self,
        portal: &Name,
        peer: Peer,
        session: &Name,
        asks: bool,
    ) -> Result<Accounts, Refusal> {
        let rules = self.rules.lock();
        let rule = rules.portals.get(portal);
        let for_peer = rule.map(|rule| Rule {
            admits_name: rule.hosts.has(session),
            admits_unauthenticated: rule.admits_unauthenticated,
        });
        may_use(peer, asks, for_peer)?;
        Ok(rules.accounts_at(portal, peer, session))
    }

    /// A peer was refused a channel to a portal, for one of [`ibmsg_proto::refused::Reason`].
    ///
    /// # Context
    ///
    /// *any*
    pub(crate) fn refuse_peer(&self, portal: &Name, peer: Peer, session: &Name, reason: Reason) {
        let accounts = self.rules.lock().accounts_at(portal, peer, session);
        limits::refuse(&accounts, reason);
    }
}
