//! Encodes and decodes the bytes of a node: header, compression and columns. [`super`] describes
//! the layout.
//!
//! Decoding trusts no input. Lengths are checked before memory is allocated.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

use super::{NodeId, TreeDamage};
use schemas::leb128::{self, Leb128Error};

/// The maximum bytes of a body, and of its keys with their shared prefixes.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// The maximum bytes of an entry in a body, without its key and its value or id.
pub(super) const ENTRY_BYTES: usize = 25;

const LAYOUT: u8 = 1;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const ZSTD_LEVEL: i32 = 1;
/// A body that compresses to more than 7/8 stays uncompressed, because it is then read faster.
const COMPRESSED_RATIO_MAX: (usize, usize) = (7, 8);
thread_local! {
    // Creating a context takes as long as compressing several leaves. Contexts keep no data.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn compress_body(body: &[u8]) -> io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|context| match context {
        Some(compressor) => compressor.compress(body),
        None => context.insert(Compressor::new(ZSTD_LEVEL)?).compress(body),
    })
}

fn decompress_body(compressed: &[u8], length: usize) -> io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|context| match context {
        Some(decompressor) => decompressor.decompress(compressed, length),
        None => context
            .insert(Decompressor::new()?)
            .decompress(compressed, length),
    })
}

/// Encodes a node from its body.
pub(super) fn encode(level: u8, body: &[u8], compress: bool) -> Vec<u8> {
    let mut bytes = vec![LAYOUT, level];
    match compress.then(|| compress_body(body)) {
        Some(Ok(compressed))
            if compressed.len() < body.len() / COMPRESSED_RATIO_MAX.1 * COMPRESSED_RATIO_MAX.0 =>
        {
            bytes.push(ZSTD);
            leb128::write(&mut bytes, body.len() as u64);
            bytes.extend_from_slice(&compressed);
        }
        _ => {
            bytes.push(PLAIN);
            bytes.extend_from_slice(body);
        }
    }
    bytes
}

/// Decodes the level of a node and its body.
pub(super) fn decode_header(bytes: &[u8]) -> Result<(u8, Cow<'_, [u8]>), TreeDamage> {
    let mut reader = ByteReader(bytes);
    let layout = reader.read_byte()?;
    if layout != LAYOUT {
        return Err(TreeDamage::Layout(layout));
    }
    let level = reader.read_byte()?;
    let packing = reader.read_byte()?;
    let body = match packing {
        PLAIN => Cow::Borrowed(reader.0),
        ZSTD => {
            let length = reader.read_length()?;
            if length > BODY_BYTES_MAX {
                return Err(TOO_LONG);
            }
            let body = decompress_body(reader.0, length).ok();
            let body = body.filter(|body| body.len() == length);
            Cow::Owned(body.ok_or(TreeDamage::Content("it does not decompress"))?)
        }
        _ => return Err(TreeDamage::Content("its packing is unknown")),
    };
    if body.len() > BODY_BYTES_MAX {
        return Err(TOO_LONG);
    }
    Ok((level, body))
}

pub(super) const TOO_LONG: TreeDamage =
    TreeDamage::Content("it exceeds the maximum size of a node");
const TRUNCATED: TreeDamage = TreeDamage::Content("it ends too early");

/// The columns of a body.
pub(super) struct Columns<'a> {
    pub(super) entries: usize,
    pub(super) lengths: ByteReader<'a>,
    pub(super) numbers: ByteReader<'a>,
    pub(super) keys: ByteReader<'a>,
    pub(super) contents: ByteReader<'a>,
}

impl<'a> Columns<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, TreeDamage> {
        let mut reader = ByteReader(body);
        let entries = reader.read_length()?;
        let [lengths, numbers, keys] = [
            reader.read_length()?,
            reader.read_length()?,
            reader.read_length()?,
        ];
        if entries > BODY_BYTES_MAX / ENTRY_BYTES {
            return Err(TOO_LONG);
        }
        Ok(Self {
            entries,
            lengths: ByteReader(reader.take(lengths)?),
            numbers: ByteReader(reader.take(numbers)?),
            keys: ByteReader(reader.take(keys)?),
            contents: reader,
        })
    }

    /// Checks that every byte was read.
    pub(super) fn check_consumed(&self) -> Result<(), TreeDamage> {
        let columns = [&self.lengths, &self.numbers, &self.keys, &self.contents];
        if columns.iter().all(|column| column.0.is_empty()) {
            return Ok(());
        }
        Err(TreeDamage::Content("bytes follow its last entry"))
    }
}

/// Reads bytes; contains the unread ones.
pub(super) struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn read_byte(&mut self) -> Result<u8, TreeDamage> {
        let (byte, rest) = self.0.split_first().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(*byte)
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], TreeDamage> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn read_id(&mut self) -> Result<NodeId, TreeDamage> {
        let (id, rest) = self.0.split_first_chunk().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(NodeId::from(*id))
    }

    pub(super) fn read_number(&mut self) -> Result<u64, TreeDamage> {
        leb128::read(&mut self.0).map_err(|error| match error {
            Leb128Error::Truncated => TRUNCATED,
            Leb128Error::TooLarge => TreeDamage::Content("a number is too large"),
        })
    }

    pub(super) fn read_weight(&mut self) -> Result<i64, TreeDamage> {
        let weight = self.read_number()?.cast_signed();
        let is_negative = weight < 0;
        (!is_negative)
            .then_some(weight)
            .ok_or(TreeDamage::Content("a weight is negative"))
    }

    pub(super) fn read_length(&mut self) -> Result<usize, TreeDamage> {
        usize::try_from(self.read_number()?).map_err(|_| TOO_LONG)
    }
}
