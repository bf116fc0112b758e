//! Writes rows as Parquet, by column and in row groups of bounded size
//! (<https://parquet.apache.org/docs/file-format/>).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alloy_primitives::U256;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use wire::json::string::JsonString;
use wire::json::walk;
use wire::quantity;

use super::error::ExportError;
use super::schema::{Column, ColumnType, Source, Table};

/// Maximum number of rows of a row group: those that DuckDB reads at once.
const GROUP_ROWS: u64 = 122_880;
/// Maximum number of bytes of text of a row group, since logs and transactions may have long data.
const GROUP_BYTES: usize = 64 << 20;

/// Buffered values of a column.
enum Values {
    Numbers(Vec<i64>),
    Texts(Vec<ByteArray>),
}

struct ColumnBuffer {
    column: &'static Column,
    values: Values,
    /// By row: 1 if there is a value. Empty for required columns.
    levels: Vec<i16>,
}

/// Writes the file of one table.
pub(super) struct TableWriter {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    columns: Vec<ColumnBuffer>,
    /// Buffered rows.
    rows: u64,
    /// Bytes of buffered text.
    bytes: usize,
    /// All rows so far.
    total: u64,
}

impl TableWriter {
    pub(super) fn new(path: &Path, file: File, table: Table) -> Result<TableWriter, ExportError> {
        let failed = |error: ParquetError| failed(path, &error);
        let columns = table.columns();
        let mut fields = Vec::new();
        for column in columns {
            fields.push(Arc::new(field(column).map_err(failed)?));
        }
        let schema = Type::group_type_builder(table.name()).with_fields(fields).build();
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("weir {}", env!("CARGO_PKG_VERSION")))
            .build();
        let schema = Arc::new(schema.map_err(failed)?);
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(failed)?;
        let buffer = |column: &'static Column| ColumnBuffer {
            column,
            values: match column.kind {
                ColumnType::Number => Values::Numbers(Vec::new()),
                ColumnType::Text | ColumnType::Amount => Values::Texts(Vec::new()),
            },
            levels: Vec::new(),
        };
        let columns = columns.iter().map(buffer).collect();
        Ok(TableWriter { path: path.to_owned(), file, columns, rows: 0, bytes: 0, total: 0 })
    }

    /// Adds a row from its own raw object and the related one.
    pub(super) fn add(&mut self, number: u64, row: [&[u8]; 2]) -> Result<(), ExportError> {
        for buffer in &mut self.columns {
            let column = buffer.column;
            let unfit = |allowed: &str| ExportError::Unfit {
                number,
                what: format!("`{}`: must be {allowed}", column.name),
            };
            let value = find(column.source, row).filter(|raw| *raw != b"null");
            if column.optional {
                buffer.levels.push(i16::from(value.is_some()));
            } else if value.is_none() && !matches!(column.source, Source::Count(_)) {
                return Err(unfit("present"));
            }
            match (&mut buffer.values, value) {
                (Values::Numbers(numbers), value) => {
                    if let Source::Count(name) = column.source {
                        let listed = walk::member(row[0], name).unwrap_or_default();
                        numbers.push(walk::elements(listed).count() as i64);
                    } else if let Some(raw) = value {
                        let read = quantity::from_value(raw);
                        numbers.push(read.ok_or_else(|| unfit("a quantity of 64 bits"))? as i64);
                    }
                }
                (Values::Texts(texts), Some(raw)) => {
                    let text = JsonString::from_value(raw).ok_or_else(|| unfit("a string"))?;
                    let mut text = text.decode().into_owned();
                    if column.kind == ColumnType::Amount {
                        text = decimal(&text).ok_or_else(|| unfit("a quantity of 256 bits"))?;
                    }
                    self.bytes += text.len();
                    texts.push(text.into());
                }
                (Values::Texts(_), None) => {}
            }
        }
        self.rows += 1;
        if self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.write_group()?;
        }
        Ok(())
    }

    /// Writes the buffered rows, closes the file, and returns the number of all rows.
    pub(super) fn finish(mut self) -> Result<u64, ExportError> {
        self.write_group()?;
        let TableWriter { path, file, total, .. } = self;
        file.close().map_err(|error| failed(&path, &error))?;
        Ok(total)
    }

    fn write_group(&mut self) -> Result<(), ExportError> {
        if self.rows == 0 {
            return Ok(());
        }
        let TableWriter { path, file, columns, .. } = self;
        write_group(file, columns).map_err(|error| failed(path, &error))?;
        self.total += self.rows;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

fn write_group(
    file: &mut SerializedFileWriter<File>,
    columns: &mut [ColumnBuffer],
) -> Result<(), ParquetError> {
    let mut group = file.next_row_group()?;
    for buffer in columns {
        let Some(mut column) = group.next_column()? else { break };
        let levels = buffer.column.optional.then_some(buffer.levels.as_slice());
        match &mut buffer.values {
            Values::Numbers(numbers) => {
                column.typed::<Int64Type>().write_batch(numbers, levels, None)?;
                numbers.clear();
            }
            Values::Texts(texts) => {
                column.typed::<ByteArrayType>().write_batch(texts, levels, None)?;
                texts.clear();
            }
        }
        buffer.levels.clear();
        column.close()?;
    }
    group.close()?;
    Ok(())
}

fn failed(path: &Path, error: &ParquetError) -> ExportError {
    ExportError::Parquet { path: path.to_owned(), why: error.to_string() }
}

fn field(column: &Column) -> Result<Type, ParquetError> {
    let (physical, logical) = match column.kind {
        ColumnType::Number => (Physical::INT64, LogicalType::integer(64, false)),
        ColumnType::Text | ColumnType::Amount => (Physical::BYTE_ARRAY, LogicalType::String),
    };
    let repetition = if column.optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    Type::primitive_type_builder(column.name, physical)
        .with_logical_type(Some(logical))
        .with_repetition(repetition)
        .build()
}

/// Returns the raw value of a source, or `None` if it is missing or is a count.
fn find(source: Source, [own, other]: [&[u8]; 2]) -> Option<&[u8]> {
    match source {
        Source::Own(name) => walk::member(own, name),
        Source::Other(name) => walk::member(other, name),
        Source::Topic(at) => walk::elements(walk::member(own, "topics")?).nth(at),
        Source::Count(_) => None,
    }
}

/// Converts a quantity to decimal digits.
fn decimal(text: &[u8]) -> Option<Vec<u8>> {
    let digits = std::str::from_utf8(text.strip_prefix(b"0x")?).ok()?;
    let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = plain.then(|| U256::from_str_radix(digits, 16).ok())??;
    Some(number.to_string().into_bytes())
}
