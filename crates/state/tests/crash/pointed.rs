//! Scenarios that random runs meet too rarely.

use std::path::Path;

use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_io::{Caching, Disk, OpenMode, SimDisk};
use stillpoint_state::schemes::{Hourglass, NoCheckpoints, Piggyback, PingPong};
use stillpoint_state::{
    Advance, Background, Config, Every, Interleaved, Merge, Naive, Scheme, State, StateError,
};

use crate::world::{Handles, Model, OnState, contents, open, step};

type Hg = Hourglass<Interleaved>;

fn manual() -> Config {
    Config {
        background: Background::Manual,
        every: Every::OnRequest,
        block_bytes: 8192,
        recovery_threads: 1,
        ..Config::default()
    }
}

/// All scenarios, by name.
pub(crate) const SCENARIOS: &[(&str, fn())] = &[
    (
        "a damaged image is made up for by the one before",
        a_damaged_image_is_made_up_for_by_the_one_before,
    ),
    ("two damaged images are reported", two_damaged_images_are_reported),
    (
        "every flipped bit of a log is found or in its tail",
        every_flipped_bit_of_a_log_is_found_or_in_its_tail,
    ),
    ("a missing segment is a gap", a_missing_segment_is_a_gap),
    ("a damaged base is not merged", a_damaged_base_is_not_merged),
    ("a damaged base costs no other image", a_damaged_base_costs_no_other_image),
    ("an image that nothing makes up for is not passed over", an_image_is_not_passed_over),
    ("other arrays and other processes are refused", other_arrays_and_other_processes_are_refused),
    ("a state of another version is refused", a_state_of_another_version_is_refused),
    ("a state reopens under another scheme", a_state_reopens_under_another_scheme),
    (
        "a full disk stops ticks and reads go on until there is space",
        a_full_disk_stops_ticks_and_reads_go_on_until_there_is_space,
    ),
    (
        "a process that dies before its flush and a machine that dies after",
        a_process_that_dies_before_its_flush_and_a_machine_that_dies_after,
    ),
    ("a crash while an image is written is no damage", a_crash_while_an_image_is_written),
];

/// A tick with an action of its own.
fn tick<S: Scheme>(state: &mut State<S>, handles: Handles, model: &mut Model) {
    let action = (state.ticks() * 77 + 5).to_le_bytes();
    state.log(&action).expect("it is short");
    let ended = state.step(|cells, tick, actions| {
        step(&mut OnState(cells, handles), tick, actions);
    });
    step(model, ended.expect("the log is well"), [&action[..]]);
}

/// An image as of the end of another tick.
fn image<S: Scheme>(state: &mut State<S>, handles: Handles, model: &mut Model) {
    state.checkpoint();
    tick(state, handles, model);
    while state.flush_actions().expect("a disk") {}
    loop {
        match state.advance_writer().expect("a disk") {
            Advance::Durable { tick } => return assert_eq!(tick, state.ticks()),
            Advance::Wrote { .. } => {}
            Advance::Idle => panic!("there is a capture"),
        }
    }
}

/// Inverts a byte of a file, durably.
fn damage(disk: &SimDisk, path: &str, offset: u64) {
    let file = disk.open(Path::new(path), OpenMode::ReadWrite, Caching::Buffered).expect("a file");
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, offset).expect("a disk"), 1);
    file.write_at(&[byte[0] ^ 0x10], offset).expect("a disk");
    file.sync().expect("a disk");
}

/// A state with images at two ticks and actions behind each.
fn two_images<S: Scheme>(disk: &SimDisk) -> Model {
    let (mut state, recovered, handles) = open::<S>(disk, &manual(), 1).expect("a new state");
    assert!(recovered.is_new && recovered.image_tick.is_none());
    let mut model = Model::new();
    for _ in 0..2 {
        for _ in 0..10 {
            tick(&mut state, handles, &mut model);
        }
        image(&mut state, handles, &mut model);
    }
    for _ in 0..5 {
        tick(&mut state, handles, &mut model);
    }
    while state.flush_actions().expect("a disk") {}
    assert_eq!((state.durable_tick(), state.progress().snapshot().images), (27, 2));
    model
}

fn a_damaged_image_is_made_up_for_by_the_one_before() {
    let disk = SimDisk::new(1);
    let model = two_images::<Hg>(&disk);
    damage(&disk, "image-1", 8192 + 100);
    let (state, recovered, handles) = open::<Hg>(&disk, &manual(), 2).expect("the older image");
    assert_eq!((recovered.image_tick, recovered.replayed_ticks), (Some(11), 16));
    assert_eq!(recovered.damaged_images.len(), 1);
    let said = recovered.damaged_images[0].to_string();
    assert!(said.starts_with("/sim/image-1: state image block at byte 4096: checksum"), "{said}");
    assert!(contents(&*state, handles) == model);
}

