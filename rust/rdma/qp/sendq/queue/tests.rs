// SPDX-License-Identifier: GPL-2.0

//! Tests of chains of work requests, credits, and roll-back.

use super::*;

const DOMAIN: u64 = 5;
const DEPTH: u32 = 16;

impl Credits {
    fn free(&self) -> u32 {
        self.depth - self.used()
    }
}

fn queue() -> Result<SendQueue> {
    SendQueue::new(DEPTH, 4, DOMAIN)
}

fn space(wrs: u32, sges: u32) -> SqSpace {
    SqSpace { wrs, sges }
}

fn sge(number: u64) -> Sge {
    Sge::of_domain(DOMAIN, number, 1, 0)
}

/// Appends a request that sends `sges` elements, numbered from `first`.
fn push(draft: &mut Draft<'_>, first: u64, sges: u64, signalled: bool) {
    let from = (first..first + sges).map(sge);
    let wr = draft.gather(bindings::ib_wr_opcode_IB_WR_SEND, from);
    draft.push(Wr { send: wr }, ptr::null_mut(), signalled);
}

/// Queues a chain of `wrs` requests of one element each.
fn chain(queue: &mut SendQueue, wrs: u32, signalled: bool) -> Result {
    let mut draft = queue.begin(space(wrs, wrs));
    for number in 0..wrs {
        push(&mut draft, number.into(), 1, signalled && number + 1 == wrs);
    }
    draft.finish()
}

/// Walks the list that a driver would get; returns the number of elements of each request, and the
/// address of the first.
fn list(queue: &SendQueue) -> Result<KVec<(i32, u64)>> {
    let mut list = KVec::new();
    if queue.used_wrs == 0 {
        return Ok(list);
    }
    let mut next: *const bindings::ib_send_wr = queue.wrs.as_ptr().cast();
    while !next.is_null() {
        // SAFETY: The first request exists, and each one names the next, or none.
        let wr = unsafe { &*next };
        let first = match wr.num_sge {
            0 => 0,
            // SAFETY: The request has elements.
            _ => unsafe { (*wr.sg_list).addr },
        };
        list.push((wr.num_sge, first), GFP_KERNEL)?;
        next = wr.next;
    }
    Ok(list)
}

/// Returns the number of requests since the last signalled one.
fn unsignalled(queue: &SendQueue) -> u32 {
    (queue.credits.taken - queue.credits.signalled) as u32
}

/// Changes the queue as `SendQueue::post` does.
fn post(queue: &mut SendQueue) {
    queue.used_wrs = 0;
    queue.used_sges = 0;
}

#[kernel::macros::kunit_tests(rdma_send_queue)]
mod suite {
    use super::*;

    #[test]
    fn chains_are_linked() -> Result {
        let mut queue = queue()?;
        assert!(list(&queue)?.is_empty());
        let mut draft = queue.begin(space(2, 3));
        push(&mut draft, 10, 2, false);
        push(&mut draft, 20, 1, false);
        draft.finish()?;
        let mut draft = queue.begin(space(1, 0));
        push(&mut draft, 0, 0, true);
        draft.finish()?;
        assert_eq!(&list(&queue)?[..], &[(2, 10), (1, 20), (0, 0)]);
        post(&mut queue);
        chain(&mut queue, 1, true)?;
        assert_eq!(&list(&queue)?[..], &[(1, 0)]);
        Ok(())
    }

    /// `push_message` queues the same request as a chain of one message.
    #[test]
    fn a_message_alone_is_a_chain_of_one() -> Result {
        let mut queue = queue()?;
        chain(&mut queue, 1, false)?;
        let to = Remote {
            addr: 0x1234,
            rkey: 77,
        };
        let none = ptr::null_mut();
        assert!(queue.push_message(Some(to), &[sge(10), sge(11)], 5, none, false));
        assert!(queue.push_message(None, &[], 6, none, true));
        assert_eq!(&list(&queue)?[..], &[(1, 0), (2, 10), (0, 0)]);
        assert_eq!((queue.used_sges, queue.credits.free()), (3, DEPTH - 3));
        // SAFETY: `push_message` writes this variant, and the second has been written by it.
        let (written, sent) = unsafe { (queue.wrs[1].rdma, queue.wrs[2].rdma) };
        assert_eq!((written.remote_addr, written.rkey), (to.addr, to.rkey));
        let opcodes = (written.wr.opcode, sent.wr.opcode);
        let (write, send) = (
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
        );
        assert_eq!(opcodes, (write, send));
        // SAFETY: A request with one of these opcodes has an immediate.
        assert_eq!(unsafe { *written.wr.ex.imm_data }, 5u32.to_be());
        let signalled = bindings::ib_send_flags_IB_SEND_SIGNALED;
        assert_eq!((written.wr.send_flags, sent.wr.send_flags), (0, signalled));
        // The signal frees the entries of all three.
        queue.completed();
        assert_eq!(queue.credits.free(), DEPTH);
        Ok(())
    }

