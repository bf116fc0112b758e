//! Reads JSON objects and arrays in one pass, on top of the JSON cursor of the crate `wire`. A
//! value of another type than expected is an [`Error`].

use wire::json::cursor;
use wire::json::cursor::Malformed;

use super::error::{Error, ErrorKind};
use super::fields::{Fields, Layout};

/// A position in raw JSON that has been validated before.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    json: cursor::Cursor<'a>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(raw: &'a [u8]) -> Self {
        Self { json: cursor::Cursor::new(raw) }
    }

    /// Enters the next value, which must be an object.
    pub(super) fn open_object(&mut self) -> Result<(), Error> {
        self.open(b'{', "an object")
    }

    /// Enters the next value, which must start with this bracket. `allowed` is the type in errors.
    fn open(&mut self, bracket: u8, allowed: &'static str) -> Result<(), Error> {
        if self.json.open(bracket) {
            return Ok(());
        }
        let value = self.value()?;
        if value == b"null" {
            Err(Error::missing(allowed))
        } else {
            Err(Error::malformed(value, allowed))
        }
    }

    /// Reads each element of the next value, which must be an array. Returns the number of
    /// elements. `read` receives the index of an element and must read the element. The index
    /// becomes part of the path of an error.
    #[inline]
    pub(super) fn elements(
        &mut self,
        mut read: impl FnMut(usize, &mut Self) -> Result<(), Error>,
    ) -> Result<usize, Error> {
        self.open(b'[', "an array")?;
        let mut count = 0;
        while self.json.next_element().map_err(|error| self.malformed(error))? {
            read(count, self).map_err(|error| error.in_element(count))?;
            count += 1;
        }
        Ok(count)
    }

    /// Reads the next value and returns its raw bytes, which are never empty.
    #[inline]
    pub(super) fn value(&mut self) -> Result<&'a [u8], Error> {
        self.json.value().map_err(|error| self.malformed(error))
    }

    /// Finds the next member with a known name, and skips other members. Returns the member's
    /// field: the index of its name among the known names. The caller must read the value of the
    /// member, and may store it in `fields`. Returns `None` at the end of the object.
    ///
    /// # Errors
    /// Fails if a known name occurs twice, with or without escapes. Fails if a name differs from a
    /// known name only in letter case. Parsers differ in which of two such members they use: Go's
    /// `encoding/json` ignores letter case and uses the last member. Verifying only one of the
    /// members would be useless.
    #[inline]
    pub(super) fn member<const N: usize>(
        &mut self,
        fields: &mut Fields<'a, N>,
        layout: &mut Layout<N>,
    ) -> Result<Option<usize>, Error> {
        while let Some(name) = self.json.next_name().map_err(|error| self.malformed(error))? {
            let field = if name.escaped {
                layout.find(&name.decode())?
            } else {
                layout.field(fields.next_position(), name.raw)?
            };
            let Some(field) = field else {
                self.value()?;
                continue;
            };
            if !fields.mark_found(field) {
                return Err(Error::from(ErrorKind::Duplicate).in_member(layout.name(field)));
            }
            return Ok(Some(field));
        }
        Ok(None)
    }

    /// Returns the members of the next value, which must be an object.
    #[inline]
    pub(super) fn object<const N: usize>(
        &mut self,
        layout: &mut Layout<N>,
    ) -> Result<Fields<'a, N>, Error> {
        let mut fields = layout.fields();
        self.open_object()?;
        while let Some(field) = self.member(&mut fields, layout)? {
            fields.set(field, self.value()?);
        }
        Ok(fields)
    }

    /// Returns the error for JSON that ends too early or has an unexpected structure.
    #[cold]
    fn malformed(&self, error: Malformed) -> Error {
        let rest = self.json.raw().get(error.offset..).unwrap_or_default();
        Error::malformed(rest, "JSON that does not end here")
    }
}
