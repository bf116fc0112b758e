//! Rows gathered by column, and written as Parquet in groups of bounded size
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
use wire::json::text::Text;
use wire::json::walk;
use wire::quantity;

use super::tables::{Column, Kind, Source};
use super::{ExportError, Table};

/// Rows of a group at most: what DuckDB reads at a time.
const GROUP_ROWS: u64 = 122_880;
/// Bytes of text of a group at most; data of logs and input of transactions may be long.
const GROUP_BYTES: usize = 64 << 20;

/// Values of a column that are not written yet.
enum Values {
    Numbers(Vec<i64>),
    Texts(Vec<ByteArray>),
}

struct Gathered {
    column: &'static Column,
    values: Values,
    /// For each row 1 if there is a value; only of columns where one may be missing.
    levels: Vec<i16>,
}

/// A file of one table.
pub(super) struct Writer {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    columns: Vec<Gathered>,
    rows: u64,
    bytes: usize,
    total: u64,
}

impl Writer {
    pub(super) fn new(path: &Path, file: File, table: Table) -> Result<Writer, ExportError> {
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
        let gathered = |column: &'static Column| Gathered {
            column,
            values: match column.kind {
                Kind::Number => Values::Numbers(Vec::new()),
                Kind::Text | Kind::Amount => Values::Texts(Vec::new()),
            },
            levels: Vec::new(),
        };
        let columns = columns.iter().map(gathered).collect();
        Ok(Writer { path: path.to_owned(), file, columns, rows: 0, bytes: 0, total: 0 })
    }

    /// Adds a row: raw objects, its own and the one that goes with it.
    pub(super) fn add(&mut self, number: u64, row: [&[u8]; 2]) -> Result<(), ExportError> {
        for gathered in &mut self.columns {
            let column = gathered.column;
            let odd = |allowed: &str| ExportError::Odd {
                number,
                what: format!("`{}`: must be {allowed}", column.name),
            };
            let value = find(column.from, row).filter(|raw| *raw != b"null");
            if column.maybe {
                gathered.levels.push(i16::from(value.is_some()));
            } else if value.is_none() && !matches!(column.from, Source::Count(_)) {
                return Err(odd("there"));
            }
            match (&mut gathered.values, value) {
                (Values::Numbers(numbers), value) => {
                    if let Source::Count(name) = column.from {
                        let listed = walk::member(row[0], name).unwrap_or_default();
                        numbers.push(walk::elements(listed).count() as i64);
                    } else if let Some(raw) = value {
                        let read = quantity::from_value(raw);
                        numbers.push(read.ok_or_else(|| odd("a quantity of 64 bits"))? as i64);
                    }
                }
                (Values::Texts(texts), Some(raw)) => {
                    let text = Text::from_value(raw).ok_or_else(|| odd("a string"))?;
                    let mut text = text.decode().into_owned();
                    if column.kind == Kind::Amount {
                        text = decimal(&text).ok_or_else(|| odd("a quantity of 256 bits"))?;
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

    /// Writes what is left; how many rows there are.
    pub(super) fn finish(mut self) -> Result<u64, ExportError> {
        self.write_group()?;
        let Writer { path, file, total, .. } = self;
        file.close().map_err(|error| failed(&path, &error))?;
        Ok(total)
    }

    fn write_group(&mut self) -> Result<(), ExportError> {
        if self.rows == 0 {
            return Ok(());
        }
        let Writer { path, file, columns, .. } = self;
        write_group(file, columns).map_err(|error| failed(path, &error))?;
        self.total += self.rows;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

fn write_group(
    file: &mut SerializedFileWriter<File>,
    columns: &mut [Gathered],
) -> Result<(), ParquetError> {
    let mut group = file.next_row_group()?;
    for gathered in columns {
        let Some(mut column) = group.next_column()? else { break };
        let levels = gathered.column.maybe.then_some(gathered.levels.as_slice());
        match &mut gathered.values {
            Values::Numbers(numbers) => {
                column.typed::<Int64Type>().write_batch(numbers, levels, None)?;
                numbers.clear();
            }
            Values::Texts(texts) => {
                column.typed::<ByteArrayType>().write_batch(texts, levels, None)?;
                texts.clear();
            }
        }
        gathered.levels.clear();
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
        Kind::Number => (Physical::INT64, LogicalType::integer(64, false)),
        Kind::Text | Kind::Amount => (Physical::BYTE_ARRAY, LogicalType::String),
    };
    let repetition = if column.maybe { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    Type::primitive_type_builder(column.name, physical)
        .with_logical_type(Some(logical))
        .with_repetition(repetition)
        .build()
}

fn find(from: Source, [own, other]: [&[u8]; 2]) -> Option<&[u8]> {
    match from {
        Source::Own(name) => walk::member(own, name),
        Source::Other(name) => walk::member(other, name),
        Source::Topic(at) => walk::elements(walk::member(own, "topics")?).nth(at),
        Source::Count(_) => None,
    }
}

/// A quantity in decimal digits.
fn decimal(text: &[u8]) -> Option<Vec<u8>> {
    let digits = std::str::from_utf8(text.strip_prefix(b"0x")?).ok()?;
    let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = plain.then(|| U256::from_str_radix(digits, 16).ok())??;
    Some(number.to_string().into_bytes())
}
