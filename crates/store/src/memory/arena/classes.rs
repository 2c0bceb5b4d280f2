//! Sizes of slabs and cells.

use stillpoint_mem::HUGE_PAGE_BYTES;

/// Bytes of a slab.
pub(crate) const SLAB_BYTES: usize = HUGE_PAGE_BYTES;
/// Numbers of cells count in units of this size, in bytes.
pub(super) const UNIT_BYTES: usize = 16;
pub(crate) const UNITS_PER_SLAB: u64 = (SLAB_BYTES / UNIT_BYTES) as u64;
/// Most cells, and most bytes, that a cache takes from the arena at a time.
const RUN_CELLS_MAX: usize = 64;
const RUN_BYTES_MAX: usize = 64 << 10;
/// Cell sizes in bytes. Steps of 16 up to 192, then at most a quarter; the last holds a chunk or
/// the table of a large value.
pub(super) const CLASS_BYTES: [usize; 41] = [
    32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640,
    768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288,
    16384, 20480, 24576, 32768, 49152, 65600,
];

/// Most cells of a slab.
pub(crate) const CELLS_PER_SLAB_MAX: usize = SLAB_BYTES / CLASS_BYTES[0];

/// Per size class, the cells of a run.
pub(super) const RUN_CELLS: [usize; CLASS_BYTES.len()] = {
    let mut runs = [RUN_CELLS_MAX; CLASS_BYTES.len()];
    let mut class = 0;
    while class < runs.len() {
        let cells = RUN_BYTES_MAX.div_ceil(CLASS_BYTES[class]);
        if cells < RUN_CELLS_MAX {
            runs[class] = cells;
        }
        class += 1;
    }
    runs
};

/// The largest allocation in bytes.
pub(crate) const CELL_BYTES_MAX: usize = CLASS_BYTES[CLASS_BYTES.len() - 1];

/// Sizes up to this one find their class in a table.
const SMALL_BYTES_MAX: usize = 2048;

/// Class of a size, in units.
const SMALL_CLASSES: [u8; SMALL_BYTES_MAX / UNIT_BYTES + 1] = {
    let mut classes = [0; SMALL_BYTES_MAX / UNIT_BYTES + 1];
    let (mut units, mut class) = (0, 0);
    while units < classes.len() {
        if CLASS_BYTES[class] < units * UNIT_BYTES {
            class += 1;
        }
        classes[units] = class as u8;
        units += 1;
    }
    classes
};

#[inline]
pub(super) fn class_for(bytes: usize) -> usize {
    match SMALL_CLASSES.get(bytes.div_ceil(UNIT_BYTES)) {
        Some(&class) => usize::from(class),
        None => CLASS_BYTES.partition_point(|&class| class < bytes),
    }
}

/// Bytes of the smallest cell of at least so many bytes.
pub(crate) fn bytes_of_class(bytes: usize) -> usize {
    CLASS_BYTES[class_for(bytes)]
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_third() {
        for bytes in 33..=CELL_BYTES_MAX {
            let class = CLASS_BYTES[class_for(bytes)];
            assert!(class >= bytes && class <= bytes + bytes / 2 + 16, "{bytes} in {class}");
            let least = CLASS_BYTES.partition_point(|&class| class < bytes);
            assert_eq!(class_for(bytes), least, "{bytes}");
        }
        assert!(CLASS_BYTES.iter().all(|bytes| bytes % UNIT_BYTES == 0));
        assert!(CLASS_BYTES.is_sorted());
    }
}