fn two_damaged_images_are_reported() {
    let disk = SimDisk::new(1);
    two_images::<Piggyback<Interleaved>>(&disk);
    damage(&disk, "image-1", 9000);
    damage(&disk, "image-0", 9000);
    // The actions before the older image are removed, so no files lead to the state any more.
    let opened = open::<Piggyback<Interleaved>>(&disk, &manual(), 2);
    let said = opened.expect_err("never taken for an empty state").to_string();
    assert!(said.starts_with("/sim/image-1: state image block at byte"), "{said}");
}

fn every_flipped_bit_of_a_log_is_found_or_in_its_tail() {
    let disk = SimDisk::new(1);
    let (mut state, _, handles) =
        open::<NoCheckpoints<Naive>>(&disk, &manual(), 1).expect("a new state");
    let mut models = vec![Model::new()];
    for _ in 0..4 {
        let mut model = models.last().expect("a beginning").clone();
        tick(&mut state, handles, &mut model);
        models.push(model);
        assert!(state.flush_actions().expect("a disk"));
    }
    drop(state);
    let path = "actions/00000000000000000001";
    let batches = HEADER_BYTES as u64;
    for offset in [0, 20, 64, 80, batches, batches + 4, batches + 30, batches + 70, batches + 4000]
    {
        let copy = disk.crash_image(5);
        damage(&copy, path, offset);
        let opened = open::<NoCheckpoints<Naive>>(&copy, &manual(), 2);
        let said = match opened {
            Err(error @ StateError::Damaged { .. }) => error.to_string(),
            other => panic!("byte {offset}: {other:?}"),
        };
        assert!(said.contains(path) && said.contains("restore the file"), "{said}");
    }
    // The last batch looks as if it had been torn by a crash.
    let copy = disk.crash_image(5);
    damage(&copy, path, batches + 3 * 4096 + 70);
    let (state, recovered, handles) =
        open::<NoCheckpoints<Naive>>(&copy, &manual(), 2).expect("a torn tail");
    assert_eq!((recovered.tick, state.ticks()), (3, 3));
    assert!(contents(&*state, handles) == models[3]);
}

fn a_missing_segment_is_a_gap() {
    let disk = SimDisk::new(1);
    two_images::<Hg>(&disk);
    let segments = disk.list(Path::new("actions")).expect("a directory");
    assert_eq!(segments, ["00000000000000000012", "00000000000000000023"], "the first is gone");
    disk.remove(Path::new("image-1")).expect("a disk");
    disk.remove(&Path::new("actions").join(&segments[0])).expect("a disk");
    let error = open::<Hg>(&disk, &manual(), 2).expect_err("ticks are missing");
    assert!(matches!(error, StateError::Gap { expected: 12, found: 23, .. }), "{error}");
}

