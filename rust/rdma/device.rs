// SPDX-License-Identifier: GPL-2.0

//! RDMA devices and their removal.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use rdma::{
//!     cm::CmId,
//!     device::{RemovalGuard, RemovalHandler},
//! };
//!
//! struct Connection;
//!
//! impl RemovalHandler for Connection {
//!     fn device_removed(&self) {
//!         // Have a worker close the connection, which drops the guard.
//!     }
//! }
//!
//! fn watch(id: &CmId, connection: Arc<Connection>) -> Result<RemovalGuard> {
//!     let device = id.device()?;
//!     let vector = device.next_vectors(1);
//! #   let _ = vector;
//!     device.on_removal(connection)
//! }
//! ```
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::ptr::NonNull;

use crate::CZeroed;
use ibtrs_bindings as bindings;
use kernel::{
    fmt,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        Mutex, //
    },
    types::Opaque, //
};
use kx::{
    mm::{
        in_reclaim,
        Node,
        Reserve, //
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            AtomicFlag,
            Full,
            Relaxed,
            Release, //
        },
        Completion, //
    }, //
};

/// A handler for the removal of a device.
pub trait RemovalHandler: Send + Sync {
    /// Handles the removal of the device: starts a work item that drops all references of the user
    /// to the [`Device`]. The removal waits until they are dropped.
    ///
    /// # Context
    ///
    /// May sleep, but must neither wait for the references to be dropped nor call into this module.
    fn device_removed(&self);
}

/// An RDMA device.
///
/// The removal of the device waits until all references to this value are dropped.
///
/// # Invariants
///
/// `ib` is a registered device. Its removal waits for `gone`, which is completed when this value is
/// dropped.
#[pin_data(PinnedDrop)]
pub struct Device {
    ib: NonNull<bindings::ib_device>,
    /// See [`Device::next_vectors`].
    next_vector: Atomic<u32>,
    /// See [`Device::next_vectors_for_cpus`].
    next_group: Atomic<u32>,
    #[pin]
    name: Mutex<Name>,
    gone: Arc<Completion>,
}

/// The name of a device, such as `mlx5_0`.
///
/// # Invariants
///
/// One of the bytes is zero.
#[derive(Clone, Copy)]
pub struct Name([u8; NAME_LEN]);

const NAME_LEN: usize = bindings::IB_DEVICE_NAME_MAX as usize;

impl Name {
    /// Copies the name of a device.
    ///
    /// # Safety
    ///
    /// `ib` must be valid and have its name, and must not be renamed during the call.
    unsafe fn of(ib: NonNull<bindings::ib_device>) -> Self {
        let mut name = [0; NAME_LEN];
        // SAFETY: By this function's contract the name is set and does not change.
        let from = unsafe { &(*ib.as_ptr()).name };
        // The last byte stays zero.
        for (to, from) in name.iter_mut().zip(from).take(NAME_LEN - 1) {
            *to = *from;
        }
        // INVARIANT: At least the last byte is zero.
        Self(name)
    }
}

