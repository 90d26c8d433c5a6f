// SPDX-License-Identifier: GPL-2.0

//! The window, with simulated queues.

use ibnbd_proto::window::Window;

/// A line of requests: each spends `travel` on its way, and one after the other `service` in one of
/// `lanes` places. Gives how many were under way on average over the second half of the time, and
/// how many ended.
fn run(
    window: &mut Window,
    offered: u32,
    travel: u64,
    service: u64,
    lanes: usize,
    until: u64,
) -> (f64, u64) {
    let mut free = vec![0u64; lanes];
    let mut flying: Vec<(u64, u64)> = Vec::new();
    let (mut now, mut ends, mut sum, mut looks) = (0u64, 0u64, 0u64, 0u64);
    while now < until {
        while flying.len() < window.limit().min(offered) as usize {
            let lane = free.iter_mut().min().unwrap();
            *lane = (*lane).max(now + travel) + service;
            flying.push((*lane, now));
        }
        let (at, &(end, begun)) = flying.iter().enumerate().min_by_key(|(_, f)| f.0).unwrap();
        flying.swap_remove(at);
        now = end;
        window.ended(end - begun, now);
        if now > until / 2 {
            ends += 1;
            sum += flying.len() as u64 + 1;
            looks += 1;
        }
    }
    (sum as f64 / looks as f64, ends)
}

#[test]
fn a_single_place_is_kept_busy_and_no_more() {
    // As emulated guests are: two thirds of the time on the way, one at the place that queues.
    let (travel, service) = (2_000_000, 1_000_000);
    let mut window = Window::new();
    let (mean, ends) = run(&mut window, 255, travel, service, 1, 20_000_000_000);
    assert!((3.0..9.0).contains(&mean), "{mean}");
    // Of 10,000 that are possible.
    assert!(ends > 8_500, "{ends}");
}

#[test]
fn many_places_are_kept_busy() {
    let mut window = Window::new();
    let (mean, ends) = run(&mut window, 255, 200_000, 800_000, 64, 4_000_000_000);
    assert!((64.0..200.0).contains(&mean), "{mean}");
    // Of 160,000 that are possible.
    assert!(ends > 140_000, "{ends}");
}

/// However late answers are, there is room for somebody who has one request at a time; when they
/// come in time again, there is room for more.
#[test]
fn one_at_a_time_is_never_held_back() {
    let mut window = Window::new();
    run(&mut window, 255, 200_000, 800_000, 64, 4_000_000_000);
    assert!(window.limit() > 32, "{}", window.limit());
    let mut now = 4_000_000_000;
    let mut least = |late: u64, window: &mut Window| {
        let limits = (0..3000).map(|n| {
            let took = if n % 3 == 0 { 1000 } else { late };
            now += took;
            window.ended(took, now);
            window.limit()
        });
        limits.min().unwrap()
    };
    assert_eq!(least(10_000, &mut window), Window::MIN);
    assert_eq!(window.limit(), Window::MIN);
    least(1000, &mut window);
    assert!(window.limit() > 4 * Window::MIN, "{}", window.limit());
}

#[test]
fn a_backlog_from_before_is_forgotten() {
    let mut window = Window::new();
    // Behind 255 of others.
    for n in 0..20 {
        window.ended(250_000_000, n * 125_000_000);
    }
    let (mean, _) = run(&mut window, 255, 2_000_000, 1_000_000, 1, 20_000_000_000);
    assert!(mean < 9.0, "{mean}");
}

#[test]
fn no_numbers_break_it() {
    let mut window = Window::new();
    for n in 0..100_000u64 {
        window.ended(
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            n.wrapping_mul(0xbf58_476d_1ce4_e5b9),
        );
        assert!(window.limit() >= Window::MIN);
    }
}

/// A window whose base is 1000 ns, and that has grown to at least `limit` before the first second
/// is over; with the time.
fn grown(limit: u32) -> (Window, u64) {
    let mut window = Window::new();
    let mut now = 0;
    while window.limit() < limit {
        now += 1000;
        window.ended(1000, now);
        assert!(now < Window::PERIOD_NS / 2, "it does not grow");
    }
    (window, now)
}

/// Has as many requests end as are under way, the first `late` of them after `took` ns.
fn round(window: &mut Window, now: &mut u64, late: u32, took: u64) -> u32 {
    for n in 0..window.limit() {
        *now += 1;
        window.ended(if n < late { took } else { 1000 }, *now);
    }
    window.limit()
}

#[test]
fn what_is_late_and_how_much_room_there_is_then() {
    let (mut window, mut now) = grown(64);
    let limit = window.limit();
    // Twice the base is not late yet: an eighth more.
    let more = round(&mut window, &mut now, limit, 2000);
    assert_eq!(more, limit + limit / 8);
    // More than a quarter is, up to the half: as many as before.
    let half = more / 2;
    assert_eq!(round(&mut window, &mut now, half, 2001), more);
    // More than the half: a quarter less.
    assert_eq!(round(&mut window, &mut now, more, 2001), more - more / 4);
}

#[test]
fn exactly_half_of_them_late_changes_nothing() {
    let (mut window, mut now) = grown(16);
    while window.limit() % 2 != 0 {
        round(&mut window, &mut now, 0, 0);
    }
    let limit = window.limit();
    assert_eq!(round(&mut window, &mut now, limit / 2, 5000), limit);
}

#[test]
fn the_base_is_measured_once_a_period() {
    let (mut window, mut now) = grown(40);
    let limit = window.limit();
    now = now.max(Window::PERIOD_NS - 2);
    window.ended(1000, now);
    assert_eq!(window.limit(), limit, "too early");
    // The first measurement began with the first request, at 1000 ns.
    now = Window::PERIOD_NS + 1000;
    window.ended(1000, now);
    // The requests that were under way before, and four more.
    for n in 0..limit + 4 {
        assert_eq!(window.limit(), Window::MIN, "{n}");
        now += 1;
        // From now on everything takes longer.
        window.ended(50_000, now);
    }
    assert_eq!(window.limit(), limit);
    // By the new base nothing of that is late.
    assert!(round(&mut window, &mut now, limit, 100_000) > limit);
}
