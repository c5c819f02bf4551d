//! The bytes of a node: its numbers, its columns and how they are packed. The layout stands in
//! [`super`].
//!
//! Nothing here trusts a byte that it reads: lengths are checked before anything is allocated.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

use super::{Damaged, NodeId};
use schemas::leb128::{self, NoNumber};

/// The longest body, and the most bytes that its keys take in full.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// The most that an entry takes in a body besides its key and its value or id.
pub(super) const ENTRY_BYTES: usize = 25;

const LAYOUT: u8 = 1;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const ZSTD_LEVEL: i32 = 1;
/// A body that compresses to more than 7 of 8 bytes stays plain: it is read faster.
const WORTH: (usize, usize) = (7, 8);
thread_local! {
    // A context takes as long to make as some leaves to pack, and keeps nothing of them.
    static PACKER: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static UNPACKER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn pack(body: &[u8]) -> io::Result<Vec<u8>> {
    PACKER.with_borrow_mut(|kept| match kept {
        Some(packer) => packer.compress(body),
        None => kept.insert(Compressor::new(ZSTD_LEVEL)?).compress(body),
    })
}

fn unpack(packed: &[u8], length: usize) -> io::Result<Vec<u8>> {
    UNPACKER.with_borrow_mut(|kept| match kept {
        Some(unpacker) => unpacker.decompress(packed, length),
        None => kept.insert(Decompressor::new()?).decompress(packed, length),
    })
}

/// The bytes of a node.
pub(super) fn close(level: u8, body: &[u8], compress: bool) -> Vec<u8> {
    let mut bytes = vec![LAYOUT, level];
    match compress.then(|| pack(body)) {
        Some(Ok(packed)) if packed.len() < body.len() / WORTH.1 * WORTH.0 => {
            bytes.push(ZSTD);
            leb128::write(&mut bytes, body.len() as u64);
            bytes.extend_from_slice(&packed);
        }
        _ => {
            bytes.push(PLAIN);
            bytes.extend_from_slice(body);
        }
    }
    bytes
}

/// The level of a node and its body.
pub(super) fn open(bytes: &[u8]) -> Result<(u8, Cow<'_, [u8]>), Damaged> {
    let mut reader = Reader(bytes);
    let layout = reader.byte()?;
    if layout != LAYOUT {
        return Err(Damaged::Layout(layout));
    }
    let level = reader.byte()?;
    let packing = reader.byte()?;
    let body = match packing {
        PLAIN => Cow::Borrowed(reader.0),
        ZSTD => {
            let length = reader.length()?;
            if length > BODY_BYTES_MAX {
                return Err(TOO_LONG);
            }
            let body = unpack(reader.0, length).ok();
            let body = body.filter(|body| body.len() == length);
            Cow::Owned(body.ok_or(Damaged::Content("it does not decompress"))?)
        }
        _ => return Err(Damaged::Content("its packing is unknown")),
    };
    if body.len() > BODY_BYTES_MAX {
        return Err(TOO_LONG);
    }
    Ok((level, body))
}

pub(super) const TOO_LONG: Damaged = Damaged::Content("it is longer than a node can be");
const CUT: Damaged = Damaged::Content("it ends too early");

/// The columns of a body.
pub(super) struct Columns<'a> {
    pub(super) entries: usize,
    pub(super) lengths: Reader<'a>,
    pub(super) numbers: Reader<'a>,
    pub(super) keys: Reader<'a>,
    pub(super) rest: Reader<'a>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(body: &'a [u8]) -> Result<Self, Damaged> {
        let mut reader = Reader(body);
        let entries = reader.length()?;
        let [lengths, numbers, keys] = [reader.length()?, reader.length()?, reader.length()?];
        if entries > BODY_BYTES_MAX / ENTRY_BYTES {
            return Err(TOO_LONG);
        }
        Ok(Self {
            entries,
            lengths: Reader(reader.take(lengths)?),
            numbers: Reader(reader.take(numbers)?),
            keys: Reader(reader.take(keys)?),
            rest: reader,
        })
    }

    /// Checks that every byte was read.
    pub(super) fn end(&self) -> Result<(), Damaged> {
        let columns = [&self.lengths, &self.numbers, &self.keys, &self.rest];
        if columns.iter().all(|column| column.0.is_empty()) {
            return Ok(());
        }
        Err(Damaged::Content("something follows its last entry"))
    }
}

/// Bytes that are yet to be read.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, Damaged> {
        let (byte, rest) = self.0.split_first().ok_or(CUT)?;
        self.0 = rest;
        Ok(*byte)
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CUT)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn id(&mut self) -> Result<NodeId, Damaged> {
        let (id, rest) = self.0.split_first_chunk().ok_or(CUT)?;
        self.0 = rest;
        Ok(NodeId::from(*id))
    }

    pub(super) fn number(&mut self) -> Result<u64, Damaged> {
        leb128::read(&mut self.0).map_err(|error| match error {
            NoNumber::Cut => CUT,
            NoNumber::TooLarge => Damaged::Content("a number is too large"),
        })
    }

    pub(super) fn weight(&mut self) -> Result<i64, Damaged> {
        let weight = self.number()?.cast_signed();
        let is_negative = weight < 0;
        (!is_negative)
            .then_some(weight)
            .ok_or(Damaged::Content("a weight is negative"))
    }

    pub(super) fn length(&mut self) -> Result<usize, Damaged> {
        usize::try_from(self.number()?).map_err(|_| TOO_LONG)
    }
}