impl core::ops::Deref for Name {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

// SAFETY: Any thread may use a device.
unsafe impl Send for Device {}
// SAFETY: As above. Several threads may call the C functions for a device at a time, and the fields
// that this crate reads do not change while the device is registered.
unsafe impl Sync for Device {}

fn new_event() -> Result<Arc<Completion>> {
    Arc::pin_init(Completion::new(), GFP_KERNEL)
}

impl Device {
    /// # Safety
    ///
    /// `ib` must be a device that is being added, whose removal waits for `gone`.
    unsafe fn new(ib: NonNull<bindings::ib_device>, gone: Arc<Completion>) -> Result<Arc<Self>> {
        // SAFETY: By this function's contract the device is being added, so it has its name. The
        // core adds it with the lock of all devices held, which renaming takes for writing.
        let name = unsafe { Name::of(ib) };
        // INVARIANT: By this function's contract.
        Arc::pin_init(
            pin_init!(Self {
                ib,
                next_vector: Atomic::new(0),
                next_group: Atomic::new(0),
                name <- new_mutex!(name, "Device::name"),
                gone,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the [`Device`] of a connection manager id's device.
    ///
    /// # Errors
    ///
    /// `ENODEV` when the device is being removed, or is not tracked because it does not support
    /// fast registration or there was no memory for it, or if `ib` is null, or before there is a
    /// [`Client`].
    pub(crate) fn find(ib: *mut bindings::ib_device) -> Result<Arc<Self>> {
        // ORDERING: Pairs with the release in `Client::new`.
        if !INITIALISED.load(Acquire) {
            return Err(ENODEV);
        }
        let devices = DEVICES.lock();
        devices
            .iter()
            .find(|entry| entry.dev.ib.as_ptr() == ib)
            .map(|entry| entry.dev.clone())
            .ok_or(ENODEV)
    }

    /// Returns one of the devices, which the guest that runs the suites has before the modules.
    #[cfg(IBTRS_KUNIT)]
    pub fn nth(index: usize) -> Result<Arc<Self>> {
        let devices = DEVICES.lock();
        devices
            .get(index)
            .map(|entry| entry.dev.clone())
            .ok_or(ENODEV)
    }

    /// Registers `handler` for the removal of the device.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` when the removal has begun; `ENOMEM`.
    pub fn on_removal(&self, handler: Arc<dyn RemovalHandler>) -> Result<RemovalGuard> {
        let notified = new_event()?;
        let user = User {
            handler: handler.clone(),
            notified: notified.clone(),
        };
        self.add_user(user)?;
        Ok(RemovalGuard {
            ib: self.ib,
            notified,
            _handler: handler,
        })
    }

    /// Adds a removal handler.
    ///
    /// No allocation under the lock may wait, because reclaim may wait for a disk whose path needs
    /// the list of devices to reconnect. A longer list of users is therefore allocated without the
    /// lock.
    fn add_user(&self, mut user: User) -> Result {
        let mut longer = KVVec::new();
        loop {
            let mut devices = DEVICES.lock();
            let entry = devices
                .iter_mut()
                .find(|entry| entry.dev.ib == self.ib)
                .ok_or(ENODEV)?;
            let users = &mut entry.users;
            let wanted = users.len() + 1;
            if users.capacity() < wanted && longer.capacity() >= wanted {
                for user in users.drain_all() {
                    // The longer list has room.
                    let _ = longer.push_within_capacity(user);
                }
                core::mem::swap(users, &mut longer);
            }
            match users.push_within_capacity(user) {
                Ok(()) => return Ok(()),
                Err(full) => user = full.0,
            }
            drop(devices);
            longer = KVVec::with_capacity(wanted.next_power_of_two(), GFP_KERNEL)?;
        }
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.ib.as_ptr()
    }

    /// Returns whether memory that is mapped at `addr` must be synchronised between the CPU and the
    /// device. The answer does not change while the memory is mapped. On a coherent machine,
    /// hardware devices need it only for bounce buffers (swiotlb), and software devices never.
    pub(crate) fn needs_sync(&self, addr: u64) -> bool {
        // SAFETY: The device is live by the type invariant. The callee accepts any address.
        unsafe { bindings::ib_dma_needs_sync(self.as_raw(), addr) }
    }

    /// Returns the NUMA node that is nearest to the device, where memory that it uses a lot should
    /// be; [`Node::ANY`] for software devices.
    pub fn node(&self) -> Node {
        // SAFETY: The device is registered by the type invariant. The callee reads its parent, if it
        // has one, which its driver has set before it registered the device, and which does not
        // change: `device_add()` has taken a reference to the parent, which it keeps until the device
        // is unregistered.
        Node::new(unsafe { bindings::ibdev_to_node(self.as_raw()) })
    }

    fn attrs(&self) -> &bindings::ib_device_attr {
        // SAFETY: The device is live by the type invariant. Its attributes do not change while it
        // is registered, nor do the other fields that are read here.
        unsafe { &(*self.ib.as_ptr()).attrs }
    }

    /// Returns the number of completion vectors, at least one.
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: As in `attrs`.
        let vectors = unsafe { (*self.ib.as_ptr()).num_comp_vectors };
        u32::try_from(vectors).unwrap_or(1).max(1)
    }

    /// Allocates `count` completion vectors, which are assigned to users of the device in
    /// round-robin order. Returns the first, which is one of the device's; the others follow it,
    /// modulo [`Self::num_comp_vectors`].
    pub fn next_vectors(&self, count: u32) -> u32 {
        self.next_vector.fetch_add(count, Relaxed) % self.num_comp_vectors()
    }

    /// As [`Self::next_vectors`], for a user whose CPU n uses vector n modulo `count` of its vectors.
    /// The first vector is a multiple of `count`, so that each vector belongs to one of the CPUs that
    /// use it.
    pub fn next_vectors_for_cpus(&self, count: u32) -> u32 {
        let groups = (self.num_comp_vectors() / count.max(1)).max(1);
        self.next_group.fetch_add(1, Relaxed) % groups * count
    }

    /// Returns the maximum depth of a send or receive queue.
    pub fn max_qp_wr(&self) -> u32 {
        self.attrs().max_qp_wr
    }

    /// Returns the maximum number of entries of a completion queue.
    pub fn max_cqe(&self) -> u32 {
        self.attrs().max_cqe
    }

    /// Returns the maximum number of receives of a queue pair that is to have `sends` entries in its send
    /// queue. A drain has a marker in each queue, and the completion queue has room for both.
    pub fn max_recvs(&self, sends: u32) -> u32 {
        let completions = self.max_cqe().saturating_sub(sends.saturating_add(2));
        completions.min(self.max_qp_wr().saturating_sub(1))
    }

    /// Returns the maximum number of scatter elements of a send work request.
    pub fn max_send_sge(&self) -> u32 {
        self.attrs().max_send_sge
    }

    /// Returns the maximum number of scatter elements of a receive.
    pub fn max_recv_sge(&self) -> u32 {
        self.attrs().max_recv_sge
    }

    /// Returns the maximum number of scatter elements of a work request that reads from the peer.
    pub fn max_read_sge(&self) -> u32 {
        self.attrs().max_sge_rd.min(self.attrs().max_send_sge)
    }

    /// Returns the maximum number of reads of a peer's memory that a queue pair has in progress.
    pub fn max_reads(&self) -> u8 {
        u8::try_from(self.attrs().max_qp_init_rd_atom.clamp(0, 255)).unwrap_or(0)
    }

    /// Returns the maximum number of reads of this side's memory that a peer may have in progress on
    /// a queue pair.
    pub fn max_reads_by_peer(&self) -> u8 {
        u8::try_from(self.attrs().max_qp_rd_atom.clamp(0, 255)).unwrap_or(0)
    }

    /// Returns the maximum number of pages of a fast registration.
    pub fn max_fast_reg_pages(&self) -> u32 {
        self.attrs().max_fast_reg_page_list_len
    }

    /// Returns the page size of a region in bytes. It is the page size of the machine, or 4096 if
    /// the device does not support that: the driver `irdma`, for example, takes pages of 64 KiB for
    /// pages of 4096 bytes.
    #[inline]
    pub fn region_page_bytes(&self) -> u32 {
        // CAST: Page sizes fit in 32 bits.
        region_page_bytes(self.attrs().page_size_cap, PAGE_SIZE as u32)
    }

    /// Returns the maximum size of a mapping in bytes. Larger ones always fail where the kernel
    /// copies memory that the device cannot address (swiotlb).
    pub fn max_mapping_bytes(&self) -> usize {
        // SAFETY: As in `attrs`.
        let dma_device = unsafe { (*self.ib.as_ptr()).dma_device };
        if dma_device.is_null() {
            // A software device, which reaches all memory.
            return usize::MAX;
        }
        // SAFETY: The device's driver has passed this DMA device to `ib_register_device()`, and
        // keeps it as long as the RDMA device is registered, which it is by the type invariant.
        unsafe { kernel::bindings::dma_max_mapping_size(dma_device) }
    }

    fn driver(&self) -> bindings::rdma_driver_id {
        // SAFETY: The device is live by the type invariant. Its driver has set its operations, with
        // this id, before it registered the device, and they do not change while it is registered.
        unsafe { (*self.ib.as_ptr()).ops.driver_id }
    }

    /// Returns whether RDMA reads return correct data even if packets are lost. Soft-RoCE does not
    /// guarantee that: after a duplicate acknowledgement amid the packets of a response, it may
    /// complete a read that lacks some of its bytes (`check_ack()` in
    /// drivers/infiniband/sw/rxe/rxe_comp.c returns `COMPST_ERROR` without a status). As the responder,
    /// it closes the queue pair if it must repeat a response after a request of 0 bytes.
    pub fn reads_survive_loss(&self) -> bool {
        self.driver() != bindings::rdma_driver_id_RDMA_DRIVER_RXE
    }

    /// Returns whether the data of an unsignalled work request must not change even after a later
    /// request has completed. Soft-iWARP hands the pages of such requests to TCP, which sends them
    /// from there until the peer's TCP has acknowledged them, while a completion only means that TCP
    /// has got the request. It copies the data of signalled requests (`siw_qp_prepare_tx()` and
    /// `use_sendpage` in drivers/infiniband/sw/siw/siw_qp_tx.c).
    pub(crate) fn lends_unsignalled_data(&self) -> bool {
        self.driver() == bindings::rdma_driver_id_RDMA_DRIVER_SIW
    }

    /// Returns whether writes and sends can carry an immediate. iWARP has no immediates, apart from
    /// extensions of some adapters.
    pub fn has_immediates(&self) -> bool {
        // SAFETY: As in `attrs`.
        let node_type = unsafe { (*self.ib.as_ptr()).node_type };
        u32::from(node_type) != bindings::RDMA_NODE_RNIC
    }

    /// Returns whether a region may have any I/O virtual address with the right offset in the page.
    /// The driver `ocrdma` does not allow that: it computes the offset as the difference between
    /// the address and the DMA address of the first page.
    pub(crate) fn takes_any_address(&self) -> bool {
        self.driver() != bindings::rdma_driver_id_RDMA_DRIVER_OCRDMA
    }

    /// Returns whether the completion of a received message proves that the key that it names was
    /// invalidated. It does not with iWARP, which requires an adapter to check only a part of the
    /// key, and to accept a key that is not valid.
    pub fn vouches_for_invalidations(&self) -> bool {
        self.has_immediates()
    }

    /// Returns the device's name, which the operator may change at any time.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn name(&self) -> Name {
        *self.name.lock()
    }
}

/// Returns the page size of a region in bytes, if the machine has pages of `page` bytes, and the
/// device supports the powers of two in the bit mask `sizes`.
const fn region_page_bytes(sizes: u64, page: u32) -> u32 {
    /// The smallest page size of machines and devices.
    const SMALLEST: u32 = 4096;
    // A driver that reports no sizes supports that of the machine.
    // CAST: Lossless, from `u32` to `u64`.
    if sizes & page as u64 == 0 && sizes & SMALLEST as u64 != 0 {
        SMALLEST
    } else {
        page
    }
}

#[pinned_drop]
impl PinnedDrop for Device {
    fn drop(self: Pin<&mut Self>) {
        self.gone.complete_all();
    }
}

/// Keeps a [`RemovalHandler`] registered.
///
/// If the removal of the device has begun, dropping this value waits until the handler has
/// returned, so that no code of the handler's module runs afterwards. A task for which the handler
/// waits must not drop it.
///
/// # Context
///
/// Dropping *may sleep*.
pub struct RemovalGuard {
    ib: NonNull<bindings::ib_device>,
    notified: Arc<Completion>,
    /// Keeps other tasks from dropping the last reference, which would run code of the handler's
    /// module.
    _handler: Arc<dyn RemovalHandler>,
}

// SAFETY: The pointer is only compared.
unsafe impl Send for RemovalGuard {}
// SAFETY: The pointer is only compared.
unsafe impl Sync for RemovalGuard {}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        let is_it = |user: &User| Arc::ptr_eq(&user.notified, &self.notified);
        let mut devices = DEVICES.lock();
        let found = devices.iter_mut().find_map(|entry| {
            let at = (entry.dev.ib == self.ib).then(|| entry.users.iter().position(is_it))??;
            entry.users.remove(at).ok()
        });
        drop(devices);
        if found.is_none() {
            // `Client::remove` has taken the user, and calls the handler.
            self.notified.wait();
        }
    }
}

/// A registered removal handler.
struct User {
    handler: Arc<dyn RemovalHandler>,
    /// Completed once the handler was called and is no longer needed.
    notified: Arc<Completion>,
}

struct Entry {
    dev: Arc<Device>,
    users: KVVec<User>,
}

/// `DEVICES` is initialised.
static INITIALISED: AtomicFlag = AtomicFlag::new(false);

kernel::sync::global_lock! {
    // SAFETY: `Client::new` initialises the lock before it registers with the RDMA core and before it
    // sets `INITIALISED`. `Device::find` uses the lock only if that flag is set. All other users have a
    // registration or a `Device`, so they run later.
    unsafe(uninit) static DEVICES: Mutex<KVec<Entry>> = KVec::new();
}

/// Frees the memory of the list of devices, which is empty: statics are never dropped, so it would
/// leak when the module is unloaded.
fn free_list() {
    let list = core::mem::replace(&mut *DEVICES.lock(), KVec::new());
    drop(list);
}

/// Set if a device is not tracked for lack of memory.
static LEFT_OUT: AtomicFlag = AtomicFlag::new(false);

/// The registration with the RDMA core, the source of all [`Device`]s.
///
/// The module that this crate is part of creates one, and keeps it until it is unloaded.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rdma::device::Client;
///
/// #[pin_data]
/// struct Module {
///     #[pin]
///     client: Client,
/// }
///
/// fn init() -> impl PinInit<Module, Error> {
///     try_pin_init!(Module { client <- Client::new(c"example") }? Error)
/// }
/// ```
#[pin_data(PinnedDrop)]
pub struct Client {
    #[pin]
    client: Opaque<bindings::ib_client>,
}

// SAFETY: The registration has no thread affinity.
unsafe impl Send for Client {}
// SAFETY: No method takes a shared reference.
unsafe impl Sync for Client {}

impl Client {
    /// Registers with the RDMA core, and tracks every present and future device that supports fast
    /// registration.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it was called before; `ENOMEM`, also when there is no memory to track one of the
    /// present devices.
    pub fn new(name: &'static CStr) -> impl PinInit<Self, Error> {
        static ONCE: AtomicFlag = AtomicFlag::new(false);
        try_pin_init!(Self {
            _: {
                if ONCE.xchg(true, Full) {
                    return Err(EBUSY);
                }
                // SAFETY: The flag ensures that this happens once. Nothing uses the list earlier,
                // as devices are only added by the registration below.
                unsafe { DEVICES.init() };
                // ORDERING: Pairs with the acquire in `Device::find`.
                INITIALISED.store(true, Release);
                // Reclaim may depend on this lock, as a disk that lost its server looks up its
                // device under the lock to reconnect.
                in_reclaim(|| drop(DEVICES.lock()));
            },
            client <- Opaque::try_ffi_init(|slot: *mut bindings::ib_client| {
                let client = bindings::ib_client {
                    name: kernel::str::CStrExt::as_char_ptr(name),
                    add: Some(Self::add),
                    remove: Some(Self::remove),
                    rename: Some(Self::rename),
                    ..bindings::ib_client::c_zeroed()
                };
                // SAFETY: `slot` is valid for writes and pinned. If this succeeds, it is unregistered
                // before it is freed: below, or by `PinnedDrop`.
                let registered = kernel::error::to_result(unsafe {
                    slot.write(client);
                    bindings::ib_register_client(slot)
                });
                // ORDERING: The core has called `add` for the present devices in this thread.
                match registered {
                    Ok(()) if LEFT_OUT.load(Relaxed) => {
                        // SAFETY: It was just registered, and nobody else has it.
                        unsafe { bindings::ib_unregister_client(slot) };
                        free_list();
                        Err(ENOMEM)
                    }
                    registered => registered.inspect_err(|_| free_list()),
                }
            }),
        }? Error)
    }