    /// `push_message` refuses everything but the common case, and queues nothing then.
    #[test]
    fn a_message_alone_is_not_always_possible() -> Result {
        let none = ptr::null_mut();
        let mut queue = queue()?.with_reserve(4);
        // Elements of another domain, and more than a request may have.
        let foreign = Sge::of_domain(DOMAIN + 1, 1, 1, 0);
        assert!(!queue.push_message(None, &[sge(1), foreign], 0, none, false));
        assert!(!queue.push_message(None, &[sge(1); 5], 0, none, false));
        assert!(list(&queue)?.is_empty() && queue.credits.free() == DEPTH);
        // No more than the reserve leaves.
        while queue.push_message(None, &[], 0, none, false) {}
        assert_eq!(queue.credits.free(), 4);
        queue.close();
        assert!(!queue.push_message(None, &[], 0, none, false));
        Ok(())
    }

    /// A chain that exceeds its announced space is rolled back completely, even if it caused
    /// signals.
    #[test]
    fn overflow_leaves_nothing() -> Result {
        for (wrs, sges) in [(2, 9), (9, 2)] {
            let mut queue = queue()?;
            chain(&mut queue, 3, true)?;
            let before = (queue.used_wrs, queue.used_sges, queue.credits.free());
            let mut draft = queue.begin(space(wrs, sges));
            for number in 0..3 {
                push(&mut draft, number, 1, true);
            }
            assert_eq!(draft.finish(), Err(EINVAL));
            assert_eq!(
                before,
                (queue.used_wrs, queue.used_sges, queue.credits.free())
            );
            assert_eq!(list(&queue)?.len(), 3);
            // There is one signal, which frees the entries of the first chain.
            queue.completed();
            assert_eq!(queue.credits.free(), DEPTH);
            queue.completed();
            assert_eq!(queue.credits.free(), DEPTH);
        }
        Ok(())
    }

    #[test]
    fn nothing_after_a_refusal() -> Result {
        let mut queue = queue()?;
        let mut draft = queue.begin(space(2, 2));
        push(&mut draft, 0, 1, true);
        draft.refuse();
        push(&mut draft, 0, 1, true);
        assert_eq!(draft.finish(), Err(EINVAL));
        assert!(list(&queue)?.is_empty());
        assert_eq!(queue.credits.free(), DEPTH);
        Ok(())
    }

    /// Each signalled request gets its own completion, which frees one entry.
    #[test]
    fn all_are_signalled_if_the_device_wants_that() -> Result {
        let mut queue = queue()?;
        chain(&mut queue, 3, false)?;
        assert_eq!(queue.credits.signals.len(), 0);
        post(&mut queue);
        queue.signal_all();
        chain(&mut queue, 3, false)?;
        // The first completion also frees the entries of the requests before it.
        assert_eq!(queue.credits.signals.len(), 3);
        for free in [DEPTH - 2, DEPTH - 1, DEPTH] {
            queue.completed();
            assert_eq!(queue.credits.free(), free);
        }
        Ok(())
    }

    /// A completion shows which requests have completed, even after a chain was refused.
    #[test]
    fn completions_know_their_position() -> Result {
        let (mut queue, other) = (queue()?, queue()?);
        assert!(queue.number != other.number);
        let first = queue.begin(space(1, 1)).position();
        assert_eq!((first.queue, first.number), (queue.number, 1));
        chain(&mut queue, 2, true)?;
        let mut draft = queue.begin(space(2, 2));
        assert_eq!(draft.position().number, 3);
        push(&mut draft, 0, 1, true);
        assert_eq!(draft.position().number, 4);
        draft.refuse();
        assert_eq!(draft.finish(), Err(EINVAL));
        chain(&mut queue, 3, true)?;
        post(&mut queue);
        assert_eq!(queue.completed().number, 2);
        assert_eq!(queue.completed().number, 5);
        // There is no other.
        assert_eq!(queue.completed().number, 5);
        assert_eq!(queue.credits.free(), DEPTH);
        Ok(())
    }

