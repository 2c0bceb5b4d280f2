//! Before-images in the bodies of [`UndoWrites`](super::RecordKind::UndoWrites) and
//! [`UndoCommand`](super::RecordKind::UndoCommand) records: what the transaction has overwritten.
//!
//! ```text
//! undo writes  = length of the images u32 · images · writes
//! undo command = length of the images u32 · images · command
//! ```
//! The images have the form of writes, one for each key that the transaction writes. A put is the whole
//! value of before, and a deletion says that there was none. A patch has the bytes of before, in ranges
//! that lie inside that value. Splices make the value of before of the one that the transaction has left.

use crate::bytes::Cursor;
use crate::error::{DecodeCause, DecodeError, EncodeError};

use super::record::RECORD_BYTES_MAX;
use super::write::{Write, WriteIter, WriteOp, WritesEncoder};

const WHAT: &str = "log record with before-images";
const LENGTH_BYTES: usize = 4;

/// Appends the before-images of a transaction to the body of its record. The rest of the body follows.
///
/// # Errors
/// Those of `images`, or the images are longer than a record.
pub fn encode_before_images(
    out: &mut Vec<u8>,
    images: impl FnOnce(&mut WritesEncoder<'_>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    images(&mut WritesEncoder::new(out))?;
    let bytes = out.len() - start - LENGTH_BYTES;
    if bytes > RECORD_BYTES_MAX {
        return Err(EncodeError::RecordTooLong { bytes, max: RECORD_BYTES_MAX });
    }
    out[start..start + LENGTH_BYTES].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(())
}

/// Bytes, and their offset in the file.
type Bytes<'a> = (&'a [u8], u64);

/// The before-images in a body, and the rest of it.
#[inline]
pub(super) fn split(body: &[u8], offset: u64) -> Result<(Bytes<'_>, Bytes<'_>), DecodeError> {
    let mut rest = Cursor::new(body, offset, WHAT);
    let bytes = rest.u32()? as usize;
    let images_at = rest.offset();
    let images = rest.take(bytes)?;
    Ok(((images, images_at), (rest.rest(), offset + (LENGTH_BYTES + bytes) as u64)))
}

/// Decodes all before-images of a record and compares them with its writes.
pub(super) fn check(images: WriteIter<'_>, mut writes: WriteIter<'_>) -> Result<(), DecodeError> {
    let offset = images.undecoded().1;
    let wrong = |why| DecodeError { what: WHAT, offset, cause: DecodeCause::Inconsistent(why) };
    for image in images {
        let (image, write) = (image?, writes.next().transpose()?);
        let write = write.ok_or_else(|| wrong("more before-images than writes"))?;
        let key = |of: &Write<'_>| (of.table, of.generation, of.key.len());
        if key(&image) != key(&write) || image.key != write.key {
            return Err(wrong("a before-image is of another key than its write"));
        }
        // A value that a commit has put as a whole says nothing about the one before it.
        let is_part = |op: &WriteOp<'_>| !matches!(op, WriteOp::Put { .. } | WriteOp::Delete);
        if is_part(&image.op) && !is_part(&write.op) {
            return Err(wrong("a before-image is a part of a value that was written as a whole"));
        }
    }
    match writes.next() {
        Some(_) => Err(wrong("fewer before-images than writes")),
        None => Ok(()),
    }
}
