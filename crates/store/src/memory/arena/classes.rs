//! Sizes of cells, and how slabs hold them.

use stillpoint_mem::HUGE_PAGE_BYTES;

/// Numbers of cells count in units of this size, in bytes. Every size of cells is a multiple of it.
pub(super) const UNIT_BYTES: usize = 16;
const IS_MODEL: bool = cfg!(any(loom, shuttle));
/// Bytes of a narrow slab. Models have little memory, and one slab in each group.
pub(crate) const SLAB_BYTES: usize = if IS_MODEL { HUGE_PAGE_BYTES } else { 64 << 10 };
pub(crate) const UNITS_PER_SLAB: u64 = (SLAB_BYTES / UNIT_BYTES) as u64;
/// A group of slabs lies on one huge page.
pub(crate) const SLABS_PER_GROUP: usize = HUGE_PAGE_BYTES / SLAB_BYTES;
/// Slabs that a wide slab takes the place of, at a multiple of this number.
const WIDTH: usize = if IS_MODEL { 1 } else { 8 };
/// Larger cells lie in wide slabs.
const NARROW_BYTES_MAX: usize = 4 << 10;
/// Most cells of a slab.
pub(crate) const CELLS_PER_SLAB_MAX: usize = SLAB_BYTES / CLASS_BYTES[0];

/// Sizes beside the last one: steps of 16 bytes up to 128, and then of an eighth at most. The sizes above
/// are chosen so that slabs are filled nearly to the end.
const fn class_after(bytes: usize) -> usize {
    let most = bytes * 9 / 8 / UNIT_BYTES * UNIT_BYTES;
    let most = if most == bytes { bytes + UNIT_BYTES } else { most };
    let bound = if bytes < NARROW_BYTES_MAX { NARROW_BYTES_MAX } else { LARGEST };
    let most = if most > bound { bound } else { most };
    let slab = if bytes < NARROW_BYTES_MAX { 64 << 10 } else { 512 << 10usize };
    // The largest size below with which as few bytes are left over as with `most`, or fewer.
    let even = slab / (slab / most) / UNIT_BYTES * UNIT_BYTES;
    let fewer = slab / slab.div_ceil(most) / UNIT_BYTES * UNIT_BYTES;
    if most == bound || even == most {
        most
    } else if fewer > bytes {
        fewer
    } else {
        most
    }
}

/// The largest size but one, which has room for a chunk of a large value.
const LARGEST: usize = 64 << 10;
/// The largest allocation in bytes: the table of the longest value.
pub(crate) const CELL_BYTES_MAX: usize = 65_600;
const FIRST: usize = 32;

const CLASSES: usize = {
    let (mut count, mut bytes) = (2, FIRST);
    while bytes < LARGEST {
        bytes = class_after(bytes);
        count += 1;
    }
    count
};

/// Cell sizes in bytes.
pub(super) const CLASS_BYTES: [usize; CLASSES] = {
    let mut sizes = [FIRST; CLASSES];
    let mut class = 1;
    while class < CLASSES - 1 {
        sizes[class] = class_after(sizes[class - 1]);
        class += 1;
    }
    sizes[class] = CELL_BYTES_MAX;
    sizes
};

/// Most cells, and most bytes, that a cache takes from the arena at a time.
const RUN_CELLS_MAX: usize = 64;
const RUN_BYTES_MAX: usize = 16 << 10;

/// Per size class, the cells of a run.
pub(super) const RUN_CELLS: [usize; CLASSES] = {
    let mut runs = [RUN_CELLS_MAX; CLASSES];
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

/// Sizes up to this one find their class in a table.
const SMALL_BYTES_MAX: usize = 2304;

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

/// Bytes of the cells of a class. 0 if there is no such class.
pub(crate) fn class_bytes(class: u8) -> usize {
    CLASS_BYTES.get(usize::from(class)).copied().unwrap_or(0)
}

/// Bytes of the smallest cell of at least so many bytes.
pub(crate) fn bytes_of_class(bytes: usize) -> usize {
    CLASS_BYTES[class_for(bytes)]
}

/// Narrow slabs that a slab of this class takes the place of. A whole chunk of a large value fills a
/// narrow slab.
pub(super) fn width_of(class: u8) -> usize {
    match CLASS_BYTES[usize::from(class)] {
        LARGEST => 1,
        bytes if bytes <= NARROW_BYTES_MAX => 1,
        _ => WIDTH,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_an_eighth_at_most() {
        for bytes in 33..=CELL_BYTES_MAX {
            let class = CLASS_BYTES[class_for(bytes)];
            assert!(class >= bytes && class <= bytes + bytes / 8 + 15, "{bytes} in {class}");
            let least = CLASS_BYTES.partition_point(|&class| class < bytes);
            assert_eq!(class_for(bytes), least, "{bytes}");
        }
        assert!(CLASS_BYTES.iter().all(|bytes| bytes % UNIT_BYTES == 0));
        assert!(CLASS_BYTES.is_sorted());
        assert!(CLASS_BYTES.contains(&NARROW_BYTES_MAX) && CLASS_BYTES.contains(&LARGEST));
    }

    #[test]
    fn slabs_are_filled_nearly_to_the_end() {
        for (class, bytes) in CLASS_BYTES.into_iter().enumerate().take(CLASS_BYTES.len() - 1) {
            let slab = width_of(class as u8) * SLAB_BYTES;
            let left = slab % bytes;
            assert!(left * 50 <= slab, "{left} bytes are left over with cells of {bytes}");
        }
    }
}