    /// # Safety
    ///
    /// The RDMA core must have called this with a device that is being added.
    unsafe extern "C" fn add(ib: *mut bindings::ib_device) -> kernel::ffi::c_int {
        let Some(ib) = NonNull::new(ib) else {
            return EINVAL.to_errno();
        };
        // SAFETY: By this function's contract the device is valid and has its attributes.
        let caps = unsafe { (*ib.as_ptr()).attrs.device_cap_flags };
        let need = bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS;
        if caps & need as u64 == 0 {
            // With an error, the core does not report the removal of the device to this client.
            return EOPNOTSUPP.to_errno();
        }
        // SAFETY: By this function's contract.
        let Err(error) = (unsafe { Self::track(ib) }) else {
            return 0;
        };
        // ORDERING: `new` reads the flag in the thread that adds the present devices. A failure for
        // a device that another thread adds concurrently may make `new` fail, too.
        LEFT_OUT.store(true, Relaxed);
        // SAFETY: By this function's contract the device is being added, so it has its name, which
        // does not change during the call, see `Device::new`.
        let name = unsafe { Name::of(ib) };
        kx::pr_err_ratelimited!(
            "{}: no memory to use this RDMA device: load the modules again\n",
            name
        );
        error.to_errno()
    }

    /// # Safety
    ///
    /// `ib` must be a device that is being added. If this succeeds, the caller must report success
    /// to the RDMA core.
    unsafe fn track(ib: NonNull<bindings::ib_device>) -> Result {
        // The core adds a device only once, so this must not fail for lack of a few bytes.
        // Allocations under the lock must not wait, see `Device::add_user`.
        let _reserve = Reserve::enter();
        // SAFETY: By this function's contract the device is being added, and the core calls
        // `remove`, which waits for the completion.
        let dev = unsafe { Device::new(ib, new_event()?) }?;
        let entry = Entry {
            dev,
            users: KVVec::new(),
        };
        DEVICES.lock().push(entry, GFP_KERNEL)?;
        Ok(())
    }

