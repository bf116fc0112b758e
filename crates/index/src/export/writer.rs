//! Writes a table as a Parquet file. Rows are buffered by column and written in row groups of
//! bounded size (<https://parquet.apache.org/docs/file-format/>).

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

/// Maximum number of rows of a row group. DuckDB reads this many rows at once.
const GROUP_ROWS: u64 = 122_880;
/// Bytes of text at which a row group ends. The limit bounds memory, because logs and transactions
/// may have long data.
const GROUP_BYTES: usize = 64 << 20;

/// Buffered values of a column.
enum Values {
    Numbers(Vec<i64>),
    Texts(Vec<ByteArray>),
}

/// A column with its buffered values.
struct ColumnBuffer {
    column: &'static Column,
    values: Values,
    /// Parquet's definition level of each row: 1 if the row has a value, else 0. Empty for required
    /// columns.
    definition_levels: Vec<i16>,
}

/// Writes the file of one table.
pub(super) struct TableWriter {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    columns: Vec<ColumnBuffer>,
    /// Number of buffered rows.
    buffered_rows: u64,
    /// Bytes of buffered text.
    buffered_bytes: usize,
    /// Number of rows in the row groups that were written.
    written_rows: u64,
}

impl TableWriter {
    /// Creates a writer to this file. Errors name the path.
    pub(super) fn new(path: &Path, file: File, table: Table) -> Result<TableWriter, ExportError> {
        let map_error = |error: ParquetError| parquet_error(path, &error);
        let columns = table.columns();
        let mut fields = Vec::new();
        for column in columns {
            fields.push(Arc::new(parquet_type(column).map_err(map_error)?));
        }
        let schema = Type::group_type_builder(table.name()).with_fields(fields).build();
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("weir {}", env!("CARGO_PKG_VERSION")))
            .build();
        let schema = Arc::new(schema.map_err(map_error)?);
        let file =
            SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(map_error)?;
        let new_buffer = |column: &'static Column| ColumnBuffer {
            column,
            values: match column.kind {
                ColumnType::Number => Values::Numbers(Vec::new()),
                ColumnType::Text | ColumnType::Amount => Values::Texts(Vec::new()),
            },
            definition_levels: Vec::new(),
        };
        let columns = columns.iter().map(new_buffer).collect();
        Ok(TableWriter {
            path: path.to_owned(),
            file,
            columns,
            buffered_rows: 0,
            buffered_bytes: 0,
            written_rows: 0,
        })
    }

    /// Adds a row. Errors name its block by `block_number`. `objects` are the raw object of the row
    /// and its raw related object. For a transaction the related object is its receipt, and for a
    /// log it is its block.
    pub(super) fn add(
        &mut self,
        block_number: u64,
        objects: [&[u8]; 2],
    ) -> Result<(), ExportError> {
        for buffer in &mut self.columns {
            let column = buffer.column;
            let unfit_error = |allowed: &str| ExportError::Unfit {
                block: block_number,
                description: format!("`{}`: must be {allowed}", column.name),
            };
            let value = find_value(column.source, objects).filter(|raw| *raw != b"null");
            if column.optional {
                buffer.definition_levels.push(i16::from(value.is_some()));
            } else if value.is_none() && !matches!(column.source, Source::Count(_)) {
                return Err(unfit_error("present"));
            }
            match (&mut buffer.values, value) {
                (Values::Numbers(numbers), value) => {
                    if let Source::Count(name) = column.source {
                        let array = walk::member(objects[0], name).unwrap_or_default();
                        numbers.push(walk::elements(array).count() as i64);
                    } else if let Some(raw) = value {
                        let number = quantity::from_value(raw);
                        numbers.push(
                            number.ok_or_else(|| unfit_error("a quantity of 64 bits"))? as i64
                        );
                    }
                }
                (Values::Texts(texts), Some(raw)) => {
                    let text =
                        JsonString::from_value(raw).ok_or_else(|| unfit_error("a string"))?;
                    let mut text = text.decode().into_owned();
                    if column.kind == ColumnType::Amount {
                        text = to_decimal(&text)
                            .ok_or_else(|| unfit_error("a quantity of 256 bits"))?;
                    }
                    self.buffered_bytes += text.len();
                    texts.push(text.into());
                }
                (Values::Texts(_), None) => {}
            }
        }
        self.buffered_rows += 1;
        if self.buffered_rows >= GROUP_ROWS || self.buffered_bytes >= GROUP_BYTES {
            self.write_group()?;
        }
        Ok(())
    }

    /// Writes the buffered rows, closes the file, and returns the number of all rows.
    pub(super) fn finish(mut self) -> Result<u64, ExportError> {
        self.write_group()?;
        let TableWriter { path, file, written_rows, .. } = self;
        file.close().map_err(|error| parquet_error(&path, &error))?;
        Ok(written_rows)
    }

    /// Writes the buffered rows as a row group.
    fn write_group(&mut self) -> Result<(), ExportError> {
        if self.buffered_rows == 0 {
            return Ok(());
        }
        let TableWriter { path, file, columns, .. } = self;
        write_columns(file, columns).map_err(|error| parquet_error(path, &error))?;
        self.written_rows += self.buffered_rows;
        (self.buffered_rows, self.buffered_bytes) = (0, 0);
        Ok(())
    }
}

/// Writes the buffered values of all columns as a row group, and clears the buffers.
fn write_columns(
    file: &mut SerializedFileWriter<File>,
    columns: &mut [ColumnBuffer],
) -> Result<(), ParquetError> {
    let mut group = file.next_row_group()?;
    for buffer in columns {
        let Some(mut column) = group.next_column()? else { break };
        let definition_levels =
            buffer.column.optional.then_some(buffer.definition_levels.as_slice());
        match &mut buffer.values {
            Values::Numbers(numbers) => {
                column.typed::<Int64Type>().write_batch(numbers, definition_levels, None)?;
                numbers.clear();
            }
            Values::Texts(texts) => {
                column.typed::<ByteArrayType>().write_batch(texts, definition_levels, None)?;
                texts.clear();
            }
        }
        buffer.definition_levels.clear();
        column.close()?;
    }
    group.close()?;
    Ok(())
}

fn parquet_error(path: &Path, error: &ParquetError) -> ExportError {
    ExportError::Parquet { path: path.to_owned(), message: error.to_string() }
}

fn parquet_type(column: &Column) -> Result<Type, ParquetError> {
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

/// Returns the raw value of a source. Returns `None` if the value is missing or has to be counted.
fn find_value(source: Source, [row, related]: [&[u8]; 2]) -> Option<&[u8]> {
    match source {
        Source::Row(name) => walk::member(row, name),
        Source::Related(name) => walk::member(related, name),
        Source::Topic(index) => walk::elements(walk::member(row, "topics")?).nth(index),
        Source::Count(_) => None,
    }
}

/// Converts a quantity of up to 256 bits to decimal digits. Returns `None` for any other text.
fn to_decimal(text: &[u8]) -> Option<Vec<u8>> {
    let digits = std::str::from_utf8(text.strip_prefix(b"0x")?).ok()?;
    let is_hexadecimal =
        !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = is_hexadecimal.then(|| U256::from_str_radix(digits, 16).ok())??;
    Some(number.to_string().into_bytes())
}