    #[test]
    fn elements_are_of_the_domain() -> Result {
        let mut queue = queue()?;
        let mut draft = queue.begin(space(1, 2));
        let from = [sge(1), Sge::of_domain(DOMAIN + 1, 2, 1, 0)];
        let wr = draft.gather(bindings::ib_wr_opcode_IB_WR_SEND, from);
        assert_eq!(wr.num_sge, 0);
        draft.push(Wr { send: wr }, ptr::null_mut(), true);
        assert_eq!(draft.finish(), Err(EINVAL));
        assert!(list(&queue)?.is_empty());
        Ok(())
    }

    #[test]
    fn no_request_has_too_many_elements() -> Result {
        let mut queue = queue()?;
        let mut draft = queue.begin(space(2, 9));
        push(&mut draft, 0, 4, true);
        push(&mut draft, 0, 5, true);
        assert_eq!(draft.finish(), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn no_chain_without_credit() -> Result {
        let mut queue = queue()?;
        for _ in 0..DEPTH / 4 {
            assert!(queue.has_credit(space(4, 4), 0));
            chain(&mut queue, 4, false)?;
            post(&mut queue);
        }
        assert!(!queue.has_credit(space(1, 0), 0));
        assert_eq!(chain(&mut queue, 1, true), Err(EINVAL));
        // The queue has signalled one request for each quarter of its entries.
        queue.completed();
        assert_eq!(queue.credits.free(), DEPTH / 4);
        assert!(queue.has_credit(space(4, 0), 0) && !queue.has_credit(space(5, 0), 0));
        Ok(())
    }

    #[test]
    fn a_chain_fits_beside_alone_or_not() -> Result {
        let mut queue = queue()?;
        chain(&mut queue, DEPTH - 1, false)?;
        assert_eq!(queue.fit(space(1, 0), Entries::All), Ok(Fit::Beside));
        assert_eq!(queue.fit(space(2, 0), Entries::All), Err(EAGAIN));
        assert_eq!(queue.fit(space(DEPTH + 1, 0), Entries::All), Err(EINVAL));
        post(&mut queue);
        queue.completed();
        assert_eq!(queue.fit(space(2, 0), Entries::All), Ok(Fit::Beside));
        let mut queue = SendQueue::new(1000, 4, DOMAIN)?;
        chain(&mut queue, SendQueue::BATCH_WRS as u32, true)?;
        assert_eq!(queue.fit(space(1, 0), Entries::All), Ok(Fit::Alone));
        Ok(())
    }

    /// Makes room for a chain; returns the result, and how often waiting chains were posted.
    fn room_for(queue: &mut SendQueue, wrs: u32) -> (Result<u32>, u32) {
        let mut posted = 0;
        let room = queue.make_room(space(wrs, 0), Entries::All, |queue| {
            posted += 1;
            post(queue);
            Ok(())
        });
        (room.map(|space| space.wrs), posted)
    }

    /// Waiting chains are posted both for a chain that is refused for now and for one that needs their
    /// place: only their completion makes room, and there may be no other task that posts them.
    #[test]
    fn what_waits_is_posted_when_there_is_no_room() -> Result {
        let mut queue = queue()?;
        chain(&mut queue, DEPTH - 1, true)?;
        assert_eq!(room_for(&mut queue, 1), (Ok(1), 0));
        assert_eq!(list(&queue)?.len(), DEPTH as usize - 1);
        assert_eq!(room_for(&mut queue, 2), (Err(EAGAIN), 1));
        assert!(list(&queue)?.is_empty());
        while !queue.credits.signals.is_empty() {
            queue.completed();
        }
        assert_eq!(room_for(&mut queue, 2), (Ok(2), 0));
        assert_eq!(room_for(&mut queue, DEPTH + 1), (Err(EINVAL), 1));
        let refused = queue.make_room(space(DEPTH + 1, 0), Entries::All, |_| Err(EIO));
        assert_eq!(refused.map(|space| space.wrs), Err(EIO));
        let mut queue = SendQueue::new(1000, 4, DOMAIN)?;
        chain(&mut queue, SendQueue::BATCH_WRS as u32, true)?;
        assert_eq!(room_for(&mut queue, 1), (Ok(1), 1));
        queue.close();
        assert_eq!(room_for(&mut queue, 1), (Err(ENOTCONN), 0));
        Ok(())
    }

    /// Chains that may not be refused find room, however many other chains there are.
    #[test]
    fn the_reserve_is_left_free() -> Result {
        let mut queue = queue()?.with_reserve(4);
        let others = DEPTH - 4;
        chain(&mut queue, others - 1, true)?;
        assert_eq!(queue.fit(space(1, 0), Entries::Common), Ok(Fit::Beside));
        assert_eq!(queue.fit(space(2, 0), Entries::Common), Err(EAGAIN));
        chain(&mut queue, 1, true)?;
        assert_eq!(queue.fit(space(1, 0), Entries::Common), Err(EAGAIN));
        for _ in 0..4 {
            assert_eq!(queue.fit(space(1, 0), Entries::All), Ok(Fit::Beside));
            chain(&mut queue, 1, true)?;
        }
        assert_eq!(queue.fit(space(1, 0), Entries::All), Err(EAGAIN));
        // A chain that could never leave it free is an error, rather than one that is tried for ever.
        let (most, queue) = (space(others, 0), queue.with_reserve(4));
        assert_eq!(queue.fit(most, Entries::Common), Err(EAGAIN));
        assert_eq!(
            queue.fit(space(others + 1, 0), Entries::Common),
            Err(EINVAL)
        );
        // A device with short queues has room for others as well.
        assert_eq!(super::queue()?.with_reserve(DEPTH).reserve, DEPTH / 3);
        // One of 1,024 entries leaves them for an invalidation of each of 512 requests, and for other chains.
        let reserve = |wanted| {
            Ok::<_, Error>(
                SendQueue::new(1024, 4, DOMAIN)?
                    .with_reserve(wanted)
                    .reserve,
            )
        };
        assert_eq!(reserve(513)?, 513);
        assert_eq!(reserve(1024)?, 1024 - SendQueue::COMMON);
        Ok(())
    }

    #[test]
    fn an_immediate_may_take_a_message_of_its_own() -> Result {
        let mut queue = queue()?;
        queue.set_imms(ImmRing::unmapped(DOMAIN, DEPTH)?);
        assert_eq!(room_for(&mut queue, 1), (Ok(2), 0));
        assert_eq!(room_for(&mut queue, DEPTH), (Err(EINVAL), 1));
        Ok(())
    }

    #[test]
    fn batches_have_an_end() -> Result {
        let mut queue = SendQueue::new(1000, 4, DOMAIN)?;
        let most = SendQueue::BATCH_WRS as u32;
        chain(&mut queue, most - 1, true)?;
        assert!(queue.fits(space(1, 0)) && !queue.fits(space(2, 0)));
        assert!(queue.is_possible(space(most, 0), 0) && !queue.is_possible(space(most + 1, 0), 0));
        assert!(!queue.is_possible(space(u32::MAX, 0), 0));
        assert_eq!(chain(&mut queue, 2, true), Err(EINVAL));
        let sges = SendQueue::BATCH_SGES as u32;
        assert!(queue.is_possible(space(1, sges), 0) && !queue.is_possible(space(1, sges + 1), 0));
        // A chain with more requests than the device's queue has entries is never possible.
        let queue = SendQueue::new(3, 4, DOMAIN)?;
        assert!(queue.is_possible(space(3, 0), 0) && !queue.is_possible(space(4, 0), 0));
        Ok(())
    }

    #[test]
    fn closing_forgets_what_waits() -> Result {
        let mut queue = queue()?;
        chain(&mut queue, 2, true)?;
        queue.close();
        assert!(queue.is_closed() && list(&queue)?.is_empty());
        Ok(())
    }

    /// Adds a message with an immediate to a chain, as a queue pair without immediates does.
    fn say(draft: &mut Draft<'_>, imm: u32) {
        let Some(prefix) = draft.prefix(Some(imm)) else {
            return draft.refuse();
        };
        let wr = draft.gather(bindings::ib_wr_opcode_IB_WR_SEND, [prefix]);
        draft.push(Wr { send: wr }, ptr::null_mut(), true);
    }

    /// Queues and posts a message; returns the address of its immediate.
    fn message(queue: &mut SendQueue, imm: u32) -> Result<u64> {
        let mut draft = queue.begin(space(1, 1));
        say(&mut draft, imm);
        draft.finish()?;
        let list = list(queue)?;
        let (_, addr) = *list.first().ok_or(EINVAL)?;
        post(queue);
        Ok(addr)
    }

    /// A refused chain returns the places of its immediates, so that no later message reuses a
    /// place whose message is still in flight.
    #[test]
    fn immediates_of_a_refused_chain_are_taken_back() -> Result {
        let mut queue = queue()?;
        queue.set_imms(ImmRing::unmapped(DOMAIN, DEPTH)?);
        assert_eq!(message(&mut queue, 1)?, 0);
        for wrs in 0..DEPTH {
            let mut draft = queue.begin(space(wrs, DEPTH));
            for number in 0..=wrs {
                say(&mut draft, 100 + number);
            }
            assert_eq!(draft.finish(), Err(EINVAL));
        }
        for number in 1..DEPTH {
            assert_eq!(message(&mut queue, 1 + number)?, u64::from(4 * number));
        }
        // All entries of the device's queue are in flight now, each with its own immediate.
        assert_eq!(message(&mut queue, 100), Err(EINVAL));
        let ring = queue.imms.as_mut().ok_or(EINVAL)?;
        for number in 0..DEPTH {
            assert_eq!(ring.at(number as usize), Some(1 + number));
        }
        queue.completed();
        assert_eq!(message(&mut queue, 200)?, 0);
        Ok(())
    }

    /// No error of a driver is reported as one that means that nothing was sent.
    #[test]
    fn errors_of_drivers_are_others() {
        for error in [EAGAIN, EINVAL, ENOTCONN] {
            assert_eq!(driver_error(error), EIO);
        }
        assert_eq!(driver_error(ENOMEM), ENOMEM);
    }

    /// Chains of all kinds, queued, refused and completed in any order: each entry of the device's
    /// queue is free, will be freed by a signal in flight, or waits for the next signal, which
    /// follows within a quarter of the queue.
    #[test]
    fn credits_are_balanced() -> Result {
        for depth in [1, 2, 3, 5, 16, 47, 300] {
            let mut queue = SendQueue::new(depth, 4, DOMAIN)?;
            let mut in_flight: KVec<u32> = KVec::new();
            let mut seed = u64::from(depth);
            for _ in 0..2000 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                let dice = (seed >> 33) as u32;
                let wrs = dice % 4;
                let before = unsignalled(&queue);
                let signals = queue.credits.signals.len();
                match (dice >> 8) % 3 {
                    0 if !in_flight.is_empty() => {
                        let freed = in_flight.remove(0).map_err(|_| EINVAL)?;
                        let free = queue.credits.free();
                        queue.completed();
                        assert_eq!(queue.credits.free(), free + freed);
                    }
                    1 => {
                        let mut draft = queue.begin(space(wrs, 0));
                        for _ in 0..=wrs {
                            push(&mut draft, 0, 0, dice >> 16 & 1 == 0);
                        }
                        assert_eq!(draft.finish(), Err(EINVAL));
                        assert_eq!(before, unsignalled(&queue));
                        assert_eq!(signals, queue.credits.signals.len());
                    }
                    _ if queue.has_credit(space(wrs, 0), 0) => {
                        let mut since = before;
                        let mut draft = queue.begin(space(wrs, 0));
                        for _ in 0..wrs {
                            let signals = draft.queue.credits.signals.len();
                            push(&mut draft, 0, 0, dice >> 16 & 7 == 0);
                            since += 1;
                            if draft.queue.credits.signals.len() > signals {
                                in_flight.push(since, GFP_KERNEL)?;
                                since = 0;
                            }
                        }
                        draft.finish()?;
                        assert_eq!(since, unsignalled(&queue));
                        post(&mut queue);
                    }
                    _ => {}
                }
                let (credits, waiting) = (&queue.credits, unsignalled(&queue));
                let signalled: u32 = in_flight.iter().sum();
                assert_eq!(credits.free() + waiting + signalled, depth);
                assert!(u64::from(waiting) < credits.signal_every);
                assert!(credits.signal_every <= u64::from((depth / 4).max(1)));
            }
        }
        Ok(())
    }
}