    /// # Safety
    ///
    /// The RDMA core must have called this with a device for which [`Client::add`] has succeeded,
    /// after it has renamed the device and before it can do so again.
    unsafe extern "C" fn rename(ib: *mut bindings::ib_device, _data: *mut kernel::ffi::c_void) {
        let Some(ib) = NonNull::new(ib) else { return };
        // SAFETY: By this function's contract.
        let name = unsafe { Name::of(ib) };
        let devices = DEVICES.lock();
        if let Some(entry) = devices.iter().find(|entry| entry.dev.ib == ib) {
            *entry.dev.name.lock() = name;
        }
    }

    /// # Safety
    ///
    /// The RDMA core must have called this with a device for which [`Client::add`] has succeeded.
    unsafe extern "C" fn remove(ib: *mut bindings::ib_device, _data: *mut kernel::ffi::c_void) {
        let mut devices = DEVICES.lock();
        let position = devices.iter().position(|entry| entry.dev.as_raw() == ib);
        let entry = position.and_then(|at| devices.remove(at).ok());
        drop(devices);

        let Some(Entry { dev, users, .. }) = entry else {
            return;
        };
        for User { handler, notified } in users {
            handler.device_removed();
            // Drop this reference first. Once the guard is notified, its owner may drop the last
            // reference, and the handler's module may be unloaded.
            drop(handler);
            notified.complete_all();
        }
        let gone = dev.gone.clone();
        drop(dev);
        gone.wait();
    }
}

#[pinned_drop]
impl PinnedDrop for Client {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `new` has registered the client. The call removes every device, and waits until
        // no callback runs.
        unsafe { bindings::ib_unregister_client(self.client.get()) };
        free_list();
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_device)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_such_that_the_device_knows() {
        const IRDMA: u64 = 1 << 12 | 1 << 21 | 1 << 30;
        assert_eq!(region_page_bytes(IRDMA, 4096), 4096);
        assert_eq!(region_page_bytes(IRDMA, 65_536), 4096);
        for any in [0xffff_f000, u64::MAX << 12, 1 << 16, 0] {
            assert_eq!(region_page_bytes(any, 65_536), 65_536);
        }
    }
}
