//! Tables of Stillpoint as files of Apache Arrow's IPC format, which data frames, notebooks and SQL engines
//! read.
//!
//! | column | type | what |
//! |---|---|---|
//! | `key` | binary | key |
//! | `tag` | uint8 | tag of the value |
//! | `value` | binary | value |
//! | `expires` | timestamp in milliseconds, UTC; null if the key does not expire | when the key expires |
//!
//! The metadata of the schema name the table, under `stillpoint:table`. Records come in no order, in record
//! batches of some MiB. So neither a writer nor a reader holds the whole table.
//!
//! The product's default build leaves this crate out, since Arrow is large. The feature `arrow` of the program
//! adds `stillpoint export --arrow`.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, TimestampMillisecondBuilder, UInt8Builder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use stillpoint::{Engine, TableId};

/// Key of the schema's metadata whose value is the name of the table.
pub const TABLE: &str = "stillpoint:table";
/// Records of a record batch, at most.
const BATCH_RECORDS: usize = 1 << 16;
/// Bytes of keys and values after which a record batch ends.
const BATCH_BYTES: usize = 4 << 20;
const UTC: &str = "UTC";

/// The reason why a table cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// There is no such table.
    #[error("there is no table {name}; there are: {}", tables.join(", "))]
    NoSuchTable {
        /// The name that was asked for.
        name: String,
        /// Names of all tables.
        tables: Vec<String>,
    },
    /// The snapshot failed, or ended early. What was written is no whole file.
    #[error(transparent)]
    Engine(#[from] stillpoint::Error),
    /// The file cannot be written.
    #[error("writing the Arrow file: {0}")]
    Arrow(#[from] ArrowError),
}

impl ExportError {
    /// The error of the output if that is the reason, as a reader that has closed the pipe. Otherwise another
    /// error of I/O that tells the reason.
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Arrow(ArrowError::IoError(_, error)) => error,
            other => io::Error::other(other),
        }
    }
}

/// A writer of one table's records. The file is whole only after [`finish`](Self::finish): a reader tells one
/// that was cut off, since the footer comes last.
///
/// ```
/// let mut file = stillpoint_arrow::TableFile::new(Vec::new(), "pets")?;
/// file.push(b"rex", 0, b"dog", None)?;
/// let (records, bytes) = file.finish()?;
/// assert_eq!(records, 1);
/// assert!(bytes.starts_with(b"ARROW1"));
/// # Ok::<(), stillpoint_arrow::ExportError>(())
/// ```
pub struct TableFile<W: Write> {
    writer: FileWriter<W>,
    schema: SchemaRef,
    keys: BinaryBuilder,
    tags: UInt8Builder,
    values: BinaryBuilder,
    expiries: TimestampMillisecondBuilder,
    batch_records: usize,
    batch_bytes: usize,
    records: u64,
}

impl<W: Write> fmt::Debug for TableFile<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableFile").field("records", &self.records).finish_non_exhaustive()
    }
}

impl<W: Write> TableFile<W> {
    /// Begins a file. Writes are small, so `out` should gather them.
    ///
    /// # Errors
    /// [`ExportError::Arrow`].
    pub fn new(out: W, table: &str) -> Result<Self, ExportError> {
        let schema = schema(table);
        Ok(Self {
            writer: FileWriter::try_new(out, &schema)?,
            schema,
            keys: BinaryBuilder::new(),
            tags: UInt8Builder::new(),
            values: BinaryBuilder::new(),
            expiries: expiries(),
            batch_records: 0,
            batch_bytes: 0,
            records: 0,
        })
    }

    /// Adds a record. `expires_ms` is in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`ExportError::Arrow`].
    pub fn push(
        &mut self,
        key: &[u8],
        tag: u8,
        value: &[u8],
        expires_ms: Option<u64>,
    ) -> Result<(), ExportError> {
        self.keys.append_value(key);
        self.tags.append_value(tag);
        self.values.append_value(value);
        // A time that Arrow cannot say is later than any clock shows.
        self.expiries.append_option(expires_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX)));
        self.records += 1;
        self.batch_records += 1;
        self.batch_bytes += key.len() + value.len();
        if self.batch_records >= BATCH_RECORDS || self.batch_bytes >= BATCH_BYTES {
            self.end_batch()?;
        }
        Ok(())
    }

    /// Ends the file. Returns the number of its records, and what it was written to.
    ///
    /// # Errors
    /// [`ExportError::Arrow`].
    pub fn finish(mut self) -> Result<(u64, W), ExportError> {
        if self.batch_records > 0 {
            self.end_batch()?;
        }
        let mut out = self.writer.into_inner()?;
        out.flush().map_err(ArrowError::from)?;
        Ok((self.records, out))
    }

    fn end_batch(&mut self) -> Result<(), ExportError> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.keys.finish()),
            Arc::new(self.tags.finish()),
            Arc::new(self.values.finish()),
            Arc::new(self.expiries.finish()),
        ];
        self.expiries = expiries();
        (self.batch_records, self.batch_bytes) = (0, 0);
        self.writer.write(&RecordBatch::try_new(self.schema.clone(), columns)?)?;
        Ok(())
    }
}

fn expiries() -> TimestampMillisecondBuilder {
    TimestampMillisecondBuilder::new().with_timezone(UTC)
}

fn schema(table: &str) -> SchemaRef {
    let fields = vec![
        Field::new("key", DataType::Binary, false),
        Field::new("tag", DataType::UInt8, false),
        Field::new("value", DataType::Binary, false),
        Field::new("expires", DataType::Timestamp(TimeUnit::Millisecond, Some(UTC.into())), true),
    ];
    let metadata = HashMap::from([(TABLE.to_owned(), table.to_owned())]);
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

/// Writes a table as of now into `out`, from a [snapshot](Engine::snapshot) of the store. Commits go on
/// meanwhile. Returns the number of records and `out`.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
/// let pets = engine.table("pets")?;
/// let mut session = engine.session()?;
/// session.transact(|tx| tx.put(pets, b"rex", b"dog"))?;
/// let (records, _bytes) = stillpoint_arrow::export_table(&engine, "pets", Vec::new())?;
/// assert_eq!(records, 1);
/// # drop(session);
/// # engine.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ExportError::NoSuchTable`]; those of [`Engine::snapshot`] and of its batches; those of `out`.
pub fn export_table<W: Write>(
    engine: &Engine,
    table: &str,
    out: W,
) -> Result<(u64, W), ExportError> {
    let mut snapshot = engine.snapshot()?;
    let wanted = find(snapshot.tables(), table)?;
    let mut file = TableFile::new(out, table)?;
    while let Some(batch) = snapshot.next_batch()? {
        for record in batch.records().filter(|record| record.table == wanted) {
            file.push(record.key, record.tag, record.value, record.deadline)?;
        }
    }
    file.finish()
}

fn find<'a>(
    tables: impl Iterator<Item = (TableId, &'a str)>,
    name: &str,
) -> Result<TableId, ExportError> {
    let mut names = Vec::new();
    for (id, its) in tables {
        if its == name {
            return Ok(id);
        }
        names.push(its.to_owned());
    }
    names.sort_unstable();
    Err(ExportError::NoSuchTable { name: name.to_owned(), tables: names })
}