fn a_damaged_base_is_not_merged() {
    let disk = SimDisk::new(1);
    let config = Config { merge: Merge::FromDisk, ..manual() };
    let (mut state, _, handles) =
        open::<PingPong<Interleaved>>(&disk, &config, 1).expect("a new state");
    let mut model = Model::new();
    image(&mut state, handles, &mut model);
    damage(&disk, "image-0", 5000);
    state.checkpoint();
    tick(&mut state, handles, &mut model);
    let error = loop {
        match state.advance_writer() {
            Ok(Advance::Wrote { .. }) => {}
            Ok(other) => panic!("{other:?}: changes were laid over damaged bytes"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().starts_with("/sim/image-0: state image block"), "{error}");
    let failure = state.progress().snapshot().last_failure.expect("it failed");
    assert_eq!(failure.to_string(), error.to_string());
}

/// The newest of four images is damaged before a capture, or after some of its steps. Whenever the
/// machine then stops, the state is recovered, and the next capture makes a full image.
fn a_damaged_base_costs_no_other_image() {
    for steps in 0..4 {
        damage_base_after::<Hg>(steps);
        damage_base_after::<PingPong<Interleaved>>(steps);
    }
}

fn damage_base_after<S: Scheme>(steps: usize) {
    let at = format!("{:?}, damaged after {steps} steps", std::any::type_name::<S>());
    let disk = SimDisk::new(1);
    let config = Config { merge: Merge::FromDisk, ..manual() };
    let (mut state, _, handles) = open::<S>(&disk, &config, 1).expect("a new state");
    let mut model = Model::new();
    for _ in 0..4 {
        image(&mut state, handles, &mut model);
    }
    let newest = (0..3).map(|slot| format!("image-{slot}")).max_by_key(|name| capture(&disk, name));
    state.checkpoint();
    tick(&mut state, handles, &mut model);
    while state.flush_actions().expect("a disk") {}
    for _ in 0..steps {
        assert!(matches!(state.advance_writer(), Ok(Advance::Wrote { .. })), "{at}");
    }
    // The last block is not read yet.
    let block = stillpoint_format::state::BLOCK_BYTES_MIN;
    damage(&disk, &newest.expect("an image"), u64::from(block) * 2 + 4096 + 100);
    let mut failures = 0;
    loop {
        let advanced = state.advance_writer();
        let after = disk.crash_image(7);
        let (found, recovered, its_handles) =
            open::<S>(&after, &config, 2).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(contents(&*found, its_handles) == model, "{at}: {recovered:?}");
        match advanced {
            Ok(Advance::Durable { tick }) => break assert_eq!(tick, state.ticks(), "{at}"),
            Ok(Advance::Wrote { .. }) => {}
            Ok(Advance::Idle) => {
                state.checkpoint();
                tick(&mut state, handles, &mut model);
                while state.flush_actions().expect("a disk") {}
            }
            Err(error) => {
                assert!(matches!(error, StateError::Damaged { .. }), "{at}: {error}");
                failures += 1;
            }
        }
    }
    assert_eq!(failures, 1, "{at}");
    image(&mut state, handles, &mut model);
    drop(state);
    let (state, recovered, handles) = open::<S>(&disk.kill(), &config, 2).expect("it is there");
    assert_eq!((recovered.image_tick, recovered.damaged_images.len()), (Some(state.ticks()), 0));
    assert!(contents(&*state, handles) == model, "{at}");
}

/// The number of a whole image's capture.
fn capture(disk: &SimDisk, name: &str) -> Option<u64> {
    let bytes = stillpoint_io::read_all(disk, Path::new(name)).ok()?;
    Some(stillpoint_format::state::ImageHeader::decode(&bytes).ok()?.capture)
}

/// Without a log, no files lead to the tick of a damaged image. The state does not go on from an
/// older image, or from the beginning, unless somebody removes the file.
fn an_image_is_not_passed_over() {
    let disk = SimDisk::new(1);
    let config = Config { logs_actions: false, ..manual() };
    let (mut state, _, handles) = open::<Hg>(&disk, &config, 1).expect("a new state");
    for (slot, images) in [(0, 1), (1, 2)] {
        let (mut model, action) = (contents(&*state, handles), []);
        state.checkpoint();
        let ended = state.step(|cells, tick, actions| {
            step(&mut OnState(cells, handles), tick, actions);
        });
        step(&mut model, ended.expect("no log"), action);
        state.wait_durable(images).expect("an image");
        let copy = disk.crash_image(3);
        let name = format!("image-{slot}");
        damage(&copy, &name, 9000);
        let error = open::<Hg>(&copy, &config, 2).expect_err("an image is missed").to_string();
        assert!(error.starts_with(&format!("/sim/{name}: ")), "{error}");
        assert!(error.contains("no other file leads to its tick"), "{error}");
        copy.remove(Path::new(&name)).expect("a disk");
        let (state, ..) = open::<Hg>(&copy, &config, 2).expect("an older tick, knowingly");
        assert_eq!(state.ticks(), images - 1);
    }
}

fn other_arrays_and_other_processes_are_refused() {
    let disk = SimDisk::new(1);
    let model = two_images::<Hg>(&disk);
    let (state, _, handles) = open::<Hg>(&disk, &manual(), 2).expect("it is there");
    assert!(contents(&*state, handles) == model);
    let error = open::<Hg>(&disk, &manual(), 2).expect_err("it is open");
    assert!(error.to_string().starts_with("/sim/LOCK is locked: another process"), "{error}");
    drop(state);
    damage(&disk, "STATE", 70);
    let error = open::<Hg>(&disk, &manual(), 2).expect_err("the schema is damaged");
    assert!(matches!(error, StateError::Damaged { .. }), "{error}");
    disk.remove(Path::new("STATE")).expect("a disk");
    let error = open::<Hg>(&disk, &manual(), 2).expect_err("never taken for an empty state");
    assert!(matches!(error, StateError::SchemaMissing { .. }), "{error}");
}

fn a_state_of_another_version_is_refused() {
    let disk = SimDisk::new(1);
    drop(open::<Hg>(&disk, &manual(), 1).expect("a new state"));
    let path = Path::new("STATE");
    let file = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("a file");
    let old = include_bytes!("../../../format/tests/format/fixtures/v1/state-schema");
    file.write_at(old, 0).expect("a disk");
    let error = open::<Hg>(&disk, &manual(), 2).expect_err("version 1").to_string();
    assert!(
        error.starts_with("/sim/STATE has format version 1, and this release reads"),
        "{error}"
    );
    assert!(error.contains("open the state with the release that wrote it"), "{error}");
}

fn a_state_reopens_under_another_scheme() {
    let disk = SimDisk::new(1);
    let model = two_images::<Hg>(&disk);
    let (mut state, recovered, handles) =
        open::<PingPong<Naive>>(&disk, &manual(), 2).expect("images are the same for all");
    assert_eq!((recovered.image_tick, recovered.replayed_ticks), (Some(22), 5));
    let mut model = model;
    image(&mut state, handles, &mut model);
    drop(state);
    let (state, recovered, handles) =
        open::<Piggyback<Naive>>(&disk, &manual(), 2).expect("images are the same for all");
    assert_eq!((recovered.image_tick, recovered.replayed_ticks), (Some(28), 0));
    assert!(contents(&*state, handles) == model);
}

fn a_full_disk_stops_ticks_and_reads_go_on_until_there_is_space() {
    let disk = SimDisk::new(1);
    let config = Config { queue_bytes_max: 100, ..manual() };
    let (mut state, _, handles) = open::<Hg>(&disk, &config, 1).expect("a new state");
    let mut model = Model::new();
    tick(&mut state, handles, &mut model);
    disk.set_capacity(Some(0));
    let error = state.flush_actions().expect_err("there is no space");
    assert!(matches!(error, StateError::LogFull(_)), "{error}");
    assert_eq!(state.durable_tick(), 0, "never acknowledged");
    // The queue fills up.
    state.log(&[7; 200]).expect("it is short");
    let error = state.tick().expect_err("there is no room");
    assert!(error.to_string().contains("make room on the disk"), "{error}");
    assert_eq!(state.ticks(), 1);
    assert!(contents(&*state, handles) == model);
    disk.set_capacity(None);
    while state.flush_actions().expect("space again") {}
    assert_eq!((state.tick().expect("room again"), state.durable_tick()), (2, 1));
    while state.flush_actions().expect("a disk") {}
    assert_eq!(state.durable_tick(), 2);
}

fn a_process_that_dies_before_its_flush_and_a_machine_that_dies_after() {
    let disk = SimDisk::new(1);
    let (mut state, _, handles) = open::<Hg>(&disk, &manual(), 1).expect("a new state");
    let mut model = Model::new();
    // The last batch is written, but the death of the process cuts off its flush.
    tick(&mut state, handles, &mut model);
    assert!(state.flush_actions().expect("a disk"));
    tick(&mut state, handles, &mut model);
    disk.inject(stillpoint_io::FaultPlan {
        calls: vec![stillpoint_io::Call::Sync],
        nth: 1,
        fault: stillpoint_io::Fault::PowerLoss,
        lasts: stillpoint_io::Lasts::Once,
    });
    state.flush_actions().expect_err("the machine goes");
    drop(state);
    let next = disk.kill();
    let (state, recovered, handles) = open::<Hg>(&next, &manual(), 2).expect("it is there");
    let known = recovered.tick;
    assert_eq!(state.durable_tick(), known);
    if known == 2 {
        assert!(contents(&*state, handles) == model);
    }
    drop(state);
    for seed in 0..20 {
        let after = next.crash_image(seed);
        let (state, recovered, _) = open::<Hg>(&after, &manual(), 3).expect("it is there");
        assert!(recovered.tick >= known, "tick {known} was served and is gone: {}", state.ticks());
    }
}

fn a_crash_while_an_image_is_written() {
    for nth in 1..=4 {
        let disk = SimDisk::new(nth);
        let (mut state, _, handles) = open::<Hg>(&disk, &manual(), 1).expect("a new state");
        let mut model = Model::new();
        image(&mut state, handles, &mut model);
        state.checkpoint();
        tick(&mut state, handles, &mut model);
        while state.flush_actions().expect("a disk") {}
        let sync = vec![stillpoint_io::Call::Sync];
        let (fault, lasts) = (stillpoint_io::Fault::PowerLoss, stillpoint_io::Lasts::Once);
        disk.inject(stillpoint_io::FaultPlan { calls: sync, nth, fault, lasts });
        while !matches!(state.advance_writer(), Err(_) | Ok(Advance::Durable { .. })) {}
        for seed in 0..40 {
            let after = disk.crash_image(seed);
            let (state, recovered, handles) =
                open::<Hg>(&after, &manual(), 2).expect("it is there");
            let damaged = recovered.damaged_images;
            assert!(damaged.is_empty(), "flush {nth}, seed {seed}: {damaged:?}");
            assert!(contents(&*state, handles) == model, "flush {nth}, seed {seed}");
        }
    }
}
